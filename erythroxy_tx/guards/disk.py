"""Reads and writes of the disk that Python announces before they happen: who is told, and who may refuse. Not here:
those that it does not announce (`unseen.py`), and what is done about one.
"""

import contextvars
import functools
import math
import mmap
import os
import sys
import threading
import types
from abc import ABC
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from typing import Self

from erythroxy_tx.core.call_site import frames
from erythroxy_tx.core.call_site import user_frame
from erythroxy_tx.core.own_work import is_own_work
from erythroxy_tx.guards.paths import Place
from erythroxy_tx.guards.paths import place
from erythroxy_tx.guards.unseen import Unseen

# Of each event of Python's: where among its arguments the paths are, and the folders to which these are relative.
_WRITES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.setxattr": ((0, None),),
    "os.removexattr": ((0, None),),
    "shutil.rmtree": ((0, 1),),
}
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn"}
_LOOKS = {"open", "os.listdir", "os.scandir", "mmap.__new__", "sqlite3.connect"}
_LINKS = {"import", "ctypes.dlopen"}
_EVENTS = frozenset({*_LOOKS, *_LINKS, *_WRITES, *_STARTS})
_READ, _WRITE = ("read",), ("write",)
_CHANGING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What reads code and not data: for an import, a message, a language, a time zone. Python's own tracebacks read it in C.
_IMPORTS = {"importlib._bootstrap", "importlib._bootstrap_external", "zipimport"}
_READERS = ("importlib.metadata", "linecache", "tokenize", "gettext", "zoneinfo")  # of code, languages and time zones
_COMPILE = "compile_or_get_cached"  # JAX's, with its cache on disk. 0.10.2, 0.12.0.
_OWN = "erythroxy_tx.guards."
# Bytes that are read and written, as far as one can say: the time of a read is written down, with a page around it.
TIME = 2**14
_LINKED = {"read": 2**12, "write": TIME}  # the heads of native code, which is mapped then
_DRIVER = {"read": 2**22, "write": TIME}  # what the driver of a device reads, when JAX starts it
_PIPES = {"read": math.inf}  # of a process, which are read as files are
_BY_KERNEL = 2**20  # bytes that a file may have which the kernel makes up


class Access(NamedTuple):
    """One access to the disk: to read, to write or both, where, and what Python calls it."""

    kinds: tuple[str, ...]
    place: Place
    event: str

    @property
    def kind(self) -> str:
        """What is worse of the two."""
        return self.kinds[-1]


