"""`tx.chunked` against other ways to run a function over chunks of rows: bytes of temporaries and time, in one
interleaved run, forwards and under `jax.value_and_grad`.

    python benchmarks/chunking.py                       every row
    python benchmarks/chunking.py mlp --only gradient   some

A bound is held at the end of each row: at the same chunk size ours takes no more temporaries than the best peer,
and at most 1.10 of the fastest peer's time. The exit status is 1 if a bound is missed. Not here: how a peer is
called (`peers.py`).
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from peers import PEERS
from peers import Chunked
from peers import Fn
from peers import NotApplicableError
from peers import Problem
from peers import ours
from rounds import interleaved
from rounds import ratio

ROWS, FEATURES = 16384, 256
SIZES = (1024, 1000)
SLOWEST = 1.10
FURTHEST = 1e-4  # largest difference from the one-shot result, over its largest magnitude
MIB = 2**20


def tanh_matmul(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def mlp(weights: Any, x: Any) -> Any:
    return jnp.tanh(x @ weights[0]) @ weights[1]


def normal_equations(weights: Any, xy: Any) -> Any:
    p, y = jnp.tanh(xy[:, :-1] @ weights), xy[:, -1:]
    return p.T @ p, p.T @ y


def problems() -> dict[str, Problem]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    x, w, w1, w2 = normal(ROWS, FEATURES), normal(FEATURES, 1024) / 16, normal(FEATURES, 2048) / 16, normal(2048, 64) / 45
    xy = jnp.concatenate([x, normal(ROWS, 1)], axis=1)
    return {
        "tanh": Problem(f"tanh(x @ W), {ROWS}x{FEATURES} -> 1024", tanh_matmul, "rows", w, x),
        "mlp": Problem(f"MLP {FEATURES} -> 2048 -> 64, {ROWS} rows", mlp, "rows", (w1, w2), x),
        "normal": Problem(f"normal equations of 1024 tanh features, {ROWS} rows", normal_equations, "sum", w, xy),
    }


def loss_of(problem: Problem, fn: Fn) -> Callable[..., Any]:
    """The mean loss of a result, as `jax.value_and_grad` with respect to the weights."""

    def loss(weights: Any, x: Any, target: Any) -> Any:
        result = fn(weights, x)
        if problem.out == "rows":
            return jnp.mean((result - target) ** 2)
        return sum(jnp.mean((leaf / ROWS) ** 2) for leaf in jax.tree.leaves(result))

    return jax.value_and_grad(loss)


class Entry(NamedTuple):
    """One compiled program: the rows in its chunks (None for one-shot) and its bytes."""

    run: Callable[[], Any]
    size: int | None
    temp: int
    total: int


def compiled(fn: Callable[..., Any], args: tuple, size: int | None) -> Entry:
    program = jax.jit(fn).lower(*args).compile()
    found = program.memory_analysis()
    temp = found.temp_size_in_bytes
    total = found.argument_size_in_bytes + found.output_size_in_bytes + temp - found.alias_size_in_bytes
    return Entry(lambda: program(*args), size, temp, total)


def entries(problem: Problem, size: int, gradient: bool) -> tuple[dict[str, Entry], dict[str, str]]:
    """The programs of one row, ours first; and the peers that have none, with their reason."""
    target = jnp.zeros((ROWS, 0)) if problem.out == "sum" else problem.fn(problem.weights, problem.x) + 1
    args = (problem.weights, problem.x, target) if gradient else (problem.weights, problem.x)
    found, absent = {}, {}

    def add(name: str, chunked: Chunked) -> None:
        found[name] = compiled(loss_of(problem, chunked.fn) if gradient else chunked.fn, args, chunked.size)

    found["one-shot"] = compiled(loss_of(problem, problem.fn) if gradient else problem.fn, args, None)
    add(f"ours, {size}", ours(problem, problem.fn, size))
    forms = {"": problem.fn, ", checkpoint": jax.checkpoint(problem.fn)} if gradient else {"": problem.fn}
    for peer, build in PEERS.items():
        for form, fn in forms.items():
            try:
                chunked = build(problem, fn, size)
            except NotApplicableError as reason:
                absent[peer] = str(reason)
                break
            add(peer + form, chunked)
            if f"ours, {chunked.size}" not in found:
                add(f"ours, {chunked.size}", ours(problem, problem.fn, chunked.size))
    return found, absent


def check(found: dict[str, Entry]) -> None:
    """Refuse to compare programs that do not compute the same thing."""
    expected = jax.tree.leaves(found["one-shot"].run())
    for name, entry in found.items():
        for want, got in zip(expected, jax.tree.leaves(entry.run()), strict=True):
            distance = float(jnp.max(jnp.abs(want - got)) / jnp.max(jnp.abs(want)))
            if want.shape != got.shape or not distance <= FURTHEST:
                raise AssertionError(f"{name} is {distance:.1e} from the one-shot result; at most {FURTHEST:g} is right")


def compare(title: str, found: dict[str, Entry], absent: dict[str, str], rounds: int) -> bool:
    """Run one row, print its table, and tell whether both bounds hold."""
    check(found)
    seconds = interleaved({name: entry.run for name, entry in found.items()}, rounds)
    print(f"\n### {title}\n")
    print(f"| {'':32} | chunk | temp MiB | total MiB | median ms | of one-shot | ours at that chunk |")
    print(f"|{'-' * 34}|------:|---------:|----------:|----------:|------------:|-------------------:|")
    misses = []
    best: dict[str, tuple[float, str]] = {}
    for name, entry in found.items():
        mine = f"ours, {entry.size}"
        against = ""
        if entry.size is not None and name != mine:
            memory, time = found[mine].temp / entry.temp, ratio(seconds[mine], seconds[name])
            against = f"x{memory:.2f} B, x{time:.2f} s"
            best["temporaries"] = max(best.get("temporaries", (0.0, "")), (memory, name))
            best["time"] = max(best.get("time", (0.0, "")), (time, name))
        print(
            f"| {name:32} | {entry.size or '':5} | {entry.temp / MIB:8.2f} | {entry.total / MIB:9.2f} "
            f"| {statistics.median(seconds[name]) * 1e3:9.1f} | {ratio(seconds[name], seconds['one-shot']):11.2f} | {against:>18} |"
        )
    for peer, reason in absent.items():
        print(f"| {peer:32} | {reason} ||||||")
    misses = [what for what, limit in (("temporaries", 1.0), ("time", SLOWEST)) if best[what][0] > limit]
    told = ", ".join(f"{what} x{value:.3f} of {name}" for what, (value, name) in best.items())
    print(f"\n{'MISSED: ' + ' and '.join(misses) if misses else 'holds'}: ours takes at most {told}")
    return not misses


def main() -> int:
    known = problems()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", nargs="*", metavar="problem", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--only", choices=("forward", "gradient"), help="both by default")
    parser.add_argument("--size", type=int, nargs="+", default=SIZES, help="rows in a chunk; 1024 and 1000 by default")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if unknown := set(options.problem) - set(known):
        parser.error(f"no problem {sorted(unknown)}; expected some of {sorted(known)}")
    print(f"jax {jax.__version__} on {jax.default_backend()}, {os.cpu_count()} cores, {options.rounds} rounds")
    if jax.default_backend() == "cpu":
        print("temp is XLA's own account. From jax 0.12 on, some fusions on the CPU allocate outside it.")
    held = True
    for name in options.problem or known:
        problem = known[name]
        for gradient in (False, True):
            if options.only in (None, "gradient" if gradient else "forward"):
                for size in options.size:
                    title = f"{'value_and_grad: ' if gradient else ''}{problem.title}, chunks of {size}"
                    held &= compare(title, *entries(problem, size, gradient), options.rounds)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
