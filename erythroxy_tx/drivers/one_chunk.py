"""Rows that one chunk holds: they are read, and the function runs on all of them."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.drivers.reader import aligned
from erythroxy_tx.drivers.sink import Sink
from erythroxy_tx.drivers.source import Source
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.evaluate import run_whole
from erythroxy_tx.program.rows import live


class OneChunk:
    """A program that runs once."""

    def __init__(self, program: Program):
        self.program = program
        alive = dataclasses.replace(program, equations=live(program))  # of a half, others wait for a cotangent
        self._jitted = jax.jit(functools.partial(run_whole, alive))

    def run(self, rows: dict[Value, Source], there: dict[Value, Any], sinks: dict[Value, Sink]) -> dict[Value, Any]:
        """The results without rows; the others are in the sinks."""
        args = [self._read(rows[v]) if v in rows else there[v] for v in self.program.ins]
        found = dict(zip(self.program.outs, self._jitted(args), strict=True))
        for value, sink in sinks.items():
            sink.write(0, np.asarray(found[value]), value.rows[0])
        return found

    def _read(self, source: Source) -> Any:
        buffer = aligned(source.shape, source.dtype)
        with source.open() as opened:
            opened.read(0, buffer)
        return jax.device_put(buffer)

    def most_bytes(self, there: dict[Value, Any]) -> ProgramBytes:
        """What the program takes. Nothing is run."""
        structs = [struct_of(there[v]) if v in there else jax.ShapeDtypeStruct(v.at, v.dtype) for v in self.program.ins]
        return ProgramBytes.of(self._jitted.lower(structs).compile())

    def chunk_bytes(self) -> int:
        """No chunk waits beside it."""
        return 0

    def told(self) -> list[str]:
        return ["all rows in one chunk"]
