"""What this process holds in host memory: now, at its highest, and over time. Not here: device
memory, other processes, and the pressure on the machine as a whole.

Linux keeps the highest resident size of a process, `VmHWM`, and sets it back when "5" is written to
`/proc/self/clear_refs`. That sees a peak of any length. Where it cannot be had, a thread samples
instead, and the result says so, since a sample can miss a short peak.
"""

import ctypes
import sys
import threading
import time
from pathlib import Path
from typing import Literal
from typing import Self

import psutil

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_SLACK = 64 * 2**20  # the kernel counts pages per CPU, so that two readings of one level may differ

_lock = threading.Lock()
_open: list["HighWater"] = []  # setting the mark back would take their peak from them


def rss() -> int:
    """Tell the resident size of this process.

    **Returns:** bytes.

    >>> rss() > 1_000_000
    True
    """
    return int(psutil.Process().memory_info().rss)


class MemoryTrace:
    """Sample the resident size of this process in a background thread.

    **Arguments:**

    - `period`: seconds from one sample to the next.

    **Attributes:**

    - `seconds`: when each sample was taken, seconds since entry.
    - `bytes`: the resident size at each sample.

    The first sample is taken at entry and the last at exit.

    **Raises:** `ValueError` if `period` is not above zero.

    >>> with MemoryTrace(period=0.01) as trace:
    ...     block = bytearray(1_000_000)
    >>> len(trace.seconds) == len(trace.bytes) >= 2
    True
    """

    def __init__(self, period: float = 0.05):
        if not period > 0:
            raise ValueError(f"MemoryTrace got period={period!r}. Expected seconds above zero, such as 0.05.")
        self.period = period
        self.seconds: list[float] = []
        self.bytes: list[int] = []

    def __enter__(self) -> Self:
        self._begin = time.perf_counter()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-trace", daemon=True)
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._done.wait(self.period):
            self._sample()

    def _sample(self) -> None:
        self.seconds.append(time.perf_counter() - self._begin)
        self.bytes.append(rss())


def return_freed() -> None:
    """Give freed memory back to the system, where the allocator can be asked to (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


class HighWater:
    """Measure the highest resident size that this process reaches inside a `with` block.

    **Attributes:**

    - `start`: bytes at entry.
    - `peak`: the highest bytes since entry; after exit, the highest inside the block.
    - `rise`: `peak - start`.
    - `how`: `"VmHWM"`, exact, or `"sampled"`, every 5 ms, which can miss a short peak.

    Memory that the process had freed but not returned to the system counts in `start`, and hides an
    equal rise; glibc is asked to return it first. Only a fresh process shows the whole of it.

    >>> with HighWater() as high:
    ...     block = bytearray(50_000_000)
    ...     del block
    >>> high.rise > 40_000_000
    True
    """

    start: int
    _peak: int
    how: Literal["VmHWM", "sampled"]

    def __enter__(self) -> Self:
        with _lock:
            for other in _open:
                other._peak = other.peak
            return_freed()
            self.how = "VmHWM" if _reset_mark() else "sampled"
            self.start = self._peak = rss()
            if self.how == "sampled":
                self._trace = MemoryTrace(period=0.005).__enter__()
            _open.append(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        with _lock:
            if self.how == "sampled":
                self._trace.__exit__()
            self._peak = self.peak
            _open.remove(self)

    @property
    def peak(self) -> int:
        if self not in _open:
            return self._peak
        return max(self._peak, _mark() if self.how == "VmHWM" else max(self._trace.bytes))

    @property
    def rise(self) -> int:
        return self.peak - self.start


def _reset_mark() -> bool:
    try:
        _CLEAR_REFS.write_text("5")
        return abs(_mark() - rss()) < _SLACK
    except OSError:
        return False


def _mark() -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no line VmHWM.")
