"""When the device was busy, as far as tracked values tell: a thread that waits for each of them. Not here: the phases
of the host (`phases/record.py`).
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import jax

_FEW = 8  # arrays that are kept of one tracked value
_SMALL = 64 * 2**10  # bytes of each
_LINGER = 0.5  # seconds that the thread waits for more


class Busy:
    """Seconds in which tracked work was not done yet, up to any moment that is not past.

    Work counts as begun when it was handed over, or when what was tracked before it was ready, whichever is later,
    and as done when the thread sees that it is ready. The thread ends soon after nothing is left to wait for.
    """

    def __init__(self, clock: Callable[[], float], lock: Any, took: Callable[[float, float], None]) -> None:
        self.tracked = self.lost = 0
        self._clock, self._took = clock, took  # told of each stretch of work, in order
        self._changed = threading.Condition(lock)
        self._waiting: deque[list[jax.Array]] = deque()
        self._open = True
        self._thread: threading.Thread | None = None
        self._total = 0.0
        self._since: float | None = None  # while something is not ready

    def track(self, arrays: list[jax.Array], since: float) -> None:
        """Wait, in the thread, for the arrays of a value that was handed over at `since`."""
        with self._changed:
            self.tracked += 1
            self._waiting.append(arrays)
            if self._since is None:
                self._since = since
            if not self._is_running():
                self._thread = threading.Thread(target=self._run, name="tx.phase")
                self._thread.start()
            self._changed.notify_all()

    def until(self, now: float) -> float:
        """Seconds of work until now."""
        return self._total + (max(0.0, now - self._since) if self._since is not None else 0.0)

    def close(self) -> None:
        """Nothing more is expected: the thread ends when all is ready."""
        self._open = False
        self._changed.notify_all()

    def open(self) -> None:
        self._open = True

    def settle(self) -> None:
        """Wait until all that is tracked is ready."""
        with self._changed:
            while self._since is not None and self._is_running():
                self._changed.wait(_LINGER)
            thread = self._thread if not self._open else None
        if thread is not None:
            thread.join()

    def _is_running(self) -> bool:  # in a process that was forked it is not
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and self._open:
                    self._changed.wait(_LINGER)
                if not self._waiting:
                    self._thread = None
                    return
                arrays = self._waiting.popleft()
            was_ready = wait(arrays)  # and are let go
            now = self._clock()
            with self._changed:
                self.lost += not was_ready
                if self._since is not None and (was_ready or not self._waiting):
                    self._total += max(0.0, now - self._since)
                    self._took(self._since, now)
                    self._since = now if self._waiting else None
                self._changed.notify_all()


def kept(tree: Any) -> list[jax.Array] | None:
    """What is waited for: all results of a program are ready together, so that a few small ones tell, and no large one
    is held. None where there is no array.
    """
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        raise TypeError(
            "track got values that are traced, inside of jit, grad or vmap, where nothing runs yet. Expected results. "
            "Fix: track what the compiled function returns."
        )
    arrays.reverse()  # of equal ones the last comes first: a loss, behind a state
    arrays.sort(key=lambda array: array.nbytes)
    return [array for array in arrays[:_FEW] if array is arrays[0] or array.nbytes <= _SMALL] or None


def wait(arrays: list[jax.Array]) -> bool:
    """Whether any of them was there to be waited for; the list is emptied."""
    found = False
    while arrays:
        try:
            arrays.pop().block_until_ready()
            found = True
        except RuntimeError as error:  # donated or deleted, or its program failed, which whoever reads it is told
            found |= "deleted" not in str(error)
    return found
