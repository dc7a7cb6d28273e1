"""Whether two flat programs are the same one: the same operations on the same values, however axes of length one are
put in and taken out. An answer of no may be wrong, an answer of yes is not.
"""

import math
from typing import Any

import numpy as np

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.rows import live
from erythroxy_tx.program.rules.loops import programs_of


def same(one: Program, two: Program) -> bool:
    """Whether they compute the same from the same inputs."""
    names = _Names()
    return names.of(one) == names.of(two)


class _Names:
    """One number for all values that are computed in the same way."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self._bare: dict[int, int] = {}  # by the number of a value in another shape, that of the value itself
        self._shapes: dict[int, tuple[int, ...]] = {}

    def of(self, program: Program) -> tuple[Any, ...]:
        """What a program gives."""
        numbers: dict[Value, int] = {}
        for i, value in enumerate(program.ins):
            numbers[value] = self._number(("argument", i), value)

        def of_value(value: Value) -> int:
            if value.known is None:
                return numbers[value]
            known = value.known
            key = (known.dtype.str, known.tobytes()) if isinstance(known, np.ndarray) else id(known)
            return self._number(("known", key, value.at), value)

        for eqn in live(program):
            ins = [of_value(v) for v in eqn.ins]
            for k, out in enumerate(eqn.outs):
                numbers[out] = self._shaped(ins[0], out) if _keeps_order(eqn) else self._made(eqn, ins, k, out)
        return tuple((of_value(v), v.at, str(v.dtype)) for v in program.outs)

    def _made(self, eqn: Equation, ins: list[int], k: int, out: Value) -> int:
        params = sorted((key, str(value)) for key, value in eqn.params.items() if not _is_program(value))
        inside = tuple(self.of(program) for program in programs_of(eqn))
        return self._number((eqn.name, tuple(params), tuple(ins), k, inside), out)

    def _shaped(self, source: int, out: Value) -> int:
        bare = self._bare.get(source, source)
        if self._shapes[bare] == out.at:
            return bare
        found = self._number(("shaped", bare, out.at), out)
        self._bare[found] = bare
        return found

    def _number(self, key: Any, value: Value) -> int:
        found = self._known.setdefault((key, value.at, str(value.dtype)), len(self._known))
        self._shapes[found] = value.at
        return found


def _is_program(param: Any) -> bool:
    several = param if isinstance(param, (tuple, list)) else (param,)
    return any(hasattr(each, "eqns") for each in several)


def _keeps_order(eqn: Equation) -> bool:
    """Whether the entries of its result are those of its input in the same order."""
    if not eqn.ins or len(eqn.outs) != 1:
        return False
    source, out = eqn.ins[0], eqn.outs[0]
    if math.prod(source.at) != math.prod(out.at) or source.dtype != out.dtype:
        return False
    if eqn.name in ("squeeze", "expand_dims") or (eqn.name == "reshape" and eqn.params.get("dimensions") is None):
        return True
    if eqn.name == "broadcast_in_dim":
        return len(eqn.ins) == 1
    if eqn.name == "transpose":
        moved = [axis for axis in eqn.params["permutation"] if source.at[axis] != 1]
        return moved == sorted(moved)
    if eqn.name == "rev":
        return all(source.at[axis] <= 1 for axis in eqn.params["dimensions"])
    if eqn.name == "slice":
        return source.at == out.at
    return eqn.name in ("convert_element_type", "copy", "copy_p")  # of one dtype
