"""The control groups that a process lives in: what they hold, what they may hold, and whom they killed. Not here: the
pressure on them (`pressure.py`), and what a kill means (`kills/`).

Version 2 is one tree; version 1 has a tree for each resource; in a hybrid the memory is counted by version 1 and the
pressure by version 2. A container sees its own group as the root of the mount.
Source: kernel documentation, admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst.
"""

import dataclasses
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
    - `anon`, `file`: bytes of the processes' own memory, and of page cache, which can be reclaimed.
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

    **Returns:** an empty tuple where there are no control groups, such as on another system.

    >>> for group in memory_cgroups():
    ...     assert group.path.startswith("/")
    """
    found = _memory_tree(pid, root)
    if found is None:
        return ()
    version, mount, path = found
    read = _version_2 if version == 2 else _version_1
    return tuple(read(folder, name) for folder, name in _upwards(mount, path))


def pressure_folder(pid: int | None = None, *, root: Path = ROOT) -> Path | None:
    """The folder of the version 2 group of a process, which has its pressure files; None where there is none."""
    paths, mounts = _paths(pid, root), _mounts(root)
    if "" not in paths or "" not in mounts:
        return None
    folder, _ = next(_upwards(mounts[""], paths[""]))
    return folder


def _memory_tree(pid: int | None, root: Path) -> tuple[int, tuple[Path, str], str] | None:
    paths, mounts = _paths(pid, root), _mounts(root)
    if "memory" in paths and "memory" in mounts:
        return 1, mounts["memory"], paths["memory"]
    if "" in paths and "" in mounts:
        return 2, mounts[""], paths[""]
    return None


def _paths(pid: int | None, root: Path) -> dict[str, str]:
    """The group of a process for each controller; that of version 2 under the empty name."""
    lines = (text(root / "proc" / (str(pid) if pid is not None else "self") / "cgroup") or "").splitlines()
    parts = [line.split(":", 2) for line in lines]
    return {name: part[2] for part in parts if len(part) == 3 for name in part[1].split(",")}


def _mounts(root: Path) -> dict[str, tuple[Path, str]]:
    """Where each controller is mounted, and the group that is the root of the mount."""
    found: dict[str, tuple[Path, str]] = {}
    for line in (text(root / "proc/self/mountinfo") or "").splitlines():
        mounted, _, kind = line.partition(" - ")
        fields, about = mounted.split(" "), kind.split(" ")
        if len(fields) < 5 or not about[0].startswith("cgroup"):
            continue
        place = root / fields[4].lstrip("/"), fields[3]
        names = [""] if about[0] == "cgroup2" else about[-1].split(",")
        for name in names:
            found.setdefault(name, place)
    return found


def _upwards(mount: tuple[Path, str], path: str) -> Iterator[tuple[Path, str]]:
    folder, top = mount
    inside = PurePosixPath(path)
    if top != "/" and inside.is_relative_to(top):
        inside = PurePosixPath("/") / inside.relative_to(top)
    if ".." in inside.parts or not (folder / str(inside).lstrip("/")).is_dir():
        inside = PurePosixPath("/")  # a group outside of this namespace: the nearest that can be seen
    for step in (inside, *inside.parents):
        yield folder / str(step).lstrip("/"), str(step)


def _version_2(folder: Path, path: str) -> Cgroup:
    stat, events = counters(folder / "memory.stat"), counters(folder / "memory.events")
    return Cgroup(
        path=path,
        folder=folder,
        version=2,
        usage=number(folder / "memory.current"),
        peak=number(folder / "memory.peak"),
        anon=stat.get("anon"),
        file=stat.get("file"),
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
        file=stat.get("total_cache"),
        limit=limit,
        high=None,
        swap_usage=stat.get("total_swap"),
        swap_limit=None if both is None or limit is None else both - limit,
        kills=control.get("oom_kill"),
    )


def _limit(folder: Path, name: str) -> int | None:
    found = number(folder / name)
    return None if found is None or found >= _UNLIMITED else found
