"""Who killed a process for want of memory, and by what rule. Not here: the words of each killer (`kills/`), and how
near the next kill is (`pressure.py`).

Only those count who are entitled to say it: the kernel, systemd, systemd-oomd and earlyoom, each about its own kills.
Exit status 137, a counter, a limit that was passed are no evidence. Where there is none, the cause is unknown.
"""

import dataclasses
import datetime as dt
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from typing import Literal

from erythroxy_tx.host.cgroup import Cgroup
from erythroxy_tx.host.cgroup import memory_cgroups
from erythroxy_tx.host.kills.advice import advice
from erythroxy_tx.host.kills.kill import EITHER
from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.kill import Killer
from erythroxy_tx.host.kills.kill import Sign
from erythroxy_tx.host.kills.pairing import find_kills
from erythroxy_tx.host.kills.sources import RING_SLACK
from erythroxy_tx.host.kills.sources import Home
from erythroxy_tx.host.kills.sources import Sources
from erythroxy_tx.host.kills.sources import UnitState
from erythroxy_tx.host.report import Line
from erythroxy_tx.host.report import Report
from erythroxy_tx.units import format_bytes

_AGO = re.compile(r"(?a)\s*(\d{1,9}(?:\.\d+)?) ?(s|min|h|d)(?: ago)?\s*")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_SHOWN = 5  # kills and signs, the newest


@dataclasses.dataclass(frozen=True)
class Diagnosis(Report):
    """What `diagnose_oom` found.

    **Attributes:**

    - `cause`: who killed the process that was asked for, or else the latest victim: `"kernel"`, `"systemd-oomd"`,
        `"earlyoom"`, `"kernel or systemd-oomd"`, or `"unknown"`.
    - `verdict`: the same in a sentence.
    - `kills`: each `Kill` with its rule, its numbers and its evidence, the latest last.
    - `signs`: lines that look like a kill and are none: a rule that was met, an attempt that failed, a SIGKILL without
        a sender, an allocator that refused memory.
    - `counters`: the control groups of the process, or of this one where it has ended: limit, peak, what is held, and
        how many processes the kernel has killed there since the group was made. They name nobody.
    - `units`: what systemd says of the units concerned.
    - `looked_at`, `could_not_read`: sources, the latter with the reason.
    - `advice`: what to do, first things first.
    """

    cause: Killer | Literal["unknown"]
    verdict: str
    kills: tuple[Kill, ...]
    signs: tuple[Sign, ...]
    counters: tuple[Cgroup, ...]
    units: tuple[UnitState, ...]
    looked_at: tuple[str, ...]
    could_not_read: tuple[str, ...]
    advice: tuple[str, ...]

    def lines(self) -> Iterator[Line]:
        """The verdict, the evidence, what was looked at, and what to do."""
        yield Line(self.verdict, "bad" if self.kills else "title")
        for kill in reversed(self.kills[-_SHOWN:]):
            if len(self.kills) > 1:
                yield Line("")
                yield Line(str(kill))
            yield Line(f"  {kill.when or 'at an unknown time'}")
            yield from (Line(f"    {line}", "dim") for line in kill.evidence)
        if len(self.kills) > _SHOWN:
            yield Line(f"and {len(self.kills) - _SHOWN} earlier")
        if self.signs and not self.kills:
            yield Line("")
            yield Line("No evidence of a kill for memory, but seen:", "title")
            for sign in self.signs[-_SHOWN:]:
                yield Line(f"  {sign.text}", "warn")
                yield Line(f"    {sign.evidence}", "dim")
        for title, items in (
            ("Control groups", [_group(group) for group in self.counters if group.kills or group.limit]),
            ("Units", [_unit(unit) for unit in self.units]),
            ("Looked at", self.looked_at),
            ("Could not read", self.could_not_read),
            ("What to do", self.advice),
        ):
            if items:
                yield Line("")
                yield Line(f"{title}:", "title")
                yield from (Line(f"  {item}", "warn" if title == "Could not read" else "") for item in items)


