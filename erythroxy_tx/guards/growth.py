"""How much more memory the host holds than at a moment before: what stayed, the peak in between, and who grew. Not
here: what is put around a function (`transforms/host_flat.py`), and who holds arrays (`holders.py`).
"""

import contextlib
import gc
from pathlib import Path
from typing import Any
from typing import NamedTuple
from typing import Self

from erythroxy_tx.errors import BudgetError
from erythroxy_tx.guards.holders import Came
from erythroxy_tx.guards.holders import arrays_on_cpu
from erythroxy_tx.guards.holders import came
from erythroxy_tx.guards.holders import holders
from erythroxy_tx.guards.holders import signed
from erythroxy_tx.host.memory import HighWater
from erythroxy_tx.host.memory import return_freed
from erythroxy_tx.host.memory import rss
from erythroxy_tx.units import format_bytes

_STATUS = Path("/proc/self/status")
_PARTS = ("RssAnon:", "RssFile:", "RssShmem:")


class Level(NamedTuple):
    """Bytes that are resident: all, and of which kind. Where the system does not tell the kinds, they are 0."""

    all: int
    anonymous: int = 0
    files: int = 0
    shared: int = 0


def level() -> Level:
    """Now."""
    try:
        lines = [line.split() for line in _STATUS.read_text().splitlines()]
    except OSError:
        return Level(rss())
    found = {line[0]: int(line[1]) * 1024 for line in lines if line[0] in _PARTS}
    if len(found) < len(_PARTS):
        return Level(rss())
    return Level(sum(found.values()), *(found[name] for name in _PARTS))


class Growth:
    """What the host's memory grew by since `begin`, in bytes. A block, `with tx.host_flat(...) as growth`, gives it.

    - `stayed`: what is resident now, or was at the end of the block, beyond what was before.
    - `peak`: the most in between; `how` it is known, `"VmHWM"`, exact, or `"sampled"`, every 5 ms.
    - `anonymous`, `files`, `shared`: of `stayed`, what programs allocated, mapped files, and shared memory; all 0 where
        the system does not tell.
    """

    def __init__(self, title: str, limit: int, since: str) -> None:
        self.title, self.limit, self.since = title, limit, since
        self.how, self._peak = "VmHWM", 0
        self._end: Level | None = None
        self._high: HighWater | None = None
        self._held: Any = None
        self._base = Level(0)
        self.error: BudgetError | None = None

    def begin(self) -> None:
        """What grows from now on counts."""
        gc.collect()
        self._held = holders()
        settle()
        return_freed()
        self._base = level()

    def of(self, title: str) -> "Growth":
        """The same, of one call among those since then."""
        found = Growth(title, self.limit, self.since)
        found._held, found._base = self._held, self._base
        return found

    def __enter__(self) -> Self:
        self._high = HighWater().__enter__()
        self.how = self._high.how
        self._end = None
        return self

    def __exit__(self, *error: object) -> None:
        """Raise if it grew by more than it may, unless there is an error already."""
        high, self._high = self._high, None
        if high is None:
            return
        if error[0] is None:
            settle()  # or work that is under way would have its peak later
        high.__exit__(*error)
        self._peak = high.peak - self._base.all
        return_freed()
        self._end = level()
        if error[0] is not None:
            return
        if self.stayed > self.limit:
            gc.collect()
            return_freed()
            self._end = level()
        if max(self.stayed, self.peak) > self.limit:
            self.error = BudgetError(self._told(came(self._held, holders())))
            raise self.error

    @property
    def peak(self) -> int:
        return max(0, self._high.peak - self._base.all if self._high is not None else self._peak)

    @property
    def stayed(self) -> int:
        return self._now.all - self._base.all

    @property
    def anonymous(self) -> int:
        return self._now.anonymous - self._base.anonymous

    @property
    def files(self) -> int:
        return self._now.files - self._base.files

    @property
    def shared(self) -> int:
        return self._now.shared - self._base.shared

    @property
    def _now(self) -> Level:
        return self._end if self._end is not None else level()

    def __str__(self) -> str:
        sampled = "" if self.how == "VmHWM" else ", sampled every 5 ms"
        return f"{signed(self.stayed)} stayed, {signed(self.peak)} at the peak{sampled}; {self._kinds}"

    __repr__ = __str__

    @property
    def _kinds(self) -> str:
        if not self._base.anonymous:
            return "the system does not tell of which kind"
        kinds = ("anonymous memory", self.anonymous), ("mapped files", self.files), ("shared memory", self.shared)
        return ", ".join(f"{name} {signed(nbytes)}" for name, nbytes in kinds)

    def _told(self, who: Came) -> str:
        over = [name for name, nbytes in (("what stayed", self.stayed), ("the peak", self.peak)) if nbytes > self.limit]
        sampled = "" if self.how == "VmHWM" else " (sampled every 5 ms)"
        first = (
            f"{self.title}: the host's memory grew by {format_bytes(max(0, self.stayed))} that stayed, and by "
            f"{format_bytes(self.peak)} at its peak{sampled}, since {self.since}. Expected at most "
            f"{format_bytes(self.limit)}: {' and '.join(over)} {'are' if len(over) > 1 else 'is'} over."
        )
        return "\n  ".join([first, f"of what stayed: {self._kinds}", *who.told]) + f"\nFix: {self._fix(who)}."

    def _fix(self, who: Came) -> str:
        if self.stayed <= self.peak // 2:
            return (f"{_WARM_UP}; or " if who.programs else "") + _IN_PIECES
        if self.files > max(self.anonymous, self.shared):
            return f"{_WARM_UP}; or {_FILES}" if who.programs else _FILES
        if self.shared > max(self.anonymous, self.files):
            return _SHARED
        if max(who.jax, who.numpy) > self.stayed // 4:
            return _OF_JAX if who.jax >= who.numpy else _OF_NUMPY
        return _WARM_UP if who.programs else _OBJECTS


_WARM_UP = (
    "warm up, by a call before or warmup=: programs were compiled; tx.no_recompile finds shapes that do each time"
)
_IN_PIECES = "work in pieces (tx.chunked) or on the device; what was there at the peak is gone, and has no name"
_FILES = "close mapped files (np.memmap, safetensors), and import libraries before"
_SHARED = "release shared memory, of worker processes or in /dev/shm"
_OF_JAX = "let go of arrays that a list or a closure keeps, such as a history of losses"
_OF_NUMPY = (
    "build it on the device from a small base (tx.vram_resident), or in pieces (tx.chunked), and keep the result"
)
_OBJECTS = "tracemalloc.start() before it, and the lines that allocate are named here; but for libraries in C"


class Block(contextlib.AbstractContextManager):
    """A `Growth` from the beginning of a block."""

    def __init__(self, title: str, limit: int) -> None:
        self._growth = Growth(title, limit, "the beginning of the block")

    def __enter__(self) -> Growth:
        self._growth.begin()
        return self._growth.__enter__()

    def __exit__(self, *error: object) -> None:
        self._growth.__exit__(*error)


def settle() -> None:
    """Wait for the arrays in the host's memory: what computes them is there too. Those on a GPU are not waited for."""
    for array in arrays_on_cpu():
        with contextlib.suppress(RuntimeError):  # another thread donated it, or its program failed: its reader is told
            array.block_until_ready()
