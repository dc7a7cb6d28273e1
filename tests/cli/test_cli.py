"""The `erythroxy` command as a whole: what each of its commands shares."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import erythroxy_tx
from erythroxy_tx import cli
from erythroxy_tx.cli import main

ROOT = Path(__file__).parent.parent.parent
COMMANDS = sorted(path.stem for path in Path(cli.__file__).parent.glob("[a-z]*.py") if path.stem != "show")
KILL = (
    "Nov 14 13:01:40 host kernel: Out of memory: Killed process 77 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB\n"
)
WITHOUT_JAX = [["oom", "--file", "LOG"], ["pressure"], ["env", "--gpu", "none"], ["cache"]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "LOG").write_text(KILL)
    return tmp_path


def run(
    *argv: str, folder: Path | None = None, paths: tuple[Path, ...] = (), **environ: str
) -> subprocess.CompletedProcess:
    environ = {"PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT))), **environ}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, *argv], env=kept | environ, cwd=folder, capture_output=True, text=True, check=False
    )


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    listed = re.findall(r"^    (\w+)  ", capsys.readouterr().out, re.MULTILINE)
    assert sorted(listed) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    printed = capsys.readouterr().out
    assert caught.value.code == 0
    assert "Examples:" in printed or "example" in printed
    assert f"erythroxy {command}" in printed


@pytest.mark.parametrize("argv", [[], ["doktor"], ["env", "--gpus", "1"], ["pressure", "surplus"]])
def test_what_is_not_known_is_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    printed = capsys.readouterr()
    assert (caught.value.code, printed.out) == (2, "")
    assert "usage: erythroxy" in printed.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"erythroxy_tx {erythroxy_tx.__version__}\n"


def test_as_a_module() -> None:
    done = run("-m", "erythroxy_tx", "--version")
    assert (done.returncode, done.stdout) == (0, f"erythroxy_tx {erythroxy_tx.__version__}\n")


def test_heavy_packages_are_not_imported(log: Path) -> None:
    """A pipe is no terminal, so that neither is rich."""
    code = f"""
import sys
from erythroxy_tx.cli import main
for argv in {[*WITHOUT_JAX, ["--help"], *([name, "--help"] for name in COMMANDS)]}:
    try:
        main(argv)
    except SystemExit as end:
        assert end.code == 0, argv
    heavy = {{"jax", "jaxlib", "rich", "numpy", "equinox"}} & set(sys.modules)
    assert not heavy, (argv, heavy)
"""
    done = run("-c", code, folder=log)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("argv", [*WITHOUT_JAX, ["doctor"]], ids=lambda argv: argv[0])
def test_a_broken_jax_breaks_nothing(argv: list[str], log: Path) -> None:
    for name in ("jax", "jaxlib"):
        (log / "broken" / name).mkdir(parents=True)
        (log / "broken" / name / "__init__.py").write_text("raise RuntimeError('this jax is broken')\n")
    done = run("-m", "erythroxy_tx", *argv, folder=log, paths=(log / "broken",))
    assert done.returncode in {0, 1}, done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("argv", [["--help"], ["env", "--gpu", "none"], ["pressure", "--json"]], ids=str)
@pytest.mark.parametrize("buffer", ["", "1"])
def test_a_reader_that_has_gone(argv: list[str], buffer: str) -> None:
    """As `| head` leaves it."""
    end, start = os.pipe()
    os.close(end)
    environ = os.environ | {"PYTHONUNBUFFERED": buffer, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "erythroxy_tx", *argv]
    done = subprocess.run(command, env=environ, stdout=start, stderr=subprocess.PIPE, check=False)
    os.close(start)
    assert done.returncode in {0, 2}
    assert done.stderr == b""


COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-9]")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize(("environ", "is_coloured"), [({"TERM": "xterm"}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_on_a_terminal(environ: dict[str, str], is_coloured: bool, log: Path) -> None:
    import pty

    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR", "TERM"}}
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "erythroxy_tx", "oom", "--file", "LOG"]
    settings = kept | {"TERM": "xterm", "PYTHONPATH": str(ROOT)} | environ
    printed = b""
    with subprocess.Popen(command, env=settings, cwd=log, stdout=child, stderr=subprocess.PIPE) as process:
        os.close(child)
        try:
            while part := os.read(parent, 65536):
                printed += part
        except OSError:  # Linux says so at the end of a terminal
            assert printed
    os.close(parent)
    assert process.returncode == 1
    assert b"77" in printed
    assert bool(COLOUR.search(printed)) is is_coloured
