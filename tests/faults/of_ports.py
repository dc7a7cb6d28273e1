"""Faults of ports from numpy, each of which random numbers do not show."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from planted import Case

import erythroxy_tx as tx
from erythroxy_tx.testing import arrays
from erythroxy_tx.testing import indices
from erythroxy_tx.testing import lengths
from erythroxy_tx.testing import rows

PICKS = st.tuples(arrays("int32", 4), indices(4, 3))
BEYOND = st.tuples(arrays("int32", 4), indices(4, 3, out_of_range=True, allow_negative=True))
FROM_END = st.tuples(arrays("int32", 4), indices(4, 3, allow_negative=True))
WHOLE = arrays("int32", (7,), min_value=-1000, max_value=1000)
PLAIN = arrays("float32", (7,), allow_nan=False, allow_infinity=False)


def counted(x, i):
    x = x.copy()
    x[i] += 1
    return x


def last_written(x, i):
    """Where an index repeats, numpy keeps the last value."""
    x = x.copy()
    x[i] = np.arange(len(i), dtype=x.dtype)
    return x


def zscore(x):
    std = x.std(0)
    return np.where(std > 0, (x - x.mean(0)) / np.where(std > 0, std, 1), 0).astype(np.float32)


def zscore_by_moments(x):
    std = jnp.sqrt(jnp.maximum((x * x).mean(0) - x.mean(0) ** 2, 0))
    return jnp.where(std > 0, (x - x.mean(0)) / jnp.where(std > 0, std, 1), 0)


FAULTS = [
    Case("repeated index counted", lambda x, i: x.at[i].add(1), PICKS, original=counted),
    Case(
        "repeated index written",
        lambda x, i: x.at[i[::-1]].set(jnp.arange(len(i), dtype=x.dtype)[::-1]),
        PICKS,
        original=last_written,
    ),
    Case("index clipped, not refused", lambda x, i: x[i], BEYOND, original=lambda x, i: x[i]),
    Case(
        "index from the end clipped",
        lambda x, i: x.at[i].get(mode="clip", wrap_negative_indices=False),
        FROM_END,
        original=lambda x, i: x[i],
    ),
    Case(
        "ties sorted otherwise",
        jnp.argsort,
        PLAIN,
        original=lambda x: np.lexsort((-np.arange(x.size), x)).astype(np.int32),
    ),
    Case("integers that wrap", lambda x: x.sum(), arrays("int64", (7,)), original=lambda x: x.sum()),
    Case(
        "integers cast that wrap",
        lambda x: x * x,
        arrays("int32", (7,)),
        original=lambda x: np.minimum(x.astype(np.int64) ** 2, 2**31 - 1).astype(np.int32),
    ),
    Case("division towards zero", lambda x: lax.div(x, jnp.int32(4)), WHOLE, original=lambda x: x // np.int32(4)),
    Case(
        "remainder with the other sign", lambda x: lax.rem(x, jnp.int32(4)), WHOLE, original=lambda x: x % np.int32(4)
    ),
    Case(
        "half rounded up",
        lambda x: jnp.floor(x + 0.5),
        arrays("float32", (7,), min_value=-1000, max_value=1000),
        original=np.round,
    ),
    Case(
        "the lower of two medians",
        lambda x: jnp.sort(x)[2],
        arrays("float32", (6,), min_value=-1000, max_value=1000),
        original=np.median,
    ),
    Case("a mean of the absolute", lambda x: jnp.abs(x).sum(), WHOLE, original=lambda x: x.sum(dtype=np.int32)),
    Case(
        "deviation of a sample",
        lambda x: x.std(0, ddof=1),
        rows(lengths(min_length=2), 2, extremes=False, allow_nan=False, allow_infinity=False),
        tx.AsAccurate(4),
        original=lambda x: x.std(0),
    ),
    Case(
        "variance by moments",
        zscore_by_moments,
        rows(7, 2, min_value=-1000, max_value=1000, extremes=False),
        tx.AsAccurate(4),
        original=zscore,
    ),
    Case(
        "mean of nothing",
        lambda x: x.sum(0) / max(1, len(x)),
        rows(features=2, extremes=False, allow_nan=False, allow_infinity=False),
        tx.Close(1e-5),
        original=lambda x: x.mean(0),
    ),
    Case("comparison with NaN", lambda x: ~(x > 0), arrays("float32", (7,)), original=lambda x: x <= 0),
    Case("maximum passes NaN over", jnp.nanmax, arrays("float32", (7,)), original=np.max),
    Case(
        "gelu by tanh",
        jax.nn.gelu,
        arrays("float32", (7,), min_value=-8, max_value=8),
        tx.Close(1e-6),
        original=lambda x: (x * 0.5 * (1 + np.vectorize(__import__("math").erf)(x / np.sqrt(2)))).astype(np.float32),
    ),
]
