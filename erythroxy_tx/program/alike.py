"""Whether two flat programs are the same one for some numbers of rows: the same operations on the same values, however
axes of length one are put in and taken out. An answer of no may be wrong, an answer of yes is not.
"""

from typing import Any

import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.rows import live
from erythroxy_tx.program.rules.loops import programs_of
from erythroxy_tx.program.symbol import Symbol

Points = tuple[np.ndarray, ...]  # numbers of rows, an array for each name


def same(one: Program, two: Program, points: Points) -> bool:
    """Whether they compute the same from the same inputs, for each of these numbers of rows."""
    names = _Names(points)
    return names.of(one) == names.of(two)


class _Names:
    """One number for all values that are computed in the same way. A length is what it is at each of the points."""

    def __init__(self, points: Points):
        self._points = points
        self._known: dict[Any, int] = {}
        self._bare: dict[int, int] = {}  # by the number of a value in another shape, that of the value itself
        self._shapes: dict[int, Any] = {}

    def size(self, symbol: Symbol, dim: Any) -> Any:
        """A length at each of the points."""
        if not _compat.is_symbolic(dim):
            return int(dim)
        sizes = np.broadcast_to(symbol.at(dim, self._points), self._points[0].shape)
        return int(sizes[0]) if (sizes == sizes[0]).all() else tuple(sizes.tolist())

    def of(self, program: Program) -> tuple[Any, ...]:
        """What a program gives."""
        numbers: dict[Value, int] = {}

        def shape(value: Value) -> tuple[Any, ...]:
            return tuple(self.size(program.symbol, dim) for dim in value.shape)

        def of_value(value: Value) -> int:
            if value.known is None:
                return numbers[value]
            known = value.known
            key = (known.dtype.str, known.tobytes()) if isinstance(known, np.ndarray) else id(known)
            return self._number(("known", key), shape(value), value.dtype)

        for i, value in enumerate(program.ins):
            numbers[value] = self._number(("argument", i), shape(value), value.dtype)
        for eqn in live(program):
            ins = [of_value(v) for v in eqn.ins]
            for k, out in enumerate(eqn.outs):
                if self._keeps_order(eqn, [shape(v) for v in eqn.ins[:1]], shape(out)):
                    numbers[out] = self._shaped(ins[0], shape(out), out.dtype)
                else:
                    key = self._made(eqn, program, ins, k)
                    numbers[out] = self._number(key, shape(out), out.dtype)
        return tuple((of_value(v), shape(v), str(v.dtype)) for v in program.outs)

    def _made(self, eqn: Equation, program: Program, ins: list[int], k: int) -> Any:
        inside = tuple(self.of(inner) for inner in programs_of(eqn))
        params = {key: value for key, value in eqn.symbolic.items() if not (inside and _is_program(value))}
        told = tuple((key, self._told(program.symbol, params[key])) for key in sorted(params))
        return eqn.name, told, tuple(ins), k, inside

    def _told(self, symbol: Symbol, param: Any) -> Any:
        """A parameter as a key: what is told apart by `==` with its type, else by itself."""
        if isinstance(param, (tuple, list)):
            return type(param), tuple(self._told(symbol, p) for p in param)
        if _compat.is_symbolic(param):
            return int, self.size(symbol, param)
        if _is_program(param):
            return _text(param)
        if isinstance(param, (np.ndarray, np.generic)):
            return param.dtype.str, param.shape, param.tobytes()
        if isinstance(param, (float, complex)):
            return type(param), repr(param)  # of zeros, each
        return (type(param), param) if getattr(param, "__hash__", None) else id(param)

    def _shaped(self, source: int, shape: Any, dtype: Any) -> int:
        bare = self._bare.get(source, source)
        if self._shapes[bare] == shape:
            return bare
        found = self._number(("shaped", bare), shape, dtype)
        self._bare[found] = bare
        return found

    def _number(self, key: Any, shape: Any, dtype: Any) -> int:
        found = self._known.setdefault((key, shape, str(dtype)), len(self._known))
        self._shapes[found] = shape
        return found

    def _keeps_order(self, eqn: Equation, sources: list[Any], out: Any) -> bool:
        """Whether the entries of its result are those of its input in the same order."""
        if not sources or len(eqn.outs) != 1 or eqn.ins[0].dtype != eqn.outs[0].dtype:
            return False
        source = sources[0]
        if sorted(map(str, _longer(source))) != sorted(map(str, _longer(out))):
            return False
        if eqn.name in ("squeeze", "expand_dims") or (eqn.name == "reshape" and eqn.params.get("dimensions") is None):
            return True
        if eqn.name == "broadcast_in_dim":
            return len(eqn.ins) == 1
        if eqn.name == "transpose":
            moved = [axis for axis in eqn.params["permutation"] if source[axis] != 1]
            return moved == sorted(moved)
        if eqn.name == "rev":
            return all(source[axis] in (0, 1) for axis in eqn.params["dimensions"])
        if eqn.name == "slice":
            return source == out
        return eqn.name in ("convert_element_type", "copy", "copy_p")  # of one dtype


def _longer(shape: Any) -> list[Any]:
    """The lengths that are not one."""
    return [size for size in shape if size != 1]


def _text(program: Any) -> Any:
    """A program that is a parameter, such as how a scatter joins: its text, where that tells everything."""
    jaxpr = _compat.closed(program).jaxpr
    plain = not getattr(program, "consts", ()) and all(
        isinstance(p, (int, str, type(None), np.dtype)) for eqn in jaxpr.eqns for p in eqn.params.values()
    )
    return str(jaxpr) if plain else id(program)


def _is_program(param: Any) -> bool:
    several = param if isinstance(param, (tuple, list)) else (param,)
    return any(hasattr(each, "eqns") for each in several)
