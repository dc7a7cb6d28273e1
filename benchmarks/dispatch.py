"""What a warm call of each transform costs beside a bare `jax.jit` of the same function, on the same small array.

    python benchmarks/dispatch.py

A bound is held: one wrapper costs at most 1.20 of a bare `jax.jit`. The exit status is 1 if it is missed. Not here:
stacks of several wrappers, and first calls.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rounds import interleaved
from rounds import ratio

import erythroxy_tx as tx

SLOWEST = 1.20
CALLS = 2000  # in one timing


def step(x: Any) -> Any:
    return x * 2 + 1


def wrappers() -> dict[str, tuple[Callable[..., Any], bool]]:
    """What is called, by name, and whether it has to keep the bound."""
    return {
        "jax.jit": (jax.jit(step), False),
        "jax.jit, once more": (jax.jit(lambda x: x * 2 + 1), False),  # the noise of this benchmark
        "tx.chunked(lax.map, 1)": (tx.chunked(lax.map, 1, out="rows")(step), True),
        "tx.vram_resident": (tx.vram_resident(step), True),
        "tx.assert_relocation": (tx.assert_relocation(step)(jax.jit(step)), True),
        "equinox.filter_jit": (eqx.filter_jit(step), False),
    }


def many(fn: Callable[..., Any], x: jax.Array) -> Callable[[], Any]:
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
    known = wrappers()
    seconds = interleaved({name: many(fn, x) for name, (fn, _) in known.items()}, rounds)
    print(
        f"jax {jax.__version__} on {jax.default_backend()}, {os.cpu_count()} cores, {rounds} rounds of {CALLS} calls\n"
    )
    print(f"| {'a warm call of':24} | median µs | of jax.jit |\n|{'-' * 26}|----------:|-----------:|")
    missed = []
    for name, (_, bounded) in known.items():
        found = ratio(seconds[name], seconds["jax.jit"])
        print(f"| {name:24} | {statistics.median(seconds[name]) / CALLS * 1e6:9.2f} | {found:10.2f} |")
        if bounded and found > SLOWEST:
            missed.append(f"{name} x{found:.2f}")
    print(f"\n{'MISSED: ' + ', '.join(missed) if missed else 'holds'}: one wrapper costs at most {SLOWEST} of jax.jit")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
