"""Where a machine tells of kills: the journal, the kernel's ring, systemd. Not here: what the lines say, and the
counters of control groups (`cgroup.py`).

What cannot be read is listed with the reason, and no command is waited for longer than `_PATIENCE`.
"""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO

import psutil

from erythroxy_tx.host.cgroup import memory_cgroups
from erythroxy_tx.host.files import ROOT
from erythroxy_tx.host.kills import units
from erythroxy_tx.host.kills.kill import unit_of
from erythroxy_tx.host.kills.records import Clock
from erythroxy_tx.host.kills.records import Record
from erythroxy_tx.host.kills.records import has_head
from erythroxy_tx.host.kills.records import records
from erythroxy_tx.host.kills.records import unix_time

RING_SLACK = 10.0  # seconds that the clock of the kernel's ring may be off by
_PATIENCE = 10.0  # seconds
_NEWEST = 50_000  # records of the journal; those of the kernel are all among them
_MOST_OF_THE_RING = 1_000_000  # records; it has less, unless they come as fast as they are read
_LINE = 2**20  # bytes
_FIRST = 10_000  # lines of a file, one of which begins as those of a log do
# How files begin that are no text, with U+FFFD for a byte that is no UTF-8; and how records of several lines do.
_NO_TEXT = re.compile("(?s)\x1f\ufffd|\ufffd7zXZ|\\(\ufffd/\ufffd|BZh\\d|LPKSHHRH|\ufffd\ufffd(?:\0.|.\0)")
_LONG = re.compile(r'(?a)\s*(?:"__CURSOR" : |__CURSOR=|"dmesg": \[)|.* \[s=[0-9a-f]+;i=[0-9a-f]+;b=')
_FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of Linux
_IDS = (units.OOMD_KILL, units.OUT_OF_MEMORY, units.PROCESS_EXIT, units.FAILURE_RESULT, units.RESOURCES)
_MATCHES = ("_TRANSPORT=kernel", "_COMM=systemd-oomd", "_COMM=earlyoom", *(f"MESSAGE_ID={number}" for number in _IDS))
_PROPERTIES = (
    "LoadState,Result,MemoryMax,MemoryPeak,ManagedOOMSwap,ManagedOOMMemoryPressure,ManagedOOMMemoryPressureLimit"
)


@dataclasses.dataclass(frozen=True)
class UnitState:
    """What systemd says of a unit: `properties` such as `Result` and `ManagedOOMMemoryPressure`, as text."""

    name: str
    properties: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Home:
    """Where a process is or was.

    **Attributes:**

    - `unit`, `cgroup`: None where it is not known.
    - `since`: seconds since 1970; it was alive then.
    - `is_running`: False for one that has ended, even if nobody has waited for it yet.
    """

    unit: str | None
    cgroup: str | None
    since: float
    is_running: bool


