"""What JAX traces, lowers and compiles, as it happens: the events, and the call that each belongs to."""

import logging
import sys
import threading
import types
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
from jax._src import config as _config
from jax._src import core as _core
from jax._src import monitoring as _monitoring
from jax._src import pjit as _pjit
from jax._src import util as _util
from jax._src.interpreters import partial_eval as _partial_eval

# An event is a scalar when it starts and a duration when it ends. 0.10.2, 0.12.0.
_STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_ONLY_TRACED = {"jit_trace", "jit_lower", "jit_eval_shape", "eval_shape", "make_jaxpr_f"}  # 0.10.2, 0.12.0
_CALLS = ("cache_miss", "jit_trace", "call_impl_cache_miss")  # the last of a batch or a derivative. 0.10.2, 0.12.0.
_TRANSFORMS = {  # how JAX calls the functions that its transforms return. 0.10.2, 0.12.0.
    "vmap_f": "jax.vmap",
    "grad_f": "jax.grad",
    "value_and_grad_f": "jax.grad",
    "jacfun": "jax.jacobian",
    "_jvp": "jax.jvp",
    "_vjp": "jax.vjp",
}


class JitCall(NamedTuple):
    """The call of a jitted function that made an event."""

    function: Callable[..., Any] | None  # as it was given to jit; None for the backward pass of one
    args: tuple
    kwargs: dict[str, Any]
    options: dict[str, Any]  # of jit, those that were given
    transforms: tuple[str, ...]  # `jax.vmap` and kin between the caller and the call, the innermost first
    only_traced: bool  # by `.lower`, `eval_shape`: nothing will run
    concrete: tuple  # under vmap, its arguments as arrays of a whole batch
    key: int  # the same for every event of one call, while it lasts
    is_rerun: bool  # to find the operation that made a NaN
    in_callback: bool  # of the host, where an error does not reach the caller as it is
    api: str  # JAX's own function that was called outside of jit, `jax.lax.cond`; nothing for a function of the user's


def listen(
    started: Callable[[str, str], None], ended: Callable[[str, str, float], None], found_on_disk: Callable[[], None]
) -> Callable[[], None]:
    """Hear of every event in this process: `started(stage, name)`, which may raise to stop it, `ended(stage, name,
    seconds)`, and `found_on_disk()` for a compile that the persistent cache spares.

    **Returns:** what registers the listeners, again where others removed them: 0.10.2, 0.12.0.
    """

    def on_scalar(event: str, value: float, **told: Any) -> None:  # noqa: ARG001  # as JAX names it
        if (stage := _STAGES.get(event)) is not None:
            started(stage, told.get("fun_name", "?"))

    def on_duration(event: str, duration_secs: float, **told: Any) -> None:
        if (stage := _STAGES.get(event)) is not None:
            ended(stage, told.get("fun_name", "?"), duration_secs)

    def on_event(event: str, **_: Any) -> None:
        if event == _CACHE_HIT:
            found_on_disk()

    def register() -> None:
        if on_scalar not in _monitoring.get_scalar_listeners():
            jax.monitoring.register_scalar_listener(on_scalar)
        if on_duration not in _monitoring.get_event_duration_listeners():
            jax.monitoring.register_event_duration_secs_listener(on_duration)
        if on_event not in _monitoring.get_event_listeners():
            jax.monitoring.register_event_listener(on_event)

    return register


def running_jit_call() -> JitCall | None:
    """The innermost call of a jitted function that is being prepared in this thread: 0.10.2, 0.12.0."""
    frame: types.FrameType | None = sys._getframe(1)
    found: dict[str, Any] | None = None
    concrete: tuple = ()
    transforms: list[str] = []
    called: list[str] = []  # functions of JAX's between the caller and the call
    only_traced = reached = in_callback = is_rerun = False
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__", "")
        if module in ("jax._src.pjit", "jax._src.api"):
            if not reached and name in _CALLS and (found is None or (name in _CALLS[:2] and "fun" not in found)):
                concrete = tuple(found["args_"]) if found is not None else ()
                found = dict(frame.f_locals)
                if name == "jit_trace":
                    found |= {"fun": found["jit_func"]._fun, "jit_info": found["jit_func"]._jit_info}
            only_traced |= name in _ONLY_TRACED
            transforms += [_TRANSFORMS[name]] if name in _TRANSFORMS else []
        in_callback |= module == "jax._src.callback"
        is_rerun |= name == "maybe_recursive_nan_check"
        reached |= found is not None and module.partition(".")[0] not in ("jax", "jaxlib")
        if found is not None and not reached:
            called.append(name)
        frame = frame.f_back
    if found is None:
        return None
    key = id(found.get("args_", found.get("args")))
    call = JitCall(None, (), {}, {}, tuple(transforms), only_traced, concrete, key, is_rerun, in_callback, "")
    if "fun" not in found:
        return call
    fun, options = found["fun"], _given(found["jit_info"])
    is_own = str(getattr(fun, "__module__", "")).partition(".")[0] == "jax"
    api = _public_name([*reversed(called), getattr(fun, "__name__", "?")], fun) if is_own else ""
    return call._replace(function=fun, args=found["args"], kwargs=found["kwargs"], options=options, api=api)


