"""The words of systemd-oomd, from systemd 247 on. Not here: those of systemd about the units that it killed.

Until 259 it says "Killed" once it has; from 260 on "Marked" when it is about to, and only systemd says the rest.
Sources: src/oom/oomd-manager.c and oomd-util.c of systemd.
"""

import dataclasses
import re

from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.kill import Sign
from erythroxy_tx.host.kills.kill import SignKind
from erythroxy_tx.host.kills.kill import Told
from erythroxy_tx.host.kills.kill import unit_of
from erythroxy_tx.host.kills.records import Record

_DECIDED = re.compile(r"(Killed|Marked) (/.*?)(?: for killing)? due to (.*)")
_PRESSURE = re.compile(
    r"(?a)memory pressure for (/.*) being (\d{1,3}\.\d\d)% > (\d{1,3}\.\d\d)% for > ([\w .]+) with reclaim activity"
)
_SWAP = re.compile(
    r"(?a)(?:memory used \((\d{1,19})\) / total \((\d{1,19})\) and )?"
    r"swap used \((\d{1,19})\) / total \((\d{1,19})\) being more than (\d{1,3}(?:\.\d\d)?)%"
)
_NO_KILL: tuple[tuple[str, SignKind, str], ...] = (
    (r"Rule '.*' conditions met ", "rule", "a rule of systemd-oomd was met, which is not yet a kill"),
    (r"Failed to (?:kill|select) ", "failed", "systemd-oomd tried to kill and failed"),
    (r"oomd attempting to kill ", "failed", "systemd-oomd tried to kill; this line does not say that it did"),
    (r"(?:Memory pressure for|Memory used|Swap used) ", "announced", "systemd-oomd saw its limit passed"),
)
_SPAN = re.compile(r"(?a)(\d{1,9}(?:\.\d{1,6})?)(ms|s|min|h|d)")
_SECONDS = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}


def read(record: Record) -> Told | None:
    """What systemd-oomd tells of a kill; None for anything else, and for anybody else."""
    if record.speaker != "systemd-oomd":
        return None
    if found := _DECIDED.fullmatch(record.said):
        verb, cgroup, why = found.groups()
        kill = _decided(cgroup, why)
        if verb == "Killed":
            return Told(record, "killed", kill)
        text = f"systemd-oomd chose {unit_of(cgroup) or cgroup}; no line here says that it killed it"
        return Told(record, "marked", kill, Sign("marked", text, record.line))
    for pattern, kind, text in _NO_KILL:
        if re.match(pattern, record.said):
            return Told(record, "detail", Kill("systemd-oomd"), Sign(kind, text, record.line))
    return None


def _decided(cgroup: str, why: str) -> Kill:
    kill = Kill("systemd-oomd", cgroup=cgroup)
    if found := _PRESSURE.match(why):
        pressure, limit = float(found[2]), float(found[3])
        return dataclasses.replace(
            kill,
            reason="memory-pressure",
            limit_of=found[1],
            pressure=pressure,
            limit=limit,
            seconds=_seconds(found[4]),
        )
    if found := _SWAP.match(why):
        used, total, swap_used, swap_total = (int(text) if text else None for text in found.groups()[:4])
        return dataclasses.replace(
            kill,
            reason="swap" if used is None else "memory-and-swap",
            memory_used=used,
            memory_total=total,
            swap_used=swap_used,
            swap_total=swap_total,
            limit=float(found[5]),
        )
    return kill


def _seconds(span: str) -> float | None:
    """`1min 30s` in seconds."""
    parts = _SPAN.findall(span)
    if " ".join(f"{count}{unit}" for count, unit in parts) != span:
        return None
    return sum(float(count) * _SECONDS[unit] for count, unit in parts)
