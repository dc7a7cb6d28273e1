"""The gradient of a long scan: as it is, with its steps rematerialised, in segments by hand, by `equinox.internal`, and
by `tx.checkpointed_scan`.

    python benchmarks/scans.py

Bounds: temporaries at most 0.02 of plain, time at most 1.15 of plain, and gradients with the same bits. The exit status
is 1 if one is missed. Bytes are XLA's account of the temporaries.
"""

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rounds import interleaved
from rounds import ratio

import erythroxy_tx as tx

T, BATCH, WIDTH, INPUTS = 1024, 64, 256, 8
MOST_TEMP, MOST_TIME = 0.02, 1.15


def cell(w: Any, h: Any, x: Any) -> Any:
    """A GRU without a reset gate."""
    z = jax.nn.sigmoid(h @ w["uz"] + x @ w["wz"] + w["bz"])
    c = jnp.tanh(h @ w["uh"] + x @ w["wh"] + w["bh"])
    return (1 - z) * h + z * c


def plain(w: Any, h: Any, xs: Any) -> Any:
    return (lax.scan(lambda h, x: (cell(w, h, x), None), h, xs)[0] ** 2).mean()


def remat(w: Any, h: Any, xs: Any) -> Any:
    step = jax.checkpoint(lambda h, x: (cell(w, h, x), None), prevent_cse=False)
    return (lax.scan(step, h, xs)[0] ** 2).mean()


def segments(w: Any, h: Any, xs: Any) -> Any:
    n = math.isqrt(T)
    inner = lambda h, xs: lax.scan(lambda h, x: (cell(w, h, x), None), h, xs)  # noqa: E731
    return (lax.scan(jax.checkpoint(inner, prevent_cse=False), h, xs.reshape(n, T // n, BATCH, INPUTS))[0] ** 2).mean()


def equinox(w: Any, h: Any, xs: Any) -> Any:
    return (eqxi.scan(lambda h, x: (cell(w, h, x), None), h, xs, kind="checkpointed")[0] ** 2).mean()


VARIANTS: dict[str, Callable[..., Any]] = {
    "lax.scan": plain,
    "jax.checkpoint in the step": remat,
    "jax.checkpoint in segments": segments,
    "equinox.internal, checkpointed": equinox,
    "tx.checkpointed_scan": tx.checkpointed_scan(plain),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(0)
    sizes = {"uz": (WIDTH, WIDTH), "uh": (WIDTH, WIDTH), "wz": (INPUTS, WIDTH), "wh": (INPUTS, WIDTH)}
    w = {name: jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, jnp.float32) for name, s in sizes.items()}
    w |= {"bz": jnp.zeros(WIDTH) - 1, "bh": jnp.zeros(WIDTH)}
    h = jnp.asarray(rng.normal(size=(BATCH, WIDTH)) / 10, jnp.float32)
    xs = jnp.asarray(rng.normal(size=(T, BATCH, INPUTS)), jnp.float32)
    programs = {n: jax.jit(jax.value_and_grad(f, (0, 1))).lower(w, h, xs).compile() for n, f in VARIANTS.items()}
    temps = {name: program.memory_analysis().temp_size_in_bytes for name, program in programs.items()}
    results = {name: jax.tree.map(np.asarray, program(w, h, xs)) for name, program in programs.items()}
    seconds = interleaved({name: lambda p=p: p(w, h, xs) for name, p in programs.items()}, rounds)
    print(f"jax {jax.__version__} on {jax.default_backend()}, {os.cpu_count()} cores, {rounds} rounds\n")
    print(
        f"| {'gradient of':30} | temp MiB | of lax.scan | seconds | of lax.scan | weight gradient, largest difference |"
    )
    print(f"|{'-' * 32}|---------:|------------:|--------:|------------:|:------------------------------------|")
    missed = []
    reference = jax.tree.leaves(results["lax.scan"][1])
    for name in VARIANTS:
        temp, time = temps[name] / temps["lax.scan"], ratio(seconds[name], seconds["lax.scan"])
        pairs = zip(reference, jax.tree.leaves(results[name][1]), strict=True)
        furthest = max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)) for a, b in pairs)
        told = "the same bits" if furthest == 0 else f"{furthest:.0e}"
        print(
            f"| {name:30} | {temps[name] / 2**20:8.1f} | {temp:11.4f} | {statistics.median(seconds[name]):7.2f} "
            f"| {time:11.2f} | {told:35} |"
        )
        if name.startswith("tx.") and (temp > MOST_TEMP or time > MOST_TIME or furthest):
            missed.append(f"{name}: temp {temp:.4f}, time {time:.2f}, {told}")
    print(
        f"\n{'MISSED: ' + ', '.join(missed) if missed else 'holds'}: temp {MOST_TEMP}, time {MOST_TIME}, the same bits"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
