"""Threads that make batches ahead of their consumer, and hand them over in the order of the source. Not here: how a
source is read (`fetching/reading.py`), what a batch is (`fetching/batches.py`), who consumes it (`prefetch.py`).
"""

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import jax

from erythroxy_tx.runtime.fetching.batches import NAME
from erythroxy_tx.runtime.fetching.batches import copied
from erythroxy_tx.runtime.fetching.batches import is_wide
from erythroxy_tx.runtime.fetching.batches import on_host
from erythroxy_tx.runtime.fetching.reading import END
from erythroxy_tx.runtime.fetching.reading import SKIPPED
from erythroxy_tx.runtime.fetching.reading import AnyOrder
from erythroxy_tx.runtime.fetching.reading import InTurn
from erythroxy_tx.runtime.fetching.report import STAGES
from erythroxy_tx.runtime.fetching.report import Tally
from erythroxy_tx.runtime.threads import line_in
from erythroxy_tx.runtime.threads import numpy_only

_LOG = logging.getLogger(__name__.partition(".")[0])


class Made(NamedTuple):
    """A batch, or the error that stands in its place."""

    position: int
    batch: Any = None
    error: BaseException | None = None


@dataclasses.dataclass(slots=True)
class Work:
    """What a worker is doing."""

    position: int
    stage: str
    since: float
    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))


