"""Whole functions as streams, with nothing declared, against themselves one-shot: bytes, time, and what it takes to
trace and compile them, in one interleaved run.

    python benchmarks/streams.py                  every row, about four minutes on two idle cores
    python benchmarks/streams.py fit deep         some

A bound is held for each row; the exit status is 1 if one is missed. Not here: peers, of which none runs such functions
(`chunking.py`).
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rounds import interleaved
from rounds import ratio

import erythroxy_tx as tx

RNG = np.random.default_rng(0)
MB = 1e6
COMPILES = 3


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


class Bounds(NamedTuple):
    """What is allowed of the stream: temporaries in bytes, and ratios to one-shot; None where nothing is said."""

    temp: float
    time: float
    compile: float | None = None
    furthest: float = 1e-3


class Job(NamedTuple):
    """A function, its stream, its arguments, and what is allowed."""

    title: str
    fn: Callable[..., Any]
    stream: Callable[..., Any]
    args: tuple
    bounds: Callable[[int], Bounds]  # of the temporaries of one-shot


# ---------------------------------------------------------------------- standardise, Gram matrix, solve, forecast


def fit(w: Any, x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ w)
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-6)
    weights = jnp.linalg.solve(h.T @ h + 10 * jnp.eye(h.shape[1]), h.T @ y)
    return weights, h @ weights


def fit_loss(w: Any, x: Any, y: Any) -> Any:
    return ((fit(w, x, y)[1] - y) ** 2).mean()


# ---------------------------------------------------------------------- twelve batch-normalised layers


def deep(weights: Any, x: Any) -> Any:
    for w in weights:
        h = x @ w
        x = jax.nn.relu((h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5))
    return x


def deep_loss(weights: Any, x: Any) -> Any:
    return (deep(weights, x) * jnp.arange(x.shape[1])).mean() ** 2


# ---------------------------------------------------------------------- twelve transformer layers, the batch as rows

HEADS = 4


def norm(x: Any, scale: Any) -> Any:
    return scale * (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], HEADS, -1)


def transformer_loss(layers: Any, x: Any, target: Any) -> Any:
    for p in layers:
        h = norm(x, p["first"])
        q, k, v = (heads(h @ p[name]) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / 4, -1)
        x = x + jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape) @ p["o"]
        x = x + jax.nn.gelu(norm(x, p["second"]) @ p["up"]) @ p["down"]
    return ((x - target) ** 2).mean()


def layer(width: int) -> dict[str, jax.Array]:
    square = {name: normal(width, width) / 8 for name in "qkvo"}
    wide = {"up": normal(width, 4 * width) / 8, "down": normal(4 * width, width) / 16}
    return {"first": jnp.ones(width), "second": jnp.ones(width), **square, **wide}


# ---------------------------------------------------------------------- the rows of the table


def chunks(fn: Callable[..., Any], in_axes: Any, **size: Any) -> Callable[..., Any]:
    return tx.chunked(lax.map, in_axes=in_axes, **size)(fn)


def jobs() -> dict[str, Job]:
    w, x, y = normal(64, 1024) / 8, normal(65536, 64), normal(65536)
    of_fit = (None, 0, 0)
    weights, rows = normal(12, 64, 64) / 8, normal(65536, 64)
    layers = [layer(64) for _ in range(12)]
    batch = normal(1024, 32, 64), normal(1024, 32, 64)
    gradient = jax.value_and_grad
    return {
        "fit": Job(
            "fit, 65536 x 64, 1024 features",
            fit, chunks(fit, of_fit, size=1024), (w, x, y), lambda _: Bounds(20 * MB, 1.0, 2.5),
        ),
        "gradient": Job(
            "value and gradient of its loss",
            gradient(fit_loss), gradient(chunks(fit_loss, of_fit, size=1024)), (w, x, y),
            lambda _: Bounds(30 * MB, 1.2),
        ),
        "inside": Job(
            "the same, the gradient inside of the stream",
            gradient(fit_loss), chunks(gradient(fit_loss), of_fit, size=1024), (w, x, y),
            lambda _: Bounds(30 * MB, 1.2),
        ),
        "transformer": Job(
            "12 transformer layers, value and gradient, 1024 sequences in chunks of 128",
            gradient(transformer_loss), chunks(gradient(transformer_loss), (None, 0, 0), size=128), (layers, *batch),
            lambda temp: Bounds(temp / 6, 1.0, 1.5),
        ),
        "around": Job(
            "the same, the gradient around the stream",
            gradient(transformer_loss), gradient(chunks(transformer_loss, (None, 0, 0), size=128)), (layers, *batch),
            lambda temp: Bounds(temp / 6, 1.0),
        ),
        "deep": Job(
            "12 batch-normalised layers, value and gradient",
            gradient(deep_loss), chunks(gradient(deep_loss), (None, 0), size=2048), (weights, rows),
            lambda temp: Bounds(temp / 4, 3.0, furthest=5e-2),
        ),
        "stored": Job(
            "the same, with a budget of a quarter of one-shot's memory",
            gradient(deep_loss), chunks(gradient(deep_loss), (None, 0), budget="147MiB"), (weights, rows),
            lambda temp: Bounds(temp / 4, 3.0, furthest=5e-2),
        ),
    }  # fmt: skip


class Compiled(NamedTuple):
    run: Callable[[], Any]
    temp: int
    seconds: float  # to trace and compile, the median


def compiled(fn: Callable[..., Any], args: tuple) -> Compiled:
    seconds = []
    for _ in range(COMPILES):
        jax.clear_caches()
        begin = time.perf_counter()
        program = jax.jit(fn).lower(*args).compile()
        seconds.append(time.perf_counter() - begin)
    temp = program.memory_analysis().temp_size_in_bytes
    return Compiled(lambda: program(*args), temp, statistics.median(seconds))


def furthest(a: Any, b: Any) -> float:
    """The largest difference of any leaf over its largest magnitude."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(jnp.max(jnp.abs(x - y)) / jnp.max(jnp.abs(x))) for x, y in pairs)


