"""Run as a process with eight devices by `test_over_eight.py`: prints what a fit over them takes, and how far it is
from one-shot.
"""

import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import erythroxy_tx as tx

ROWS, COLUMNS, FEATURES, SIZE = 65536, 64, 256, 1024
MESH = jax.make_mesh((8,), ("data",))
W = jnp.asarray(np.random.default_rng(0).normal(size=(COLUMNS, FEATURES)).astype(np.float32) / 8)


def fit(x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ W)
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-6)
    w = jnp.linalg.solve(h.T @ h + 100 * jnp.eye(FEATURES), h.T @ y)
    return w, abs(h @ w - y).max()


def data(n: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(n).normal(size=(n, COLUMNS)).astype(np.float32)
    return x, np.sin(x[:, 0])


def collectives(text: str) -> dict[str, int]:
    """How many there are of each kind, and how many of all are inside of a loop."""
    computations = dict(re.findall(r"^(?:ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    inside = [name for body in computations.values() for name in re.findall(r"body=%?([\w.-]+)", body)]
    for name in inside:  # grows
        called = re.findall(r"(?:calls|to_apply|body|condition)=%?([\w.-]+)", computations[name])
        inside += [each for each in called if each not in inside]
    kinds = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")

    def of(kind: str, text: str) -> int:
        return len(re.findall(rf" {kind}(?:-start)?\(", text))

    in_loops = sum(of(kind, computations[name]) for name in set(inside) for kind in kinds)
    return {kind: of(kind, text) for kind in kinds} | {
        "in loops": in_loops,
        "loops": len(set(inside) & set(computations)),
    }


def main() -> None:
    run = tx.chunked(tx.over(MESH, "data"), size=SIZE)(fit)
    compiled = jax.jit(run).lower(*data(ROWS)).compile()
    found = collectives(compiled.as_text()) | {"bytes": compiled.memory_analysis().temp_size_in_bytes}
    errors = {}
    for n in map(int, sys.argv[1:]):
        got, want = run(*data(n)), jax.jit(fit)(*data(n))
        errors[n] = max(float(abs(a - b).max() / abs(b).max()) for a, b in zip(got, want, strict=True))
    sys.stdout.write(json.dumps(found | {"errors": errors}))


main()
