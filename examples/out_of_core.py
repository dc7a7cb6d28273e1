"""A ridge forecast on a file of three gigabytes, in a few hundred megabytes of memory: written for all rows at once,
run as a stream from the file. `python examples/out_of_core.py` makes the file, fits, and says what it took;
`--rows 1000000` makes a smaller one.

The file is made from the daily bars of two stock indices. One row is sixteen days of four prices, each as a log return
from the close before; its target is the return over the five days after. Histories are put together from runs of real
days that are drawn at random, seeded: as many rows as are wanted, which are no independent evidence of anything.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import arch.data.nasdaq
import arch.data.sp500
import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import erythroxy_tx as tx
from erythroxy_tx.host.memory import HighWater
from erythroxy_tx.progress import progress
from erythroxy_tx.units import format_bytes
from erythroxy_tx.units import parse_bytes

PRICES = ["Open", "High", "Low", "Close"]
CLOSE = 3
WINDOW, HORIZON = 16, 5  # days
RUN = 64  # days that follow each other as they did
COLUMNS = WINDOW * len(PRICES)
ROW = 4 * (COLUMNS + 1)  # bytes, with the target
PIECE = 2**16  # rows that are made at a time
SAMPLE = 50_000  # rows on which the fit is compared with one in float64
FEATURES, PENALTY = 128, 0.01
PROJECTION = np.random.default_rng(0).standard_normal((COLUMNS, FEATURES)).astype(np.float32) / np.sqrt(COLUMNS)


# ---------------------------------------------------------------------- the file


def real_days():
    """The days of both indices: f32[days, 4], log returns from the close before."""
    found = []
    for source in (arch.data.sp500, arch.data.nasdaq):
        prices = np.log(source.load()[PRICES].to_numpy())
        found.append(prices[1:] - prices[:-1, CLOSE:])
    return np.concatenate(found).astype(np.float32)


def piece(days, number, rows):
    """Windows and targets of one history, which is drawn: f32[rows, 64] and f32[rows]. The same for the same number."""
    random = np.random.default_rng((0, number))
    runs = random.integers(0, len(days) - RUN, (rows + WINDOW + HORIZON) // RUN + 1)
    history = days[runs[:, None] + np.arange(RUN)].reshape(-1, len(PRICES))
    windows = sliding_window_view(history, WINDOW, axis=0)[:rows].swapaxes(1, 2)
    ahead = sliding_window_view(history[WINDOW:, CLOSE], HORIZON)[:rows]
    return windows.reshape(rows, COLUMNS), ahead.sum(-1)


def make(folder, rows):
    """Write `x.npy` and `y.npy`, a piece at a time."""
    days = real_days()
    with (
        progress("writing the file") as say,
        npy(folder / "x.npy", (rows, COLUMNS)) as x,
        npy(folder / "y.npy", (rows,)) as y,
    ):
        for number, first in enumerate(range(0, rows, PIECE)):
            windows, target = piece(days, number, min(PIECE, rows - first))
            windows.tofile(x)
            target.tofile(y)
            say(f"writing the file: {first / rows:.0%} of {format_bytes(rows * ROW)}")


def npy(path, shape):
    """A `.npy` file that is open behind its header."""
    file = path.open("wb")
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file


# ---------------------------------------------------------------------- the fit, for all rows at once


def fit(x, y, xp=jnp):
    """Fit on the first four fifths of the rows, forecast each row, and test on the last fifth."""
    rows = x.shape[0] * 4 // 5
    train, test = slice(0, rows), slice(rows + WINDOW + HORIZON, None)  # no target of one is in a window of the other

    h = xp.tanh(100 * x @ PROJECTION)
    h = (h - h[train].mean(0)) / h[train].std(0)
    mean = y[train].mean()
    gram, moment = h[train].T @ h[train] / rows, h[train].T @ (y[train] - mean) / rows
    weights = xp.linalg.solve(gram + PENALTY * xp.eye(FEATURES), moment)
    forecast = h @ weights + mean
    errors = ((forecast - y)[test] ** 2).mean(), ((mean - y[test]) ** 2).mean()
    return weights, xp.stack(errors), forecast


# ---------------------------------------------------------------------- what it takes


def report(folder, budget):
    x, y = (np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    streamed = tx.chunked(tx.stream(out=(None, None, folder / "forecast.npy")), budget=budget)(fit)
    with tx.compiles() as compiled:
        print(*str(tx.explain(streamed, x, y)).splitlines()[1:4], sep="\n")
    begin = time.perf_counter()
    with HighWater() as high:
        _, (error, naive), forecast = jax.block_until_ready(streamed(x, y))
    seconds = time.perf_counter() - begin
    print(f"fit and forecast: {seconds:.1f} s; {compiled.backend_compiles} programs were compiled before")
    print(f"host memory: {format_bytes(high.rise)} more than before, {format_bytes(high.peak)} in all;", end=" ")
    print(f"the rows are {format_bytes(len(x) * ROW)}, their features {format_bytes(len(x) * FEATURES * 4)}")
    print(f"{forecast.shape[0]:,} forecasts are in {Path(forecast.filename).name};", end=" ")
    print(f"squared error on the last fifth {error / naive - 1:+.2%}, against that of forecasting the mean")

    again = tx.chunked(tx.stream(), size=streamed.chunks(x, y).size)(fit)
    few = np.array(x[:SAMPLE]), np.array(y[:SAMPLE])
    exact = fit(*(each.astype(np.float64) for each in few), xp=np)
    for name, fn in (("streamed", again), ("one-shot", jax.jit(fit))):
        print(f"the same on {len(few[0]):,} rows, {name}: {furthest(fn(*few), exact):.1e} from float64")


def furthest(found, exact):
    """The largest difference of any result, over its largest magnitude."""
    pairs = zip(found, exact, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--rows", type=int, help="rows of the file")
    size.add_argument("--bytes", default="3GB", help="or its size (default: 3GB)")
    parser.add_argument("--budget", default="64MiB", help="for the chunks and the program (default: 64MiB)")
    parser.add_argument("--folder", type=Path, help="where the files stay; by default a temporary folder")
    options = parser.parse_args(argv)
    rows = options.rows or parse_bytes(options.bytes, "--bytes") // ROW
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        make(folder, rows)
        report(folder, options.budget)
    return 0


if __name__ == "__main__":
    sys.exit(main())
