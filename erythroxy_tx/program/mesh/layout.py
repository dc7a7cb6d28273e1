"""How the rows of a program lie on the devices of a mesh, and whether it can run there. Not here: how (`run.py`)."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.chunk_run import ChunkRun
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.host_run import Part
from erythroxy_tx.program.host_run import numbers_of
from erythroxy_tx.program.inside import inside_of
from erythroxy_tx.program.inside import with_loops_from_host
from erythroxy_tx.program.mesh.carries import check_carry
from erythroxy_tx.program.mesh.joins import way_of
from erythroxy_tx.program.mesh.shard import beside
from erythroxy_tx.program.mesh.shard import chunk_of
from erythroxy_tx.program.passes import Carry
from erythroxy_tx.program.passes import Fold
from erythroxy_tx.program.passes import Pass
from erythroxy_tx.program.passes import Store
from erythroxy_tx.program.plan import plan_of
from erythroxy_tx.program.rows import Step
from erythroxy_tx.program.rules.rule import empty
from erythroxy_tx.program.rules.rule import mixing
from erythroxy_tx.program.words import told

_FIX = "tx.chunked(lax.map, …) on one device"


class Layout:
    """`place` rows of each axis of rows on each of `devices` devices, along `axis` of a mesh, in chunks of `size`.

    **Raises:** `RowMixingError` for what would need rows of other devices in the middle of a pass.
    """

    def __init__(self, program: Program, axis: str, devices: int, place: int, size: int, *, chain: bool):
        self.plan = plan = plan_of(with_loops_from_host(program), min(size, place))
        self.axis, self.devices, self.place, self.size, self.chain = axis, devices, place, size, chain
        self.numbers = numbers_of(plan)
        self.sizes = np.asarray([one.grid.size for one in plan.passes], np.int32)
        self._step = -(-place // -(-place // min(size, place)))  # equally long
        for one in plan.passes:
            one.grid = dataclasses.replace(one.grid, overlaps=False)
        for task in plan.carries.values():
            task.grid = dataclasses.replace(task.grid, overlaps=False)
        self.loops = {
            one.loop: [Layout(each.program, axis, devices, place, size, chain=chain) for each in inside_of(one.loop)]
            for one in plan.passes
            if one.loop is not None
        }
        self._check()
        self.beside = self._beside()

    def ranges(self, one: Pass) -> list[Range]:
        """The lengths that chunks have: full ones, and those that the last rows of a device run in."""
        if not one.grid.size:
            return []
        if one.grid.size == self.place * self.devices:
            lengths = [self._step, self.place % self._step]
        else:
            lengths = [self._step, math.isqrt(self._step) if self._step > 16 else 0, 1]
        return [chunk_of(k, one.grid.size) for k in dict.fromkeys(lengths) if k]

    def parts(self, chunks: ChunkRun, rows: Range) -> tuple[Part, ...]:
        """The parts of inputs that a chunk reads."""
        found: dict[Part, None] = {}
        for item in chunks.order[rows]:
            wants = item.wants() if isinstance(item, Step) else item.how.wants(rows)
            found |= dict.fromkeys((v, w) for v, w in zip(item.eqn.ins, wants, strict=True) if w is not None)
        for task in chunks.one.tasks:
            found |= dict.fromkeys(task.targets(rows))
        inputs = {v for v in self.plan.program.ins if v.rows}
        return tuple(part for part in found if part[0] in inputs)

    def buffer(self, value: Value) -> Any:
        """Place for a device's rows of a result."""
        return empty(tuple(self.place if i in value.rows else size for i, size in enumerate(value.at)), value.dtype)

    def varied(self, tree: Any) -> Any:
        """Values as if they differed between devices, as what is computed from rows does."""
        leaves, structure = jax.tree.flatten(tree)
        return jax.tree.unflatten(structure, _compat.varied(leaves, [lax.axis_index(self.axis)]))

    def told(self) -> list[str]:
        """What runs, in words, and what the devices tell each other."""
        lines = told(self.plan)
        for index, one in enumerate(self.plan.passes):
            ways = [way_of(task) for task in one.tasks if isinstance(task, Fold)]
            ends = [
                f"one {name}"
                for name in ("sum", "max", "min")
                if name in ways or (name == "sum" and "in order" in ways)
            ]
            carried = [task for task in one.tasks if isinstance(task, Carry)]
            again = [f"{len(carried)} carries, whose rows are gone over once more before"] if carried else []
            if ends or again:
                lines.append(f"pass {index + 1} over the devices: {', '.join([*ends, *again])}")
        if far := max(self.beside.values(), default=0):
            lines.append(f"each device reads {far} rows of its neighbours")
        return lines

    # ------------------------------------------------------------------ what is refused

    def _check(self) -> None:
        for value in self.plan.stored:
            assert value.maker is not None
            raise mixing(value.maker, "of which every chunk needs all rows", _FIX)
        for step in (step for steps in self.plan.before for step in steps):
            if step.request is None and step.eqn in self.plan.kinds:
                raise mixing(step.eqn, "which needs all rows at once", _FIX)
            for value, want in pieces(step):
                if value.rows and (piece := want[value.rows[0]]) is not None and piece.long:
                    raise mixing(step.eqn, f"which needs all rows of {value} at once", _FIX)
        for one in self.plan.passes:
            for task in one.tasks:
                self._check_task(one, task)
        for eqn in self.plan.program.equations:
            if large := next((v for v in (*eqn.ins, *eqn.outs) if len(v.rows) > 1), None):
                raise mixing(eqn, f"with {large}, which has two axes of rows", _FIX)

    def _check_task(self, one: Pass, task: Fold | Carry | Store) -> None:
        size, rows = one.grid.size, self.plan.program.rows
        slope = self.plan.program.symbol.at(self._dim(task), 2 * rows) - self.plan.program.symbol.at(
            self._dim(task), rows
        )
        if slope != rows:
            raise mixing(task.eqn, "whose rows are not those of the input one by one", _FIX)
        if size > self.place * self.devices:
            raise mixing(
                task.eqn,
                f"with {size} rows, and there is place for {self.place} on each of {self.devices} devices",
                f"tx.Padded with place for {-(-size // self.devices) * self.devices} rows",
            )
        if isinstance(task, Fold):
            way_of(task)
        if isinstance(task, Carry):
            check_carry(task, chain=self.chain)

    def _dim(self, task: Fold | Carry | Store) -> Any:
        return task.value.shape[task.axis] if isinstance(task, Store) else task.how.dim

    def _beside(self) -> dict[Value, int]:
        """How many rows of its neighbours a device reads of each input."""
        found = {v: 0 for v in self.plan.program.ins if v.rows}
        for one in self.plan.passes:
            ranges = self.ranges(one)
            chunks = ChunkRun(self.plan, one, {}, None, ranges)
            for rows in ranges:
                for value, want in self.parts(chunks, rows):
                    apart = abs(value.at[value.rows[0]] - one.grid.size)
                    piece = want[value.rows[0]]
                    far = None if piece is None or piece.long else beside(piece, rows, apart)
                    if far is None:
                        raise mixing(one.tasks[0].eqn, f"for which a chunk needs rows of {value} of any device", _FIX)
                    found[value] = max(found[value], far)
        for far in found.values():
            if far > self.place:
                raise mixing(
                    self.plan.passes[0].tasks[0].eqn,
                    f"which reads {far} rows beside those of a device, and one has {self.place}",
                    "more rows, or fewer devices",
                )
        return found


def pieces(step: Step) -> list[Part]:
    """The parts that a step between two passes reads."""
    if step.request is None:
        return []
    return [(v, w) for v, w in zip(step.eqn.ins, step.wants(), strict=True) if w is not None]
