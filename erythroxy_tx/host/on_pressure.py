"""`on_pressure`: a callback that is called when tasks wait too long for memory. Not here: what the pressure is
(`pressure.py`), and waiting for it to end (`headroom.py`).

The kernel itself watches where a trigger can be made: `/proc/pressure/memory` is opened for writing, is written
`some <stall> <window>` in microseconds, and becomes ready at most once a window while the stall is exceeded. Without
`CAP_SYS_RESOURCE` the window must be a multiple of 2 s. Where no trigger can be made, the total is read once a window.
Source: kernel documentation, accounting/psi.rst.
"""

import logging
import os
import select
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from typing import Self

from erythroxy_tx.host.files import ROOT
from erythroxy_tx.host.oomd_rules import oomd
from erythroxy_tx.host.pressure import Pressure
from erythroxy_tx.host.pressure import look
from erythroxy_tx.host.psi import read_psi
from erythroxy_tx.units import parse_seconds

_LOG = logging.getLogger(__name__.partition(".")[0])
_LEAST, _MOST = 0.5, 10.0  # seconds; the kernel's own bounds of a window


def on_pressure(
    callback: Callable[[Pressure], object],
    *,
    some: float | str = 0.1,
    window: float | str = "2s",
    root: Path = ROOT,
) -> "PressureWatch":
    """Call `callback(pressure)` while some task of this machine waits for memory for `some` of a `window` or longer::

        called at most once a window, where  total(now) - total(now - window) >= some

    A thread of its own watches, and calls. It ends at `close()`, at the end of a `with` block, and where the result is
    not kept, which is logged. It ends as well at the first exception of the callback: that is logged with its traceback
    at once, and raised at `close()`.

    **Arguments:**

    - `callback`: is given a `Pressure`, read after the stall.
    - `some`: a number is a share of the window, above 0 and at most 1; `0.1`, a tenth, is what systemd takes for its
        services. A string is a time, such as `"150ms"`.
    - `window`: seconds, or a time such as `"2s"`; from 0.5 to 10 s.
    - `root`: the root of the file system.

    **Returns:** a `PressureWatch`. Its `how` is `"trigger"` where the kernel watches; `"sampled"` where it makes no
    trigger; `"nothing"` where it tells no pressure, so that the callback is never called, which is logged. `why` says
    why it is not a trigger.

    **Raises:** `TypeError` if `callback` cannot be called; `ValueError` for another `some` or `window`.

    >>> seen = []
    >>> with on_pressure(seen.append, some="150ms", window="2s") as watch:
    ...     pass  # the work
    >>> watch.how in ("trigger", "sampled", "nothing")
    True
    """
    if not callable(callback):
        raise TypeError(f"on_pressure got callback={callback!r}. Expected a function of one argument, the pressure.")
    seconds = parse_seconds(window, "on_pressure got window")
    if not _LEAST <= seconds <= _MOST:
        raise ValueError(f"on_pressure got window={window!r}. Expected 0.5 to 10 seconds, which the kernel takes.")
    return PressureWatch(callback, _stall(some, seconds), seconds, root)


class PressureWatch:
    """A running watch, which `on_pressure` makes. Closes at the end of a `with` block.

    **Attributes:**

    - `how`: `"trigger"`, `"sampled"` or `"nothing"`, as `on_pressure` explains.
    - `why`: why it is no trigger, or empty.
    - `stall`, `window`: seconds.
    - `calls`: how many times the callback was called.
    """

    how: Literal["trigger", "sampled", "nothing"]

    def __init__(self, callback: Callable[[Pressure], object], stall: float, window: float, root: Path) -> None:
        self.stall, self.window = stall, window
        self.how, self.why, waits = _waits(root / "proc/pressure/memory", stall, window)
        self._loop = _Loop(callback, waits, root)
        self._finalize = weakref.finalize(self, self._loop.dropped)
        self._finalize.atexit = False  # a daemon ends by itself there
        if waits is None:
            _LOG.warning("on_pressure watches nothing, and never calls: %s.", self.why)
        else:
            self._loop.thread.start()

    def __repr__(self) -> str:
        why = f" since {self.why}" if self.why else ""
        return f"<on_pressure: {self.stall:g} s of {self.window:g} s, {self.how}{why}, {self.calls} calls>"

    @property
    def calls(self) -> int:
        return self._loop.calls

    def close(self) -> None:
        """End the thread, and raise what the callback raised. What is closed already is left alone."""
        if self._finalize.detach() is None:
            return
        self._loop.stop()
        if self._loop.error is not None:
            raise self._loop.error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except BaseException as own:
            if error is None or own is error:
                raise
            error.add_note(f"The callback of on_pressure had failed as well: {own!r}")


