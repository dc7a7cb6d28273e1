"""A plan run from the host: each chunk of a pass is a call of one compiled program, on rows that come from outside and
go outside, so that a few chunks of them are on the device. Not here: where they come from and go (`drivers/`).

What is compiled takes the number of rows as an argument: rows of another number, with the same answers about it, run
what was compiled before.
"""

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import block_shape
from erythroxy_tx.program.chunk_run import ChunkRun
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.evaluate import read
from erythroxy_tx.program.evaluate import run_small
from erythroxy_tx.program.evaluate import run_whole
from erythroxy_tx.program.folds import Fold as Adding
from erythroxy_tx.program.host_limits import check
from erythroxy_tx.program.host_limits import read_again
from erythroxy_tx.program.host_limits import small_reads
from erythroxy_tx.program.host_program import Compiled
from erythroxy_tx.program.inside import inside_of
from erythroxy_tx.program.inside import with_loops_from_host
from erythroxy_tx.program.passes import Carry
from erythroxy_tx.program.passes import Fold
from erythroxy_tx.program.passes import Pass
from erythroxy_tx.program.passes import Store
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.plan import plan_of
from erythroxy_tx.program.rows import Step
from erythroxy_tx.program.turns import HostLoop
from erythroxy_tx.program.turns import type_of
from erythroxy_tx.program.words import told

Leaves = list[Any]
Part = tuple[Value, Want]
_MANY = 2**20  # chunks: sums are kept as for many, whatever their number


@dataclasses.dataclass(frozen=True)
class Chunk:
    """One chunk that is to run: its rows of each part of an input, and where they begin in it; the first `again` of its
    rows are those of another chunk.
    """

    index: int
    first: int
    again: int
    rows: Range
    parts: tuple[Part, ...]
    starts: tuple[int, ...]


