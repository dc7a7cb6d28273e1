"""`no_disk_io`: nothing reads or writes the disk, or an error names the line. Not here: how an access is seen
(`guards/disk.py`, `guards/unseen.py`).
"""

import contextlib
import math
import types
from collections.abc import Callable
from typing import Any
from typing import overload

import equinox as eqx

from erythroxy_tx.core.call_site import user_line
from erythroxy_tx.errors import DiskIOError
from erythroxy_tx.guards.disk import TIME
from erythroxy_tx.guards.disk import Access
from erythroxy_tx.guards.disk import Watch
from erythroxy_tx.guards.guard import Block
from erythroxy_tx.guards.guard import Guard
from erythroxy_tx.guards.paths import allowed
from erythroxy_tx.guards.unseen import Found
from erythroxy_tx.units import format_bytes

_FIXES = {
    "read": "load it once before the loop; make it on the device, as with tx.generate; or read ahead in another "
    "thread, as with tx.prefetch, which is not watched",
    "write": "write after the loop, or in another thread, which is not watched",
}


@overload
def no_disk_io(*, allow: Any = ...) -> Any: ...
@overload
def no_disk_io(fn: Callable[..., Any], /, *, allow: Any = ...) -> "NoDiskIO": ...


def no_disk_io(fn: Callable[..., Any] | None = None, /, *, allow: Any = ()) -> Any:
    """Raise where the disk is read or written, and name the path and the line.

    A decorator, bare or with `allow`, of a function or a whole loop; or a block, `with tx.no_disk_io():`. What Python
    announces is stopped before it happens: opening a file, by whatever library in Python; listing a folder; making,
    moving, changing or removing what is on the disk. What it does not announce is raised at the end of the block, from
    64 KiB on, on Linux: reads and writes through descriptors that were open before, as those of a lazy `npz["x"]`;
    those of native code, as h5py's; and pages of mapped files, once they came to more than all code that is mapped.

    It watches the thread and the context that it is entered in. It minds no imports, tracebacks and compiles, no pipes,
    sockets, terminals and `/dev`, `/proc`, `/sys`, and not what is printed, wherever that goes.

    Not seen: other threads, native ones too; `os.stat` and `exists`; mapped pages that are in memory already; smaller
    amounts that were not announced, and any of them in a block that opened something allowed, read from processes that
    it has, or was left by an event loop in between.

    **Arguments:**

    - `fn`: the function. Not one that is called inside of `jit`, where it would run once.
    - `allow`: what may be touched: a path, a folder with all below it, a pattern such as `"logs/*.txt"` (where `*`
        stands for any number of folders too), an open file, or a list of these. Relative paths are of the folder that
        is current now.

    **Returns:** the decorated function; without a function, a decorator that is a block as well.

    **Raises:** `DiskIOError` with the path, the line, the kind and the bytes where they are known (`.path`, `.line`,
    `.kind`, `.nbytes`), and what to do instead. One that was caught in between is raised at the end. An error of the
    function's own comes first, and gets a note. `TransformOrderError` inside of `jit`, `scan` and kin.

    >>> import numpy as np, erythroxy_tx as tx
    >>> with tx.no_disk_io():
    ...     np.save("batch.npy", np.zeros(3))
    Traceback (most recent call last):
    erythroxy_tx.errors.DiskIOError: with tx.no_disk_io(): write of '.../batch.npy' (open) at ...
    Expected no read or write of the disk. Stopped before it happened.
    Fix: write after the loop, or in another thread, which is not watched. To permit it: allow='.../batch.npy'.
    """
    places = allowed(allow, "tx.no_disk_io")
    return Block(NoDiskIO, allow=places) if fn is None else NoDiskIO.on(fn, allow=places)


class NoDiskIO(Guard):
    """A function that neither reads nor writes the disk. Made by `no_disk_io`."""

    allow: tuple[str, ...] = eqx.field(static=True, kw_only=True)

    name = "tx.no_disk_io"
    usage = "@tx.no_disk_io, bare or with allow="

    @staticmethod
    def watch(title: str, **parameters: Any) -> contextlib.AbstractContextManager[Any]:
        return _NoDisk(title, **parameters)


class _NoDisk(Watch):
    """Refuses every access but to what is allowed."""

    def __init__(self, title: str, allow: tuple[str, ...]) -> None:
        self._title, self._allow = title, allow
        self._refused: DiskIOError | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        if isinstance(error, DiskIOError) or not self.is_here():
            return
        found = self._refused or self._unseen()
        if found is None:
            return
        if error is None:
            raise found
        error.add_note(str(found))

    def refusal(self, access: Access) -> DiskIOError | None:
        if access.place.is_in(self._allow):
            self.unseen.announce(**({"write": TIME} | dict.fromkeys(access.kinds, math.inf)))
            return None
        path, nbytes, line = access.place.given, access.place.nbytes, user_line()
        size = f", {format_bytes(nbytes)}" if nbytes and access.kind == "read" else ""
        error = DiskIOError(
            f"{self._title}: {access.kind} of {path!r}{size} ({access.event}) at {line}.\nExpected {self._expected}. "
            f"Stopped before it happened.\nFix: {_FIXES[access.kind]}. To permit it: allow={path!r}."
        )
        error.kind, error.path, error.line = access.kind, path, line
        error.nbytes = nbytes if access.kind == "read" else 0
        self._refused = self._refused or error
        return error

    def _unseen(self) -> DiskIOError | None:
        found = self.unseen.found(self._allow)
        return self._told(found) if found is not None else None

    def _told(self, found: Found) -> DiskIOError:
        line, done = user_line(), "read" if found.kind == "read" else "written"
        files = f" Of what is open it may have been: {', '.join(found.files)}." if found.files else ""
        error = DiskIOError(
            f"{self._title}: {format_bytes(found.nbytes)} were {done} by this thread, through {found.way}. Seen at the "
            f"end, at {line}.{files}\nExpected {self._expected}.\n"
            f"Fix: {_FIXES[found.kind]}. To permit it: allow=its path."
        )
        error.kind, error.line, error.nbytes = found.kind, line, found.nbytes
        error.path = found.files[0] if len(found.files) == 1 else ""
        return error

    @property
    def _expected(self) -> str:
        return "no read or write of the disk" + (f" but of {', '.join(self._allow)}" if self._allow else "")
