"""Where rows of results go: an array in memory, or a file that is there as a whole or not at all."""

import os
from pathlib import Path
from typing import Any

import numpy as np


class Sink:
    """Rows of one result, in memory."""

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        self._rows = self._made(shape, dtype)

    def _made(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.empty(shape, dtype)

    def write(self, first: int, rows: np.ndarray, axis: int) -> None:
        """Write rows from `first` on."""
        self._rows[(slice(None),) * axis + (slice(first, first + rows.shape[axis]),)] = rows

    def finish(self) -> np.ndarray:
        """The whole of it."""
        return self._rows

    def discard(self) -> None:
        """Leave nothing behind."""


class FileSink(Sink):
    """Rows of one result, in a `.npy` file, under its name once it is whole."""

    def __init__(self, path: str | Path, shape: tuple[int, ...], dtype: Any):
        self.path = Path(path)
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        super().__init__(shape, dtype)

    def _made(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.lib.format.open_memmap(self._partial, "w+", dtype, shape)

    def finish(self) -> np.ndarray:
        assert isinstance(self._rows, np.memmap)
        self._rows.flush()
        with self._partial.open("rb") as file:
            os.fsync(file.fileno())
        self._partial.replace(self.path)
        return np.load(self.path, mmap_mode="r")

    def discard(self) -> None:
        self._partial.unlink(missing_ok=True)
