"""Equations that give their inputs another shape or order and compute nothing."""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import everything
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import out_shape


class Broadcast(Rule):
    """Axes that are not there, or of length one, are repeated."""

    def cheap(self, eqn: Equation) -> bool:  # noqa: ARG002
        return True

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        source, out = eqn.ins[0], eqn.outs[0]
        axes = eqn.params["broadcast_dimensions"]
        rows = source.rows
        parts = [
            request[axis] if i in rows or (source.at[i] == out.at[axis] and source.at[i] != 1) else None
            for i, axis in enumerate(axes)
        ]
        return [tuple(parts), *([None] * (len(eqn.ins) - 1))]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:  # noqa: ARG002
        return bound(eqn, ins[:1], shape=out_shape(eqn, request))


class Transpose(Rule):
    """Axes in another order."""

    def cheap(self, eqn: Equation) -> bool:  # noqa: ARG002
        return True

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        parts: list[Range | None] = [None] * len(request)
        for axis, part in zip(eqn.params["permutation"], request, strict=True):
            parts[axis] = part
        return [tuple(parts)]


class Squeeze(Rule):
    """Axes of length one are dropped."""

    def cheap(self, eqn: Equation) -> bool:  # noqa: ARG002
        return True

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        left = iter(request)
        parts = [None if i in eqn.params["dimensions"] else next(left) for i in range(len(eqn.ins[0].at))]
        squeezed = [i for i in eqn.ins[0].rows if i in eqn.params["dimensions"]]
        for i in squeezed:  # a number of rows that is one
            parts[i] = everything(1)
        return [tuple(parts)]


class Iota(Rule):
    """A position is counted from the first row of all, not of the chunk."""

    def cheap(self, eqn: Equation) -> bool:  # noqa: ARG002
        return True

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:  # noqa: ARG002
        return [None] * len(eqn.ins)

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:  # noqa: ARG002
        axis, kind = eqn.params["dimension"], eqn.params["dtype"]
        part = request[axis]
        counted = lax.iota(jnp.int32, part.extent if part else eqn.outs[0].at[axis])
        if part is not None:
            counted = counted + at(part.start)
        shape = out_shape(eqn, request)
        return [lax.broadcast_in_dim(counted.astype(kind), shape, (axis,))]


class Reshape(Rule):
    """Axes fall into groups of equal size; rows may lead a group, or stand alone."""

    def cheap(self, eqn: Equation) -> bool:  # noqa: ARG002
        return True

    def kind(self, eqn: Equation) -> Kind:
        return Kind.BLOCK if _groups(eqn) is not None else Kind.WHOLE

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        parts: list[Range | None] = [None] * len(eqn.ins[0].at)
        for group in _groups(eqn) or ():
            if group is not None and (part := request[group.out_axis]) is not None:
                parts[group.in_axis] = group.needed(part)
        return [tuple(parts)]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:
        shape, found = list(out_shape(eqn, request)), ins[0]
        cuts = []
        for group in _groups(eqn) or ():
            part = request[group.out_axis]
            if part is None:
                continue
            rows = group.needed(part)
            shape[group.out_axis] = rows.extent * group.inner_in // group.inner_out
            if shape[group.out_axis] != part.extent:
                first = at(part.start) - at(rows.start) * group.inner_in // group.inner_out
                cuts.append((group.out_axis, first, part.extent))
        found = bound(eqn, [found], new_sizes=tuple(shape))[0]
        for axis, first, extent in cuts:
            found = lax.dynamic_slice_in_dim(found, first, extent, axis=axis)
        return [found]


