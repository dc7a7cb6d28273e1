"""What another process says of JAX: a planted one that breaks in each way, and the real one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from erythroxy_tx.host.checkup.asked import BadFlag
from erythroxy_tx.host.checkup.asked import ask

CONFIG = "class config: values = {'jax_enable_x64': False}\n"
START = "__version__ = '0.0.1'\ndefault_backend = lambda: 'cpu'\nclass monitoring: pass\n" + CONFIG
FLAGS = """
import os, sys
def devices():
    bad = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "bad" in flag or "odd" in flag]
    unknown = [flag for flag in bad if "bad" in flag]
    if any("odd" in flag for flag in bad):
        print("E0101 x.cc:63] Couldn't interpret value 1 for flag xla_odd.", file=sys.stderr, flush=True)
        os.abort()
    if unknown:
        print("F0101 x.cc:234] Unknown flags in XLA_FLAGS: " + " ".join(unknown), file=sys.stderr, flush=True)
        os.abort()
    return []
"""


def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "jax.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("source", "outcome", "error"),
    [
        (
            "raise ModuleNotFoundError(\"No module named 'jax'\", name='jax')",
            "missing",
            "ModuleNotFoundError: No module",
        ),
        ("import of_nobody_42", "no import", "ModuleNotFoundError: No module named 'of_nobody_42'"),
        ("raise ImportError('jaxlib is too old')", "no import", "ImportError: jaxlib is too old"),
        ("raise SystemExit(3)", "no import", "SystemExit: 3"),
        ("import os; os._exit(7)", "ended", "exit status 7"),
        (START + "def devices(): raise RuntimeError('no GPU')", "no start", "RuntimeError: no GPU"),
        (START + "def devices(): assert not __name__", "no start", "AssertionError"),
        (START + "import os\ndef devices(): os.abort()", "ended", "exit status -6"),
        (START + "def devices(): return []\nimport atexit, os; atexit.register(os.abort)", "works", ""),
    ],
)
def test_a_jax_that_breaks(
    source: str, outcome: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, monkeypatch, source)
    found = ask(os.environ)
    assert (found.outcome, found.error[: len(error)]) == (outcome, error)
    assert bool(found.error) == bool(error)
    assert not found.error.endswith(" ")


def test_a_jax_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, monkeypatch, "import time; time.sleep(60)")
    found = ask(os.environ, timeout=0.2)
    assert (found.outcome, found.error) == ("no answer", "no answer in 0.2 s")


def test_a_question_that_is_broken_off_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []

    class Asked:
        def __init__(self, command: list[str], **_: object):
            self.kill = lambda: killed.append(command)

        def communicate(self, timeout: float) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Asked)
    with pytest.raises(KeyboardInterrupt):
        ask(os.environ)
    assert len(killed) == 1


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", "")])
def test_a_program_that_is_not_python_is_not_started(name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, value, raising=False)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert ask(os.environ).outcome == "not asked"


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    found = ask(os.environ)
    assert (found.outcome, str(tmp_path) in found.error) == ("not asked", True)


def test_paths_that_are_no_strings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(tmp_path, monkeypatch, START + "def devices(): return []")
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])  # which Python skips
    assert ask(os.environ).outcome == "works"


def test_no_memory_of_a_gpu_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import os\ndef devices(): raise RuntimeError(sorted(n for n in os.environ.items() if 'CLIENT' in n[0]))"
    plant(tmp_path, monkeypatch, START + source)
    found = ask({**os.environ, "XLA_CLIENT_MEM_FRACTION": "0.9", "XLA_PYTHON_CLIENT_ALLOCATOR": "bfc"})
    assert found.error == "RuntimeError: [('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')]"


def test_flags_that_end_the_process_are_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, monkeypatch, START + FLAGS)
    found = ask({**os.environ, "XLA_FLAGS": "--xla_bad --xla_odd=1 --xla_good --xla_bad2=x"})
    assert found.outcome == "works"
    assert found.bad_flags == (
        BadFlag("--xla_odd=1", "value"),
        BadFlag("--xla_bad", "unknown"),
        BadFlag("--xla_bad2=x", "unknown"),
    )


def test_the_real_one() -> None:
    flags = "--xla_force_host_platform_device_count='3' --xla_of_nobody='a b' and --xla_that_is_not_read"
    environ = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "JAX_EXPLICIT_X64_DTYPES": "error",
        "XLA_PYTHON_CLIENT_ALLOCATOR": "none",
    }
    found = ask(environ)
    assert (found.outcome, found.error, found.backend, len(found.devices)) == ("works", "", "cpu", 3)
    assert found.bad_flags == (BadFlag("--xla_of_nobody=a b", "unknown"),)
    assert found.version
    assert found.jaxlib
    assert (found.config["jax_platforms"], found.config["jax_explicit_x64_dtypes"]) == ("cpu", "error")
    assert "XLA_PYTHON_CLIENT_ALLOCATOR" in found.options_error
