"""Who killed a process for want of memory, and by what rule. Not here: the words of each killer (`kills/`), and how
near the next kill is (`pressure.py`).

Only those count who are entitled to say it: the kernel, systemd, systemd-oomd and earlyoom, each about its own kills.
Exit status 137, a counter, a limit that was passed are no evidence. Where there is none, the cause is unknown.
"""

import dataclasses
import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from typing import Literal

from erythroxy_tx.host.cgroup import Cgroup
from erythroxy_tx.host.cgroup import memory_cgroups
from erythroxy_tx.host.kills.advice import advice
from erythroxy_tx.host.kills.advice import advice_without_kill
from erythroxy_tx.host.kills.kill import EITHER
from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.kill import Killer
from erythroxy_tx.host.kills.kill import Sign
from erythroxy_tx.host.kills.pairing import find_kills
from erythroxy_tx.host.kills.since import seconds_since
from erythroxy_tx.host.kills.sources import RING_SLACK
from erythroxy_tx.host.kills.sources import Home
from erythroxy_tx.host.kills.sources import Sources
from erythroxy_tx.host.kills.sources import UnitState
from erythroxy_tx.host.kills.verdict import fits
from erythroxy_tx.host.kills.verdict import is_elsewhere
from erythroxy_tx.host.kills.verdict import of_kills
from erythroxy_tx.host.kills.verdict import of_others
from erythroxy_tx.host.kills.verdict import unknown
from erythroxy_tx.host.report import Line
from erythroxy_tx.host.report import Report
from erythroxy_tx.units import format_bytes

_SHOWN = 5  # kills and signs, the newest


@dataclasses.dataclass(frozen=True)
class Diagnosis(Report):
    """What `diagnose_oom` found.

    **Attributes:**

    - `cause`: who killed the process that was asked for, or else the latest victim: `"kernel"`, `"systemd-oomd"`,
        `"earlyoom"`, `"kernel or systemd-oomd"`, or `"unknown"`.
    - `verdict`: the same in a sentence.
    - `kills`: each `Kill` with its rule, its numbers and its evidence, the latest last; those of other control groups
        (`elsewhere`) before those of this one.
    - `signs`: lines that look like a kill and are none: a rule that was met, an attempt that failed, a SIGKILL without
        a sender, an allocator that refused memory.
    - `counters`: the control groups of the process, or of this one where it has ended: limit, peak, what is held, and
        how many processes the kernel has killed there since the group was made. They name nobody.
    - `units`: what systemd says of the units concerned.
    - `looked_at`, `could_not_read`: sources, the latter with the reason.
    - `others`: where a `pid` was asked for, kills that a log tells of no process or of another one.
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
    others: tuple[Kill, ...]
    advice: tuple[str, ...]

    def lines(self) -> Iterator[Line]:
        """The verdict, the evidence, what was looked at, and what to do."""
        yield Line(self.verdict, "bad" if self.kills else "title" if self.looked_at else "warn")
        for kill in reversed(self.kills[-_SHOWN:]):
            if len(self.kills) > 1:
                yield Line("")
                yield Line(f"In another control group: {kill}" if kill.elsewhere else str(kill))
            yield Line("; ".join(filter(None, (f"  {kill.when or 'at an unknown time'}", kill.amounts()))))
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
        string, `"10min"`, `"1 hour ago"`, `"today"`, `"yesterday"` or `"2026-08-17 01:00"`, in local time. None is
        since the machine was started.
    - `pid`: the process asked for, also when it has ended. Only kills of it count, or of its unit as a whole. Numbers
        are used again: with `since`, no earlier process is meant.
    - `status`: how it ended, as `Popen.returncode` (-9) or a shell (137) tells it. It says which signal, and never why.
        With `pid`, another status rules a SIGKILL out.
    - `file`: read this log in place of the machine: a path or an open file, of journalctl (also `-o json`), dmesg or
        syslog, mixed or cut.

    **Returns:** a `Diagnosis`; `cause` is `"unknown"` where nothing that was read is evidence.

    **Raises:** `ValueError` for `since` with `file`, for a time to come, and for a value that is none of the above;
    `TypeError` for a `file` that is neither; `OSError` where it cannot be read. What cannot be read of the machine,
    or does not look like a log, is listed in `could_not_read`.

    >>> import io
    >>> log = "kernel: Memory cgroup out of memory: Killed process 77 (python) total-vm:9000kB, anon-rss:8000kB"
    >>> diagnose_oom(file=io.StringIO(log)).verdict
    'The kernel killed process 77 (python): its control group was at its limit of memory, whatever the machine had.'
    """
    if pid is not None and not (isinstance(pid, int) and 0 < pid < 2**31):
        raise ValueError(f"diagnose_oom got pid={pid!r}. Expected the number of a process, such as 4711.")
    if status is not None and not isinstance(status, int):
        raise ValueError(f"diagnose_oom got status={status!r}. Expected an exit status, such as -9 or 137.")
    if not (file is None or isinstance(file, str | Path) or hasattr(file, "readline")):
        raise TypeError(f"diagnose_oom got file={file!r}. Expected the path of a log, or an open file.")
    if file is not None:
        if since is not None:
            raise ValueError("diagnose_oom got since and file. A file is read as a whole. Fix: leave since out.")
        return _of_file(file, pid, status)
    return _of_machine(seconds_since(since), pid, status)


