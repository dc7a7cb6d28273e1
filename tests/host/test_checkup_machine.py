"""Disks, memory and units, read from planted trees."""

import subprocess
from pathlib import Path

import pytest

from erythroxy_tx.host.checkup import machine
from erythroxy_tx.host.checkup.facts import settings_at_start
from erythroxy_tx.host.checkup.machine import look
from erythroxy_tx.host.checkup.words import nearest
from erythroxy_tx.host.checkup.words import setting_names

MEMINFO = "MemTotal: 1000 kB\nMemAvailable: 10 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
    return tmp_path


def mount(root: Path, *mounted: tuple[Path, str]) -> None:
    lines = [f"36 35 98:0 / {path} rw - {kind} none rw\n" for path, kind in mounted]
    (root / "proc" / "self" / "mountinfo").write_text("".join(lines))


def test_memory_of_the_host(root: Path) -> None:
    (room,) = look({}, None, folder=root, root=root).rooms
    assert (room.binds, room.left, room.limit) == ("the host", 10 * 1024, 1000 * 1024)


def test_places(root: Path) -> None:
    temporary, work = root / "tmp", root / "home"
    for folder in (temporary, work):
        folder.mkdir()
    mount(root, (root.resolve(), "ext4"), (temporary.resolve(), "tmpfs"))
    found = look({"TMPDIR": str(temporary)}, temporary / "cache", folder=work, root=root).places
    assert [(place.role, place.in_memory, place.is_temporary) for place in found] == [
        ("working folder", False, False),
        ("temporary folder", True, False),
        ("compilation cache", True, True),
    ]
    assert all(0 <= place.free <= place.total for place in found)


def test_a_working_folder_that_is_gone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "cwd", gone)
    assert [place.role for place in look({}, None, root=root).places] == ["temporary folder"]


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"A=1\0XLA_FLAGS=--a\0JAX_B=\xff\0", {"XLA_FLAGS": "--a", "JAX_B": "\udcff"}),
        (b"", {}),
        (b" title\0\0\0XLA_FLAGS=--a\0", None),
        (b"\0\0\0\0", None),
    ],
)
def test_the_first_environment(raw: bytes, found: dict[str, str] | None, root: Path) -> None:
    """A process that was renamed has its title there, and then nothing is known."""
    (root / "proc" / "self" / "environ").write_bytes(raw)
    assert settings_at_start(root) == found


def test_a_gpu_by_its_file(root: Path) -> None:
    assert not look({}, None, folder=root, root=root).has_gpu
    (root / "dev").mkdir()
    (root / "dev" / "nvidiactl").touch()
    assert look({}, None, folder=root, root=root).has_gpu


def plant_unit(root: Path, group: str) -> None:
    (root / "run" / "systemd" / "system").mkdir(parents=True)
    (root / "sys" / "fs" / "cgroup" / group.lstrip("/")).mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(f"0::{group}\n")
    mount(root, (Path("/sys/fs/cgroup"), "cgroup2"))


@pytest.mark.parametrize(
    ("group", "user"),
    [("/system.slice/job.service", []), ("/user.slice/user@1000.service/app.slice/job.service", ["--user"])],
)
def test_the_unit(group: str, user: list[str], root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_unit(root, group)
    asked = []

    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess:
        asked.append(command)
        text = "active\n" if "is-active" in command else "ManagedOOMMemoryPressure=auto\nMemorySwapMax=0\n"
        return subprocess.CompletedProcess(command, 0, text)

    monkeypatch.setattr(machine.subprocess, "run", answer)
    unit = look({}, None, folder=root, root=root).unit
    assert unit == {"ManagedOOMMemoryPressure": "auto", "MemorySwapMax": "0", "Id": "job.service", "oomd": "active"}
    assert [*user, "show", "job.service"] == asked[0][1 : 3 + len(user)]


def test_a_systemctl_that_is_not_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_unit(root, "/system.slice/job.service")
    monkeypatch.setenv("PATH", str(root))
    assert look({}, None, folder=root, root=root).unit == {}


def test_words_of_the_installed_jax() -> None:
    found = setting_names(["JAX_PLATFORMS"])
    assert {"JAX_PLATFORMS", "XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE"} <= found
    assert nearest("XLA_PYTHON_CLIENT_PREALOCATE", found) == "XLA_PYTHON_CLIENT_PREALLOCATE"
    assert nearest("JAX_OF_MY_LABORATORY", found) is None
