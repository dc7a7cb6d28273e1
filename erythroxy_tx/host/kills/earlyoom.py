"""The words of earlyoom. Not here: those of other programs that kill early.

It sends SIGTERM first, and waits. Source: kill.c of earlyoom.
"""

import re

from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.kill import Sign
from erythroxy_tx.host.kills.kill import Told
from erythroxy_tx.host.kills.records import Record

_SENT = re.compile(
    r'(?a)(?:sending SIG(TERM|KILL) to|killing) process (\d{1,10}) (?:uid \d+ )?"(.{0,64}?)"'
    r"(?: with signal (15|9))?: (?:badness|oom_score) (.*)"
)
_RSS = re.compile(r"(?a).*?, VmRSS (\d{1,9}) MiB")
_NOT_SENT = re.compile(r"kill failed: |dryrun, not actually sending any signal")


def read(record: Record) -> Told | None:
    """What earlyoom tells of a kill; None for anything else, and for anybody else."""
    if record.speaker not in {"earlyoom", None}:
        return None
    if found := _SENT.match(record.said):
        rss = _RSS.match(found[5])
        kill = Kill(
            "earlyoom",
            pid=int(found[2]),
            comm=found[3],
            signal="TERM" if found[1] == "TERM" or found[4] == "15" else "KILL",
            rss=int(rss[1]) * 2**20 if rss else None,
        )
        sign = Sign("failed", f"earlyoom chose process {found[2]}, and says that it failed to kill it", record.line)
        return Told(record, "killed", kill, sign)
    if record.said.startswith("escalating to SIGKILL after "):
        return Told(record, "escalated", Kill("earlyoom"))
    if _NOT_SENT.match(record.said):
        return Told(record, "failed", Kill("earlyoom"))
    return None
