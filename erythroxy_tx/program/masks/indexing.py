"""Rows that are picked or put by an index, which is kept within the rows that are there."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.blocks import as_index
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.masks.extents import moved
from erythroxy_tx.program.masks.extents import positions
from erythroxy_tx.program.masks.reductions import highest
from erythroxy_tx.program.masks.reductions import lowest
from erythroxy_tx.program.masks.rule import Leaves
from erythroxy_tx.program.masks.rule import Mask
from erythroxy_tx.program.masks.rule import Run
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import mixing

_DROPS = lax.GatherScatterMode.FILL_OR_DROP


def dynamic_slice(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`out = x[start : start + size]`, the start kept inside."""
    found, source, out = ins[0], eqn.ins[0], eqn.outs[0]
    for axis, start in enumerate(ins[1:]):
        if out.at[axis] == source.at[axis] and str(out.shape[axis]) == str(source.shape[axis]):
            continue
        most = extents.size(source.shape[axis]) - extents.size(out.shape[axis])
        found = moved(found, axis, jnp.clip(as_index(start), 0, most), out.at[axis])
    return [found]


def dynamic_update(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`out = x`, but the rows of `update` that are there at `start : start + size`."""
    operand, update, starts = ins[0], ins[1], ins[2:]
    firsts = []
    for axis, start in enumerate(starts):
        most = extents.size(eqn.ins[0].shape[axis]) - extents.size(eqn.ins[1].shape[axis])
        firsts.append(jnp.clip(as_index(start), 0, most))
    return [_placed(operand, update, firsts, eqn.ins[1].shape, extents, lambda old, new: new)]  # noqa: ARG005


def gather(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`out[i, …] = x[index[i], …]`: an index past the rows that are there is one past the end."""
    operand, indices = ins[:2]
    source, numbers = eqn.ins[0], eqn.params["dimension_numbers"]
    if not any(axis in source.rows for axis in numbers.start_index_map):
        return bound(eqn, ins)
    windows, mode = eqn.symbolic["slice_sizes"], eqn.params["mode"]
    indices, fits = _kept_inside(source, indices, windows, numbers.start_index_map, extents)
    for axis in numbers.start_index_map:  # a window may reach past the room, though what is there of it does not
        if _compat.is_symbolic(windows[axis]):
            operand = moved(operand, axis, 0, source.at[axis] + int(eqn.params["slice_sizes"][axis]))
    found = bound(eqn, [operand, indices], mode=lax.GatherScatterMode.CLIP)[0]
    if mode != _DROPS:
        return [found]
    batch = [i for i in range(found.ndim) if i not in numbers.offset_dims]
    fits = lax.broadcast_in_dim(fits, found.shape, batch)
    return [jnp.where(fits, found, _filling(eqn))]


def _filling(eqn: Equation) -> Any:
    """What `mode="fill"` gives for an index that is out of bounds."""
    given, kind = eqn.params["fill_value"], eqn.outs[0].dtype
    if given is None:
        if jnp.issubdtype(kind, jnp.inexact):
            given = jnp.nan
        elif jnp.issubdtype(kind, jnp.signedinteger):
            given = jnp.iinfo(kind).min
        elif jnp.issubdtype(kind, jnp.unsignedinteger):
            given = jnp.iinfo(kind).max
        elif eqn.outs[0].keys:
            raise mixing(eqn, "of random keys that may be out of bounds", 'mode="clip"')
        else:  # a bool
            given = True
    return jnp.asarray(given, kind)


def _kept_inside(
    value: Value, indices: Any, windows: Any, mapped: tuple[int, ...], extents: Extents
) -> tuple[Any, Any]:
    """The indices kept within what is there, and for each whether it was."""
    if indices.dtype.itemsize < 4:  # of few bits: a clamp could not be written in them
        indices = indices.astype(jnp.int32)
    limits = [extents.size(value.shape[axis]) - extents.size(windows[axis]) for axis in mapped]
    most = jnp.stack([jnp.asarray(limit, jnp.int32) for limit in limits]).astype(indices.dtype)
    most = jnp.broadcast_to(most, indices.shape)
    fits = jnp.all((indices >= 0) & (indices <= most), axis=-1)
    return jnp.clip(indices, 0, jnp.maximum(most, 0)), fits


_NEUTRAL: dict[str, Any] = {
    "add": lambda kind: 0,  # noqa: ARG005
    "sub": lambda kind: 0,  # noqa: ARG005
    "mul": lambda kind: 1,  # noqa: ARG005
    "min": highest,
    "max": lowest,
}
_JOINS = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "min": jnp.minimum, "max": jnp.maximum}


