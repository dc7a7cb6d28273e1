"""Symbolic dimensions: what they are made of, and who answers what JAX cannot decide about one. 0.10.2, 0.12.0."""

import contextlib
import dis
import functools
import math
import operator
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import core as _core
from jax._src.export import shape_poly as _shape_poly

_SYMBOLIC = _shape_poly._DimExpr  # 0.10.2, 0.12.0
_ASKED = threading.local()
_LIBRARIES = ("jax", "jaxlib", "numpy", "erythroxy_tx")


def is_symbolic(dim: Any) -> bool:
    """Whether a dimension is an expression of an unknown number: 0.10.2, 0.12.0."""
    return isinstance(dim, _SYMBOLIC)


def names_in(dim: Any) -> set[str]:
    """The unknown numbers in a dimension: 0.10.2, 0.12.0."""
    return set(dim._get_vars())


def dim_at(dim: Any, values: dict[str, Any]) -> Any:
    """What a dimension is where its unknown numbers are known: 0.10.2, 0.12.0. JAX's own answer is an int32."""
    if not is_symbolic(dim):
        return int(dim)
    terms = (
        (times, [_factor_at(factor, values) ** p for factor, p in term._factors]) for term, times in dim._sorted_terms
    )
    return sum(times * math.prod(factors) for times, factors in terms)


def _factor_at(factor: Any, values: dict[str, Any]) -> Any:
    if factor.var is not None:
        return values[factor.var]
    a, b = (dim_at(operand, values) for operand in factor.operands)
    if factor.operation in ("floordiv", "mod"):
        return a // b if factor.operation == "floordiv" else a % b
    numbers = jax.numpy if any(isinstance(x, jax.Array) for x in (a, b)) else np  # numpy's also inside of a trace
    found = getattr(numbers, f"{factor.operation}imum")(a, b)
    return int(found) if isinstance(found, np.integer) else found


@contextlib.contextmanager
def deciding(decide: Callable[[str, Any], bool], told: Callable[[str, Any], str]) -> Iterator[None]:
    """Answer what JAX cannot decide about a symbolic dimension in this thread: 0.10.2, 0.12.0.

    **Arguments:**

    - `decide(op, dim)`: whether `dim == 0` (op `"=="`), `dim >= 0` (op `">="`), or `dim` counts as true (`"bool"`).
    - `told(how, dim)`: the text of a number, when code outside JAX takes a dimension as text or hashes it (`how` is
        `"str"` or `"hash"`); called with `"int"` when it asks for the number, which then is an error.
    """
    _install()
    before = getattr(_ASKED, "by", None)
    _ASKED.by = decide, told
    try:
        yield
    finally:
        _ASKED.by = before


def _asked_by_user() -> Any:
    """Who decides, if the code that asks is neither JAX's nor ours."""
    by = getattr(_ASKED, "by", None)
    if by is None:
        return None
    return by if _is_user(sys._getframe(2)) else None


_COMPARES = {dis.opmap["COMPARE_OP"], dis.opmap["CONTAINS_OP"]}
_CODE: dict[Any, bytes] = {}


def _is_user(frame: Any) -> bool:
    """Whether code asks that is neither JAX's nor ours."""
    return frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES


def _is_looked_up(frame: Any) -> bool:
    """Whether a cache of JAX's compares its keys: it would take a known number for the unknown one that it stands for.

    Its C++ asks `==` of keys whose hashes differ, or a key's own `__eq__` asks; other comparisons are written as such.
    """
    if _is_user(frame):
        return False
    code = _CODE.setdefault(frame.f_code, frame.f_code.co_code)
    return code[frame.f_lasti] not in _COMPARES or frame.f_code.co_name in ("__eq__", "__ne__")


def _difference(a: Any, b: Any) -> Any:
    """`a - b`, or None where they cannot be compared."""
    known = all(is_symbolic(dim) or _core.is_constant_dim(dim) for dim in (a, b))
    apart = is_symbolic(a) and is_symbolic(b) and a.scope is not b.scope
    return a - b if known and not apart else None


