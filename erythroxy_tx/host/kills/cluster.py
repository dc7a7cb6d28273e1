"""The lines that tell of one kill, and what they tell together. Not here: how they are found (`pairing.py`)."""

from typing import Any

from erythroxy_tx.host.kills.kill import EITHER
from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.kill import Told
from erythroxy_tx.host.kills.kill import unit_of
from erythroxy_tx.host.kills.records import Clock

# Two lines that tell one of these differently are about two kills.
_FIXED = ("pid", "scope", "pressure", "seconds", "memory_used", "swap_used", "anon", "rss")


class Cluster:
    """Lines about one kill.

    **Attributes:**

    - `parts`: what each of them tells.
    """

    def __init__(self) -> None:
        self.parts: list[Told] = []
        self._facts: dict[object, object] = {}

    def add(self, part: Told) -> None:
        self.parts.append(part)
        self._facts = {**_facts(part), **self._facts}

    def agrees(self, part: Told) -> bool:
        """Whether another line may be about the same kill."""
        return all(self._facts.get(name, fact) == fact for name, fact in _facts(part).items())

    def is_kill(self) -> bool:
        kinds = {part.kind for part in self.parts}
        return bool(kinds & {"killed", "result"}) or ("chosen" in kinds and "spared" not in kinds)

    def is_decided(self) -> bool:
        """Whether systemd-oomd itself tells of it, which it does for each group that it decides on."""
        return any(part.kill.killer == "systemd-oomd" and part.kill.cgroup for part in self.parts)

    def may_be_of(self, part: Told, reach: float) -> bool:
        """Whether a line may be about the same by its time; that of a process also where no clocks can be compared."""
        time = part.record.time
        own = [each.record.time for each in self.parts if each.record.time.kind == time.kind]
        return all(_apart(each, time) <= reach for each in own) and (bool(own) or part.kill.pid is not None)

    def clock(self) -> Clock:
        return self.parts[0].record.time

    def whole(self) -> Kill:
        """The kill; what several lines tell is taken from the first."""
        known: dict[str, Any] = {}
        for part in self.parts:
            for name, value in vars(part.kill).items():
                if known.get(name) is None:
                    known[name] = value
        unit = unit_of(known["cgroup"]) or known["unit"]
        of_unit = [part.kill for part in self.parts if part.kill.unit == unit]
        records = [part.record for part in self.parts]
        known |= {
            "killer": next((part.kill.killer for part in self.parts if part.kill.killer != EITHER), EITHER),
            "unit": unit,
            "signal": self.parts[-1].kill.signal,
            "processes": next((kill.processes for kill in of_unit if kill.processes is not None), None),
            "peak": next((kill.peak for kill in of_unit if kill.peak is not None), None),
            "when": next((record.when for record in records if record.when), None),
            "time": next((record.time.seconds for record in records if record.time.kind == "unix"), None),
            "evidence": tuple({record.said: record.line for record in reversed(records)}.values())[::-1],
        }
        return Kill(**known)


def _apart(one: Clock, other: Clock) -> float:
    """Seconds between two clocks of one kind; of two days, as if one followed the other."""
    apart = abs(one.seconds - other.seconds)
    return apart if one.day == other.day else 86400 - apart


def _facts(part: Told) -> dict[object, object]:
    kill = part.kill
    facts: dict[object, object] = {name: getattr(kill, name) for name in _FIXED}
    facts["host"] = part.record.host
    if part.kind == "result":  # a unit has one each time that it ends
        facts["result", kill.unit, part.record.time.kind] = part.record.time
    facts["chosen"] = (kill.cgroup, kill.limit_of) if part.kind == "chosen" else None
    facts["processes", kill.unit] = kill.processes  # a unit around it may count others
    facts["killer"] = None if kill.killer == EITHER else kill.killer
    facts["is earlyoom"] = kill.killer == "earlyoom"
    return {name: fact for name, fact in facts.items() if fact is not None}
