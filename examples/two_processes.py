"""One of the runs of `two_processes.sh`, on a file as of `out_of_core.py`: a fit in one process, which leaves its
weights beside it, or one of two processes that run it together, each with its own rows.
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import out_of_core
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

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


def own_rows(path, mesh):
    """The rows of this process, read from a file, as its part of an array of all rows; and how many those are."""
    rows, devices, here = np.load(path, mmap_mode="r"), mesh.devices.size, len(mesh.local_devices)
    place = -(-len(rows) // devices)  # rows on each device
    first = jax.process_index() * here * place
    own = rows[first : first + here * place]
    part = np.zeros((here * place, *rows.shape[1:]), rows.dtype)  # with place for a few more in the last process
    part[: len(own)] = own
    everything = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("data")), part)
    return tx.Padded(everything, len(rows)), len(own)


def together(folder, process, port):
    """Fit with the other process."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    (x, here), (y, _) = (own_rows(folder / name, mesh) for name in ("x.npy", "y.npy"))
    meshed = tx.chunked(tx.over(mesh, "data"), budget=BUDGET)(fit)
    plan = meshed.chunks(x, y)
    weights, _ = meshed(x, y)
    weights, expected = np.asarray(weights), np.load(folder / "weights.npy")
    apart = np.abs(weights - expected).max() / np.abs(expected).max()
    print(
        f"process {process}: {here:,} of {int(x.length):,} rows on {len(mesh.local_devices)} of {mesh.devices.size} "
        f"devices, {format_bytes(x.data.nbytes // mesh.devices.size)} of rows on each\n"
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
