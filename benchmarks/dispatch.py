"""What a warm call of each transform, and of a stack of four, costs beside a bare `jax.jit` of the same work.

    python benchmarks/dispatch.py

Three bounds are held: one wrapper costs at most 1.20 of a bare `jax.jit`, `no_recompile` at most 1.25 also with 200
arrays in the argument, and the stack at most 3 µs more than `jax.jit` of what it compiles. The exit status is 1 if one
is missed. Not here: first calls.
"""

import argparse
import dataclasses
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rounds import interleaved
from rounds import ratio

import erythroxy_tx as tx

SLOWEST, SLOWEST_GUARD, SLOWEST_STACK = 1.20, 1.25, 3.0  # of jax.jit, of jax.jit, µs more
CALLS, LEAVES = 2000, 200  # in one timing, in the large argument


def step(x: Any) -> Any:
    return x * 2 + 1


def one_of(tree: Any) -> Any:
    return tree["0"] * 2 + 1


def stacked(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What a stack compiles: chunks of padded rows."""
    return tx.pad_static(8)(tx.chunked(lax.map, size=4)(fn))


@dataclasses.dataclass(frozen=True)
class Wrapped:
    """Something to call, what it is held against, and how much more it may cost."""

    fn: Callable[..., Any]
    of: str = "jax.jit"
    most: float | None = None
    most_us: float | None = None
    large: bool = False


def wrappers() -> dict[str, Wrapped]:
    stack = tx.no_recompile(tx.vram_resident(stacked(step)))
    return {
        "jax.jit": Wrapped(jax.jit(step)),
        "jax.jit, once more": Wrapped(jax.jit(lambda x: x * 2 + 1)),  # the noise of this benchmark
        "tx.chunked(lax.map, 1)": Wrapped(tx.chunked(lax.map, 1, out="rows")(step), most=SLOWEST),
        "tx.vram_resident": Wrapped(tx.vram_resident(step), most=SLOWEST),
        "tx.assert_relocation": Wrapped(tx.assert_relocation(step)(jax.jit(step)), most=SLOWEST),
        "tx.no_recompile": Wrapped(tx.no_recompile(jax.jit(step)), most=SLOWEST_GUARD),
        "chex.assert_max_traces": Wrapped(jax.jit(chex.assert_max_traces(step, n=1))),
        "equinox.filter_jit": Wrapped(eqx.filter_jit(step)),
        "jax.jit, 200 arrays": Wrapped(jax.jit(one_of), large=True),
        "tx.no_recompile, 200 arrays": Wrapped(
            tx.no_recompile(jax.jit(one_of)), "jax.jit, 200 arrays", most=SLOWEST_GUARD, large=True
        ),
        "equinox.filter_jit, 200 arrays": Wrapped(eqx.filter_jit(one_of), "jax.jit, 200 arrays", large=True),
        "jax.jit of what the stack runs": Wrapped(jax.jit(stacked(step))),
        "the stack of four": Wrapped(stack, "jax.jit of what the stack runs", most_us=SLOWEST_STACK),
    }


def many(fn: Callable[..., Any], x: Any) -> Callable[[], Any]:
    def run() -> Any:
        result = x
        for _ in range(CALLS):
            result = fn(x)
        return result

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=101)
    rounds = parser.parse_args().rounds
    x = jnp.asarray(np.ones(8, np.float32))
    large = {str(i): jnp.asarray(np.ones(8, np.float32)) for i in range(LEAVES)}
    known = wrappers()
    seconds = interleaved({name: many(each.fn, large if each.large else x) for name, each in known.items()}, rounds)
    print(
        f"jax {jax.__version__} on {jax.default_backend()}, {os.cpu_count()} cores, {rounds} rounds of {CALLS} calls\n"
    )
    print(f"| {'a warm call of':30} | median µs | of jax.jit | µs more | bound |")
    print(f"|{'-' * 32}|----------:|-----------:|--------:|:------|")
    missed = []
    for name, each in known.items():
        took, of = seconds[name], seconds[each.of]
        times, more = ratio(took, of), statistics.median(a - b for a, b in zip(took, of, strict=True)) / CALLS * 1e6
        bound = f"{each.most:.2f}" if each.most else f"{each.most_us:.0f} µs" if each.most_us else ""
        print(f"| {name:30} | {statistics.median(took) / CALLS * 1e6:9.2f} | {times:10.2f} | {more:7.2f} | {bound} |")
        if (each.most and times > each.most) or (each.most_us and more > each.most_us):
            missed.append(f"{name} x{times:.2f}, {more:.1f} µs more")
    print(f"\n{'MISSED: ' + ', '.join(missed) if missed else 'holds'}: every wrapper costs no more than its bound")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
