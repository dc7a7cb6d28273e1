"""Reads and writes of a block that nobody announced, found at its end from what the kernel counted: through descriptors
that were open before, by native code, and through mapped files. Not here: those that Python announces (`disk.py`).
"""

import asyncio
import collections
import math
import os
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

from erythroxy_tx.guards.io_counts import Counts
from erythroxy_tx.guards.io_counts import counts
from erythroxy_tx.guards.io_counts import without_compiles
from erythroxy_tx.guards.paths import Place
from erythroxy_tx.guards.paths import link

LEAST = 2**16  # bytes of a block: fewer may be wake-ups of threads
_LEAST_MAPPED = 2**26  # before it is worth to look at what is mapped
_PAGE = 4096
_SHOWN = 3  # files of a message
_DESCRIPTORS, _PAGES = "descriptors that were open before, or native code", "pages of mapped files"
_KINDS = {os.O_RDONLY: ("read",), os.O_WRONLY: ("write",), os.O_RDWR: ("read", "write")}


class Found(NamedTuple):
    """What was read or written: its bytes, by which way, and the files that it may have been."""

    kind: str
    nbytes: int
    way: str
    files: list[str]


class Unseen:
    """What one block reads and writes but for what was announced."""

    def __init__(self) -> None:
        without_compiles()
        self._known = {"read": 0.0, "write": 0.0}
        self._turns, self._printed, self._begun = _turns(), _printed(), counts()

    def announce(self, *, read: float = 0, write: float = 0) -> None:
        """Expect so many bytes."""
        self._known = {"read": self._known["read"] + read, "write": self._known["write"] + write}

    def found(self, allow: tuple[str, ...]) -> Found | None:
        """What else the block read or wrote, but for what is allowed."""
        now = counts()
        if now is None or self._begun is None or self._turns != _turns():  # other tasks of the loop had a turn
            return None
        here = now.since(self._begun)
        _THREAD.mapped += max(0, here.fetched - here.asked)
        found = None
        if here.asked - self._known["read"] >= LEAST or here.dirtied - self._known["write"] >= LEAST:
            found = self._through_descriptors(here, allow)
        return _through_pages(allow) if found is None and _THREAD.mapped >= _THREAD.enough else found

    def _through_descriptors(self, here: Counts, allow: tuple[str, ...]) -> Found | None:
        files, known = list(_open_files()), dict(self._known)
        for each in files:
            if each.place.is_in(allow):
                known |= dict.fromkeys(each.kinds, math.inf)
        if printed := max(0, _printed() - self._printed):
            known["write"] += printed + 2 * _PAGE
        for kind, nbytes in (("write", here.dirtied), ("read", here.asked)):
            if nbytes - known[kind] < LEAST or (kind == "read" and _hears_others(files)):
                continue
            mine = [f.place for f in files if kind in f.kinds and f.descriptor not in (1, 2)]
            names = [place.real for place in mine if place.is_on_disk and place.exists]
            return Found(kind, int(nbytes - known[kind]), _DESCRIPTORS, names[:_SHOWN])
        return None


class _Thread(threading.local):
    mapped = 0  # bytes that were fetched for pages of mapped files, in all blocks
    enough = _LEAST_MAPPED
    turns = 0  # of the event loop, as far as they were counted
    loop: asyncio.AbstractEventLoop | None = None  # whose next turn will be counted


_THREAD = _Thread()


class _OpenFile(NamedTuple):
    descriptor: int
    place: Place
    kinds: tuple[str, ...]


def _open_files() -> Iterator[_OpenFile]:
    import fcntl  # which Windows has not, nor what is listed here

    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # pathlib would be the one that asks
        try:
            mode = fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE
        except OSError:  # closed in the meantime, as the one of the list itself
            continue
        path = link(name)
        yield _OpenFile(int(name), Place(path, path), _KINDS.get(mode, ()))


def _hears_others(files: list[_OpenFile]) -> bool:
    """Whether what was read may have come from another process: Python reads its pipes and sockets as it does files."""
    if "multiprocessing.connection" in sys.modules and any(f.place.real.startswith("socket:") for f in files):
        return True
    if not any(f.place.real.startswith("pipe:") and "read" in f.kinds and f.descriptor for f in files):
        return False
    from multiprocessing import parent_process  # at the end of a block, and rarely

    if parent_process() is not None:
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _through_pages(allow: tuple[str, ...]) -> Found | None:
    """What was read for pages of mapped files, once it is more than all code that is mapped, which comes in so too."""
    rights: dict[str, set[str]] = collections.defaultdict(set)
    with open("/proc/self/maps", errors="replace") as maps:  # noqa: PTH123  # likewise
        for line in maps:
            _, right, _, _, _, *path = line.rstrip("\n").split(maxsplit=5)
            if path and path[0].startswith("/"):
                rights[path[0]] |= set(right)
    sizes = {path: Place(path, path).nbytes for path in rights if Place(path, path).is_on_disk}
    code = sum(size for path, size in sizes.items() if "x" in rights[path])
    data = [path for path in sizes if "x" not in rights[path] and not path.startswith("/usr/")]  # a language, a font
    data.sort(key=lambda path: -sizes[path])
    nbytes, is_allowed = _THREAD.mapped, any(Place(path, path).is_in(allow) for path in data)
    if nbytes < code or not data or is_allowed:
        _THREAD.enough = max(code, 2 * nbytes)
        return None
    _THREAD.mapped, _THREAD.enough = 0, _LEAST_MAPPED
    return Found("read", nbytes, _PAGES, data[:_SHOWN])


def _printed() -> int:
    """How much was printed, where that goes to files."""
    total = 0
    for stream in (1, 2):
        try:
            total += os.lseek(stream, 0, os.SEEK_CUR)
        except OSError:  # a terminal, a pipe, nothing
            continue
    return total


def _turns() -> int:
    """How many turns the event loop had in which it was asked: within one, no other task runs."""
    loop = asyncio._get_running_loop()
    if loop is not None and _THREAD.loop is not loop:
        _THREAD.loop = loop
        loop.call_soon(_turned)
    return _THREAD.turns


def _turned() -> None:
    _THREAD.turns, _THREAD.loop = _THREAD.turns + 1, None
