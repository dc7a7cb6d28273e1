"""In which order the rows of many segments come, a few segments at a time: a pure function of the seed and of the
position. Not here: the rows themselves, and who loads them (`loader.py`).
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15  # of splitmix64, as are the two below
_AT_ONCE = 256  # places of a shuffled order
_ROUNDS = 8  # with fewer the orders of four things are not equally frequent


class Place(NamedTuple):
    """How many rows of a stage of an epoch were given."""

    epoch: int
    stage: int
    row: int


@dataclasses.dataclass(frozen=True)
class Rotation:
    """The stages of an epoch: which sources are read in each, and which of their rows."""

    sources: int
    active: int
    rotate: str
    shuffle: str | None
    seed: int

    @property
    def _slides(self) -> bool:
        return self.rotate == "segment" and self.active < self.sources

    @property
    def stages(self) -> int:
        return self.sources if self._slides else -(-self.sources // self.active)

    def order(self, epoch: int) -> list[int]:
        """The sources in the order of an epoch."""
        if self.shuffle is None:
            return list(range(self.sources))
        return shuffled(np.arange(self.sources), self.sources, self.seed, epoch).tolist()

    def reads(self, epoch: int, stage: int) -> list[int]:
        """The sources of a stage."""
        return self.order(epoch)[self._first(stage) : self._first(stage) + self.active]

    def parts(self, stage: int, rows: list[int]) -> list[tuple[int, int]]:
        """Of each source of a stage, with so many rows, the first row that belongs to the stage, and the one behind the
        last.
        """
        if not self._slides:
            return [(0, n) for n in rows]
        parts = []
        for position, n in enumerate(rows, stage):
            entered = max(0, position - self.active + 1)
            stages, past = position - entered + 1, stage - entered
            parts.append((n * past // stages, n * (past + 1) // stages))
        return parts

    def _first(self, stage: int) -> int:
        return stage if self._slides else stage * self.active

    def rows(self, source: int, epoch: int, start: int, stop: int, count: int) -> slice | NDArray[np.signedinteger]:
        """Where the `start`-th to the `stop`-th row that is read of a source lie in it."""
        if self.shuffle != "rows":
            return slice(start, stop)
        first = start // _AT_ONCE
        blocks = [_block(i, count, self.seed, epoch, source) for i in range(first, -(-stop // _AT_ONCE))]
        found = blocks[0] if len(blocks) == 1 else np.concatenate([*blocks, np.empty(0, np.int32)])
        return found[start - first * _AT_ONCE : stop - first * _AT_ONCE]

    def ahead(self, epoch: int, stage: int, epochs: int | None) -> list[int]:
        """The sources to hold in a stage, by when they are needed: its own, and as many as would come next."""
        coming = self.order(epoch)[self._first(stage) :]
        if epochs is None or epoch + 1 < epochs:
            coming += self.order(epoch + 1)
        return list(dict.fromkeys(coming))[: self.active + (1 if self._slides else self.active)]


def taken(shares: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """How many rows of each share are among the first `rows` of their mixture."""
    surely = (shares * ((rows - len(shares)) / shares.sum())).astype(np.int64) - 1
    surely = surely.clip(0)
    return surely + np.bincount(mixed(shares, surely, rows - int(surely.sum())), minlength=len(shares))


def mixed(shares: NDArray[np.int64], before: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """From which share the next `rows` rows come, after `before` of each.

    The i-th row of a share of m rows stands at (i + ½) / m, and rows come as they stand, of equals the one of the first
    share. The first R of all M rows stand no further than (R + len(shares) / 2) / M; only those are looked at.
    """
    until = (before.sum() + rows + len(shares)) / shares.sum()
    candidates = np.minimum(shares, (shares * until).astype(np.int64) + 2) - before
    share = np.repeat(np.arange(len(shares)), candidates)
    row = np.concatenate([np.arange(n) for n in candidates]) + before[share]
    return share[np.argsort((row + 0.5) / shares[share], kind="stable")[:rows]]


@functools.lru_cache(maxsize=64)  # 64 KiB
def _block(i: int, count: int, *key: int) -> NDArray[np.signedinteger]:
    """The `i`-th block of a shuffled order, of which each batch takes a few: numpy is slow for a few numbers."""
    found = shuffled(np.arange(i * _AT_ONCE, min(count, (i + 1) * _AT_ONCE)), count, *key)
    found = found.astype(np.int32 if count < 2**31 else np.int64)
    found.flags.writeable = False
    return found


def shuffled(index: NDArray[np.int64], count: int, *key: int) -> NDArray[np.int64]:
    """Where these of `count` things stand after they were shuffled by a key: one to one, and the same in every version
    of numpy. A bijection of as many bits as `count` needs, gone through again by what falls outside.
    """
    bits = (count - 1).bit_length()
    multiply, add = _constants(key)
    found, todo = index.astype(np.uint64), np.arange(index.size)
    while todo.size:
        x = found[todo]
        for factor, offset in zip(multiply, add, strict=True):
            x = (x * factor + offset) & (2**bits - 1)
            x ^= x >> max(1, bits // 2)
        found[todo] = x
        todo = todo[x >= count]
    return found.astype(np.int64)


def _constants(key: tuple[int, ...]) -> tuple[list[int], list[int]]:
    state = np.zeros(1, np.uint64)
    for part in key:
        state = _scrambled(state + _GOLDEN + np.uint64(part))
    drawn = _scrambled(state + _GOLDEN * np.arange(1, 2 * _ROUNDS + 1, dtype=np.uint64))
    return (drawn[::2] | np.uint64(1)).tolist(), drawn[1::2].tolist()  # an even factor would make two into one


def _scrambled(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
