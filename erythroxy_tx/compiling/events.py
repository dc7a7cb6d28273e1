"""What compiles, as it happens: each event goes to the recorders that listen, and to the watchers around it, which
may stop it. Not here: who is around (`scope.py`), and what a message says (`reason.py`).
"""

import dataclasses
import functools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any
from typing import Protocol

from erythroxy_tx import _compat
from erythroxy_tx.compiling.changes import changes
from erythroxy_tx.compiling.history import History
from erythroxy_tx.compiling.loops import is_made_anew
from erythroxy_tx.compiling.reason import retrace_error
from erythroxy_tx.compiling.scope import STOPPED
from erythroxy_tx.compiling.scope import Scope
from erythroxy_tx.compiling.scope import around
from erythroxy_tx.compiling.scope import follow_threads
from erythroxy_tx.compiling.seen import Seen
from erythroxy_tx.compiling.seen import is_own
from erythroxy_tx.compiling.seen import seen_of
from erythroxy_tx.core.call_site import frames
from erythroxy_tx.core.call_site import user_line
from erythroxy_tx.core.call_site import variables
from erythroxy_tx.core.static import Static
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.errors import RetraceError


@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that JAX did: `stage` is `"trace"`, `"lowering"`, `"compile"`, or `"cache hit"` on the disk."""

    stage: str
    name: str
    seconds: float
    thread: str
    line: str


class Listener(Protocol):
    """What is told of every event in the process, after it ended."""

    def heard(self, event: Event) -> None:
        """Take an event."""


HISTORY = History()  # of what was compiled
CALLS = History()  # of the calls that were guarded
LISTENERS: "weakref.WeakSet[Any]" = weakref.WeakSet()
_STAGES = ("trace", "lowering", "compile")
_LOG = logging.getLogger("erythroxy_tx")


class _Thread(threading.local):
    allowed: tuple[str, str] = "", ""  # the last event that was not stopped: its stage and name
    found_on_disk = False


_THREAD = _Thread()


def listen() -> None:
    """Hear of events from now on, again where others removed the listeners."""
    _register()()
    follow_threads()


@functools.cache
def _register() -> Callable[[], None]:
    return _compat.listen(_started, _ended, _found_on_disk)


def _started(stage: str, name: str) -> None:
    name = name.removeprefix("jit(").removesuffix(")")
    before, of = _THREAD.allowed
    _THREAD.allowed = "", ""
    if not (of == name and before in _STAGES and _STAGES.index(before) + 1 == _STAGES.index(stage)):
        _judge(stage, name)
    _THREAD.allowed = stage, name


def _judge(stage: str, name: str) -> None:
    """Stop what nothing may compile around, and remember what may."""
    call, now = _compat.running_jit_call(), None
    if call is not None:
        call = _as_written(call)
    if call is not None and call.function is not None:
        now = seen_of(call.function, call.args, call.kwargs, call.options, call.transforms)
    earlier = HISTORY.of(call.function) if call is not None and now is not None else []
    scopes, arrives = around()
    armed = next((scope for scope in scopes if scope.watcher.armed or _is_made_anew(scope)), None)
    if armed is not None:
        if not _was_cleared(earlier, now):
            error = _stop(scopes, armed, stage, name, call, now, earlier)
            if not arrives or (call is not None and call.in_callback):
                STOPPED.update((scope.key, error) for scope in scopes)
            raise error
        _LOG.warning(
            "%s: %s is compiled again, as jax.clear_caches() was called", armed.watcher.label(armed.call), name
        )
    if call is not None and now is not None:
        HISTORY.add(call.function, now)


def _was_cleared(earlier: list[Seen], now: Seen | None) -> bool:
    """Whether a call was compiled for, and was forgotten since by `jax.clear_caches()`."""
    same = [seen for seen in earlier if now is not None and not changes(seen, now)]
    return bool(same) and all(now is not None and seen.generation < now.generation for seen in same)


def _stop(
    scopes: list[Scope], armed: Scope, stage: str, name: str, call: Any, now: Seen | None, earlier: list[Seen]
) -> RetraceError:
    outer: tuple[Seen | None, list[Seen]] = None, []
    if armed.fn is not None:
        outer = guarded_call(armed, call.transforms if call is not None else ()), CALLS.of(armed.fn)
    line = user_line()
    return retrace_error(scopes, armed, stage, name, call, now, inner=earlier, outer=outer, line=line)


def _as_written(call: _compat.JitCall) -> _compat.JitCall:
    """The call that the user made, where what compiles for it is a program of the library's own."""
    if call.args and isinstance(call.args[0], Static):
        *wrapper, args, kwargs = call.args[0].merge(call.args[1:])
        function = unwrapped(wrapper[0]) if wrapper else call.function
        return call._replace(function=function, args=args, kwargs=kwargs, options={})
    for frame in frames() if is_own(call.function) else ():
        seen = variables(frame) if "self" in frame.f_code.co_varnames else {}
        if isinstance(seen.get("self"), Transform) and "args" in seen and "kwargs" in seen:
            args, kwargs = _keyed(seen["self"], seen["args"], seen["kwargs"])
            return call._replace(function=unwrapped(seen["self"]), args=args, kwargs=kwargs, options={})
    return call


def _keyed(fn: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    while isinstance(fn, Transform):
        args, kwargs = fn._keyed(args, kwargs)
        fn = fn.fn
    return args, kwargs


def guarded_call(scope: Scope, transforms: tuple[str, ...] = ()) -> Seen:
    """A call of a guarded function, jitted or not."""
    function, options = _compat.jit_options(unwrapped(scope.fn)) or (unwrapped(scope.fn), {})
    return seen_of(function, *_keyed(scope.fn, scope.args, scope.kwargs), options, transforms)


def _is_made_anew(scope: Scope) -> bool:
    return scope.fn is not None and is_made_anew(scope, guarded_call(scope))


def _ended(stage: str, name: str, seconds: float) -> None:
    hit, _THREAD.found_on_disk = _THREAD.found_on_disk and stage == "compile", False
    if not LISTENERS:
        return
    name = name.removeprefix("jit(").removesuffix(")")
    event = Event("cache hit" if hit else stage, name, seconds, threading.current_thread().name, user_line())
    for listener in list(LISTENERS):
        listener.heard(event)


def _found_on_disk() -> None:
    _THREAD.found_on_disk = True
