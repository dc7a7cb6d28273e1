"""What the devices of a mesh tell each other: sums, extremes, and exact copies of what one of them has. One collective
for each kind, however many values there are. Not here: when (`run.py`).
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat

Leaves = list[Any]


def summed(values: Leaves, axis: str) -> Leaves:
    """The sums over all devices."""
    return list(lax.psum(values, axis)) if values else []


def extremes(values: Leaves, axis: str, *, largest: bool) -> Leaves:
    """The largest or smallest over all devices; a NaN of one is a NaN of all, whatever the transport makes of it."""
    if not values:
        return []
    reduce, worst = (lax.pmax, -jnp.inf) if largest else (lax.pmin, jnp.inf)
    plain = [x.astype(jnp.int32) if x.dtype == bool else x for x in values]
    floats = [jnp.issubdtype(x.dtype, jnp.floating) for x in values]
    flags = [
        (jnp.isnan(x) if largest else ~jnp.isnan(x)).astype(x.dtype)  # of the dtype, so that one collective takes both
        for x, is_float in zip(plain, floats, strict=True)
        if is_float
    ]
    filled = [
        jnp.where(jnp.isnan(x), jnp.asarray(worst, x.dtype), x) if is_float else x
        for x, is_float in zip(plain, floats, strict=True)
    ]
    found = list(reduce([*filled, *flags], axis))
    seen = iter(found[len(values) :])
    found = [
        jnp.where(next(seen) == int(largest), jnp.asarray(jnp.nan, x.dtype), x) if is_float else x
        for x, is_float in zip(found[: len(values)], floats, strict=True)
    ]
    return [x.astype(old.dtype) for x, old in zip(found, values, strict=True)]


def of_each(values: Leaves, axis: str, devices: int) -> Leaves:
    """What each device has, stacked, bit for bit: each puts its own in a row of zeros, which are added up."""
    me = lax.axis_index(axis)
    bits = [_bits(x) for x in values]
    rows = [jnp.zeros((devices, *x.shape), x.dtype) for x in bits]
    placed = [lax.dynamic_update_index_in_dim(row, x, me, 0) for row, x in zip(rows, bits, strict=True)]
    return [_from_bits(x, like) for x, like in zip(summed(placed, axis), values, strict=True)]


def of_owner(values: Leaves, owns: Sequence[Any], axis: str) -> Leaves:
    """What the device has that owns it, on all, bit for bit; `owns` is whether it is this one, for each entry."""
    bits = [_bits(x) for x in values]
    own = [
        jnp.where(jnp.reshape(o, (*jnp.shape(o), *[1] * (x.ndim - jnp.ndim(o)))), x, jnp.zeros((), x.dtype))
        for x, o in zip(bits, owns, strict=True)
    ]
    return [_from_bits(x, like) for x, like in zip(summed(own, axis), values, strict=True)]


_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def _bits(x: Any) -> Any:
    """The bits of an array as integers, whose sum with zeros is exact; of a key and a complex number along one more
    axis.
    """
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.stack([_bits(x.real), _bits(x.imag)], -1)
    if x.dtype == bool:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x
    return lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize])


def _from_bits(bits: Any, like: Any) -> Any:
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(bits, impl=_compat.key_impl(like.dtype))
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        real = jnp.finfo(like.dtype).dtype
        return lax.complex(*(lax.bitcast_convert_type(bits[..., i], real) for i in range(2)))
    if like.dtype == bool:
        return bits != 0
    if jnp.issubdtype(like.dtype, jnp.integer):
        return bits
    return lax.bitcast_convert_type(bits, like.dtype)
