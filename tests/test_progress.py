"""A status line: nothing where nobody looks, and it ends with the block."""

import io
import sys
import threading

import pytest

import erythroxy_tx.progress
from erythroxy_tx.progress import progress


class Terminal(io.StringIO):
    """Set from the test itself: pytest takes stderr back between a fixture and the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, patience: float):
        super().__init__()
        self.shown = threading.Event()
        monkeypatch.setattr(sys, "stderr", self)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(erythroxy_tx.progress, "_PATIENCE", patience)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "halfway" in text:
            self.shown.set()
        return super().write(text)


def all_threads_end(before: set[threading.Thread]) -> bool:
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    return set(threading.enumerate()) <= before


def test_nothing_when_piped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erythroxy_tx.progress, "_PATIENCE", 0.0)
    with progress("searching") as update:
        update("searching: 2 of 3")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_nothing_when_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, threads = Terminal(monkeypatch, 3.0), set(threading.enumerate())
    with progress("searching") as update:
        update("halfway")
    assert not terminal.shown.is_set()
    assert all_threads_end(threads)


def test_what_takes_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, threads = Terminal(monkeypatch, 0.0), set(threading.enumerate())
    with progress("searching") as update:
        update("halfway")
        assert terminal.shown.wait(10)
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is gone
    assert all_threads_end(threads)
    assert sys.stderr is terminal


def test_it_ends_when_the_block_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, threads = Terminal(monkeypatch, 0.0), set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), progress("halfway"):
        raise ZeroDivisionError
    assert all_threads_end(threads)
    assert sys.stderr is terminal
