"""Results with rows that come as iterators: the rows of each chunk as they are computed, when they are asked for."""

import collections
import threading
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import Self

import numpy as np

from erythroxy_tx.drivers.reader import aligned
from erythroxy_tx.drivers.source import Source


class Steps:
    """The blocks that each chunk gives, one for each of some results, which are iterated side by side.

    **Arguments:** `steps`: gives the blocks of one chunk after the other, which are copied. `takes`: which of them each
    result takes. `ahead`: how many blocks of one may be held for another. `label`: what is called.
    """

    def __init__(self, steps: Iterator[list[np.ndarray]], takes: Sequence[int], ahead: int, label: str):
        self._steps, self._takes, self._ahead, self._label = steps, takes, ahead, label
        self._held = {place: collections.deque[np.ndarray]() for place in range(len(takes))}  # of those that are open
        self._error: BaseException | None = None
        self._gone = set[int]()  # that nobody has any more
        self._lock = threading.Lock()

    def block(self, place: int) -> np.ndarray:
        """The next block of a result."""
        with self._lock:
            if place not in self._held:
                raise ValueError(
                    f"{self._label} got a next() for rows that were closed. Expected none. Fix: call it again."
                )
            if not self._held[place]:
                self._step()
            return self._held[place].popleft()

    def _step(self) -> None:
        if self._error is not None:
            raise self._error  # and no end, which would look like that of the rows
        for place in tuple(self._gone):
            self._held.pop(place, None)
        if any(len(held) >= self._ahead for held in self._held.values()):
            raise ValueError(
                f"{self._label} got a next() for one result with {self._ahead} chunks of another that nobody took. "
                "Expected those that come as iterators to be read side by side. Fix: zip, or close() one of them."
            )
        try:
            blocks = next(self._steps)
        except BaseException as error:
            self._error = error
            raise
        for place, held in self._held.items():
            held.append(np.array(blocks[self._takes[place]]))

    def close(self, place: int) -> None:
        """Hand out no more of a result; without any left, nothing is read any more."""
        with self._lock:
            self._held.pop(place, None)
            if not self._held:
                self._steps = iter(())  # the last one that knows them

    def let_go(self, place: int) -> None:
        """Hold no more blocks of a result. Called at any moment, in any thread: it waits for nothing."""
        self._gone.add(place)


class RowBlocks(Iterator[np.ndarray]):
    """The rows of one result in order, in arrays of the caller's own. A context manager that closes it.

    **Arguments:** `steps`: what gives them. `place`: which of its results.
    """

    def __init__(self, steps: Steps, place: int):
        self._steps, self._place = steps, place

    def __next__(self) -> np.ndarray:
        return self._steps.block(self._place)

    def close(self) -> None:
        """Read no more of it: after the last one that is closed or gone, files are closed and no thread is left."""
        self._steps.close(self._place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._steps.let_go(self._place)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError(
            "np.asarray got an iterator of blocks of rows. Expected an array. Fix: np.concatenate(list(blocks)), or "
            "tx.stream() without out=iter."
        )


def blocks_of(rows: Any, axis: int, size: int, label: str) -> RowBlocks:
    """Rows that are there as a whole, or can be read, `size` at a time."""
    blocks = read_rows(rows, size) if isinstance(rows, Source) else _cut(rows, axis, size)
    return RowBlocks(Steps(([block] for block in blocks), [0], 1, label), 0)


def read_rows(source: Source, size: int) -> Iterator[np.ndarray]:
    """The rows of a source, `size` at a time."""
    axis, length = source.axis, source.shape[source.axis]
    with source.open() as opened:
        for first in range(0, length, size):
            shape = tuple(min(size, length - first) if i == axis else n for i, n in enumerate(source.shape))
            buffer = aligned(shape, source.dtype)
            opened.read(first, buffer)
            yield buffer
        opened.check()


def _cut(rows: Any, axis: int, size: int) -> Iterator[np.ndarray]:
    for first in range(0, rows.shape[axis], size):
        yield rows[(slice(None),) * axis + (slice(first, first + size),)]
