"""`pressure`: how much the machine waits for memory, what room is left, and whether that is calm. Not here: waiting for
room (`headroom.py`), and being called when it gets worse (`on_pressure.py`).
"""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from erythroxy_tx.host.cgroup import memory_cgroups
from erythroxy_tx.host.cgroup import pressure_folders
from erythroxy_tx.host.files import ROOT
from erythroxy_tx.host.oomd_rules import Oomd
from erythroxy_tx.host.oomd_rules import oomd
from erythroxy_tx.host.psi import Psi
from erythroxy_tx.host.psi import read_psi
from erythroxy_tx.host.report import Line
from erythroxy_tx.host.report import Report
from erythroxy_tx.host.room import HostMemory
from erythroxy_tx.host.room import Room
from erythroxy_tx.host.room import host_memory
from erythroxy_tx.host.room import rooms
from erythroxy_tx.units import format_bytes

Verdict = Literal["calm", "reclaiming", "danger", "unknown"]

RECLAIMING = 5.0  # percent of the last 10 seconds in which some task waited for memory
DANGER = 20.0  # percent of the last 10 seconds in which all waited; systemd-oomd kills at 60 by default
SCARCE, NONE_LEFT = 0.05, 0.02  # of a limit
_WORSE: tuple[Verdict, ...] = ("unknown", "calm", "reclaiming", "danger")
_STYLES: dict[Verdict, str] = {"calm": "good", "reclaiming": "warn", "danger": "bad", "unknown": "warn"}


@dataclasses.dataclass(frozen=True)
class Pressures:
    """The pressure in one place.

    **Attributes:**

    - `place`: `"the machine"`, or the path of a control group.
    - `memory`, `io`, `cpu`: each None where it is not told; `missing` of the report says why.
    """

    place: str
    memory: Psi | None
    io: Psi | None
    cpu: Psi | None


@dataclasses.dataclass(frozen=True)
class Pressure(Report):
    """The pressure on this machine, when it was read. Prints as a table.

    **Attributes:**

    - `verdict`: `"calm"`, `"reclaiming"`, `"danger"`; `"unknown"` where neither pressure nor room is told.
    - `why`: the figure that decided.
    - `stalls`: the verdict by the pressure alone; `"unknown"` where none is told.
    - `at`: when it was read, seconds since 1970.
    - `machine`, `group`: the pressure on all tasks, and on those of the own control group (version 2), or None.
    - `host`: bytes of memory and swap, `total` and free; None where they are not told.
    - `rooms`: what may still be taken, for each place with a limit, the least first.
    - `oomd`: what systemd-oomd would act on.
    - `missing`: what could not be read, and why.
    """

    verdict: Verdict
    why: str
    stalls: Verdict
    at: float
    machine: Pressures
    group: Pressures | None
    host: HostMemory | None
    rooms: tuple[Room, ...]
    oomd: Oomd
    missing: tuple[str, ...]

    @property
    def room(self) -> Room | None:
        """The place that has the least left, which binds first."""
        return self.rooms[0] if self.rooms else None

    def lines(self) -> Iterator[Line]:
        yield Line(f"{self.verdict}: {self.why}", _STYLES[self.verdict])
        table = [line for place in (self.machine, self.group) if place is not None for line in _table(place)]
        if table:
            yield Line(f"{'tasks waited, of the last':<24}{'10 s':>7}{'60 s':>9}{'300 s':>9}{'in all':>12}", "title")
            yield from table
        for i, room in enumerate(self.rooms):
            name = "may still be taken" if i == 0 else ""
            yield Line(f"{name:<19}{format_bytes(room.left):>9} of {format_bytes(room.limit)}, {room.binds}")
        if self.host is not None and self.host.swap_total:
            free, total = format_bytes(self.host.swap_free), format_bytes(self.host.swap_total)
            yield Line(f"{'free swap':<19}{free:>9} of {total}")
        yield from _watched(self.oomd)
        for each in self.missing:
            yield Line(f"not told: {each}", "dim")


def pressure(*, root: Path = ROOT) -> Pressure:
    """Tell how much this machine waits for memory, and what room is left::

        danger      some `full avg10` >= 20 %, or >= half of systemd-oomd's limit for a unit around this process,
                    or room < 2 % of the limit that binds
        reclaiming  some `some avg10` >= 5 %, or room < 5 %
        calm        neither
        room        min(MemAvailable, limit - usage + reclaimable page cache of each control group)

    Pressure is read for the machine and for the own control group. A part that cannot be read is named in `missing`;
    the verdict is then by the rest.

    **Arguments:**

    - `root`: the root of the file system.

    **Returns:** a `Pressure`, which prints as a table and goes to JSON.

    >>> found = pressure()
    >>> found.verdict in ("calm", "reclaiming", "danger", "unknown")
    True
    >>> found.room is None or found.room.left >= 0
    True
    """
    return look(oomd(root=root), root=root)