def diagnose_oom(
    *,
    since: float | str | dt.datetime | None = None,
    pid: int | None = None,
    status: int | None = None,
    file: str | Path | IO[bytes] | IO[str] | None = None,
) -> Diagnosis:
    """Say who killed a process for want of memory, by what rule, and what to do first.

    Reads the journal and the kernel's ring, the counters of the process's control groups, and systemd; or one log.

    **Arguments:**

    - `since`: how far back to look: seconds since 1970, such as a `time.time()` from before the run; a `datetime`; or a
        string, `"10min"`, `"2h"`, `"3d"` or `"2026-08-17 01:00"`, in local time. None is since the machine was started.
    - `pid`: the process asked for, also when it has ended. Only kills of it count, or of its unit as a whole. Numbers
        are used again: with `since`, no earlier process is meant.
    - `status`: how it ended, as `Popen.returncode` (-9) or a shell (137) tells it. It says which signal, and never why.
        With `pid`, another status rules a SIGKILL out.
    - `file`: read this log in place of the machine: a path or an open file, of journalctl (also `-o json`), dmesg or
        syslog, mixed or cut.

    **Returns:** a `Diagnosis`; `cause` is `"unknown"` where nothing that was read is evidence.

    **Raises:** `ValueError` for `since` with `file`, and for a value that is none of the above; `OSError` where the
    file cannot be read. What cannot be read of the machine is listed in `could_not_read`.

    >>> import io
    >>> log = "kernel: Memory cgroup out of memory: Killed process 77 (python) total-vm:9000kB, anon-rss:8000kB"
    >>> diagnose_oom(file=io.StringIO(log)).verdict
    'The kernel killed process 77 (python): its control group was at its limit of memory, whatever the machine had.'
    """
    if pid is not None and not (isinstance(pid, int) and 0 < pid < 2**31):
        raise ValueError(f"diagnose_oom got pid={pid!r}. Expected the number of a process, such as 4711.")
    if status is not None and not isinstance(status, int):
        raise ValueError(f"diagnose_oom got status={status!r}. Expected an exit status, such as -9 or 137.")
    if file is not None:
        if since is not None:
            raise ValueError("diagnose_oom got since and file. A file is read as a whole. Fix: leave since out.")
        return _of_file(file, pid, status)
    return _of_machine(_time(since), pid, status)


def _of_file(file: str | Path | IO[bytes] | IO[str], pid: int | None, status: int | None) -> Diagnosis:
    sources = Sources()
    if isinstance(file, str | Path):
        with Path(file).open("rb") as opened:
            sources.read_file(opened, str(file))
    else:
        sources.read_file(file, str(getattr(file, "name", "the log")))
    kills, signs = find_kills(sources.found)
    if pid is not None:
        kills = tuple(kill for kill in kills if kill.pid == pid and _fits(kill, status))
    return _diagnosis(sources, kills, signs, pid=pid, status=status)


def _of_machine(since: float | None, pid: int | None, status: int | None) -> Diagnosis:
    sources = Sources()
    sources.read_machine(since)
    kills, signs = find_kills(sources.found)
    home = sources.home(pid, since) if pid is not None else None
    if pid is not None:
        if sources.counts_other_processes():
            sources.could_not_read.append(
                f"whether a line means process {pid}: this is a pid namespace, and the kernel counts in another one"
            )
            kills = tuple(kill for kill in kills if kill.pid is None)
        kills = tuple(kill for kill in kills if _concerns(kill, pid, home) and _fits(kill, status))
        concerned = "|".join(re.escape(name) for name in (str(pid), home.unit if home else None) if name)
        signs = tuple(sign for sign in signs if re.search(rf"(?<!\w)(?:{concerned})(?!\w)", sign.evidence))
    counters = memory_cgroups(pid) or memory_cgroups()
    if counters:
        sources.looked_at.append(f"the counters of the control group {counters[0].path} and of those above it")
    else:
        sources.could_not_read.append("the counters of control groups: there are none")
    wanted = [home.unit if home else None, *(kill.unit for kill in kills[::-1])]
    names = list(dict.fromkeys(unit for unit in wanted if unit))[:3]
    units = tuple(state for name in names if (state := sources.unit_state(name)))
    if home is not None and not home.is_running and not kills and _fits(Kill(EITHER), status):
        kills = tuple(
            Kill(EITHER, unit=state.name, evidence=(f"systemctl show {state.name}: Result=oom-kill",))
            for state in units
            if state.name == home.unit and state.properties.get("Result") == "oom-kill"
        )
    return _diagnosis(sources, kills, signs, counters, units, pid=pid, status=status, home=home)


