"""How much memory a process may still take: the least that the host and each control group around it have left. Not
here: the wait for it (`headroom.py`).
"""

import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path

import psutil

from erythroxy_tx.host.cgroup import Cgroup
from erythroxy_tx.host.files import ROOT
from erythroxy_tx.host.files import text


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """The memory of the machine, in bytes.

    **Attributes:**

    - `total`, `available`: what there is, and what can be had without swapping, reclaimable page cache included.
    - `swap_total`, `swap_free`: likewise for swap.
    """

    total: int
    available: int
    swap_total: int
    swap_free: int


@dataclasses.dataclass(frozen=True)
class Room:
    """What is left in one place, in bytes.

    **Attributes:**

    - `binds`: the place: `"the host"`, or a control group with its limit, such as `"memory.max of /job"`.
    - `left`: what may still be taken: of the host `MemAvailable`; of a group limit - usage + page cache that can be
        reclaimed, and at least 0.
    - `limit`: the most that could ever be left: all memory of the host, or the limit.
    - `kills`: whether the kernel kills where nothing is left; past `memory.high` it only slows down.
    """

    binds: str
    left: int
    limit: int
    kills: bool


def host_memory(*, root: Path = ROOT) -> HostMemory | None:
    """Read the memory of the machine; None where it is not told."""
    if root == ROOT and not (root / "proc/meminfo").exists():
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        return HostMemory(int(memory.total), int(memory.available), int(swap.total), int(swap.free))
    lines = (line.split() for line in (text(root / "proc/meminfo") or "").splitlines())
    kib = {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) == 3 and line[1].isdecimal()}
    names = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
    return HostMemory(*(kib[name] * 1024 for name in names)) if all(name in kib for name in names) else None


def rooms(host: HostMemory | None, groups: Sequence[Cgroup]) -> tuple[Room, ...]:
    """What is left in every place that has a limit, the least first; of two that are equal the outer one first."""
    return tuple(sorted(_rooms(host, groups), key=lambda room: room.left))


def _rooms(host: HostMemory | None, groups: Sequence[Cgroup]) -> Iterator[Room]:
    """The outermost first."""
    if host is not None:
        yield Room("the host", host.available, host.total, kills=True)
    for group in reversed(groups):
        kills = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
        for name, limit in ((kills, group.limit), ("memory.high", group.high)):
            if limit is not None and group.usage is not None:
                left = min(limit, limit - group.usage + (group.file or 0))
                yield Room(f"{name} of {group.path}", max(0, left), limit, name == kills)
