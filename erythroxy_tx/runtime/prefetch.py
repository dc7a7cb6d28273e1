"""`prefetch`: batches made ahead of their consumer. Not here: the threads that make them (`fetching/workers.py`)."""

import atexit
import collections
import contextlib
import logging
import operator
import threading
import time
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import Self

import jax

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import StallError
from erythroxy_tx.errors import ThreadError
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.progress import progress
from erythroxy_tx.runtime.fetching.batches import NAME
from erythroxy_tx.runtime.fetching.reading import source_of
from erythroxy_tx.runtime.fetching.report import PrefetchReport
from erythroxy_tx.runtime.fetching.report import Tally
from erythroxy_tx.runtime.fetching.workers import Made
from erythroxy_tx.runtime.fetching.workers import Workers
from erythroxy_tx.runtime.phase import phase

_LOG = logging.getLogger(__name__.partition(".")[0])

_QUIET = 0.25  # seconds, before it is worth to start what shows the wait
_SIGNALS = 1.0  # seconds, after which an interrupt is seen that came while the wait began
_CLOSING = 5.0  # seconds for the threads to end
_EXITING = 1.0  # the same when the interpreter ends


def prefetch(
    source: Iterable[Any],
    size: int = 2,
    workers: int = 1,
    *,
    prepare: Callable[[Any], Any] | None = None,
    device: Any = None,
    timeout: float | None = None,
) -> "Prefetch":
    """Make batches ahead of their consumer, in threads that touch numpy alone, and upload each while the one before it
    is worked on::

        list(prefetch(source, prepare=f)) = [device_put(f(item)) for item in source]

    in this order, whatever `workers` is. Threads read the source and call `prepare`; a source with `__getitem__` and
    `__len__` (a list, a dataset) is read by all of them at once, any other by one at a time. They copy every array of a
    batch, so that a source may use its buffers again. The thread that calls `next()` uploads, one batch ahead if it is
    there, in a `tx.phase("upload")`. JAX in the other threads is an error.

    **Arguments:**

    - `source`: an iterable of batches, each an array of numpy or a pytree of them, or what has `__getitem__` and
        `__len__`. Strings, Python numbers and None in a batch stay as they are. A generator is closed at the end.
    - `size`: finished batches that may wait on the host. With those in work, one a worker, these are at most
        `(size + workers)` times the bytes of a batch, and an item of the source for each worker that prepares; on the
        device it is the batch that was handed out and the one after it.
    - `workers`: threads. More than one call `prepare`, and `source[i]`, at the same time.
    - `prepare`: a function of one item, in numpy, that makes the batch.
    - `device`: a `jax.Device` or `jax.sharding.Sharding` for every array, or None for the default device.
    - `timeout`: seconds that one `next()` may wait, None for ever.

    **Returns:** an iterator, and a context manager. `.close()` ends the threads, as do the end, an error, and the
    collection of the iterator; `.report()` says who waited for whom.

    **Raises:** whatever the source or `prepare` raises, the same object, in the place of its batch; `ThreadError` for
    JAX in a thread, or an array in a batch that is on the device; `StallError` after `timeout`, upon which the next
    call waits again; `RuntimeError` for a second loop over what has ended; `OverflowError` for 64-bit integers that
    would wrap on the device; `TypeError` for arrays without a device form, a mapping as the source, or a bad parameter;
    `ValueError` for a bad number.

    >>> import numpy as np, erythroxy_tx as tx
    >>> def batches():
    ...     buffer = np.zeros(3, np.float32)
    ...     for i in range(3):
    ...         buffer[:] = i  # the same memory each time
    ...         yield {"x": buffer}
    >>> with tx.prefetch(batches(), prepare=lambda batch: batch | {"two": 2 * batch["x"]}) as loader:
    ...     [float(batch["x"].sum() + batch["two"].sum()) for batch in loader]
    [0.0, 9.0, 18.0]
    """
    size, workers = _count("size", size), _count("workers", workers)
    if prepare is not None and not callable(prepare):
        raise TypeError(f"{NAME} got prepare={shape_of(prepare)}. Expected a function of one item, or None.")
    if not isinstance(device, (jax.Device, jax.sharding.Sharding, type(None))):
        raise TypeError(
            f"{NAME} got device={device!r}. Expected a jax.Device, a jax.sharding.Sharding, or None. Fix: "
            "jax.devices()[0]."
        )
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0):
        raise ValueError(f"{NAME} got timeout={timeout!r}. Expected a number of seconds above 0, or None.")
    return Prefetch(source, size, workers, prepare=prepare, device=device, timeout=timeout)


