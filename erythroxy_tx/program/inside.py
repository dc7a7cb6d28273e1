"""Loops and branches that reduce over rows inside, made ready to be run from the host: each program inside reads rows
that are inputs, and computes itself what it needs from them. Not here: how one is run (`turns.py`).
"""

import dataclasses

from erythroxy_tx import _compat
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import StandIn
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.rows import kinds_of
from erythroxy_tx.program.rows import live
from erythroxy_tx.program.rules import RULES
from erythroxy_tx.program.rules.along import Whole
from erythroxy_tx.program.rules.loops import programs_of
from erythroxy_tx.program.rules.rule import Kind

NAME = "loop_from_host"
RULES[NAME] = Whole()


@dataclasses.dataclass(frozen=True)
class Inside:
    """A program inside of a loop or a branch.

    - `outside`: what its first inputs, which are the same in each turn, are outside. The others change.
    """

    program: Program
    outside: list[Value]


def inside_of(loop: Equation) -> list[Inside]:
    """The programs inside of a loop that is run from the host."""
    found: list[Inside] = loop.params["inside"]
    return found


def with_loops_from_host(program: Program) -> Program:
    """The program, with each loop or branch that reduces over rows inside as an equation `NAME` of its inputs.

    What has rows and is computed before a loop is computed in each turn, as it is in each pass.

    **Raises:** `RowMixingError` if an equation cannot be run in chunks.
    """
    used = live(program)
    kinds = kinds_of(used)
    loops = {eqn for eqn in used if kinds.get(eqn) is Kind.WHOLE and _keeps_no_rows(eqn)}
    if not loops:
        return program
    copy, copies = _Copy(), dict[Equation, Equation]()
    ins = [copy.value(v) for v in program.ins]
    for eqn in used:
        copies[eqn] = copy.add(eqn)
    for eqn in loops:
        _turn_into_loop(copies[eqn], set(ins))
    return dataclasses.replace(program, ins=ins, outs=[copy.value(v) for v in program.outs], equations=copy.equations)


def _keeps_no_rows(eqn: Equation) -> bool:
    """Whether only what is the same in each turn has rows."""
    if not programs_of(eqn) or any(v.rows for v in eqn.outs):
        return False
    if eqn.name == "scan" and _compat.is_symbolic(eqn.symbolic["length"]):
        return False
    same = max(own.stop for own in _own(eqn))
    return not any(v.rows for v in eqn.ins[same:]) and not (eqn.name == "cond" and eqn.ins[0].at)


def _own(eqn: Equation) -> list[slice]:
    """Which inputs each program inside has before those that change from turn to turn."""
    if eqn.name == "scan":
        return [slice(0, _compat.scan_counts(eqn)[0])]
    if eqn.name == "while":
        first, more = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        return [slice(0, first), slice(first, first + more)]
    return [slice(1, len(eqn.ins))] * len(programs_of(eqn))


def _turn_into_loop(eqn: Equation, inputs: set[Value]) -> None:
    """Make a loop an equation of what its programs read."""
    of = dataclasses.replace(eqn)
    pairs = zip(programs_of(of), _own(of), strict=True)
    inside = [_with_outside(program, of.ins[own], inputs) for program, own in pairs]
    changing = [v for v in of.ins if not v.rows]
    eqn.ins = list(dict.fromkeys([*changing, *(v for each in inside for v in each.outside)]))
    eqn.primitive, eqn.params, eqn.symbolic = StandIn(NAME), {"of": of, "inside": inside}, {}


def _with_outside(program: Program, own: list[Value], inputs: set[Value]) -> Inside:
    """A program inside, with what its own inputs that have rows are made of before it."""
    copy, borders = _Copy(), dict[Value, None]()
    waiting, before = list(own), set[Equation]()
    while waiting:
        value = waiting.pop()
        if value.known is not None:
            continue
        if value.maker is None or not value.rows or value in inputs:
            borders[value] = None
        elif value.maker not in before:
            before.add(value.maker)
            waiting += value.maker.ins
    first = [copy.value(v) for v in borders]
    for eqn in sorted(before, key=lambda eqn: eqn.index):
        copy.add(eqn)
    for value, outer in zip(program.ins, own, strict=False):
        copy.values[value] = copy.value(outer)
    late = [copy.value(v) for v in program.ins[len(own) :]]
    for eqn in live(program):
        copy.add(eqn)
    outs = [copy.value(v) for v in program.outs]
    found = dataclasses.replace(program, ins=[*first, *late], outs=outs, equations=copy.equations)
    return Inside(found, list(borders))


class _Copy:
    """Values and equations of other programs as those of a new one."""

    def __init__(self) -> None:
        self.values: dict[Value, Value] = {}
        self.equations: list[Equation] = []

    def value(self, of: Value) -> Value:
        if of.known is not None:
            return of
        if of not in self.values:
            self.values[of] = dataclasses.replace(of, maker=None)
        return self.values[of]

    def add(self, eqn: Equation) -> Equation:
        ins, outs = ([self.value(v) for v in values] for values in (eqn.ins, eqn.outs))
        made = dataclasses.replace(eqn, index=len(self.equations), ins=ins, outs=outs)
        for value in outs:
            value.maker = made
        self.equations.append(made)
        return made
