"""A call run as a stream, with nothing declared. Not here: which chunk (`transforms/chunked.py`)."""

from typing import Any

import jax.numpy as jnp

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.derivative import differentiable
from erythroxy_tx.program.equations import flatten
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.plan import plan_of
from erythroxy_tx.program.row_call import RowCall
from erythroxy_tx.program.stream import run
from erythroxy_tx.program.trace import Trace
from erythroxy_tx.program.trace import trace


def run_auto(call: RowCall, size: int) -> Any:
    """Run a call in chunks of `size` rows.

    **Returns:** the result, in the structure, shapes, dtypes and weak types that the function gives on all rows.

    **Raises:** `RowMixingError` if it cannot be run in chunks.
    """
    traced, captured = traced_call(call)
    streamed = differentiable(traced, lambda program, args: run(planned(program, size, call.label), args))
    found = streamed([*map(jnp.asarray, call.dynamic), *captured])
    return call.unflatten([_like(x, leaf) for x, leaf in zip(found, call.result_leaves, strict=True)])


def traced_call(call: RowCall) -> tuple[Trace, list[Any]]:
    """The program of a call, for an unknown number of rows."""
    _ = call.result  # the user's own errors come first
    types = [struct_of(leaf) for leaf in call.dynamic]
    return trace(call.flat_whole, types, call.axes, call.length, call.label)


def planned(traced: Trace, size: int, label: str) -> Plan:
    """The plan of a traced program."""
    try:
        return plan_of(flatten(traced.closed, traced.symbol, traced.rows), size)
    except RowMixingError as error:
        raise RowMixingError(f"{label} got {error}") from None


def _like(x: Any, leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.generic) is False:  # a random key
        return x
    return _compat.convert(x, leaf.dtype, weak_type=leaf.weak_type)
