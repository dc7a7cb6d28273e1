"""The only place that touches unstable JAX. Each use names the versions that it was checked with, so
that a new release is read here and nowhere else.
"""

import contextlib
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import compilation_cache as _compilation_cache
from jax._src import core as _core
from jax._src import source_info_util as _source_info_util
from jax._src.array import ArrayImpl as ArrayImpl  # 0.10.2, 0.12.0: the type of every concrete array
from jax._src.core import Ref as Ref  # 0.10.2, 0.12.0: what `jax.new_ref` makes
from jax._src.sharding_impls import UnspecifiedValue as _UnspecifiedValue
from jax._src.state.types import AbstractRef as _AbstractRef
from jax.extend.core import ClosedJaxpr as _ClosedJaxpr  # 0.10.2, 0.12.0
from jax.extend.core import Literal as Literal  # 0.10.2, 0.12.0
from jax.extend.core import jaxprs_in_params as _jaxprs_in_params  # 0.10.2, 0.12.0
from jax.extend.random import threefry2x32_p as _threefry2x32_p

from erythroxy_tx._compat.batches import batch_first as batch_first
from erythroxy_tx._compat.bits import bits_of_bf16 as bits_of_bf16
from erythroxy_tx._compat.bits import rewrites_stacks_of_bf16 as rewrites_stacks_of_bf16
from erythroxy_tx._compat.compiles import JitCall as JitCall
from erythroxy_tx._compat.compiles import caches_cleared as caches_cleared
from erythroxy_tx._compat.compiles import context_key as context_key
from erythroxy_tx._compat.compiles import in_callback_thread as in_callback_thread
from erythroxy_tx._compat.compiles import inside_staging as inside_staging
from erythroxy_tx._compat.compiles import jit_options as jit_options
from erythroxy_tx._compat.compiles import listen as listen
from erythroxy_tx._compat.compiles import running_jit_call as running_jit_call
from erythroxy_tx._compat.compiles import trace_context as trace_context
from erythroxy_tx._compat.compiles import transforms_around as transforms_around
from erythroxy_tx._compat.compiles import warn_of_first_use as warn_of_first_use
from erythroxy_tx._compat.dimensions import deciding as deciding
from erythroxy_tx._compat.dimensions import dim_at as dim_at
from erythroxy_tx._compat.dimensions import is_symbolic as is_symbolic
from erythroxy_tx._compat.dimensions import names_in as names_in
from erythroxy_tx._compat.mesh import store_of_processes as store_of_processes
from erythroxy_tx._compat.mesh import varied as varied
from erythroxy_tx._compat.reads import READERS as READERS
from erythroxy_tx._compat.reads import check_stand_in as check_stand_in
from erythroxy_tx._compat.reads import give_reads_back as give_reads_back
from erythroxy_tx._compat.reads import stand_in_reads as stand_in_reads
from erythroxy_tx._compat.reads import was_read as was_read
from erythroxy_tx._compat.threads import Forbidding as Forbidding
from erythroxy_tx._compat.threads import refused_by_settings as refused_by_settings
from erythroxy_tx._compat.threads import without_jax as without_jax

# Lines of ours are nobody's. 0.10.2, 0.12.0.
_source_info_util.register_exclusion(str(pathlib.Path(__file__).parent.parent))

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
    yield from (sub.jaxpr if hasattr(sub, "jaxpr") else sub for sub in _jaxprs_in_params(eqn.params))


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


