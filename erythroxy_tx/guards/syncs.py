"""`host_syncs`: the reads of a loop that exists, counted by line and timed; nothing is refused."""

import dataclasses
import time
import types
from typing import Self

from erythroxy_tx import _compat
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.guards.look import Look
from erythroxy_tx.guards.reads import Read
from erythroxy_tx.guards.reads import Watch
from erythroxy_tx.units import format_bytes

_SHOWN = 20  # lines of the table


@dataclasses.dataclass
class Line:
    """All reads of one kind by one line: how many, their bytes, and the seconds that the host stood still in them."""

    line: str
    kind: str
    expression: str
    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


class HostSyncs(Watch):
    """What the host reads from the device inside of the block. Made by `host_syncs`.

    - `count`: how many reads. `bytes`: of them together. `seconds`: how long the host stood still in them, for work
      of the device that was not done yet, and for the copy.
    - `lines`: one `Line` for each line of code and kind of read, the most frequent first: its `line`, `kind`,
      `expression`, `count`, `bytes` and `seconds`.
    - `elapsed`: seconds from the beginning of the block to its end, or to now.
    """

    def __init__(self) -> None:
        self._lines: dict[Look, Line] = {}
        self._begin = self._end = 0.0

    def __enter__(self) -> Self:
        if _compat.inside_staging():
            raise TransformOrderError(
                "with tx.host_syncs() was entered inside of a trace (jit, scan, eval_shape), where nothing is read. "
                "Expected it outside. Fix: put the block around the call of the jitted function."
            )
        super().__enter__()
        self._lines, self._begin, self._end = {}, time.perf_counter(), 0.0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        self._end = time.perf_counter()
        super().__exit__(kind, error, traceback)

    def after(self, read: Read) -> None:
        line = self._lines.setdefault(read.look, Line(read.look.line, read.look.kind, read.look.expression))
        line.count += not read.goes_on
        line.bytes += read.nbytes
        line.seconds += read.seconds

    @property
    def lines(self) -> list[Line]:
        return sorted(self._lines.values(), key=lambda line: -line.count)

    @property
    def count(self) -> int:
        return sum(line.count for line in self._lines.values())

    @property
    def bytes(self) -> int:
        return sum(line.bytes for line in self._lines.values())

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self._lines.values())

    @property
    def elapsed(self) -> float:
        return (self._end or time.perf_counter()) - self._begin if self._begin else 0.0

    @property
    def total(self) -> str:
        """The sums in a line."""
        share = f" ({self.seconds / self.elapsed:.0%})" if self.elapsed else ""
        reads = "1 read" if self.count == 1 else f"{self.count} reads"
        return (
            f"{reads} of the device, {format_bytes(self.bytes)}; the host stood still in them for "
            f"{self.seconds:.2f} of {self.elapsed:.2f} s{share}"
        )

    def __str__(self) -> str:
        """A line of the table for each line of code, the sums, and what to do first."""
        lines = self.lines
        told = [("reads", "kind", "bytes", "waited", "line", "")]
        told += [
            (str(e.count), e.kind, format_bytes(e.bytes), f"{e.seconds:.3f} s", e.line, e.expression)
            for e in lines[:_SHOWN]
        ]
        widths = [max(map(len, column)) for column in zip(*told, strict=True)]
        table = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in told if lines]
        if len(lines) > _SHOWN:
            table.append(f"and {len(lines) - _SHOWN} lines more")
        if lines:
            first = lines[0]
            fix = Look(first.kind, first.line, first.expression).fix
            return "\n".join([*table, self.total, f"first: {first.expression or first.kind}: {fix}"])
        return self.total

    __repr__ = __str__


def host_syncs() -> HostSyncs:
    """Count what the host reads from the device inside of a block, by line, without refusing anything.

    Each `float(loss)`, `if loss > best`, `.item()`, `np.asarray(x)`, `print`, f-string, mask or `jax.device_get` of an
    array whose value the host does not have yet is one read, in which the host waits and hands the device no work.
    `block_until_ready` is none, nor is a second read of the same array; one `jax.device_get` of many arrays is one.
    Only this thread is counted.

    **Returns:** a `HostSyncs`, a block: `count`, `bytes`, `seconds` stood still, `lines`; printed, it is a table by
    line of code.

    **Raises:** `TransformOrderError` inside of `jit` and kin. `RuntimeError` on a JAX or a Python in which reads cannot
    be seen.

    >>> import jax.numpy as jnp, erythroxy_tx as tx
    >>> losses = [jnp.float32(1.5), jnp.float32(1.25)]
    >>> with tx.host_syncs() as seen:
    ...     history = [float(loss) for loss in losses]
    >>> seen.count, seen.bytes, seen.lines[0].kind
    (2, 8, 'float')
    """
    return HostSyncs()
