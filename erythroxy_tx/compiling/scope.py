"""Who is watching what runs now: the guards around it, in this thread and in those that it starts. Not here: what
is concluded from an event.
"""

import contextlib
import contextvars
import functools
import sys
import threading
import weakref
from abc import ABC
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from erythroxy_tx import _compat
from erythroxy_tx.errors import RetraceError


class Watcher(ABC):
    """What stands around code in which nothing may compile."""

    @property
    @abstractmethod
    def armed(self) -> bool:
        """Whether nothing may compile now."""

    @abstractmethod
    def label(self, call: int) -> str:
        """What to call it in a message."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """What was promised, in words."""

    def after_warm(self) -> None:  # noqa: B027  # most do not mind
        """Take notice that a warm-up inside has ended."""


class Scope(NamedTuple):
    """One watcher that is around what runs now, and the call that it guards."""

    watcher: Watcher
    call: int  # the how manieth
    fn: Any
    args: tuple
    kwargs: dict[str, Any]
    outer: "Scope | None"


OWN_WORK: Any = object()  # in place of a scope: what the library compiles for itself
NOW: contextvars.ContextVar[Any] = contextvars.ContextVar("watched", default=None)
_STARTED_IN: "weakref.WeakKeyDictionary[threading.Thread, Scope]" = weakref.WeakKeyDictionary()
STOPPED: dict[int, RetraceError] = {}  # by the id of a scope: what was stopped inside, in a thread or a callback
_OPEN: list[Scope] = []  # of blocks; the calls that are guarded are on the stacks of their threads


@contextlib.contextmanager
def own_work() -> Iterator[None]:
    """Compile without being watched: for a check of the library's own, or a warm-up that is due."""
    token = NOW.set(OWN_WORK)
    try:
        yield
    finally:
        NOW.reset(token)


@contextlib.contextmanager
def warming(warm: set[Any], key: Any) -> Iterator[None]:
    """Compile for a further one of several programs, each of which warms up once: the first is watched as any."""
    with own_work() if warm and key not in warm else contextlib.nullcontext():
        yield
    warm.add(key)


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Put a watcher around a block."""
    scope = Scope(watcher, 0, None, (), {}, NOW.get())
    _OPEN.append(scope)
    token = NOW.set(scope)
    try:
        yield
    except BaseException as error:
        raise_stopped(scope, error)
        raise
    else:
        raise_stopped(scope, None)
    finally:
        NOW.reset(token)
        _OPEN.remove(scope)


def raise_stopped(scope: Scope, error: BaseException | None) -> None:
    """Raise what was stopped in a thread or a callback inside, from where it does not arrive by itself."""
    if isinstance(error, RetraceError):
        vars(error).pop("__notes__", None)  # of frames that JAX left out
    found = STOPPED.get(id(scope))
    if found is None:
        return
    for key in [key for key, value in STOPPED.items() if value is found]:
        del STOPPED[key]
    if error is not found:
        raise found from error


def around() -> list[Scope]:
    """The scopes around what runs now, the innermost first; none in work of the library's own."""
    scope = NOW.get()
    if scope is None and (parent := _STARTED_IN.get(threading.current_thread())) is not None:
        scope = parent if _is_running(parent) else None
    if scope is None and _compat.in_callback_thread():
        running = _running()  # a callback does not know whose it is; where one call is guarded it is that one's
        scope = running[-1] if running else None
    found = []
    while isinstance(scope, Scope):
        found.append(scope)
        scope = scope.outer
    return [] if scope is OWN_WORK else found


def _running() -> list[Scope]:
    """The scopes of every thread."""
    found = list(_OPEN)
    for frame in sys._current_frames().values():
        at: Any = frame
        while at is not None:
            if at.f_globals.get("__name__") == "erythroxy_tx.transforms.no_recompile":
                found += [scope for scope in (at.f_locals.get("scope"),) if isinstance(scope, Scope)]
            at = at.f_back
    return found


def _is_running(scope: Scope) -> bool:
    return any(scope is other for other in _running())


@functools.cache
def follow_threads() -> None:
    """Remember, from now on, inside of which scope a thread was started: Python itself does not tell."""
    start = threading.Thread.start

    @functools.wraps(start)
    def followed(self: threading.Thread) -> None:
        if isinstance(scope := NOW.get(), Scope):
            _STARTED_IN[self] = scope
        start(self)

    threading.Thread.start = followed  # type: ignore[method-assign]
