"""Equations that give their inputs another shape or order, for fewer rows than there is place for."""

import math

import jax.numpy as jnp
from jax import lax

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.masks.extents import moved
from erythroxy_tx.program.masks.rule import Leaves
from erythroxy_tx.program.masks.rule import Mask
from erythroxy_tx.program.masks.rule import Run
from erythroxy_tx.program.masks.rule import plain
from erythroxy_tx.program.rules.layout import leads
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import mixing

_MOST = 2**31


def broadcast(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Axes that are not there, or of length one, are repeated."""
    return bound(eqn, ins[:1])


def squeeze(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Axes of length one are dropped; so is one of rows, of which there is one."""
    dropped = [i for i in eqn.params["dimensions"] if i in eqn.ins[0].rows]
    found = ins[0]
    for axis in dropped:
        found = lax.slice_in_dim(found, 0, 1, axis=axis)
    return bound(eqn, [found])


def reshape(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Where rows do not lead, each entry is looked up by its number among those that are there."""
    if leads(eqn):
        return bound(eqn, ins[:1])
    source, out = eqn.ins[0], eqn.outs[0]
    order = eqn.params.get("dimensions") or range(len(source.at))
    x, sizes = lax.transpose(ins[0], tuple(order)), [extents.size(source.shape[i]) for i in order]
    if max(math.prod(source.at), math.prod(out.at)) >= _MOST:
        raise mixing(eqn, "of more numbers than an int32 counts", "reshape it outside of the function")
    number = jnp.zeros(out.at, jnp.int32)
    for axis, size in enumerate(extents.sizes(out)):
        number = number * size + lax.broadcasted_iota(jnp.int32, out.at, axis)
    places = []
    for size, most in zip(sizes[::-1], x.shape[::-1], strict=True):
        places.append(jnp.clip(number % jnp.maximum(size, 1), 0, max(most - 1, 0)))
        number = number // jnp.maximum(size, 1)
    return [x[tuple(places[::-1])] if 0 not in source.at else jnp.zeros(out.at, out.dtype)]


def reverse(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`out[i] = x[n - 1 - i]`, with the n that is there."""
    found = bound(eqn, ins)[0]
    for axis in eqn.params["dimensions"]:
        most = eqn.ins[0].at[axis]
        found = moved(found, axis, most - extents.size(eqn.ins[0].shape[axis]), most)
    return [found]


def cut(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`out[i] = x[start + i * stride]`, where the start may be counted from the end."""
    found, source, out = ins[0], eqn.ins[0], eqn.outs[0]
    strides = [int(s) for s in eqn.params["strides"] or (1,) * len(source.at)]
    for axis, first in enumerate(eqn.symbolic["start_indices"]):
        extent = (out.at[axis] - 1) * strides[axis] + 1 if out.at[axis] else 0
        found = moved(found, axis, extents.size(first), extent)
    return [lax.slice(found, [0] * found.ndim, found.shape, strides)]


def tile(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Rows that are repeated come one copy after the other."""
    found, source = ins[0], eqn.ins[0]
    for axis in range(len(source.at)):
        most = eqn.outs[0].at[axis]
        if axis in source.rows and eqn.outs[0].shape[axis] is not source.shape[axis]:
            place = jnp.arange(most) % jnp.maximum(extents.size(source.shape[axis]), 1)
            found = jnp.take(found, jnp.clip(place, 0, source.at[axis] - 1), axis=axis)
        else:
            found = jnp.concatenate([found] * (most // max(source.at[axis], 1)), axis=axis)
    return [found]


def empty(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """What is not there yet: zeros."""
    return [jnp.zeros(eqn.outs[0].at, eqn.outs[0].dtype)]


def size_as_value(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """A number of rows as a number: of those that are there."""
    return [jnp.asarray(extents.size(eqn.symbolic["dim"]), eqn.outs[0].dtype)]


def iota(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Positions count from the first row."""
    return [lax.broadcasted_iota(eqn.outs[0].dtype, eqn.outs[0].at, eqn.params["dimension"])]


RULES: dict[str, Mask] = {
    "broadcast_in_dim": broadcast,
    "squeeze": squeeze,
    "reshape": reshape,
    "rev": reverse,
    "slice": cut,
    "tile": tile,
    "dim_as_value": size_as_value,
    "iota": iota,
    **dict.fromkeys(["transpose", "stack", "unstack", "expand_dims"], plain),
    **dict.fromkeys(["empty", "empty2"], empty),
}
