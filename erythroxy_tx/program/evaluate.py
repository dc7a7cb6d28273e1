"""Equations run on parts of their values, or on all of them. Not here: which parts (`rows.py`)."""

from collections.abc import Callable
from typing import Any

from erythroxy_tx import _compat
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import cut
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.rows import Step
from erythroxy_tx.program.rules import RULES
from erythroxy_tx.program.rules import rule_of

Leaves = list[Any]
Run = Callable[[Program, Leaves], Leaves]


def run_whole(program: Program, args: Leaves) -> Leaves:
    """A program on all of its rows at once."""
    blocks = Blocks(dict(zip(program.ins, args, strict=True)), None, run=run_whole)
    for eqn in program.equations:
        blocks.run_item(eqn)
    return [read(v, blocks.there) for v in program.outs]


def read(value: Value, there: dict[Any, Any]) -> Any:
    """A value that is there as a whole, or known."""
    return there[value] if value.known is None or value in there else value.known


def run_small(step: Step, there: dict[Any, Any], run: Run) -> None:
    """Compute a step that has no rows to run over, between two passes. `run` runs a program that is inside of it."""
    blocks = Blocks(there, None, run=run)
    blocks.parts = there
    blocks.run_item(step if step.request is not None else step.eqn)


class Blocks:
    """What is there while a chunk runs: whole values, `parts` of others, and the first row of the chunk.

    **Arguments:**

    - `there`: whole values. `first`: the first row, None outside of a pass. `at`: how a start becomes a number, where
        it is told from outside. `run`: how a program inside an equation is run on whole values.
    """

    def __init__(
        self, there: dict[Any, Any], first: Any, at: Callable[[Start], Any] | None = None, run: Run = run_whole
    ):
        self.there, self.first, self._at, self._run = there, first, at, run
        self.parts: dict[Any, Any] = {}

    def at(self, start: Start) -> Any:
        if self._at is not None and start.reads() not in self.there:
            return self._at(start)
        return start.value(self.first, lambda value: read(value, self.there))

    def part(self, value: Value, want: Want) -> Any:
        """A part of a value, computed before or cut from the whole."""
        for place in (self.parts, self.there):
            if (value, want) in place:
                return place[value, want]
        return cut(read(value, self.there), want, self.at)

    def run_item(self, item: Step | Equation) -> None:
        """Compute one step, or one equation on whole values."""
        if isinstance(item, Equation):
            ins = [read(v, self.there) for v in item.ins]
            rule = RULES.get(item.name)
            outs = rule.whole(item, ins, self._run) if rule else _compat.bind(item.primitive, ins, item.params)
            self.there.update(zip(item.outs, outs, strict=True))
            return
        ins = [None if want is None else self.part(v, want) for v, want in zip(item.eqn.ins, item.wants(), strict=True)]
        outs = rule_of(item.eqn).block(item.eqn, item.request, ins, self.at)
        for value, part, out in zip(item.eqn.outs, item.given(), outs, strict=True):
            if part is not None:
                (self.parts if value.rows else self.there)[(value, part) if value.rows else value] = out
