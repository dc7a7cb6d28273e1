"""`tx.chunked` against other ways to run a function over chunks of rows: bytes of temporaries and time, in one
interleaved run, forwards and under `jax.value_and_grad`.

    python benchmarks/chunking.py                        every row, about ten minutes on two idle cores
    python benchmarks/chunking.py mlp --only gradient    some

A bound is held for each row: at the same chunk size ours takes no more temporaries than the best peer, and at most
1.10 of the fastest peer's time. The exit status is 1 if a bound is missed. Not here: how a peer is called (`peers.py`).
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from peers import PEERS
from peers import Fn
from peers import NotApplicableError
from peers import Problem
from peers import ours
from rounds import interleaved
from rounds import ratio

ROWS, FEATURES = 16384, 256
SIZES = (1024, 1000)  # one that divides the rows, and one that does not
LIMITS = {"temp": 1.0, "time": 1.10}  # ours over a peer
FURTHEST = 1e-4  # largest difference from the one-shot result, over its largest magnitude
MIB = 2**20


def tanh_matmul(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def mlp(weights: Any, x: Any) -> Any:
    return jnp.tanh(x @ weights[0]) @ weights[1]


def normal_equations(w: Any, xy: Any) -> Any:
    p, y = jnp.tanh(xy[:, :-1] @ w), xy[:, -1:]
    return p.T @ p, p.T @ y


def problems() -> dict[str, Problem]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    x, w = normal(ROWS, FEATURES), normal(FEATURES, 1024) / 16
    layers = normal(FEATURES, 2048) / 16, normal(2048, 64) / 45
    xy = jnp.concatenate([x, normal(ROWS, 1)], axis=1)
    return {
        "tanh": Problem("tanh(x @ W), 256 -> 1024", tanh_matmul, "rows", w, x),
        "mlp": Problem("MLP, 256 -> 2048 -> 64", mlp, "rows", layers, x),
        "normal": Problem("normal equations, 1024 tanh features", normal_equations, "sum", w, xy),
    }


def loss_of(problem: Problem, fn: Fn) -> Callable[..., Any]:
    """The mean loss of a result and its gradient with respect to the weights."""

    def loss(weights: Any, x: Any, target: Any) -> Any:
        result = fn(weights, x)
        if problem.out == "rows":
            return jnp.mean((result - target) ** 2)
        return sum(jnp.mean((leaf / ROWS) ** 2) for leaf in jax.tree.leaves(result))

    return jax.value_and_grad(loss)


class Entry(NamedTuple):
    """One compiled program: the rows in its chunks (None for one-shot), and its bytes."""

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
    """The programs of one row, and the peers that have none, with their reason.

    Under gradient a peer is taken as it is, and once more with each chunk in `jax.checkpoint`.
    """
    args: tuple[Any, ...] = (problem.weights, problem.x)
    if gradient:
        args += (problem.fn(*args) + 1 if problem.out == "rows" else None,)
    found: dict[str, Entry] = {}
    absent: dict[str, str] = {}

    def add(name: str, fn: Fn, size: int | None) -> None:
        found[name] = compiled(loss_of(problem, fn) if gradient else fn, args, size)

    add("one-shot", problem.fn, None)
    add(f"ours, {size}", ours(problem, problem.fn, size).fn, size)
    forms = {"": problem.fn, ", checkpoint": jax.checkpoint(problem.fn)} if gradient else {"": problem.fn}
    for peer, build in PEERS.items():
        for form, fn in forms.items():
            try:
                chunked = build(problem, fn, size)
            except NotApplicableError as reason:
                absent[peer] = str(reason)
                break
            add(peer + form, *chunked)
            if (same := f"ours, {chunked.size}") not in found:
                add(same, *ours(problem, problem.fn, chunked.size))
    return found, absent


def check(found: dict[str, Entry]) -> None:
    """Refuse to compare programs that do not compute the same thing."""
    expected = jax.tree.leaves(found["one-shot"].run())
    for name, entry in found.items():
        for want, got in zip(expected, jax.tree.leaves(entry.run()), strict=True):
            distance = float(jnp.max(jnp.abs(want - got)) / jnp.max(jnp.abs(want)))
            if want.shape != got.shape or not distance <= FURTHEST:
                raise AssertionError(
                    f"{name} is {distance:.1e} from the one-shot result. Expected at most {FURTHEST:g}."
                )


class Versus(NamedTuple):
    """Ours over a peer at the peer's chunk size: bytes of temporaries, and seconds."""

    temp: float
    time: float
    again: bool


