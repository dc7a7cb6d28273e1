"""What is known of a kill, and what one line of a log tells of it. Not here: which lines those are (one file for each
speaker), and which of them tell of the same kill (`pairing.py`).
"""

import dataclasses
from typing import Literal

from erythroxy_tx.host.kills.records import Record
from erythroxy_tx.units import format_bytes

Killer = Literal["kernel", "systemd-oomd", "earlyoom", "kernel or systemd-oomd"]
Scope = Literal["global", "cgroup", "cpuset", "mempolicy"]
Reason = Literal["memory-pressure", "memory-and-swap", "swap"]
SignKind = Literal["announced", "rule", "marked", "failed", "invoked", "spared", "sigkill", "passed-on", "allocator"]
EITHER: Killer = "kernel or systemd-oomd"
_SCOPES: dict[Scope, str] = {
    "global": "the machine had no memory left",
    "cgroup": "{group} was at its limit of memory, whatever the machine had",
    "cpuset": "the NUMA nodes of its cpuset had no memory left, whatever the machine had",
    "mempolicy": "the NUMA nodes of its memory policy had no memory left, whatever the machine had",
}
_UNIT_KINDS = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")


@dataclasses.dataclass(frozen=True)
class Kill:
    """One kill for want of memory. What no line tells is None.

    **Attributes:**

    - `killer`: `"kernel"`, `"systemd-oomd"` or `"earlyoom"`; `"kernel or systemd-oomd"` where systemd tells only that
        it was one of them.
    - `scope`: what the kernel had run out of: `"global"`, the memory of the machine; `"cgroup"`, a limit of a control
        group; `"cpuset"` or `"mempolicy"`, the NUMA nodes that the process was held to.
    - `reason`: the rule of systemd-oomd: `"memory-pressure"`, `"memory-and-swap"` or `"swap"`.
    - `pid`, `comm`: the process, and its name of at most 15 characters. systemd-oomd kills a group and names none.
    - `unit`, `cgroup`: where it was.
    - `limit_of`: the group that was at its limit of memory or of pressure; often one above `cgroup`.
    - `pressure`, `limit`: percent of time that was lost waiting for memory, and from when on systemd-oomd kills; for
        `"memory-and-swap"` the limit is percent of memory and of swap in use.
    - `seconds`: for how long the pressure was above it.
    - `memory_used`, `memory_total`, `swap_used`, `swap_total`: bytes of the machine.
    - `anon`, `rss`: bytes of the process when it was killed: without and with the pages of files.
    - `limit_bytes`: what the group that was at its limit might hold.
    - `peak`: the most bytes of the unit, to the digits that systemd prints.
    - `processes`: how many were killed.
    - `signal`: `"KILL"`, or `"TERM"`, which earlyoom sends first (exit status -15 or 143); the last that was sent.
    - `bystander`: systemd-oomd took this unit along while it decided on another one.
    - `elsewhere`: it is told of another control group than the one that asks, or one below it.
    - `when`: as the log has it; `time`: seconds since 1970, where the log tells the year and the zone.
    - `evidence`: the lines that tell of it.
    """

    killer: Killer
    scope: Scope | None = None
    reason: Reason | None = None
    pid: int | None = None
    comm: str | None = None
    unit: str | None = None
    cgroup: str | None = None
    limit_of: str | None = None
    pressure: float | None = None
    limit: float | None = None
    seconds: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    swap_used: int | None = None
    swap_total: int | None = None
    anon: int | None = None
    rss: int | None = None
    limit_bytes: int | None = None
    peak: int | None = None
    processes: int | None = None
    signal: Literal["KILL", "TERM"] = "KILL"
    bystander: bool = False
    elsewhere: bool = False
    when: str | None = None
    time: float | None = None
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        who = self.unit or self.cgroup or "some process"
        if self.pid is not None:
            who = f"process {self.pid}" + (f" ({self.comm})" if self.comm else "")
        elif self.processes is not None:
            who = f"{self.processes} processes of {who}"
        elif self.killer == "kernel":
            who = f"some process of {who}"
        did = "sent SIGTERM to" if self.signal == "TERM" else "killed"
        killer = {"kernel": "The kernel", EITHER: "The kernel or systemd-oomd"}.get(self.killer, self.killer)
        return f"{killer} {did} {who}: {self._why()}."

    def amounts(self) -> str:
        """What it held and might hold, as far as that is told."""
        held = self.anon if self.anon is not None else self.rss
        sizes = {"held": held, "limit": self.limit_bytes, "peak of the unit": self.peak}
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items() if size is not None)

    def _why(self) -> str:
        if self.scope is not None:
            return _SCOPES[self.scope].format(group=self.limit_of or "its control group")
        if self.reason == "memory-pressure":
            where = f"{self.limit_of} waited for memory in {self.pressure:.2f} % of the time"
            span = f" for more than {self.seconds:g} s" if self.seconds is not None else ""
            return f"{where}, over the limit of {self.limit:.2f} %{span}"
        if self.reason is not None:
            full = "swap was" if self.reason == "swap" else "memory and swap both were"
            return f"{full} in use to more than {self.limit:.2f} %"
        if self.bystander:
            return "it went with another unit; that it was decided on is not told"
        if self.killer == "kernel" and self.pid is not None:
            return "no memory was left; whether to the machine or to its NUMA nodes is not told"
        if self.killer == "earlyoom":
            return "memory and swap were below its thresholds"
        return "by which rule is not told"


@dataclasses.dataclass(frozen=True)
class Sign:
    """A line that has to do with memory or with a kill, and is no evidence that memory was why anything was killed.

    **Attributes:**

    - `kind`: `"announced"`, systemd-oomd saw a limit passed; `"rule"`, one of its rules was met; `"marked"`, it chose a
        group, and no line says that it killed it; `"failed"`, a kill that did not succeed; `"invoked"`, the kernel
        looked for a victim; `"spared"`, a victim that was not killed; `"sigkill"`, a signal 9 from nobody knows where;
        `"passed-on"`, a scheduler tells of a kill, of no process;
        `"allocator"`, an allocator refused memory, which is an exception and no kill.
    - `text`: the same in words.
    - `evidence`: the line.
    """

    kind: SignKind
    text: str
    evidence: str


@dataclasses.dataclass(frozen=True)
class Told:
    """What one record tells.

    **Attributes:**

    - `kind`: `"killed"`, a kill; `"chosen"`, a kill unless the victim was `"spared"`; `"marked"`, a kill if another
        line says so; `"result"`, a kill, said some time after it; `"detail"`, nothing by itself; `"failed"`, what this
        speaker has said last did not happen; `"escalated"`, it sent SIGKILL after that.
    - `kill`: what it tells of the kill, as far as it does.
    - `sign`: what remains of it where there is no kill.
    """

    record: Record
    kind: Literal["killed", "chosen", "marked", "spared", "result", "detail", "failed", "escalated"]
    kill: Kill
    sign: Sign | None = None


def unit_of(cgroup: str | None) -> str | None:
    """The unit of systemd that a control group belongs to: the outermost that is no slice, below the user's manager."""
    parts = [part for part in (cgroup or "").split("/") if part.endswith(_UNIT_KINDS)]
    managers = [number for number, part in enumerate(parts) if part.startswith("user@")]
    inside = parts[managers[-1] + 1 :] if managers else parts
    units = [part for part in inside if not part.endswith(".slice")]
    return units[0] if units else parts[-1] if parts else None
