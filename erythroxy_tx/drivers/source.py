"""Where rows come from: an array in memory, a memory-mapped file, or an object that reads them. Not here: when they are
read (`reader.py`).
"""

import os
from pathlib import Path
from typing import Any
from typing import Protocol
from typing import Self

import jax
import numpy as np

from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import StaleArrayError


class Rows(Protocol):
    """What a user may give in place of an array: anything with a length and a way to read."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Any:
        """The rows from `start` up to `stop`, as a numpy array."""


def is_source(value: Any) -> bool:
    """Whether rows can be read from it."""
    return isinstance(value, np.ndarray) or (callable(getattr(value, "read", None)) and hasattr(value, "__len__"))


class Source:
    """Rows of one argument along `axis`.

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

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    def open(self) -> "Opened":
        """Begin to read."""
        return _File(self, self._rows) if _is_plain_file(self._rows, self.axis) else Opened(self, self._rows)

    def __str__(self) -> str:
        return f"{self.name}: {shape_of(self.struct)}"


class Opened:
    """A source that is being read, through numpy."""

    def __init__(self, source: Source, rows: Any):
        self.source, self._rows = source, rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Nothing is open."""

    def read(self, start: int, into: np.ndarray) -> None:
        """Fill a buffer with the rows from `start` on.

        **Raises:** `StaleArrayError` if there are other rows than there were.
        """
        axis = self.source.axis
        stop = start + into.shape[axis]
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

    def check(self) -> None:
        """Look whether the source is what it was."""

    def _changed(self, what: str) -> str:
        return f"tx.stream got {what} from {self.source}. Expected the same rows in each pass. Fix: stop its writer."


class _File(Opened):
    """Rows that lie one after another in a file, read past the page tables: mapped pages would count as memory."""

    def __enter__(self) -> Self:
        rows: np.memmap = self._rows
        root: Any = rows
        while isinstance(root.base, np.ndarray):
            root = root.base
        self._row_bytes = rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
        self._begin = root.offset + rows.ctypes.data - root.ctypes.data  # numpy's own is that of what was sliced
        self._file = os.open(str(root.filename), os.O_RDONLY)
        self._was = self._state()
        for row in {0, len(rows) - 1} if len(rows) else ():
            there = np.empty(rows.shape[1:], rows.dtype)
            self.read(row, there[None])
            if there.tobytes() != rows[row].tobytes():
                os.close(self._file)
                raise StaleArrayError(self._changed(f"another file of the name {root.filename}"))
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._file)

    def read(self, start: int, into: np.ndarray) -> None:
        left = into.reshape(-1).view(np.uint8).data
        at = self._begin + start * self._row_bytes
        while left.nbytes:
            count = os.preadv(self._file, [left], at)
            if count == 0:
                raise StaleArrayError(self._changed(f"the end of the file at byte {at}"))
            left, at = left[count:], at + count

    def check(self) -> None:
        if self._state() != self._was:
            raise StaleArrayError(self._changed("another size or time of change"))

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self._file)
        return found.st_size, found.st_mtime_ns


def _is_plain_file(rows: Any, axis: int) -> bool:
    if not isinstance(rows, np.memmap) or axis != 0 or not hasattr(os, "preadv"):
        return False
    root: Any = rows
    while isinstance(root.base, np.ndarray):
        root = root.base
    shared = isinstance(root, np.memmap) and root.mode != "c" and root.filename is not None
    there = shared and Path(root.filename).is_file()
    return bool(there and rows.flags.c_contiguous and rows.dtype.isnative)
