"""Which lines tell of the same kill. Not here: what a single line tells.

Lines are paired by the number of the process, never by their order, since kills interleave and lines get lost. Lines
without a number are paired with the kill of their unit that is nearest in time, or are a kill of their own.
"""

import bisect
import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator

from erythroxy_tx.host.kills import allocators
from erythroxy_tx.host.kills import earlyoom
from erythroxy_tx.host.kills import kernel
from erythroxy_tx.host.kills import oomd
from erythroxy_tx.host.kills import passed_on
from erythroxy_tx.host.kills import units
from erythroxy_tx.host.kills.cluster import Cluster
from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.kill import Sign
from erythroxy_tx.host.kills.kill import Told
from erythroxy_tx.host.kills.kill import unit_of
from erythroxy_tx.host.kills.limits import with_limits
from erythroxy_tx.host.kills.records import Record

_SAME = 30.0  # seconds between two lines about the kill of a group
_LATE = 120.0  # and until a unit has stopped, for which systemd waits 90; or until a process is reaped
_NEIGHBOURS = 16  # kills that are looked at before and after a time, so that a log of any size is read in its turn


def find_kills(records: Iterable[Record]) -> tuple[tuple[Kill, ...], tuple[Sign, ...]]:
    """The kills that records tell of, in the order of time where it is told, else of lines; and what tells of none."""
    told, signs = _listen(records)
    pairs = _Pairs()
    for part in sorted(told, key=_rank):
        pairs.add(part)
    lines = {id(part): number for number, part in enumerate(told)}
    for cluster in pairs.clusters:
        cluster.parts.sort(key=lambda part: lines[id(part)])
    kills = sorted(
        (cluster for cluster in pairs.clusters if cluster.is_kill()), key=lambda cluster: lines[id(cluster.parts[0])]
    )
    left = [part for cluster in pairs.clusters if not cluster.is_kill() for part in cluster.parts]
    signs += [part.sign for part in (*left, *pairs.left) if part.sign]
    if all(cluster.clock().kind == "unix" for cluster in kills):  # such as of `journalctl -r`
        kills.sort(key=lambda cluster: cluster.clock().seconds)
    return tuple(_with_bystanders(kills)), tuple(signs)


def _listen(records: Iterable[Record]) -> tuple[list[Told], list[Sign]]:
    told: list[Told] = []
    signs: list[Sign] = []
    sent: dict[tuple[str | None, str | None], int] = {}  # where each earlyoom has said last that it kills
    for record in records:
        part = kernel.read(record) or oomd.read(record) or units.read(record) or earlyoom.read(record)
        speaker = record.host, record.instance
        if part is None:
            sign = allocators.read(record) or passed_on.read(record)
            signs.extend([sign] if sign else [])
        elif part.kind == "escalated":
            if speaker in sent:
                kill = dataclasses.replace(told[sent[speaker]].kill, signal="KILL")
                told.append(dataclasses.replace(part, kind="detail", kill=kill))
        elif part.kind != "failed":
            if part.kill.killer == "earlyoom":
                sent[speaker] = len(told)
            told.append(part)
        elif speaker in sent:
            # One process, which does one thing after another: its next word is about its last.
            number = sent.pop(speaker)
            told[number] = dataclasses.replace(told[number], kind="spared")
    return with_limits(told), signs


def _rank(part: Told) -> int:
    """Those first that say best which kill they mean."""
    if part.kill.pid is not None:
        return 0 if part.kind != "detail" else 1
    if part.kill.cgroup is not None and part.kind != "detail":
        return 1
    return {"killed": 2, "result": 3}.get(part.kind, 4)


class _Pairs:
    """Clusters, to be found by the process, or by the unit or the group and the time."""

    def __init__(self) -> None:
        self.clusters: list[Cluster] = []
        self.left: list[Told] = []
        self._by_time: dict[tuple[str | int, str, str], list[tuple[float, int]]] = {}
        self._by_name: dict[str | int, list[int]] = {}

    def add(self, part: Told) -> None:
        number = self._find(part)
        if number is None:
            if part.kind == "detail":
                self.left.append(part)
                return
            number = len(self.clusters)
            self.clusters.append(Cluster())
        self.clusters[number].add(part)
        if part.kind != "detail":
            kind, seconds, day = part.record.time
            for name in _names(part.kill):
                bisect.insort(self._by_time.setdefault((name, kind, day), []), (seconds, number))
                self._by_name.setdefault(name, []).append(number)

    def _find(self, part: Told) -> int | None:
        """The cluster of the same kill that is nearest in time."""
        kind, seconds, day = part.record.time
        kill = part.kill
        name = kill.pid if kill.pid is not None else kill.unit or unit_of(kill.cgroup) or kill.cgroup
        if name is None:
            return None
        reach = _LATE if kill.pid is not None or part.kind in {"result", "detail"} else _SAME
        entries = self._by_time.get((name, kind, day), [])
        at = bisect.bisect_left(entries, (seconds, -1))
        near = entries[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS]
        near = sorted((abs(time - seconds), number) for time, number in near if abs(time - seconds) <= reach)
        numbers = [number for _, number in near]
        if not entries:  # told by two clocks, such as those of dmesg and the journal, or before midnight
            numbers = self._by_name.get(name, [])[-_NEIGHBOURS:]
            numbers = [number for number in numbers if self.clusters[number].may_be_of(part, reach)]
        return next((number for number in numbers if self.clusters[number].agrees(part)), None)


def _names(kill: Kill) -> set[str | int]:
    """Under what later lines may look for a kill: the process, or the unit and any group around it."""
    names: set[str | int] = set() if kill.pid is None else {kill.pid}
    return names | {name for name in (kill.unit, kill.cgroup, *(kill.cgroup or "").split("/")) if name}


def _with_bystanders(clusters: list[Cluster]) -> Iterator[Kill]:
    """systemd-oomd tells of each group that it decides on. Of those that went with it only systemd tells."""
    decisions: dict[tuple[str, str], list[float]] = {}
    for cluster in clusters:
        if cluster.is_decided():
            kind, seconds, day = cluster.clock()
            bisect.insort(decisions.setdefault((kind, day), []), seconds)
    for cluster in clusters:
        kill = cluster.whole()
        kind, seconds, day = cluster.clock()
        if kill.killer == "systemd-oomd" and not cluster.is_decided():
            near = decisions.get((kind, day), [])
            is_near = bisect.bisect_left(near, seconds - _SAME) < bisect.bisect_right(near, seconds + _SAME)
            kill = dataclasses.replace(kill, bystander=is_near)
        yield kill
