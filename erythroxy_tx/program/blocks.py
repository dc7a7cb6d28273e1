"""Which rows of an array are wanted: a range for each axis that is rows, whose start may be known only when it
runs. Ranges are compared by value, so that what is wanted twice is computed once.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The first row of the chunk that runs: a multiple of `step`, at most `last`."""

    last: int
    step: int


@dataclasses.dataclass(frozen=True)
class Read:
    """An integer that the program computes."""

    value: Any

    last = None


@dataclasses.dataclass(frozen=True)
class Clipped:
    """A start that is kept between two limits."""

    inner: "Start"
    low: int
    high: int


@dataclasses.dataclass(frozen=True)
class Quotient:
    """A start over a number, rounded down."""

    inner: "Start"
    by: int


@dataclasses.dataclass(frozen=True)
class Start:
    """`offset + scale * of`."""

    offset: int = 0
    scale: int = 0
    of: Any = None

    @property
    def known(self) -> int | None:
        return self.offset if self.of is None else None

    def plus(self, more: int) -> "Start":
        return dataclasses.replace(self, offset=self.offset + more)

    def times(self, factor: int) -> "Start":
        return Start(self.offset * factor, self.scale * factor, self.of)

    def bounds(self) -> tuple[int, int] | None:
        """The least and the most that it can be, where that is known."""
        if self.of is None:
            return self.offset, self.offset
        if isinstance(self.of, Read):
            return None
        if isinstance(self.of, Chunk):
            inner: tuple[int, int] | None = (0, self.of.last)
        elif isinstance(self.of, Clipped):
            inner = self.of.inner.bounds()
            low, high = self.of.low, self.of.high
            inner = (low, high) if inner is None else (min(max(inner[0], low), high), min(max(inner[1], low), high))
        else:
            inner = self.of.inner.bounds()
            inner = inner and (inner[0] // self.of.by, inner[1] // self.of.by)
        if inner is None:
            return None
        ends = sorted((self.offset + self.scale * inner[0], self.offset + self.scale * inner[1]))
        return ends[0], ends[1]

    def clipped(self, low: int, high: int) -> "Start":
        bounds = self.bounds()
        if bounds is not None and low <= bounds[0] and bounds[1] <= high:
            return self
        return Start(min(max(self.offset, low), high)) if self.of is None else Start(0, 1, Clipped(self, low, high))

    def over(self, by: int) -> "Start":
        """This over a number, rounded down."""
        if self.of is None:
            return Start(self.offset // by)
        if self.divisible(by):
            return Start(self.offset // by, *self._scaled_down(by))
        return Start(0, 1, Quotient(self, by))

    def divisible(self, by: int) -> bool:
        step = self.of.step if isinstance(self.of, Chunk) else 1
        return self.offset % by == 0 and (self.scale * step) % by == 0

    def _scaled_down(self, by: int) -> tuple[int, Any]:
        if self.scale % by == 0:
            return self.scale // by, self.of
        return 1, Quotient(Start(0, self.scale, self.of), by)

    def value(self, chunk: Any, read: Callable[[Any], Any]) -> Any:
        """The number, given the first row of the chunk and a way to read what the program computed."""
        if self.of is None:
            return self.offset
        if isinstance(self.of, Chunk):
            inner = chunk
        elif isinstance(self.of, Read):
            inner = as_index(read(self.of.value))
        elif isinstance(self.of, Clipped):
            inner = jnp.clip(self.of.inner.value(chunk, read), self.of.low, self.of.high)
        else:
            inner = self.of.inner.value(chunk, read) // self.of.by
        return self.offset + self.scale * inner

    def reads(self) -> Any:
        """The value that has to be known first, or None."""
        if isinstance(self.of, Read):
            return self.of.value
        return self.of.inner.reads() if isinstance(self.of, (Clipped, Quotient)) else None


def as_index(number: Any) -> Any:
    """An integer of any kind as an int32: one past its limits is the limit."""
    number = jnp.asarray(number)
    limits, own = jnp.iinfo(jnp.int32), jnp.iinfo(number.dtype)
    return jnp.clip(number, max(own.min, limits.min), min(own.max, limits.max)).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Range:
    """`extent` rows from `start` on. `long` says that it is as long as there are rows, not as long as a chunk."""

    start: Start
    extent: int
    long: bool = False

    def moved(self, by: int) -> "Range":
        return dataclasses.replace(self, start=self.start.plus(by))


Want = tuple[Range | None, ...]  # one entry an axis; None is all of an axis that is no rows


def everything(size: int) -> Range:
    """All rows of an axis of this length."""
    return Range(Start(), size, long=True)


def whole(value: Any) -> Want:
    """All of an array."""
    return tuple(everything(value.at[i]) if i in value.rows else None for i in range(len(value.shape)))


def block_shape(at: tuple[int, ...], want: Want) -> tuple[int, ...]:
    """The shape of what is wanted."""
    return tuple(size if part is None else part.extent for size, part in zip(at, want, strict=True))


Env = Mapping[Any, Any]


def cut(array: Any, want: Want, at: Callable[[Start], Any]) -> Any:
    """The part of a whole array that is wanted."""
    for axis, part in enumerate(want):
        if part is not None and array.shape[axis] != part.extent:
            start = at(part.start)
            if isinstance(start, int):
                array = lax.slice_in_dim(array, start, start + part.extent, axis=axis)
            else:
                array = lax.dynamic_slice_in_dim(array, start, part.extent, axis=axis)
    return array


def within(part: Range, size: int) -> Range:
    """The rows of an axis that a range covers, for a range that may reach past both ends of it."""
    extent = min(part.extent, size)
    return Range(part.start.clipped(0, size - extent), extent, part.long)


def spread(block: Any, axis: int, part: Range, size: int, fill: Any, at: Callable[[Start], Any]) -> Any:
    """From the rows `within(part, size)`, those of `part`: `fill` where it reaches past an end.

    **Arguments:**

    - `block`: the rows that are there. `axis`: which axis is cut. `size`: how many rows there are.
    """
    bounds = part.start.bounds()
    inside = within(part, size)
    if bounds is not None and bounds[0] >= 0 and bounds[1] + part.extent <= size:
        return block
    shift = at(part.start) - at(inside.start)  # of the wanted rows against those that are there
    edges = [(0, 0, 0)] * block.ndim
    edges[axis] = (part.extent, part.extent, 0)
    padded = lax.pad(block, jnp.asarray(fill, block.dtype), edges)
    begin = shift + part.extent
    begin = jnp.clip(begin, 0, padded.shape[axis] - part.extent)
    return lax.dynamic_slice_in_dim(padded, begin, part.extent, axis=axis)