class _Loop:
    """The thread and its end. It does not hold the watch, which would then never be dropped."""

    def __init__(self, callback: Callable[[Pressure], object], waits: "_Trigger | _Samples | None", root: Path) -> None:
        self.callback, self.waits, self.root = callback, waits, root
        self.calls = 0
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run, name="on-pressure", daemon=True)

    def run(self) -> None:
        assert self.waits is not None
        try:
            watched = oomd(root=self.root)
            while self.waits.wait():
                self.calls += 1
                self.callback(look(watched, root=self.root))
        except BaseException as error:  # noqa: BLE001  # raised again at close()
            self.error = error
            _LOG.error("on_pressure has ended, since this was raised; close() raises it again.", exc_info=error)
        finally:
            self.waits.bell.close()
            self.waits.close()

    def stop(self) -> None:
        if self.waits is not None and self.thread.is_alive():  # in a process that was forked it is not
            self.waits.bell.ring()
            if self.thread is not threading.current_thread():
                self.thread.join()

    def dropped(self) -> None:
        """The watch is gone. Whoever collects it may hold what the callback waits for: the thread is not waited for."""
        if self.waits is not None and self.thread.is_alive():
            _LOG.warning("on_pressure watches no more: its result was not kept. Keep it, and close() it.")
            self.waits.bell.ring()


class _Bell:
    """Wakes a thread that polls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = True
        self.ear, self._rope = os.pipe()

    def ring(self) -> None:
        with self._lock:
            if self._is_open:
                os.write(self._rope, b"\0")

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            os.close(self.ear)
            os.close(self._rope)


class _Trigger:
    """Waits for the kernel."""

    def __init__(self, file: int) -> None:
        self.file, self.bell = file, _Bell()

    def wait(self) -> bool:
        """Whether the stall was exceeded; False where the bell was rung."""
        poll = select.poll()
        poll.register(self.file, select.POLLPRI)
        poll.register(self.bell.ear, select.POLLIN)
        ready = dict(poll.poll())
        if self.bell.ear in ready:
            return False
        if ready[self.file] & select.POLLERR:
            raise OSError("the kernel has taken the trigger of on_pressure back. Fix: make a new one.")
        return True

    def close(self) -> None:
        os.close(self.file)


class _Samples:
    """Reads the total at both ends of a window."""

    def __init__(self, path: Path, stall: float, window: float) -> None:
        self.path, self.stall, self.window = path, stall, window
        self.bell = _Bell()

    def wait(self) -> bool:
        poll = select.poll()
        poll.register(self.bell.ear, select.POLLIN)
        total = before = read_psi(self.path).some.total
        while total - before < self.stall * 1e6:
            before = total
            if poll.poll(self.window * 1000):
                return False
            total = read_psi(self.path).some.total
        return True

    def close(self) -> None:
        pass


def _waits(
    path: Path, stall: float, window: float
) -> tuple[Literal["trigger", "sampled", "nothing"], str, _Trigger | _Samples | None]:
    try:
        read_psi(path)
    except OSError as error:
        return "nothing", str(error.strerror), None
    try:
        return "trigger", "", _Trigger(_open(path, stall, window))
    except OSError as error:
        rule = "without CAP_SYS_RESOURCE it makes one from Linux 6.5 on, for a window of 2, 4, 6, 8 or 10 s"
        return "sampled", f"the kernel made no trigger ({error.strerror}; {rule})", _Samples(path, stall, window)


def _open(path: Path, stall: float, window: float) -> int:
    file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # The kernel cuts the last byte off, whatever it is.
        os.write(file, f"some {round(stall * 1e6)} {round(window * 1e6)}\0".encode())
    except BaseException:
        os.close(file)
        raise
    return file


def _stall(some: float | str, window: float) -> float:
    if isinstance(some, int | float) and not isinstance(some, bool):
        stall = some * window
    else:
        stall = parse_seconds(some, "on_pressure got some")
    if not 0 < stall <= window:
        raise ValueError(
            f"on_pressure got some={some!r} with a window of {window:g} s. Expected a share of the window, above 0 and "
            'at most 1, such as 0.1, or a time that is no longer than the window, such as "150ms".'
        )
    return stall