def _number(other: Any) -> Any:
    """The Python number of what a dimension is compared with, where it is one."""
    scalar = isinstance(other, (np.generic, np.ndarray)) and np.ndim(other) == 0 and other.dtype.kind in "biuf"
    return other.item() if scalar else other


_NEAREST = {"ge": math.ceil, "le": math.floor, "gt": math.floor, "lt": math.ceil}  # the integer that a float stands for


def _compared(name: str, a: Any, b: Any, otherwise: Callable[[Any, Any], Any]) -> Any:
    """A comparison of a dimension by whoever decides in this thread."""
    by, b = getattr(_ASKED, "by", None), _number(b)
    if by is None:
        return otherwise(a, b)
    equality = name in ("eq", "ne")
    if isinstance(b, float):
        if not math.isfinite(b) or (equality and not b.is_integer()):
            return getattr(operator, name)(0, b)  # as for any integer
        b = int(b) if equality else _NEAREST[name](b)
    difference = _difference(a, b)
    if difference is None:
        return NotImplemented if equality else otherwise(a, b)
    turned = -difference if name in ("le", "gt") else difference
    if not is_symbolic(turned):
        answer = int(turned) == 0 if equality else int(turned) >= 0
    elif equality and _is_looked_up(sys._getframe(2)):
        answer = False
    else:
        answer = by[0]("==" if equality else ">=", turned)
    return answer is (name not in ("gt", "lt", "ne"))


_NEEDS_NUMBER = (
    "index float complex round trunc floor ceil invert and rand or ror xor rxor lshift rlshift rshift rrshift"
)
_ALSO = {"real": lambda n: n, "numerator": lambda n: n, "imag": lambda n: 0, "denominator": lambda n: 1}  # noqa: ARG005
_OF_INTS = {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "is_integer", "to_bytes"}


@functools.cache
def _install() -> None:  # noqa: C901  # one short method after another
    """Put our answers before JAX's own, for threads that are `deciding`."""
    hashed, text, number, power = (getattr(_SYMBOLIC, f"__{name}__") for name in ("hash", "str", "int", "pow"))
    methods: dict[str, Any] = {}
    for name in ("eq", "ne", "ge", "le", "gt", "lt"):
        original = getattr(_SYMBOLIC, f"__{name}__")
        methods[f"__{name}__"] = lambda a, b, name=name, original=original: _compared(name, a, b, original)

    def needs_number(self: Any, *others: Any) -> Any:
        if any(isinstance(other, jax.Array) for other in others):
            return NotImplemented
        if (by := _asked_by_user()) is not None:
            by[1]("int", self)
        raise TypeError(f"{type(self).__name__!r} object cannot be interpreted as an integer")

    methods |= {f"__{name}__": needs_number for name in _NEEDS_NUMBER.split()}

    def truth(self: Any) -> bool:
        return True if (by := getattr(_ASKED, "by", None)) is None else by[0]("bool", self)

    def hash_(self: Any) -> int:
        return hashed(self) if (by := _asked_by_user()) is None else hash(int(by[1]("hash", self)))

    def str_(self: Any) -> str:
        return text(self) if (by := _asked_by_user()) is None else by[1]("str", self)

    def format_(self: Any, spec: str) -> str:
        return format(text(self) if (by := _asked_by_user()) is None else int(by[1]("str", self)), spec)

    def int_(self: Any) -> int:
        if (by := _asked_by_user()) is not None:
            by[1]("int", self)
        return number(self)

    def power_(self: Any, other: Any, modulo: Any = None) -> Any:
        if not isinstance(other, int) and (by := _asked_by_user()) is not None:
            by[1]("int", self)
        return power(self, other, modulo)

    def getattr_(self: Any, name: str) -> Any:
        if name in _ALSO:
            return _ALSO[name](self)
        if name in _OF_INTS and (by := _asked_by_user()) is not None:
            by[1]("int", self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    methods |= {
        "__bool__": truth, "__hash__": hash_, "__str__": str_, "__repr__": str_, "__format__": format_,
        "__int__": int_, "__pow__": power_, "__getattr__": getattr_, "__pos__": lambda self: self,
        "__abs__": lambda self: self if self >= 0 else -self,
    }  # fmt: skip
    for name, method in methods.items():
        setattr(_SYMBOLIC, name, method)