class HostRun:
    """The passes of a plan as compiled programs, for one number of rows.

    **Arguments:**

    - `compiled`: programs by key, shared with runs for other numbers of rows.

    **Raises:** `RowMixingError` if a chunk needs all rows of anything.
    """

    def __init__(self, plan: Plan, compiled: dict[Hashable, Any]):
        self.plan, self.passes, self._compiled = plan, plan.passes, compiled
        self.read_again = read_again(plan)
        self._inputs = {*(v for v in plan.program.ins if v.rows), *self.read_again}
        self._numbers = numbers_of(plan)
        self._programs: dict[Hashable, Compiled] = {}
        self._parts: dict[tuple[Pass, Range], tuple[Part, ...]] = {}
        self._chunk_runs = [ChunkRun(plan, one, {}, _MANY) for one in plan.passes]
        self.loops = {
            one.loop: HostLoop(one.loop, [host_run(each.program, plan.size, compiled) for each in inside_of(one.loop)])
            for one in plan.passes
            if one.loop is not None
        }
        self._carried: dict[Any, Any] = {}  # the types of carries that are taken up again
        self._names: dict[int, list[Value]] = {}  # what is there after each turn
        check(self)

    @property
    def program(self) -> Program:
        return self.plan.program

    def told(self) -> list[str]:
        """What it does, in words."""
        return told(self.plan)

    def chunks(self, one: Pass, there: dict[Any, Any]) -> Iterator[Chunk]:
        """The chunks of a pass in the order in which they run."""
        grid = one.grid
        looped = [(i, min(i * grid.step, grid.size - grid.step), grid.chunk) for i in range(grid.looped)]
        whole = looped + ([(grid.looped, grid.looped * grid.step, grid.last)] if grid.tail else [])
        for index, first, rows in reversed(whole) if one.reverse else whole:
            yield self._chunk(one, rows, there, index, first, index * grid.step)

    def chunks_of(self, one: Pass, there: dict[Any, Any], begin: int, count: int) -> Iterator[Chunk]:
        """The chunks of `count` rows of a pass, which may be any."""
        step = one.grid.step
        for index in range(-(-count // step)):
            own = begin + index * step
            yield self._chunk(one, one.grid.chunk, there, index, min(own, begin + count - step), own)

    def _chunk(self, one: Pass, rows: Range, there: dict[Any, Any], index: int, first: int, own: int) -> Chunk:
        parts = self.parts(one, rows)
        starts = tuple(_begin(want, first, there) for _, want in parts)
        return Chunk(index, first, own - first, rows, parts, starts)

    def parts(self, one: Pass, rows: Range) -> tuple[Part, ...]:
        """The parts of inputs that a chunk of a pass reads."""
        key = one, rows
        if key not in self._parts:
            self._parts[key] = self._found_parts(one, rows)
        return self._parts[key]

    def _found_parts(self, one: Pass, rows: Range) -> tuple[Part, ...]:
        found: dict[Part, None] = {}
        for item in ChunkRun(self.plan, one, {}).order[rows]:
            wants = item.wants() if isinstance(item, Step) else item.how.wants(rows)
            found |= dict.fromkeys((v, w) for v, w in zip(item.eqn.ins, wants, strict=True) if w is not None)
        for task in one.tasks:
            found |= dict.fromkeys(task.targets(rows))
        written = {task.value for task in one.tasks if isinstance(task, Store)}
        return tuple(part for part in found if part[0] in self._inputs and part[0] not in written)

    def folds(self, index: int) -> tuple[list[Fold], list[Adding]]:
        """The reductions of a pass, and how each adds up."""
        run = self._chunk_runs[index]
        return run.folds, run.hows

    def stores(self, index: int) -> list[Store]:
        """The values with rows that a pass gives."""
        return [task for task in self.passes[index].tasks if isinstance(task, Store)]

    def saved(self, index: int, kept: Any) -> list[tuple[Carry, Any]]:
        """The carries of a pass that a later one takes up again, as they are now."""
        run = self._chunk_runs[index]
        return list(zip(run.saved, run.saved_of(kept), strict=True))

    def taken_up(self, index: int, chunk: Chunk) -> list[Any]:
        """The carries of an earlier pass that a chunk takes up again."""
        return self._chunk_runs[index].taken_up(chunk.rows)

    def small_parts(self, index: int) -> tuple[Part, ...]:
        """The parts of inputs that are read between two passes."""
        reads = small_reads(self.plan.before[index])
        return tuple(dict.fromkeys(part for part in reads if part[0] in self._inputs))

    def turn(self, index: int, there: dict[Any, Any], kept: Any, parts: dict[Part, Any]) -> tuple[dict[Any, Any], Any]:
        """End the pass before `index`, compute what has no rows, and begin the next.

        **Returns:** what is there now, and what the next pass keeps before its first chunk.
        """
        run = self._turn(index, tuple(there), tuple(parts))
        after, kept = run(list(there.values()), kept, self._values(), list(parts.values()))
        return dict(zip(self._names[index], after, strict=True)), kept

    def step(
        self, index: int, chunk: Chunk, there: dict[Any, Any], kept: Any, blocks: Leaves, begun: Leaves
    ) -> tuple[Any, Leaves, Any]:
        """Run one chunk.

        **Arguments:** `begun`: where the carries that are taken up again began in it.

        **Returns:** what the pass keeps now, its rows of each stored value, and a number that is ready when it has run.
        """
        run = self._step(index, chunk.rows, tuple(there))
        numbers = np.int32(chunk.first), np.int32(chunk.again)
        found: tuple[Any, Leaves, Any] = run(list(there.values()), kept, self._values(), blocks, begun, *numbers)
        return found

    def _turn(self, index: int, names: tuple[Any, ...], parts: tuple[Part, ...]) -> Compiled:
        def run(values: Leaves, kept: Any, numbers: Leaves, blocks: Leaves) -> Any:
            env = self._env(names, values, numbers, dict(zip(parts, blocks, strict=True)))
            if index:
                ChunkRun(self.plan, self.passes[index - 1], env, _MANY).end(kept)
            for step in self.plan.before[index]:
                run_small(step, env, run_whole)
            self._names[index] = [v for v in self._needed(index) if v in env and v not in self._numbers]
            started = ChunkRun(self.plan, self.passes[index], env, _MANY).begin() if index < len(self.passes) else None
            return [jnp.asarray(env[v]) for v in self._names[index]], started

        return self._once(("turn", index), lambda: Compiled(f"pass{index}_turn", run, self._compiled))

    def _step(self, index: int, rows: Range, names: tuple[Any, ...]) -> Compiled:
        one = self.passes[index]

        def run(
            values: Leaves, kept: Any, numbers: Leaves, blocks: Leaves, begun: Leaves, first: Any, again: Any
        ) -> Any:
            env = self._env(names, values, numbers, dict(zip(self.parts(one, rows), blocks, strict=True)))
            chunks = ChunkRun(self.plan, one, env, _MANY)
            taken_up = dict(zip(chunks.taken_up(rows), begun, strict=True))
            kept, stored = chunks.step(kept, rows, first, taken_up, again if one.grid.overlaps else None)
            return kept, stored, again + 1

        build = lambda: Compiled(f"pass{index}_step", run, self._compiled, donates=True)  # noqa: E731
        return self._once(("step", index, rows), build)

    def _once(self, what: Hashable, build: Callable[[], Compiled]) -> Compiled:
        if what not in self._programs:
            self._programs[what] = build()
        return self._programs[what]

    def most_bytes(self, there: dict[Any, Any]) -> ProgramBytes:
        """What the program takes that takes most, from the types of what has no rows. Nothing is run."""
        found, kept, names = list[ProgramBytes](), (), list(there)
        values = list(map(struct_of, there.values()))
        for index in range(len(self.passes) + 1):
            parts = self.small_parts(index)
            given = values, kept, self._values(), [_struct(v, want) for v, want in parts]
            run = self._turn(index, tuple(names), parts)
            found.append(run.bytes(*given))
            values, kept = run.shape(*given)
            names = list(self._names[index])
            one = self.passes[index] if index < len(self.passes) else None
            if one is not None and one.loop is not None:
                found += self.loops[one.loop].most_bytes()
                names, values = [*names, *one.loop.outs], [*values, *map(type_of, one.loop.outs)]
            elif one is not None and one.tasks:
                grid = one.grid
                rows = grid.chunk if grid.looped else grid.last
                blocks = [_struct(v, want) for v, want in self.parts(one, rows)]
                begun = [self._carried[eqn] for eqn in self._chunk_runs[index].taken_up(rows)]
                step = self._step(index, rows, tuple(names))
                if rows.extent:
                    found.append(step.bytes(values, kept, self._values(), blocks, begun, np.int32(0), np.int32(0)))
                self._carried |= {task.eqn: carry for task, carry in self.saved(index, kept)}
        return max(found, key=lambda each: each.total)

    def chunk_bytes(self) -> int:
        """The rows of a chunk, of the pass that reads most."""
        chunks = [(one, one.grid.chunk if one.grid.looped else one.grid.last) for one in self.passes]
        structs = [[_struct(v, want) for v, want in self.parts(one, rows)] for one, rows in chunks if rows.extent]
        own = [sum(math.prod(s.shape) * s.dtype.itemsize for s in each) for each in structs]
        return max([*own, *(loop.chunk_bytes() for loop in self.loops.values())], default=0)

    def _env(self, names: tuple, values: Leaves, numbers: Leaves, parts: dict[Part, Any]) -> dict[Any, Any]:
        return dict(zip(names, values, strict=True)) | dict(zip(self._numbers, numbers, strict=True)) | parts

    def _values(self) -> Leaves:
        return [v.known for v in self._numbers]

    def _needed(self, index: int) -> tuple[Value, ...]:
        """Values without rows that something after turn `index` reads."""
        found: dict[Value, None] = {}
        for one in self.passes[index:]:
            for rows in (one.grid.chunk, one.grid.last):
                if rows.extent and one.grid.size:
                    found |= dict.fromkeys(self.plan.needs(one, rows).reads)
            found |= dict.fromkeys(v for task in one.tasks if not isinstance(task, Store) for v in task.eqn.ins)
            found |= dict.fromkeys(one.loop.ins if one.loop else ())
            found |= dict.fromkeys(v for eqn in self.plan.carries for v in eqn.ins)
        for steps in self.plan.before[index + 1 :]:
            found |= dict.fromkeys(v for step in steps for v in step.eqn.ins)
        found |= dict.fromkeys(self.plan.program.outs)
        return tuple(v for v in found if not v.rows)


def host_run(program: Program, size: int, compiled: dict[Hashable, Any], yielded: Collection[int] = ()) -> HostRun:
    """A program with rows, planned to be run from the host in chunks of `size` rows.

    **Arguments:** `yielded`: which of its results are handed out row by row.

    **Raises:** `RowMixingError` if a chunk needs all rows of anything.
    """
    program = with_loops_from_host(program)
    others = {v for i, v in enumerate(program.outs) if i not in yielded}
    live = dict.fromkeys(v for v in program.outs if v.maker and v.rows and v.known is None and v not in others)
    return HostRun(plan_of(program, size, equal=False, yielded=live), compiled)


def _struct(value: Value, want: Want) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(block_shape(value.at, want), value.dtype)


def numbers_of(plan: Plan) -> dict[Value, None]:
    """The known numbers of a program that follow from its number of rows."""
    values = [v for eqn in plan.program.equations for v in (*eqn.ins, *eqn.outs)] + plan.program.outs
    return dict.fromkeys(v for v in values if v.of_rows and v.known is not None)


def _begin(want: Want, first: int, there: dict[Any, Any]) -> int:
    """The first row of a part that is wanted."""
    start = next((piece.start for piece in want if piece is not None), Start())
    return int(start.value(first, lambda value: np.asarray(read(value, there))))