def scatter(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`out = x; out[index[i]] op= update[i]`, for the updates that are there."""
    operand, indices, updates = ins
    (source, _, of_update), numbers = eqn.ins, eqn.params["dimension_numbers"]
    kind = eqn.name.replace("scatter", "").strip("-_")
    mapped, dropped = numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims
    rest = [i for i in range(operand.ndim) if i not in (*dropped, *numbers.operand_batching_dims)]
    places = dict(zip(rest, numbers.update_window_dims, strict=True))  # of the operand's axes among the update's
    windows = [of_update.shape[places[i]] if i in places else 1 for i in range(operand.ndim)]
    batch = [i for i in range(updates.ndim) if i not in numbers.update_window_dims]
    partial = [places[i] for i in rest if places[i] in of_update.rows and str(windows[i]) != str(source.shape[i])]
    fits = jnp.ones(updates.shape[:0] if not batch else tuple(updates.shape[i] for i in batch), bool)
    if mapped:
        indices, inside = _kept_inside(source, indices, windows, mapped, extents)
        fits = fits if eqn.params["mode"] == lax.GatherScatterMode.CLIP else inside
    if partial and not kind and eqn.params["update_jaxpr"] is not None:
        raise mixing(eqn, "by a function of its own", "jnp.where, or .at[...].set(f(x[...]))")
    if partial and not batch and not numbers.operand_batching_dims:
        firsts: list[Any] = [0] * operand.ndim
        for k, axis in enumerate(mapped):
            firsts[axis] = indices[k].astype(jnp.int32)
        update = lax.expand_dims(updates, dropped)
        join = _JOINS.get(kind, lambda old, new: new)  # noqa: ARG005
        return [jnp.where(fits, _placed(operand, update, firsts, windows, extents, join), operand)]
    there = extents.inside(of_update, [i for i in batch if i in of_update.rows])
    if there is not None:
        fits = fits & lax.squeeze(jnp.broadcast_to(there, _batched(updates.shape, batch)), numbers.update_window_dims)
    if partial:
        if kind not in _NEUTRAL:
            raise mixing(eqn, "whose windows may overwrite each other", "write one window at a time")
        updates = extents.only(updates, of_update, partial, _NEUTRAL[kind](updates.dtype))
        operand = _roomy(operand, source, windows)
    if mapped:
        away = jnp.asarray(jnp.iinfo(jnp.int32).max, indices.dtype)
        indices = jnp.where(fits[..., None], indices, away)
    elif kind in _NEUTRAL:
        keep = lax.broadcast_in_dim(fits, updates.shape, batch)
        updates = jnp.where(keep, updates, jnp.asarray(_NEUTRAL[kind](updates.dtype), updates.dtype))
    elif there is not None:
        raise mixing(eqn, "which overwrites one place by rows", "take the last row")
    found = bound(eqn, [operand, indices, updates], mode=_DROPS, indices_are_sorted=False)[0]
    return [lax.slice(found, [0] * found.ndim, source.at)]


def _batched(shape: tuple[int, ...], batch: list[int]) -> tuple[int, ...]:
    return tuple(size if i in batch else 1 for i, size in enumerate(shape))


def _roomy(operand: Any, source: Value, windows: list[Any]) -> Any:
    """An operand with place for windows that reach past it, though what is there of them does not."""
    for axis in source.rows:
        if _compat.is_symbolic(windows[axis]):
            operand = moved(operand, axis, 0, 2 * source.at[axis])
    return operand


def _placed(operand: Any, update: Any, firsts: list[Any], windows: Any, extents: Extents, join: Any) -> Any:
    """The operand with one window joined to it from `firsts` on."""
    inside: Any = jnp.ones((), bool)
    for axis, first in enumerate(firsts):
        room = operand.shape[axis]
        update = moved(update, axis, -first, room)
        place = positions(room, axis, operand.ndim)
        inside = inside & (place >= first) & (place < first + extents.size(windows[axis]))
    return jnp.where(inside, join(operand, update.astype(operand.dtype)), operand)


_NAMES = ["scatter", *(f"scatter{dash}{kind}" for dash in "-_" for kind in _NEUTRAL)]
RULES: dict[str, Mask] = {
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update,
    "gather": gather,
    **dict.fromkeys(_NAMES, scatter),
}
