"""The only file that touches unstable JAX. Each use names the versions that it was checked with, so
that a new release is read here and nowhere else.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import compilation_cache as _compilation_cache
from jax._src import core as _core
from jax._src import source_info_util as _source_info_util
from jax._src.array import ArrayImpl as ArrayImpl  # 0.10.2, 0.12.0: the type of every concrete array
from jax.extend.core import ClosedJaxpr as _ClosedJaxpr  # 0.10.2, 0.12.0
from jax.extend.core import Literal as Literal  # 0.10.2, 0.12.0
from jax.extend.core import jaxpr_as_fun as jaxpr_as_fun  # 0.10.2, 0.12.0
from jax.extend.core import jaxprs_in_params as _jaxprs_in_params  # 0.10.2, 0.12.0

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
