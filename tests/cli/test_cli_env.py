"""`erythroxy env`: what it prints where, and that a shell makes of it what it says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import GIB
from fake_nvml import LIBRARY_NOT_FOUND
from fake_nvml import MISMATCH
from fake_nvml import NVMLError
from fake_nvml import fake
from fake_nvml import gpu
from fake_nvml import process

from erythroxy_tx.cli import main
from erythroxy_tx.host import nvml

TESTS = Path(__file__).parent.parent

HELD = {"used": 30 * GIB, "compute": [process(os.getppid(), 30 * GIB)]}


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command with some GPUs. Returns its status, what is exported, and what it says."""
    monkeypatch.setattr(nvml, "PAUSE", 0)
    for name in ("CUDA_VISIBLE_DEVICES", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)

    def env(*options: str, gpus: Any = (), init: NVMLError | None = None) -> tuple[int, dict[str, str], str]:
        monkeypatch.setitem(sys.modules, "pynvml", fake(list(gpus), init=init))
        status = main(["env", *options])
        printed = capsys.readouterr()
        lines = printed.out.splitlines()
        assert all(line.startswith(("export ", "unset ", "# ")) for line in lines)
        assert all("export" not in line for line in printed.err.splitlines() if "idle: " not in line)
        exported = (line.removeprefix("export ").rstrip(";").partition("=") for line in lines if line[0] == "e")
        return status, {name: value for name, _, value in exported}, printed.err

    return env


def test_auto_takes_the_idle_one_by_its_uuid(env: Any) -> None:
    status, exported, said = env(gpus=[gpu(0, **HELD), gpu(1)])
    assert (status, said) == (0, "")
    assert exported == {
        "CUDA_VISIBLE_DEVICES": gpu(1)["UUID"],
        "XLA_CLIENT_MEM_FRACTION": "0.6",
        "XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true",
    }


def test_where_none_is_idle_nothing_is_printed_but_who_holds_them(env: Any) -> None:
    status, exported, said = env("--gpu", "auto", gpus=[gpu(0, **HELD), gpu(1, UtilizationRates=50)])
    assert (status, exported) == (1, {})
    assert f"pid {os.getppid()}" in said
    assert "30.0 GiB" in said
    assert "utilisation 0.5, more than 0.05" in said


@pytest.mark.parametrize("wanted", ["0", gpu(0)["UUID"]])
def test_a_busy_one_may_be_chosen(env: Any, wanted: str) -> None:
    status, exported, said = env("--gpu", wanted, gpus=[gpu(0, **HELD), gpu(1)])
    assert status == 0
    assert exported["CUDA_VISIBLE_DEVICES"] == gpu(0)["UUID"]
    assert f"GPU 0 is shared with pid {os.getppid()}" in said


@pytest.mark.parametrize(
    ("options", "gpus", "status", "words"),
    [
        (["--gpu", "foo"], [gpu(0)], 2, "--gpu foo is no index and no UUID of nvidia-smi -L. Fix: use --gpu auto, or"),
        (["--gpu", "2"], [gpu(0)], 1, f"GPU 2 cannot be had: it is none of the GPUs here: 0 ({gpu(0)['UUID']})."),
        (["--gpu", "0"], [gpu(0, Name=NVMLError(15))], 1, "GPU 0 cannot be had: it cannot be used: GPU is lost."),
        (["--gpu", "0"], [gpu(0, MigMode=[1, 1])], 1, "GPU 0 cannot be had: MIG is on"),
        (["--gpu", "0", "--fraction", "0.8"], [gpu(0, **HELD)], 2, "50.0 GiB is free. --fraction 0.62 fits."),
        (["--fraction", "1.5"], [gpu(0)], 2, "the fraction is 1.5. Expected a share"),
        (["--fraction", "60", "--gpu", "none"], [], 2, "the fraction is 60.0. Expected a share"),
    ],
)
def test_what_cannot_be_had_prints_nothing(env: Any, options: list[str], gpus: Any, status: int, words: str) -> None:
    found, exported, said = env(*options, gpus=gpus)
    assert (found, exported) == (status, {})
    assert words in said


def test_without_a_gpu_the_rest_is_printed(env: Any) -> None:
    status, exported, said = env(init=NVMLError(LIBRARY_NOT_FOUND))
    assert status == 0
    assert set(exported) == {"XLA_CLIENT_MEM_FRACTION", "XLA_FLAGS"}
    assert said.endswith("CUDA_VISIBLE_DEVICES stays as it is.\n")
    status, exported, said = env("--gpu", "0", init=NVMLError(LIBRARY_NOT_FOUND))
    assert (status, exported) == (1, {})
    assert "GPU 0 cannot be had: " in said
    assert "Fix: use --gpu none, or install the NVIDIA driver" in said


def test_where_it_cannot_be_told_nothing_is_printed(env: Any) -> None:
    status, exported, said = env(init=NVMLError(MISMATCH))
    assert (status, exported) == (2, {})
    assert "restart the machine" in said
    assert "Fix: use --gpu none, or " in said


def test_none_asks_no_gpu(env: Any) -> None:
    status, exported, said = env("--gpu", "none", init=NVMLError(MISMATCH))
    assert (status, said) == (0, "")
    assert set(exported) == {"XLA_CLIENT_MEM_FRACTION", "XLA_FLAGS"}


def test_a_choice_that_is_replaced_is_named(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert "CUDA_VISIBLE_DEVICES was '3', and is replaced" in env(gpus=[gpu(0)])[2]


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no sh here")
@pytest.mark.parametrize(("used", "status"), [(0, 0), (30 * GIB, 1)])
def test_eval_of_the_whole_command(tmp_path: Path, used: int, status: int) -> None:
    (tmp_path / "pynvml.py").write_text(
        f"import sys, fake_nvml\nsys.modules[__name__] = fake_nvml.fake([fake_nvml.gpu(0, used={used})])\n"
    )
    paths = [str(tmp_path), str(TESTS), str(TESTS.parent)]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHON": sys.executable,
        "XLA_FLAGS": "--xla_dump_to='/tmp/a b'",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9",
        "CUDA_VISIBLE_DEVICES": "7",
    }
    script = (
        'lines="$("$PYTHON" -m erythroxy_tx env --gpu auto --fraction 0.5)" || echo "status $?" >&2; '
        'eval "$lines"; '
        '"$PYTHON" -c "import json, os; print(json.dumps(dict(os.environ)))"'
    )
    done = subprocess.run(["sh", "-c", script], env=environ, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    if status:
        assert "status 1" in done.stderr
        assert seen["CUDA_VISIBLE_DEVICES"] == "7"
        return
    assert seen["CUDA_VISIBLE_DEVICES"] == gpu(0)["UUID"]
    assert seen["XLA_CLIENT_MEM_FRACTION"] == "0.5"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in seen
    assert seen["XLA_FLAGS"] == "--xla_gpu_enable_latency_hiding_scheduler=true --xla_dump_to='/tmp/a b'"
