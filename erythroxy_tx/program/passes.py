"""What a pass over the rows is made of: the chunks of its grid, and the tasks that they serve. Not here: which passes a
program takes (`plan.py`), nor how one runs (`stream.py`).
"""

import dataclasses
import math

from erythroxy_tx.program.blocks import Chunk
from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import whole
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.rules.rule import Carrying
from erythroxy_tx.program.rules.rule import Folding


@dataclasses.dataclass(frozen=True)
class Grid:
    """An axis of `size` rows in chunks of `step`; the last may be shorter, or overlap the one before."""

    size: int
    step: int
    overlaps: bool = False

    @property
    def looped(self) -> int:
        """How many chunks of full length there are."""
        return -(-self.size // self.step) if self.overlaps else self.size // self.step

    @property
    def tail(self) -> int:
        """The length of the shorter last chunk, 0 if there is none."""
        return 0 if self.overlaps else self.size % self.step

    @property
    def count(self) -> int:
        return self.looped + bool(self.tail)

    @property
    def chunk(self) -> Range:
        """The rows of a chunk of full length."""
        if self.overlaps:
            return Range(Start(0, 1, Chunk(self.size - self.step, math.gcd(self.size, self.step))), self.step)
        return Range(Start(0, 1, Chunk(max(self.looped - 1, 0) * self.step, self.step)), self.step)

    @property
    def last(self) -> Range:
        """The rows of the shorter last chunk."""
        return Range(Start(self.looped * self.step), self.tail)


@dataclasses.dataclass(eq=False)
class Fold:
    """A reduction over the rows of a grid."""

    eqn: Equation
    how: Folding

    def targets(self, chunk: Range) -> list[tuple[Value, Want]]:
        return wanted(self.eqn, self.how.wants(chunk))


@dataclasses.dataclass(eq=False)
class Carry:
    """What runs from chunk to chunk; `saved` if a later pass needs where each chunk began."""

    eqn: Equation
    how: Carrying
    grid: Grid
    saved: bool = False

    def targets(self, chunk: Range) -> list[tuple[Value, Want]]:
        return wanted(self.eqn, self.how.wants(chunk))


@dataclasses.dataclass(eq=False)
class Store:
    """A value with rows that is written down, for later passes or as a result."""

    value: Value

    @property
    def axis(self) -> int:
        return self.value.rows[0]

    @property
    def eqn(self) -> Equation:
        assert self.value.maker is not None
        return self.value.maker

    def targets(self, chunk: Range) -> list[tuple[Value, Want]]:
        parts = whole(self.value)
        return [(self.value, tuple(chunk if i == self.axis else part for i, part in enumerate(parts)))]


Task = Fold | Carry | Store


@dataclasses.dataclass(eq=False)
class Pass:
    """One way over the rows of a grid. In place of one stands a `loop` from the host, which has passes of its own; or
    nothing, where a place has to be known before rows are read there.
    """

    grid: Grid
    reverse: bool | None = None
    tasks: list[Task] = dataclasses.field(default_factory=list)
    loop: Equation | None = None

    def targets(self, chunk: Range) -> list[tuple[Value, Want]]:
        return [target for task in self.tasks for target in task.targets(chunk)]


def wanted(eqn: Equation, wants: list[Want | None]) -> list[tuple[Value, Want]]:
    """The inputs of an equation with the part of each that is needed."""
    return [(v, w) for v, w in zip(eqn.ins, wants, strict=True) if w is not None]
