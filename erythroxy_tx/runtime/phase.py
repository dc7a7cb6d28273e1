"""`phase`: a named stretch of a run, as a block or around a function, inside of others. Not here: what is kept of it
(`phases/record.py`).
"""

import contextvars
import functools
import inspect
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from erythroxy_tx import _compat
from erythroxy_tx.core.late import is_late
from erythroxy_tx.core.late import late
from erythroxy_tx.core.late import refuse_late
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.guards.guard import order
from erythroxy_tx.runtime.phases.record import Phase


def phase(name: str, *, clock: Callable[[], float] = time.perf_counter) -> "Block":
    """Name a stretch of a run, to see where its time goes: on the host, and on the device.

    A block, `with tx.phase("epoch") as epoch:`, or the decorator of a function. One inside of another is a part of it,
    and the same name again adds up. `print(epoch)` is a table with a sentence on what to do. What the device did is
    known of values that are handed to `track`, and of nothing else::

        busy = Σ (ready − begun) / seconds,   begun = max(handed over, ready of the one before)

    An upper bound: work counts as handed over from when a phase was last entered or left, which is before it was
    dispatched, and as ready when a thread has seen it, which is later. What is first compiled counts as well.

    **Arguments:**

    - `name`: what to call it. "upload" is told apart in the sentence.
    - `clock`: tells seconds. Those inside take that of the outermost.

    **Returns:** a block that is a decorator as well. The block gives a `Phase`, with `track`; a phase that is the
    outermost adds up over the times that the same block is entered.

    **Raises:** `TransformOrderError` inside of `jit`, `scan` and kin, where only the trace would be seen. `TypeError`
    around a generator or a coroutine.

    >>> import itertools, erythroxy_tx as tx
    >>> seconds = itertools.count()  # a clock that is a second later at each look
    >>> with tx.phase("epoch", clock=lambda: float(next(seconds))) as epoch:
    ...     for _ in range(5):
    ...         with tx.phase("prepare"):
    ...             pass
    >>> epoch.seconds, epoch["prepare"].times, epoch["prepare"].median
    (11.0, 5, 1.0)
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        got = repr(name) if isinstance(name, str) else name_of(name) if callable(name) else shape_of(name)
        raise TypeError(
            f"tx.phase got {got} in place of a name. Expected a str, in one line. Fix: tx.phase('encode'), which is a "
            "block and a decorator."
        )
    return Block(name, clock)


class _Entry:
    """One time that a phase is open, in one context."""

    __slots__ = ("again", "begin", "block", "frame", "is_open", "outer", "record", "worked")

    def __init__(self, block: "Block", record: Phase, outer: "_Entry | None", frame: types.FrameType | None) -> None:
        self.block: Block | None = block
        self.frame = frame  # of a generator or a coroutine, which may pause
        self.record, self.outer, self.is_open = record, outer, True
        self.again = outer is not None and outer.record is record
        if not self.again:
            record._enter(self)

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self.again:
            self.record.times += 1
        else:
            self.record._leave(self)
        inner = _OPEN.get()
        if inner is self:
            _OPEN.set(self.outer)
        else:  # one of a generator's, which ends among others
            while inner is not None and inner.outer is not self:
                inner = inner.outer
            if inner is not None:
                inner.outer = self.outer
        self.outer = self.block = self.frame = None  # which remember this

    def is_around(self) -> bool:
        """Whether it is around what runs: not that of a task that waits, nor of a generator that has yielded."""
        return self.is_open and (self.frame is None or self.frame.f_back is not None)


_PAUSES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OPEN: contextvars.ContextVar[_Entry | None] = contextvars.ContextVar("phase", default=None)


class Block:
    """What `phase` returns: a block, or, called with a function, its decorator. What is looked up in it is looked up in
    the `Phase` that it entered last.
    """

    __slots__ = ("_clock", "_last", "_name", "_own")

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name, self._clock = name, clock
        self._own: Phase | None = None  # as the outermost
        self._last: _Entry | None = None

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        refuse_late("tx.phase", fn)
        if not callable(fn):
            raise TypeError(f"tx.phase({self._name!r}) got {shape_of(fn)}. Expected a function.")

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            entry = self._enter(None)
            try:
                result = fn(*args, **kwargs)
            finally:
                entry.close()
            if is_late(result):
                raise late(f"tx.phase({self._name!r})", "tx.phase")
            return result

        run.phase = self  # type: ignore[attr-defined]
        return run

    def __enter__(self) -> Phase:
        frame = sys._getframe(1)
        return self._enter(frame if frame.f_code.co_flags & _PAUSES else None).record

    def __exit__(self, *_: object) -> None:
        entry = _OPEN.get()
        while entry is not None and (entry.block is not self or not entry.is_open):
            entry = entry.outer
        entry = entry or self._last  # of another context, as when a generator is closed by another thread
        if entry is not None:
            entry.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._record(), name)

    def __getitem__(self, name: str) -> Phase:
        return self._record()[name]

    def __repr__(self) -> str:
        return repr(self._record())

    def _repr_html_(self) -> str:
        return self._record()._repr_html_()

    def _record(self) -> Phase:
        return self._last.record if self._last is not None else self._outermost()

    def _outermost(self) -> Phase:
        if self._own is None:
            self._own = Phase(self._name, self._clock)
        return self._own

    def _enter(self, frame: types.FrameType | None) -> _Entry:
        outer = _OPEN.get()
        while outer is not None and not outer.is_around():
            outer = outer.outer
        if _compat.current_trace.value is not _compat.eager_trace and _compat.inside_staging():
            raise order(f"tx.phase({self._name!r})", "tx.phase(...)")
        record = outer.record._part(self._name) if outer is not None else self._own or self._outermost()
        entry = self._last = _Entry(self, record, outer, frame)
        _OPEN.set(entry)
        return entry
