"""What it costs to call one function with inputs of many lengths: plain `jax.jit`, which compiles for each; masks and
buckets by hand; and `pad_static`, with one limit and with buckets.

    python benchmarks/padding.py

The time of a call is a mean over random lengths, everything included: padding, transfers, and in the first round
compiles. Not here: whether the results are the same (`tests/corpus/test_padded.py`).
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rounds import interleaved
from rounds import ratio

import erythroxy_tx as tx

MOST, WIDTH, CALLS = 512, 64, 200
BUCKETS = (128, 256, 512)


def encode(x: Any, w: Any) -> Any:
    """Attention over a sequence, standardised over it, and pooled."""
    h = jnp.tanh(x @ w)
    h = jax.nn.softmax(h @ h.T / WIDTH**0.5) @ h
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5)
    return jax.nn.relu(h @ w).max(0), h.mean(0)


def encode_masked(x: Any, w: Any, n: Any) -> Any:
    """The same with masks by hand."""
    there = jnp.arange(x.shape[0]) < n
    h = jnp.tanh(x @ w)
    h = jax.nn.softmax(jnp.where(there, h @ h.T / WIDTH**0.5, -jnp.inf)) @ jnp.where(there[:, None], h, 0)
    mean = jnp.where(there[:, None], h, 0).sum(0) / n
    var = jnp.where(there[:, None], (h - mean) ** 2, 0).sum(0) / n
    h = (h - mean) / jnp.sqrt(var + 1e-5)
    pooled = jnp.where(there[:, None], jax.nn.relu(h @ w), -jnp.inf).max(0)
    return pooled, jnp.where(there[:, None], h, 0).sum(0) / n


def by_hand(steps: tuple[int, ...]) -> Callable[..., Any]:
    masked = jax.jit(encode_masked)

    def call(x: Any, w: Any) -> Any:
        place = next(step for step in steps if step >= len(x))
        return masked(np.pad(x, ((0, place - len(x)), (0, 0))), w, np.int32(len(x)))

    return call


def callers() -> dict[str, Callable[..., Any]]:
    axes = (0, None)
    return {
        "jax.jit, a compile for each length": jax.jit(encode),
        "masks by hand, one limit": by_hand((MOST,)),
        "masks by hand, buckets": by_hand(BUCKETS),
        "tx.pad_static(512)": tx.pad_static(MOST, in_axes=axes)(encode),
        "tx.pad_static(buckets=(128, 256, 512))": tx.pad_static(buckets=BUCKETS, in_axes=axes)(encode),
    }


def over(fn: Callable[..., Any], inputs: list[Any], w: Any) -> Callable[[], Any]:
    """All calls, each waited for."""
    return lambda: [jax.block_until_ready(fn(x, w)) for x in inputs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / 8, jnp.float32)
    inputs = [rng.normal(size=(n, WIDTH)).astype(np.float32) for n in rng.integers(1, MOST + 1, CALLS)]
    runs = {name: over(fn, inputs, w) for name, fn in callers().items()}
    compiled = [0]

    def count(event: str, *_: Any, **__: Any) -> None:
        compiled[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(count)
    first, compiles = {}, {}
    for name, run in runs.items():
        before, start = compiled[0], time.perf_counter()
        run()
        first[name], compiles[name] = time.perf_counter() - start, compiled[0] - before
    seconds = interleaved(runs, rounds)
    print(
        f"jax {jax.__version__} on {jax.default_backend()}, {os.cpu_count()} cores, {rounds} rounds of {CALLS} calls\n"
    )
    print(f"| {'':40} | compiles | ms a call, first 200 | ms a call, warm | of masks by hand |")
    print(f"|{'-' * 42}|---------:|---------------------:|----------------:|-----------------:|")
    for name in runs:
        cold, warm = (1e3 * total / CALLS for total in (first[name], statistics.median(seconds[name])))
        of_hand = ratio(seconds[name], seconds["masks by hand, one limit"])
        print(f"| {name:40} | {compiles[name]:8} | {cold:20.2f} | {warm:15.2f} | {of_hand:16.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
