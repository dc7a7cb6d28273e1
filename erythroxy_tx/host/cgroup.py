"""The control groups that a process lives in: what they hold, what they may hold, and whom they killed. Not here: the
pressure on them (`pressure.py`), and what a kill means (`kills/`).

Version 2 is one tree; version 1 has a tree for each resource; in a hybrid the memory is counted by version 1 and the
pressure by version 2. A container sees its own group as the root of the mount.
Source: kernel documentation, admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst.
"""

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from pathlib import PurePosixPath
from typing import Literal

from erythroxy_tx.host.files import ROOT
from erythroxy_tx.host.files import counters
from erythroxy_tx.host.files import number
from erythroxy_tx.host.files import text

_UNLIMITED = 2**60  # version 1 writes no limit as the largest multiple of a page


@dataclasses.dataclass(frozen=True)
class Cgroup:
    """The memory of one control group, when it was read.

    **Attributes:**

    - `path`: as the kernel names it, such as `/user.slice/user-1000.slice`.
    - `folder`: where its files are.
    - `version`: 1 or 2.
    - `usage`, `peak`: bytes held now, page cache included, and at the most. None where the kernel does not say.
    - `anon`, `file`: bytes of the processes' own memory, and of page cache that can be reclaimed, which tmpfs and
        shared memory cannot.
    - `limit`: bytes past which the kernel kills (`memory.max`); None where there is no limit.
    - `high`: bytes past which it slows down and reclaims (`memory.high`); None for no limit, and in version 1.
    - `swap_usage`, `swap_limit`: bytes; in version 1 the limit is that of memory and swap together, less `limit`.
    - `kills`: how many processes the kernel has killed for want of memory in this group and, in version 2, in those
        below it.
    """

    path: str
    folder: Path
    version: Literal[1, 2]
    usage: int | None
    peak: int | None
    anon: int | None
    file: int | None
    limit: int | None
    high: int | None
    swap_usage: int | None
    swap_limit: int | None
    kills: int | None


def memory_cgroups(pid: int | None = None, *, root: Path = ROOT) -> tuple[Cgroup, ...]:
    """The groups that count the memory of a process, from its own up to the top.

    **Arguments:**

    - `pid`: the process; None is this one.
    - `root`: the root of the file system.

    **Returns:** an empty tuple where there are no control groups, such as on another system, and for a process that
    has ended.

    >>> for group in memory_cgroups():
    ...     assert group.path.startswith("/")
    """
    paths = _paths(pid, root)
    controller, read = ("memory", _version_1) if "memory" in paths else ("", _version_2)
    return tuple(read(folder, name) for folder, name in _upwards(controller, paths, root))


def pressure_folder(pid: int | None = None, *, root: Path = ROOT) -> Path | None:
    """The folder of the version 2 group of a process, which has its pressure files; None where there is none."""
    return next(iter(pressure_folders(pid, root=root)), None)


def pressure_folders(pid: int | None = None, *, root: Path = ROOT) -> dict[Path, str]:
    """The folders of the version 2 groups of a process, from its own up to the top, each with the group's name."""
    return dict(_upwards("", _paths(pid, root), root))


def _paths(pid: int | None, root: Path) -> dict[str, str]:
    """The group of a process for each controller; that of version 2 under the empty name."""
    lines = (text(root / "proc" / (str(pid) if pid is not None else "self") / "cgroup") or "").splitlines()
    parts = [line.split(":", 2) for line in lines]
    return {name: part[2] for part in parts if len(part) == 3 for name in part[1].split(",")}


def _mounts(root: Path) -> Iterator[tuple[str, Path, PurePosixPath]]:
    """Each controller, where it is mounted, and the group that is the root of the mount."""
    for line in (text(root / "proc/self/mountinfo") or "").splitlines():
        mounted, _, kind = line.partition(" - ")
        fields, about = mounted.split(" "), kind.split(" ")
        if len(fields) >= 5 and about[0] in {"cgroup", "cgroup2"}:
            top, mount = map(_unescaped, fields[3:5])
            for name in [""] if about[0] == "cgroup2" else about[-1].split(","):
                yield name, root / mount.lstrip("/"), PurePosixPath(top)


def _unescaped(field: str) -> str:
    """The kernel writes a space, a tab, a newline and a backslash of a path as an octal number."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _upwards(controller: str, paths: dict[str, str], root: Path) -> Iterator[tuple[Path, str]]:
    """The folders and names of a process's group and those around it, as far as they can be seen; the nearest first."""
    mounts = [(mount, top) for name, mount, top in _mounts(root) if name == controller]
    if controller not in paths or not mounts:
        return
    group = PurePosixPath(paths[controller])
    mount, top = next((each for each in mounts if group.is_relative_to(each[1])), mounts[0])
    # A group outside of this namespace has `..` in its path, or is not under the root of the mount.
    inside = group.relative_to(top) if group.is_relative_to(top) and ".." not in group.parts else PurePosixPath()
    for step in (inside, *inside.parents):
        if os.path.isdir(mount / step):  # noqa: PTH112  # that of pathlib raises where a folder may not be searched
            yield mount / step, str("/" / step)


def _version_2(folder: Path, path: str) -> Cgroup:
    stat, events = counters(folder / "memory.stat"), counters(folder / "memory.events")
    return Cgroup(
        path=path,
        folder=folder,
        version=2,
        usage=number(folder / "memory.current"),
        peak=number(folder / "memory.peak"),
        anon=stat.get("anon"),
        file=_sum(stat, "active_file", "inactive_file"),
        limit=number(folder / "memory.max"),
        high=number(folder / "memory.high"),
        swap_usage=number(folder / "memory.swap.current"),
        swap_limit=number(folder / "memory.swap.max"),
        kills=events.get("oom_kill"),
    )


def _version_1(folder: Path, path: str) -> Cgroup:
    stat, control = counters(folder / "memory.stat"), counters(folder / "memory.oom_control")
    limit, both = _limit(folder, "memory.limit_in_bytes"), _limit(folder, "memory.memsw.limit_in_bytes")
    return Cgroup(
        path=path,
        folder=folder,
        version=1,
        usage=number(folder / "memory.usage_in_bytes"),
        peak=number(folder / "memory.max_usage_in_bytes"),
        anon=stat.get("total_rss"),
        file=_sum(stat, "total_active_file", "total_inactive_file"),
        limit=limit,
        high=None,
        swap_usage=stat.get("total_swap"),
        swap_limit=None if both is None or limit is None else both - limit,
        kills=control.get("oom_kill"),
    )


def _limit(folder: Path, name: str) -> int | None:
    found = number(folder / name)
    return None if found is None or found >= _UNLIMITED else found


def _sum(stat: dict[str, int], *names: str) -> int | None:
    return sum(stat[name] for name in names) if all(name in stat for name in names) else None
