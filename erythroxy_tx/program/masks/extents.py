"""How much of each value is there, in a program for up to so many rows that runs for fewer of them.

Along an axis of rows the first d(n) entries are there; what comes after them is anything, NaN included, until an
equation would let it into one that is there (`only`). Not here: which equations would.
"""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.symbol import Symbol


class Extents:
    """The numbers of rows that are there.

    **Arguments:** `rows`: for each name of the symbol a number, or an int32 that is known when it runs.
    """

    def __init__(self, symbol: Symbol, rows: tuple[Any, ...]):
        self.symbol, self.rows = symbol, rows
        self._sizes: dict[Any, Any] = {}

    def size(self, dim: Any) -> Any:
        """How long an axis is: a number, or an int32 that is known when it runs."""
        if not _compat.is_symbolic(dim):
            return int(dim)
        found = self.symbol.at(dim, self.rows)
        return found if isinstance(found, int) else jnp.asarray(found, jnp.int32)

    def sizes(self, value: Value) -> list[Any]:
        """How long each axis is."""
        return [self.size(dim) for dim in value.shape]

    def inside(self, value: Value, axes: Iterable[int] | None = None) -> Any:
        """Which entries are there along these axes of rows, or along all: bools that broadcast, None for every one."""
        found = None
        for axis in value.rows if axes is None else axes:
            size = self.size(value.shape[axis])
            if isinstance(size, int) and size == value.at[axis]:
                continue
            here = lax.broadcasted_iota(jnp.int32, along(value.at[axis], axis, len(value.at)), axis) < size
            found = here if found is None else found & here
        return found

    def only(self, x: Any, value: Value, axes: Iterable[int] | None = None, fill: Any = 0) -> Any:
        """What is there of a value, and a number in place of the rest of it."""
        inside = self.inside(value, axes)
        return x if inside is None else jnp.where(inside, x, jnp.asarray(fill, x.dtype))


def along(size: int, axis: int, ndim: int) -> tuple[int, ...]:
    """The shape of what differs along one axis alone."""
    return tuple(size if i == axis else 1 for i in range(ndim))


def positions(size: int, axis: int, ndim: int) -> Any:
    """The numbers of the entries along an axis."""
    return lax.broadcasted_iota(jnp.int32, along(size, axis, ndim), axis)


def moved(x: Any, axis: int, by: Any, extent: int) -> Any:
    """`out[i] = x[i + by]` along an axis, for `extent` entries; anything where x has none."""
    size = x.shape[axis]
    if isinstance(by, int) and by >= 0 and by + extent <= size:
        return x if (by, extent) == (0, size) else lax.slice_in_dim(x, by, by + extent, axis=axis)
    if size == 0 or extent == 0:
        return jnp.zeros([extent if i == axis else s for i, s in enumerate(x.shape)], x.dtype)
    if jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool:
        edges = [(extent, extent, 0) if i == axis else (0, 0, 0) for i in range(x.ndim)]
        wide = lax.pad(x, jnp.zeros((), x.dtype), edges)
        return lax.dynamic_slice_in_dim(wide, jnp.clip(by + extent, 0, size + extent), extent, axis=axis)
    return jnp.take(x, jnp.clip(by + jnp.arange(extent), 0, size - 1), axis=axis)  # random keys
