"""`erythroxy pressure`: what it prints, and how it exits; once, and live until Ctrl-C."""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from erythroxy_tx.cli import main
from erythroxy_tx.cli import pressure as module
from erythroxy_tx.host.pressure import Pressure
from erythroxy_tx.host.pressure import pressure
from erythroxy_tx.host.room import Room

PSI = "some avg10={some} avg60=0.00 avg300=0.00 total={total}\nfull avg10={full} avg60=0.00 avg300=0.00 total=0\n"


@pytest.fixture
def planted(tmp_path: Path) -> Callable[..., Pressure]:
    """What `pressure` finds on a planted machine with 16 of 32 GiB available."""

    def read(some: float = 0.0, full: float = 0.0, total: int = 0) -> Pressure:
        (tmp_path / "proc/pressure").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/meminfo").write_text(
            "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
        )
        for resource in ("memory", "io", "cpu"):
            text = PSI.format(some=f"{some:.2f}", full=f"{full:.2f}", total=total)
            (tmp_path / "proc/pressure" / resource).write_text(text)
        return pressure(root=tmp_path)

    return read


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pressure], None]:
    return lambda found: monkeypatch.setattr(module, "pressure", lambda: found)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Look at the given pressures one after the other, then Ctrl-C."""

    def plant(*found: Pressure) -> list[float]:
        looks, slept = iter(found), list[float]()

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == len(found):
                raise KeyboardInterrupt

        monkeypatch.setattr(module, "look", lambda _: next(looks))
        monkeypatch.setattr(module.time, "sleep", sleep)
        return slept

    return plant


@pytest.mark.parametrize(("some", "full", "expected"), [(0.0, 0.0, 0), (50.0, 0.0, 0), (50.0, 40.0, 1)])
def test_the_exit_status_is_1_in_danger_alone(
    planted: Any, once: Any, capsys: pytest.CaptureFixture[str], some: float, full: float, expected: int
) -> None:
    once(planted(some, full))
    assert main(["pressure"]) == expected
    printed = capsys.readouterr().out
    assert printed.startswith(("calm: ", "reclaiming: ", "danger: "))
    assert "16.0 GiB of 32.0 GiB, the host" in printed


def test_where_nothing_is_told_it_could_not_run(once: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once(pressure(root=tmp_path))
    assert main(["pressure"]) == 2
    assert "not told: memory of the host" in capsys.readouterr().out


def test_json(planted: Any, once: Any, capsys: pytest.CaptureFixture[str]) -> None:
    once(planted(7.0))
    assert main(["pressure", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["machine"]["memory"]["some"]["avg10"]) == ("reclaiming", 7.0)


def later(found: Pressure, seconds: float) -> Pressure:
    return dataclasses.replace(found, at=found.at + seconds)


def test_a_watch_that_is_piped_prints_a_line_a_tick(
    planted: Any, ticks: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first = planted(total=1_000_000)
    second = later(dataclasses.replace(planted(some=9.0, total=1_500_000), at=first.at), 2.0)
    slept = ticks(first, second)
    assert main(["pressure", "--watch", "2"]) == 0
    one, two = capsys.readouterr().out.splitlines()
    assert " ".join(one.split()[1:]) == "calm memory - I/O - room 16.0 GiB by the host"
    assert " ".join(two.split()[1:]) == "reclaiming memory 25.0 % I/O 25.0 % room 16.0 GiB by the host"
    assert slept == [2.0, 2.0]


def test_a_watch_as_json_prints_an_object_a_line(planted: Any, ticks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    slept = ticks(planted(), planted(full=30.0))
    assert main(["pressure", "--watch", "--json"]) == 0
    assert [json.loads(line)["verdict"] for line in capsys.readouterr().out.splitlines()] == ["calm", "danger"]
    assert slept == [1.0, 1.0]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_watch_on_a_terminal_draws_the_past(planted: Any, ticks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    first = planted(total=0)
    ticks(first, later(dataclasses.replace(planted(total=1_000_000), at=first.at), 2.0))
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    assert main(["pressure", "--watch", "2"]) == 0
    drawn = terminal.getvalue()
    for text in ("memory stalls      50.0 %   ▅", "room             16.0 GiB  ▅▅", "Ctrl-C ends"):
        assert text in drawn


@pytest.mark.parametrize(
    ("shares", "expected"), [((0, 12.4, 12.5, 50, 99.9, 100), "▁▁▂▅██"), ((None, 0), " ▁"), ((), "")]
)
def test_bars(shares: tuple[float | None, ...], expected: str) -> None:
    assert module._spark(shares) == expected


def test_a_limit_of_nothing_is_drawn_as_nothing() -> None:
    assert module._left(Room("memory.high of /job", 0, 0, kills=False)) == 0.0


@pytest.mark.parametrize("seconds", ["0", "-1", "often", "nan", "1e9"])
def test_another_period_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["pressure", "--watch", seconds])
    assert error.value.code == 2
    assert "is no number of seconds from 0.1 to 3600" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal of POSIX")
def test_ctrl_c_ends_a_real_watch_quietly() -> None:
    # What was started in the background ignores Ctrl-C, and what it starts does too.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heeds}; import sys; from erythroxy_tx.cli import main; sys.exit(main(['pressure', '--watch', '0.1']))"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert "room" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (0, "")


def test_it_needs_no_jax() -> None:
    code = "import sys; from erythroxy_tx.cli import main; main(['pressure']); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'rich' not in sys.modules"], check=True, capture_output=True)
