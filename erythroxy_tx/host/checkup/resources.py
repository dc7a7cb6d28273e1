"""Checks of what the host offers: memory, disks, and what the limits of systemd do not do."""

from collections.abc import Iterator

from erythroxy_tx.host.checkup.facts import Facts
from erythroxy_tx.host.checkup.finding import Finding
from erythroxy_tx.host.checkup.finding import finding
from erythroxy_tx.units import format_bytes

_SHORT, _FULL, _NEARLY = 2**30, 2**24, 2**30  # bytes: memory left, and free on a disk
_SHARE = 0.05  # of a limit on memory
_NO_LIMIT = {"", "infinity"}


def check(facts: Facts) -> Iterator[Finding]:
    """Look at memory, disks and limits."""
    yield from _memory(facts)
    yield from _disks(facts)
    yield from _unit(facts)


def _memory(facts: Facts) -> Iterator[Finding]:
    for room in facts.machine.rooms[:1]:
        if room.left < min(_SHORT, room.limit * 0.5) or room.left < room.limit * _SHARE:
            what = f"{format_bytes(room.left)} left of {format_bytes(room.limit)}"
            why = "compiling alone can take a gibibyte, and a host that is short is where systemd-oomd kills"
            yield finding("E401", room.binds, what, why=why, fix="erythroxy pressure   # who waits, and for what")


def _disks(facts: Facts) -> Iterator[Finding]:
    for place in facts.machine.places:
        where = f"{place.role} {place.path}"
        left = f"{format_bytes(place.free)} free of {format_bytes(place.total)}"
        if place.free < _FULL:
            yield finding(
                "E402", where, left, why="what is written there fails or is cut short", fix=f"df -h {place.path}"
            )
        elif place.free < _NEARLY:
            yield finding("E403", where, left, why="a checkpoint or a profile may not fit", fix=f"df -h {place.path}")
        if place.role == "temporary folder":
            continue
        if place.in_memory:
            why = "what is written there is host memory until it is deleted, and is lost at a restart"
            yield finding("E405", where, "a tmpfs", why=why, fix="use a folder on a disk")
        elif place.is_temporary and place.role == "working folder":
            why = "results that are written to relative paths go there"
            yield finding(
                "E404", where, "under the temporary folder", why=why, fix="cd ~   # or give results an absolute path"
            )


def _unit(facts: Facts) -> Iterator[Finding]:
    unit = facts.machine.unit
    name = unit.get("Id", "")
    if unit.get("ManagedOOMMemoryPressure") == "auto" and unit.get("oomd") == "active":
        why = "auto leaves it to the groups above: if one of them is watched, this unit can be killed on pressure"
        what = "ManagedOOMMemoryPressure=auto, and systemd-oomd is active"
        yield finding("E411", name, what, why=why, fix="hold less on the host: vram_resident, chunked")
    if unit.get("MemorySwapMax", "") not in _NO_LIMIT:
        what = f"MemorySwapMax={unit['MemorySwapMax']}"
        why = "without swap the kernel reclaims page cache instead, and the pressure that systemd-oomd watches rises"
        yield finding(
            "E412", name, what, why=why, fix=f"systemctl set-property --runtime {name} MemorySwapMax=infinity"
        )
