"""The sources of a pool together: their names, rows and bytes as far as they are known, and that they agree. Not here:
how one is read (`sources.py`), and when (`loader.py`).
"""

import hashlib
import itertools
import os
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import LengthError
from erythroxy_tx.runtime.pool.sources import Form
from erythroxy_tx.runtime.pool.sources import Loaded
from erythroxy_tx.runtime.pool.sources import Segment
from erythroxy_tx.runtime.pool.sources import Stop
from erythroxy_tx.runtime.pool.sources import Stored
from erythroxy_tx.units import parse_bytes


class Catalogue:
    """All sources, in the order in which they were given."""

    def __init__(self, sources: Sequence[Any], load: Callable[[Any], Any] | None, nbytes: Any):
        if isinstance(sources, str | os.PathLike | Mapping) or hasattr(sources, "shape"):
            raise TypeError(
                f"tx.SegmentPool got sources: {shape_of(sources)}, which is one source. Expected a sequence of them. "
                "Fix: a list."
            )
        given = list(sources)
        if not given:
            raise ValueError("tx.SegmentPool got sources without any. Expected at least one.")
        self._names = [_names(each) for each in given]
        self._form: Form | None = None
        self._sources: list[Stored | Loaded]
        if load is not None:
            said = _said(given, nbytes)
            self._sources = [Loaded(self.told(i), each, load, said[i]) for i, each in enumerate(given)]
        elif nbytes is not None:
            raise ValueError(
                "tx.SegmentPool got nbytes= without load=. Expected it of what load gives; else it is known."
            )
        else:
            self._sources = [Stored(self.told(i), each) for i, each in enumerate(given)]
        for i, source in enumerate(self._sources):
            self._agree(i, source.form)
        self.rows = [source.rows for source in self._sources]
        self._identity = {
            "sources": len(given),
            "names": _digest([_below(self._names), [_marks(each) for each in given]]),
            "rows": _digest(self.rows),
        }

    def __len__(self) -> int:
        return len(self._sources)

    def told(self, index: int) -> str:
        """A source as a message tells it: `sources[3] ('train/003.npy')`."""
        names = ", ".join(map(repr, self._names[index]))
        return f"sources[{index}]" + (f" ({names})" if names else "")

    @property
    def row_bytes(self) -> int | None:
        """Bytes of a row, or None before anything is known."""
        return None if self._form is None else self._form.row_bytes

    @property
    def total(self) -> int | None:
        """The rows of an epoch, or None while those of a source are not known."""
        known = [rows for rows in self.rows if rows is not None]
        return sum(known) if len(known) == len(self) else None

    @property
    def piece(self) -> int:
        """Bytes that are on their way into a segment, beside it, at most."""
        return max(source.piece for source in self._sources)

    def nbytes(self, index: int) -> int | None:
        """Bytes of a segment, or None where nobody said them."""
        return self._sources[index].nbytes

    def identity(self) -> dict[str, Any]:
        """What tells these sources from others, in a few characters."""
        return dict(self._identity)

    def read(self, index: int, stop: Stop) -> Segment:
        """The segment of a source, which has to agree with the others and with what it was before."""
        segment = self._sources[index].read(stop)
        self._agree(index, segment.form)
        self.remember(index, segment.rows)
        return segment

    def remember(self, index: int, rows: int) -> None:
        """Note the rows of a source, which may not change."""
        if self.rows[index] not in {None, rows}:
            raise ValueError(
                f"tx.SegmentPool got {self.told(index)} with {rows} rows, which had {self.rows[index]}. Expected "
                "sources that nobody changes."
            )
        self.rows[index] = rows

    def check_rows(self, batch: int, last: str) -> None:
        """Refuse what would give no batch, or a row too many, if all rows are known."""
        if self.total is None:
            return
        told = f"tx.SegmentPool got {self.total} rows in {len(self)} sources, and batch={batch}"
        if self.total == 0 or (self.total < batch and last == "drop"):
            raise LengthError(f'{told}: no batch. Expected at least one. Fix: a smaller batch=, or last="carry".')
        if self.total % batch and last == "error":
            raise LengthError(
                f'{told}, {self.total % batch} rows more than whole batches. Expected none with last="error". Fix: '
                'another batch=, or last="carry".'
            )

    def _agree(self, index: int, form: Form | None) -> None:
        if form is None:
            return
        if self._form is None:
            self._form, self._first = form, index
        if form != self._form:
            raise ValueError(
                f"tx.SegmentPool got {self.told(index)} with {form}; {self.told(self._first)} has {self._form}. "
                "Expected the same structure, shapes of rows and dtypes in all: batches have one shape."
            )


def _said(sources: list[Any], nbytes: Any) -> list[int | None]:
    """The bytes that the user says of each source."""
    if nbytes is None:
        return [None] * len(sources)
    if callable(nbytes):
        nbytes = [nbytes(source) for source in sources]
    elif isinstance(nbytes, str | int | np.integer):
        nbytes = [nbytes] * len(sources)
    if len(nbytes) != len(sources):
        raise ValueError(
            f"tx.SegmentPool got nbytes= with {len(nbytes)} numbers for {len(sources)} sources. Expected one for each, "
            "or one for all."
        )
    plain = [int(n) if isinstance(n, np.integer) else n for n in nbytes]
    return [parse_bytes(n, f"tx.SegmentPool: nbytes of sources[{i}]") for i, n in enumerate(plain)]


def _names(source: Any) -> list[str]:
    """The paths and numbers in a source; arrays have no names."""
    return [str(leaf) for leaf in jtu.tree_leaves(source) if isinstance(leaf, str | os.PathLike | int | float)]


def _marks(source: Any) -> list[str]:
    """What tells arrays apart: their first and last row, of which a file behind them is read; or a file's own names."""
    marks = []
    for leaf in jtu.tree_leaves(source):
        if isinstance(leaf, np.ndarray) and leaf.ndim and not leaf.dtype.hasobject:
            marks.append(_digest((leaf[:1].tobytes(), leaf[-1:].tobytes())))
        elif hasattr(leaf, "shape"):
            own = getattr(leaf, "name", ""), getattr(getattr(leaf, "file", None), "filename", "")
            marks.append(_digest([repr(leaf) if isinstance(leaf, np.generic) else "", *own]))
        elif not isinstance(leaf, str | os.PathLike | int | float) and " at 0x" not in (
            told := repr(leaf)
        ):  # what has no name of its own cannot be told apart
            marks.append(_digest(told))
    return marks


def _below(names: list[list[str]]) -> list[list[str]]:
    """Names below the folder that all are in, which may be another on the next machine."""
    parts = [[PurePath(name).parts for name in each] for each in names]
    folders = zip(*(name[:-1] for each in parts for name in each), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, folders))
    return [["/".join(name[common:]) for name in each] for each in parts]


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
