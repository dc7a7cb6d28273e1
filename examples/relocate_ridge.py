"""A pooled ridge forecast of two stock indices, three times: as people write it in numpy, as a JAX program, and as
that JAX program decorated, so that it streams. `python examples/relocate_ridge.py` runs and compares them. Not here:
how they are measured (`ridge_measure.py`) and shown (`ridge_report.py`).

One row is (index, day, horizon): the last year of that index up to that day forecasts its log return from
that day to `horizon` days later. A row is three numbers; its 1260 values are gathered from a base array of
200 KB when they are needed. All 95 270 rows at once are 480 MB of windows and 390 MB of features in
float32, and twice that in the numpy version.
"""

import sys
from typing import NamedTuple

import arch.data.nasdaq
import arch.data.sp500
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import erythroxy_tx as tx

WINDOW = 252  # days, one year of trading
HORIZONS = 10  # days
CLOSE = 3  # of open, high, low, close, volume
ANCHOR = np.array([CLOSE, CLOSE, CLOSE, CLOSE, 4])  # each channel is relative to the last value of this one
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)  # against a Gram matrix with ones on its diagonal


class Problem(NamedTuple):
    """What every version is called with. Nothing in it grows with rows × window or rows × columns."""

    base: np.ndarray  # f32[2, days, 5]: log open, high, low, close, and log(1 + volume), which is sometimes 0
    projection: np.ndarray  # f32[1261, columns]: fixed random weights of a window's values and of the horizon
    rows: np.ndarray  # i32[rows, 3]: index, day, horizon, in the order of days


def problem(*, every: int = 1, columns: int = 1024) -> Problem:
    """Load the data: one row in `every`, with `columns` features."""
    frames = [arch.data.sp500.load(), arch.data.nasdaq.load()]
    prices = [np.log(frame[["Open", "High", "Low", "Close"]]) for frame in frames]
    volumes = [np.log1p(frame[["Volume"]]) for frame in frames]
    base = np.stack([np.hstack(pair) for pair in zip(prices, volumes, strict=True)]).astype(np.float32)

    random = np.random.default_rng(0)
    projection = random.standard_normal((WINDOW * base.shape[2] + 1, columns))
    projection[:-1] /= np.sqrt(len(projection) - 1)

    days = np.arange(WINDOW - 1, base.shape[1] - HORIZONS)
    day, index, horizon = np.meshgrid(days, [0, 1], np.arange(1, HORIZONS + 1), indexing="ij")
    rows = np.stack([index, day, horizon], axis=-1).reshape(-1, 3)[::every]
    return Problem(base, projection.astype(np.float32), rows.astype(np.int32))


def split(n, base):
    """Seven tenths of the rows to fit, one to choose the penalty, two to test; between them, the rows of ten days are
    left out, so that no target falls due in the next part.
    """
    apart = n * HORIZONS // (base.shape[1] - WINDOW - HORIZONS + 1) + 1
    first, second = n * 7 // 10, n * 8 // 10
    return slice(0, first - apart), slice(first, second - apart), slice(second, n)


def returns(base, rows):
    """The log return that each row forecasts."""
    index, day, horizon = rows.T
    return base[index, day + horizon, CLOSE] - base[index, day, CLOSE]


# ---------------------------------------------------------------------- 1. plain numpy, float64


def fit_numpy(base, projection, rows):
    """Fit on the first rows, choose the penalty on the next, forecast the last. Builds everything at once."""
    base, projection = base.astype(np.float64), projection.astype(np.float64)
    index, day, horizon = rows.T
    windows = base[index[:, None], day[:, None] + np.arange(1 - WINDOW, 1)]
    windows = windows - windows[:, -1:, ANCHOR]
    windows = windows / np.sqrt(np.mean(windows**2, axis=1, keepdims=True))
    h = windows.reshape(len(rows), -1) @ projection[:-1] + horizon[:, None] / HORIZONS * projection[-1]
    h, y = np.tanh(h), returns(base, rows)

    train, valid, test = split(len(rows), base)
    n, mean = train.stop, y[train].mean()
    h = (h - h[train].mean(0)) / h[train].std(0)
    gram, moment = h[train].T @ h[train] / n, h[train].T @ (y[train] - mean) / n
    eye = np.eye(len(gram))
    weights = np.stack([np.linalg.solve(gram + penalty * eye, moment) for penalty in PENALTIES], axis=1)

    errors = np.mean((h[valid] @ weights + mean - y[valid, None]) ** 2, axis=0)
    best = np.argmin(errors)
    return {"errors": errors, "penalty": np.array(PENALTIES)[best], "forecast": h[test] @ weights[:, best] + mean}


# ---------------------------------------------------------------------- 2. JAX, float32, and 3. as a stream


def features(base, projection, rows):
    index, day, horizon = rows.T
    windows = base[index[:, None], day[:, None] + jnp.arange(1 - WINDOW, 1)]
    windows = windows - windows[:, -1:, ANCHOR]
    windows = windows / jnp.sqrt(jnp.mean(windows**2, axis=1, keepdims=True))
    flat = windows.reshape(rows.shape[0], -1)
    return jnp.tanh(flat @ projection[:-1] + horizon[:, None] / HORIZONS * projection[-1])


def ridge(gram, moment):
    """The weights for every penalty: f32[columns, penalties]."""
    eye = jnp.eye(len(gram))
    return lax.map(lambda penalty: jnp.linalg.solve(gram + penalty * eye, moment), jnp.array(PENALTIES)).T


@tx.assert_relocation(fit_numpy, rtol=5e-4)  # the numpy version stays the reference: the first call checks
@tx.vram_resident(max_fetch="1MiB")  # arguments go to the device once; only small results come back
@tx.chunked(lax.map, in_axes=(None, None, 0), budget="40MiB")  # written for all rows, run a chunk at a time
def fit(base, projection, rows):
    h, y = features(base, projection, rows), returns(base, rows)

    train, valid, test = split(rows.shape[0], base)
    n, mean = train.stop, y[train].mean()
    h = (h - h[train].mean(0)) / h[train].std(0)
    weights = ridge(h[train].T @ h[train] / n, h[train].T @ (y[train] - mean) / n)

    errors = jnp.mean((h[valid] @ weights + mean - y[valid, None]) ** 2, axis=0)
    best = jnp.argmin(errors)
    return {"errors": errors, "penalty": jnp.array(PENALTIES)[best], "forecast": h[test] @ weights[:, best] + mean}


fit_one_shot = jax.jit(tx.unwrap(fit))


if __name__ == "__main__":
    from ridge_report import main

    sys.exit(main())
