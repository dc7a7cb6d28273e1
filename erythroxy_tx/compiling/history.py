"""The calls that were compiled for, function by function, so that the next one can be held against them. Bounded:
the oldest are forgotten. Not here: what a call is (`seen.py`).
"""

import collections
from typing import Any

from erythroxy_tx.compiling.seen import Seen
from erythroxy_tx.compiling.seen import code_of
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.transform import unwrapped

_MOST_FUNCTIONS, _MOST_CALLS = 1024, 16


class History:
    """For each function, by the place where it was defined, the last calls that it was compiled for."""

    def __init__(self) -> None:
        self._calls: collections.OrderedDict[Any, collections.deque[Seen]] = collections.OrderedDict()

    def of(self, fn: Any) -> list[Seen]:
        """The calls of every function that was defined where this one was, the newest first."""
        return list(reversed(self._calls.get(key_of(fn), ())))

    def add(self, fn: Any, seen: Seen) -> None:
        """Remember a call."""
        calls = self._calls.setdefault(key_of(fn), collections.deque(maxlen=_MOST_CALLS))
        self._calls.move_to_end(key_of(fn))
        calls.append(seen)
        while len(self._calls) > _MOST_FUNCTIONS:
            self._calls.popitem(last=False)

    def clear(self) -> None:
        self._calls.clear()


def key_of(fn: Any) -> Any:
    """Where a function was defined, as far as it can be told."""
    fn = unwrapped(fn)
    code = code_of(fn)
    return name_of(fn) if code is None else (code.co_filename, code.co_firstlineno, name_of(fn))
