"""What one chunk of a pass computes, and what a pass keeps between its chunks. Not here: the loop over the chunks, in
one graph (`stream.py`) or on the host (`host_run.py`).
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import block_shape
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.evaluate import Blocks
from erythroxy_tx.program.evaluate import read
from erythroxy_tx.program.folds import Fold as Adding
from erythroxy_tx.program.folds import in_many_steps
from erythroxy_tx.program.passes import Carry
from erythroxy_tx.program.passes import Fold
from erythroxy_tx.program.passes import Pass
from erythroxy_tx.program.passes import Store
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.rows import Step

Leaves = list[Any]
Kept = dict[str, Leaves]


class ChunkRun:
    """What a pass keeps between its chunks, and what a chunk does to it: `begin`, `step` for each chunk, `end`.

    A chunk has always as many rows. Those that an overlapping last chunk has a second time change nothing that is kept,
    whatever is in them; what `step` gives for them to be stored the caller drops.

    **Arguments:**

    - `there`: what is there as a whole; `end` adds what the pass computed.
    - `steps`: how many chunks there may be, by default those of the plan.
    - `ranges`: the rows of a chunk, for each length that chunks may have; by default those of the plan.
    """

    def __init__(
        self,
        plan: Plan,
        one: Pass,
        there: dict[Any, Any],
        steps: int | None = None,
        ranges: Sequence[Range] | None = None,
    ):
        self.plan, self.one, self.there = plan, one, there
        self.steps = one.grid.count if steps is None else steps
        self.folds = [t for t in one.tasks if isinstance(t, Fold)]
        self.carries = [t for t in one.tasks if isinstance(t, Carry)]
        self.stores = [t for t in one.tasks if isinstance(t, Store)]
        self.order: dict[Range, list[Step | Carry]] = {}
        for chunk in (one.grid.chunk, one.grid.last) if ranges is None else ranges:
            if chunk.extent and one.grid.size:
                found = plan.needs(one, chunk)
                carried = dict.fromkeys([*self.carries, *(plan.carries[eqn] for eqn in found.carries)])
                items: list[Step | Carry] = [*found.steps, *carried]
                self.order[chunk] = sorted(items, key=lambda item: item.eqn.index)

    @property
    def saved(self) -> list[Carry]:
        """The carries of which a later pass needs where each chunk began."""
        return [t for t in self.carries if t.saved]

    def saved_of(self, kept: Kept) -> Leaves:
        """What those are now."""
        return [carry for task, carry in zip(self.carries, kept["carries"], strict=True) if task.saved]

    def taken_up(self, chunk: Range) -> list[Equation]:
        """The carries of an earlier pass that a chunk runs again from where it began then."""
        own = set(self.carries)
        return [item.eqn for item in self.order[chunk] if isinstance(item, Carry) and item not in own]

    def begin(self) -> Kept:
        """What is kept before the first chunk."""
        return {
            "carries": [t.how.start(self._free(t)) for t in self.carries],
            "folds": [
                task.how.start(self._free(task)) if task.how.start is not None else how.start(value)
                for task, how, value in zip(self.folds, self.hows, self._shapes, strict=True)
            ],
        }

    def step(
        self, kept: Kept, chunk: Range, first: Any, begun: dict[Equation, Any], again: Any = None
    ) -> tuple[Kept, Leaves]:
        """What is kept after one more chunk, whose first row is `first`, and its rows of each value that is stored.

        **Arguments:**

        - `begun`: where the carries that are taken up again began in this chunk.
        - `again`: how many of its rows, from the first on, another chunk has and do not count here; None for none.
        """
        own = None if again is None else jnp.arange(chunk.extent) >= again
        blocks, carries = self._blocks(kept, chunk, first, begun, own)
        folds = []
        for task, how, old in zip(self.folds, self.hows, kept["folds"], strict=True):
            wants = zip(task.eqn.ins, task.how.wants(chunk), strict=True)
            ins = [None if want is None else blocks.part(v, want) for v, want in wants]
            folds.append(how.step(old, task.how.value(ins, chunk, blocks.at, own)))
        parts = [blocks.part(*task.targets(chunk)[0]) for task in self.stores]
        return {"carries": carries, "folds": folds}, parts

    def end(self, kept: Kept) -> None:
        """Hand over what the pass added up and carried."""
        for fold, how, folded in zip(self.folds, self.hows, kept["folds"], strict=True):
            self.there.update(zip(fold.eqn.outs, fold.how.finish(how.finish(folded)), strict=True))
        for task, carry in zip(self.carries, kept["carries"], strict=True):
            free = [v for v, axis in zip(task.eqn.outs, task.how.axes, strict=True) if axis is None]
            self.there.update(zip(free, task.how.final(carry), strict=True))

    @functools.cached_property
    def hows(self) -> list[Adding]:
        """How each fold adds up this many chunks."""
        return [
            in_many_steps(task.how.fold, value, self.steps)
            if isinstance(value, jax.ShapeDtypeStruct)
            else task.how.fold
            for task, value in zip(self.folds, self._shapes, strict=True)
        ]

    @functools.cached_property
    def _shapes(self) -> Leaves:
        """The shapes of what a chunk gives to each fold."""
        if not self.folds:
            return []
        chunk, at = next(iter(self.order)), Blocks(self.there, 0).at
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

    def _free(self, task: Fold | Carry) -> Leaves:
        return [None if v.rows else read(v, self.there) for v in task.eqn.ins]

    def _blocks(
        self, kept: Kept, chunk: Range, first: Any, begun: dict[Equation, Any], own: Any
    ) -> tuple[Blocks, Leaves]:
        """Everything that a chunk computes, and its carries after it."""
        blocks, carries = Blocks(self.there, first), dict(zip(self.carries, kept["carries"], strict=True))
        for item in self.order[chunk]:
            if isinstance(item, Step):
                blocks.run_item(item)
                continue
            ins = [
                read(v, self.there) if want is None else blocks.part(v, want)
                for v, want in zip(item.eqn.ins, item.how.wants(chunk), strict=True)
            ]
            before = carries[item] if item in carries else begun[item.eqn]
            after, outs = item.how.step(before, ins, chunk.extent, own)
            if item in carries:
                carries[item] = after
            rows = [(v, axis) for v, axis in zip(item.eqn.outs, item.how.axes, strict=True) if axis is not None]
            for (value, axis), out in zip(rows, outs, strict=True):
                blocks.parts[value, tuple(chunk if i == axis else None for i in range(len(value.at)))] = out
        return blocks, list(carries.values())
