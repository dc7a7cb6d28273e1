"""Padding and concatenation where a piece ends at a row that is known when it runs."""

import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.masks.extents import moved
from erythroxy_tx.program.masks.extents import positions
from erythroxy_tx.program.masks.rule import Leaves
from erythroxy_tx.program.masks.rule import Mask
from erythroxy_tx.program.masks.rule import Run
from erythroxy_tx.program.rules.rule import bound


def pad(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """What comes after the rows that are there is padding."""
    source, out = eqn.ins[0], eqn.outs[0]
    found, fill = extents.only(ins[0], source, fill=ins[1]), ins[1]
    for axis, (low, _, inner) in enumerate(eqn.symbolic["padding_config"]):
        size, room = source.at[axis], out.at[axis]
        spread = max(size + (size - 1) * inner, 0)
        first = extents.size(low)
        if isinstance(first, int):
            edges = (first, room - spread - first, inner)
            found = lax.pad(found, fill, [edges if i == axis else (0, 0, 0) for i in range(found.ndim)])
            continue
        edges = (room, room, inner)
        found = lax.pad(found, fill, [edges if i == axis else (0, 0, 0) for i in range(found.ndim)])
        found = lax.dynamic_slice_in_dim(found, jnp.clip(room - first, 0, room + spread), room, axis=axis)
    return [found]


def concatenate(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Each piece starts where the one before it ends."""
    axis, out = eqn.params["dimension"], eqn.outs[0]
    dims = [v.shape[axis] for v in eqn.ins]
    if not any(_compat.is_symbolic(dim) for dim in dims[:-1]):
        return bound(eqn, ins)
    found, first = jnp.zeros(out.at, out.dtype) if not out.keys else None, 0
    place = positions(out.at[axis], axis, len(out.at))
    for x, dim in zip(ins, dims, strict=True):
        if x.shape[axis] == 0:
            continue
        here = moved(x, axis, -first, out.at[axis])
        found = here if found is None else jnp.where(place >= first, here, found)
        first = first + extents.size(dim)
    return [found]


RULES: dict[str, Mask] = {"pad": pad, "concatenate": concatenate}
