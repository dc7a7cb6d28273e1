"""What the machine under JAX offers: disks, memory, GPUs, and the unit of systemd around this process."""

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from erythroxy_tx.host.cgroup import memory_cgroups
from erythroxy_tx.host.devices import idle_devices
from erythroxy_tx.host.files import ROOT
from erythroxy_tx.host.files import text
from erythroxy_tx.host.nvml import Device
from erythroxy_tx.host.room import Room
from erythroxy_tx.host.room import host_memory
from erythroxy_tx.host.room import rooms

_IN_MEMORY = {"tmpfs", "ramfs"}
_GPU_FILES = ("dev/nvidia0", "dev/nvidiactl", "dev/dxg", "dev/kfd")  # NVIDIA, in a container, in WSL 2, AMD
_OF_UNIT = "ManagedOOMMemoryPressure,MemoryHigh,MemoryMax,MemorySwapMax"


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder that a run writes to.

    **Attributes:**

    - `role`: `"working folder"`, `"temporary folder"` or `"compilation cache"`.
    - `path`: where.
    - `free`, `total`: bytes of its disk.
    - `in_memory`: whether it is a tmpfs.
    - `is_temporary`: whether it is under the temporary folder.
    """

    role: str
    path: Path
    free: int
    total: int
    in_memory: bool = False
    is_temporary: bool = False


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a look at the machine found. `gpus` is None where they cannot be listed, `unit` empty without systemd."""

    rooms: tuple[Room, ...] = ()
    places: tuple[Place, ...] = ()
    has_gpu: bool = False
    gpus: tuple[Device, ...] | None = ()
    unit: Mapping[str, str] = dataclasses.field(default_factory=dict)


def look(environ: Mapping[str, str], cache: Path | None, *, folder: Path | None = None, root: Path = ROOT) -> Machine:
    """Look at the machine. `folder` is the working folder."""
    temporary = Path(next((environ[name] for name in ("TMPDIR", "TEMP", "TMP") if environ.get(name)), "/tmp"))  # noqa: S108
    roles = {"working folder": folder or _working_folder(), "temporary folder": temporary, "compilation cache": cache}
    found = idle_devices()
    return Machine(
        rooms=rooms(host_memory(root=root), memory_cgroups(root=root)),
        places=tuple(
            place
            for role, path in roles.items()
            if path is not None and (place := _place(role, path, temporary, root)) is not None
        ),
        has_gpu=bool(found.devices) or any((root / name).exists() for name in _GPU_FILES),
        gpus=None if found.why and not found.absent else found.devices,
        unit=_unit(root),
    )


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # deleted since
        return None


def _place(role: str, path: Path, temporary: Path, root: Path) -> Place | None:
    """None where the system does not tell of it."""
    try:
        real, temporary = path.resolve(), temporary.resolve()
        usage = shutil.disk_usage(next(p for p in (real, *real.parents) if os.path.exists(p)))  # noqa: PTH110
    except OSError:
        return None
    return Place(
        role,
        path,
        free=usage.free,
        total=usage.total,
        in_memory=_file_system(real, root) in _IN_MEMORY,
        is_temporary=role != "temporary folder" and real.is_relative_to(temporary),
    )


def _file_system(path: Path, root: Path) -> str:
    """The kind of file system that a path is on; nothing where it is not told."""
    kinds: dict[Path, str] = {}
    for line in (text(root / "proc/self/mountinfo") or "").splitlines():
        mounted, _, about = line.partition(" - ")
        if len(mounted.split(" ")) > 4:
            kinds[Path(mounted.split(" ")[4])] = about.split(" ")[0]
    return next((kinds[above] for above in (path, *path.parents) if above in kinds), "")


def _unit(root: Path) -> dict[str, str]:
    """The properties of the unit that this process runs in, and `oomd`, whether systemd-oomd is active."""
    groups = memory_cgroups(root=root)
    name = next(
        (part for group in groups for part in [Path(group.path).name] if part.endswith((".service", ".scope"))), ""
    )
    if not name or not (root / "run/systemd/system").exists():
        return {}
    user = ["--user"] if any("/user@" in group.path for group in groups) else []
    told = _systemctl(*user, "show", name, f"--property={_OF_UNIT}")
    properties = dict(line.partition("=")[::2] for line in told.splitlines() if "=" in line)
    return {**properties, "Id": name, "oomd": _systemctl("is-active", "systemd-oomd").strip()} if properties else {}


def _systemctl(*arguments: str) -> str:
    try:
        done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, timeout=2.0, check=False)  # noqa: S603, S607
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
