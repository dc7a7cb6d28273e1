"""The calls that were compiled for, function by function, so that the next one can be held against them. Bounded:
the oldest are forgotten. Not here: what a call is (`seen.py`).
"""

import collections
import threading
from typing import Any

from erythroxy_tx.compiling.seen import Seen
from erythroxy_tx.compiling.seen import code_of
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.transform import unwrapped

_MOST_FUNCTIONS, _MOST_CALLS, _MOST_LEAVES = 1024, 64, 20_000  # the leaves of one function's calls


class History:
    """For each function, by the place where it was defined, the last calls that it was compiled for."""

    def __init__(self) -> None:
        self._calls: collections.OrderedDict[Any, collections.deque[Seen]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def of(self, fn: Any) -> list[Seen]:
        """The calls of every function that was defined where this one was, the newest first."""
        with self._lock:
            return list(reversed(self._calls.get(key_of(fn), ())))

    def add(self, fn: Any, seen: Seen) -> None:
        """Remember a call."""
        key = key_of(fn)
        with self._lock:
            calls = self._calls.setdefault(key, collections.deque(maxlen=_MOST_CALLS))
            self._calls.move_to_end(key)
            calls.append(seen)
            while len(calls) > 1 and sum(len(each.leaves) for each in calls) > _MOST_LEAVES:
                calls.popleft()
            while len(self._calls) > _MOST_FUNCTIONS:
                self._calls.popitem(last=False)


def key_of(fn: Any) -> Any:
    """Where a function was defined, as far as it can be told."""
    fn = unwrapped(fn)
    code = code_of(fn)
    return name_of(fn) if code is None else (code.co_filename, code.co_firstlineno, name_of(fn))
