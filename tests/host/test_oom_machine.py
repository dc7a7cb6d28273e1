"""What is read of a machine: planted commands stand for journalctl, dmesg and systemctl, and there is no ring."""

import dataclasses
import datetime as dt
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from erythroxy_tx.host import oom
from erythroxy_tx.host.cgroup import Cgroup
from erythroxy_tx.host.kills import sources
from erythroxy_tx.host.oom import diagnose_oom

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="journal, ring and control groups are Linux's")

SOON = int((time.time() + 60) * 1e6)
KILLED = "Memory cgroup out of memory: Killed process {} (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB"
GONE = 2**22 + 1  # above the largest number of a process


def record(message: str, *, at: int = SOON, **fields: str) -> str:
    return json.dumps({"MESSAGE": message, "__REALTIME_TIMESTAMP": str(at), "_HOSTNAME": "box", **fields})


OOMD = record("train.scope: systemd-oomd killed 3 process(es) in this unit.", _COMM="systemd", UNIT="train.scope")
LAST_WORDS = record(
    "step 3", at=SOON - 10**6, _PID=str(GONE), _SYSTEMD_UNIT="train.scope", _SYSTEMD_CGROUP="/train.scope"
)


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Programs in place of the machine's; those that are not planted are not installed. There is no ring."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    root = tmp_path / "root"
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    monkeypatch.setattr(sources, "ROOT", root)
    monkeypatch.setattr(oom, "memory_cgroups", lambda pid=None: ())

    def put(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return put


def says(*lines: str) -> str:
    return "\n".join(f"echo '{line}'" for line in lines)


def test_without_anything_all_of_it_is_listed(plant: Callable[[str, str], None]) -> None:
    found = diagnose_oom(pid=GONE, status=-9)
    assert found.cause == "unknown"
    assert found.verdict.startswith("SIGKILL, cause unknown")
    missing = "\n".join(found.could_not_read)
    assert "the journal: journalctl is not installed" in missing
    assert "the kernel's ring: /dev/kmsg: No such file or directory; dmesg is not installed" in missing
    assert missing in str(found).replace("\n  ", "\n")


def test_the_journal_is_read(plant: Callable[[str, str], None], tmp_path: Path) -> None:
    plant("journalctl", f'echo "$@" > {tmp_path}/asked\n' + says(record(KILLED.format(77), _TRANSPORT="kernel"), OOMD))
    found = diagnose_oom(since=1_700_000_000.5)
    assert [(kill.killer, kill.pid, kill.unit) for kill in found.kills] == [
        ("kernel", 77, None),
        ("systemd-oomd", None, "train.scope"),
    ]
    assert found.looked_at[0] == "the journal since 2023-11-14 22:13:20 UTC"
    asked = (tmp_path / "asked").read_text()
    assert "-o json --since=@1700000000.500000" in asked
    assert "_TRANSPORT=kernel + _COMM=systemd-oomd" in asked


def test_a_journal_that_holds_nothing_is_no_evidence(plant: Callable[[str, str], None]) -> None:
    plant("journalctl", "true")
    found = diagnose_oom()
    assert "the journal: it holds nothing that may be read here" in found.could_not_read
    assert not any("journal" in source for source in found.looked_at)


def test_what_journalctl_complains_of_is_listed(plant: Callable[[str, str], None]) -> None:
    plant("journalctl", "echo 'Hint: You are currently not seeing messages from other users.' >&2\n" + says(OOMD))
    found = diagnose_oom()
    assert found.cause == "systemd-oomd"
    assert any("not seeing messages from other users" in why for why in found.could_not_read)


def test_a_command_that_hangs_or_fails(plant: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PATIENCE", 0.2)
    plant("journalctl", f"exec {sys.executable} -c 'import time; time.sleep(60)'")
    plant("dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    missing = "\n".join(diagnose_oom().could_not_read)
    assert "the journal: journalctl did not answer within 0.2 s" in missing
    assert "dmesg: dmesg: read kernel buffer failed: Operation not permitted" in missing


def test_dmesg_where_the_ring_may_not_be_read(plant: Callable[[str, str], None]) -> None:
    now = time.monotonic()
    lines = [f"<3>[ {now - age:.6f}] {KILLED.format(pid)}" for age, pid in ((now - 0.5, 76), (1, 77))]
    plant("dmesg", says(*lines, f"<12>[ {now:.6f}] {KILLED.format(78)}"))
    assert [kill.pid for kill in diagnose_oom().kills] == [76, 77]
    found = diagnose_oom(since="2s")
    assert [kill.pid for kill in found.kills] == [77]
    assert abs(found.kills[0].time - time.time()) < 60
    assert "the kernel's ring" in found.looked_at


def test_one_kill_in_the_journal_and_in_the_ring(plant: Callable[[str, str], None]) -> None:
    now = int(time.time() * 1e6)
    plant("journalctl", says(record(KILLED.format(77), at=now, _TRANSPORT="kernel")))
    plant("dmesg", says(f"<3>[ {time.monotonic():.6f}] {KILLED.format(77)}"))
    (kill,) = diagnose_oom().kills
    assert len(kill.evidence) == 1


def test_the_ring_of_a_machine_that_has_slept(
    plant: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources.time, "clock_gettime", lambda _: time.monotonic() + 7200)
    plant("dmesg", says(f"<3>[ {time.monotonic() - 9:.6f}] {KILLED.format(77)}"))
    found = diagnose_oom()
    assert [kill.pid for kill in found.kills] == [77]
    assert any("late by up to 7200 s" in why for why in found.could_not_read)
    plant("journalctl", says(record(KILLED.format(77), at=SOON - 7200 * 10**6, _TRANSPORT="kernel")))
    assert len(diagnose_oom().kills) == 1  # not once more by the clock of the ring


def test_a_process_whose_unit_was_killed(plant: Callable[[str, str], None]) -> None:
    plant("journalctl", f'case "$*" in *_PID=*) {says(LAST_WORDS)};; *) {says(OOMD)};; esac')
    found = diagnose_oom(pid=GONE)
    assert found.cause == "systemd-oomd"
    assert f"Process {GONE} was there; that it was among them is not told." in found.verdict


def test_a_unit_that_was_killed_before_the_process_was_in_it(plant: Callable[[str, str], None]) -> None:
    early = record(
        "train.scope: systemd-oomd killed 3 process(es) in this unit.", at=SOON - 90 * 10**6, _COMM="systemd"
    )
    plant("journalctl", f'case "$*" in *_PID=*) {says(LAST_WORDS)};; *) {says(early)};; esac')
    assert diagnose_oom(pid=GONE).cause == "unknown"


def test_kills_of_others_do_not_count(plant: Callable[[str, str], None]) -> None:
    other = record("other.scope: systemd-oomd killed 3 process(es) in this unit.", _COMM="systemd")
    lines = says(other, record(KILLED.format(77), _TRANSPORT="kernel"))
    plant("journalctl", f'case "$*" in *_PID=*) {says(LAST_WORDS)};; *) {lines};; esac')
    found = diagnose_oom(pid=GONE)
    assert (found.cause, found.kills, found.signs) == ("unknown", (), ())


def test_kills_of_other_control_groups(plant: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {field.name: None for field in dataclasses.fields(Cgroup)}
    own = Cgroup(**{**nothing, "path": "/box", "version": 2, "kills": 0})
    monkeypatch.setattr(oom, "memory_cgroups", lambda pid=None: (own,))
    chosen = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={0},task_memcg={0},task=a,pid={1},uid=0"
    other = record(chosen.format("/boxes", 8), _TRANSPORT="kernel")
    plant("journalctl", says(other))
    found = diagnose_oom()
    assert found.verdict.startswith("None in this control group; 1 elsewhere, the latest: The kernel killed process 8")
    assert any("of those above it: kills: 0 in each of the 1" in source for source in found.looked_at)
    plant("journalctl", says(record(chosen.format("/box/a", 7), at=SOON - 10**6, _TRANSPORT="kernel"), other))
    found = diagnose_oom()
    assert [(kill.pid, kill.elsewhere) for kill in found.kills] == [(8, True), (7, False)]
    assert "2 kills, 1 of them in other control groups. The latest of this group: The kernel killed" in found.verdict
    assert "In another control group: The kernel killed process 8" in str(found)


def test_a_process_that_runs(plant: Callable[[str, str], None]) -> None:
    plant("journalctl", says(record(KILLED.format(os.getpid()), at=10**6, _TRANSPORT="kernel"), OOMD))
    found = diagnose_oom(pid=os.getpid())
    assert found.cause == "unknown"
    assert found.verdict.startswith(f"Process {os.getpid()} is running: nothing has killed it.")


def test_processes_of_a_namespace_have_other_numbers(plant: Callable[[str, str], None], tmp_path: Path) -> None:
    (tmp_path / "root/proc/self/ns/pid").unlink()
    (tmp_path / "root/proc/self/ns/pid").symlink_to("pid:[4026532000]")
    plant("journalctl", says(record(KILLED.format(GONE), _TRANSPORT="kernel")))
    found = diagnose_oom(pid=GONE)
    assert found.cause == "unknown"
    assert any("pid namespace" in why for why in found.could_not_read)
    assert diagnose_oom().cause == "kernel"


def test_systemd_tells_of_the_unit(plant: Callable[[str, str], None]) -> None:
    plant(
        "journalctl", f'case "$*" in *_PID=*) {says(LAST_WORDS)};; *) {says(record("x", _TRANSPORT="kernel"))};; esac'
    )
    plant(
        "systemctl", says("LoadState=loaded", "Result=oom-kill", "MemoryMax=infinity", "ManagedOOMMemoryPressure=auto")
    )
    found = diagnose_oom(pid=GONE)
    assert found.cause == "kernel or systemd-oomd"
    assert found.kills[0].evidence == ("systemctl show train.scope: Result=oom-kill",)
    (unit,) = found.units
    assert unit.properties["ManagedOOMMemoryPressure"] == "auto"
    assert "train.scope: Result=oom-kill, MemoryMax=infinity" in str(found)


@pytest.mark.parametrize(
    "since",
    [
        "10min",
        "2 h",
        "3d ago",
        "2025-08-17 01:00",
        "30m",
        "1 hour ago",
        "today",
        "yesterday",
        dt.datetime.now(dt.UTC),
        5,
    ],
)
def test_since(plant: Callable[[str, str], None], since: object) -> None:
    assert diagnose_oom(since=since).cause == "unknown"


@pytest.mark.parametrize(
    "since", ["yesterday-ish", "10 parsecs", "", -1, float("nan"), [], "2026-99-99", "2999-01-01", 2**33, "today ago"]
)
def test_since_that_is_no_time(since: object) -> None:
    with pytest.raises(ValueError, match=r"diagnose_oom got since=.*Expected seconds since 1970"):
        diagnose_oom(since=since)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pid": 0}, "got pid=0. Expected the number of a process"),
        ({"pid": "7"}, "got pid='7'"),
        ({"status": "137"}, "got status='137'. Expected an exit status"),
        ({"since": 5, "file": "x"}, "since and file. A file is read as a whole"),
    ],
)
def test_options_that_do_not_fit(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        diagnose_oom(**options)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-9, "SIGKILL, cause unknown: nothing that was read tells who sent it"),
        (137, "SIGKILL, cause unknown: nothing that was read tells who sent it"),
        (-15, "SIGTERM, cause unknown"),
        (143, "SIGTERM, cause unknown"),
        (-11, "SIGSEGV, cause unknown"),
        (0, "ended by itself, with exit status 0"),
        (1, "ended by itself, with exit status 1"),
        (255, "exit status 255 is no signal"),
        (None, "No kill of process 77 found."),
    ],
)
def test_a_status_says_which_signal_and_never_why(tmp_path: Path, status: int | None, words: str) -> None:
    (tmp_path / "log").write_text("Jan 01 00:00:00 box cron[1]: nothing\n")
    found = diagnose_oom(file=tmp_path / "log", pid=77, status=status)
    assert found.cause == "unknown"
    assert words in found.verdict
