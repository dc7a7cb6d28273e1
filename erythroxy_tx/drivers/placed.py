"""Rows on the devices of a mesh, with place for a few more where they do not divide. Not here: what runs on them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from erythroxy_tx.core.padded import Padded


def spec_of(dim: int | None, axis: str) -> PartitionSpec:
    """Which axis of an array lies along an axis of a mesh; None for one that is whole on each device."""
    return PartitionSpec() if dim is None else PartitionSpec(*[None] * dim, axis)


def placed(leaf: Any, dim: int, place: int, mesh: Mesh, axis: str) -> Any:
    """An array with `place` rows along `dim`, which lie along an axis of a mesh; what is past its own is anything."""
    rows = leaf.data if isinstance(leaf, Padded) else leaf
    sharding = NamedSharding(mesh, spec_of(dim, axis))
    more = place - rows.shape[dim]
    if isinstance(rows, jax.core.Tracer):
        return _traced(_padded(rows, dim, more), sharding)
    if isinstance(rows, jax.Array) and _stays(rows, sharding, more):
        return jax.device_put(_padded(rows, dim, more), sharding)
    host = np.asarray(rows)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    shape = tuple(place if i == dim else size for i, size in enumerate(host.shape))

    def part(index: Any) -> Any:
        own = host[index]
        wanted = range(*index[dim].indices(place))
        edges = [(0, len(wanted) - own.shape[dim] if i == dim else 0) for i in range(own.ndim)]
        return np.pad(own, edges) if any(after for _, after in edges) else own

    return jax.make_array_from_callback(shape, sharding, part)


def _stays(x: jax.Array, sharding: NamedSharding, more: int = 0) -> bool:
    """Whether an array goes from device to device. From one process to a mesh of several, JAX would compare it first,
    by a collective of its own.
    """
    return not x.is_fully_addressable or (sharding.is_fully_addressable and not more)


def _padded(rows: Any, dim: int, more: int) -> Any:
    if not more:
        return rows
    return jnp.pad(rows, [(0, more if i == dim else 0) for i in range(rows.ndim)])


def _traced(x: Any, sharding: NamedSharding) -> Any:
    """A traced value that lies as it has to; in several processes that is left to the program, as of `_stays`."""
    typed = AxisType.Explicit in sharding.mesh.axis_types
    return jax.device_put(x, sharding) if typed or sharding.is_fully_addressable else x


def shared(leaf: Any, mesh: Mesh) -> Any:
    """An array that is whole on each device."""
    sharding = NamedSharding(mesh, PartitionSpec())
    if isinstance(leaf, jax.core.Tracer):
        return _traced(leaf, sharding)
    if isinstance(leaf, jax.Array) and _stays(leaf, sharding):
        return jax.device_put(leaf, sharding)
    host = np.asarray(leaf)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