class Prefetch(Iterator[Any]):
    """An iterator over batches on the device. Made by `prefetch`."""

    def __init__(
        self,
        source: Any,
        size: int,
        workers: int,
        *,
        prepare: Callable[[Any], Any] | None = None,
        device: Any = None,
        timeout: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        opened = source_of(source)
        self._device, self._timeout, self._clock = device, timeout, clock
        self._count, self._in_turn = workers, opened.in_turn
        self._tally = Tally()
        self._is_closed = False
        self._turn = threading.RLock()  # of consumers
        self._up: collections.deque[Made] = collections.deque()  # uploaded: the next batch, and one ahead
        self._workers = Workers(opened, prepare, count=workers, size=size, tally=self._tally, clock=clock)
        weakref.finalize(self, self._workers.stop).atexit = False  # `_at_exit` waits as well
        _OPEN.add(self._workers)
        try:
            self._workers.start()
        except BaseException:
            self._workers.stop()
            raise

    def __iter__(self) -> Self:
        if self._workers.closed:
            raise RuntimeError(
                f"{NAME} is at its end, or closed, and would give nothing. Expected one for each pass. Fix: another "
                "prefetch(source), or a source of several epochs, such as tx.SegmentPool(..., epochs=3)."
            )
        return self

    def __next__(self) -> Any:
        self._check_place()
        with self._turn:
            made = self._next()
        if made is None:
            self.close()
            raise StopIteration
        if made.error is None:
            return made.batch
        self._workers.stop()
        error = made.error
        if isinstance(error, ThreadError):
            error = ThreadError(*error.args)
            error.__cause__ = made.error
        with contextlib.suppress(AttributeError, TypeError):  # an exception may be frozen
            error.add_note(f"In batch {made.position} of {NAME}.")
        try:
            raise error
        finally:
            del error, made  # or its traceback would hold this frame, and the frame it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads, close the source if it is a generator, and drop the batches that were made ahead.

        Waits up to five seconds; what is stuck for longer is told in the log, by its line, and left behind.
        """
        if self._is_closed or self._workers.is_foreign:
            return
        self._workers.stop()
        with self._turn:
            self._up.clear()
        for place in self._workers.join(_CLOSING):
            _LOG.warning("%s was closed, but the thread %s does not end: it is left behind", NAME, place)
        self._is_closed = True

    def report(self) -> PrefetchReport:
        """Who waited for whom so far. `str` of it is a table, and a sentence that says what to do."""
        return PrefetchReport.of(self._tally, self._count, in_turn=self._in_turn)

    # ------------------------------------------------------------------

    def _next(self) -> Made | None:
        """The next batch, and the one behind it goes up if it is there. None at the end."""
        if self._tally.began is None:
            self._tally.began = self._clock()
        if not self._up:
            self._wait()
            self._load()
        if len(self._up) == 1 and self._up[0].error is None:
            self._load()
        self._tally.ended = self._clock()
        if not self._up:
            return None
        self._tally.batches += self._up[0].error is None
        return self._up.popleft()  # last: an interrupt before it loses nothing

    def _wait(self) -> None:
        began, patience = self._clock(), float("inf") if self._timeout is None else self._timeout
        until = time.monotonic() + patience
        try:
            if not self._workers.wait(min(_QUIET, patience)):
                with progress(f"{NAME} waits for batch {self._workers.taken}"):
                    while not self._workers.wait(min(_SIGNALS, until - time.monotonic())):
                        if time.monotonic() >= until:
                            raise self._stalled()
        finally:
            self._tally.starved += self._clock() - began
        if self._workers.have_died():
            raise RuntimeError(
                f"{NAME} has no thread left, and no batch {self._workers.taken}. Expected neither to happen."
            )

    def _stalled(self) -> StallError:
        return StallError(
            f"{NAME} waited for batch {self._workers.taken} for timeout={self._timeout} s. {self._workers.told()}. "
            "Expected a batch in time. Fix: mend what is stuck, or a longer timeout. The next call waits again, and "
            "nothing is lost."
        )

    def _load(self) -> None:
        """Upload the next batch, if it is there. An error takes its place."""
        made = self._workers.ready()
        if made is None:
            return
        if self._up and self._up[-1].position == made.position:  # an interrupt came between the last two lines
            self._workers.advance()
            return
        if made.error is None:
            began = self._clock()
            try:
                self._tally.nbytes += made.batch.nbytes
                with phase("upload"):
                    made = made._replace(batch=made.batch.upload(self._device))
            except Exception as error:  # noqa: BLE001  # it is raised when its turn comes
                made = Made(made.position, error=error)
            self._tally.seconds["upload"] += self._clock() - began
        self._up.append(made)
        self._workers.advance()

    def _check_place(self) -> None:
        if self._workers.is_foreign:
            raise RuntimeError(
                f"{NAME} was made in another process, and its threads are not in this fork. Expected one in each "
                "process. Fix: call it after the fork."
            )
        if _compat.inside_staging():
            raise TransformOrderError(
                f"next() of {NAME} was called inside of a trace (jit, scan), where one batch would become a constant "
                "of the program. Expected it outside. Fix: give the batch to the function as an argument."
            )


_OPEN: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    """Threads that run Python while the interpreter ends may crash it; one that hangs does not hold it up for long."""
    until = time.monotonic() + _EXITING
    for workers in list(_OPEN):
        workers.stop()
    for workers in list(_OPEN):
        workers.join(until - time.monotonic())


def _count(name: str, value: Any) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        found = 0
    if found < 1 or isinstance(value, bool):
        raise ValueError(f"{NAME} got {name}={value!r}. Expected a Python int from 1 on.")
    return found