class Sources:
    """What has been read, and what could not be.

    **Attributes:**

    - `found`: the records of logs, in the order of time.
    - `looked_at`, `could_not_read`: in words, the latter with the reason.
    - `no_log`: why the file that was handed over does not look like a log; None where it does.
    """

    def __init__(self) -> None:
        self.found: list[Record] = []
        self.looked_at: list[str] = []
        self.could_not_read: list[str] = []
        self.no_log: str | None = None

    def read_file(self, file: IO[bytes] | IO[str], name: str) -> None:
        """Read a log that was handed over, unless it is of a form that is not read."""
        unread: list[str] = []
        heads: list[bool] = []
        self.found += records(_counted(_readable(_lines(file), unread), heads))
        if unread:
            self._miss(name, unread[0])
            return
        self.looked_at.append(name)
        if not any(heads):
            why = f"none of its first {min(len(heads), _FIRST)} lines looks like one of a log" if heads else "0 lines"
            self.no_log = f"{name}: {why}. Fix: hand over what journalctl or dmesg prints"

    def read_machine(self, since: float | None) -> None:
        """Read the journal of this boot, or since a time, and the kernel's ring."""
        if sys.platform != "linux":
            self.could_not_read.append(f"the journal and the kernel's messages: this is {sys.platform}, not Linux")
            return
        self._read_journal(since)
        self._read_ring(since)
        self.found.sort(key=lambda record: record.clock.seconds if record.clock else 0.0)

    def _read_journal(self, since: float | None) -> None:
        either = [part for match in _MATCHES for part in (match, "+")][:-1]
        said = self._journal(since, "-n", str(_NEWEST), *either)
        if said is None:
            return
        if not said and not self._ask("the journal", "journalctl", "--no-pager", "-q", "-n", "1"):
            self._miss("the journal", "it holds nothing that may be read here")
            return
        lines = said.strip("\n").split("\n")
        self.found += records(lines)
        self.looked_at.append("the journal" + (" of this boot" if since is None else f" since {unix_time(since)}"))
        if len(lines) >= _NEWEST:
            self._miss("the journal", f"only its newest {_NEWEST} lines about the kernel and about units were read")

    def _journal(self, since: float | None, *rest: str) -> str | None:
        span = "-b" if since is None else f"--since=@{since:.6f}"
        return self._ask("the journal", "journalctl", "--no-pager", "-o", "json", span, *rest)

    def _read_ring(self, since: float | None) -> None:
        lines = _ring()
        if isinstance(lines, OSError):
            said = self._ask("the kernel's ring", "dmesg", "-r", beside=f"/dev/kmsg: {lines.strerror}; ")
            if said is None:
                return
            lines = said.split("\n")
        slept = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        if slept > RING_SLACK:
            off = f"the machine has slept, and the ring's times from before that are late by up to {slept:.0f} s"
            if any(record.speaker == "kernel" for record in self.found):
                self._miss("the kernel's ring", f"{off}; the journal tells the same")
                return
            self._miss("the times of the kernel's ring", off)
        boot = time.time() - time.monotonic()
        for record in records(lines):
            if record.clock is None:
                continue
            seconds = boot + record.clock.seconds
            if since is None or seconds >= since - RING_SLACK:
                when = f"about {unix_time(seconds)}"
                self.found.append(dataclasses.replace(record, clock=Clock("unix", seconds), when=when))
        self.looked_at.append("the kernel's ring")

    def home(self, pid: int, since: float | None) -> Home | None:
        """Where a process is, or where it last wrote to the journal; None where neither is known."""
        try:
            process = psutil.Process(pid)
            groups = memory_cgroups(pid)
            cgroup = groups[0].path if groups else None
            is_running = process.status() != psutil.STATUS_ZOMBIE
            return Home(unit_of(cgroup), cgroup, process.create_time(), is_running)
        except psutil.NoSuchProcess:
            said = self._journal(since, "-n", "1", f"_PID={pid}") if sys.platform == "linux" else None
        try:
            fields = json.loads(said or "{}")
            unit = fields.get("_SYSTEMD_USER_UNIT") or fields.get("_SYSTEMD_UNIT")
            written = int(fields["__REALTIME_TIMESTAMP"]) / 1e6
        except (ValueError, KeyError, TypeError):  # no record
            return None
        return Home(unit, fields.get("_SYSTEMD_CGROUP"), written, is_running=False)

    def counts_other_processes(self) -> bool:
        """Whether this is a pid namespace, where processes have other numbers than in the kernel's lines."""
        try:
            return str((ROOT / "proc/self/ns/pid").readlink()) != _FIRST_NAMESPACE
        except OSError:  # not Linux, or older than the namespaces
            return False

    def unit_state(self, unit: str) -> UnitState | None:
        """What the manager of the system says of a unit, or else that of the user."""
        for manager in ("--system", "--user"):
            said = self._ask("systemd", "systemctl", manager, "show", "-p", _PROPERTIES, "--", unit)
            pairs = dict(line.split("=", 1) for line in (said or "").splitlines() if "=" in line)
            if pairs.pop("LoadState", "not-found") != "not-found":
                self.looked_at.append(f"systemctl {manager} show {unit}")
                return UnitState(unit, pairs)
        return None

    def _ask(self, what: str, program: str, *arguments: str, beside: str = "") -> str | None:
        """What a program prints; None where it fails, which is noted."""
        path = shutil.which(program)
        if path is None:
            self._miss(what, f"{beside}{program} is not installed")
            return None
        try:
            done = subprocess.run(  # noqa: S603  # a fixed program, no shell
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PATIENCE,
                check=False,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            self._miss(what, f"{beside}{program} did not answer within {_PATIENCE:g} s")
            return None
        except OSError as error:
            self._miss(what, f"{beside}{program}: {error.strerror}")
            return None
        complaint = next(iter(done.stderr.decode(errors="replace").strip().splitlines()), "")
        if complaint or done.returncode:
            self._miss(what, f"{beside}{program}: {complaint or f'exit status {done.returncode}'}")
        return done.stdout.decode(errors="replace") if done.returncode == 0 else None

    def _miss(self, what: str, why: str) -> None:
        text = f"{what}: {why}"
        if text not in self.could_not_read:
            self.could_not_read.append(text)


def _ring() -> list[str] | OSError:
    """The lines of the kernel's ring, one for each record; the error where it may not be read."""
    try:
        ring = os.open(ROOT / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return error
    lines = []
    try:
        for _ in range(_MOST_OF_THE_RING):
            try:
                read = os.read(ring, 8192)
            except BrokenPipeError:  # a record was overwritten while this one was read
                continue
            if not read:
                break
            lines.append(read.decode(errors="replace").split("\n", 1)[0])
        return lines
    except BlockingIOError:  # that was the newest
        return lines
    except OSError as error:
        return error
    finally:
        os.close(ring)


def _readable(lines: Iterator[str], unread: list[str]) -> Iterator[str]:
    """The lines up to the first that is of a form that is not read, of which `unread` is told."""
    for number, line in enumerate(lines):
        if number == 0 and _NO_TEXT.match(line):
            unread.append(
                "it is packed, a file of journald, or UTF-16. Fix: hand over its text, such as of `zcat LOG`, of "
                "`journalctl --file LOG -o json`, or of `iconv -f UTF-16 LOG`"
            )
            return
        if any(word in line for word in ("__CURSOR", "[s=", "dmesg")) and _LONG.match(line):
            unread.append("it has records of several lines. Fix: `journalctl -o json`, or `dmesg` without -J")
            return
        yield line


def _counted(lines: Iterator[str], heads: list[bool]) -> Iterator[str]:
    """The lines; for each, `heads` is told whether it begins as those of a log do, up to the first that does."""
    found = False
    for line in lines:
        found = found or (len(heads) < _FIRST and has_head(line))
        heads.append(found)
        yield line


def _lines(file: IO[bytes] | IO[str]) -> Iterator[str]:
    """The lines of a file of any size; of a line without end only its start, since what follows has no head."""
    is_rest = False
    while line := file.readline(_LINE):
        text = line.decode(errors="replace") if isinstance(line, bytes) else line
        if not is_rest:
            yield text.rstrip("\r\n")
        is_rest = not text.endswith("\n")
