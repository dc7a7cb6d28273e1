"""Pressure stall information, by which Linux tells how long tasks waited for memory, I/O or the CPU. Not here: what the
figures mean for a run (`pressure.py`), and who is told of them (`on_pressure.py`).

Source: kernel documentation, accounting/psi.rst.
"""

import dataclasses
import errno
import re
import sys
import time
from pathlib import Path

from erythroxy_tx.host.files import ROOT

_LINE = re.compile(r"(some|full) avg10=(\d+\.\d+) avg60=(\d+\.\d+) avg300=(\d+\.\d+) total=(\d+)")


@dataclasses.dataclass(frozen=True)
class Stalls:
    """How much of the time was lost.

    **Attributes:**

    - `avg10`, `avg60`, `avg300`: percent of the last 10, 60 and 300 seconds; the kernel renews them every 2 seconds.
    - `total`: microseconds since the start of the machine, or of the control group.
    """

    avg10: float
    avg60: float
    avg300: float
    total: int


@dataclasses.dataclass(frozen=True)
class Psi:
    """The pressure on one resource.

    **Attributes:**

    - `some`: the time in which at least one task waited for it.
    - `full`: the time in which all tasks that had something to do waited; None for the CPU of a kernel before 5.13.
    """

    some: Stalls
    full: Stalls | None


def read_psi(path: Path) -> Psi:
    """Read a file such as `/proc/pressure/memory`.

    **Raises:** `OSError` that says why the kernel does not tell.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, _reason(error), str(path)) from error
    found = {
        match[1]: Stalls(float(match[2]), float(match[3]), float(match[4]), int(match[5]))
        for match in _LINE.finditer(text)
    }
    if "some" not in found:
        raise OSError(errno.EINVAL, f"has no line `some avg10=...`, but {text[:40]!r}", str(path))
    return Psi(found["some"], found.get("full"))


def _reason(error: OSError) -> str:
    if error.errno == errno.EOPNOTSUPP:
        return "the kernel was started without pressure (psi=1 on its command line starts it)"
    if error.errno != errno.ENOENT:
        return error.strerror or type(error).__name__
    if sys.platform != "linux":
        return f"only Linux tells the pressure, and this is {sys.platform}"
    return "the kernel is older than 4.20, has no CONFIG_PSI, was started with psi=0, or hides it from this container"


@dataclasses.dataclass(frozen=True)
class Stalled:
    """What share of a stretch of time some task of this machine waited.

    **Attributes:**

    - `seconds`: how long the stretch was.
    - `memory`, `io`: from 0 to 1; None where it cannot be known.
    - `missing`: why, or empty.
    """

    seconds: float
    memory: float | None
    io: float | None
    missing: str

    def __str__(self) -> str:
        if self.memory is None and self.io is None:
            return f"- ({self.missing})"
        return ", ".join(
            f"{name} {'-' if share is None else format(share, '.1%')}"
            for name, share in (("memory", self.memory), ("I/O", self.io))
        )


class StallClock:
    """Measure what share of the time since its start some task of this machine waited for memory, and for I/O::

        share = (total now - total at the start) / time between

    >>> clock = StallClock()
    >>> found = clock.read()
    >>> found.memory is None or 0 <= found.memory <= 1
    True
    """

    def __init__(self, *, root: Path = ROOT) -> None:
        self._folder = root / "proc/pressure"
        self._memory, self._io, _ = self._totals()
        self._begin = time.perf_counter()

    def read(self) -> Stalled:
        """Tell the shares from the start until now."""
        seconds = time.perf_counter() - self._begin
        memory, io, missing = self._totals()
        return Stalled(seconds, _share(self._memory, memory, seconds), _share(self._io, io, seconds), missing)

    def _totals(self) -> tuple[int | None, int | None, str]:
        totals: list[int | None] = []
        missing = ""
        for resource in ("memory", "io"):
            try:
                totals.append(read_psi(self._folder / resource).some.total)
            except OSError as error:
                totals.append(None)
                missing = str(error.strerror)
        return totals[0], totals[1], missing


def _share(before: int | None, now: int | None, seconds: float) -> float | None:
    if before is None or now is None or seconds <= 0:
        return None
    return min(1.0, max(0.0, (now - before) / 1e6 / seconds))  # two clocks, which differ by little
