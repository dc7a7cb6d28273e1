"""A traced function whose rows are streamed, with its derivatives, which are streamed like it. Not here: the loop over
the chunks (`loop.py`).
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from erythroxy_tx.drivers.loop import Loop
from erythroxy_tx.drivers.loop import copied
from erythroxy_tx.drivers.one_chunk import OneChunk
from erythroxy_tx.drivers.row_blocks import RowBlocks
from erythroxy_tx.drivers.row_blocks import Steps
from erythroxy_tx.drivers.row_blocks import blocks_of
from erythroxy_tx.drivers.share import Share
from erythroxy_tx.drivers.share import SharedLoop
from erythroxy_tx.drivers.share import check_shared
from erythroxy_tx.drivers.sink import Sink
from erythroxy_tx.drivers.source import Source
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.program.derivative import vjp_of
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.evaluate import read
from erythroxy_tx.program.host_run import HostRun
from erythroxy_tx.program.host_run import host_run
from erythroxy_tx.program.residuals import cut
from erythroxy_tx.program.trace import Trace

Leaves = list[Any]
_KEPT = 64  # traces, plans and halves of derivatives: those of some twenty lengths
Sinks = Callable[[Value, int], Sink]  # for a result with rows, and which of the results it is


class Kept:
    """What is kept for one function: what was traced for the last few types of arguments, and compiled for any."""

    def __init__(self) -> None:
        self.compiled: dict[Hashable, Any] = {}
        self._traced: dict[Hashable, Any] = {}

    def once(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """What was built under a key."""
        found = self._traced.pop(key) if key in self._traced else build()
        self._traced[key] = found  # the last used is last
        while len(self._traced) > _KEPT:
            self._traced.pop(next(iter(self._traced)), None)
        return found


@dataclasses.dataclass(frozen=True)
class Streamed:
    """A function of the leaves that have no rows, see `derivative.RowFunction`.

    - `sources`: where the rows of the other inputs come from, by position. `key`: what its plans depend on.
    - `sinks`: where the rows of its results go. `share`: which of all rows they are, None for all.
    - `yielded`: the results whose rows come as iterators.
    """

    trace: Trace
    sources: dict[int, Source]
    size: int
    depth: int
    label: str
    kept: Kept
    key: Hashable
    sinks: Sinks
    share: Share | None = None
    yielded: tuple[int, ...] = ()

    @property
    def kinds(self) -> list[Any]:
        return [v.aval.dtype for v in self.trace.closed.jaxpr.outvars]

    def __call__(self, args: Leaves) -> Leaves:
        return self._run(self.host, args, self.sinks)

    @property
    def host(self) -> HostRun | OneChunk:
        """Its passes."""
        return self.kept.once(("run", self.key), lambda: self._planned(self._program_of(self.trace)))

    def vjp(self, wanted: list[int], live: list[int]) -> "Streamed":
        key = "vjp", self.key, tuple(wanted), tuple(live)
        trace = self.kept.once(key, lambda: vjp_of(self.trace, self._places(wanted), live, self.label))
        return dataclasses.replace(self, trace=trace, key=key, sinks=in_memory, yielded=())

    def halves(
        self, wanted: list[int], live: list[int]
    ) -> tuple[Callable[[Leaves], Leaves], Callable[[Leaves], Leaves]]:
        def build() -> tuple[HostRun | OneChunk, HostRun | OneChunk]:
            joint = vjp_of(self.trace, self._places(wanted), live, self.label, with_results=True)
            found = cut(self._program_of(joint), len(self.trace.types), len(self.kinds))
            return self._planned(found.forward), self._planned(found.backward)

        forward, backward = self.kept.once(("halves", self.key, tuple(wanted), tuple(live)), build)
        return (lambda free: self._run(forward, free, self.sinks)), (lambda free: self._run(backward, free, in_memory))

    def _program_of(self, trace: Trace) -> Program:
        plain = self._is_one or self.share is not None  # sums that devices can add up
        return trace.flat_at(trace.rows, up_to=False) if plain else trace.program

    @property
    def _is_one(self) -> bool:
        """Whether a chunk holds all rows."""
        assert isinstance(self.trace.rows, int)
        return self.trace.rows <= self.size and self.share is None

    def _planned(self, program: Program) -> HostRun | OneChunk:
        if self._is_one:
            return OneChunk(program)
        host = host_run(program, self.size, self.kept.compiled, self.yielded)
        if self.share is not None:
            check_shared(host)
        return host

    def _loop(self, *args: Any) -> Loop:
        return Loop(*args) if self.share is None else SharedLoop(self.share, self.kept.compiled, *args)

    def _own(self, value: Value) -> Value:
        """A result with as many rows as go to its sink."""
        if self.share is None:
            return value
        at = tuple(self.share.rows if i in value.rows else size for i, size in enumerate(value.at))
        return dataclasses.replace(value, at=at)

    def _places(self, free: list[int]) -> list[int]:
        """Where leaves without rows are among all of them."""
        own = [i for i in range(len(self.trace.types)) if i not in self.sources]
        return [own[i] for i in free]

    def _run(self, host: HostRun | OneChunk, free: Leaves, sinks: Sinks) -> Leaves:
        left = iter(free)
        program = host.program
        leaves = [self.sources[i] if i in self.sources else next(left) for i in range(len(program.ins))]
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise TransformOrderError(
                f"{self.label} is called inside of jax.jit, vmap or another trace. Expected a call from Python: rows "
                "are read on the host. Fix: take the trace around it away, or tx.chunked(lax.map, …) inside of it."
            )
        rows, there = dict[Value, Source](), dict[Value, Any]()
        for value, leaf in zip(program.ins, leaves, strict=True):
            if not value.rows:
                there[value] = jnp.asarray(leaf)
            else:
                rows[value] = leaf if isinstance(leaf, Source) else _of_array(leaf, value)
        if keys := next((v for v in program.outs if v.rows and v.keys), None):
            raise TypeError(f"{self.label} gives {keys}, random keys. Expected numbers. Fix: jax.random.key_data.")
        handed = [] if isinstance(host, OneChunk) else list(host.plan.yielded)
        targets = dict[Value, Sink]()
        try:
            for i, value in enumerate(program.outs):
                later = i in self.yielded and (value in rows or value in handed)
                if value.rows and value.known is None and value not in targets and not later:
                    targets[value] = sinks(self._own(value), i)
            steps: Iterator[list[np.ndarray]] = iter(())
            if isinstance(host, OneChunk):
                found = host.run(rows, there, targets)
            else:
                found, steps = self._loop(host, rows, there, targets, self.depth, self.label).run()
            for value in targets.keys() & rows.keys():
                copied(rows[value], targets[value], self.size)
            whole = {value: sink.finish() for value, sink in targets.items()}
        finally:
            for sink in targets.values():
                sink.discard()
        outs = program.outs
        taken = [i for i in self.yielded if outs[i] in handed]
        side_by_side = Steps(steps, [handed.index(outs[i]) for i in taken], self.depth, self.label)

        def result(i: int, value: Value) -> Any:
            if i in taken:
                return RowBlocks(side_by_side, taken.index(i))
            if i in self.yielded and value in rows:
                return blocks_of(rows[value], rows[value].axis, self.size, self.label)
            array = whole[value] if value in whole else read(value, found)
            if i not in self.yielded:
                return array
            axis, size = (value.rows[0], self.size) if value.rows else (0, max(1, *value.at))  # of one row, all of it
            return blocks_of(np.asarray(array), axis, size, self.label)

        return [result(i, value) for i, value in enumerate(outs)]


def _of_array(leaf: Any, value: Value) -> Source:
    return Source(np.asarray(leaf), value.rows[0], "a cotangent", narrow=False)


def in_memory(value: Value, index: int) -> Sink:  # noqa: ARG001
    """A numpy array."""
    return Sink(value.at, value.dtype)