class Workers:
    """Threads, and what they share. The threads hold this, and it holds nothing of the consumer: a consumer that is
    forgotten is collected, and stops them.

    At most `size` finished batches are held, and one for each worker that is in work or waits for room.
    """

    def __init__(
        self,
        source: InTurn | AnyOrder,
        prepare: Callable[[Any], Any] | None,
        *,
        count: int,
        size: int,
        tally: Tally,
        clock: Callable[[], float],
    ) -> None:
        self._source, self._prepare, self._tally, self._clock = source, prepare, tally, clock
        self._most = size + count
        self._stages = {"next": source.told, "prepare": "prepare", "copy": "the copy"}
        self._is_wide = is_wide()
        self._lock = threading.RLock()  # reentrant: a collection inside may bring `stop`
        self._arrived = threading.Condition(self._lock)  # for consumers: a batch, or the end
        self._room = threading.Condition(self._lock)  # for workers: room, or the turn; each lets one of them begin
        self._begun = self._taken = 0  # batches
        self._end = source.end  # batches, once it is known
        self._done: dict[int, Made] = {}
        self._doing: dict[threading.Thread, Work] = {}
        self._is_reading = self._is_source_closed = False
        self._pid = os.getpid()
        self.closed = False
        self._threads = [threading.Thread(target=self._run, name=f"{NAME}-{i}", daemon=True) for i in range(count)]
        self._left = 0  # threads

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------ the consumer

    @property
    def taken(self) -> int:
        """The position of the batch that is next."""
        return self._taken

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one with the threads."""
        return os.getpid() != self._pid

    def wait(self, patience: float) -> bool:
        """Wait until the next batch is there or none will come; False after so many seconds."""
        with self._lock:
            return self._arrived.wait_for(lambda: self._taken in self._done or self._is_over(), patience)

    def ready(self) -> Made | None:
        """The next batch, None if it is not there."""
        with self._lock:
            return self._done.get(self._taken)

    def advance(self) -> None:
        """Take the next batch out of what is held."""
        with self._lock:
            self._pass()
            self._pass_skipped()

    def have_died(self) -> bool:
        """Whether the threads ended before their work did."""
        with self._lock:
            return not self.closed and self._taken < self._end and self._taken not in self._done and self._is_over()

    def told(self) -> str:
        """What each worker is doing, the one with the next batch first."""
        with self._lock:
            doing = sorted(self._doing.items(), key=lambda pair: pair[1].position)
        now = self._clock()
        lines = [
            f"{thread.name} has been in {self._stages[work.stage]} of batch {work.position} for "
            f"{now - work.since:.1f} s, at {line_in(thread)}"
            for thread, work in doing
        ]
        return "; ".join(lines) or "no thread is at work"

    def stop(self) -> None:
        """Let the threads end, and forget what they made. Waits for nothing: it may be called by the collector."""
        if self.is_foreign:  # where the lock may be held for ever, by a thread that is not here
            return
        with self._lock:
            self.closed = True
            self._done.clear()
            self._arrived.notify_all()
            self._room.notify_all()

    def join(self, patience: float) -> list[str]:
        """Wait for the threads, so many seconds for all. **Returns:** where those are that have not ended."""
        until = time.monotonic() + patience
        threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return [f"{thread.name} at {line_in(thread)}" for thread in threads if thread.is_alive()]

    # ------------------------------------------------------------------ the threads

    def _run(self) -> None:
        try:
            with jax.enable_x64(self._is_wide):
                while (work := self._begin()) is not None:
                    self._finish(work, self._make(work))
        finally:
            self._leave()

    def _begin(self) -> Work | None:
        """Wait for room and, where the source is read in turn, for the turn. None when there is nothing to begin."""
        with self._lock:
            while not self.closed and self._begun < self._end:
                is_full = self._begun - self._taken >= self._most
                if not is_full and not self._is_reading:
                    work = Work(self._begun, "next", self._clock())
                    self._begun += 1
                    self._is_reading = self._source.in_turn
                    self._doing[threading.current_thread()] = work
                    return work
                since = self._clock()
                self._room.wait()
                self._tally.full += (self._clock() - since) * is_full
        return None

    def _make(self, work: Work) -> Made:
        try:
            with numpy_only(NAME):
                with self._turn(work):
                    item = self._timed(work, "next", self._source.read, work.position)
                    if item is END:
                        self._end = work.position
                    if item is END or item is SKIPPED:
                        return Made(work.position, item)
                    if self._prepare is None:
                        return Made(work.position, self._timed(work, "copy", on_host, item, work.position))
                    if self._source.in_turn and len(self._threads) > 1:  # the next read may write over it
                        item = self._timed(work, "copy", copied, item)
                item = self._timed(work, "prepare", self._prepare, item)
                return Made(work.position, self._timed(work, "copy", on_host, item, work.position))
        except StopIteration as error:  # which the consumer would take for the end
            return Made(work.position, error=_caused(f"{NAME}: {self._stages[work.stage]} raised StopIteration", error))
        except BaseException as error:  # noqa: BLE001  # the consumer raises it
            return Made(work.position, error=error)

    @contextlib.contextmanager
    def _turn(self, work: Work) -> Iterator[None]:
        """Nobody else reads a source that is read in turn, and nobody at all after it raised."""
        try:
            yield
        except BaseException:
            with self._lock:
                if self._source.in_turn:
                    self._end = work.position + 1
            raise
        finally:
            if self._source.in_turn:
                with self._lock:
                    self._is_reading = False
                    self._room.notify()

    def _timed(self, work: Work, stage: str, fn: Callable[..., Any], *args: Any) -> Any:
        work.stage, work.since = stage, self._clock()
        try:
            return fn(*args)
        finally:
            work.seconds[stage] += self._clock() - work.since

    def _finish(self, work: Work, made: Made) -> None:
        with self._lock:
            del self._doing[threading.current_thread()]
            if made.batch is END:
                self._room.notify_all()
            elif not self.closed:
                self._done[work.position] = made
                self._pass_skipped()
            for stage, seconds in work.seconds.items():
                self._tally.seconds[stage] += seconds
            self._arrived.notify_all()

    def _pass_skipped(self) -> None:
        while (made := self._done.get(self._taken)) is not None and made.batch is SKIPPED:
            self._pass()

    def _pass(self) -> None:
        """Go on to the next position, in an order in which an interrupt of the consumer's can leave nobody waiting."""
        self._room.notify()
        self._taken += 1
        for position in list(self._done):  # which a collection may empty at any moment, by `stop`
            if position < self._taken:
                self._done.pop(position, None)

    def _is_over(self) -> bool:
        return self.closed or self._taken >= self._end or self._left == len(self._threads)

    def _leave(self) -> None:
        """End a thread. The first that leaves while nobody reads closes the source."""
        with self._lock:
            closes = not self._is_reading and not self._is_source_closed
            self._is_source_closed |= closes
            self._doing.pop(threading.current_thread(), None)
        try:
            if closes:
                with numpy_only(NAME):
                    self._source.close()
        except BaseException:  # noqa: BLE001  # nobody waits for it any more
            _LOG.exception("%s: the source could not be closed", NAME)
        finally:
            with self._lock:
                self._left += 1
                if self._left == len(self._threads):
                    del self._source, self._prepare
                self._arrived.notify_all()


def _caused(told: str, cause: BaseException) -> RuntimeError:
    """An error with a cause: a function of its own, or a frame of the cause would hold the error."""
    error = RuntimeError(told)
    error.__cause__ = cause
    return error
