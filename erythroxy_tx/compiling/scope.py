"""Who is watching what runs now: the guards around it, in this thread and in those that it starts. Not here: what
is concluded from an event.
"""

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
from typing import Any
from typing import NamedTuple

from erythroxy_tx import _compat
from erythroxy_tx.core.call_site import variables
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
    """One watcher that is around what runs now, and the call that it guards, if it is no block."""

    watcher: Watcher
    call: int = 0  # the how manieth
    fn: Any = None
    args: tuple = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012  # each call's own: it tells calls apart

    @property
    def key(self) -> int:
        """What tells it from every other one that is open."""
        return id(self.watcher if self.fn is None else self.kwargs)


CALLS: set[types.CodeType] = (
    set()
)  # of the functions that guard a call; its frame has `warmth`, `call`, `inner`, `args`
STOPPED: dict[int, RetraceError] = {}  # by the key of a scope: what was stopped inside, in a thread or a callback
_OPEN: list[Scope] = []  # the blocks of all threads
_BLOCKS: contextvars.ContextVar[tuple[Scope, ...]] = contextvars.ContextVar("blocks", default=())
_OWN_WORK: contextvars.ContextVar[bool] = contextvars.ContextVar("own work", default=False)
_STARTED_IN: "weakref.WeakKeyDictionary[threading.Thread, list[Scope]]" = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def own_work() -> Iterator[None]:
    """Compile without being watched: for a check of the library's own, or a warm-up that is due."""
    token = _OWN_WORK.set(True)
    try:
        yield
    finally:
        _OWN_WORK.reset(token)


def is_own_work() -> bool:
    """Whether what runs now is not watched."""
    return _OWN_WORK.get()


@contextlib.contextmanager
def warming(warm: set[Any], key: Any) -> Iterator[None]:
    """Compile for a further one of several programs, each of which warms up once: the first is watched as any."""
    with own_work() if warm and key not in warm else contextlib.nullcontext():
        yield
    warm.add(key)


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Put a watcher around a block."""
    scope = Scope(watcher)
    _OPEN.append(scope)
    token = _BLOCKS.set((scope, *_BLOCKS.get()))
    try:
        yield
    except BaseException as error:
        raise_stopped(scope.key, error)
        raise
    else:
        raise_stopped(scope.key, None)
    finally:
        _BLOCKS.reset(token)
        _OPEN.remove(scope)


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
    if is_own_work():
        return [], True
    here = [*_calls(sys._getframe()), *_BLOCKS.get()]
    if here:
        return here, True
    if (started := _STARTED_IN.get(threading.current_thread())) is not None:
        running = {scope.key for scope in _running()}
        return [scope for scope in started if scope.key in running], False
    if _compat.in_callback_thread():  # a callback does not know whose it is; where one call is guarded it is that one's
        return _running(), False
    return [], True


def _calls(frame: types.FrameType | None) -> Iterator[Scope]:
    """The guarded calls on a stack."""
    while frame is not None:
        if frame.f_code in CALLS:
            seen = variables(frame)
            if "call" in seen:
                yield Scope(*(seen[name] for name in ("warmth", "call", "inner", "args", "kwargs")))
        frame = frame.f_back


def _running() -> list[Scope]:
    """The scopes of every thread."""
    return [scope for frame in sys._current_frames().values() for scope in _calls(frame)] + _OPEN


@functools.cache
def follow_threads() -> None:
    """Remember, from now on, inside of which scopes a thread was started: Python itself does not tell."""
    start = threading.Thread.start

    @functools.wraps(start)
    def followed(self: threading.Thread) -> None:
        if found := around()[0]:
            _STARTED_IN[self] = found
        start(self)

    threading.Thread.start = followed  # type: ignore[method-assign]
