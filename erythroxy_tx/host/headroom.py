"""`wait_for_headroom`: blocks until the host has room, and is calm. Not here: what room is (`room.py`), and what is
calm (`pressure.py`).
"""

import time
from pathlib import Path

from erythroxy_tx.errors import BudgetError
from erythroxy_tx.errors import StallError
from erythroxy_tx.host.files import ROOT
from erythroxy_tx.host.oomd_rules import oomd
from erythroxy_tx.host.pressure import Pressure
from erythroxy_tx.host.pressure import look
from erythroxy_tx.host.room import Room
from erythroxy_tx.progress import progress
from erythroxy_tx.units import format_bytes
from erythroxy_tx.units import parse_bytes
from erythroxy_tx.units import parse_seconds

_PERIOD = 1.0  # seconds; the kernel renews its averages every 2


def wait_for_headroom(need: int | str, timeout: float | str | None = None, *, root: Path = ROOT) -> float:
    """Wait until this process may take `need` bytes of host memory, and the machine does not stall::

        room >= need  and  pressure is calm,  room = min(MemAvailable, limit - usage + reclaimable page cache)

    over the host and each control group around the process. Nothing is reserved: whoever else waits sees the same room.
    Pressure is calm as `pressure` says; where the kernel tells none, the room alone decides.

    **Arguments:**

    - `need`: bytes, or a string such as `"4GiB"`.
    - `timeout`: seconds, or a time such as `"10min"`; 0 looks once; None waits for ever.
    - `root`: the root of the file system.

    **Returns:** seconds waited.

    **Raises:** `BudgetError` at once if `need` is more than the host or a limit could ever have; `StallError`, a
    `TimeoutError`, with the room, what binds it, and the fix; `ValueError` for what is no byte count or time; `OSError`
    where the host does not tell its room.

    >>> wait_for_headroom("1MiB", timeout="10min") >= 0
    True
    """
    call = f"wait_for_headroom({need!r}, timeout={timeout!r})"
    size = parse_bytes(need, "wait_for_headroom got need")
    until = (
        None if timeout is None else 0.0 if timeout == 0 else parse_seconds(timeout, "wait_for_headroom got timeout")
    )
    begin = time.monotonic()
    watched = oomd(root=root)
    with progress(f"waiting for {format_bytes(size)} of host memory") as update:
        while True:
            found = look(watched, root=root)
            room = _checked(call, size, found)
            waited = time.monotonic() - begin
            if room.left >= size and found.stalls in {"calm", "unknown"}:
                return waited
            if until is not None and waited >= until:
                raise StallError(_message(call, size, found, room, waited))
            state = f"{format_bytes(room.left)} of {format_bytes(size)} by {room.binds}, {found.stalls}"
            update(f"waiting for host memory: {state}")
            time.sleep(_PERIOD if until is None else min(_PERIOD, until - waited))


def _checked(call: str, size: int, found: Pressure) -> Room:
    if found.host is None or found.room is None:  # that of a group alone may be more than the host has
        raise OSError(f"{call} cannot tell what room there is: {'; '.join(found.missing)}.")
    least = min(found.rooms, key=lambda room: room.limit)
    if size > least.limit:
        what = "has" if least.binds == "the host" else "allows"
        raise BudgetError(
            f"{call} got {format_bytes(size)}, and {least.binds} {what} {format_bytes(least.limit)} in all: that room "
            "can never come. Expected less than that. Fix: ask for what the work takes at its peak, raise the limit, "
            "or split the work."
        )
    return found.room


def _message(call: str, size: int, found: Pressure, room: Room, waited: float) -> str:
    fix = (
        "end what else holds memory there, or raise that limit, ask for less, or wait longer"
        if room.left < size
        else "wait until what stalls the machine is done, or end it"
    )
    return (
        f"{call} found {format_bytes(room.left)} of room, by {room.binds}, after {waited:.0f} s, and the pressure "
        f"{found.stalls}: {found.why}. Expected {format_bytes(size)}, and calm. Fix: {fix}."
    )
