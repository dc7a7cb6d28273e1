"""`pressure`: what it reads of planted machines, and how it judges. Not here: the wait for room, and the watch."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machine import GIB
from machine import Machine

from erythroxy_tx.host import oomd_rules
from erythroxy_tx.host import psi as psi_module
from erythroxy_tx.host import room as room_module
from erythroxy_tx.host.pressure import Pressure
from erythroxy_tx.host.pressure import pressure
from erythroxy_tx.host.psi import StallClock
from erythroxy_tx.host.psi import read_psi


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Calm, with 16 of 32 GiB available, and no control groups."""
    made = Machine(tmp_path)
    made.meminfo(32 * GIB, 16 * GIB)
    made.pressure()
    return made


def in_a_service(machine: Machine, **own: Any) -> Path:
    machine.version_2("/system.slice/job.service")
    machine.group("/system.slice", 8 * GIB)
    folder = machine.group("/system.slice/job.service", **{"usage": 2 * GIB, **own})
    for resource in ("memory", "io", "cpu"):
        machine.psi(f"{folder.relative_to(machine.root)}/{resource}.pressure")
    return folder


# ------------------------------------------------------------------ what is read


def test_every_figure_of_a_pressure_file(machine: Machine) -> None:
    lines = "some avg10=1.53 avg60=0.87 avg300=0.22 total=4940165\nfull avg10=0.10 avg60=0.06 avg300=0.01 total=99\n"
    found = read_psi(machine.write("proc/pressure/memory", lines))
    assert (found.some.avg10, found.some.avg60, found.some.avg300, found.some.total) == (1.53, 0.87, 0.22, 4940165)
    assert found.full is not None
    assert found.full.total == 99
    found = read_psi(machine.write("proc/pressure/cpu", lines.partition("full")[0]))
    assert found.full is None  # before Linux 5.13


def test_of_the_machine_and_of_the_own_group(machine: Machine) -> None:
    in_a_service(machine)
    machine.psi("proc/pressure/io", some=12.0, total=3_000_000)
    machine.psi("sys/fs/cgroup/system.slice/job.service/memory.pressure", some=1.0)
    found = pressure(root=machine.root)
    assert found.machine.io is not None
    assert (found.machine.io.some.avg10, found.machine.io.some.total) == (12.0, 3_000_000)
    assert found.group is not None
    assert found.group.place == "/system.slice/job.service"
    assert found.group.memory is not None
    assert found.group.memory.some.avg10 == 1.0
    assert found.missing == ()
    for text in ("calm: some task of /system.slice/job.service", "I/O", "12.0 %", "3.0 s", "16.0 GiB of 32.0 GiB"):
        assert text in str(found)


def test_the_top_group_of_all_is_the_machine(machine: Machine) -> None:
    machine.version_2("/")
    machine.psi("sys/fs/cgroup/memory.pressure")
    found = pressure(root=machine.root)
    assert (found.group, found.missing) == (None, ())


def test_it_goes_to_json(machine: Machine) -> None:
    in_a_service(machine, limit=4 * GIB)
    found = json.loads(pressure(root=machine.root).to_json())
    assert found["verdict"] == "calm"
    assert found["rooms"][0] == {
        "binds": "memory.max of /system.slice/job.service",
        "left": 2 * GIB,
        "limit": 4 * GIB,
        "kills": True,
    }
    assert found["machine"]["memory"]["some"]["avg60"] == 0.5


def test_this_machine() -> None:
    found = pressure()
    assert found.room is not None
    assert 0 < found.room.left <= found.room.limit
    assert str(found)


# ------------------------------------------------------------------ the room


def test_the_least_room_binds(machine: Machine) -> None:
    in_a_service(machine, usage=3 * GIB, limit=4 * GIB, file=GIB)
    machine.group("/system.slice", 29 * GIB, limit=30 * GIB)
    found = pressure(root=machine.root)
    assert [(room.left, room.binds) for room in found.rooms] == [
        (GIB, "memory.max of /system.slice"),
        (2 * GIB, "memory.max of /system.slice/job.service"),
        (16 * GIB, "the host"),
    ]


def test_memory_high_binds_before_memory_max(machine: Machine) -> None:
    in_a_service(machine, usage=2 * GIB, high=3 * GIB, limit=4 * GIB)
    room = pressure(root=machine.root).room
    assert room is not None
    assert (room.left, room.binds, room.kills) == (GIB, "memory.high of /system.slice/job.service", False)


def test_of_two_equal_rooms_the_outer_one_binds(machine: Machine) -> None:
    in_a_service(machine, usage=2 * GIB, limit=4 * GIB)
    machine.group("/system.slice", 2 * GIB, limit=4 * GIB)
    room = pressure(root=machine.root).room
    assert room is not None
    assert room.binds == "memory.max of /system.slice"


def test_a_group_above_its_limit_has_no_room(machine: Machine) -> None:
    in_a_service(machine, usage=5 * GIB, limit=4 * GIB)
    room = pressure(root=machine.root).room
    assert room is not None
    assert room.left == 0


