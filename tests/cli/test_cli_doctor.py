"""`erythroxy doctor` and `erythroxy cache`, as a shell calls them."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from erythroxy_tx.cli import main
from erythroxy_tx.host import doctor as doctor_module
from erythroxy_tx.host.checkup.asked import Jax
from erythroxy_tx.host.checkup.facts import Facts

ENTRY = f"jit_f-{'0a' * 32}-cache"
WORKS = Jax("works", version="0.12.0", jaxlib="0.12.0", backend="cpu", devices=("cpu:0",))


def plant(monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
    monkeypatch.setattr(doctor_module, "gather", lambda: Facts(environ, WORKS))


@pytest.mark.parametrize(
    ("environ", "status"), [({}, 0), ({"XLA_CLIENT_MEM_FRACTION": "70"}, 1), ({"JAX_PLATFORM_NAME": "cpu"}, 1)]
)
def test_exit_status(
    environ: dict, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, **environ)
    assert main(["doctor"]) == status
    assert ("nothing found" in capsys.readouterr().out) == (status == 0)


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plant(monkeypatch, XLA_CLIENT_MEM_FRACTION="70")
    assert main(["doctor", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["code"], found["severity"]) == ("E304", "error")


def test_a_jax_that_is_broken(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise ImportError('jaxlib is too old')")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    command = [sys.executable, "-m", "erythroxy_tx", "doctor"]
    done = subprocess.run(command, check=False, env=environ, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "E002 error: JAX: import jax fails: ImportError: jaxlib is too old" in done.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    cache = tmp_path / ".jax_cache"
    cache.mkdir()
    (cache / ENTRY).write_bytes(b"x" * 100)
    return cache


def test_cache_tells(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert "compilation cache: off" in out
    assert "also there: .jax_cache   (erythroxy cache --folder .jax_cache)" in out
    assert main(["cache", "--folder", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == 1


def test_cache_clear(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
    assert main(["cache", "clear"]) == 2
    assert "there is nobody to ask. Fix: add --yes" in capsys.readouterr().err
    assert main(["cache", "clear", "--yes"]) == 0
    assert "deleted 1 programs, 100 B" in capsys.readouterr().out
    assert not list(folder.iterdir())
    assert main(["cache", "clear", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == 0
    assert main(["cache", "clear"]) == 0, "there is nothing to ask"
    assert f"nothing to delete in {folder}" in capsys.readouterr().out
    assert main(["cache", "clear", "--folder", "gone"]) == 2
    assert "gone does not exist" in capsys.readouterr().err
    for what in ("tell", "clear"):
        assert main(["cache", what, "--yes", "--folder", ""]) == 2
        assert "--folder got no folder" in capsys.readouterr().err


def test_cache_without_a_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", dict[int, object]().__getitem__)
    assert main(["cache"]) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="a folder that is in use cannot be deleted there")
@pytest.mark.parametrize("more", ["", ">&-", "> /dev/full"])
def test_a_shell_that_pulls_the_rug(more: str, tmp_path: Path) -> None:
    """The working folder is gone, a variable is no text, and standard output is closed or full."""
    if more.endswith("full") and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    (tmp_path / "jax.py").write_text("raise ImportError('too old')")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    environ |= {"PYTHON": sys.executable, "JAX_OF_MINE": "\udcff", "JAX_COMPILATION_CACHE_DIR": "cache"}
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f'rmdir "$PWD"; "$PYTHON" -m erythroxy_tx doctor {more}'
    done = subprocess.run(["sh", "-c", command], check=False, env=environ, capture_output=True, cwd=gone)
    assert done.returncode == (2 if more else 1), done.stderr
    assert (b"JAX_OF_MINE=\\udcff" in done.stdout) == (not more)
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("", 1), ("no", 1)])
def test_cache_clear_asks(answer: str, left: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert main(["cache", "clear", "--folder", str(folder)]) == 0
    assert len(list(folder.iterdir())) == left


def test_cache_clear_refuses(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    assert main(["cache", "clear", "--yes"]) == 2
    assert "clear got no folder" in capsys.readouterr().err
    (folder / "weights.npz").touch()
    assert main(["cache", "clear", "--yes", "--folder", str(folder)]) == 2
    assert "holds what is not the cache's own: weights.npz" in capsys.readouterr().err
    assert (folder / ENTRY).exists()
