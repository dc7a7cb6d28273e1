"""Equations that pick or put rows by an index: gather, scatter, dynamic slices."""

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
from erythroxy_tx.program.folds import Fold
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Folding
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import everything_of
from erythroxy_tx.program.rules.rule import mixing
from erythroxy_tx.program.rules.rule import out_shape

_DROPS = lax.GatherScatterMode.FILL_OR_DROP


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
            inside = inside & _inside(part, eqn.ins[1].at[axis], axis, operand.ndim, at)
        starts = [as_index(0 if request[i] else s) for i, s in enumerate(starts)]
        updated = lax.dynamic_update_slice(operand, update, starts)
        return [jnp.where(inside, updated, operand) if moved else updated]


def _inside(part: Range, size: int, axis: int, ndim: int, at: At) -> Any:
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
            if eqn.params["mode"] == _DROPS and not 0 <= start <= last:
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
            elif part is not None and full and (i not in mapped or eqn.params["mode"] != _DROPS):
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


class Scatter(Rule):
    """`out = x; out[index[i]] op= update[i]`: over the chunks of the updates where the result has no rows."""

    def _windows(self, eqn: Equation) -> dict[int, int]:
        """Axes of the updates that are windows, against those of the operand."""
        numbers = eqn.params["dimension_numbers"]
        dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        rest = [i for i in range(len(eqn.ins[0].at)) if i not in dropped]
        return dict(zip(numbers.update_window_dims, rest, strict=True))

    def _first(self, eqn: Equation) -> np.ndarray | None:
        """Where the one window starts, if there is one, it is known, and it is inside."""
        known, numbers = eqn.ins[1].known, eqn.params["dimension_numbers"]
        applies = eqn.name == "scatter" and eqn.params["update_jaxpr"] is not None  # a function of its own
        if not isinstance(known, np.ndarray) or len(eqn.ins[1].at) != 1 or numbers.inserted_window_dims or applies:
            return None
        starts = np.zeros(len(eqn.ins[0].at), np.int64)
        for axis, start in zip(numbers.scatter_dims_to_operand_dims, known, strict=True):
            if not 0 <= start <= eqn.ins[0].at[axis] - eqn.ins[2].at[axis]:
                return None
            starts[axis] = int(start)
        return starts

    def kind(self, eqn: Equation) -> Kind:
        if not eqn.outs[0].rows:
            return Kind.FOLD if self._cut(eqn) is not None else Kind.WHOLE
        if self._first(eqn) is not None:
            return Kind.BLOCK
        numbers = eqn.params["dimension_numbers"]
        axes, batches = {i: u for u, i in self._windows(eqn).items()}, self._batches(eqn)
        if set(eqn.outs[0].rows) <= batches.keys():
            return Kind.BLOCK
        for i in eqn.outs[0].rows:
            full = i in axes and eqn.ins[2].at[axes[i]] == eqn.ins[0].at[i]
            if not full or (i in numbers.scatter_dims_to_operand_dims and eqn.params["mode"] == _DROPS):
                return Kind.WHOLE
        return Kind.BLOCK if not eqn.ins[1].rows else Kind.WHOLE

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        if self.kind(eqn) is not Kind.BLOCK:
            return everything_of(eqn)
        first, windows = self._first(eqn), self._windows(eqn)
        update = list(whole(eqn.ins[2]))
        for axis, i in windows.items():
            part = request[i]
            if part is not None:
                size = eqn.ins[2].at[axis]
                update[axis] = within(part.moved(-int(first[i])), size) if first is not None else part
        index = list(whole(eqn.ins[1]))
        for i, (j, axis) in self._batches(eqn).items():
            index[j] = update[axis] = request[i]
        return [request, tuple(index), tuple(update)]

    def _batches(self, eqn: Equation) -> dict[int, tuple[int, int]]:
        """Axes of the operand that are a batch, with those of the indices and of the updates."""
        numbers, windows = eqn.params["dimension_numbers"], self._windows(eqn)
        scattered = [axis for axis in range(len(eqn.ins[2].at)) if axis not in windows]
        pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
        return {i: (j, scattered[j]) for i, j in pairs}

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:
        first = self._first(eqn)
        if self.kind(eqn) is not Kind.BLOCK or first is None:
            return bound(eqn, ins)
        operand, _, update = ins
        inside = jnp.ones((), bool)
        starts = [0 if request[i] is not None else int(f) for i, f in enumerate(first)]
        for axis, part in enumerate(request):
            if part is not None:
                size, moved = eqn.ins[2].at[axis], part.moved(-int(first[axis]))
                update = spread(update, axis, moved, size, jnp.zeros((), update.dtype), at)
                inside = inside & _inside(moved, size, axis, operand.ndim, at)
        ends = [a + b for a, b in zip(starts, update.shape, strict=True)]
        old = lax.slice(operand, starts, ends)
        new = jnp.where(inside, _COMBINE[eqn.name](old, update), old)
        return [lax.dynamic_update_slice(operand, new, starts)]

    def _cut(self, eqn: Equation) -> tuple[int, int] | None:
        """The axis of the updates that is cut, and that of the indices."""
        windows = self._windows(eqn)
        scattered = [axis for axis in range(len(eqn.ins[2].at)) if axis not in windows]
        return next(((axis, j) for j, axis in enumerate(scattered) if axis in eqn.ins[2].rows), None)

    def fold(self, eqn: Equation) -> Folding:
        operand, indices, updates = eqn.ins
        axis, of_index = self._cut(eqn) or (0, 0)

        def wants(part: Range) -> list[Want | None]:
            index = tuple(part if i == of_index else p for i, p in enumerate(whole(indices)))
            return [None, index, tuple(part if i == axis else p for i, p in enumerate(whole(updates)))]

        def step(total: Any, value: Any) -> Any:
            return bound(eqn, [total, value[0], value[1].astype(total.dtype)])[0]

        fold = Fold(lambda like: jnp.zeros(operand.at, operand.dtype), step)  # noqa: ARG005
        return Folding(
            updates.at[axis],
            updates.shape[axis],
            wants,
            lambda ins, part, at, own: (ins[1], ins[2]),  # noqa: ARG005
            fold,
            start=lambda free: free[0],
            ordered=eqn.name == "scatter",
        )


_COMBINE: dict[str, Any] = {
    "scatter": lambda old, new: new,  # noqa: ARG005
    "scatter-add": jnp.add,
    "scatter_add": jnp.add,
    "scatter-sub": jnp.subtract,
    "scatter_sub": jnp.subtract,
    "scatter_mul": jnp.multiply,
    "scatter-mul": jnp.multiply,
    "scatter_min": jnp.minimum,
    "scatter-min": jnp.minimum,
    "scatter_max": jnp.maximum,
    "scatter-max": jnp.maximum,
}
RULES: dict[str, Rule] = {
    "dynamic_slice": DynamicSlice(),
    "dynamic_update_slice": DynamicUpdate(),
    "gather": Gather(),
    **dict.fromkeys(_COMBINE, Scatter()),
}
