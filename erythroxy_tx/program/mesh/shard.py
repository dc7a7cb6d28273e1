"""The rows of an input that one device has, and a few beside them that its neighbours have. Not here: which rows a
chunk needs (`program/rows.py`).
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from erythroxy_tx.program.blocks import Chunk
from erythroxy_tx.program.blocks import Clipped
from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.mesh.exchange import of_owner


class Shard:
    """The rows of one input on this device.

    **Arguments:**

    - `rows`: those that it has. `dim`: which axis is rows. `axis`: of the mesh, `devices` of them.
    - `beside`: how many rows of each neighbour may be read.
    """

    def __init__(self, rows: Any, dim: int, axis: str, devices: int, beside: int):
        self.rows, self.dim, self.axis, self._beside = rows, dim, axis, beside
        self.place = rows.shape[dim]
        self._first = lax.axis_index(axis) * self.place
        if beside:
            last = lax.slice_in_dim(rows, self.place - beside, self.place, axis=dim)
            first = lax.slice_in_dim(rows, 0, beside, axis=dim)
            self._before = lax.ppermute(last, axis, [(i, i + 1) for i in range(devices - 1)])
            self._after = lax.ppermute(first, axis, [(i + 1, i) for i in range(devices - 1)])

    def part(self, start: Any, extent: int) -> Any:
        """Rows from `start` on, counted over all devices, which this one or a neighbour has."""
        local = start - self._first
        if not self._beside:
            return lax.dynamic_slice_in_dim(self.rows, local, extent, axis=self.dim)
        at = local + jnp.arange(extent)
        own, before, after = (
            jnp.take(rows, at + more, axis=self.dim, mode="clip")
            for rows, more in ((self.rows, 0), (self._before, self._beside), (self._after, -self.place))
        )
        along = at.reshape([-1 if i == self.dim else 1 for i in range(own.ndim)])
        return jnp.where(along < 0, before, jnp.where(along < self.place, own, after))

    def for_all(self, start: Any, extent: int) -> Any:
        """Rows from `start` on, which any devices have, on all of them."""
        local = start - self._first + jnp.arange(extent)
        found = jnp.moveaxis(jnp.take(self.rows, local, axis=self.dim, mode="clip"), self.dim, 0)
        owns = (local >= 0) & (local < self.place)
        return jnp.moveaxis(of_owner([found], [owns], self.axis)[0], 0, self.dim)


def beside(part: Range, rows: Range, apart: int) -> int | None:
    """How far a part reaches past the rows of a chunk on either side, at most; None where that is not known.

    **Arguments:** `apart`: by how many the rows that are read and those of the chunks' axis differ.
    """
    offset, start = 0, part.start
    while isinstance(start.of, Clipped) and start.scale == 1:
        offset, start = offset + start.offset, start.of.inner
    if not isinstance(start.of, Chunk) or start.scale != 1:
        return None
    return abs(offset + start.offset) + max(0, part.extent - rows.extent) + apart


def chunk_of(extent: int, size: int) -> Range:
    """The rows of a chunk of this length, anywhere among `size`."""
    return Range(Start(0, 1, Chunk(max(size - extent, 0), 1)), extent)
