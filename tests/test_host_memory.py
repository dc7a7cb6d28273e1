"""Resident memory of this process: exact where Linux keeps a mark, sampled and said so elsewhere."""

import threading
from pathlib import Path

import numpy as np
import pytest

from erythroxy_tx.host import memory
from erythroxy_tx.host.memory import HighWater
from erythroxy_tx.host.memory import MemoryTrace
from erythroxy_tx.host.memory import rss

MB = 1_000_000

exact = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel keeps no mark")


def touch(count: int) -> np.ndarray:
    return np.ones(count, np.uint8)


@pytest.fixture
def no_mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "missing" / "clear_refs")


def test_rss_grows_with_what_is_held() -> None:
    before = rss()
    held = touch(80 * MB)
    assert rss() - before > 70 * MB
    assert held[-1] == 1


@exact
def test_a_peak_that_was_freed_is_seen() -> None:
    with HighWater() as high:
        touch(80 * MB)
    assert high.how == "VmHWM"
    assert 70 * MB < high.rise < 100 * MB
    assert high.peak == high.start + high.rise


@exact
def test_an_earlier_peak_is_not_seen() -> None:
    touch(200 * MB)
    with HighWater() as high:
        touch(40 * MB)
    assert high.rise < 80 * MB


@exact
def test_the_peak_is_readable_inside_and_stays_after_exit() -> None:
    with HighWater() as high:
        touch(80 * MB)
        inside = high.rise
    touch(200 * MB)
    assert inside > 70 * MB
    assert high.rise < 150 * MB


@exact
def test_an_inner_block_takes_nothing_from_the_outer() -> None:
    with HighWater() as outer:
        touch(120 * MB)
        with HighWater() as inner:
            touch(40 * MB)
    assert outer.rise > 110 * MB
    assert inner.rise < 80 * MB


@pytest.mark.usefixtures("no_mark")
def test_without_a_mark_it_samples_and_says_so() -> None:
    with HighWater() as high:
        held = touch(80 * MB)
        samples = high._trace.bytes
        seen = len(samples)
        while len(samples) < seen + 2:  # one of them began after the allocation
            threading.Event().wait(0.001)
        del held
    assert high.how == "sampled"
    assert high.rise > 70 * MB


def test_a_mark_that_cannot_be_read_is_not_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("VmRSS:\t10 kB\n")
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "clear_refs")
    monkeypatch.setattr(memory, "_STATUS", status)
    with HighWater() as high:
        pass
    assert high.how == "sampled"


def test_a_mark_that_is_not_set_back_is_not_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("VmHWM:\t900000000 kB\n")
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "clear_refs")
    monkeypatch.setattr(memory, "_STATUS", status)
    with HighWater() as high:
        pass
    assert high.how == "sampled"
    assert high.peak < 900_000_000_000


def test_the_trace_samples_at_entry_at_exit_and_between() -> None:
    with MemoryTrace(period=0.001) as trace:
        while len(trace.bytes) < 4:
            threading.Event().wait(0.001)
    assert len(trace.seconds) == len(trace.bytes) >= 5
    assert trace.seconds == sorted(trace.seconds)
    assert trace.seconds[0] >= 0
    assert all(isinstance(count, int) and count > 0 for count in trace.bytes)


def test_the_trace_stops() -> None:
    with MemoryTrace(period=0.001) as trace:
        pass
    assert not trace._thread.is_alive()


@pytest.mark.parametrize("period", [0, -1.0, float("nan")])
def test_a_period_must_be_positive(period: float) -> None:
    with pytest.raises(ValueError, match=r"period=.*Expected seconds above zero"):
        MemoryTrace(period=period)
