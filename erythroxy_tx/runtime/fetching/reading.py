"""Where batches are read from: iterators, one read after the other, and what can be read in any order. Not here: the
threads that read (`fetching/workers.py`).
"""

import inspect
import logging
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import jax

from erythroxy_tx.core.signature import shape_of

_LOG = logging.getLogger(__name__.partition(".")[0])

END = object()  # what is read past the last batch
SKIPPED = object()  # what a filter of grain's left out


class InTurn:
    """An iterable, which one thread at a time reads."""

    told = "next(source)"
    in_turn = True
    end: float = float("inf")

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self._promised = _length(source)
        self._iterator: Iterator[Any] | None = None

    def read(self, position: int) -> Any:
        if self._iterator is None:  # here, and not before: some have to be used by the thread that made them
            self._iterator = iter(self._source)
        item = next(self._iterator, END)
        if item is END and self._promised is not None and position < self._promised:
            _LOG.warning("tx.prefetch: the source ended after %d batches; its len() is %d", position, self._promised)
        return item

    def close(self) -> None:
        """Close a generator, and any other iterator that was made here; one that was given is its owner's."""
        iterator = self._source if self._iterator is None else self._iterator
        if inspect.isgenerator(iterator) or iterator is not self._source:
            getattr(iterator, "close", lambda: None)()


class AnyOrder:
    """A source with a length and items, which many threads read."""

    told = "source[i]"
    in_turn = False

    def __init__(self, source: Any, end: int) -> None:
        self._source, self.end = source, end
        self._is_sparse = type(source).__module__.partition(".")[0] == "grain"

    def read(self, position: int) -> Any:
        item = self._source[position]
        return SKIPPED if item is None and self._is_sparse else item

    def close(self) -> None:
        """Nothing was opened."""


def source_of(source: Any) -> InTurn | AnyOrder:
    """Choose how a source is read.

    **Raises:** `TypeError` for what has no batches in an order: a mapping, a string, an array of JAX.
    """
    if hasattr(source, "keys"):
        fix = "source.values(), or a list of batches, in the order that you mean"
    elif isinstance(source, (str, bytes)):
        fix = "what reads the batches of that name"
    elif isinstance(source, jax.Array):
        fix = "np.asarray(source): threads may not touch JAX; or slice it on the device, without tx.prefetch"
    elif hasattr(source, "__next__"):
        return InTurn(source)
    elif hasattr(source, "__getitem__") and (length := _length(source)) is not None:
        return AnyOrder(source, length)
    elif hasattr(source, "__iter__") or hasattr(source, "__getitem__"):
        return InTurn(source)
    else:
        fix = "call it, if it is a generator function"
    raise TypeError(
        f"tx.prefetch got source: {shape_of(source)}. Expected an iterable of batches, or what has __getitem__ and "
        f"__len__. Fix: {fix}."
    )


def _length(source: Any) -> int | None:
    """The length that a source states; a loader over a stream has the method, and raises."""
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None
