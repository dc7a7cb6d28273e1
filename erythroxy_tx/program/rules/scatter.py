"""Scatter: updates that are put in places, or added to what is there. Not here: how many updates a chunk has."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import spread
from erythroxy_tx.program.blocks import whole
from erythroxy_tx.program.blocks import within
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.folds import Fold
from erythroxy_tx.program.rules.indexing import DROPS
from erythroxy_tx.program.rules.indexing import inside_of
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Folding
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import everything_of


class Scatter(Rule):
    """`out = x; out[index[i]] op= update[i]`: over the chunks of the updates where the result has no rows."""

    def _windows(self, eqn: Equation) -> dict[int, int]:
        """Axes of the updates that are windows, against those of the operand."""
        numbers = eqn.params["dimension_numbers"]
        dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        rest = [i for i in range(len(eqn.ins[0].at)) if i not in dropped]
        return dict(zip(numbers.update_window_dims, rest, strict=True))

    def _sizes(self, eqn: Equation) -> list[int]:
        """How much of each axis of the operand one update covers."""
        windows = {i: axis for axis, i in self._windows(eqn).items()}
        return [eqn.ins[2].at[windows[i]] if i in windows else 1 for i in range(len(eqn.ins[0].at))]

    def _first(self, eqn: Equation) -> np.ndarray | None:
        """Where the one window starts, if there is one, it is known, and it is inside."""
        known, numbers = eqn.ins[1].known, eqn.params["dimension_numbers"]
        applies = eqn.name == "scatter" and eqn.params["update_jaxpr"] is not None  # a function of its own
        if not isinstance(known, np.ndarray) or len(eqn.ins[1].at) != 1 or applies or eqn.outs[0].keys:
            return None
        starts, sizes = np.zeros(len(eqn.ins[0].at), np.int64), self._sizes(eqn)
        for axis, start in zip(numbers.scatter_dims_to_operand_dims, known, strict=True):
            if not 0 <= start <= eqn.ins[0].at[axis] - sizes[axis]:
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
            if not full or (i in numbers.scatter_dims_to_operand_dims and eqn.params["mode"] == DROPS):
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
        operand, update = ins[0], jnp.expand_dims(ins[2], eqn.params["dimension_numbers"].inserted_window_dims)
        inside, sizes = jnp.ones((), bool), self._sizes(eqn)
        starts = [0 if request[i] is not None else int(f) for i, f in enumerate(first)]
        for axis, part in enumerate(request):
            if part is not None:
                moved = part.moved(-int(first[axis]))
                update = spread(update, axis, moved, sizes[axis], jnp.zeros((), update.dtype), at)
                inside = inside & inside_of(moved, sizes[axis], axis, operand.ndim, at)
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

        def value(ins: list[Any], part: Range, at: At, own: Any) -> Any:  # noqa: ARG001
            if own is None:
                return ins[1], ins[2]
            counts = own.reshape([-1 if i == of_index else 1 for i in range(ins[1].ndim)])
            return self._only(eqn, ins[1], counts), ins[2], own

        def step(total: Any, value: Any) -> Any:
            index, update, *own = value
            changed: Any = {"mode": DROPS, "indices_are_sorted": False, "unique_indices": False} if own else {}
            return bound(eqn, [total, index, update.astype(total.dtype)], **changed)[0]

        fold = Fold(lambda like: jnp.zeros(operand.at, operand.dtype), step)  # noqa: ARG005
        return Folding(
            updates.at[axis],
            updates.shape[axis],
            wants,
            value,
            fold,
            start=lambda free: free[0],
            ordered=eqn.name == "scatter",
            shares=bool(eqn.params["dimension_numbers"].scatter_dims_to_operand_dims),
        )

    def _only(self, eqn: Equation, index: Any, counts: Any) -> Any:
        """The indices of the updates that count, and what is out of bounds in place of the others."""
        sizes = self._sizes(eqn)
        index = index.astype(jnp.promote_types(index.dtype, jnp.int32)) if index.dtype.itemsize < 4 else index
        mapped, operand = eqn.params["dimension_numbers"].scatter_dims_to_operand_dims, eqn.ins[0].at
        if eqn.params["mode"] == lax.GatherScatterMode.CLIP:
            limits = [operand[i] - sizes[i] for i in mapped]
            index = jnp.clip(index, 0, jnp.asarray(limits, index.dtype))
        return jnp.where(counts, index, jnp.asarray([operand[i] for i in mapped], index.dtype))


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
RULES: dict[str, Rule] = dict.fromkeys(_COMBINE, Scatter())
