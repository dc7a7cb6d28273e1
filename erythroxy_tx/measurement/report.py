"""What one measurement found, and how it prints. Not here: how it was found."""

import dataclasses
import io
from typing import Any

import numpy as np
from rich.console import Console
from rich.console import Group
from rich.table import Table
from rich.text import Text

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.host.psi import Stalled
from erythroxy_tx.units import format_bytes


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Times, bytes and remarks of one measured function. Prints as a table.

    **Attributes:**

    - `name`, `platform`: what was measured, and on what: `"cpu"`, `"gpu"`, `"tpu"`.
    - `trace_seconds`: tracing and lowering; None where `fn` offers no `lower`.
    - `compile_seconds`: what XLA took; for a wrapper, the first call less a steady one. Both are None
        where nothing was compiled, since the program was there before.
    - `compiles`: programs compiled before the steady runs.
    - `first_seconds`: the first call.
    - `seconds`: each steady run, until its results were ready.
    - `program`: the account that XLA keeps of the compiled program, in bytes on one device:
        `argument`, `output`, `temp`, `alias` and `total`; None where `fn` offers no `lower`.
    - `host_rise_bytes`: how far the resident memory of the process rose above `host_start_bytes`,
        from before the trace until after the last run; `host_how` is `"VmHWM"` or `"sampled"`.
    - `host_compile_bytes`: how far it had risen when the program was compiled; None for a wrapper.
    - `device_peak_bytes`: the most that one device held, or None; `device_how` says why.
    - `stalled`: what share of the time of the steady runs, from the first to the last with what prepares them, some
        task of this machine waited: for `memory` and for `io`, from 0 to 1, or None, and `missing` says why. Another
        process may be the one that waited.
    - `fresh_process`: whether a process of its own was measured.
    - `notes`: what a reader of the figures must know, such as work that the compiler removed.
    """

    name: str
    platform: str
    trace_seconds: float | None
    compile_seconds: float | None
    compiles: int
    first_seconds: float
    seconds: tuple[float, ...]
    program: ProgramBytes | None
    host_start_bytes: int
    host_rise_bytes: int
    host_compile_bytes: int | None
    host_how: str
    device_peak_bytes: int | None
    device_how: str
    stalled: Stalled
    fresh_process: bool
    notes: tuple[str, ...]

    @property
    def median_seconds(self) -> float:
        """The median of the steady runs."""
        return float(np.median(self.seconds))

    @property
    def quartile_seconds(self) -> tuple[float, float]:
        """The lower and the upper quartile of the steady runs."""
        low, high = np.quantile(self.seconds, (0.25, 0.75))
        return float(low), float(high)

    @property
    def total_bytes(self) -> int | None:
        """What the program holds at once by XLA's account: arguments + outputs + temporaries - aliased."""
        return None if self.program is None else self.program.total

    def to_dict(self) -> dict[str, Any]:
        """Every figure as plain Python values, ready for JSON."""
        return dataclasses.asdict(self) | {
            "seconds": list(self.seconds),
            "notes": list(self.notes),
            "median_seconds": self.median_seconds,
            "quartile_seconds": list(self.quartile_seconds),
            "total_bytes": self.total_bytes,
        }

    def __rich__(self) -> Group:
        where = "in a fresh process" if self.fresh_process else "in this process"
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column()
        for row in self._times() + self._bytes() + self._peaks():
            table.add_row(*row)
        title = Text(f"{self.name} on {self.platform}, {where}", style="bold")
        return Group(title, table, *(Text(f"note: {note}") for note in self.notes))

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=110, color_system=None, force_terminal=False).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def _times(self) -> list[tuple[str, str, str]]:
        low, high = map(_seconds, self.quartile_seconds)
        spread = f"{low} to {high} (quartiles), {len(self.seconds)} runs"
        compiled = "1 program" if self.compiles == 1 else f"{self.compiles} programs"
        return [
            ("trace", _seconds(self.trace_seconds), ""),
            ("compile", _seconds(self.compile_seconds), compiled),
            ("first call", _seconds(self.first_seconds), ""),
            ("steady run", _seconds(self.median_seconds), spread),
        ]

    def _bytes(self) -> list[tuple[str, str, str]]:
        if self.program is None:
            return [("program", "-", "offers no lower()")]
        return [
            ("arguments", format_bytes(self.program.argument), ""),
            ("outputs", format_bytes(self.program.output), ""),
            ("temporaries", format_bytes(self.program.temp), ""),
            ("aliased", format_bytes(self.program.alias), "outputs in the memory of donated arguments"),
            ("total", format_bytes(self.program.total), "arguments + outputs + temporaries - aliased"),
        ]

    def _peaks(self) -> list[tuple[str, str, str]]:
        host = f"above {format_bytes(self.host_start_bytes)} ({self.host_how})"
        if self.host_compile_bytes is not None:
            host += f"; +{format_bytes(self.host_compile_bytes)} when compiled"
        peak = "-" if self.device_peak_bytes is None else format_bytes(self.device_peak_bytes)
        return [
            ("host high water", f"+{format_bytes(self.host_rise_bytes)}", host),
            ("device peak", peak, self.device_how),
            self._waited("memory stalls", self.stalled.memory),
            self._waited("I/O stalls", self.stalled.io),
        ]

    def _waited(self, name: str, share: float | None) -> tuple[str, str, str]:
        if share is None:
            return name, "-", self.stalled.missing
        return name, f"{share:.1%}", f"of {_seconds(self.stalled.seconds)} of steady runs, of any task of this machine"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value / 1e-6:.1f} µs"
