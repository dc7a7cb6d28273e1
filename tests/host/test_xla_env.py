"""Settings for JAX on a GPU, and the lines of a shell that make them, run by that shell."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import GIB
from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st

from erythroxy_tx.host import xla_env
from erythroxy_tx.host.nvml import Device
from erythroxy_tx.host.nvml import Tenant
from erythroxy_tx.host.xla_env import LATENCY_HIDING
from erythroxy_tx.host.xla_env import settings
from erythroxy_tx.host.xla_env import shell_lines
from erythroxy_tx.host.xla_env import xla_knows

FLAG = f"--{LATENCY_HIDING}=true"
IDLE = Device(
    index=1,
    uuid="GPU-1",
    name="A100",
    total=80 * GIB,
    used=0,
    free=80 * GIB,
    own=0,
    utilisation=0,
    tenants=(),
    mig=False,
    fault="",
)
SHARED = dataclasses.replace(IDLE, tenants=(Tenant(7, "ada", "python", 20 * GIB, "compute"),), free=60 * GIB)

needs_sh = pytest.mark.skipif(shutil.which("sh") is None, reason="there is no sh here")


def chosen(fraction: float = 0.6, device: Device | None = None, xla_flags: str = "", **other: Any) -> dict[str, Any]:
    environ = {"XLA_FLAGS": xla_flags} if xla_flags else {}
    found = settings(fraction, device, environ, **{"knows_flag": True} | other)
    return {setting.name: setting for setting in found}


def test_what_is_set() -> None:
    found = chosen(device=IDLE)
    assert {name: setting.value for name, setting in found.items()} == {
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "XLA_CLIENT_MEM_FRACTION": "0.6",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": None,
        "XLA_FLAGS": FLAG,
    }
    assert "CUDA_VISIBLE_DEVICES" not in chosen(device=None)
    assert "48.0 GiB" in found["XLA_CLIENT_MEM_FRACTION"].reason
    assert chosen(0.123456789)["XLA_CLIENT_MEM_FRACTION"].value == "0.123456789"


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, 60, float("nan"), float("inf")])
def test_no_share_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"above 0 and at most 1, such as 0\.6"):
        chosen(fraction)


def test_more_than_is_free_is_refused_with_what_fits() -> None:
    with pytest.raises(ValueError, match=r"64.0 GiB, and 60.0 GiB is free. --fraction 0.75 fits"):
        chosen(0.8, SHARED)
    assert chosen(0.75, SHARED)
    assert chosen(0.8, dataclasses.replace(SHARED, own=10 * GIB)), "what this process holds will be free"
    with pytest.raises(ValueError, match="Choose another GPU"):
        chosen(0.8, dataclasses.replace(SHARED, free=GIB // 2))


@pytest.mark.parametrize(
    ("fraction", "device", "is_odd"),
    [(0.3, SHARED, True), (0.75, SHARED, True), (0.5, SHARED, False), (0.7, SHARED, False), (0.3, IDLE, False)],
)
def test_an_odd_share_beside_others_is_remarked(fraction: float, device: Device, is_odd: bool) -> None:
    assert ("0.5 to 0.7 leaves room" in chosen(fraction, device)["XLA_CLIENT_MEM_FRACTION"].reason) is is_odd


@pytest.mark.parametrize(
    ("before", "knows", "after", "words"),
    [
        ("", True, FLAG, "overlap"),
        ("--xla_a=1", True, f"{FLAG} --xla_a=1", "what was set before stays"),
        ("--xla_a 1 --xla_b='", True, f"{FLAG} --xla_a 1 --xla_b='", "what was set before stays"),
        (f"--{LATENCY_HIDING}_of=1", True, f"{FLAG} --{LATENCY_HIDING}_of=1", "what was set before stays"),
        (" ", True, FLAG, "overlap"),
        (f"--{LATENCY_HIDING}=false", True, None, "it sets"),
        ("/etc/flags", True, None, "names a file"),
        ("--xla_a=1", False, None, "does not know"),
        ("--xla_a=1", None, None, "no jaxlib is installed"),
    ],
)
def test_flags_are_added_to_what_is_there(before: str, knows: bool | None, after: str | None, words: str) -> None:
    found = chosen(xla_flags=before, knows_flag=knows)["XLA_FLAGS"]
    assert found.value == after
    assert words in found.reason
    assert "unset XLA_FLAGS" not in "\n".join(shell_lines((found,)))


def test_the_flag_is_looked_for_in_what_is_installed() -> None:
    assert xla_knows(LATENCY_HIDING) is True
    assert xla_knows(f"{LATENCY_HIDING}_of_old") is False
    assert xla_knows(LATENCY_HIDING[:-1]) is False


def test_the_flag_must_be_known_to_the_plugin_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_bytes(b"..a_flag\0")
    (tmp_path / "other").write_bytes(b"..another\0")
    monkeypatch.setattr(xla_env, "_libraries", tmp_path.iterdir)
    assert xla_knows("a_flag") is False
    (tmp_path / "other").write_bytes(b"..a_flag\0")
    assert xla_knows("a_flag") is True
    monkeypatch.setattr(xla_env, "_libraries", lambda: iter(()))
    assert xla_knows("a_flag") is None


def run(shell: str, script: str, argument: str, **environ: str) -> str:
    command = [shell, "-c", script, *(["sh"] if shell == "sh" else []), argument]
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20)


@needs_sh
@given(TEXT)
@example("'; echo planted; '")
@example('"$(echo planted)" `echo planted` $HOME \\')
@example("a\n#b\n")
def test_sh_sets_just_that(flags: str) -> None:
    before = f"--xla_a={flags}"
    after = chosen(device=IDLE, xla_flags=before)["XLA_FLAGS"].value or before
    lines = "\n".join(shell_lines(tuple(chosen(device=IDLE, xla_flags=before).values())))
    assert run("sh", 'eval "$1"; printf "%s." "$XLA_FLAGS"', lines, XLA_FLAGS=before) == f"{after}."


@needs_sh
def test_names_and_reasons_run_nothing() -> None:
    device = dataclasses.replace(IDLE, name="A100\necho planted", uuid="GPU-1; echo planted")
    lines = "\n".join(shell_lines(tuple(chosen(device=device).values())))
    assert run("sh", 'eval "$1"; printf "%s" "$CUDA_VISIBLE_DEVICES"', lines) == "GPU-1; echo planted"


@needs_sh
def test_lines_that_are_joined_set_the_same() -> None:
    """`eval $(...)` without the double quotes joins them by spaces, and a comment would hide what follows."""
    lines = "\n".join(shell_lines(tuple(chosen(device=IDLE, xla_flags="--xla_a=1 --xla_b='c'").values())))
    script = 'eval $1; printf "%s|" "$CUDA_VISIBLE_DEVICES" "$XLA_CLIENT_MEM_FRACTION" "$XLA_FLAGS"'
    assert run("sh", script, lines) == f"GPU-1|0.6|{FLAG} --xla_a=1 --xla_b='c'|"


@needs_sh
def test_jaxlib_reads_what_the_shell_sets() -> None:
    """And the old name, which would stop it, is taken away."""
    lines = "\n".join(shell_lines(tuple(chosen(0.55, IDLE).values())))
    code = "from jaxlib.xla_client import generate_pjrt_gpu_plugin_options as o; print(o()['memory_fraction'])"
    script = f'eval "$1"; exec {sys.executable} -c "{code}"'
    assert run("sh", script, lines, XLA_PYTHON_CLIENT_MEM_FRACTION="0.9").strip() == "0.55"
    both = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9", "XLA_CLIENT_MEM_FRACTION": "0.55"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | both, capture_output=True, check=False)
    assert b"XLA_CLIENT_MEM_FRACTION is specified together" in done.stderr, "the old name need not be taken away"


@needs_sh
def test_a_backend_starts_with_what_the_shell_sets() -> None:
    """A flag that XLA does not know ends the process here."""
    lines = "\n".join(
        shell_lines(tuple(chosen(device=IDLE, xla_flags="--xla_force_host_platform_device_count=3").values()))
    )
    script = f'eval "$1"; exec {sys.executable} -c "import jax; print(jax.device_count())"'
    assert run("sh", script, lines, JAX_PLATFORMS="cpu").strip() == "3"


def test_the_lines_of_fish() -> None:
    found = chosen(device=IDLE, xla_flags="--xla_a='\\b'")
    assert list(shell_lines(tuple(found.values()), "fish"))[:4] == [
        "set -gx CUDA_VISIBLE_DEVICES 'GPU-1';",
        "set -gx XLA_CLIENT_MEM_FRACTION '0.6';",
        "set -e XLA_PYTHON_CLIENT_MEM_FRACTION;",
        f"set -gx XLA_FLAGS '{FLAG} --xla_a=\\'\\\\b\\'';",
    ]


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
def test_fish_sets_just_that() -> None:
    found = chosen(device=IDLE, xla_flags="--xla_a='\\b' $HOME (echo planted)")
    lines = "\n".join(shell_lines(tuple(found.values()), "fish"))
    assert run("fish", 'eval $argv[1]; printf "%s" "$XLA_FLAGS"', lines) == found["XLA_FLAGS"].value
