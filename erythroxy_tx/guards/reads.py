"""Device arrays that the host reads, as it happens: who is told, and who may refuse. Not here: what a read is called
(`look.py`), and what is done about it.
"""

import contextlib
import contextvars
import threading
import time
import types
import weakref
from abc import ABC
from abc import abstractmethod
from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import Self

from erythroxy_tx import _compat
from erythroxy_tx.core.own_work import is_own_work
from erythroxy_tx.guards.look import Look
from erythroxy_tx.guards.look import look


class Read(NamedTuple):
    """One array that was read: how and where, its bytes, and the seconds that the host stood still in it."""

    look: Look
    nbytes: int
    seconds: float
    goes_on: bool  # with a `jax.device_get` that was counted already


class Watch(ABC):
    """What is told of every read in the block that it opens: in this thread, and in this context of it.

    A read that copies nothing, as the host has the value already, is none: the second one of an array, say. Nor is
    one by a host callback, or by a check of this library's own.
    """

    is_open = False

    def __enter__(self) -> Self:
        if self.is_open:
            raise RuntimeError("a block that watches reads is open already. Expected one of its own. Fix: another one.")
        _install(self)
        self._thread, self.is_open = threading.get_ident(), True
        _OPEN.set((*_OPEN.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        self.is_open = False
        _OPEN.set(tuple(watch for watch in _OPEN.get() if watch is not self))
        _uninstall(self)

    def is_here(self) -> bool:
        """Whether what runs is what it watches; a context may have been copied, to another thread or until later."""
        return self.is_open and self._thread == threading.get_ident()

    def before(self, look: Look, array: Any) -> None:  # noqa: B027  # most do not mind
        """Refuse a read, by an error."""

    @abstractmethod
    def after(self, read: Read) -> None:
        """Take a read that was done."""

    def reading(self) -> contextlib.AbstractContextManager[Any]:
        """What a read runs in."""
        return contextlib.nullcontext()


_OPEN: contextvars.ContextVar[tuple[Watch, ...]] = contextvars.ContextVar("watches of reads", default=())
_LOCK = threading.RLock()
_INSTALLED: set[int] = set()  # for whom the hook is in
_KNOWN: dict[int, weakref.ref] = {}  # arrays whose values the host has, which JAX remembers of some alone


def _install(watch: Watch) -> None:
    with _LOCK:
        if not _INSTALLED:
            _compat.check_stand_in()
            _INSTALLED.add(id(watch))  # first: an interrupt leaves what the next one to leave takes out again
            _compat.stand_in_reads(_hook)
        _INSTALLED.add(id(watch))


def _uninstall(watch: Watch) -> None:
    with _LOCK:
        _INSTALLED.discard(id(watch))
        if not _INSTALLED:
            _compat.give_reads_back()
            _KNOWN.clear()


def _hook(array: Any, read: Callable[[], Any]) -> Any:
    if not (watches := _OPEN.get()) or not (watches := tuple(watch for watch in watches if watch.is_here())):
        return read()
    looked = None if _is_known(array) or is_own_work() else look()
    if looked is None:
        return _through(watches, read)
    seen, goes_on = looked
    for watch in watches if not goes_on else ():
        watch.before(seen, array)
    begin = time.perf_counter()
    value = _through(watches, read)
    done = Read(seen, int(array.nbytes), time.perf_counter() - begin, goes_on)
    _KNOWN[id(array)] = weakref.ref(array, _forget(id(array)))
    for watch in watches:
        watch.after(done)
    return value


def _through(watches: tuple[Watch, ...], read: Callable[[], Any]) -> Any:
    """Read, in what each watch says."""
    if not watches:
        return read()
    with watches[0].reading():
        return _through(watches[1:], read)


def _is_known(array: Any) -> bool:
    found = _KNOWN.get(id(array))
    return (found is not None and found() is array) or _compat.was_read(array)


def _forget(key: int) -> Callable[[Any], None]:
    def forget(gone: Any) -> None:
        if _KNOWN.get(key) is gone:
            del _KNOWN[key]

    return forget
