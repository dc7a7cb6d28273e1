"""The words of the kernel when it is out of memory, from version 3 to 6. Not here: those of systemd about it.

Sources: mm/oom_kill.c and mm/memcontrol.c of Linux.
"""

import re

from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.kill import Scope
from erythroxy_tx.host.kills.kill import Sign
from erythroxy_tx.host.kills.kill import Told
from erythroxy_tx.host.kills.records import Record

# Each number is followed by what the kernel writes after it, so that a line that was cut off gives none. A cgroup or a
# process may have any name: the last `,task=` and the last `,pid=` are the kernel's own.
_CHOSEN = re.compile(r"(?a)oom-kill:constraint=CONSTRAINT_(\w+),(.*),task=(.{0,64}),pid=(\d{1,10}),uid=\d.*")
_OUT = r"(?:(Memory cgroup out of memory|Out of memory)(?: \(oom_kill_allocating_task\))?: )"
_KILLED = re.compile(
    rf"(?a){_OUT}?Killed process (\d{{1,10}})(?:, UID \d+)?,? \((.{{0,64}}?)\),? (?:UID \d+, )?"
    r"total-vm:(?!\d*k?B?\))(.*)"
)
_ANON = re.compile(r"(?a).*\banon-rss:(\d{1,15})kB")
_REAPED = re.compile(r"(?a)oom_reaper: (?:reaped process |unable to reap pid:)(\d{1,10}) \((.{0,64}?)\)")
_SPARED = re.compile(rf"(?a){_OUT}(?:OOM victim|Kill process) (\d{{1,10}}) \(.{{0,64}}?\) (is already exiting|score )")
_GROUP = re.compile(r"Tasks in (.*) are going to be killed due to memory\.oom\.group set")
_USAGE = re.compile(r"(?a)memory: usage \d{1,15}kB, limit (\d{1,15})kB, failcnt \d+.*")
_STATS = re.compile(r"Memory cgroup stats for (/.*?):.*")
_INVOKED = re.compile(r"(.{1,64}?) invoked oom-killer: ")

_SCOPES: dict[str, Scope] = {"NONE": "global", "MEMCG": "cgroup", "CPUSET": "cpuset", "MEMORY_POLICY": "mempolicy"}


def read(record: Record) -> Told | None:
    """What the kernel tells of a kill; None for anything else, and for anybody else."""
    if record.speaker not in {"kernel", None}:
        return None
    said = record.said
    if found := _CHOSEN.fullmatch(said):
        return _chosen(record, found)
    if (found := _KILLED.match(said)) and (found[1] or record.speaker):
        anon = _ANON.match(found[4])
        kill = Kill(
            "kernel",
            scope=_scope(found[1]),
            pid=int(found[2]),
            comm=found[3],
            anon=int(anon[1]) * 1024 if anon else None,
        )
        return Told(record, "killed", kill)
    if found := _REAPED.match(said):
        return Told(record, "killed", Kill("kernel", pid=int(found[1]), comm=found[2]))
    if found := _SPARED.match(said):
        then = "did not kill it" if "exiting" in found[3] else "this line does not say that it killed it"
        sign = Sign("spared", f"the kernel chose process {found[2]}; {then}", record.line)
        return Told(record, "spared", Kill("kernel", scope=_scope(found[1]), pid=int(found[2])), sign)
    if found := _GROUP.match(said):
        return Told(record, "detail", Kill("kernel", cgroup=found[1]))
    if found := _USAGE.fullmatch(said):
        return Told(record, "detail", Kill("kernel", limit_bytes=int(found[1]) * 1024))
    if found := _STATS.fullmatch(said):
        return Told(record, "detail", Kill("kernel", limit_of=found[1]))
    if found := _INVOKED.match(said):
        sign = Sign("invoked", f"the kernel looked for a victim when {found[1]} asked for memory", record.line)
        return Told(record, "detail", Kill("kernel"), sign)
    return None


def _chosen(record: Record, found: re.Match[str]) -> Told:
    around, _, cgroup = found[2].partition(",task_memcg=")
    kill = Kill(
        "kernel",
        scope=_SCOPES.get(found[1]),
        pid=int(found[4]),
        comm=found[3],
        cgroup=cgroup or None,
        limit_of=around.partition(",oom_memcg=")[2] or None,
    )
    return Told(record, "chosen", kill)


def _scope(words: str | None) -> Scope | None:
    """`Out of memory` may be the machine, a cpuset or a policy: which of them only the line `oom-kill:` tells."""
    return "cgroup" if words and words.startswith("Memory cgroup") else None
