"""Which call of the user's an event belongs to: that of a jitted function, of one of this library's transforms, of
`equinox.filter_jit`, or the one that a guard is around. Not here: what is seen of a call (`seen.py`).
"""

import functools
import logging
import types
from collections.abc import Callable
from typing import Any
from typing import TypeVar

import equinox as eqx

from erythroxy_tx import _compat
from erythroxy_tx.compiling.scope import Scope
from erythroxy_tx.compiling.scope import frame_of
from erythroxy_tx.compiling.seen import Seen
from erythroxy_tx.compiling.seen import is_own
from erythroxy_tx.compiling.seen import seen_of
from erythroxy_tx.core.call_site import frames
from erythroxy_tx.core.call_site import variables
from erythroxy_tx.core.static import Static
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped

T = TypeVar("T")
_LOG = logging.getLogger("erythroxy_tx")
_FILTER_JIT = "equinox._jit"  # of whose functions every value that is no array is static


def looked_at(look: Callable[..., T], *args: Any) -> T | None:
    """What a look at a call of the user's finds. Where an object of theirs fails at it, their program goes on, and the
    call is one of which nothing is known.
    """
    try:
        return look(*args)
    except Exception:  # noqa: BLE001  # of any method that is called in passing: a repr, a flatten, a __getattr__
        _LOG.warning("a call could not be looked at; what changed in it will not be told", exc_info=True)
        return None


def compiled_call(call: _compat.JitCall) -> tuple[Any, Seen] | None:
    """The function that compiles, as the user wrote it, and its call; None of a backward pass, which has none."""
    if call.function is None:
        return None
    function, args, kwargs, options, filtered = call.function, call.args, call.kwargs, call.options, False
    if args and isinstance(args[0], Static):
        *wrapper, args, kwargs = args[0].merge(args[1:])
        function, options = unwrapped(wrapper[0]) if wrapper else function, {}
    elif getattr(getattr(function, "__code__", None), "co_name", "") == "fun_wrapped":
        seen = next((variables(f) for f in frames() if _is_named(f, _FILTER_JIT, "_call")), {})
        if "jit_wrapper" in seen:
            function, args, kwargs, options = seen["jit_wrapper"].__wrapped__, seen["args"], seen["kwargs"], {}
            filtered = True
    elif is_own(function):
        for frame in frames():
            seen = variables(frame) if "self" in frame.f_code.co_varnames else {}
            if isinstance(seen.get("self"), Transform) and "args" in seen and "kwargs" in seen:
                args, kwargs = _keyed(seen["self"], seen["args"], seen["kwargs"])
                function, options = unwrapped(seen["self"]), {}
                break
    concrete = call.concrete if function is call.function else ()
    return function, seen_of(function, args, kwargs, options, call.transforms, concrete=concrete, filtered=filtered)


def guarded_call(scope: Scope) -> Seen:
    """The call that a guard is around, with what is bound to the function in front."""
    args, kwargs = _keyed(scope.fn, scope.args, dict(scope.kwargs))
    fn: Any = unwrapped(scope.fn)
    while True:
        if isinstance(fn, types.MethodType):
            fn, args = fn.__func__, (fn.__self__, *args)
        elif isinstance(fn, (functools.partial, eqx.Partial)):
            fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
        else:
            break
    filtered = type(fn).__module__ == _FILTER_JIT
    function, options = (fn.__wrapped__, {}) if filtered else _compat.jit_options(fn) or (fn, {})
    transforms = _compat.transforms_around(frame_of(scope))
    return seen_of(function, args, kwargs, options, transforms, filtered=filtered)


def _keyed(fn: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments as far as the programs of the transforms around a function depend on them."""
    while isinstance(fn, Transform):
        args, kwargs = fn._keyed(args, kwargs)
        fn = fn.fn
    return args, kwargs


def _is_named(frame: types.FrameType, module: str, name: str) -> bool:
    return frame.f_code.co_name == name and frame.f_globals.get("__name__") == module