class Watch(ABC):
    """What is told of every access in the block that it opens: in this thread, and in this context of it.

    None is what touches no disk; what reads or writes code, for an import, a traceback or a compile; and what a check
    of this library's own does. Their bytes are noted in `unseen`.
    """

    unseen: Unseen

    def __enter__(self) -> Self:
        _install()
        self._home = _home()
        self.unseen = Unseen()
        with _LOCK:
            _COUNT[0] += 1
        _OPEN.set((*_OPEN.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        _OPEN.set(tuple(watch for watch in _OPEN.get() if watch is not self))
        with _LOCK:
            _COUNT[0] -= 1

    def is_here(self) -> bool:
        """Whether what runs is what it watches: a context may have been copied to another thread or process."""
        return self._home == _home()

    @abstractmethod
    def refusal(self, access: Access) -> Exception | None:
        """The error of an access that may not be."""


_OPEN: contextvars.ContextVar[tuple[Watch, ...]] = contextvars.ContextVar("watches of the disk", default=())
_LOCK = threading.Lock()
_COUNT = [0]  # of the watches that are open in all threads


def _home() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


@functools.cache
def _install() -> None:
    """Listen. Python knows no way to stop that: while no watch is open, the hook returns at once."""
    count, events = _COUNT, _EVENTS

    def hook(event: str, args: tuple) -> None:
        if count[0] and event in events:
            _judge(event, args)

    sys.addaudithook(hook)


def _judge(event: str, args: tuple) -> None:
    watches = [watch for watch in reversed(_OPEN.get()) if watch.is_here()]
    if not watches or sys._getframe(2).f_globals.get("__name__", "").startswith(_OWN):
        return
    if event in _STARTS or event in _LINKS:
        expected = _PIPES if event in _STARTS else _DRIVER if str(args[0]).startswith("jax_plugins") else _LINKED
        for watch in watches:
            watch.unseen.announce(**expected)
        return
    for access in _accesses(event, args):
        harmless = _harmless(access)
        if harmless is not None:
            for watch in watches:
                watch.unseen.announce(**harmless)
        elif refused := [error for watch in watches if (error := watch.refusal(access)) is not None]:
            raise refused[0]


def _accesses(event: str, args: tuple[Any, ...]) -> Iterator[Access]:
    """What an event will do, to one place or to two."""
    if event in _WRITES:
        for path, folder in _WRITES[event]:
            yield Access(_WRITE, place(args[path], None if folder is None else args[folder]), event)
    elif event == "open":
        yield from _opened(*args)
    elif event == "mmap.__new__":
        if args[0] >= 0:
            yield Access(_WRITE if args[2] == mmap.ACCESS_WRITE else _READ, place(args[0]), event)
    elif event == "sqlite3.connect":
        name = os.fsdecode(args[0])
        if name and ":memory:" not in name and "mode=memory" not in name:
            yield Access(_READ + _WRITE, place(name.removeprefix("file:").partition("?")[0]), event)
    else:
        yield Access(_READ, place(args[0]), event)


def _opened(path: Any, mode: str | None, flags: int | None) -> Iterator[Access]:
    given, flags = mode or "", flags or 0
    kinds = _READ + _WRITE if "+" in given or flags & os.O_RDWR else _READ
    if kinds == _READ and (flags & _CHANGING or set("wax") & set(given)):
        kinds = _WRITE
    if isinstance(path, int):
        if path > 2:  # the streams of the process are its log
            yield Access(kinds, place(path), "open")
        return
    found = place(path)
    is_in_a_folder = mode is None and os.fsdecode(path)[:1] != "/"  # which `os.open` may have been given and not told
    if kinds != _READ or is_in_a_folder or found.exists:  # of what is not there, `open` says so
        yield Access(kinds, found, "open")


def _time_zones() -> tuple[str, ...]:
    """The folders of time zones, which Python reads in C, so that no frame tells."""
    zones = sys.modules.get("zoneinfo")
    return tuple(f"{os.path.realpath(path)}/" for path in getattr(zones, "TZPATH", ()))


def _harmless(access: Access) -> dict[str, float] | None:
    """The bytes that may be counted for an access which is none; else None."""
    real = access.place.real
    if not access.place.is_on_disk:
        if access.kinds == _WRITE or access.event == "mmap.__new__":
            return {}  # which is not counted
        is_short = real.startswith(("/proc/", "/sys/")) and not real.endswith("maps")
        return {"read": _BY_KERNEL if is_short else math.inf}
    code: dict[str, float] = {"read": access.place.nbytes, "write": TIME}
    if access.kinds != _READ or is_own_work():
        code = dict.fromkeys(access.kinds, math.inf)
    if is_own_work():
        return code
    if access.kinds == _READ and (real.endswith((".py", ".pyc")) or real.startswith(_time_zones())):
        return code
    user, is_innermost = user_frame(), True
    for frame in frames():
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module.startswith(_OWN):
            continue
        if is_innermost and module == "shutil" and name.startswith("_rmtree"):
            return {}  # the folder was asked for
        reads = access.kinds == _READ and any(module == each or module.startswith(f"{each}.") for each in _READERS)
        if reads or module in _IMPORTS or (name == _COMPILE and module.startswith("jax.")):
            return code
        if frame is user:
            return None
        is_innermost = False
    return None
