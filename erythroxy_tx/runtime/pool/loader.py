"""Segments that are loaded ahead in one background thread, within a number of bytes. Not here: which are wanted
(`rotation.py`), and how one is read (`sources.py`).
"""

import atexit
import os
import threading
import time
import traceback
import weakref
from collections.abc import Iterable

from erythroxy_tx.runtime.pool.allowance import Allowance
from erythroxy_tx.runtime.pool.catalogue import Catalogue
from erythroxy_tx.runtime.pool.sources import Segment
from erythroxy_tx.runtime.pool.sources import Stop
from erythroxy_tx.runtime.threads import numpy_only

_EXITING = 1.0  # seconds for what is read when the interpreter ends


class Loader:
    """Holds the segments that are wanted, in the order in which they are, as far as they fit.

    The thread never waits: it ends when nothing more fits or is wanted, and `want` and `wait` start the next. So it
    keeps neither a pool that nobody uses nor an interpreter that ends; `stop`, which a finaliser may set at any moment,
    ends it at its next piece.
    """

    def __init__(self, catalogue: Catalogue, allowance: Allowance):
        self.stop = Stop()
        self.peak = self.loads = 0
        self.waited = 0.0
        self._catalogue, self._allowance = catalogue, allowance
        self._lock = threading.RLock()  # reentrant: for a handler of signals
        self._bell: threading.Lock | None = None  # which a consumer waits to be released
        self._wanted: list[int] = []
        self._held: dict[int, Segment] = {}
        self._loading = 0  # bytes that are kept for what is being read
        self._runs = False
        self._failed: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        _OPEN.add(self)

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one with the thread."""
        return os.getpid() != self._pid

    @property
    def held(self) -> int:
        """Bytes of the segments that are here, and of the one that is being read."""
        with self._lock:
            return self._loading + sum(segment.nbytes for segment in self._held.values())

    def want(self, sources: list[int]) -> None:
        """Drop what is not among these, and load what is missing, in this order."""
        with self._lock:
            self._wanted = sources
            for i in self._held.keys() - set(sources):  # CPython 3.13 stays locked by an interrupt at an `if` in here
                del self._held[i]
            self._start()

    def check(self) -> None:
        """Raise if the pool is closed, or what the thread met; the next call tries again."""
        with self._lock:
            if self.stop.is_set():
                raise RuntimeError("tx.SegmentPool is closed. Expected an open one. Fix: a new one, with state=.")
            error, self._failed = self._failed, None
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback holds this frame
            self._start()

    def wait(self, sources: Iterable[int]) -> list[Segment]:
        """These segments, when all of them are here."""
        sources = list(sources)
        while True:
            with self._lock:
                if self._held.keys() >= set(sources):
                    return [self._held[i] for i in sources]
                self.check()
                if not self._runs:
                    self._allowance.check()  # the bytes of a batch may be known since
                    raise RuntimeError(f"tx.SegmentPool does not load all of {sources}. Expected that not to happen.")
                self._bell = bell = threading.Lock()  # a Condition would not survive an interrupt
                bell.acquire()
            began = time.perf_counter()
            bell.acquire()
            self.waited += time.perf_counter() - began

    def close(self, patience: float | None = None) -> None:
        """Drop everything, and wait until what is being read has ended, or so many seconds."""
        self.stop.set()
        with self._lock:
            self._wanted, self._held, self._failed = [], {}, None
            self._ring()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)

    def _start(self) -> None:
        if self._runs or self._failed is not None or self._next() is None:
            return
        self._thread = threading.Thread(target=self._run, name="tx.SegmentPool", daemon=True)
        try:
            self._runs = True
            self._thread.start()
        except BaseException:  # it may have started, and then an interrupt came: it is not the thread any more
            self._runs, self._thread = False, None
            raise

    def _ring(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.release()

    def _next(self) -> int | None:
        """What is to be loaded now, after what is needed later made room for it."""
        if self.stop.is_set():
            return None
        at = next((at for at, i in enumerate(self._wanted) if i not in self._held), None)
        room = self._allowance.room
        if at is None or room is None:
            return None if at is None else self._wanted[at]
        before = set(self._wanted[:at])
        room -= self._reserved(self._wanted[at])
        if sum(segment.nbytes for i, segment in self._held.items() if i in before) > room:
            return None
        for i in reversed(self._wanted[at + 1 :]):
            if sum(segment.nbytes for segment in self._held.values()) > room:
                self._held.pop(i, None)
        return self._wanted[at]

    def _reserved(self, index: int) -> int:
        return self._catalogue.nbytes(index) or 0

    def _run(self) -> None:
        index: int | None = None
        try:
            with numpy_only("tx.SegmentPool"):
                while (index := self._begin()) is not None:
                    self._load(index)
        except BaseException as error:  # noqa: BLE001  # the consumer raises it
            _let_go(error)
            self._fail(error, index)

    def _begin(self) -> int | None:
        with self._lock:
            if self._thread is not threading.current_thread():
                return None
            index = self._next()
            if index is None:
                self._runs = False
                self._ring()
            else:
                self._loading = self._reserved(index)
                self._weigh()
            return index

    def _load(self, index: int) -> None:
        segment = self._catalogue.read(index, self.stop)
        self._allowance.check()  # after the first of all the bytes of a batch are known
        with self._lock:
            held = next((i for i, other in self._held.items() if i != index and segment.overlaps(other)), None)
        if held is not None:
            raise ValueError(
                f"tx.SegmentPool got {self._catalogue.told(index)} in the memory that {self._catalogue.told(held)} is "
                "in, whose rows it wrote over. Expected memory of its own from each load. Fix: load=lambda source: "
                "load(source).copy()."
            )
        with self._lock:
            self._loading = 0
            self.loads += 1
            if index in self._wanted and not self.stop.is_set():
                self._held[index] = segment
            del segment  # who is told may drop it
            self._weigh()
            self._ring()

    def _fail(self, error: BaseException, index: int | None) -> None:
        note = "" if index is None else f"tx.SegmentPool was loading {self._catalogue.told(index)}. Nothing is lost: "
        note += "the next call tries again; where tx.prefetch(pool) asked, another one does."
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        with self._lock:
            self._loading, self._runs = 0, False
            self._failed = None if self.stop.is_set() else error
            self._ring()

    def _weigh(self) -> None:
        self.peak = max(self.peak, self.held)


def _let_go(error: BaseException) -> None:
    """Empty the frames of an error and of its causes: what they hold is not counted."""
    chain: list[BaseException] = [error]
    while (after := chain[-1].__cause__ or chain[-1].__context__) is not None and after not in chain:
        chain.append(after)
    for each in chain:
        traceback.clear_frames(each.__traceback__)


_OPEN: weakref.WeakSet[Loader] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    """A thread that runs while the interpreter ends may crash it; one that hangs does not hold it up for long."""
    loaders = [loader for loader in _OPEN if not loader.is_foreign]
    for loader in loaders:
        loader.stop.set()
    for loader in loaders:
        loader.close(_EXITING)
