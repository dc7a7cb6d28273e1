"""One of the runs of `two_processes.sh`, on a file as of `out_of_core.py`: a fit in one process, which leaves its
weights beside it, or one of two processes that run it together, each streaming rows of its own.
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import out_of_core

import erythroxy_tx as tx
from erythroxy_tx.units import format_bytes

BUDGET = "32MiB"  # of one device


def fit(x, y):
    """Standardised features, a ridge on them, and the forecast of each row; for all rows at once."""
    h = jnp.tanh(100 * x @ out_of_core.PROJECTION)
    h = (h - h.mean(0)) / h.std(0)
    mean = y.mean()
    gram, moment = h.T @ h / x.shape[0], h.T @ (y - mean) / x.shape[0]
    weights = jnp.linalg.solve(gram + out_of_core.PENALTY * jnp.eye(len(gram)), moment)
    return weights, h @ weights + mean


def alone(folder, rows):
    """Make the files, fit in one process, and keep the weights."""
    out_of_core.make(folder, rows)
    x, y = (np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    weights, _ = tx.chunked(tx.stream(), budget=BUDGET)(fit)(x, y)
    np.save(folder / "weights.npy", weights)
    print(f"one process: {len(x):,} rows, |weights| {np.linalg.norm(weights):.6f}")


def together(folder, process, port):
    """Fit with the other process, each on its half of the rows, which it reads while it runs."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    x, y = (np.array_split(np.load(folder / name, mmap_mode="r"), 2)[process] for name in ("x.npy", "y.npy"))
    shared = tx.chunked(tx.over(mesh, "data", stream=tx.stream()), budget=BUDGET)(fit)
    plan = shared.chunks(x, y)
    weights, forecasts = shared(x, y)
    expected = np.load(folder / "weights.npy")
    apart = np.abs(weights - expected).max() / np.abs(expected).max()
    print(
        f"process {process}: reads {len(x):,} rows, {format_bytes(x.nbytes + y.nbytes)}, for {len(mesh.local_devices)} "
        f"of {mesh.devices.size} devices, and has {len(forecasts):,} forecasts\n"
        f"  on a device {plan}\n"
        f"  |weights| {np.linalg.norm(weights):.6f}, {apart:.0e} from those of one process",
        flush=True,
    )
    return 0 if apart < 1e-3 else 1


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the files are")
    parser.add_argument("--rows", type=int, help="make them, with so many rows, and fit in one process")
    parser.add_argument("--process", type=int, choices=(0, 1), help="which of the two processes this is")
    parser.add_argument("--port", type=int, help="at which the two meet")
    options = parser.parse_args(argv)
    if options.rows:
        return alone(options.folder, options.rows)
    return together(options.folder, options.process, options.port)


if __name__ == "__main__":
    sys.exit(main())
