"""The only file that touches unstable JAX. Each use names the versions that it was checked with, so
that a new release is read here and nowhere else.
"""

import contextlib
import functools
import math
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import compilation_cache as _compilation_cache
from jax._src import core as _core
from jax._src import source_info_util as _source_info_util
from jax._src.array import ArrayImpl as ArrayImpl  # 0.10.2, 0.12.0: the type of every concrete array
from jax._src.export import shape_poly as _shape_poly
from jax.extend.core import ClosedJaxpr as _ClosedJaxpr  # 0.10.2, 0.12.0
from jax.extend.core import Literal as Literal  # 0.10.2, 0.12.0
from jax.extend.core import jaxpr_as_fun as jaxpr_as_fun  # 0.10.2, 0.12.0
from jax.extend.core import jaxprs_in_params as _jaxprs_in_params  # 0.10.2, 0.12.0
from jax.extend.random import threefry2x32_p as _threefry2x32_p

# Public JAX does not tell whether a trace is running. 0.10.2, 0.12.0.
outside_trace: Callable[[], bool] = _core.trace_state_clean
current_trace = _core.trace_state_strong_ref  # `.value is eager_trace`: as `outside_trace`, six times as fast
eager_trace = _core.eval_trace


@contextlib.contextmanager
def without_compilation_cache() -> Iterator[None]:
    """Compile everything anew: whether the cache on disk is used is looked up once a process. 0.10.2, 0.12.0."""
    config: Any = jax.config
    if not config.jax_enable_compilation_cache:
        yield
        return
    config.update("jax_enable_compilation_cache", False)  # noqa: FBT003
    _compilation_cache.reset_cache()
    try:
        yield
    finally:
        config.update("jax_enable_compilation_cache", True)  # noqa: FBT003
        _compilation_cache.reset_cache()


def sub_jaxprs(eqn: Any) -> Iterator[Any]:
    """The programs inside one equation (jit, scan, cond, custom rules): 0.10.2, 0.12.0."""
    for sub in _jaxprs_in_params(eqn.params):
        yield sub.jaxpr if hasattr(sub, "jaxpr") else sub


def all_constants(closed: Any) -> Iterator[Any]:
    """Every captured constant of a closed program, nested ones included: 0.10.2, 0.12.0.

    From 0.11 on a ClosedJaxpr is a Jaxpr; both have `consts`.
    """
    yield from closed.consts
    for eqn in closed.jaxpr.eqns:
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            if hasattr(value, "consts") and hasattr(value, "jaxpr"):
                yield from all_constants(value)


def source_line(eqn: Any) -> str:
    """Where the user wrote an equation, as `file.py:12 (function)`: 0.10.2, 0.12.0."""
    return _source_info_util.summarize(eqn.source_info)


def eval_closed(closed: Any, consts: list[Any], args: list[Any]) -> list[Any]:
    """Evaluate a program's equations on values, keeping derivative rules and names: 0.10.2, 0.12.0."""
    return _core.eval_jaxpr(closed.jaxpr, consts, *args)


def convert(value: Any, dtype: Any, *, weak_type: bool) -> Any:
    """Give a value a dtype and a weak type, which the public conversion cannot set: 0.10.2, 0.12.0."""
    return jax.lax.convert_element_type_p.bind(value, new_dtype=dtype, weak_type=weak_type, sharding=None)


def closed(jaxpr: Any) -> Any:
    """A program with its constants, which that of a rematerialised body comes without: 0.10.2, 0.12.0."""
    return jaxpr if hasattr(jaxpr, "jaxpr") else _ClosedJaxpr(jaxpr, ())


def scan_counts(eqn: Any) -> tuple[int, int]:
    """How many of a scan's inputs are constants and how many are carried: by number in 0.10.2, by `ft_in` in 0.12.0."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = (len(group) for group in eqn.params["ft_in"].unpack())
    return consts, carry


def bind(primitive: Any, args: list[Any], params: dict[str, Any]) -> list[Any]:
    """One equation on other values: 0.10.2, 0.12.0."""
    found = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(found) if primitive.multiple_results else [found]


def expanded(eqn: Any, args: list[Any]) -> list[Any] | None:
    """What an equation that stands for a whole function (`searchsorted`) gives, or None for any other: 0.12.0."""
    if eqn.primitive.name != "call_hi_primitive":
        return None
    return jax.tree.leaves(eqn.params["_prim"].expand(*args))


# ------------------------------------------------------------------ symbolic dimensions

_SYMBOLIC = _shape_poly._DimExpr  # 0.10.2, 0.12.0
_ASKED = threading.local()
_LIBRARIES = ("jax", "jaxlib", "numpy", "erythroxy_tx")


def is_symbolic(dim: Any) -> bool:
    """Whether a dimension is an expression of an unknown number: 0.10.2, 0.12.0."""
    return isinstance(dim, _SYMBOLIC)


def names_in(dim: Any) -> set[str]:
    """The unknown numbers in a dimension: 0.10.2, 0.12.0."""
    return set(dim._get_vars())


def dim_at(dim: Any, **values: int) -> int:
    """What a dimension is where its unknown numbers are known: 0.10.2, 0.12.0. JAX's own answer is an int32."""
    if not is_symbolic(dim):
        return int(dim)
    return sum(
        times * math.prod(_factor_at(factor, values) ** power for factor, power in term._factors)
        for term, times in dim._sorted_terms
    )


