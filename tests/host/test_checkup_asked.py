"""What another process says of JAX: a planted one that breaks in each way, and the real one."""

import os
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


def test_a_jax_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, monkeypatch, "import time; time.sleep(60)")
    found = ask(os.environ, timeout=0.2)
    assert (found.outcome, found.error) == ("no answer", "no answer in 0.2 s")


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
    flags = "--xla_force_host_platform_device_count=3 --xla_of_nobody=1"
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_ALLOCATOR": "none"}
    found = ask(environ)
    assert (found.outcome, found.error, found.backend, len(found.devices)) == ("works", "", "cpu", 3)
    assert found.bad_flags == (BadFlag("--xla_of_nobody=1", "unknown"),)
    assert found.version
    assert found.jaxlib
    assert found.config["jax_platforms"] == "cpu"
    assert "XLA_PYTHON_CLIENT_ALLOCATOR" in found.options_error
