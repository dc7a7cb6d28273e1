"""A pooled ridge forecast of two stock indices, three times: as people write it in numpy, as one JAX
program, and as the same JAX program decorated so that it streams. `python examples/relocate_ridge.py`
runs and compares them. Not here: how they are measured (`ridge_measure.py`) and shown (`ridge_report.py`).

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
PILOT = 256  # rows


class Problem(NamedTuple):
    """What every version is called with. Nothing in it grows with rows × window or rows × columns."""

    base: np.ndarray  # f32[2, days, 5]: log open, high, low, close, and log(1 + volume), which is sometimes 0
    projection: np.ndarray  # f32[1261, columns]: fixed random weights of a window's values and of the horizon
    train: np.ndarray  # i32[rows, 3]: index, day, horizon
    valid: np.ndarray
    test: np.ndarray


def problem(*, every: int = 1, columns: int = 1024) -> Problem:
    """Load the data: one row in `every`, with `columns` features."""
    frames = [arch.data.sp500.load(), arch.data.nasdaq.load()]
    prices = [np.log(frame[["Open", "High", "Low", "Close"]]) for frame in frames]
    volumes = [np.log1p(frame[["Volume"]]) for frame in frames]
    base = np.stack([np.hstack(pair) for pair in zip(prices, volumes, strict=True)]).astype(np.float32)

    random = np.random.default_rng(0)
    projection = random.standard_normal((WINDOW * base.shape[2] + 1, columns))
    projection[:-1] /= np.sqrt(len(projection) - 1)

    year = frames[0].index.year.to_numpy()
    years = [(1999, 2012), (2013, 2014), (2015, 2018)]
    splits = [rows_between(np.flatnonzero((first <= year) & (year <= last)), every) for first, last in years]
    return Problem(base, projection.astype(np.float32), *splits)


def rows_between(days: np.ndarray, every: int) -> np.ndarray:
    """All rows whose forecast is made, and falls due, within `days`: no target crosses into a later split."""
    grid = np.meshgrid([0, 1], days[days >= WINDOW - 1], np.arange(1, HORIZONS + 1), indexing="ij")
    rows = np.stack(grid, axis=-1).reshape(-1, 3)
    return rows[rows[:, 1] + rows[:, 2] <= days[-1]][::every].astype(np.int32)


def returns(base, rows):
    """The log return that each row forecasts."""
    index, day, horizon = rows.T
    return base[index, day + horizon, CLOSE] - base[index, day, CLOSE]


# ---------------------------------------------------------------------- 1. plain numpy, float64


def fit_numpy(base, projection, train, valid, test):
    """Fit on `train`, choose the penalty on `valid`, forecast `test`. Builds everything at once."""
    base, projection = base.astype(np.float64), projection.astype(np.float64)
    rows = np.concatenate([train, valid, test])
    index, day, horizon = rows.T
    windows = base[index[:, None], day[:, None] + np.arange(1 - WINDOW, 1)]
    windows = windows - windows[:, -1:, ANCHOR]
    windows = windows / np.sqrt(np.mean(windows**2, axis=1, keepdims=True))
    h = windows.reshape(len(rows), -1) @ projection[:-1] + horizon[:, None] / HORIZONS * projection[-1]
    h = np.tanh(h)

    n = len(train)
    h = (h - h[:n].mean(0)) / h[:n].std(0)
    y = returns(base, train)
    gram, moment = h[:n].T @ h[:n] / n, h[:n].T @ (y - y.mean()) / n
    eye = np.eye(len(gram))
    weights = np.stack([np.linalg.solve(gram + penalty * eye, moment) for penalty in PENALTIES], axis=1)
    forecasts = h[n:] @ weights + y.mean()

    errors = np.mean((forecasts[: len(valid)] - returns(base, valid)[:, None]) ** 2, axis=0)
    best = np.argmin(errors)
    return {"errors": errors, "penalty": np.array(PENALTIES)[best], "forecast": forecasts[len(valid) :, best]}


# ---------------------------------------------------------------------- 2. one JAX program, float32


def features(base, projection, rows):
    index, day, horizon = rows.T
    windows = base[index[:, None], day[:, None] + jnp.arange(1 - WINDOW, 1)]
    windows = windows - windows[:, -1:, ANCHOR]
    windows = windows / jnp.sqrt(jnp.mean(windows**2, axis=1, keepdims=True))
    flat = windows.reshape(len(rows), -1)
    return jnp.tanh(flat @ projection[:-1] + horizon[:, None] / HORIZONS * projection[-1])


def ridge(gram, moment):
    """The weights for every penalty: f32[columns, penalties]."""
    eye = jnp.eye(len(gram))
    return lax.map(lambda penalty: jnp.linalg.solve(gram + penalty * eye, moment), jnp.array(PENALTIES)).T


def choose(base, valid, forecast_valid, forecast_test):
    """Keep the penalty that forecasts the validation years best."""
    errors = jnp.mean((forecast_valid - returns(base, valid)[:, None]) ** 2, axis=0)
    best = jnp.argmin(errors)
    return {"errors": errors, "penalty": jnp.array(PENALTIES)[best], "forecast": forecast_test[:, best]}


@jax.jit
def fit_one_shot(base, projection, train, valid, test):
    n = len(train)
    h = features(base, projection, jnp.concatenate([train, valid, test]))
    h = (h - h[:n].mean(0)) / h[:n].std(0)
    y = returns(base, train)
    weights = ridge(h[:n].T @ h[:n] / n, h[:n].T @ (y - y.mean()) / n)
    forecasts = h[n:] @ weights + y.mean()
    return choose(base, valid, forecasts[: len(valid)], forecasts[len(valid) :])


# ---------------------------------------------------------------------- 3. decorated: the same, as a stream


@tx.chunked(lax.map, size=1024, out="sum")  # sums over rows, of one chunk at a time
def moments(rows, *, base, projection, pilot):
    h = features(base, projection, rows) - pilot
    y = returns(base, rows)
    return h.sum(0), h.T @ h, h.T @ y, y.sum()


@tx.chunked(lax.map, size=1024, out="rows")  # rows of the result, one chunk at a time
def forecast(rows, *, base, projection, mean, std, weights, intercept):
    return (features(base, projection, rows) - mean) / std @ weights + intercept


@tx.assert_relocation(fit_numpy, rtol=5e-4)  # the numpy version stays the reference: the first call checks
@tx.vram_resident(max_fetch="1MiB")  # arguments go to the device once; only small results come back
def fit(base, projection, train, valid, test):
    # Every feature is computed once. Sums are taken around the mean of a few rows, so that the exact
    # correction to the mean of all rows is small and nothing cancels.
    n = len(train)
    pilot = features(base, projection, train[:: -(-n // PILOT)]).mean(0)
    shift, gram, moment, total = moments(train, base=base, projection=projection, pilot=pilot)
    shift, intercept = shift / n, total / n
    gram, moment = gram / n - jnp.outer(shift, shift), moment / n - shift * intercept
    std = jnp.sqrt(jnp.diag(gram))

    model = {"mean": pilot + shift, "std": std, "intercept": intercept}
    model["weights"] = ridge(gram / jnp.outer(std, std), moment / std)
    forecasts = [forecast(rows, base=base, projection=projection, **model) for rows in (valid, test)]
    return choose(base, valid, *forecasts)


if __name__ == "__main__":
    from ridge_report import main

    sys.exit(main())
