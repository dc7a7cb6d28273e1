"""What is kept of a phase: how often, how long, its parts, and how busy the device was meanwhile. Not here: what opens
it (`phase.py`), and how it is told (`phases/table.py`, `phases/picture.py`).
"""

import html
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from typing import TypeVar

from erythroxy_tx.runtime.phases.busy import Busy
from erythroxy_tx.runtime.phases.busy import kept
from erythroxy_tx.runtime.phases.timeline import Timeline

T = TypeVar("T")

_KEPT = 1024  # seconds of single times that median and percentile are taken of
_MOST = 200  # phases of one recording
_OTHERS = "(others)"
_SPIKY = 2.0  # times the median
_ENOUGH = 5  # times, to tell flat from spiky
_LOCK = threading.RLock()  # of all recordings: it is held for a few additions
if hasattr(os, "register_at_fork"):  # or a child could find it held by a thread that it does not have
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class Phase:
    """A phase of a run, with the phases inside of it. Made by `phase`.

    - `name`; `times` it was entered; `seconds` in it, until now while it is open.
    - `median`, `p95`: seconds of one time, of all times up to 1024, and of as many drawn at random beyond.
    - `is_spiky`: whether p95 > 2 × median; None before it was entered five times.
    - `parts`: the phases inside, by name, which `phase[name]` looks up. `rest`: seconds in none of them.
    - `busy`: the share of its seconds in which the device had tracked work, at most; None where nothing was tracked.

    Printed it is a table, with a sentence on what to do; `svg()` is a picture of it over time, which `save(path)`
    writes.
    """

    __slots__ = (
        "_busy",
        "_clock",
        "_device",
        "_kept",
        "_last",
        "_of",
        "_open",
        "_phases",
        "_random",
        "_seconds",
        "_timeline",
        "name",
        "parts",
        "times",
        "tracked",
    )

    def __init__(self, name: str, clock: Callable[[], float], root: "Phase | None" = None) -> None:
        self.name, self._clock, self._of = name, clock, root
        self.parts: dict[str, Phase] = {}
        self._open: list[Any] = []  # times that have not ended
        self._kept: list[float] = []
        self._random: random.Random | None = None
        self.times = self.tracked = 0
        self._seconds = self._busy = 0.0
        if root is None:  # of the outermost alone
            self._device: Busy | None = None
            self._timeline: Timeline | None = None
            self._last = 0.0  # when the host last entered, left or tracked something
            self._phases = 1

    def track(self, values: T) -> T:
        """Let a thread find out when the device has computed these values. It waits, and computes nothing.

        Call it on what a compiled function returned: `state, loss = step.track(train(state, batch))`. The work counts
        from when a phase was last entered or left, or a value tracked, and no earlier than the end of what was tracked
        before. Of the arrays only a few small ones, or the smallest, are kept until they are ready. One that is donated
        before somebody waits for it counts as ready at the next one that is; track a loss along with a state.

        **Arguments:** `values`: a pytree with arrays of JAX. One without is not counted.

        **Returns:** the same values, at once.

        **Raises:** `TypeError` for traced values, inside of `jit`.
        """
        root, arrays = self._root, kept(values)
        if arrays is None:
            return values
        with _LOCK:
            if root._device is None:
                self._open_timeline()
                root._device = Busy(self._clock, _LOCK, root._took_work)
            root._device.track(arrays, root._last)
            self.tracked += 1
            root._last = self._clock()
        return values

    @property
    def seconds(self) -> float:
        with _LOCK:
            return self._until(self._clock())

    @property
    def median(self) -> float:
        return self._quantile(0.5)

    @property
    def p95(self) -> float:
        return self._quantile(0.95)

    @property
    def is_spiky(self) -> bool | None:
        return self.p95 > _SPIKY * self.median if self.times >= _ENOUGH else None

    @property
    def rest(self) -> float:
        """Seconds in none of its parts."""
        return max(0.0, self.seconds - sum(part.seconds for part in list(self.parts.values())))

    @property
    def busy(self) -> float | None:
        """The share of its seconds in which the device had tracked work; waits for what is not ready yet."""
        device = self._root._device
        if device is None:
            return None
        device.settle()
        with _LOCK:
            now = self._clock()
            seconds = self._until(now)
            worked = self._busy + sum(device.until(now) - entry.worked for entry in self._open)
        return min(1.0, max(0.0, worked / seconds)) if seconds else None

    def __getitem__(self, name: str) -> "Phase":
        return self.parts[name]

    def __str__(self) -> str:
        from erythroxy_tx.runtime.phases.table import table

        return table(self)

    __repr__ = __str__

    def svg(self) -> str:
        """A picture: a lane for each phase, and one for the device, over time."""
        from erythroxy_tx.runtime.phases.picture import picture

        return picture(self)

    def save(self, path: str | Path) -> None:
        """Write the picture to a file whose name ends in `.svg`.

        **Raises:** `ValueError` for another name.
        """
        if Path(path).suffix != ".svg":
            raise ValueError(f"save got {str(path)!r}. Expected a name that ends in .svg, the only kind of picture.")
        Path(path).write_text(self.svg(), encoding="utf-8")

    def _repr_html_(self) -> str:
        return f"{self.svg()}<pre>{html.escape(str(self))}</pre>"

    @property
    def _root(self) -> "Phase":  # one that is outermost must not refer to itself, or each would be garbage in a cycle
        return self._of or self

    # ------------------------------------------------------------------ by `phase.py`, and what tells of it

    def _part(self, name: str) -> "Phase":
        """The phase of this name inside of this one, which itself is when it calls itself."""
        if name == self.name:
            return self
        found = self.parts.get(name)
        if found is None:
            with _LOCK:
                if self._root._phases >= _MOST:
                    return self if self.name == _OTHERS else self.parts.setdefault(_OTHERS, self._new(_OTHERS))
                self._root._phases += name not in self.parts
                found = self.parts.setdefault(name, self._new(name))
        return found

    def _new(self, name: str) -> "Phase":
        self._open_timeline()
        return Phase(name, self._clock, self._root)

    def _enter(self, entry: Any) -> None:
        """Begin a time; the entry keeps when, and how long the device had been busy until then."""
        root = self._of or self
        entry.begin = root._last = self._clock()
        self._open.append(entry)
        entry.worked = 0.0
        if root._device is not None:
            with _LOCK:
                root._device.open()
                entry.worked = root._device.until(entry.begin)

    def _leave(self, entry: Any) -> None:
        """Count a time that ends."""
        root = self._of or self
        with _LOCK:
            now = root._last = self._clock()
            self._open.remove(entry)
            self.times += 1
            self._seconds += now - entry.begin
            if len(self._kept) < _KEPT:
                self._kept.append(now - entry.begin)
            else:
                self._draw(now - entry.begin)
            if root._timeline is not None:
                root._timeline.add(self, entry.begin, now)
            if root._device is not None:
                self._busy += root._device.until(now) - entry.worked
                if root is self and not self._open:
                    root._device.close()

    def _draw(self, seconds: float) -> None:
        self._random = self._random or random.Random(0)  # noqa: S311  # a sample, no secret
        if (at := int(self._random.random() * self.times)) < _KEPT:
            self._kept[at] = seconds

    def _until(self, now: float) -> float:
        return self._seconds + sum(now - entry.begin for entry in self._open)

    def _quantile(self, share: float) -> float:
        with _LOCK:
            ordered = sorted(self._kept)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def _open_timeline(self) -> None:
        if self._root._timeline is None:
            self._root._timeline = Timeline(self._root._last)

    def _took_work(self, begin: float, end: float) -> None:
        if self._root._timeline is not None:
            self._root._timeline.add("device", begin, end)
