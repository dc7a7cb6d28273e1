"""The libraries that run a function over chunks of rows, each called as its documentation says. A peer that is
not installed, or that cannot do what is asked, says so. Not here: what is compared, and how.
"""

import importlib
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import erythroxy_tx as tx

Fn = Callable[[Any, Any], Any]  # (weights, rows) -> outputs


class Problem(NamedTuple):
    """A function of weights, which every chunk gets whole, and of rows.

    `out` is `"rows"` for one entry a row, or `"sum"` for outputs that add up over the chunks.
    """

    title: str
    fn: Fn
    out: str
    weights: Any
    x: jax.Array


class Chunked(NamedTuple):
    """A chunked function, and the rows in the chunks that it really takes."""

    fn: Fn
    size: int


class NotApplicableError(Exception):
    """A peer cannot do what is asked, or is not installed. The message is what the table prints."""


def _module(name: str) -> Any:
    root = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != root:
            raise
        raise NotApplicableError("not installed") from error
    finally:
        jax.config.update("jax_enable_x64", val=False)  # netket switches it on when it is imported


def ours(problem: Problem, fn: Fn, size: int) -> Chunked:  # noqa: ARG001  # as the peers are called
    return Chunked(tx.chunked(lax.map, size=size, in_axes=(None, 0))(fn), size)


def lax_map(problem: Problem, fn: Fn, size: int) -> Chunked:
    if problem.out != "rows":
        raise NotApplicableError("not applicable: a function of one row")

    def chunked(weights: Any, x: Any) -> Any:
        return lax.map(lambda row: fn(weights, row), x, batch_size=size)

    return Chunked(chunked, size)


def lax_scan(problem: Problem, fn: Fn, size: int) -> Chunked:
    """Accumulation as one writes it by hand: the chunks are scanned, the shorter last one is added."""
    if problem.out != "sum":
        raise NotApplicableError("not applicable: lax.map is the loop for rows")

    def add(total: Any, part: Any) -> Any:
        return jax.tree.map(jnp.add, total, part)

    def chunked(weights: Any, x: Any) -> Any:
        chunks, rest = _split(x, size)
        start = jax.tree.map(jnp.zeros_like, jax.eval_shape(fn, weights, x))
        total, _ = lax.scan(lambda total, chunk: (add(total, fn(weights, chunk)), None), start, chunks)
        return add(total, fn(weights, rest)) if len(rest) else total

    return Chunked(chunked, size)


def optax_microbatch(problem: Problem, fn: Fn, size: int) -> Chunked:
    optax = _module("optax.microbatching")
    if len(problem.x) % size:
        raise NotApplicableError(f"refused: {size} does not divide {len(problem.x)}")
    kind = optax.AccumulationType.CONCAT if problem.out == "rows" else optax.AccumulationType.SUM
    return Chunked(optax.microbatch(fn, 1, size, kind), size)


def bartz_autobatch(problem: Problem, fn: Fn, size: int) -> Chunked:
    """bartz takes bytes, not rows, and then the next number of chunks that divides the rows. It keeps this private."""
    bartz = _module("bartz._jaxext")
    if problem.out != "rows":
        raise NotApplicableError("not applicable: it reduces an axis of rows, which the output must keep")
    rows = len(problem.x)
    result = jax.eval_shape(fn, problem.weights, problem.x)
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((problem.x, result)))
    limit = total * size // rows
    _, count = bartz.autobatch(fn, limit, in_axes=(None, 0), return_nbatches=True)(problem.weights, problem.x)
    return Chunked(bartz.autobatch(fn, limit, in_axes=(None, 0)), rows // int(count))


def netket_chunked(problem: Problem, fn: Fn, size: int) -> Chunked:
    netket = _module("netket.jax")
    if problem.out == "rows":
        return Chunked(netket.apply_chunked(fn, in_axes=(None, 0), chunk_size=size, axis_0_is_sharded=False), size)

    def chunked(weights: Any, x: Any) -> Any:
        chunks, rest = _split(x, size)
        several = isinstance(jax.eval_shape(fn, weights, x), tuple)
        reduced = (False, False) if several else False
        total = netket.scan_append_reduce(lambda chunk: fn(weights, chunk), chunks, reduced)
        return jax.tree.map(jnp.add, total, fn(weights, rest)) if len(rest) else total

    return Chunked(chunked, size)


def _split(x: Any, size: int) -> tuple[Any, Any]:
    """The rows as chunks of one size, and the rows that are left over."""
    whole = len(x) // size * size
    return x[:whole].reshape(-1, size, *x.shape[1:]), x[whole:]


PEERS = {
    "lax.map(batch_size=)": lax_map,
    "lax.scan, by hand": lax_scan,
    "optax.microbatch": optax_microbatch,
    "bartz autobatch": bartz_autobatch,
    "netket": netket_chunked,
}
