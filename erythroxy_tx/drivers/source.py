"""Where rows come from: an array in memory, a memory-mapped file, or an object that reads them. Not here: when they are
read (`reader.py`).
"""

import contextlib
import mmap
import os
import zlib
from collections.abc import Hashable
from pathlib import Path
from typing import Any
from typing import Protocol
from typing import Self

import jax
import numpy as np

from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import StaleArrayError

_WORDS = 1021  # a prime: rows that change places are added up in other columns, whatever their bytes


class Rows(Protocol):
    """What a user may give in place of an array: anything with a length and a way to read."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Any:
        """The rows from `start` up to `stop`, as a numpy array."""


def is_source(value: Any) -> bool:
    """Whether rows can be read from it."""
    return isinstance(value, np.ndarray) or (callable(getattr(value, "read", None)) and hasattr(value, "__len__"))


class Source:
    """Rows of one argument along `axis`, for one call: what is read a second time is the same, or an error.

    **Arguments:**

    - `name`: what the user calls it. `narrow`: whether 64 bits become 32 where JAX has them off.

    **Raises:** `TypeError` for what would be narrowed without being told, or is no numbers.
    """

    def __init__(self, rows: Any, axis: int, name: str, *, narrow: bool):
        self.name, self.axis, self._rows = name, axis, rows
        first = rows if isinstance(rows, np.ndarray) else np.asarray(rows.read(0, min(1, len(rows))))
        found = self.found = first.dtype.newbyteorder("=")
        self.dtype = jax.dtypes.canonicalize_dtype(found) if found.kind in "biufcV" else found
        if found.kind not in "biufc" and not jax.dtypes.issubdtype(found, np.number):
            raise TypeError(f"tx.stream got {name} of {found}. Expected numbers.")
        if self.dtype != found and not narrow:
            raise TypeError(
                f"tx.stream got {name} of {found}, which JAX would make {self.dtype}. Expected 32 bits. Fix: "
                "tx.stream(narrow=True), which reads it as that; or JAX_ENABLE_X64=1."
            )
        shape = list(first.shape)
        shape[axis] = rows.shape[axis] if isinstance(rows, np.ndarray) else len(rows)
        self.shape = tuple(shape)
        self._found: dict[Hashable, Hashable] = {}

    def same(self, what: Hashable, found: Hashable) -> bool:
        """Whether it is what was found there at first."""
        return self._found.setdefault(what, found) == found

    @property
    def file(self) -> str | None:
        """The file that has the rows, of a memory map."""
        root = _root(self._rows)
        return str(root.filename) if isinstance(root, np.memmap) and root.filename is not None else None

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    def open(self) -> "Opened":
        """Begin to read."""
        return _File(self, self._rows) if _is_plain_file(self._rows, self.axis) else Opened(self, self._rows)

    def __str__(self) -> str:
        return f"{self.name}: {shape_of(self.struct)}"


class Opened:
    """A source that is being read."""

    def __init__(self, source: Source, rows: Any):
        self.source, self._rows = source, rows
        self._mapping = _mapping_of(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Nothing is open."""

    def read(self, start: int, into: np.ndarray) -> None:
        """Fill a buffer with the rows from `start` on.

        **Raises:** `StaleArrayError` if there are other rows than there were.
        """
        stop = start + into.shape[self.source.axis]
        self._fill(start, stop, into)
        if not self.source.same((start, stop), checksum(into)):
            raise StaleArrayError(self._changed(f"other rows {start} to {stop} than before"))

    def _fill(self, start: int, stop: int, into: np.ndarray) -> None:
        axis = self.source.axis
        if isinstance(self._rows, np.ndarray):
            found = self._rows[(slice(None),) * axis + (slice(start, stop),)]
        else:
            found = np.asarray(self._rows.read(start, stop))
            if len(self._rows) != self.source.shape[axis]:
                raise StaleArrayError(self._changed(f"{len(self._rows)} rows"))
        if found.shape != into.shape or found.dtype.newbyteorder("=") != self.source.found:
            raise StaleArrayError(self._changed(f"{shape_of(found)} for rows {start} to {stop}"))
        np.copyto(into, found, casting="same_kind")
        if found.dtype.kind in "iu" and found.itemsize > into.itemsize and not np.array_equal(into, found):
            raise OverflowError(
                f"tx.stream got numbers of {self.source} in rows {start} to {stop} that {into.dtype} does not hold. "
                "Expected 32 bits, as narrow=True says. Fix: JAX_ENABLE_X64=1, or smaller numbers."
            )
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)  # pages that were read would count as memory

    def check(self) -> None:
        """Look whether the source is what it was."""

    def _changed(self, what: str) -> str:
        return f"tx.stream got {what} from {self.source}. Expected the same rows in each pass. Fix: stop its writer."


class _File(Opened):
    """Rows that lie one after another in a file, read past the page tables: mapped pages would count as memory."""

    def __enter__(self) -> Self:
        rows: np.memmap = self._rows
        root = _root(rows)
        self._row_bytes = rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
        self._begin = root.offset + rows.ctypes.data - root.ctypes.data  # numpy's own is that of what was sliced
        with contextlib.ExitStack() as stack:
            self._file = os.open(str(root.filename), os.O_RDONLY)
            stack.callback(os.close, self._file)
            for row in {0, len(rows) - 1} if len(rows) else ():
                there = np.empty(rows.shape[1:], rows.dtype)
                self._fill(row, row + 1, there[None])
                if there.tobytes() != rows[row].tobytes():
                    raise StaleArrayError(self._changed(f"another file of the name {root.filename}"))
            self.check()
            stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._file)

    def _fill(self, start: int, stop: int, into: np.ndarray) -> None:  # noqa: ARG002
        left = into.reshape(-1).view(np.uint8).data
        at = self._begin + start * self._row_bytes
        while left.nbytes:
            count = os.preadv(self._file, [left], at)
            if count == 0:
                raise StaleArrayError(self._changed(f"the end of the file at byte {at}"))
            left, at = left[count:], at + count

    def check(self) -> None:
        found = os.fstat(self._file)
        if not self.source.same("file", (found.st_size, found.st_mtime_ns)):
            raise StaleArrayError(self._changed("another size or time of change"))


def _is_plain_file(rows: Any, axis: int) -> bool:
    if not isinstance(rows, np.memmap) or axis != 0 or not hasattr(os, "preadv"):
        return False
    root = _root(rows)
    there = _is_shared(root) and root.filename is not None and Path(root.filename).is_file()
    return bool(there and rows.flags.c_contiguous and rows.dtype.isnative)


def _mapping_of(rows: Any) -> mmap.mmap | None:
    """The mapping whose pages may be dropped: they are there again when they are read."""
    root = _root(rows)
    return root.base if _is_shared(root) and hasattr(mmap, "MADV_DONTNEED") else None


def _is_shared(root: Any) -> bool:
    return isinstance(root, np.memmap) and root.mode != "c"


def _root(rows: Any) -> Any:
    """The array that has the memory of another."""
    while isinstance(getattr(rows, "base", None), np.ndarray):
        rows = rows.base
    return rows


def checksum(rows: np.ndarray) -> int:
    """A number that tells rows from others, at the speed of memory: the CRC of sums that do not overflow."""
    given = rows.reshape(-1).view(np.uint8)
    whole = given.size - given.size % (4 * _WORDS)
    sums = np.add.reduce(given[:whole].view(np.uint32).reshape(-1, _WORDS), axis=0, dtype=np.uint64)
    return zlib.crc32(given[whole:].data, zlib.crc32(sums.data))
