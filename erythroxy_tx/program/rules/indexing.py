"""Equations that pick or put rows by an index: gather, dynamic slices. Not here: scatter (`scatter.py`)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Read
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import as_index
from erythroxy_tx.program.blocks import everything
from erythroxy_tx.program.blocks import spread
from erythroxy_tx.program.blocks import whole
from erythroxy_tx.program.blocks import within
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import mixing
from erythroxy_tx.program.rules.rule import out_shape

DROPS = lax.GatherScatterMode.FILL_OR_DROP


class DynamicSlice(Rule):
    """`out = x[start : start + size]`, the start kept inside."""

    def cheap(self, eqn: Equation) -> bool:  # noqa: ARG002
        return True

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        source, starts = eqn.ins[0], eqn.ins[1:]
        parts: list[Range | None] = []
        for i, part in enumerate(request):
            size = eqn.outs[0].at[i]
            if size == source.at[i]:
                parts.append(part if part is not None or i not in source.rows else everything(size))
            elif i not in source.rows and part is None:
                parts.append(None)
            else:
                first = _start(starts[i]).clipped(0, source.at[i] - size)
                parts.append(_added(first, part or Range(Start(), size)))
        scalars: list[Want | None] = [() if p is None else None for p in parts]
        return [tuple(parts), *scalars]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:  # noqa: ARG002
        parts = self.wants(eqn, request)[0] or ()
        sizes = out_shape(eqn, request)
        starts = [as_index(0 if part else start) for part, start in zip(parts, ins[1:], strict=True)]
        return [lax.dynamic_slice(ins[0], starts, sizes)]

    def kind(self, eqn: Equation) -> Kind:
        source, out = eqn.ins[0], eqn.outs[0]
        moved = [i for i in out.rows if out.at[i] != source.at[i]]
        return Kind.WHOLE if any(eqn.ins[1 + i].known is None for i in moved) else Kind.BLOCK


def _start(value: Any) -> Start:
    return Start(int(value.known)) if value.known is not None else Start(0, 1, Read(value))


def _added(first: Start, part: Range) -> Range:
    """A range counted from a start of its own."""
    if first.known is not None:
        return part.moved(first.known)
    assert part.start.known is not None
    return Range(first.plus(part.start.known), part.extent, part.long)


class DynamicUpdate(Rule):
    """`out = x`, but `update` at `start : start + size`."""

    def kind(self, eqn: Equation) -> Kind:
        moved = [i for i in eqn.outs[0].rows if eqn.ins[1].at[i] != eqn.ins[0].at[i]]
        return Kind.WHOLE if any(eqn.ins[2 + i].known is None for i in moved) else Kind.BLOCK

    def _moved(self, eqn: Equation, request: Want) -> dict[int, Range]:
        """For each axis of rows that is updated in part, the range of the update; it may reach past its ends."""
        found = {}
        for i, part in enumerate(request):
            if part is not None and eqn.ins[1].at[i] != eqn.ins[0].at[i]:
                first = min(max(int(eqn.ins[2 + i].known), 0), eqn.ins[0].at[i] - eqn.ins[1].at[i])
                found[i] = part.moved(-first)
        return found

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        moved, size = self._moved(eqn, request), eqn.ins[1].at
        update = tuple(within(moved[i], size[i]) if i in moved else p for i, p in enumerate(request))
        return [request, update, *[()] * (len(eqn.ins) - 2)]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:
        operand, update, starts = ins[0], ins[1], list(ins[2:])
        moved, inside = self._moved(eqn, request), jnp.ones((), bool)
        for axis, part in moved.items():
            update = spread(update, axis, part, eqn.ins[1].at[axis], jnp.zeros((), update.dtype), at)
            inside = inside & inside_of(part, eqn.ins[1].at[axis], axis, operand.ndim, at)
        starts = [as_index(0 if request[i] else s) for i, s in enumerate(starts)]
        updated = lax.dynamic_update_slice(operand, update, starts)
        return [jnp.where(inside, updated, operand) if moved else updated]


def inside_of(part: Range, size: int, axis: int, ndim: int, at: At) -> Any:
    """Which rows of a range are between 0 and `size`."""
    row = at(part.start) + lax.iota(jnp.int32, part.extent)
    return ((row >= 0) & (row < size)).reshape([part.extent if i == axis else 1 for i in range(ndim)])


class Gather(Rule):
    """`out[i, …] = x[index[i], …]`: by rows of the index; what is picked from has to be there as a whole."""

    def cheap(self, eqn: Equation) -> bool:
        return self._first(eqn) is not None

    def _places(self, eqn: Equation) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
        """Axes of the result against those of the operand as windows, of the indices, and of operand batches."""
        numbers, source, out = eqn.params["dimension_numbers"], eqn.ins[0], eqn.outs[0]
        dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        windows = dict(zip(numbers.offset_dims, [i for i in range(len(source.at)) if i not in dropped], strict=True))
        batch = [i for i in range(len(out.at)) if i not in numbers.offset_dims]
        indices = dict(zip(batch, range(len(batch)), strict=True))
        of_index = {j: i for i, j in indices.items()}
        batches = {
            of_index[j]: i
            for i, j in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
        }
        return windows, indices, batches

    def _first(self, eqn: Equation) -> np.ndarray | None:
        """Where the one window starts, if there is one and that is known."""
        known, numbers = eqn.ins[1].known, eqn.params["dimension_numbers"]
        if known is None or len(eqn.ins[1].at) != 1 or not isinstance(known, np.ndarray):
            return None
        source, sizes = eqn.ins[0], eqn.params["slice_sizes"]
        starts = np.zeros(len(source.at), np.int64)
        for axis, start in zip(numbers.start_index_map, known, strict=True):
            last = source.at[axis] - int(sizes[axis])
            if eqn.params["mode"] == DROPS and not 0 <= start <= last:
                return None
            starts[axis] = min(max(int(start), 0), last)
        return starts

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        windows, indices, batches = self._places(eqn)
        source, sizes, first = eqn.ins[0], [int(s) for s in eqn.params["slice_sizes"]], self._first(eqn)
        mapped = eqn.params["dimension_numbers"].start_index_map
        parts = list(whole(source))
        for axis, i in windows.items():
            part, full = request[axis], sizes[i] == source.at[i]
            if first is not None and (part is not None or i in source.rows):
                parts[i] = (part or Range(Start(), sizes[i])).moved(int(first[i]))
            elif part is not None and full and (i not in mapped or eqn.params["mode"] != DROPS):
                parts[i] = part
        if first is not None:
            for i in source.rows:
                if i not in windows.values():
                    parts[i] = Range(Start(int(first[i])), 1)
        for axis, i in batches.items():
            parts[i] = request[axis]
        of_index = [request[axis] for axis in indices]
        return [tuple(parts), (*of_index, None)]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:  # noqa: ARG002
        windows, _, _ = self._places(eqn)
        sizes, parts = [int(s) for s in eqn.params["slice_sizes"]], self.wants(eqn, request)[0] or ()
        if (first := self._first(eqn)) is not None:
            starts = [0 if parts[i] is not None else int(f) for i, f in enumerate(first)]
            sizes = [p.extent if p is not None else s for p, s in zip(parts, sizes, strict=True)]
            found = lax.slice(ins[0], starts, [a + b for a, b in zip(starts, sizes, strict=True)])
            return [found.reshape(out_shape(eqn, request))]
        for axis, i in windows.items():
            if (part := request[axis]) is not None:
                if parts[i] != part:
                    raise mixing(eqn, "of whose windows no part can be picked", "pick whole rows")
                sizes[i] = part.extent
        return bound(eqn, ins, slice_sizes=tuple(sizes))

    def kind(self, eqn: Equation) -> Kind:
        windows, _, _ = self._places(eqn)
        source, out = eqn.ins[0], eqn.outs[0]
        if self._first(eqn) is not None:
            return Kind.BLOCK
        if not out.rows:
            return Kind.WHOLE
        request, parts = whole(out), self.wants(eqn, whole(out))[0] or ()
        cut = all(parts[i] == request[axis] for axis, i in windows.items() if request[axis] is not None)
        return Kind.BLOCK if cut and (source.rows or eqn.ins[1].rows) else Kind.WHOLE


RULES: dict[str, Rule] = {
    "dynamic_slice": DynamicSlice(),
    "dynamic_update_slice": DynamicUpdate(),
    "gather": Gather(),
}
