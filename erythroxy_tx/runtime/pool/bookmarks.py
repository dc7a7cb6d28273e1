"""Where a pool of segments is, as a small dict that another process can go on from, and whether it is of the same pool.
Not here: how it goes on (`segments.py`).
"""

from typing import Any

import numpy as np

from erythroxy_tx.runtime.pool.catalogue import Catalogue
from erythroxy_tx.runtime.pool.rotation import Place
from erythroxy_tx.runtime.pool.rotation import Rotation
from erythroxy_tx.runtime.pool.rotation import taken

_VERSION = 1


class Bookmarks:
    """Writes and reads the states of one pool."""

    def __init__(self, catalogue: Catalogue, rotation: Rotation, parameters: dict[str, Any]):
        self._catalogue, self._rotation = catalogue, rotation
        self._same = {
            "version": _VERSION,
            **parameters,
            "active": rotation.active,
            "rotate": rotation.rotate,
            "shuffle": rotation.shuffle,
            "seed": rotation.seed,
            **catalogue.identity(),
        }

    def write(self, place: Place, batches: int, rows: list[int | None] | None = None) -> dict[str, Any]:
        """The state after so many batches. `reading` holds the source, rows and cursor of each active segment."""
        rows = self._catalogue.rows if rows is None else rows
        reads = self._rotation.reads(place.epoch, place.stage)
        counts = [rows[source] for source in reads]
        return {
            **self._same,
            "batches": batches,
            **place._asdict(),
            "reading": [
                [source, n, at] for source, n, at in zip(reads, counts, self._cursors(place, counts), strict=True)
            ],
        }

    def read(self, state: dict[str, Any]) -> tuple[Place, int]:
        """Where a state of this pool is, and after how many batches."""
        if not isinstance(state, dict):
            raise TypeError(
                f"tx.SegmentPool got state: {type(state).__name__}. Expected the dict that state() gave. Fix: "
                "json.loads of its text."
            )
        self._refuse_others([key for key in self._same if state.get(key) != self._same[key]], state, self._same)
        try:
            place, batches = Place(state["epoch"], state["stage"], state["row"]), state["batches"]
            rows = list(self._catalogue.rows)
            for source, n, _ in state["reading"]:
                if n is None or rows[source] is None:  # a side that did not know them cannot tell
                    rows[source] = n
            own = self.write(_checked(place, batches, self._rotation.stages), batches, rows)
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"tx.SegmentPool got state={state!r}: {type(error).__name__} {error}. Expected what state() gave of a "
                "pool of the same sources and parameters."
            ) from error
        differ = [key for key in {**own, **state} if state.get(key) != own.get(key)]
        self._refuse_others(differ, state, own)
        for source, n, _ in own["reading"]:
            if n is not None:
                self._catalogue.remember(source, n)
        return place, batches

    @staticmethod
    def _refuse_others(differ: list[str], state: dict[str, Any], own: dict[str, Any]) -> None:
        told = [
            f"{key}: {state.get(key)!r} there, {own.get(key)!r} here"
            for key in differ
            if key != "reading" or differ == ["reading"]  # which follows from all others
        ]
        if told:
            raise ValueError(
                f"tx.SegmentPool got a state of another pool; {'; '.join(told)}. Expected the same sources, in the "
                "same order, and the same parameters. Fix: those of then, or no state."
            )

    def _cursors(self, place: Place, counts: list[int | None]) -> list[int | None]:
        """Which row of each source comes next, where that is known."""
        known = [n for n in counts if n is not None]
        if len(known) < len(counts):
            if place.row:
                raise ValueError("rows are not known")
            return [None] * len(counts)
        parts = self._rotation.parts(place.stage, known)
        shares = np.array([stop - start for start, stop in parts])
        if place.row and place.row >= shares.sum():
            raise ValueError(f"row is {place.row} of {shares.sum()}")
        before = taken(shares, place.row) if place.row else np.zeros(len(shares), np.int64)
        return [start + int(n) for (start, _), n in zip(parts, before, strict=True)]


def _checked(place: Place, batches: Any, stages: int) -> Place:
    if any(type(n) is not int or n < 0 for n in (*place, batches)) or place.stage >= stages:
        raise ValueError(f"epoch, stage and row are {tuple(place)} after {batches} batches")
    return place
