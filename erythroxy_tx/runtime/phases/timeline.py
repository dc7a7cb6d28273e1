"""What was going on at which time, in lanes of slices: as long as it may get, it takes the same memory. Not here: how
it is drawn.
"""

import itertools
import math
from array import array
from collections.abc import Hashable

_SLICES = 512
_FINEST = 2.0**-16  # seconds


class Timeline:
    """Lanes that share an axis of time, from `origin` on, in slices that get twice as wide when the axis is full."""

    def __init__(self, origin: float) -> None:
        self.origin, self.width, self.end = origin, _FINEST, 0.0
        self._lanes: dict[Hashable, array] = {}

    def add(self, key: Hashable, begin: float, end: float) -> None:
        """Something went on in a lane from one time to another."""
        begin, end = max(0.0, begin - self.origin), max(0.0, end - self.origin)
        self.end = max(self.end, end)
        while end > self.width * _SLICES:
            self._fold()
        lane = self._lanes.setdefault(key, array("d", bytes(8 * _SLICES)))
        first, last = min(int(begin / self.width), _SLICES - 1), min(int(end / self.width), _SLICES - 1)
        if first == last:
            lane[first] += end - begin
            return
        lane[first] += (first + 1) * self.width - begin
        lane[last] += end - last * self.width
        for each in range(first + 1, last):
            lane[each] += self.width

    def windows(self, key: Hashable, count: int) -> list[float]:
        """Seconds of a lane in each of some windows of equal length, fewer if there are fewer slices."""
        used = min(_SLICES, max(1, math.ceil(self.end / self.width)))
        lane = self._lanes.get(key, array("d", bytes(8 * _SLICES)))
        edges = self._edges(min(count, used), used)
        return [sum(lane[begin:end]) for begin, end in itertools.pairwise(edges)]

    def lengths(self, count: int) -> list[float]:
        """The seconds of each of those windows."""
        used = min(_SLICES, max(1, math.ceil(self.end / self.width)))
        edges = [min(edge * self.width, self.end) for edge in self._edges(min(count, used), used)]
        return [end - begin for begin, end in itertools.pairwise(edges)]

    @staticmethod
    def _edges(count: int, used: int) -> list[int]:
        return [each * used // count for each in range(count + 1)]

    def _fold(self) -> None:
        self.width *= 2
        for key, lane in self._lanes.items():
            pairs = array("d", (lane[i] + lane[i + 1] for i in range(0, _SLICES, 2)))
            self._lanes[key] = pairs + array("d", bytes(4 * _SLICES))
