"""The plan of a program: in which passes over the rows its values are computed. Not here: how a pass runs.

A pass goes over the rows once, chunk by chunk. A value that a chunk cannot have by itself, such as a sum over all
rows, is ready after the pass that computes it; whatever needs it comes in a later pass. Values without rows are
computed between the passes, once.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import block_shape
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.inside import NAME as LOOP
from erythroxy_tx.program.passes import Carry
from erythroxy_tx.program.passes import Fold
from erythroxy_tx.program.passes import Grid
from erythroxy_tx.program.passes import Pass
from erythroxy_tx.program.passes import Store
from erythroxy_tx.program.passes import Task
from erythroxy_tx.program.passes import wanted
from erythroxy_tx.program.rows import Needs
from erythroxy_tx.program.rows import Reach
from erythroxy_tx.program.rows import Search
from erythroxy_tx.program.rows import Step
from erythroxy_tx.program.rows import kinds_of
from erythroxy_tx.program.rows import live
from erythroxy_tx.program.rules import rule_of
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import mixing


@dataclasses.dataclass(eq=False)
class Plan:
    """`before[p]` is computed once before pass p, what is left after the last one in `before[-1]`. The last pass
    stores the rows of `yielded`, and everything else is there before it.
    """

    program: Program
    size: int
    kinds: dict[Equation, Kind]
    kept: set[Value]
    passes: list[Pass]
    before: list[list[Step]]
    carries: dict[Equation, Carry]
    yielded: tuple[Value, ...] = ()
    _needs: dict[tuple[Pass, Range], Needs] = dataclasses.field(default_factory=dict)

    def needs(self, one: Pass, chunk: Range) -> Needs:
        """What a chunk of a pass computes."""
        if (one, chunk) not in self._needs:
            written = {t.value for t in one.tasks if isinstance(t, Store)}
            search = Search(self.kept - written, self.kinds, chunk, lambda eqn: self.carries[eqn].grid == one.grid)
            self._needs[one, chunk] = search.needs(one.targets(chunk))
        return self._needs[one, chunk]

    @property
    def stored(self) -> list[Value]:
        """Values with rows that are written down on the way, results not among them."""
        results = set(self.program.outs)
        return [t.value for p in self.passes for t in p.tasks if isinstance(t, Store) and t.value not in results]

    @functools.cached_property
    def last_read(self) -> dict[Value, int]:
        """The last pass that needs each stored value; one past the last for what is needed after it."""
        found = {}
        stored = set(self.stored)
        for index, steps in enumerate(self.before):
            reads = [v for step in steps for v in step.eqn.ins]
            if index < len(self.passes):
                one = self.passes[index]
                reads += [*self.needs(one, one.grid.chunk).reads, *(t.value for t in one.tasks if isinstance(t, Store))]
            found.update({v: index for v in reads if v in stored})
        return found


def plan_of(
    program: Program, size: int, stores: Iterable[Value] = (), *, equal: bool = True, yielded: Iterable[Value] = ()
) -> Plan:
    """Order a program into passes with chunks of `size` rows.

    **Arguments:**

    - `stores`: values that are written down rather than computed again.
    - `equal`: whether chunks are made equally long, at most `size`; otherwise they are of `size` rows, and the last one
        overlaps wherever it may, so that what a chunk computes is the same for any number of rows.
    - `yielded`: results whose rows are handed out from the first to the last, once all others are there.

    **Raises:** `RowMixingError` if an equation cannot be run in chunks.
    """
    used = live(program)
    kinds = kinds_of(used)
    stored = dict.fromkeys(stores)
    while True:
        planner = _Planner(program, size, kinds, stored, equal=equal, yielded=tuple(yielded))
        more = planner.run(used)
        if not more:
            return planner.plan()
        stored |= more


class _Planner:
    def __init__(
        self,
        program: Program,
        size: int,
        kinds: dict[Equation, Kind],
        stored: dict[Value, None],
        *,
        equal: bool,
        yielded: tuple[Value, ...],
    ):
        self.program, self.size, self.kinds, self.equal = program, size, kinds, equal
        results = {v: None for v in program.outs if v.rows and v.maker is not None}
        whole = {v for eqn, kind in kinds.items() if kind is Kind.WHOLE for v in eqn.outs}
        self.stored = {v: None for v in {**stored, **results} if v not in whole}
        self.kept = {*program.ins, *whole, *stored}
        self.yielded = tuple(v for v in yielded if v not in self.kept)
        self.ready: dict[Value, int] = {}
        self.passes: list[Pass] = []
        self.small: list[tuple[int, Step]] = []
        self.carries: dict[Equation, Carry] = {}
        self.home: dict[Equation, int] = {}  # the pass of each carry
        self._searches: dict[tuple[Grid, Range, frozenset[Value]], Search] = {}

    def run(self, equations: list[Equation]) -> dict[Value, None]:
        """Place everything; or tell what has to be stored, and nothing is placed."""
        more: dict[Value, None] = {}
        stores = {v.maker: [s for s in self.stored if s.maker is v.maker] for v in self.stored}
        last = []
        for eqn in equations:
            kind = self.kinds.get(eqn)
            if kind is Kind.FOLD:
                self._place(Fold(eqn, rule_of(eqn).fold(eqn)), more)
            elif kind is Kind.CARRY:
                how = rule_of(eqn).carry(eqn)
                self.carries[eqn] = Carry(eqn, how, self._grid_of(how.size, how.dim))
                self._place(self.carries[eqn], more)
            elif eqn.name == LOOP:
                self.ready |= dict.fromkeys(eqn.outs, len(self.passes) + 1)
                self.passes.append(Pass(Grid(0, 1), loop=eqn))
            elif kind is not Kind.BLOCK or not any(v.rows for v in eqn.outs):
                self._place_small(eqn, kind, more)
            for value in stores.get(eqn, ()):
                if value in self.kept:
                    self._place(Store(value), more)
                else:
                    last.append(value)
        for value in last:
            if value not in self.yielded:
                self._place(Store(value), more)
        others = max((self.ready.get(v, 0) for v in self.program.outs if v not in self.yielded), default=0)
        at = max([others, *(self._first(Store(v)) for v in self.yielded)])
        for value in self.yielded:
            self._place(Store(value), more, at)
        return more

    def _place_small(self, eqn: Equation, kind: Kind | None, more: dict[Value, None]) -> None:
        if kind is Kind.BLOCK:
            step = Step(eqn, rule_of(eqn).request(eqn, 0, (None,) * len(eqn.outs[0].at)))
            found = Search(self.kept, self.kinds, None).needs(wanted(eqn, step.wants()))
            more |= found.long
            steps, reads = [*found.steps, step], list(found.reads)
        else:
            steps, reads = [Step(eqn, None)], [v for v in eqn.ins if v.known is None]
            more |= {v: None for v in reads if v.rows and v not in self.kept}
        at = max((self.ready.get(v, 0) for v in reads), default=0)
        if not self.equal:  # rows that are read outside, at a place that has to be there before
            asked = {start for step in steps for start in _asked(step) if start.known is None}
            at = max(at, *(self.ready.get(v, 0) + 1 for v in asked - {*self.program.ins}), 0)
            if at > len(self.passes):
                self.passes.append(Pass(Grid(0, 1)))
        self.small += [(at, step) for step in steps]
        self.ready |= dict.fromkeys(eqn.outs, at)

    def _first(self, task: Store) -> int:
        """The first pass in which a value can be stored."""
        found = self._reach(task, self._grid(task), frozenset([task.value]))
        return self._earliest(task, found, self._direction(task))

    def _place(self, task: Task, more: dict[Value, None], at: int = 0) -> None:
        """In a pass from `at` on."""
        grid, reverse = self._grid(task), self._direction(task)
        own = frozenset([task.value]) if isinstance(task, Store) else frozenset()
        found = self._reach(task, grid, own)
        more |= dict.fromkeys(found.long)
        earliest = max(at, self._earliest(task, found, reverse))
        for index, one in enumerate(self.passes):
            if one.grid != grid or (None not in (reverse, one.reverse) and reverse != one.reverse):
                continue
            if index >= earliest:
                break
            written = frozenset(t.value for t in one.tasks if isinstance(t, Store))
            if written & found.stored:  # what is written down in this pass, its chunk has anyway
                again = self._reach(task, grid, own | written)
                if not again.long and max(at, self._earliest(task, again, reverse)) <= index:
                    found = again
                    break
        else:
            index, one = len(self.passes), Pass(grid)
            self.passes.append(one)
        one.reverse = reverse if one.reverse is None else one.reverse
        one.tasks.append(task)
        for eqn in found.carries:
            self.carries[eqn].saved |= self.home[eqn] != index
        self._made(task, index)

    def _reach(self, task: Task, grid: Grid, unkept: frozenset[Value]) -> Reach:
        found, unkept = Reach(), unkept & self.kept
        for chunk in (grid.chunk, grid.last):
            if chunk.extent and grid.size:
                key = grid, chunk, unkept
                if key not in self._searches:
                    beside = functools.partial(self._beside, grid)
                    self._searches[key] = Search(self.kept - unkept, self.kinds, chunk, beside)
                found = found.joined(self._searches[key].reach(task.targets(chunk), self.ready))
        return found

    def _beside(self, grid: Grid, eqn: Equation) -> bool:
        return self.carries[eqn].grid == grid

    def _earliest(self, task: Task, found: Reach, reverse: bool | None) -> int:
        """The first pass in which everything that a task needs is there."""
        free = [] if isinstance(task, Store) else [v for v in task.eqn.ins if not v.rows]
        at = max((self.ready.get(v, 0) for v in free), default=0)
        at = max(at, found.ready)
        for eqn in found.carries:
            home = self.home[eqn]
            together = reverse in (None, self.passes[home].reverse)
            at = max(at, home if together else home + 1)
        return at

    def _made(self, task: Task, index: int) -> None:
        """Note what is there after a pass."""
        made = [task.value] if isinstance(task, Store) else task.eqn.outs
        if isinstance(task, Carry):
            self.home[task.eqn] = index
            made = [v for v, axis in zip(task.eqn.outs, task.how.axes, strict=True) if axis is None]
        self.ready |= dict.fromkeys(made, index + 1)

    def _direction(self, task: Task) -> bool | None:
        if isinstance(task, Carry):
            return task.how.reverse
        ordered = task.how.ordered if isinstance(task, Fold) else task.value in self.yielded
        return False if ordered else None

    def _grid(self, task: Task) -> Grid:
        if isinstance(task, Store):
            if len(task.value.rows) > 1 and task.value not in self.program.outs:
                raise mixing(task.eqn, "whose result grows as n²", "reduce it along one of the two axes of rows")
            return self._grid_of(task.value.at[task.axis], task.value.shape[task.axis])
        return task.grid if isinstance(task, Carry) else self._grid_of(task.how.size, task.how.dim)

    def _grid_of(self, size: int, dim: Any) -> Grid:
        rows = self.program.rows
        slope = (self.program.symbol.at(dim, 2 * rows) - self.program.symbol.at(dim, rows)) / rows
        most = max(1, math.floor(self.size * slope)) if slope > 0 else max(size, 1)
        return Grid(size, max(1, -(-size // -(-size // most))) if size and self.equal else most)

    def plan(self) -> Plan:
        for grid in dict.fromkeys(one.grid for one in self.passes):
            self._overlap(grid, [one for one in self.passes if one.grid == grid])
        return self._ordered()

    def _overlap(self, grid: Grid, passes: list[Pass]) -> None:
        """Let the last chunk of passes overlap where it may; where carries run, in all of them or in none."""
        overlapping = dataclasses.replace(grid, overlaps=True)
        able, carrying = list[Pass](), list[Pass]()
        for one in passes if grid.size >= grid.step and (grid.tail or not self.equal) else ():
            aligned, found = (self._needed(one, chunk) for chunk in (grid.chunk, overlapping.chunk))
            if aligned.carries or any(isinstance(t, Carry) for t in one.tasks):
                carrying.append(one)
            shares = all(t.how.shares for t in one.tasks if isinstance(t, Fold))
            if shares and not found.long and _sizes(found) == _sizes(aligned) and found.carries == aligned.carries:
                able.append(one)
        if self.equal or not set(carrying) <= set(able):
            able = [one for one in able if one not in carrying]
        elif carrying:
            for task in self.carries.values():
                task.grid = overlapping if task.grid == grid else task.grid
        for one in able:
            one.grid = overlapping

    def _needed(self, one: Pass, chunk: Range) -> Needs:
        kept = self.kept - {t.value for t in one.tasks if isinstance(t, Store)}
        return Search(kept, self.kinds, chunk, functools.partial(self._beside, one.grid)).needs(one.targets(chunk))

    def _ordered(self) -> Plan:
        before: list[list[Step]] = [[] for _ in range(len(self.passes) + 1)]
        for at, step in self.small:
            before[at].append(step)
        return Plan(self.program, self.size, self.kinds, self.kept, self.passes, before, self.carries, self.yielded)


def _asked(step: Step) -> Iterator[Value]:
    """The numbers that say where the rows begin that a step reads."""
    for want in step.wants() if step.request is not None else ():
        yield from (start for piece in want or () if piece and (start := piece.start.reads()) is not None)


def _sizes(needs: Needs) -> list[tuple[int, ...]]:
    """How much of each value is computed, step by step."""
    return [
        block_shape(v.at, part)
        for step in needs.steps
        for v, part in zip(step.eqn.outs, step.given(), strict=True)
        if part is not None
    ]
