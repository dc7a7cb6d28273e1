"""`tx.chunked(tx.over(mesh, …))` on eight devices beside the same function in one piece: on one device, and under
`jax.jit` with its rows spread over the devices, which XLA partitions.

    python benchmarks/meshes.py

Rows of 64 columns, 256 features, float32: standardise, normal equations, solve, and a forecast for each row, in chunks
of 1024. Told are the bytes of temporaries on each device, the collectives in the compiled program, how far the weights
are from those of float64, and seconds, in turns. The devices are parts of one CPU: seconds tell what the passes cost,
not what devices gain. The exit status is 1 if a bound is missed.
"""

import collections
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from rounds import interleaved
from rounds import ratio

import erythroxy_tx as tx

DEVICES, ROWS, COLUMNS, FEATURES, SIZE = 8, 65536, 64, 256, 1024
OTHERS = (65521, 65537, 5)  # numbers of rows that do not divide
TEMPORARIES = 5e6  # bytes on each device
_KINDS = r"\b(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)(?:-start)?\("
W = np.random.default_rng(1).normal(size=(COLUMNS, FEATURES)).astype(np.float32) / 8


def fit(x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ W)
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-6)
    w = jnp.linalg.solve(h.T @ h + 10 * jnp.eye(FEATURES), h.T @ y)
    return w, h @ w


def exact(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    h = np.tanh(x.astype(np.float64) @ W)
    h = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-6)
    return np.linalg.solve(h.T @ h + 10 * np.eye(FEATURES), h.T @ y.astype(np.float64))


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, COLUMNS)).astype(np.float32), rng.normal(size=n).astype(np.float32)


def collectives(compiled: Any) -> dict[str, int]:
    return dict(collections.Counter(re.findall(_KINDS, compiled.as_text())))


def off(w: Any, want: np.ndarray) -> float:
    return float(np.abs(np.asarray(w) - want).max() / np.abs(want).max())


def main() -> int:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(AxisType.Auto,))
    spread = NamedSharding(mesh, PartitionSpec("data"))
    over = tx.chunked(tx.over(mesh, "data"), size=SIZE)(fit)
    given = rows(ROWS)
    placed, alone = [jax.device_put(a, spread) for a in given], [jnp.asarray(a) for a in given]
    programs = {
        "tx.over": (jax.jit(over).lower(*placed).compile(), placed),
        "one piece, partitioned by XLA": (jax.jit(fit).lower(*placed).compile(), placed),
        "one piece, one device": (jax.jit(fit).lower(*alone).compile(), alone),
    }
    runs = {name: lambda compiled=compiled, args=args: compiled(*args) for name, (compiled, args) in programs.items()}
    seconds, want = interleaved(runs, 7), exact(*given)
    print(f"{ROWS} rows over {DEVICES} devices, jax {jax.__version__}")
    for name, (compiled, args) in programs.items():
        temp = compiled.memory_analysis().temp_size_in_bytes / 1e6
        far, slower = off(compiled(*args)[0], want), ratio(seconds[name], seconds["one piece, one device"])
        print(f"  {name:30s} {temp:6.1f} MB a device, {collectives(compiled)}, off by {far:.1e}, time {slower:.2f}")
    print("rows that do not divide: how far the weights are off, ours and in one piece")
    worse = []
    for n in OTHERS:
        given, want = rows(n), exact(*rows(n))
        ours, piece = off(over(*given)[0], want), off(jax.jit(fit)(*given)[0], want)
        worse.append(ours > 4 * piece + 1e-6)
        print(f"  {n:6d}: {ours:.1e}, {piece:.1e}")
    compiled = programs["tx.over"][0]
    bounds = {
        f"temporaries at most {TEMPORARIES / 1e6:g} MB a device": compiled.memory_analysis().temp_size_in_bytes
        <= TEMPORARIES,
        "an all-reduce for each of the three passes that add up, and nothing else": collectives(compiled)
        == {"all-reduce": 3},
        "as accurate as one piece": not any(worse),
    }
    for what, holds in bounds.items():
        print(f"{'holds' if holds else 'MISSED'}: {what}")
    return 0 if all(bounds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