class _Group:
    """Rows along `in_axis`, `inner_in` numbers each, which become rows along `out_axis` of `inner_out` numbers."""

    def __init__(self, in_axis: int, out_axis: int, inner_in: int, inner_out: int, in_size: int):
        self.in_axis, self.out_axis, self.inner_in, self.inner_out = in_axis, out_axis, inner_in, inner_out
        self.in_size = in_size

    def needed(self, part: Range) -> Range:
        if self.inner_in == self.inner_out:
            return part
        if self.inner_out % self.inner_in == 0:
            each = self.inner_out // self.inner_in
            return Range(part.start.times(each), part.extent * each, part.long)
        each = self.inner_in // self.inner_out
        if part.start.divisible(each) and part.extent % each == 0:
            return Range(part.start.over(each), part.extent // each, part.long)
        extent = min(-(-(part.extent + each - 1) // each), self.in_size)
        return Range(part.start.over(each).clipped(0, self.in_size - extent), extent, part.long)


def _groups(eqn: Equation) -> list[_Group] | None:
    """Where rows are in a reshape; None if they do not lead their group."""
    source, out = eqn.ins[0], eqn.outs[0]
    if eqn.params.get("dimensions") is not None or 0 in source.at:
        return None
    found, i, j = [], 0, 0
    while i < len(source.at) or j < len(out.at):
        ins, outs = [i] * (i < len(source.at)), [j] * (j < len(out.at))
        while not _same(source, ins, out, outs):
            left, right = math.prod(source.at[a] for a in ins), math.prod(out.at[a] for a in outs)
            more_in, more_out = ins[-1:] and ins[-1] + 1 < len(source.at), outs[-1:] and outs[-1] + 1 < len(out.at)
            if not more_in and not more_out:
                return None
            if (left <= right and more_in) or not more_out:
                ins.append(ins[-1] + 1)
            if (right <= left and more_out) or (not more_in and left > right):
                outs.append(outs[-1] + 1)
        i, j = i + len(ins), j + len(outs)
        rows_in, rows_out = [a for a in ins if a in source.rows], [a for a in outs if a in out.rows]
        if not rows_in and not rows_out:
            continue
        if len(rows_in) != 1 or len(rows_out) != 1:
            return None
        a, b = rows_in[0], rows_out[0]
        leads = math.prod(source.at[x] for x in ins if x < a) == 1 == math.prod(out.at[x] for x in outs if x < b)
        inner_in = math.prod(source.at[x] for x in ins if x > a)
        inner_out = math.prod(out.at[x] for x in outs if x > b)
        if not leads or (inner_in % inner_out and inner_out % inner_in):
            return None
        found.append(_Group(a, b, inner_in, inner_out, source.at[a]))
    return found


def leads(eqn: Equation) -> bool:
    """Whether rows lead in a reshape wherever they are in it."""
    return _groups(eqn) is not None


def _same(source: Any, ins: list[int], out: Any, outs: list[int]) -> bool:
    left: Any = math.prod((source.shape[a] for a in ins), start=1)
    right: Any = math.prod((out.shape[a] for a in outs), start=1)
    difference = left - right
    return not _compat.is_symbolic(difference) and int(difference) == 0


class Reverse(Rule):
    """`out[i] = x[n - 1 - i]`."""

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        turned = eqn.params["dimensions"]
        parts = [
            Range(part.start.times(-1).plus(eqn.ins[0].at[i] - part.extent), part.extent, part.long)
            if part is not None and i in turned
            else part
            for i, part in enumerate(request)
        ]
        return [tuple(parts)]


class Slice(Rule):
    """`out[i] = x[start + i * stride]`."""

    def cheap(self, eqn: Equation) -> bool:  # noqa: ARG002
        return True

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        starts, strides = eqn.params["start_indices"], eqn.params["strides"] or (1,) * len(request)
        parts: list[Range | None] = []
        for i, part in enumerate(request):
            if i not in eqn.ins[0].rows and part is None:
                parts.append(None)
                continue
            rows = part or Range(Start(), eqn.outs[0].at[i])
            start = rows.start.times(int(strides[i])).plus(int(starts[i]))
            parts.append(Range(start, (rows.extent - 1) * int(strides[i]) + 1, rows.long))
        return [tuple(parts)]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:  # noqa: ARG002
        starts, limits = list(eqn.params["start_indices"]), list(eqn.params["limit_indices"])
        for i, part in enumerate(self.wants(eqn, request)[0] or ()):
            if part is not None:
                starts[i], limits[i] = 0, part.extent
        return [lax.slice(ins[0], starts, limits, eqn.params["strides"])]


class Stack(Rule):
    """Along an axis of its own: it is no rows."""

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        axis = eqn.params["axis"]
        return [(*request[:axis], *request[axis + 1 :])] * len(eqn.ins)


class Unstack(Rule):
    """Along an axis that is no rows: it has a known length."""

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        axis = eqn.params["axis"]
        return [(*request[:axis], None, *request[axis:])]


class Tile(Rule):
    """Repeated along other axes; rows that are repeated are run as a whole."""

    def kind(self, eqn: Equation) -> Kind:
        repeated = [i for i in eqn.ins[0].rows if _compat.is_symbolic(reps := eqn.symbolic["reps"][i]) or reps != 1]
        return Kind.WHOLE if repeated or any(i not in eqn.ins[0].rows for i in eqn.outs[0].rows) else Kind.BLOCK

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:  # noqa: ARG002
        return [request]


class Empty(Rule):
    """What is not there yet: zeros."""

    def cheap(self, eqn: Equation) -> bool:  # noqa: ARG002
        return True

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:  # noqa: ARG002
        return [None] * len(eqn.ins)

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:  # noqa: ARG002
        return [jnp.zeros(out_shape(eqn, request), eqn.outs[0].dtype)]


RULES: dict[str, Rule] = {
    "broadcast_in_dim": Broadcast(),
    "transpose": Transpose(),
    "squeeze": Squeeze(),
    "iota": Iota(),
    "reshape": Reshape(),
    "rev": Reverse(),
    "slice": Slice(),
    "stack": Stack(),
    "unstack": Unstack(),
    "tile": Tile(),
    **dict.fromkeys(["empty", "empty2"], Empty()),
}
