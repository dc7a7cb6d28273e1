"""Who is watching what runs now: the guards around it, in this thread and in those that it starts. Not here: what
is concluded from an event.
"""

import concurrent.futures
import contextlib
import contextvars
import functools
import sys
import threading
import types
import weakref
from abc import ABC
from abc import abstractmethod
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from erythroxy_tx import _compat
from erythroxy_tx.core.call_site import frames
from erythroxy_tx.core.call_site import variables
from erythroxy_tx.core.own_work import is_own_work
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

    generation = 0  # how often the caches had been cleared when its programs were compiled
    forgiven = 0  # and when they were compiled again
    forgives: tuple[int, int] | None = None  # the call in which programs that were cleared may compile

    def forgive(self, scope: "Scope", generation: int) -> bool:
        """Whether a call is the first one since the caches were cleared."""
        if max(self.generation, self.forgiven) >= generation:
            return False
        self.forgives = self.forgives or (scope.call, scope.key)
        if self.forgives == (scope.call, scope.key):
            return True
        self.forgiven, self.forgives = generation, None
        return False

    def after_warm(self) -> None:  # noqa: B027  # most do not mind
        """Take notice that a warm-up inside has ended."""


class Scope(NamedTuple):
    """One watcher that is around what runs now, and the call that it guards, if it is no block."""

    watcher: Watcher
    key: int  # what tells it from every other one that is open
    was_armed: bool = False  # when the call began
    call: int = 0  # the how manieth; 0 for a block
    fn: Any = None
    args: tuple = ()
    kwargs: Mapping[str, Any] = types.MappingProxyType({})

    @property
    def armed(self) -> bool:
        """Whether nothing may compile in it now."""
        return self.was_armed if self.call else self.watcher.armed


CALLS: set[types.CodeType] = set()  # of the functions that guard a call, whose frames hold what a `Scope` does
STOPPED: dict[int, RetraceError] = {}  # by the key of a scope: what was stopped inside, in a thread or a callback
_OPEN: list[Scope] = []  # the blocks of all threads
_BLOCKS: contextvars.ContextVar[tuple[Scope, ...]] = contextvars.ContextVar("blocks", default=())
_WARMING: contextvars.ContextVar[int] = contextvars.ContextVar("warming", default=0)
_LENT: contextvars.ContextVar[tuple[Scope, ...]] = contextvars.ContextVar("lent", default=())  # by another thread
_STARTED_IN: "weakref.WeakKeyDictionary[threading.Thread, tuple[Scope, ...]]" = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def warm_up() -> Iterator[None]:
    """Compile without being watched, for a warm-up that is due."""
    _WARMING.set(_WARMING.get() + 1)
    try:
        yield
    finally:
        _WARMING.set(max(0, _WARMING.get() - 1))


def is_unwatched() -> bool:
    """Whether what compiles now is a warm-up, or for work of the library's own."""
    return _WARMING.get() > 0 or is_own_work()


@contextlib.contextmanager
def warming(warm: set[Any], key: Any) -> Iterator[None]:
    """Compile for a further one of several programs, each of which warms up once: the first is watched as any."""
    with warm_up() if warm and key not in warm else contextlib.nullcontext():
        yield
    warm.add(key)


def enter(watcher: Watcher) -> None:
    """Put a watcher around what follows, in this context."""
    scope = Scope(watcher, id(mark := object()), kwargs=types.MappingProxyType({"": mark}))
    _OPEN.append(scope)
    _BLOCKS.set((scope, *_BLOCKS.get()))


def leave(watcher: Watcher, error: BaseException | None) -> None:
    """Take it away again: of several of it the last one here, or else in any context."""
    here = _BLOCKS.get()
    scope = next((s for s in [*here, *reversed(_OPEN)] if s.watcher is watcher), None)
    if scope is None:
        return
    _BLOCKS.set(tuple(s for s in here if s is not scope))
    _OPEN[:] = [s for s in _OPEN if s is not scope]
    raise_stopped(scope.key, error)


def raise_stopped(key: int, error: BaseException | None) -> None:
    """Raise what was stopped in a thread or a callback inside, from where it does not arrive by itself."""
    if isinstance(error, RetraceError):
        vars(error).pop("__notes__", None)  # of frames that JAX left out
    found = STOPPED.get(key)
    if found is None:
        return
    for each in [each for each, value in STOPPED.items() if value is found]:
        del STOPPED[each]
    if error is not found:
        raise found from error


def around() -> tuple[list[Scope], bool]:
    """The scopes around what runs now, calls before blocks and the innermost first, none in work of the library's own;
    and whether an error that is raised now reaches them by itself.
    """
    if is_unwatched():
        return [], True
    is_open = {id(scope) for scope in _OPEN}
    here = [*_calls(sys._getframe()), *(scope for scope in _BLOCKS.get() if id(scope) in is_open)]
    if here:
        return here, True
    if lent := _LENT.get() or _STARTED_IN.get(threading.current_thread(), ()):
        running = {scope.key for scope in _running()}
        return [scope for scope in lent if scope.key in running], False
    if _compat.in_callback_thread():  # a callback does not know whose it is; where one call is guarded it is that one's
        return _running(), False
    return [], True


def _calls(frame: types.FrameType | None) -> Iterator[Scope]:
    """The guarded calls on a stack."""
    while frame is not None:
        if frame.f_code in CALLS:
            seen = variables(frame)
            if "armed" in seen:
                fn, args, kwargs = seen["inner"], seen["args"], seen["kwargs"]
                yield Scope(seen["warmth"], id(kwargs), seen["armed"], seen["call"], fn, args, kwargs)
        frame = frame.f_back


def frame_of(scope: Scope) -> types.FrameType | None:
    """The frame of a guarded call, if it is one of this thread's."""
    return next((f for f in frames() if f.f_code in CALLS and variables(f)["kwargs"] is scope.kwargs), None)


def _running() -> list[Scope]:
    """The scopes of every thread."""
    return [scope for frame in sys._current_frames().values() for scope in _calls(frame)] + _OPEN


def _lendable() -> tuple[Scope, ...]:
    """The scopes around what runs now, without what their calls hold."""
    return tuple(scope._replace(fn=None, args=(), kwargs=types.MappingProxyType({})) for scope in around()[0])


@functools.cache
def follow_threads() -> None:
    """Remember, from now on, inside of which scopes a thread is started, and work is given to a pool: Python itself
    does not tell.
    """
    start: Any = threading.Thread.start
    submit: Any = concurrent.futures.ThreadPoolExecutor.submit

    @functools.wraps(start)
    def started(self: threading.Thread) -> None:
        if found := _lendable():
            _STARTED_IN[self] = found
        start(self)

    @functools.wraps(submit)
    def submitted(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        found = _lendable()
        return submit(self, functools.partial(_lent, found, fn) if found else fn, *args, **kwargs)

    threading.Thread.start = started  # type: ignore[method-assign]
    concurrent.futures.ThreadPoolExecutor.submit = submitted  # type: ignore[method-assign]


def _lent(scopes: tuple[Scope, ...], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    token = _LENT.set(scopes)
    try:
        return fn(*args, **kwargs)
    finally:
        _LENT.reset(token)
