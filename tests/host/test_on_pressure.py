"""`on_pressure`: called once a window while tasks wait, by a trigger or by samples, and no thread is left. The trigger
is planted as a socket, whose out-of-band data is what `POLLPRI` waits for; one test makes a real one.
"""

import gc
import logging
import os
import select
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import GIB
from machine import Machine

from erythroxy_tx.host import on_pressure as module
from erythroxy_tx.host.on_pressure import on_pressure
from erythroxy_tx.host.pressure import Pressure

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pressure is of Linux")
ENOUGH = 30  # seconds that a machine under load may take


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.meminfo(32 * GIB, 16 * GIB)
    made.pressure()
    return made


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(ENOUGH)
        assert not thread.is_alive()


class Kernel:
    """Makes triggers whose stall the test exceeds."""

    def __init__(self) -> None:
        self.asked: list[tuple[Path, float, float]] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.ours = socket.create_connection(server.getsockname())
            self.theirs, _ = server.accept()

    def open(self, path: Path, stall: float, window: float) -> int:
        self.asked.append((path, stall, window))
        return os.dup(self.theirs.fileno())

    def stall(self) -> None:
        self.ours.send(b"!", socket.MSG_OOB)

    def heard(self) -> None:
        self.theirs.recv(1, socket.MSG_OOB)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    made = Kernel()
    monkeypatch.setattr(module, "_open", made.open)
    yield made
    made.ours.close()
    made.theirs.close()


class Calls:
    """Counts what it is called with."""

    def __init__(self, kernel: Kernel | None = None) -> None:
        self.kernel = kernel
        self.found: list[Pressure] = []
        self.called = threading.Semaphore(0)

    def __call__(self, found: Pressure) -> None:
        if self.kernel is not None:
            self.kernel.heard()
        self.found.append(found)
        self.called.release()

    def wait(self) -> None:
        assert self.called.acquire(timeout=ENOUGH)


# ------------------------------------------------------------------ by a trigger


def test_a_trigger_calls_with_the_pressure_each_time(machine: Machine, kernel: Kernel) -> None:
    calls = Calls(kernel)
    with on_pressure(calls, some="150ms", window="2s", root=machine.root) as watch:
        assert (watch.how, watch.why, watch.calls) == ("trigger", "", 0)
        machine.pressure(some=33.0)
        for _ in range(2):
            kernel.stall()
            calls.wait()
        assert repr(watch) == "<on_pressure: 0.15 s of 2 s, trigger, 2 calls>"
    assert kernel.asked == [(machine.root / "proc/pressure/memory", 0.15, 2.0)]
    assert [found.verdict for found in calls.found] == ["reclaiming"] * 2
    assert watch.calls == 2
    watch.close()  # once more does nothing


def test_the_trigger_is_written_as_the_kernel_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    file.write_text("")
    os.close(module._open(file, 0.15, 2.0))
    assert file.read_bytes() == b"some 150000 2000000\0"


