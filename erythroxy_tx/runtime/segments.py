"""`SegmentPool`: batches from a data set of many segments, of which a few are in memory. Not here, but in `pool/`: the
order of the rows, the bytes, the background, and how a source is read.
"""

import collections
import operator
import threading
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Self

import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.runtime.pool.allowance import Allowance
from erythroxy_tx.runtime.pool.bookmarks import Bookmarks
from erythroxy_tx.runtime.pool.catalogue import Catalogue
from erythroxy_tx.runtime.pool.loader import Loader
from erythroxy_tx.runtime.pool.report import PoolReport
from erythroxy_tx.runtime.pool.rotation import Place
from erythroxy_tx.runtime.pool.rotation import Rotation
from erythroxy_tx.runtime.pool.rotation import mixed
from erythroxy_tx.runtime.pool.rotation import taken
from erythroxy_tx.runtime.pool.sources import Form
from erythroxy_tx.runtime.pool.sources import Segment
from erythroxy_tx.units import parse_bytes

_REMEMBERED = 1024  # batches back for which a state can be told


class _Head(NamedTuple):
    """How far a pool is: the batches that it gave, the place of the next row, and the rows of a batch that is begun."""

    batches: int
    place: Place
    rows: int
    out: list[np.ndarray]


class SegmentPool:
    """Give batches of a data set that is larger than memory, of which a few segments are in memory at a time.

    An iterator of numpy batches, to hand to `tx.prefetch`. A thread in the background, which may not touch JAX, loads
    the next segment while batches are made of the present ones. Sources are only ever read.

    **The law.** An epoch has an order of the sources. Stage k reads the sources k … k + active - 1 of that order, and a
    source that is read in several stages gives an equal part of its rows in each: with every stage one source ends,
    and one comes. Of m rows that a source gives in a stage, the i-th stands at (i + ½) / m; the rows of a stage come as
    they stand, of equals first that of the source which came first, and batches cut this sequence. Every row comes
    once in an epoch, no source is read twice in one, and the order is a function of the seed and the epoch alone,
    not of how long a load takes.

    **Arguments:**

    - `sources`: a sequence. Each is the path of a `.npy` file, an array that can be sliced (numpy, memmap, h5py), or a
        pytree of those with as many rows; or, with `load`, anything.
    - `active`: of how many segments a batch is mixed. One more is loaded ahead, if it fits.
    - `rotate`: `"segment"`, as above; `"subset"`: stage k reads sources k · active … (k + 1) · active - 1, in whole,
        and the next subset is loaded ahead as far as it fits. Up to `active` sources are always one stage.
    - `batch`: rows of a batch.
    - `load`: a function of a source that gives a pytree of numpy arrays with as many rows. Runs in the background.
    - `nbytes`: with `load`, the bytes of a segment: a number for all, one for each, or a function of a source. A budget
        needs it, and a segment that is larger is refused. It covers what `load` takes on its way, if that is to count.
    - `budget`: bytes that segments, the one that is loaded and a batch may take together: an int, or `"2GiB"`.
    - `seed`: an int from 0 on.
    - `shuffle`: `"segments"`: sources come in a seeded order, the rows of each as they are; `"rows"`: those are
        shuffled too; None: nothing is.
    - `epochs`: how often everything is read, or None for ever.
    - `last`: what becomes of rows that fill no batch when an epoch ends. `"carry"`: they open the first batch of the
        next, so that all batches have one shape but the very last. `"short"`: a batch of fewer rows, for which a jitted
        function compiles again. `"drop"`: nobody sees them. `"error"`: refused.
    - `state`: where to go on, from `state()`.

    **Returns:** an iterator of batches, pytrees like a segment with `batch` rows, each in memory of its own. Also a
    context manager; `close()` ends the thread and lets go of everything.

    **Raises:** `BudgetError` for segments that cannot fit, with the `active` that can; `LengthError` for rows that fill
    no batch; `ValueError` or `TypeError` for sources that do not agree, and for a state of others. What a load raises
    comes out of the next batch that is asked for, with the source in a note; nothing is lost, and the call after that
    tries again. A source that is written to while it is read is not noticed.

    >>> import numpy as np, erythroxy_tx as tx
    >>> segments = [np.arange(4), np.arange(10, 14), np.arange(20, 24)]
    >>> with tx.SegmentPool(segments, active=2, batch=4, shuffle=None) as pool:
    ...     for batch in pool:
    ...         print(batch)
    [ 0 10  1  2]
    [11  3 12 20]
    [13 21 22 23]
    """

    def __init__(
        self,
        sources: Sequence[Any],
        active: int = 6,
        rotate: str = "segment",
        *,
        batch: int,
        load: Callable[[Any], Any] | None = None,
        nbytes: Any = None,
        budget: int | str | None = None,
        seed: int = 0,
        shuffle: str | None = "segments",
        epochs: int | None = 1,
        last: str = "carry",
        state: dict[str, Any] | None = None,
    ):
        _one_of("rotate", rotate, "segment", "subset")
        _one_of("shuffle", shuffle, "segments", "rows", None)
        _one_of("last", last, "carry", "short", "drop", "error")
        self._batch, self._last = _number("batch", batch, 1), last
        self._epochs = None if epochs is None else _number("epochs", epochs, 1)
        active, seed = _number("active", active, 1), _number("seed", seed, 0)
        self._sources = Catalogue(sources, load, nbytes)
        active = min(active, len(self._sources))
        self._rotation = Rotation(len(self._sources), active, rotate, shuffle, seed)
        bytes_ = None if budget is None else parse_bytes(budget, "tx.SegmentPool: budget")
        self._allowance = Allowance(self._sources, bytes_, active, self._batch, 2 if shuffle == "rows" else 1)
        self._allowance.check()
        self._sources.check_rows(self._batch, self._last)
        self._bookmarks = Bookmarks(self._sources, self._rotation, {"batch": self._batch, "last": last})
        self._loader = Loader(self._sources, self._allowance)
        weakref.finalize(self, self._loader.stop.set).atexit = False  # the loader has an end of its own there
        self._turn = threading.RLock()  # batches are made one after the other
        self._telling = threading.RLock()  # a state can be told while a batch is waited for
        self._start(Place(0, 0, 0), 0)
        if state is not None:
            self.restore(state)

    def _start(self, place: Place, batches: int) -> None:
        self._has_ended = False
        with self._telling:
            self._places = collections.deque([(batches, place)], _REMEMBERED + 1)
            self._head = _Head(batches, place, 0, [])
        self._stage: tuple[int, int] | None = None
        self._reads: list[int] = []

    # ------------------------------------------------------------------ batches

    def __iter__(self) -> Self:
        if self._has_ended:
            raise RuntimeError(
                f"tx.SegmentPool gave all batches of epochs={self._epochs}, and would give no more. Expected a pool "
                "for each run. Fix: epochs= for several passes, or a new pool."
            )
        return self

    def __next__(self) -> Any:
        self._check_place()
        with self._turn:
            self._loader.check()
            while self._head.place.epoch != self._epochs:
                if (batch := self._fill()) is not None:
                    return batch[0]
            self._loader.want([])
            self._has_ended = True
            raise StopIteration

    def _fill(self) -> tuple[Any] | None:
        """Take from one stage what the batch lacks; the batch, in a tuple, when it is complete."""
        head, place = self._head, self._head.place
        segments = self._segments(place)
        form = segments[0].form
        out = head.out or [np.empty((self._batch, *shape), dtype) for _, shape, dtype in form.leaves]
        parts = self._rotation.parts(place.stage, [segment.rows for segment in segments])
        shares = np.array([stop - start for start, stop in parts])
        total = int(shares.sum())
        rows = min(total - place.row, self._batch - head.rows)
        if rows:
            before = taken(shares, place.row)
            which = mixed(shares, before, rows)
            for source, segment, share in zip(self._reads, segments, range(len(shares)), strict=True):
                into = np.flatnonzero(which == share)
                first = parts[share][0] + int(before[share])
                at = self._rotation.rows(source, place.epoch, first, first + into.size, segment.rows)
                into += head.rows
                for to, leaf in zip(out, segment.leaves, strict=True):
                    to[into] = leaf[at]
        place = place._replace(row=place.row + rows)
        if place.row == total:
            place = self._next_stage(place)
        return self._advance(form, _Head(head.batches, place, head.rows + rows, out))

    def _segments(self, place: Place) -> list[Segment]:
        """The segments of a stage, when they are there."""
        if self._stage != place[:2]:
            self._loader.want(self._rotation.ahead(place.epoch, place.stage, self._epochs))
            self._stage, self._reads = place[:2], self._rotation.reads(place.epoch, place.stage)
        return self._loader.wait(self._reads)

    def _next_stage(self, place: Place) -> Place:
        if place.stage + 1 < self._rotation.stages:
            return Place(place.epoch, place.stage + 1, 0)
        self._sources.check_rows(self._batch, self._last)
        return Place(place.epoch + 1, 0, 0)

    def _advance(self, form: Form, head: _Head) -> tuple[Any] | None:
        """Go on, and give the batch if it is complete."""
        complete = head.rows == self._batch
        if head.place.epoch != self._head.place.epoch and not complete:
            if self._last == "drop":
                head = head._replace(rows=0)
            ends = self._last == "short" or (self._last == "carry" and head.place.epoch == self._epochs)
            complete = ends and head.rows > 0
        if not complete:
            self._head = head
            return None
        with self._telling:  # each is one step, and twice the same: an interrupt leaves nothing half done
            self._places.append((head.batches + 1, head.place))
            self._head = _Head(head.batches + 1, head.place, 0, [])
        return (form.treedef.unflatten([out[: head.rows] for out in head.out]),)

    def _check_place(self) -> None:
        if self._loader.is_foreign:
            raise RuntimeError(
                "tx.SegmentPool was made in another process, and its thread is not in this fork. Expected one in each "
                "process. Fix: make it after the fork."
            )
        if _compat.inside_staging():
            raise TransformOrderError(
                "next() of tx.SegmentPool was called inside of a trace (jit, scan), where one batch would become a "
                "constant of the program. Expected it outside. Fix: give the batch to the function as an argument."
            )

    # ------------------------------------------------------------------ state

    @property
    def batches(self) -> int:
        """How many batches were given since the run began, those before a restart included."""
        return self._head.batches

    def state(self, *, after: int | None = None) -> dict[str, Any]:
        """Tell where the pool is, to go on from there in another process: a small dict, ready for JSON.

        **Arguments:**

        - `after`: the number of batches that were consumed since the run began, those before a restart included. By
            default as many as the pool has given; but `prefetch` takes batches before they are consumed, and a state of
            then would skip them.

        **Returns:** a dict for `restore`, or for `SegmentPool(..., state=)` with the same sources and parameters.

        **Raises:** `ValueError` for batches that were not given yet, or more than 1024 before the last.
        """
        with self._telling:
            places = dict(self._places)
            wanted = self._head.batches if after is None else after
        if isinstance(wanted, bool) or wanted not in places:
            raise ValueError(
                f"tx.SegmentPool.state got after={after!r}. Expected a number of batches since the run began, from "
                f"{min(places)} to {max(places)}, the last that it gave."
            )
        return self._bookmarks.write(places[wanted], wanted)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state: what comes is what would have come.

        **Raises:** `ValueError` for a state of other sources or parameters, with what differs.
        """
        with self._turn:
            self._start(*self._bookmarks.read(state))

    # ------------------------------------------------------------------ bytes

    def report(self) -> PoolReport:
        """Tell what is held and what was done: bytes, seconds, segments and batches."""
        loader = self._loader
        return PoolReport(loader.held, loader.peak, self._allowance.beside, loader.waited, loader.loads, self.batches)

    def close(self) -> None:
        """Let go of all segments and end the thread, after what it loads at this moment. Sources stay as they are."""
        if self._loader.is_foreign:  # where a lock may be held for ever, by a thread that is not here
            return
        self._loader.close()
        with self._turn:
            self._head = self._head._replace(rows=0, out=[])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _one_of(name: str, value: Any, *choices: Any) -> None:
    if value not in choices:
        told = ", ".join(map(repr, choices[:-1]))
        raise ValueError(f"tx.SegmentPool got {name}={value!r}. Expected {told} or {choices[-1]!r}.")


def _number(name: str, value: Any, least: int) -> int:
    try:
        found = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = -1
    if not least <= found < 2**63:
        raise ValueError(f"tx.SegmentPool got {name}={value!r}. Expected an int from {least} on.")
    return found