def _of_file(file: str | Path | IO[bytes] | IO[str], pid: int | None, status: int | None) -> Diagnosis:
    sources = Sources()
    if isinstance(file, str | Path):
        with Path(file).open("rb") as opened:
            sources.read_file(opened, str(file))
    else:
        sources.read_file(file, str(getattr(file, "name", "the log")))
    kills, signs = find_kills(sources.found)
    others: tuple[Kill, ...] = ()
    if pid is not None:
        others = tuple(kill for kill in kills if kill.pid != pid and fits(kill, status))
        kills = tuple(kill for kill in kills if kill.pid == pid and fits(kill, status))
    if sources.no_log and not (kills or others or signs):
        sources.could_not_read.append(sources.no_log)
        sources.looked_at.clear()
    return _diagnosis(sources, kills, signs, pid=pid, status=status, others=others, is_file=True)


def _of_machine(since: float | None, pid: int | None, status: int | None) -> Diagnosis:
    sources = Sources()
    sources.read_machine(since)
    kills, signs = find_kills(sources.found)
    home = sources.home(pid, since) if pid is not None else None
    others: tuple[Kill, ...] = ()
    counters = memory_cgroups(pid) or memory_cgroups()
    if pid is None and counters:
        kills = tuple(dataclasses.replace(kill, elsewhere=is_elsewhere(kill, counters[0].path)) for kill in kills)
        kills = tuple(sorted(kills, key=lambda kill: not kill.elsewhere))
    if pid is not None:
        if sources.counts_other_processes():
            sources.could_not_read.append(
                f"whether a line means process {pid}: this is a pid namespace, and the kernel counts in another one"
            )
            others = tuple(kill for kill in kills if kill.pid is not None)
            kills = tuple(kill for kill in kills if kill.pid is None)
        told = (*others, *kills)
        kills = tuple(kill for kill in kills if _concerns(kill, pid, home) and fits(kill, status))
        others = tuple(kill for kill in told if kill not in kills and fits(kill, status) and (kill.pid or home is None))
        concerned = "|".join(re.escape(name) for name in (str(pid), home.unit if home else None) if name)
        signs = tuple(sign for sign in signs if re.search(rf"(?<!\w)(?:{concerned})(?!\w)", sign.evidence))
    if counters:
        sources.looked_at.append(
            f"the counters of the control group {counters[0].path} and of those above it: {_counts(counters)}"
        )
    else:
        sources.could_not_read.append("the counters of control groups: there are none")
    wanted = [home.unit if home else None, *(kill.unit for kill in kills[::-1])]
    names = list(dict.fromkeys(unit for unit in wanted if unit))[:3]
    units = tuple(state for name in names if (state := sources.unit_state(name)))
    if home is not None and not home.is_running and not kills and fits(Kill(EITHER), status):
        kills = tuple(
            Kill(EITHER, unit=state.name, evidence=(f"systemctl show {state.name}: Result=oom-kill",))
            for state in units
            if state.name == home.unit and state.properties.get("Result") == "oom-kill"
        )
    return _diagnosis(sources, kills, signs, counters, units, pid=pid, status=status, home=home)


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
    others: tuple[Kill, ...] = (),
    home: Home | None = None,
    is_file: bool = False,
) -> Diagnosis:
    latest = kills[-1] if kills else None
    is_running = home is not None and home.is_running
    if latest is not None:
        verdict = of_kills(kills)
        if pid is not None and latest.pid is None:
            verdict += f" Process {pid} was there; that it was among them is not told."
    else:
        verdict = unknown(pid, status, is_running=is_running)
        if not sources.looked_at:
            nothing = f"Nothing could be read{f': {why}' if (why := sources.no_log) else ''}."
            verdict = nothing if status is None and not is_running else f"{verdict} {nothing}"
        killed = [group for group in counters if group.kills]
        if killed:
            where = f"{killed[0].kills} in {killed[0].path}"
            verdict += f" The kernel has killed {where} since that group was made; whom is not told."
        if not is_running:
            verdict += of_others(
                tuple(kill for kill in others if kill.pid is None), sum(1 for kill in others if kill.pid)
            )
    return Diagnosis(
        cause=latest.killer if latest else "unknown",
        verdict=verdict,
        kills=kills,
        signs=signs,
        counters=counters,
        units=units,
        looked_at=tuple(sources.looked_at),
        could_not_read=tuple(sources.could_not_read),
        others=others,
        advice=advice(latest)
        if latest
        else advice_without_kill(
            signs, status, is_running=is_running, is_file=is_file, may_read_more=bool(sources.could_not_read)
        ),
    )


def _counts(groups: tuple[Cgroup, ...]) -> str:
    counts = [group for group in groups if group.kills is not None]
    some = [f"{group.kills} in {group.path}" for group in counts if group.kills]
    return "no count of kills" if not counts else "kills: " + (", ".join(some) or f"0 in each of the {len(counts)}")


def _group(group: Cgroup) -> str:
    sizes = {"limit": group.limit, "peak": group.peak, "anon": group.anon, "file": group.file}
    held = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items() if size is not None)
    kills = f", {group.kills} killed since it was made" if group.kills else ""
    return f"{group.path}: {held}{kills}"


def _unit(unit: UnitState) -> str:
    return f"{unit.name}: " + ", ".join(f"{name}={value}" for name, value in unit.properties.items())
