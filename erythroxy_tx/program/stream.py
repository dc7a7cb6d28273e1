"""A plan run in one graph: each pass is a loop over the chunks, and what has no rows runs between the passes.
Not here: which passes there are (`plan.py`), nor what a chunk computes (`chunk_run.py`).
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx.program.chunk_run import ChunkRun
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.evaluate import read
from erythroxy_tx.program.evaluate import run_small
from erythroxy_tx.program.evaluate import run_whole
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.plan import plan_of
from erythroxy_tx.program.rules.rule import empty
from erythroxy_tx.program.rules.rule import without_rows

Leaves = list[Any]
State = dict[str, Any]


def run(plan: Plan, args: Sequence[Any]) -> Leaves:
    """The outputs of a program, from its inputs, whole on both sides."""
    there: dict[Any, Any] = dict(zip(plan.program.ins, args, strict=True))
    for index, steps in enumerate(plan.before):
        for step in steps:
            run_small(step, there, lambda program, args: run_program(program, args, plan.size))
        if index < len(plan.passes):
            _Loop(plan, index, there).run()
    return [read(v, there) for v in plan.program.outs]


def run_program(program: Program, args: Leaves, size: int) -> Leaves:
    """A program inside of another: as a stream where it has rows."""
    return run_whole(program, args) if without_rows(program) else run(plan_of(program, size), args)


class _Loop:
    """The chunks of a pass in a loop of the graph, and the shorter last one beside it.

    Beside what a pass keeps, the loop carries the arrays that rows are stored in, and where the chunks began of the
    carries that a later pass takes up again.
    """

    def __init__(self, plan: Plan, index: int, there: dict[Any, Any]):
        self.there, self.one = there, plan.passes[index]
        self.chunks = ChunkRun(plan, self.one, there)
        self.dead = [there.pop(value) for value, last in plan.last_read.items() if last < index and value in there]

    def run(self) -> None:
        """Run the pass, and hand over what it computed."""
        grid, reverse = self.one.grid, self.one.reverse
        state = self._begin()

        def tail(state: State) -> State:
            return self._step(state, grid.last, grid.looped * grid.step, grid.looped) if grid.tail else state

        def body(i: Any, state: State) -> State:
            index = grid.looped - 1 - i if reverse else i
            first = jnp.minimum(index * grid.step, grid.size - grid.step) if grid.overlaps else index * grid.step
            return self._step(state, grid.chunk, first, index)

        state = tail(state) if reverse else state
        state = lax.fori_loop(0, grid.looped, body, state) if grid.looped else state
        state = state if reverse else tail(state)
        self.chunks.end(state["kept"])
        self.there.update(zip([t.value for t in self.chunks.stores], state["stores"], strict=True))
        saved = [("starts", task.eqn) for task in self.chunks.saved]
        self.there.update(zip(saved, state["starts"], strict=True))

    def _begin(self) -> State:
        kept = self.chunks.begin()
        starts = [
            jax.tree.map(lambda x: jnp.zeros((self.one.grid.count, *x.shape), x.dtype), carry)
            for carry in self.chunks.saved_of(kept)
        ]
        return {"kept": kept, "starts": starts, "stores": [self._buffer(task.value) for task in self.chunks.stores]}

    def _step(self, state: State, chunk: Any, first: Any, index: Any) -> State:
        starts = [
            jax.tree.map(lambda buffer, x: lax.dynamic_update_index_in_dim(buffer, x, index, 0), buffers, carry)
            for buffers, carry in zip(state["starts"], self.chunks.saved_of(state["kept"]), strict=True)
        ]
        begun = {
            eqn: jax.tree.map(lambda x: x[index], self.there["starts", eqn]) for eqn in self.chunks.taken_up(chunk)
        }
        grid = self.one.grid
        again = index * grid.step - first if grid.overlaps else None
        kept, parts = self.chunks.step(state["kept"], chunk, first, begun, again)
        stores = [
            lax.dynamic_update_slice_in_dim(buffer, part, first, task.axis)
            for task, buffer, part in zip(self.chunks.stores, state["stores"], parts, strict=True)
        ]
        return {"kept": kept, "starts": starts, "stores": stores}

    def _buffer(self, value: Value) -> Any:
        for i, array in enumerate(self.dead):
            if array.shape == value.at and array.dtype == value.dtype:
                return self.dead.pop(i)
        return empty(value.at, value.dtype)