# ------------------------------------------------------------------ the verdict


@pytest.mark.parametrize(
    ("some", "full", "available", "expected"),
    [
        (4.9, 0.0, 16 * GIB, "calm"),
        (5.0, 0.0, 16 * GIB, "reclaiming"),
        (60.0, 19.9, 16 * GIB, "reclaiming"),
        (60.0, 20.0, 16 * GIB, "danger"),
        (0.0, 0.0, 32 * GIB // 20 - 1024, "reclaiming"),
        (0.0, 0.0, 32 * GIB // 50 - 1024, "danger"),
        (6.0, 0.0, GIB // 4, "danger"),
    ],
)
def test_the_rule_in_numbers(machine: Machine, some: float, full: float, available: int, expected: str) -> None:
    machine.pressure(some, full)
    machine.meminfo(32 * GIB, available)
    found = pressure(root=machine.root)
    assert found.verdict == expected
    assert str(found).startswith(f"{expected}: ")


def test_the_own_group_counts_as_the_machine_does(machine: Machine) -> None:
    folder = in_a_service(machine)
    machine.psi(f"{folder.relative_to(machine.root)}/memory.pressure", some=50.0, full=25.0)
    found = pressure(root=machine.root)
    assert found.verdict == found.stalls == "danger"
    assert "all tasks of /system.slice/job.service waited for memory in 25.0 % of the last 10 s" in found.why


def test_no_room_below_memory_high_is_no_danger(machine: Machine) -> None:
    in_a_service(machine, usage=2 * GIB, high=2 * GIB)
    found = pressure(root=machine.root)
    assert (found.verdict, found.stalls) == ("reclaiming", "calm")
    assert "0 B are left of 2.0 GiB, by memory.high of" in found.why


def test_a_limit_of_nothing_leaves_nothing(machine: Machine) -> None:
    in_a_service(machine, limit=0)
    assert pressure(root=machine.root).verdict == "danger"
    in_a_service(machine, high=0)
    assert pressure(root=machine.root).verdict == "reclaiming"


# ------------------------------------------------------------------ what is missing


def test_no_pressure_is_said_and_the_room_decides(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memory", "io", "cpu"):
        (machine.root / "proc/pressure" / name).unlink()
    monkeypatch.setattr(sys, "platform", "linux")
    found = pressure(root=machine.root)
    assert (found.verdict, found.stalls, found.machine.memory) == ("calm", "unknown", None)
    assert "16.0 GiB are left of 32.0 GiB, by the host" in found.why
    assert any("on memory: the kernel is older than 4.20, has no CONFIG_PSI" in each for each in found.missing)
    assert "not told: pressure of the machine on memory" in str(found)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert any("only Linux tells the pressure" in each for each in pressure(root=machine.root).missing)


def test_pressure_that_is_switched_off(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: Any) -> str:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported", str(path))

    monkeypatch.setattr(psi_module.Path, "read_text", refuse)
    with pytest.raises(OSError, match="psi=1 on its command line"):
        read_psi(machine.root / "proc/pressure/memory")


def test_a_file_that_says_something_else_is_said(machine: Machine) -> None:
    machine.write("proc/pressure/memory", "all fine\n")
    assert any("has no line `some avg10=...`, but 'all fine" in each for each in pressure(root=machine.root).missing)


def test_nothing_at_all_is_unknown(tmp_path: Path) -> None:
    found = pressure(root=tmp_path)
    assert (found.verdict, found.room, found.host) == ("unknown", None, None)
    assert str(found).startswith("unknown: the pressure is not told\nsystemd-oomd")
    assert any("MemAvailable" in each for each in found.missing)


def test_a_system_without_proc_asks_psutil(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(room_module, "ROOT", tmp_path)
    found = room_module.host_memory(root=tmp_path)
    assert found is not None
    assert 0 < found.available <= found.total


# ------------------------------------------------------------------ systemd-oomd


SHOWN = """Id=user.slice
ManagedOOMMemoryPressure=auto
ManagedOOMMemoryPressureLimit=0
ManagedOOMMemoryPressureDurationUSec=[not set]

Id=user@1000.service
ManagedOOMMemoryPressure=kill
ManagedOOMMemoryPressureLimit=1717986918
ManagedOOMMemoryPressureDurationUSec=20s
"""


@pytest.fixture
def session(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A desktop that systemd runs: the user's manager is watched above 40 % for 20 s."""
    user = "/user.slice/user-1000.slice/user@1000.service"
    machine.version_2(f"{user}/app.slice/job.scope")
    machine.group(f"{user}/app.slice/job.scope", GIB)
    for place in (user, f"{user}/app.slice/job.scope"):
        for resource in ("memory", "io", "cpu"):
            machine.psi(f"sys/fs/cgroup{place}/{resource}.pressure")
    (machine.root / "run/systemd/system").mkdir(parents=True)
    machine.write("sys/fs/cgroup/system.slice/systemd-oomd.service/cgroup.procs", "412\n")
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "" if "--user" in command else SHOWN, "")

    monkeypatch.setattr(oomd_rules.subprocess, "run", run)
    machine.asked = asked  # type: ignore[attr-defined]
    return machine


def test_the_units_that_oomd_watches(session: Machine) -> None:
    found = pressure(root=session.root)
    assert found.oomd.running is True
    (rule,) = found.oomd.rules
    assert (rule.unit, round(rule.limit, 3), rule.duration) == ("user@1000.service", 40.0, "20s")
    assert rule.folder.name == "user@1000.service"
    of_user, of_system = session.asked  # type: ignore[attr-defined]
    assert of_user[1:3] == ["--user", "show"]
    assert of_user[-2:] == ["job.scope", "app.slice"]
    assert of_system[-4:] == ["user@1000.service", "user-1000.slice", "user.slice", "-.slice"]
    assert "systemd-oomd kills a group of user@1000.service" in str(found)


@pytest.mark.parametrize(("full", "expected"), [(19.0, "calm"), (20.5, "danger")])
def test_half_of_the_limit_of_oomd_is_danger(session: Machine, full: float, expected: str) -> None:
    unit = "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service"
    session.psi(f"{unit}/memory.pressure", some=full, full=full)
    assert pressure(root=session.root).verdict == expected
    session.write("sys/fs/cgroup/system.slice/systemd-oomd.service/cgroup.procs", "")
    found = pressure(root=session.root)
    assert (found.verdict, found.oomd.running) == ("calm", False)
    assert "systemd-oomd does not run" in str(found)


def test_the_defaults_are_those_of_the_manual_unless_a_file_says_otherwise(session: Machine) -> None:
    def defaults() -> tuple[float, str]:
        found = oomd_rules.oomd(root=session.root)
        return found.limit, found.duration

    assert defaults() == (60.0, "30s")
    session.write("usr/lib/systemd/oomd.conf", "[OOM]\n#SwapUsedLimit=90%\nDefaultMemoryPressureLimit=70%\n")
    assert defaults() == (70.0, "30s")
    session.write("etc/systemd/oomd.conf", "[OOM]\n")  # in the place of the other
    session.write("usr/lib/systemd/oomd.conf.d/10-a.conf", "[OOM]\nDefaultMemoryPressureDurationSec=20\n")
    assert defaults() == (60.0, "20s")
    session.write("usr/lib/systemd/oomd.conf.d/20-b.conf", "[OOM]\nDefaultMemoryPressureLimit = 455‰\n")
    session.write("etc/systemd/oomd.conf.d/10-a.conf", "[OOM]\nDefaultMemoryPressureDurationSec=1min\n")
    assert defaults() == (45.5, "1min")


def test_a_systemctl_that_does_not_answer_is_said(session: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], **_: Any) -> Any:
        raise subprocess.CalledProcessError(1, command, "", "Failed to connect to bus: Host is down\nmore\n")

    monkeypatch.setattr(oomd_rules.subprocess, "run", refuse)
    found = pressure(root=session.root)
    assert found.oomd.missing == "systemctl does not tell: Failed to connect to bus: Host is down"
    assert "Host is down); where it watches, it kills above 60 % for 30s" in str(found)


def test_a_manager_that_does_not_answer_leaves_the_other(session: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        if "--user" in command:
            raise subprocess.CalledProcessError(1, command, "", "Failed to connect to bus")
        return subprocess.CompletedProcess(command, 0, SHOWN, "")

    monkeypatch.setattr(oomd_rules.subprocess, "run", run)
    found = pressure(root=session.root).oomd
    assert [rule.unit for rule in found.rules] == ["user@1000.service"]
    assert found.missing == "systemctl --user does not tell: Failed to connect to bus"


def test_without_systemd_nothing_is_asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oomd_rules.subprocess, "run", None)
    found: Pressure = pressure(root=machine.root)
    assert found.oomd.running is None
    assert "systemd-oomd cannot be seen from here" in str(found)


# ------------------------------------------------------------------ over a stretch of time


def test_the_share_of_a_stretch_of_time(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 14.0])
    monkeypatch.setattr(psi_module.time, "perf_counter", lambda: next(clock))
    machine.pressure(total=5_000_000)
    watch = StallClock(root=machine.root)
    machine.psi("proc/pressure/memory", total=6_000_000)
    (machine.root / "proc/pressure/io").unlink()
    found = watch.read()
    assert (found.seconds, found.memory, found.io) == (4.0, 0.25, None)
    assert str(found) == "memory 25.0%, I/O -"
    assert found.missing


def test_a_stretch_without_pressure_says_why(tmp_path: Path) -> None:
    found = StallClock(root=tmp_path).read()
    assert found.memory is found.io is None
    assert str(found) == f"- ({found.missing})"
