"""A plan run in one graph: each pass is a loop over the chunks, and what has no rows runs between the passes.
Not here: which passes there are (`plan.py`).
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import block_shape
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.evaluate import Blocks
from erythroxy_tx.program.evaluate import read
from erythroxy_tx.program.evaluate import run_whole
from erythroxy_tx.program.folds import in_many_steps
from erythroxy_tx.program.passes import Carry
from erythroxy_tx.program.passes import Fold
from erythroxy_tx.program.passes import Pass
from erythroxy_tx.program.passes import Store
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.plan import plan_of
from erythroxy_tx.program.rows import Step
from erythroxy_tx.program.rules.rule import without_rows

Leaves = list[Any]
State = dict[Any, Any]


def run(plan: Plan, args: Sequence[Any]) -> Leaves:
    """The outputs of a program, from its inputs, whole on both sides."""
    there: dict[Any, Any] = dict(zip(plan.program.ins, args, strict=True))
    for index, steps in enumerate(plan.before):
        for step in steps:
            _run_small(step, there, plan.size)
        if index < len(plan.passes):
            _loop(ChunkRun(plan, plan.passes[index], there, _dead(plan, index, there)))
    return [read(v, there) for v in plan.program.outs]


def _dead(plan: Plan, index: int, there: dict[Any, Any]) -> Leaves:
    """Stored arrays that no pass from here on reads: what this pass stores is written over them."""
    return [there.pop(value) for value, last in plan.last_read.items() if last < index and value in there]


def _run_small(step: Step, there: dict[Any, Any], size: int) -> None:
    blocks = Blocks(there, None, run=lambda program, args: run_program(program, args, size))
    blocks.parts = there
    blocks.run_item(step if step.request is not None else step.eqn)


def run_program(program: Program, args: Leaves, size: int) -> Leaves:
    """A program inside of another: as a stream where it has rows."""
    return run_whole(program, args) if without_rows(program) else run(plan_of(program, size), args)


def _loop(chunks: "ChunkRun") -> None:
    """Run the chunks of a pass in order, in a loop of the graph, and the shorter last one beside it."""
    grid, reverse = chunks.one.grid, chunks.one.reverse
    state = chunks.begin()

    def tail(state: State) -> State:
        return chunks.step(state, grid.last, grid.looped * grid.step, grid.looped) if grid.tail else state

    def body(i: Any, state: State) -> State:
        index = grid.looped - 1 - i if reverse else i
        first = jnp.minimum(index * grid.step, grid.size - grid.step) if grid.overlaps else index * grid.step
        return chunks.step(state, grid.chunk, first, index)

    state = tail(state) if reverse else state
    state = lax.fori_loop(0, grid.looped, body, state) if grid.looped else state
    chunks.end(state if reverse else tail(state))


class ChunkRun:
    """What a pass keeps between its chunks, and what a chunk does to it: `begin`, `step` for each chunk, `end`.

    **Arguments:**

    - `dead`: arrays that what is stored may be written over.
    - `there`: what is there as a whole; `end` adds what the pass computed, and where its chunks began under
        `("starts", equation)` for the carries that a later pass takes up again.
    """

    def __init__(self, plan: Plan, one: Pass, there: dict[Any, Any], dead: Leaves):
        self.plan, self.one, self.there, self.dead = plan, one, there, dead
        self.folds = [t for t in one.tasks if isinstance(t, Fold)]
        self.carries = [t for t in one.tasks if isinstance(t, Carry)]
        self.stores = [t for t in one.tasks if isinstance(t, Store)]
        self.order: dict[Range, list[Step | Carry]] = {}
        for chunk in (one.grid.chunk, one.grid.last):
            if chunk.extent and one.grid.size:
                found = plan.needs(one, chunk)
                carried = dict.fromkeys([*self.carries, *(plan.carries[eqn] for eqn in found.carries)])
                items: list[Step | Carry] = [*found.steps, *carried]
                self.order[chunk] = sorted(items, key=lambda item: item.eqn.index)
        self.hows = {t: t.how.fold for t in self.folds}

    def begin(self) -> State:
        """What is kept before the first chunk."""
        grid = self.one.grid
        state: State = {"carries": [t.how.start(self._free(t)) for t in self.carries]}
        state["starts"] = [
            jax.tree.map(lambda x: jnp.zeros((grid.count, *x.shape), x.dtype), carry)
            for task, carry in zip(self.carries, state["carries"], strict=True)
            if task.saved
        ]
        state["stores"] = [self._buffer(task.value) for task in self.stores]
        values = self._shapes()
        for task, value in zip(self.folds, values, strict=True):
            if isinstance(value, jax.ShapeDtypeStruct):
                self.hows[task] = in_many_steps(task.how.fold, value, grid.count)
        state["folds"] = [
            task.how.start(self._free(task)) if task.how.start is not None else self.hows[task].start(value)
            for task, value in zip(self.folds, values, strict=True)
        ]
        return state

    def step(self, state: State, chunk: Range, first: Any, index: Any) -> State:
        """What is kept after one more chunk, whose first row is `first`."""
        saved = [carry for task, carry in zip(self.carries, state["carries"], strict=True) if task.saved]
        starts = [
            jax.tree.map(lambda buffer, x: lax.dynamic_update_index_in_dim(buffer, x, index, 0), kept, carry)
            for kept, carry in zip(state["starts"], saved, strict=True)
        ]
        blocks, carries = self._blocks(state, chunk, first, index)
        grid = self.one.grid
        own = jnp.arange(grid.step) >= index * grid.step - first if grid.overlaps and self.folds else None
        folds = []
        for task, old in zip(self.folds, state["folds"], strict=True):
            wants = zip(task.eqn.ins, task.how.wants(chunk), strict=True)
            ins = [None if want is None else blocks.part(v, want) for v, want in wants]
            folds.append(self.hows[task].step(old, task.how.value(ins, chunk, blocks.at, own)))
        stores = [
            lax.dynamic_update_slice_in_dim(buffer, blocks.part(*task.targets(chunk)[0]), first, task.axis)
            for task, buffer in zip(self.stores, state["stores"], strict=True)
        ]
        return {"carries": carries, "starts": starts, "folds": folds, "stores": stores}

    def end(self, state: State) -> None:
        """Hand over what the pass computed."""
        for fold, folded in zip(self.folds, state["folds"], strict=True):
            outs = fold.how.finish(self.hows[fold].finish(folded))
            self.there.update(zip(fold.eqn.outs, outs, strict=True))
        for task, carry in zip(self.carries, state["carries"], strict=True):
            free = [v for v, axis in zip(task.eqn.outs, task.how.axes, strict=True) if axis is None]
            self.there.update(zip(free, task.how.final(carry), strict=True))
        self.there.update(zip([t.value for t in self.stores], state["stores"], strict=True))
        saved = [("starts", task.eqn) for task in self.carries if task.saved]
        self.there.update(zip(saved, state["starts"], strict=True))

    def _shapes(self) -> Leaves:
        """The shapes of what a chunk gives to each fold."""
        chunk, at = self.one.grid.chunk if self.one.grid.looped else self.one.grid.last, Blocks(self.there, 0).at
        parts = [
            [
                None if want is None else jax.ShapeDtypeStruct(block_shape(v.at, want), v.dtype)
                for v, want in zip(task.eqn.ins, task.how.wants(chunk), strict=True)
            ]
            for task in self.folds
        ]

        def values(parts: list[Leaves]) -> Leaves:
            return [task.how.value(ins, chunk, at, None) for task, ins in zip(self.folds, parts, strict=True)]

        found: Leaves = jax.eval_shape(values, parts)
        return found

    def _buffer(self, value: Value) -> Any:
        for i, array in enumerate(self.dead):
            if array.shape == value.at and array.dtype == value.dtype:
                return self.dead.pop(i)
        return _empty(value)

    def _free(self, task: Fold | Carry) -> Leaves:
        return [None if v.rows else read(v, self.there) for v in task.eqn.ins]

    def _blocks(self, state: State, chunk: Range, first: Any, index: Any) -> tuple[Blocks, Leaves]:
        """Everything that a chunk computes, and its carries after it."""
        blocks, carries = Blocks(self.there, first), dict(zip(self.carries, state["carries"], strict=True))
        for item in self.order[chunk]:
            if isinstance(item, Step):
                blocks.run_item(item)
                continue
            ins = [
                read(v, self.there) if want is None else blocks.part(v, want)
                for v, want in zip(item.eqn.ins, item.how.wants(chunk), strict=True)
            ]
            begun = carries.get(item)
            if item not in carries:
                begun = jax.tree.map(lambda x: x[index], self.there["starts", item.eqn])
            after, outs = item.how.step(begun, ins, chunk.extent)
            if item in carries:
                carries[item] = after
            rows = [(v, axis) for v, axis in zip(item.eqn.outs, item.how.axes, strict=True) if axis is not None]
            for (value, axis), out in zip(rows, outs, strict=True):
                blocks.parts[value, tuple(chunk if i == axis else None for i in range(len(value.at)))] = out
        return blocks, list(carries.values())


def _empty(value: Value) -> Any:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(value.at, value.dtype))
        return jax.random.wrap_key_data(jnp.zeros(data.shape, data.dtype), impl=_compat.key_impl(value.dtype))
    return jnp.zeros(value.at, value.dtype)