def _fits(kill: Kill, status: int | None) -> bool:
    """Whether a process may have ended by this kill. One that is sent SIGTERM may end as it likes."""
    return status in {None, -signal.SIGKILL, 128 + signal.SIGKILL} or kill.killer == "earlyoom"


def _concerns(kill: Kill, pid: int, home: Home | None) -> bool:
    """Whether a kill is one of this process, or of the whole unit while it was in there."""
    if home is not None and kill.time is not None and kill.time < home.since - RING_SLACK:
        return False
    if kill.pid is not None:
        return kill.pid == pid
    if home is None or home.is_running:
        return False
    return (kill.cgroup or kill.unit) is not None and (
        f"{home.cgroup}/".startswith(f"{kill.cgroup}/") if kill.cgroup and home.cgroup else kill.unit == home.unit
    )


def _diagnosis(
    sources: Sources,
    kills: tuple[Kill, ...],
    signs: tuple[Sign, ...],
    counters: tuple[Cgroup, ...] = (),
    units: tuple[UnitState, ...] = (),
    *,
    pid: int | None,
    status: int | None,
    home: Home | None = None,
) -> Diagnosis:
    latest = kills[-1] if kills else None
    if latest is not None:
        verdict = str(latest) if len(kills) == 1 else f"{len(kills)} kills. The latest: {latest}"
        if pid is not None and latest.pid is None:
            verdict += f" Process {pid} was there; that it was among them is not told."
    else:
        verdict = _unknown(pid, status, is_running=home is not None and home.is_running)
        if not sources.looked_at:
            verdict += " Nothing could be read."
        killed = [group for group in counters if group.kills]
        if killed:
            where = f"{killed[0].kills} in {killed[0].path}"
            verdict += f" The kernel has killed {where} since that group was made; whom is not told."
    return Diagnosis(
        cause=latest.killer if latest else "unknown",
        verdict=verdict,
        kills=kills,
        signs=signs,
        counters=counters,
        units=units,
        looked_at=tuple(sources.looked_at),
        could_not_read=tuple(sources.could_not_read),
        advice=advice(latest, signs),
    )


def _unknown(pid: int | None, status: int | None, *, is_running: bool) -> str:
    who = "the process" if pid is None else f"process {pid}"
    if is_running:
        return f"Process {pid} is running: nothing has killed it."
    if status is None:
        return f"No kill of {who} found." if pid is not None else "No kill found."
    number = -status if status < 0 else status - 128
    if number <= 0:
        return f"No kill found: {who} ended by itself, with exit status {status}."
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"No kill found: exit status {status} is no signal."
    return f"{name}, cause unknown: nothing that was read tells who sent it to {who}."


def _time(since: float | str | dt.datetime | None) -> float | None:
    """Seconds since 1970."""
    if isinstance(since, str) and (ago := _AGO.fullmatch(since)):
        return time.time() - float(ago[1]) * _SECONDS[ago[2]]
    try:
        moment = dt.datetime.fromisoformat(since) if isinstance(since, str) else since
        seconds = moment.timestamp() if isinstance(moment, dt.datetime) else moment
        if seconds is None or 0 <= seconds < 2**40:
            return seconds
    except (TypeError, ValueError, OverflowError, OSError):
        seconds = None
    raise ValueError(
        f"diagnose_oom got since={since!r}. Expected seconds since 1970, a datetime, or a string such as "
        '"10min", "2h", "3d" or "2026-08-17 01:00".'
    )


def _group(group: Cgroup) -> str:
    sizes = {"limit": group.limit, "peak": group.peak, "anon": group.anon, "file": group.file}
    held = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items() if size is not None)
    kills = f", {group.kills} killed since it was made" if group.kills else ""
    return f"{group.path}: {held}{kills}"


def _unit(unit: UnitState) -> str:
    return f"{unit.name}: " + ", ".join(f"{name}={value}" for name, value in unit.properties.items())
