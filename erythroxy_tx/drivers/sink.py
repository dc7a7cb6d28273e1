"""Where rows of results go: an array in memory, or a file that is there as a whole or not at all."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np


class Sink:
    """Rows of one result, in memory."""

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        self._rows = np.empty(shape, dtype)

    def write(self, first: int, rows: np.ndarray, axis: int) -> None:
        """Write rows from `first` on."""
        self._rows[(slice(None),) * axis + (slice(first, first + rows.shape[axis]),)] = rows

    def finish(self) -> np.ndarray:
        """The whole of it."""
        return self._rows

    def discard(self) -> None:
        """Leave nothing behind."""


class FileSink(Sink):
    """Rows of one result, in a `.npy` file, under its name once it is whole. They are written past any mapping: mapped
    pages would count as memory, and a full disk would end the process.
    """

    def __init__(self, path: str | Path, shape: tuple[int, ...], dtype: Any):
        self.path, self._shape = Path(path), shape
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        mapped = np.lib.format.open_memmap(self._partial, "w+", dtype, shape)
        self._begin = mapped.offset
        self._file = self._partial.open("r+b", buffering=0)

    def write(self, first: int, rows: np.ndarray, axis: int) -> None:
        row_bytes = rows.dtype.itemsize * math.prod(self._shape[axis + 1 :])
        for number, outer in enumerate(np.ndindex(self._shape[:axis])):
            self._file.seek(self._begin + (number * self._shape[axis] + first) * row_bytes)
            left = np.ascontiguousarray(rows[outer]).reshape(-1).view(np.uint8).data
            while left:
                left = left[self._file.write(left) :]

    def finish(self) -> np.ndarray:
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self.path)
        return np.load(self.path, mmap_mode="r")

    def discard(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)