def look(watched: Oomd, *, root: Path = ROOT) -> Pressure:
    """The same, for who looks often and asks once what systemd-oomd watches."""
    missing: list[str] = []
    machine = _pressures("the machine", root / "proc/pressure", "", missing)
    folder, path = next(iter(pressure_folders(root=root).items()), (None, ""))
    group = None
    if folder is None:
        missing.append("pressure of the own control group: there is none of version 2")
    elif (folder / "cgroup.events").exists():  # the top group of all has none, and its pressure is the machine's
        group = _pressures(path, folder, ".pressure", missing)
    host = host_memory(root=root)
    if host is None:
        missing.append(f"memory of the host: {root / 'proc/meminfo'} does not tell MemAvailable")
    left = rooms(host, memory_cgroups(root=root))
    by_stalls, by_room = _by_stalls(machine, group, watched), _by_room(left)
    worst = max(by_stalls, by_room, key=lambda found: _WORSE.index(found[0]))  # of two that are equal the first
    return Pressure(*worst, by_stalls[0], time.time(), machine, group, host, left, watched, tuple(missing))


def _pressures(place: str, folder: Path, suffix: str, missing: list[str]) -> Pressures:
    found: list[Psi | None] = []
    errors: list[str] = []
    for resource in ("memory", "io", "cpu"):
        try:
            found.append(read_psi(folder / f"{resource}{suffix}"))
        except OSError as error:
            found.append(None)
            errors.append(f"{resource}: {error.strerror}")
    missing += [f"pressure of {place} on {each}" for each in errors]
    return Pressures(place, *found)


def _by_stalls(machine: Pressures, group: Pressures | None, watched: Oomd) -> tuple[Verdict, str]:
    memory = [(each.place, each.memory) for each in (machine, group) if each is not None and each.memory is not None]
    full = [(place, psi.full.avg10, DANGER) for place, psi in memory if psi.full is not None]
    if watched.running is not False:
        full += [(rule.unit, now, rule.limit / 2) for rule in watched.rules if (now := _full(rule.folder)) is not None]
    for place, now, bound in full:
        if now >= bound:
            found = f"all tasks of {place} waited for memory in {now:.1f} % of the last 10 s"
            return "danger", f"{found}; danger is from {bound:.0f} %"
    if not memory:
        return "unknown", "the pressure is not told"
    place, now = max(((place, psi.some.avg10) for place, psi in memory), key=lambda found: found[1])
    found = f"some task of {place} waited for memory in {now:.1f} % of the last 10 s"
    return ("reclaiming", found) if now >= RECLAIMING else ("calm", found)


def _by_room(left: tuple[Room, ...]) -> tuple[Verdict, str]:
    if not left:
        return "unknown", "neither the pressure nor the room is told"
    verdict: Verdict = "calm"
    room = left[0]
    for each in left:
        if each.kills and (each.left < NONE_LEFT * each.limit or not each.left):
            verdict, room = "danger", each
            break
        if verdict == "calm" and (each.left < SCARCE * each.limit or not each.left):
            verdict, room = "reclaiming", each
    return verdict, f"{format_bytes(room.left)} are left of {format_bytes(room.limit)}, by {room.binds}"


def _full(folder: Path) -> float | None:
    try:
        found = read_psi(folder / "memory.pressure").full
    except OSError:
        return None
    return None if found is None else found.avg10


def _table(place: Pressures) -> Iterator[Line]:
    told = [(name, psi) for name, psi in (("memory", place.memory), ("I/O", place.io), ("CPU", place.cpu)) if psi]
    if told:
        yield Line(place.place)
    for name, psi in told:
        for kind, stalls in (("some", psi.some), ("full", psi.full)):
            if stalls is not None:
                shares = "".join(f"{share:>7.1f} %" for share in (stalls.avg10, stalls.avg60, stalls.avg300))
                yield Line(f"  {name:<12}{kind:<10}{shares}{stalls.total / 1e6:>10.1f} s")


def _watched(found: Oomd) -> Iterator[Line]:
    if found.running is False:
        yield Line("systemd-oomd does not run")
        return
    for rule in found.rules:
        where = f"{rule.unit}: all tasks of it waiting more than {rule.limit:.0f} % of the time for {rule.duration}"
        yield Line(f"systemd-oomd kills a group of {where}", "warn")
    if found.missing or found.running is None:
        why = f" ({found.missing})" if found.missing else ""
        kills = f"where it watches, it kills above {found.limit:.0f} % for {found.duration}"
        yield Line(f"systemd-oomd cannot be seen from here{why}; {kills}", "dim")
    elif not found.rules:
        yield Line("systemd-oomd runs, and watches no unit around this process for pressure")
