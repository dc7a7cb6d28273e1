"""`erythroxy oom`: what it prints, and its exit status."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from erythroxy_tx.cli import main
from erythroxy_tx.host.kills import sources

KILL = "kernel: Memory cgroup out of memory: Killed process 77 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text(KILL)
    return path


def test_a_kill(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["oom", "--file", str(log)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("The kernel killed process 77 (python): its control group was at its limit of memory")
    assert KILL.strip() in out
    assert "1. Hold less on the host" in out


def test_no_kill(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["oom", "--file", str(log), "--pid", "78", "--status", "137"]) == 0
    assert capsys.readouterr().out.startswith("SIGKILL, cause unknown")


def test_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["oom", "--file", str(log), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["cause"] == "kernel"
    assert (found["kills"][0]["pid"], found["kills"][0]["anon"]) == (77, 8192)
    assert found["looked_at"] == [str(log)]


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(KILL.encode())))
    assert main(["oom", "--file", "-"]) == 1
    assert "process 77" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--file", "/nowhere/log"], "No such file"),
        (["--since", "soonish"], "oom: --since='soonish'. Expected"),
        (["--since", "1h", "--file", "log"], "since and file"),
        (["--pid", "0"], "oom: --pid=0. Expected"),
    ],
)
def test_could_not_run(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["oom", *options]) == 2
    assert words in capsys.readouterr().err


def test_nothing_could_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr("erythroxy_tx.host.oom.memory_cgroups", lambda pid=None: ())
    assert main(["oom"]) == 2
    assert "Could not read:" in capsys.readouterr().out


def test_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["oom", "--since", "1min"]) in {0, 1, 2}
    assert capsys.readouterr().out


def test_words_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"9月 18 02:27:12 box {KILL}", encoding="utf-8")
    command = [sys.executable, "-m", "erythroxy_tx", "oom", "--file", str(log)]
    for options in ([], ["--json"]):
        environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        done = subprocess.run([*command, *options], env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (1, b"")
    assert json.loads(done.stdout)["kills"][0]["when"] == "9月 18 02:27:12"


@pytest.mark.parametrize("data", [b"", bytes(range(256))])
def test_a_file_that_is_no_log(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "log").write_bytes(data)
    assert main(["oom", "--file", str(tmp_path / "log")]) == 2


def test_needs_no_jax(log: Path) -> None:
    code = f"import sys; from erythroxy_tx.cli import main; main(['oom', '--file', {str(log)!r}]); "
    subprocess.run([sys.executable, "-c", code + "assert not {'jax', 'numpy'} & set(sys.modules)"], check=True)
