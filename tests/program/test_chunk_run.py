"""Chunks of which some rows do not count, whatever is in them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.program.auto import traced_call
from erythroxy_tx.program.chunk_run import ChunkRun
from erythroxy_tx.program.evaluate import read
from erythroxy_tx.program.evaluate import run_small
from erythroxy_tx.program.evaluate import run_whole
from erythroxy_tx.program.plan import plan_of
from erythroxy_tx.program.row_call import RowCall

SIZE = 8


def added(x: Any) -> Any:
    at = jnp.round(x[:, 0]).astype(jnp.int32)
    return x.sum(0), x.max(0), x.T @ x, jnp.argmin(x, 0), jnp.ones((3, 2)).at[at].add(x), (x.T @ jnp.cumsum(x, 0))


def carried(x: Any) -> Any:
    forwards, _ = lax.scan(lambda c, r: (jnp.tanh(c + r), None), jnp.zeros(2), x)
    return forwards, jnp.cumsum(x, 0).max(0), lax.cumprod(x).min(0)


def from_the_end(x: Any) -> Any:
    c, ys = lax.scan(lambda c, r: (jnp.tanh(c + r), c), jnp.zeros(2), x, reverse=True)
    return c, ys.sum(0), lax.cummax(x, reverse=True).sum(0)


def run(fn: Any, x: np.ndarray, again: tuple[int, ...]) -> Any:
    """A function of the rows that count of some chunks, which has one pass and asks for nothing but rows."""
    trace, _ = traced_call(RowCall("f", fn, fn, (x,), {}, Prefix.of(0)))
    plan = plan_of(trace.program, SIZE, equal=False)
    (one,) = plan.passes
    there: dict[Any, Any] = {plan.program.ins[0]: jnp.asarray(x)}
    for small in plan.before[0]:
        run_small(small, there, run_whole)
    chunks = ChunkRun(plan, one, there)
    kept = chunks.begin()
    step = jax.jit(lambda kept, at, again: chunks.step(kept, one.grid.chunk, at * SIZE, {}, again)[0])
    order = list(enumerate(again))
    for at, count in reversed(order) if one.reverse else order:
        kept = step(kept, at, count)
    chunks.end(kept)
    for small in plan.before[1]:
        run_small(small, there, run_whole)
    return [read(v, there) for v in plan.program.outs]


@pytest.mark.parametrize("again", [(0, 0, 0), (0, 5, 0), (7, 1, 3), (8, 0, 7)])
@pytest.mark.parametrize("fn", [added, carried, from_the_end])
def test_rows_that_another_chunk_has_change_nothing(fn: Any, again: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(3 * SIZE, 2)).astype(np.float32)
    counts = (np.arange(SIZE) >= np.asarray(again)[:, None]).reshape(-1)
    got = run(fn, np.where(counts[:, None], x, np.nan), again)
    want = jax.tree.leaves(fn(x[counts]))
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        place = np.flatnonzero(counts)[b] if fn is added and i == 3 else b
        np.testing.assert_allclose(a, place, rtol=1e-5, atol=1e-5)
