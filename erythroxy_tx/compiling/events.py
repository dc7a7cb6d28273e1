"""What compiles, as it happens: each event goes to the recorders that listen, and to the watchers around it, which
may stop it. Not here: who is around (`scope.py`), and what a message says (`reason.py`).
"""

import dataclasses
import functools
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any
from typing import Protocol

from erythroxy_tx import _compat
from erythroxy_tx.compiling.calls import compiled_call
from erythroxy_tx.compiling.calls import guarded_call
from erythroxy_tx.compiling.calls import looked_at
from erythroxy_tx.compiling.changes import changes
from erythroxy_tx.compiling.history import History
from erythroxy_tx.compiling.loops import is_made_anew
from erythroxy_tx.compiling.reason import retrace_error
from erythroxy_tx.compiling.scope import STOPPED
from erythroxy_tx.compiling.scope import Scope
from erythroxy_tx.compiling.scope import around
from erythroxy_tx.compiling.scope import follow_threads
from erythroxy_tx.compiling.seen import Seen
from erythroxy_tx.core.call_site import user_line
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
_BEFORE = {"lowering": "trace", "compile": "lowering"}
_LOG = logging.getLogger("erythroxy_tx")


class _Thread(threading.local):
    allowed: tuple[str, int] | None = None  # the last event that was not stopped: its stage, and the key of its call
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
    """Judge what begins. The stages of one call follow each other, and are judged as one."""
    name = name.removeprefix("jit(").removesuffix(")")
    call = _compat.running_jit_call()
    before, _THREAD.allowed = _THREAD.allowed, None
    goes_on = call is not None and (call.is_rerun or before == (_BEFORE.get(stage), call.key))
    if not goes_on:
        _judge(stage, name, call)
    if call is not None and not call.only_traced:
        _THREAD.allowed = stage, call.key


def _judge(stage: str, name: str, call: _compat.JitCall | None) -> None:
    """Stop what nothing may compile around, and remember what may."""
    function, now = (looked_at(compiled_call, call) if call is not None else None) or (None, None)
    earlier = HISTORY.of(function) if now is not None else []
    scopes, arrives = around()
    armed = next((scope for scope in scopes if scope.armed or is_made_anew(scope)), None)
    if armed is not None:
        if not _was_cleared(armed, earlier, now, call):
            error = _stop(scopes, armed, stage, name, call and call._replace(function=function), now, earlier)
            if not arrives or (call is not None and call.in_callback):
                STOPPED.update((scope.key, error) for scope in scopes)
            raise error
        _LOG.warning(
            "%s: %s is compiled again, as jax.clear_caches() was called", armed.watcher.label(armed.call), name
        )
    if now is not None:
        HISTORY.add(function, now)


def _was_cleared(armed: Scope, earlier: list[Seen], now: Seen | None, call: _compat.JitCall | None) -> bool:
    """Whether a call was compiled for, and was forgotten since by `jax.clear_caches()`.

    Of JAX's own functions, and of derivatives, it is not always known what they were compiled for: in the first call
    of a function after the caches were cleared these may compile.
    """
    is_first = armed.watcher.forgive(armed, _compat.caches_cleared())
    if now is None or call is None:
        return is_first
    ignored = {"function", "transform"} if call.api else set()
    same = [seen for seen in earlier if {change.kind for change in changes(seen, now)} <= ignored]
    since = [seen.generation for seen in same if seen.generation >= armed.watcher.generation]
    known = bool(since) and max(since) < now.generation
    return known or (is_first and (bool(call.api) or not earlier))


def _stop(
    scopes: list[Scope], armed: Scope, stage: str, name: str, call: Any, now: Seen | None, earlier: list[Seen]
) -> RetraceError:
    outer: tuple[Seen | None, list[Seen]] = None, []
    if armed.fn is not None:
        outer = looked_at(guarded_call, armed), CALLS.of(armed.fn)
    line = user_line()
    return retrace_error(scopes, armed, stage, name, call, now, inner=earlier, outer=outer, line=line)


def _ended(stage: str, name: str, seconds: float) -> None:
    hit, _THREAD.found_on_disk = _THREAD.found_on_disk and stage == "compile", False
    if sys.exc_info()[0] is not None:
        _THREAD.allowed = None  # it failed
    if not LISTENERS:
        return
    name = name.removeprefix("jit(").removesuffix(")")
    event = Event("cache hit" if hit else stage, name, seconds, threading.current_thread().name, user_line())
    for listener in list(LISTENERS):
        listener.heard(event)


def _found_on_disk() -> None:
    _THREAD.found_on_disk = True
