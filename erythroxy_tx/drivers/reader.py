"""A thread that reads the rows of chunks ahead, into buffers that are used again. Not here: what runs on them
(`loop.py`).
"""

import contextlib
import math
import mmap
import queue
import sys
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Self

import numpy as np

from erythroxy_tx.drivers.source import Opened
from erythroxy_tx.program.blocks import block_shape
from erythroxy_tx.program.host_run import Chunk
from erythroxy_tx.runtime.threads import numpy_only

Buffers = list[np.ndarray]


class Filled(NamedTuple):
    """A chunk with its rows in buffers, which belong to its consumer until they are given to `Reader.release`."""

    chunk: Chunk
    buffers: Buffers


class Reader:
    """Reads chunks in order, at most as many ahead as there are sets of buffers.

    **Arguments:** `depth`: how many chunks may be read or run at a time; one more set of buffers is held.

    A context manager; at its end the thread is gone.
    """

    def __init__(self, opened: dict[Any, Opened], chunks: Sequence[Chunk], depth: int):
        self._opened, self._chunks = opened, chunks
        self._sets = depth + 1
        self._free: dict[Any, queue.SimpleQueue[Buffers | None]] = {}
        self._full: queue.SimpleQueue[Filled | BaseException | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self.waited = 0.0  # seconds that the consumer waited
        self._slots = threading.Semaphore(self._sets)
        self._pools: dict[Any, list[Buffers]] = {}
        self._thread = threading.Thread(target=self._read, name="tx.stream", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._slots.release()
        if not sys.is_finalizing():  # then a thread runs no more, and does not end either
            self._thread.join()

    def __iter__(self) -> Iterator[Filled]:
        for _ in self._chunks:
            begin = time.perf_counter()
            found = self._full.get()
            self.waited += time.perf_counter() - begin
            if isinstance(found, BaseException):
                raise found
            assert found is not None
            yield found

    def release(self, filled: Filled) -> None:
        """Give the buffers of a chunk back, once nothing reads them any more."""
        self._pools.setdefault(filled.chunk.parts, []).append(filled.buffers)
        self._slots.release()

    def _read(self) -> None:
        try:
            with numpy_only("tx.stream"):
                for chunk in self._chunks:
                    self._slots.acquire()
                    if self._stop.is_set():
                        return
                    buffers = self._buffers(chunk)
                    for (value, _), start, buffer in zip(chunk.parts, chunk.starts, buffers, strict=True):
                        self._opened[value].read(start, buffer)
                    self._full.put(Filled(chunk, buffers))
        except BaseException as error:  # noqa: BLE001  # raised where it is waited for
            self._full.put(error)

    def _buffers(self, chunk: Chunk) -> Buffers:
        with contextlib.suppress(KeyError, IndexError):
            return self._pools[chunk.parts].pop()
        return [aligned(block_shape(v.at, want), self._opened[v].source.dtype) for v, want in chunk.parts]


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array that begins on a page, so that it is not copied on its way to a CPU device; its pages are its own, and
    go back to the system with it.
    """
    count = math.prod(shape) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, max(1, count), access=mmap.ACCESS_COPY)  # no other process shares them
    return np.frombuffer(pages, np.uint8, count).view(dtype).reshape(shape)
