"""The values that the inputs of the corpus take: normal, positive, probabilities, integers, labels, matrices.

A draw states its trailing shape and which axis is rows. Not here: which function takes which.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

Values = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Draw:
    """Random values of a shape. `NORMAL(3)` is n rows of three; `NORMAL()` is n numbers."""

    values: Values
    tail: tuple[int, ...] = (5,)
    axis: int | None = 0

    def __call__(self, *tail: int) -> "Draw":
        return dataclasses.replace(self, tail=tail)

    @property
    def shared(self) -> "Draw":
        """Of the trailing shape alone, whatever the number of rows."""
        return dataclasses.replace(self, axis=None)

    def along(self, axis: int) -> "Draw":
        """Rows along another axis than the first."""
        return dataclasses.replace(self, axis=axis)

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        if self.axis is None:
            return np.asarray(self.values(rng, self.tail))
        return np.ascontiguousarray(np.moveaxis(self.values(rng, (n, *self.tail)), 0, self.axis))


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.normal(size=shape), np.float32)


def _between(low: float, high: float) -> Values:
    return lambda rng, shape: np.asarray(rng.uniform(low, high, shape), np.float32)


def between(low: float, high: float) -> Draw:
    return Draw(_between(low, high))


def _integers(low: int, high: int, dtype: type = np.int32) -> Values:
    return lambda rng, shape: np.asarray(rng.integers(low, high, shape), dtype)


def _flaws(*flaws: float) -> Values:
    """Normal values, about one in eight of which is a flaw; the first number of each last axis is sound."""

    def values(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        sound = _normal(rng, shape)
        flawed = np.where(rng.random(shape) < 0.125, np.asarray(rng.choice(flaws, shape), np.float32), sound)
        flawed[..., :1] = sound[..., :1]
        return flawed

    return values


def _simplex(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    weights = rng.uniform(0.1, 1.0, shape)
    return np.asarray(weights / weights.sum(-1, keepdims=True), np.float32)


def _definite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    half = rng.normal(size=shape)
    return np.asarray(half @ np.swapaxes(half, -1, -2) / shape[-1] + np.eye(shape[-1]), np.float32)


def _ascending(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Ascending along the rows."""
    return np.asarray(np.cumsum(rng.uniform(0.1, 1.0, shape), axis=0), np.float32)


def _whole(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.integers(0, 4, shape), np.float32)


NORMAL = Draw(_normal)
POSITIVE = Draw(_between(0.2, 3.0))
ABOVE_ONE = Draw(_between(1.1, 4.0))
UNIT = Draw(_between(-0.95, 0.95))
PROBABILITY = Draw(_between(0.05, 0.95))
ANGLE = Draw(_between(-3.0, 3.0))
SIMPLEX = Draw(_simplex)
ASCENDING = Draw(_ascending)
DEFINITE = Draw(_definite, (4, 4))
TIED = Draw(_whole)
"""Whole numbers as floats, most of them more than once."""
NANS = Draw(_flaws(np.nan))
NOT_FINITE = Draw(_flaws(np.nan, np.inf, -np.inf))
COMPLEX = Draw(lambda rng, shape: np.asarray(rng.normal(size=shape) + 1j * rng.normal(size=shape), np.complex64))
BOOL = Draw(lambda rng, shape: rng.random(shape) < 0.6)
SIGN = Draw(lambda rng, shape: np.asarray(np.where(rng.random(shape) < 0.5, -1.0, 1.0), np.float32))
INTEGER = Draw(_integers(-20, 20))
COUNT = Draw(_integers(0, 10))
FLOAT_COUNT = Draw(lambda rng, shape: np.asarray(rng.integers(0, 10, shape), np.float32))
AT_LEAST_ONE = Draw(_integers(1, 10))
SMALL = Draw(_integers(0, 5))
BYTE = Draw(_integers(0, 256, np.uint8))
LABEL = Draw(_integers(0, 5), ())
"""A class of five, one a row."""
KEY = Draw(_integers(0, 2**31, np.uint32), (2,), None)
"""The data of a shared random key."""