def transforms_around(frame: types.FrameType | None) -> tuple[str, ...]:
    """The transforms of JAX's in which a frame runs, the innermost first: 0.10.2, 0.12.0."""
    found = []
    while frame is not None:
        if frame.f_globals.get("__name__") == "jax._src.api" and frame.f_code.co_name in _TRANSFORMS:
            found.append(_TRANSFORMS[frame.f_code.co_name])
        frame = frame.f_back
    return tuple(found)


def _public_name(names: list[str], fun: Any) -> str:
    """The first of JAX's own functions that users know; nothing where a user gave that function to jit."""
    for name in names:
        for module in (jax.numpy, jax.lax, jax.nn, jax.random, jax):
            if (found := getattr(module, name, None)) is not None:
                return "" if found is fun else f"{module.__name__}.{name}"
    return names[-1]


_OPTIONS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "device", "backend")
_ALSO = {"keep_unused": False, "inline": False, "compiler_options_kvs": ()}


def _given(info: Any) -> dict[str, Any]:
    given = {name: value for name in _OPTIONS if (value := getattr(info, name))}
    if "donate_argnums" in given:
        given.pop("donate_argnames", None)  # which JAX infers
    given |= {name: value for name, usual in _ALSO.items() if (value := getattr(info, name)) != usual}
    for name in ("in_shardings", "out_shardings"):
        leaves = [x for x in getattr(info, f"{name}_leaves") if type(x).__name__ != "UnspecifiedValue"]
        given |= {name: tuple(map(str, leaves))} if leaves else {}
    return given


def jit_options(jitted: Any) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """The function inside of a jitted one, and the options that jit was given; None for any other: 0.10.2, 0.12.0."""
    info = getattr(jitted, "_jit_info", None)
    return None if info is None else (jitted._fun, _given(info))


_UNTOLD = {"jax_debug_key_reuse", "check_vma", "axis_env_state"}  # differ inside of vmap alone


def trace_context() -> dict[str, Any]:
    """The settings and contexts that are part of the key of every compiled program, by name: 0.10.2, 0.12.0."""
    values: Any = zip(_config.trace_context_names(), _config.trace_context(), strict=True)
    return {name: value for name, value in values if name not in _UNTOLD}


def context_key() -> Any:
    """The same as one value, equal where a program would be: 0.10.2, 0.12.0."""
    return _config.trace_context()


def warn_of_first_use() -> None:
    """Tell where programs were compiled before this library was first used. What it imports, Pallas, adds to the key of
    every program, so that they are compiled again: 0.12.0, not 0.10.2.
    """
    if jax.__version_info__ < (0, 11):
        return
    compiled = _pjit._cpp_pjit_cache_fun_only.size() + _pjit._cpp_pjit_cache_explicit_attributes.size()
    if compiled and any(name.startswith("pallas") for name in _config.trace_context_names()):
        logging.getLogger("erythroxy_tx").warning(
            "erythroxy_tx was first used after JAX had compiled programs, and what it imports makes JAX compile them "
            "again. Fix: import erythroxy_tx after jax, or use a name of it before the first call of a jitted function."
        )


_cleared = [0]


@_util.cache(max_size=1, trace_context_in_key=False)
def _generation() -> int:
    _cleared[0] += 1
    return _cleared[0]


def caches_cleared() -> int:
    """A number that grows when `jax.clear_caches()` was called: 0.10.2, 0.12.0."""
    return _generation()


def inside_staging() -> bool:
    """Whether what runs is traced to be compiled (jit, scan, eval_shape), not only differentiated: 0.10.2, 0.12.0."""
    trace = _core.trace_ctx.trace
    while trace is not None and trace is not _core.eval_trace:
        if isinstance(trace, _partial_eval.DynamicJaxprTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def in_callback_thread() -> bool:
    """Whether this thread was started by the runtime, to run a host callback: 0.10.2, 0.12.0."""
    frame: types.FrameType | None = sys._getframe(1)
    if not isinstance(threading.current_thread(), threading._DummyThread):
        return False
    while frame is not None and frame.f_globals.get("__name__") != "jax._src.callback":
        frame = frame.f_back
    return frame is not None
