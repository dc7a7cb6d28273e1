"""`erythroxy pressure`: how much the machine waits for memory, and what room is left; once, or live."""

import argparse
import collections
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from erythroxy_tx.cli.show import show
from erythroxy_tx.host.oomd_rules import oomd
from erythroxy_tx.host.pressure import Pressure
from erythroxy_tx.host.pressure import look
from erythroxy_tx.host.pressure import pressure
from erythroxy_tx.host.psi import Psi
from erythroxy_tx.host.room import Room
from erythroxy_tx.units import format_bytes

_SHOWN = 60.0  # seconds of the past in the live view
_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {"calm": "green", "reclaiming": "yellow", "danger": "bold red", "unknown": "yellow"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "--watch", type=_seconds, nargs="?", const=1.0, metavar="SECONDS", help="look again and again, until Ctrl-C"
    )
    parser.add_argument("--json", action="store_true", help="as JSON; with --watch one object a line")
    parser.epilog = (
        "Exit status: 0 calm or reclaiming, 1 danger, 2 it could not run; with --watch 0 at Ctrl-C.\n\n"
        "Examples:\n"
        "  erythroxy pressure\n"
        "  erythroxy pressure --watch\n"
        "  erythroxy pressure --watch 5 --json >> pressure.jsonl\n"
        "  erythroxy pressure && python train.py"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the pressure."""
    if arguments.watch is not None:
        return _watch(arguments.watch, as_json=arguments.json)
    found = pressure()
    show(found, json=arguments.json)
    return {"danger": 1, "unknown": 2}.get(found.verdict, 0)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.1 to 3600, such as 2.")
    return seconds


def _watch(period: float, *, as_json: bool) -> int:
    try:
        if sys.stdout.isatty() and not as_json:
            _live(period)
        for found, tick in _ticks(period):
            print(json.dumps(found.to_dict()) if as_json else _line(found, tick), flush=True)
    except KeyboardInterrupt:
        return 0
    return 0


class _Tick:
    """What share of the time since the last look some task waited, in percent."""

    def __init__(self, before: Pressure, now: Pressure):
        seconds = now.at - before.at
        self.memory = _share(before.machine.memory, now.machine.memory, seconds)
        self.io = _share(before.machine.io, now.machine.io, seconds)


def _share(before: Psi | None, now: Psi | None, seconds: float) -> float | None:
    if before is None or now is None or seconds <= 0:
        return None
    return min(100.0, max(0.0, (now.some.total - before.some.total) / 1e4 / seconds))


def _ticks(period: float) -> Iterator[tuple[Pressure, _Tick]]:
    """Look at once, and each `period` seconds."""
    watched = oomd()
    before = found = look(watched)
    while True:
        yield found, _Tick(before, found)
        time.sleep(period)
        before, found = found, look(watched)


def _line(found: Pressure, tick: _Tick) -> str:
    room = "room -" if found.room is None else f"room {format_bytes(found.room.left)} by {found.room.binds}"
    shares = f"memory {_percent(tick.memory)}  I/O {_percent(tick.io)}"
    return f"{time.strftime('%H:%M:%S', time.localtime(found.at))}  {found.verdict:<10}  {shares}  {room}"


def _percent(share: float | None) -> str:
    return "      -" if share is None else f"{share:5.1f} %"


# ------------------------------------------------------------------ on a terminal


def _live(period: float) -> None:
    from rich.console import Group  # 13 MB: only where it is shown
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        bars = max(10, min(round(_SHOWN / period), live.console.width - 30))
        past: collections.deque[tuple[float | None, float | None, float | None]] = collections.deque(maxlen=bars)
        for found, tick in _ticks(period):
            room = found.room
            past.append((tick.memory, tick.io, None if room is None else _left(room)))
            memory, io, left = zip(*past, strict=True)
            place = "" if room is None else f" of {format_bytes(room.limit)} by {room.binds}"
            rows = [
                (f"{found.verdict}: {found.why}", _STYLES[found.verdict]),
                (f"memory stalls  {_percent(tick.memory):>10}  {_spark(memory)}", ""),
                (f"I/O stalls     {_percent(tick.io):>10}  {_spark(io)}", ""),
                (f"room           {'-' if room is None else format_bytes(room.left):>10}  {_spark(left)}", ""),
                (f"{len(past) * period:.0f} s; a full bar is 100 %{place}. Ctrl-C ends", "dim"),
            ]
            live.update(Group(*(Text(row, style, no_wrap=True, overflow="crop") for row, style in rows)))
            live.refresh()


def _left(room: Room) -> float:
    return 100 * room.left / room.limit if room.limit else 0.0


def _spark(shares: Any) -> str:
    """A bar for each share of 0 to 100; a space where it is not known."""
    return "".join(" " if share is None else _BARS[min(7, int(share / 12.5))] for share in shares)
