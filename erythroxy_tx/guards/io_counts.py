"""What the kernel counts for this thread: bytes that it read, that came from the disk, and that go there. Not here:
what is concluded from them (`unseen.py`).
"""

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

from erythroxy_tx import _compat
from erythroxy_tx.guards.paths import link

_FILE = "/proc/thread-self/io"
_LONGEST = 512  # bytes of it


class Counts(NamedTuple):
    """Bytes since the thread began, without those of compiles and of counting itself."""

    asked: int  # what calls of `read` returned: of files, cached or not, but of pipes too; not of sockets
    fetched: int  # what the disk was read for: by such calls, and for pages of mapped files
    dirtied: int  # pages that have to go to the disk

    def since(self, earlier: "Counts") -> "Counts":
        """What was added."""
        return Counts(self.asked - earlier.asked, self.fetched - earlier.fetched, self.dirtied - earlier.dirtied)


class _Counter:
    """The open file of one thread. To open it at each look would cost four times as much."""

    def __init__(self) -> None:
        self.process, self.descriptor = os.getpid(), -1
        self.descriptor = os.open(_FILE, os.O_RDONLY)

    def read(self) -> bytes:
        return os.pread(self.descriptor, _LONGEST, 0) if self.process == os.getpid() else b""

    def __del__(self) -> None:
        is_mine = not sys.is_finalizing() and link(self.descriptor).startswith("/proc/")
        if is_mine:  # else somebody closed it, and the number is another file's
            os.close(self.descriptor)


class _Thread(threading.local):
    counter: _Counter | None = None
    own = 0  # bytes that were read to count
    in_compiles = Counts(0, 0, 0)
    compiling: Counts | None = None


_THREAD = _Thread()


def counts() -> Counts | None:
    """The counts of this thread at this moment; None where the system has none."""
    text = _text()
    if not text:
        return None
    fields, own, skipped = text.split(), _THREAD.own, _THREAD.in_compiles
    _THREAD.own += len(text)
    asked, fetched, dirtied = (int(fields[at]) for at in (1, 9, 11))
    return Counts(asked - own - skipped.asked, fetched - skipped.fetched, dirtied - skipped.dirtied)


def _text() -> bytes:
    for again in (False, True):
        try:
            if _THREAD.counter is None or again:  # after a fork, or where its descriptor was closed
                _THREAD.counter = _Counter()
            text = _THREAD.counter.read()
        except OSError:
            text = b""
        if text.startswith(b"rchar"):
            return text
    return b""


def without_compiles() -> None:
    """Leave out, from now on, what a compile reads and writes: its cache, its tools and their files."""
    _register()()


@functools.cache
def _register() -> Callable[[], None]:
    return _compat.listen(_started, _ended, lambda: None)


def _started(stage: str, name: str) -> None:  # noqa: ARG001  # as JAX tells it
    if stage == "compile" and _THREAD.counter is not None:
        _THREAD.compiling = counts()


def _ended(stage: str, name: str, seconds: float) -> None:  # noqa: ARG001
    begun = _THREAD.compiling
    if stage == "compile" and begun is not None and (now := counts()) is not None:
        more, before = now.since(begun), _THREAD.in_compiles
        _THREAD.in_compiles = Counts(*(a + b for a, b in zip(before, more, strict=True)))
        _THREAD.compiling = None