def _factor_at(factor: Any, values: dict[str, int]) -> int:
    if factor.var is not None:
        return values[factor.var]
    a, b = (dim_at(operand, **values) for operand in factor.operands)
    return {"floordiv": lambda: a // b, "mod": lambda: a % b, "max": lambda: max(a, b), "min": lambda: min(a, b)}[
        factor.operation
    ]()


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
    asker = sys._getframe(2).f_globals.get("__name__", "").partition(".")[0]
    return None if asker in _LIBRARIES else by


def _difference(a: Any, b: Any) -> Any:
    """`a - b`, or None where they cannot be compared."""
    for dim in (a, b):
        if not is_symbolic(dim) and not _core.is_constant_dim(dim):
            return None
    if is_symbolic(a) and is_symbolic(b) and a.scope is not b.scope:
        return None
    return a - b


@functools.cache
def _install() -> None:  # noqa: C901  # one short method after another
    """Put our answers before JAX's own, for threads that are `deciding`."""
    equal, at_least, at_most, above, below, hashed, text, number = (
        getattr(_SYMBOLIC, f"__{name}__") for name in ("eq", "ge", "le", "gt", "lt", "hash", "str", "int")
    )

    def __eq__(self: Any, other: Any) -> bool:  # noqa: N807
        by = getattr(_ASKED, "by", None)
        if by is None:
            return equal(self, other)
        difference = _difference(self, other)
        if difference is None:
            return False
        return by[0]("==", difference) if is_symbolic(difference) else int(difference) == 0

    def __ge__(self: Any, other: Any) -> bool:  # noqa: N807
        return _ordered(at_least, self, other, lambda d: d, True)  # noqa: FBT003

    def __le__(self: Any, other: Any) -> bool:  # noqa: N807
        return _ordered(at_most, self, other, lambda d: -d, True)  # noqa: FBT003

    def __gt__(self: Any, other: Any) -> bool:  # noqa: N807
        return _ordered(above, self, other, lambda d: -d, False)  # noqa: FBT003

    def __lt__(self: Any, other: Any) -> bool:  # noqa: N807
        return _ordered(below, self, other, lambda d: d, False)  # noqa: FBT003

    def _ordered(original: Any, a: Any, b: Any, sign: Callable[[Any], Any], wanted: bool) -> bool:
        by = getattr(_ASKED, "by", None)
        if by is None or (difference := _difference(a, b)) is None:
            return original(a, b)
        if not is_symbolic(difference):
            return (int(sign(difference)) >= 0) is wanted
        return by[0](">=", sign(difference)) is wanted

    def __bool__(self: Any) -> bool:  # noqa: N807
        by = getattr(_ASKED, "by", None)
        return True if by is None else by[0]("bool", self)

    def __hash__(self: Any) -> int:  # noqa: N807
        by = _asked_by_user()
        return hashed(self) if by is None else hash(int(by[1]("hash", self)))

    def __str__(self: Any) -> str:  # noqa: N807
        by = _asked_by_user()
        return text(self) if by is None else by[1]("str", self)

    def __format__(self: Any, spec: str) -> str:  # noqa: N807
        by = _asked_by_user()
        return format(text(self) if by is None else int(by[1]("str", self)), spec)

    def __int__(self: Any) -> int:  # noqa: N807
        by = _asked_by_user()
        if by is not None:
            by[1]("int", self)
        return number(self)

    for method in (__eq__, __ge__, __le__, __gt__, __lt__, __bool__, __hash__, __str__, __format__, __int__):
        setattr(_SYMBOLIC, method.__name__, method)
    setattr(_SYMBOLIC, "__repr__", __str__)  # noqa: B010  # for mypy


# ------------------------------------------------------------------ random bits


def threefry(key_high: Any, key_low: Any, high: Any, low: Any) -> list[Any]:
    """The block cipher on pairs of counters: 0.10.2, 0.12.0."""
    first, second = jax.numpy.broadcast_to(key_high, high.shape), jax.numpy.broadcast_to(key_low, low.shape)
    return list(_threefry2x32_p.bind(first, second, high, low))


def counts_positions(key_dtype: Any) -> bool:
    """Whether the random bits of a key are a function of their positions: threefry, partitionable. 0.10.2, 0.12.0."""
    config: Any = jax.config
    return bool(str(key_dtype) == "key<fry>" and config.jax_threefry_partitionable)


def key_impl(key_dtype: Any) -> str:
    """The name of a key's generator, as `jax.random.wrap_key_data` takes it: 0.10.2, 0.12.0."""
    return str(key_dtype._impl.name)