def evaluate(closed: Any, args: list[Any], each: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Evaluate a program with `each(equation, inputs)` in place of every equation: 0.10.2, 0.12.0.

    What is bound keeps the names, lines and contexts of the equation that it comes from.
    """
    jaxpr = closed.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True))
    read = lambda v: _literal(v) if isinstance(v, Literal) else values[v]  # noqa: E731
    last = _core.last_used(jaxpr)
    for eqn in jaxpr.eqns:
        names = _source_info_util.current_name_stack() + eqn.source_info.name_stack
        with _source_info_util.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
            found = each(eqn, [read(v) for v in eqn.invars])
        values.update(zip(eqn.outvars, found, strict=True))
        _core.clean_up_dead_vars(eqn, values, last)
    return [read(v) for v in jaxpr.outvars]


def _literal(literal: Any) -> Any:
    """Its value, which may be a bare number of Python's, with the dtype that it stands for."""
    if hasattr(literal.val, "dtype") or not hasattr(literal.aval, "dtype"):
        return literal.val
    return convert(jax.numpy.asarray(literal.val, literal.aval.dtype), literal.aval.dtype, weak_type=True)


def convert(value: Any, dtype: Any, *, weak_type: bool) -> Any:
    """Give a value a dtype and a weak type, which the public conversion cannot set: 0.10.2, 0.12.0."""
    return jax.lax.convert_element_type_p.bind(value, new_dtype=dtype, weak_type=weak_type, sharding=None)


def weakly_typed(array: Any) -> jax.Array:
    """The same array with a weak type, which without a program only its constructor gives: 0.10.2, 0.12.0."""
    return ArrayImpl(array.aval.update(weak_type=True), array.sharding, [array], committed=array.committed)


def closed(jaxpr: Any) -> Any:
    """A program with its constants, which that of a rematerialised body comes without: 0.10.2, 0.12.0."""
    return jaxpr if hasattr(jaxpr, "jaxpr") else _ClosedJaxpr(jaxpr, ())


def scan_counts(eqn: Any) -> tuple[int, int]:
    """How many of a scan's inputs are constants and how many are carried: by number in 0.10.2, by `ft_in` in 0.12.0."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = (len(group) for group in eqn.params["ft_in"].unpack())
    return consts, carry


def is_ref(value: Any) -> bool:
    """Whether a value is a mutable reference to an array: 0.10.2, 0.12.0."""
    return isinstance(jax.typeof(value), _AbstractRef)


def sub_programs(eqn: Any) -> list[Any]:
    """The closed programs inside of a jit, a cond or a rematerialised call, as they are called: 0.10.2, 0.12.0."""
    return list(map(closed, eqn.params["branches"] if "branches" in eqn.params else [eqn.params["jaxpr"]]))


def is_placed(eqn: Any) -> bool:
    """Whether a jit says where its arguments or results are: 0.10.2, 0.12.0."""
    shardings = (*eqn.params["in_shardings"], *eqn.params["out_shardings"])
    return not all(isinstance(each, _UnspecifiedValue) for each in shardings)


def donated(closed: Any) -> list[bool]:
    """Which inputs of a program that is one call of a jit that call gives away: 0.10.2, 0.12.0."""
    jaxpr = closed.jaxpr
    given = set()
    if len(jaxpr.eqns) == 1 and "donated_invars" in jaxpr.eqns[0].params:
        (eqn,) = jaxpr.eqns
        away = zip(eqn.invars, eqn.params["donated_invars"], strict=True)
        given = {var for var, is_donated in away if is_donated and not isinstance(var, Literal)}
    return [var in given for var in jaxpr.invars]


def rematerialised(eqn: Any, run: Callable[..., list[Any]], args: list[Any]) -> list[Any]:
    """Another program in the place of a rematerialised one, with what is said of it: 0.10.2, 0.12.0.

    One that was differentiated already has to say so, or the compiler takes what it computes again from before.
    """
    if eqn.params["differentiated"]:
        traced = jax.make_jaxpr(run)(*args)
        if not traced.consts:
            return bind(eqn.primitive, args, {**eqn.params, "jaxpr": traced.jaxpr})
    how = {name: eqn.params[name] for name in ("policy", "prevent_cse")}
    return list(jax.checkpoint(run, **how)(*args))


def bind(primitive: Any, args: list[Any], params: dict[str, Any]) -> list[Any]:
    """One equation on other values: 0.10.2, 0.12.0. On the devices of a mesh, whatever sharding it was traced for."""
    if jax.sharding.AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types:
        params = {**params, **{name: None for name in ("sharding", "out_sharding") if name in params}}
    found = primitive.bind(*varied(args), **primitive.get_bind_params(params))
    return list(found) if primitive.multiple_results else [found]


def expanded(eqn: Any, args: list[Any]) -> list[Any] | None:
    """What an equation that stands for a whole function (`searchsorted`) gives, or None for any other: 0.12.0."""
    if eqn.primitive.name != "call_hi_primitive":
        return None
    return jax.tree.leaves(eqn.params["_prim"].expand(*args))


# ------------------------------------------------------------------ random bits


def threefry(key_high: Any, key_low: Any, high: Any, low: Any) -> list[Any]:
    """The block cipher on pairs of counters: 0.10.2, 0.12.0."""
    keys = [jax.numpy.broadcast_to(key, high.shape) for key in (key_high, key_low)]
    return list(_threefry2x32_p.bind(*keys, high, low))


def counts_positions(key_dtype: Any) -> bool:
    """Whether the random bits of a key are a function of their positions: threefry, partitionable. 0.10.2, 0.12.0."""
    config: Any = jax.config
    return bool(str(key_dtype) == "key<fry>" and config.jax_threefry_partitionable)


def key_impl(key_dtype: Any) -> str:
    """The name of a key's generator, as `jax.random.wrap_key_data` takes it: 0.10.2, 0.12.0."""
    return str(key_dtype._impl.name)
