"""Faults of a stream from the host: rows that are read at the wrong place, or used at the wrong time."""

import contextlib
import dataclasses
import functools
from unittest import mock

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from planted import Case
from planted import planted

import erythroxy_tx as tx
from erythroxy_tx.drivers.loop import Loop
from erythroxy_tx.program import turns
from erythroxy_tx.program.chunk_run import ChunkRun
from erythroxy_tx.program.host_run import HostRun
from erythroxy_tx.program.rules.loops import Scan
from erythroxy_tx.program.rules.reductions import Running
from erythroxy_tx.testing import rows

FLOATS = rows(st.sampled_from([7, 10, 12]), 2, extremes=False, allow_nan=False, allow_infinity=False)


def streamed(patch=contextlib.nullcontext, out=None):
    """Run a function as a stream of three rows a chunk, while something is patched."""

    def how(f, *args):
        with patch():
            found = tx.chunked(tx.stream(out=out), size=3)(f)(*map(np.asarray, args))
            return jax.tree.map(jnp.asarray, np.concatenate(list(found)) if out is iter else found)

    return how


def fault(name, how, fn):
    return Case(name, planted(how, fn, on_host=True), FLOATS)


def replaced(owner, name, change):
    """`owner.name` as `change` makes it, given the original."""
    return functools.partial(mock.patch.object, owner, name, change(getattr(owner, name)))


def all_but_last(original):
    return lambda self, one, there: list(original(self, one, there))[:-1]


def one_row_early(original):
    def chunks(self, one, there):
        for chunk in original(self, one, there):
            yield dataclasses.replace(chunk, starts=tuple(max(0, start - 1) for start in chunk.starts))

    return chunks


def counted_twice(original):
    """The last chunk has rows that another had before it."""
    return lambda self, index, chunk, *rest: original(self, index, dataclasses.replace(chunk, again=0), *rest)


def all_rows_count(original):
    """Rows that a chunk has a second time move its carry."""

    def carry(self, eqn):
        right = original(self, eqn)
        return dataclasses.replace(right, step=lambda carry, ins, rows, own: right.step(carry, ins, rows, None))

    return carry


def all_rows_written(original):
    """So are rows whose carry was another."""

    def chunks(self, one, there):
        for chunk in original(self, one, there):
            yield dataclasses.replace(chunk, again=0)

    return chunks


def begun_at_one(original):
    return lambda self: jax.tree.map(lambda x: x + 1, original(self))


def stuck(eqn, ins, runs):
    """Each turn of a loop starts where the first one did."""
    first = ins[len(ins) - len(eqn.outs) :]
    return turns._scan(eqn, ins, [lambda values: [values[0] + 1, *runs[0]([values[0], *first[1:]])[1:]]])


def started_anew(original):
    def begun(self, index, chunk, kept):
        found = original(self, index, chunk, kept)
        return [self._starts[eqn][0] for eqn in self.host.taken_up(index, chunk)] if found else found

    return begun


def filled_too_early(original):
    """Buffers are given back, and filled again, before their chunk has run."""

    def step(self, index, chunk, there, kept, blocks, begun):
        return original(self, index, chunk, there, kept, [jnp.roll(block, 1, 0) for block in blocks], begun)

    return step


def centred(x):
    z = jnp.cumsum(x, 0)
    return z - z.mean(0)


def summed_up(x):
    return lax.fori_loop(0, 3, lambda i, w: w / 2 + (x * w).sum(0) + 1, jnp.zeros(2))


def from_the_end(x):
    return lax.scan(lambda c, r: (c / 2 + r, c), jnp.zeros(2), x, reverse=True)


FAULTS = [
    fault("the last chunk is not read", streamed(replaced(HostRun, "chunks", all_but_last)), lambda x: x.sum(0)),
    fault("rows are read one row early", streamed(replaced(HostRun, "chunks", one_row_early)), lambda x: x * 2),
    fault("rows of two chunks count twice", streamed(replaced(HostRun, "step", counted_twice)), lambda x: x.sum(0)),
    fault(
        "rows of two chunks count twice in a running sum",
        streamed(replaced(Running, "carry", all_rows_count)),
        lax.cumsum,
    ),
    fault(
        "rows of two chunks count twice in a scan from the end",
        streamed(replaced(Scan, "carry", all_rows_count)),
        lambda x: from_the_end(x)[0],
    ),
    fault(
        "rows that do not count are written",
        streamed(replaced(HostRun, "chunks", all_rows_written)),
        lambda x: lax.cumsum(-x),
    ),
    fault("a carry starts from something else", streamed(replaced(ChunkRun, "begin", begun_at_one)), lax.cumsum),
    fault("rows are handed out twice", streamed(replaced(HostRun, "chunks", all_rows_written), iter), jnp.sin),
    fault("the last rows are not handed out", streamed(replaced(HostRun, "chunks", all_but_last), iter), jnp.sin),
    fault(
        "the last chunk of a scan is not read",
        streamed(replaced(HostRun, "chunks", all_but_last)),
        lambda x: from_the_end(x * 2)[0],
    ),
    fault(
        "a turn of a loop starts where the first one did",
        streamed(functools.partial(mock.patch.dict, turns._TURNS, scan=stuck)),
        summed_up,
    ),
    fault(
        "rows that were computed are read one row early",
        streamed(replaced(HostRun, "chunks", one_row_early)),
        lambda x: jnp.diff(jnp.cumsum(x, 0), axis=0),
    ),
    fault("a carry is taken up where the first chunk began", streamed(replaced(Loop, "_begun", started_anew)), centred),
    fault(
        "a buffer is filled before its chunk has run", streamed(replaced(HostRun, "step", filled_too_early)), lax.cumsum
    ),
]
