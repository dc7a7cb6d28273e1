"""What systemd-oomd would act on: the units around a process that it watches for memory pressure, and from when on it
kills. Not here: whom it has killed (`oom.py`).

Sources: oomd.conf(5), systemd.resource-control(5), systemd-oomd.service(8).
"""

import dataclasses
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from erythroxy_tx.host.cgroup import pressure_folders
from erythroxy_tx.host.files import ROOT
from erythroxy_tx.host.files import text

LIMIT, DURATION = 60.0, "30s"  # of oomd.conf(5): "Defaults to 60%", "Defaults to 30 seconds"
_UNIT = re.compile(r".+\.(?:slice|service|scope)")
_FOLDERS = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")  # the first has the last word
_PATIENCE = 2.0  # seconds, for systemctl
_SCALE = 2**32 - 1  # systemctl shows a limit as a share of this; 0 is "not set"


@dataclasses.dataclass(frozen=True)
class OomdRule:
    """One unit around this process whose pressure systemd-oomd watches, to kill one of the groups below it.

    **Attributes:**

    - `unit`: such as `user@1000.service`.
    - `limit`: percent; it acts where `full avg10` of the unit's group is above this for longer than `duration`.
    - `duration`: as systemd writes it, such as `20s`.
    - `folder`: of the unit's group, which has its pressure files.
    """

    unit: str
    limit: float
    duration: str
    folder: Path


@dataclasses.dataclass(frozen=True)
class Oomd:
    """What is known of systemd-oomd.

    **Attributes:**

    - `running`: None where it cannot be seen, such as in a container.
    - `limit`, `duration`: what holds where a unit says nothing else, from `oomd.conf`.
    - `rules`: the units around this process that it watches.
    - `missing`: why the units are not known, or empty.
    """

    running: bool | None
    limit: float
    duration: str
    rules: tuple[OomdRule, ...]
    missing: str


def oomd(*, root: Path = ROOT) -> Oomd:
    """Ask what systemd-oomd would act on. Starts `systemctl`, which takes some milliseconds."""
    limit, duration = _defaults(root)
    units = _units(root)
    rules: list[OomdRule] = []
    if not (root / "run/systemd/system").is_dir():
        return Oomd(None, limit, duration, (), "systemd does not run here, or this is a container")
    missing = "" if units else "there are no control groups of version 2, which it needs"
    for options, names in _by_manager(list(units)).items():
        try:
            rules += _rules(units, _shown(options, names), limit, duration)
        except (OSError, subprocess.SubprocessError) as error:
            missing = f"{' '.join(('systemctl', *options))} does not tell: {_first_line(error)}"
    return Oomd(_running(units), limit, duration, tuple(rules), missing)


def _units(root: Path) -> dict[str, Path]:
    """The units around this process, the nearest first, and the folders of their groups."""
    named = {"-.slice" if path == "/" else folder.name: folder for folder, path in pressure_folders(root=root).items()}
    return {name: folder for name, folder in named.items() if _UNIT.fullmatch(name)}


def _by_manager(units: list[str]) -> dict[tuple[str, ...], list[str]]:
    """The units of the user's own manager, which are below `user@1000.service`, and those of the system."""
    first = next((i for i, unit in enumerate(units) if unit.startswith("user@")), 0)
    found = {("--user",): units[:first], (): units[first:]}
    return {options: names for options, names in found.items() if names}


def _running(units: dict[str, Path]) -> bool | None:
    top = units.get("-.slice")
    if top is None or not (top / "system.slice").is_dir():
        return None
    return bool(text(top / "system.slice/systemd-oomd.service/cgroup.procs"))


def _shown(options: tuple[str, ...], units: list[str]) -> list[dict[str, str]]:
    """The properties of each unit."""
    names = "ManagedOOMMemoryPressure,ManagedOOMMemoryPressureLimit,ManagedOOMMemoryPressureDurationUSec"
    command = ["systemctl", *options, "show", f"--property=Id,{names}", "--", *units]
    done = subprocess.run(  # noqa: S603  # a fixed program, and units that the kernel names
        command, capture_output=True, text=True, timeout=_PATIENCE, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    blocks = done.stdout.strip().split("\n\n")
    return [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]


def _rules(units: dict[str, Path], shown: list[dict[str, str]], limit: float, duration: str) -> Iterator[OomdRule]:
    for unit in shown:
        if unit.get("ManagedOOMMemoryPressure") == "kill" and unit.get("Id") in units:
            own = _percent(unit.get("ManagedOOMMemoryPressureLimit", ""))
            lasts = unit.get("ManagedOOMMemoryPressureDurationUSec", "")
            unset = lasts in {"", "[not set]", "infinity"}
            yield OomdRule(unit["Id"], own or limit, duration if unset else lasts, units[unit["Id"]])


def _defaults(root: Path) -> tuple[float, str]:
    """The limit and the duration of `oomd.conf` and its drop-ins."""
    mains = [root / folder / "oomd.conf" for folder in _FOLDERS]
    drop_ins = {
        path.name: path for folder in reversed(_FOLDERS) for path in (root / folder / "oomd.conf.d").glob("*.conf")
    }
    limit, duration = LIMIT, DURATION
    for path in [*[main for main in mains if main.is_file()][:1], *(drop_ins[name] for name in sorted(drop_ins))]:
        for line in (text(path) or "").splitlines():
            name, _, value = (part.strip() for part in line.partition("="))
            if name == "DefaultMemoryPressureLimit":
                limit = _percent(value) or LIMIT
            elif name == "DefaultMemoryPressureDurationSec":
                duration = (f"{value}s" if value.isdecimal() else value) or DURATION
    return limit, duration


def _percent(value: str) -> float:
    """`60%`, `600‰`, `6000‱`, or a share of 2**32 - 1; 0 where it is none of them."""
    scale = {"%": 1.0, "‰": 0.1, "‱": 0.01}.get(value[-1:], 100 / _SCALE)
    number = value.rstrip("%‰‱").strip()
    return float(number) * scale if re.fullmatch(r"\d+(\.\d+)?", number) else 0.0


def _first_line(error: Exception) -> str:
    said = getattr(error, "stderr", None) or str(error)
    return str(said).strip().partition("\n")[0]