def test_a_trigger_that_is_taken_back_is_raised(
    machine: Machine, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Poll:
        def register(self, file: int, events: int) -> None:
            self.file = file if events & select.POLLPRI else self.file

        def poll(self) -> list[tuple[int, int]]:
            return [(self.file, select.POLLERR | select.POLLPRI)]

    monkeypatch.setattr(module.select, "poll", Poll)
    watch = on_pressure(Calls(), root=machine.root)
    watch._loop.thread.join(ENOUGH)
    with pytest.raises(OSError, match="taken the trigger"):
        watch.close()


# ------------------------------------------------------------------ by samples


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 20 ms, and a kernel that makes no trigger."""

    def refuse(path: Path, stall: float, window: float) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(module, "_LEAST", 0.02)
    monkeypatch.setattr(module, "_open", refuse)


def test_without_a_trigger_the_total_is_sampled(machine: Machine, sampled: None) -> None:
    calls = Calls()
    with on_pressure(calls, some=0.5, window=0.02, root=machine.root) as watch:
        assert (watch.how, watch.stall) == ("sampled", 0.01)
        assert watch.why.startswith("the kernel made no trigger (Invalid argument; without CAP_SYS_RESOURCE")
        total = 0
        while not calls.called.acquire(timeout=0.01):  # a window may see the file half written
            total += 10_000
            replace(machine, total)
    assert calls.found


def test_a_stall_that_is_too_short_does_not_call(machine: Machine, sampled: None) -> None:
    calls, waits = Calls(), module._Samples(machine.root / "proc/pressure/memory", 0.01, 0.02)
    totals = iter([100, 100, 10_099, 20_098, 30_098])
    asked: list[int] = []

    def read(path: Path) -> Any:
        total = next(totals)
        asked.append(total)
        return type("Psi", (), {"some": type("Some", (), {"total": total})})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "read_psi", read)
        assert waits.wait()  # 9 999 µs in one window are not enough, 10 000 are
    assert asked == [100, 100, 10_099, 20_098, 30_098]
    waits.bell.close()
    assert not calls.found


def replace(machine: Machine, total: int) -> None:
    machine.psi("proc/pressure/new", total=total)
    (machine.root / "proc/pressure/new").replace(machine.root / "proc/pressure/memory")


# ------------------------------------------------------------------ where there is nothing to watch


def test_no_pressure_is_said_and_nothing_is_called(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls()
    with on_pressure(calls, root=tmp_path) as watch:
        assert watch.how == "nothing"
    assert watch.why
    assert f"on_pressure watches nothing, and never calls: {watch.why}" in caplog.text
    assert not calls.found


# ------------------------------------------------------------------ what the callback raises


def failing(kernel: Kernel) -> Any:
    def fail(found: Pressure) -> None:
        kernel.heard()
        raise ZeroDivisionError("in the callback")

    return fail


def test_what_the_callback_raises_is_logged_at_once_and_raised_at_close(
    machine: Machine, kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    watch = on_pressure(failing(kernel), root=machine.root)
    kernel.stall()
    watch._loop.thread.join(ENOUGH)
    assert "on_pressure has ended" in caplog.text
    assert "in the callback" in caplog.text
    with pytest.raises(ZeroDivisionError, match="in the callback") as error:
        watch.close()
    assert "fail" in [entry.name for entry in error.traceback]
    watch.close()


def run_and_fail(machine: Machine, kernel: Kernel, error: Exception | None) -> None:
    with on_pressure(failing(kernel), root=machine.root) as watch:
        kernel.stall()
        watch._loop.thread.join(ENOUGH)
        if error is not None:
            raise error


def test_the_block_raises_it(machine: Machine, kernel: Kernel) -> None:
    with pytest.raises(ZeroDivisionError, match="in the callback"):
        run_and_fail(machine, kernel, None)


def test_an_error_of_the_block_is_not_hidden(machine: Machine, kernel: Kernel) -> None:
    with pytest.raises(KeyError) as error:
        run_and_fail(machine, kernel, KeyError("the user's"))
    assert error.value.__notes__ == [
        "The callback of on_pressure had failed as well: ZeroDivisionError('in the callback')"
    ]


# ------------------------------------------------------------------ the end


def test_dropping_the_watch_ends_it_and_says_so(
    machine: Machine, kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    watch = on_pressure(Calls(), root=machine.root)
    thread = watch._loop.thread
    del watch
    gc.collect()
    thread.join(ENOUGH)
    assert not thread.is_alive()
    assert "its result was not kept" in caplog.text


def test_the_callback_may_close_its_watch(machine: Machine, kernel: Kernel) -> None:
    def close(found: Pressure) -> None:
        kernel.heard()
        watch.close()

    watch = on_pressure(close, root=machine.root)
    kernel.stall()
    watch._loop.thread.join(ENOUGH)
    assert not watch._loop.thread.is_alive()
    assert watch._loop.error is None


def test_no_file_is_left_open(machine: Machine, kernel: Kernel) -> None:
    with on_pressure(Calls(), root=machine.root) as watch:
        files = [watch._loop.waits.file, watch._loop.waits.bell.ear, watch._loop.waits.bell._rope]  # type: ignore[union-attr]
        for file in files:
            os.fstat(file)
    for file in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("some", [0, 1.5, -0.1, "3s", "10%", True, "fast"])
def test_another_stall_is_refused(machine: Machine, some: Any) -> None:
    with pytest.raises(ValueError, match="some="):
        on_pressure(print, some=some, root=machine.root)


@pytest.mark.parametrize("window", [0, 0.4, "11s", "2 sec", None])
def test_another_window_is_refused(machine: Machine, window: Any) -> None:
    with pytest.raises(ValueError, match="window="):
        on_pressure(print, window=window, root=machine.root)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="Expected a function of one argument"):
        on_pressure(0.1)  # type: ignore[arg-type]


# ------------------------------------------------------------------ this machine


@ONLY_LINUX
def test_a_real_trigger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL), on_pressure(print, some=1.0, window="2s") as watch:
        if watch.how == "nothing":
            pytest.skip(f"no pressure here: {watch.why}")
    assert watch.how == "trigger" or "made no trigger" in watch.why
    assert watch.calls == 0 or watch.how == "trigger"