def versus(found: dict[str, Entry], seconds: dict[str, list[float]], peer: str, rounds: int) -> Versus:
    """Compare ours with a peer. Where the bound on time looks missed, the two run again alone, for longer."""
    mine = f"ours, {found[peer].size}"
    temp, time = found[mine].temp / found[peer].temp, ratio(seconds[mine], seconds[peer])
    if time <= LIMITS["time"]:
        return Versus(temp, time, again=False)
    seconds = interleaved({name: found[name].run for name in (mine, peer)}, 3 * rounds)
    return Versus(temp, ratio(seconds[mine], seconds[peer]), again=True)


def compare(title: str, found: dict[str, Entry], absent: dict[str, str], rounds: int) -> bool:
    """Run one row, print its table, and tell whether both bounds hold."""
    check(found)
    seconds = interleaved({name: entry.run for name, entry in found.items()}, rounds)
    peers = [name for name in found if name.startswith(tuple(PEERS))]
    against = {peer: versus(found, seconds, peer, rounds) for peer in peers}
    print(f"\n### {title}\n")
    print("| | chunk | temp MiB | total MiB | median ms | of one-shot | ours/it, temp | ours/it, time |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, entry in found.items():
        sizes = f"{entry.size or ''} | {entry.temp / MIB:.2f} | {entry.total / MIB:.2f}"
        times = f"{statistics.median(seconds[name]) * 1e3:.0f} | {ratio(seconds[name], seconds['one-shot']):.2f}"
        quotients = "|"
        if name in against:
            temp, time, again = against[name]
            quotients = f"{temp:.2f} | {time:.2f}{' †' * again}"
        print(f"| {name} | {sizes} | {times} | {quotients} |")
    for peer, reason in absent.items():
        print(f"| {peer} | | {reason} | | | | | |")
    if any(entry.again for entry in against.values()):
        print(f"\n† run again, beside ours alone, {3 * rounds} rounds")
    missed, told = [], []
    for what, limit in LIMITS.items():
        peer = max(peers, key=lambda name: getattr(against[name], what))
        figure = getattr(against[peer], what)
        missed += [what] if figure > limit else []
        told.append(f"{figure:.2f} of the {what} of {peer} (bound {limit:.2f})")
    print(f"\n{'MISSED in ' + ' and '.join(missed) if missed else 'holds'}: at most {' and '.join(told)}", flush=True)
    return not missed


def main() -> int:
    known = problems()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", nargs="*", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--only", choices=("forward", "gradient"), help="both by default")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if unknown := set(options.problem) - set(known):
        parser.error(f"got problem {', '.join(sorted(unknown))}. Expected some of {', '.join(known)}.")
    backend = jax.default_backend()
    print(f"jax {jax.__version__} on {backend}, {os.cpu_count()} cores, {ROWS} rows, {options.rounds} rounds")
    print("temp: XLA's account of one program's temporaries; total: arguments, results and temporaries less aliases.")
    if backend == "cpu" and jax.__version_info__ >= (0, 12):
        print("From jax 0.12 on, some fusions on the CPU allocate outside that account.")
    held = True
    for name in options.problem or known:
        for mode in ("forward", "gradient"):
            if options.only in (None, mode):
                for size in SIZES:
                    title = f"{known[name].title}, {mode}, chunks of {size}"
                    held &= compare(title, *entries(known[name], size, mode == "gradient"), options.rounds)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