def compare(job: Job, rounds: int) -> bool:
    """Run one row, print it, and tell whether its bounds hold."""
    runs = {"one-shot": compiled(job.fn, job.args)}
    stream = job.stream
    if hasattr(stream, "chunks"):
        print(f"{job.title}: {stream.chunks(*job.args)}", flush=True)
    runs["stream"] = compiled(stream, job.args)
    apart = furthest(runs["one-shot"].run(), runs["stream"].run())
    seconds = interleaved({name: entry.run for name, entry in runs.items()}, rounds)
    one, ours = runs["one-shot"], runs["stream"]
    bounds = job.bounds(one.temp)
    figures = {
        "temp": (ours.temp, bounds.temp),
        "time": (ratio(seconds["stream"], seconds["one-shot"]), bounds.time),
        "compile": (ours.seconds / one.seconds, bounds.compile),
        "furthest": (apart, bounds.furthest),
    }
    missed = [name for name, (figure, limit) in figures.items() if limit is not None and figure > limit]
    took, verdict = statistics.median(seconds["one-shot"]), "MISSED " + ", ".join(missed) if missed else "holds"
    print(
        f"| {job.title} | {one.temp / MB:.0f} | {ours.temp / MB:.1f} | {took:.2f} s | {figures['time'][0]:.2f} | "
        f"{one.seconds:.1f} s | {figures['compile'][0]:.2f} | {apart:.0e} | {verdict} |",
        flush=True,
    )
    return not missed


def main() -> int:
    known = jobs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="*", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if unknown := set(options.job) - set(known):
        parser.error(f"got job {', '.join(sorted(unknown))}. Expected some of {', '.join(known)}.")
    print(f"jax {jax.__version__} on {jax.default_backend()}, {os.cpu_count()} cores, {options.rounds} rounds\n")
    print("| function | one-shot: temp MB | ours | one-shot: time | ours | one-shot: compile | ours | furthest | |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
    held = True
    for name in options.job or known:
        held &= compare(known[name], options.rounds)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
