"""The passes of a program over rows that are read and written on the host, overlapped: while one chunk runs, the next
is read.
"""

import collections
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from erythroxy_tx.drivers.reader import Filled
from erythroxy_tx.drivers.reader import Reader
from erythroxy_tx.drivers.reader import aligned
from erythroxy_tx.drivers.row_blocks import read_rows
from erythroxy_tx.drivers.sink import Sink
from erythroxy_tx.drivers.source import Opened
from erythroxy_tx.drivers.source import Source
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.blocks import block_shape
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.evaluate import read
from erythroxy_tx.program.host_run import Chunk
from erythroxy_tx.program.host_run import HostRun
from erythroxy_tx.progress import progress

Leaves = list[Any]


@dataclasses.dataclass(eq=False)
class Lane:
    """A device that runs chunks, None for the one that JAX takes; what is there on it, and what its chunks keep."""

    device: jax.Device | None
    there: dict[Value, Any]
    kept: Any


class Loop:
    """One run of a program.

    **Arguments:**

    - `sources`: where the rows of each input come from. `there`: inputs without rows. `sinks`: where those of each
        result go. `depth`: how many chunks are read or run at a time, for each device. `label`: what is called.
    """

    def __init__(
        self,
        host: HostRun,
        sources: dict[Value, Source],
        there: dict[Value, Any],
        sinks: dict[Value, Sink],
        depth: int,
        label: str,
    ):
        self.host, self.depth, self.label = host, depth, label
        self._sources, self._there, self._sinks = sources, there, sinks
        self._again: dict[Value, Sink] = {}  # rows that a later pass reads
        self._starts: dict[Any, dict[int, Any]] = {}  # where each chunk began of a carry that is taken up again
        self._for_rows = self._for_device = 0.0  # seconds that were waited
        self._last: tuple[dict[Value, Opened], Any] = {}, ()  # what the pass begins with whose rows are handed out

    def run(self) -> tuple[dict[Value, Any], Iterator[list[np.ndarray]]]:
        """Everything that has no rows, while rows are in the sinks; and the rows that are handed out, chunk by chunk.

        **Raises:** what a source raises; `StaleArrayError` if one changes between two passes.
        """
        with contextlib.ExitStack() as stack:
            opened = {value: stack.enter_context(source.open()) for value, source in self._sources.items()}
            with progress(self.label) as say:
                found = self._passes(opened, say)
            if not self.host.plan.yielded:
                return found, iter(())
            steps = self._handed_out(stack.pop_all())
            next(steps)
        return found, steps

    def _handed_out(self, stack: contextlib.ExitStack) -> Iterator[list[np.ndarray]]:
        """The rows of the last pass; before them, nothing, so that what is open is closed with this."""
        index, (opened, kept) = len(self.host.passes) - 1, self._last
        with stack:
            yield []
            values = [task.value for task in self.host.stores(index)]
            places = [values.index(value) for value in self.host.plan.yielded]
            for _, stored in self._ran(index, opened, self._lanes(index, kept), lambda _: None):
                yield [stored[place] for place in places]
            for each in opened.values():
                each.check()

    def _passes(self, opened: dict[Value, Opened], say: Any) -> dict[Value, Any]:
        def inside(host: HostRun, rows: dict[Value, Value], there: dict[Value, Any]) -> dict[Value, Any]:
            own = {value: opened[outer] for value, outer in rows.items()}
            return self._inside(host, there)._passes(own, say)

        kept, opened = (), dict(opened)
        for index in range(len(self.host.passes) + 1):
            parts = self._read_now(opened, self.host.small_parts(index))
            self._there, kept = self.host.turn(index, self._there, kept, parts)
            if index == len(self.host.passes) - 1 and self.host.plan.yielded:
                self._last = opened, kept
                break
            if index < len(self.host.passes):
                if loop := self.host.passes[index].loop:
                    self._there |= self.host.loops[loop].run(self._there, inside)
                    continue
                again = [task.value for task in self.host.stores(index) if task.value in self.host.read_again]
                self._again = {value: Sink(value.at, value.dtype) for value in again}
                kept = self._pass(index, opened, kept, say)
                for each in opened.values():
                    each.check()
                for value, sink in self._again.items():
                    opened[value] = Source(sink.finish(), value.rows[0], f"{value}, computed", narrow=False).open()
            for value in [v for v, last in self.host.read_again.items() if last <= index]:
                opened.pop(value, None)
        return self._there

    def _inside(self, host: HostRun, there: dict[Value, Any]) -> "Loop":
        """The same for a program inside of a loop."""
        return Loop(host, {}, there, {}, self.depth, self.label)

    def _pass(self, index: int, opened: dict[Value, Opened], kept: Any, say: Any) -> Any:
        lanes = self._lanes(index, kept)
        for chunk, stored in self._ran(index, opened, lanes, say):
            for task, rows in zip(self.host.stores(index), stored, strict=True):
                for sinks in (self._sinks, self._again):
                    if task.value in sinks:
                        sinks[task.value].write(self._written(chunk), rows, task.axis)
        return self._joined(index, list(lanes))

    def _ran(
        self, index: int, opened: dict[Value, Opened], lanes: "dict[Lane, list[Chunk]]", say: Any
    ) -> Iterator[tuple[Chunk, list[np.ndarray]]]:
        """The chunks of a pass that have run, with their rows of each stored value, until the next one is asked for."""
        chunks = [
            (lane, chunk)
            for each in itertools.zip_longest(*lanes.values())
            for lane, chunk in zip(lanes, each, strict=True)
            if chunk
        ]
        flying, depth = collections.deque[tuple[Filled, Leaves, Any]](), self.depth * len(lanes)
        with Reader(opened, [chunk for _, chunk in chunks], depth) as reader:
            for done, ((lane, chunk), filled) in enumerate(zip(chunks, reader, strict=True)):
                blocks = [jax.device_put(buffer, lane.device) for buffer in filled.buffers]
                begun = self._begun(index, chunk, lane.kept)
                lane.kept, stored, token = self.host.step(index, chunk, lane.there, lane.kept, blocks, begun)
                del blocks
                flying.append((filled, stored, token))
                while len(flying) >= depth:
                    yield from self._landed(index, reader, *flying.popleft())
                say(self._told(index, done + 1, reader.waited))
            while flying:
                yield from self._landed(index, reader, *flying.popleft())
            self._for_rows += reader.waited

    def _lanes(self, index: int, kept: Any) -> "dict[Lane, list[Chunk]]":
        """The devices that chunks run on, with the chunks of each."""
        return {Lane(None, self._there, kept): list(self.host.chunks(self.host.passes[index], self._there))}

    def _joined(self, index: int, lanes: "list[Lane]") -> Any:  # noqa: ARG002
        """What a pass keeps after its last chunk."""
        return lanes[0].kept

    def _landed(
        self, index: int, reader: Reader, filled: Filled, stored: Leaves, token: Any
    ) -> Iterator[tuple[Chunk, list[np.ndarray]]]:
        """A chunk, once it has run; its buffers may be filled again after it."""
        begin = time.perf_counter()
        token.block_until_ready()
        self._for_device += time.perf_counter() - begin
        chunk = filled.chunk
        yield (
            chunk,
            [
                np.asarray(rows)[(slice(None),) * task.axis + (slice(chunk.again, None),)]
                for task, rows in zip(self.host.stores(index), stored, strict=True)
            ],
        )
        reader.release(filled)  # not before: what is stored may be what was read

    def _written(self, chunk: Chunk) -> int:
        """Where the rows of a chunk that count begin in a result."""
        return chunk.first + chunk.again

    def _begun(self, index: int, chunk: Chunk, kept: Any) -> Leaves:
        """Note where carries begin that are taken up later; those of earlier passes that begin here."""
        for task, carry in self.host.saved(index, kept):
            self._starts.setdefault(task.eqn, {})[chunk.index] = jax.tree.map(jnp.copy, carry)  # it is donated
        return [self._starts[eqn][chunk.index] for eqn in self.host.taken_up(index, chunk)]

    def _read_now(self, opened: dict[Value, Opened], parts: Any) -> dict[Any, Any]:
        found = {}
        for value, want in parts:
            start = next((piece.start for piece in want if piece is not None), Start())
            buffer = aligned(block_shape(value.at, want), opened[value].source.dtype)
            first = start.value(None, lambda asked: np.asarray(read(asked, self._there)))
            opened[value].read(int(first), buffer)
            found[value, want] = jax.device_put(buffer)
        return found

    def _told(self, index: int, done: int, waited: float) -> str:
        grid = self.host.passes[index].grid
        rows = f"{min(done * grid.step, grid.size) / grid.size:.0%} of {grid.size:,} rows"
        most = "rows" if self._for_rows + waited > self._for_device else "the device"
        return f"{self.label}: pass {index + 1} of {len(self.host.passes)}, {rows}; waits for {most}"


def copied(source: Source, sink: Sink, size: int) -> None:
    """A result that is an argument: its rows, one chunk after the other."""
    for index, block in enumerate(read_rows(source, size)):
        sink.write(index * size, block, source.axis)
