"""Folds: how an output's accumulator starts, takes the next chunk's value, and ends. Not here: the loop."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclasses.dataclass(frozen=True)
class Fold:
    """`step(accumulator, chunk's value)` from `start(like)`, then `finish`."""

    start: Callable[[Any], Any]
    step: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any] = lambda accumulator: accumulator


def wide(dtype: Any) -> Any:
    """The dtype of an accumulator: at least float32."""
    is_narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.dtype(jnp.float32) if is_narrow else dtype


# -0.0 is the identity of float addition: 0.0 would lose the sign of a zero.
SUM = Fold(
    lambda like: -jnp.zeros(like.shape, wide(like.dtype)),
    lambda total, value: total + value.astype(total.dtype),
)

# From 0.0, as a reduction in a program starts: its sum of negative zeros is 0.0.
ADD = Fold(lambda like: jnp.zeros(like.shape, wide(like.dtype)), SUM.step)


def compensated(state: tuple[Any, Any], value: Any) -> tuple[Any, Any]:
    """Add to a sum of two numbers, total + rest, as if in twice the precision; `evaluated` gives the sum.

    Source: A. Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen, ZAMM 54 (1974); the
    rounding of an addition is D. E. Knuth's.
    """
    total, rest = state
    value = value.astype(total.dtype)
    summed = total + value
    a, b, s = map(lax.stop_gradient, (total, value, summed))  # a derivative is that of the exact sum
    away = s - a
    return summed, rest + ((a - (s - away)) + (b - away))


def evaluated(state: tuple[Any, Any]) -> Any:
    """The sum that a pair stands for: total + rest, but for a total that has no rounding, or the sign of a zero."""
    total, rest = state
    return jnp.where(jnp.isfinite(total) & (rest != 0), total + rest, total)


_FEW = 32  # additions: their rounding is within 16 units of the sum of the magnitudes


def in_many_steps(fold: Fold, like: Any, steps: int) -> Fold:
    """The fold to use for this many chunks: a float sum of many is compensated, for a second accumulator."""
    if fold in (SUM, ADD) and steps > _FEW and jnp.issubdtype(like.dtype, jnp.inexact):
        zero = jnp.zeros(like.shape, wide(like.dtype))
        return Fold(lambda like: (fold.start(like), zero), compensated, evaluated)
    return fold


def _limit(dtype: Any, *, top: bool) -> Any:
    """The largest or the smallest value of a dtype: where a fold starts that any value replaces."""
    if jnp.issubdtype(dtype, jnp.bool_):
        return top
    if jnp.issubdtype(dtype, jnp.inexact):
        infinity = np.asarray(np.inf if top else -np.inf).astype(dtype)
        limits = jnp.finfo(dtype)  # some float8 types have no infinity
        return infinity if np.isinf(infinity) else limits.max if top else limits.min
    return jnp.iinfo(dtype).max if top else jnp.iinfo(dtype).min


def _full(value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda like: jnp.full(like.shape, value(like.dtype), like.dtype)


FOLDS = {
    "sum": SUM,
    "mean": SUM,
    "max": Fold(_full(lambda dtype: _limit(dtype, top=False)), jnp.maximum),
    "min": Fold(_full(lambda dtype: _limit(dtype, top=True)), jnp.minimum),
    "prod": Fold(
        lambda like: jnp.ones(like.shape, wide(like.dtype)), lambda total, value: total * value.astype(total.dtype)
    ),
    "all": Fold(_full(lambda _: True), jnp.logical_and),
    "any": Fold(_full(lambda _: False), jnp.logical_or),
}
