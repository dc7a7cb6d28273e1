"""A call run as a stream, with nothing declared. Not here: which chunk (`transforms/chunked.py`)."""

from typing import Any

import jax
import jax.numpy as jnp

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.errors import BudgetError
from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.derivative import differentiable
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import flatten
from erythroxy_tx.program.likeness import apart
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.row_call import RowCall
from erythroxy_tx.program.stores import cheapest_plan
from erythroxy_tx.program.stream import run
from erythroxy_tx.program.trace import Trace
from erythroxy_tx.program.trace import trace


def run_auto(call: RowCall, size: int, allowed: int | None) -> Any:
    """Run a call in chunks of `size` rows, with at most `allowed` bytes of values written down on the way.

    **Returns:** the result, in the structure, shapes, dtypes and weak types that the function gives on all rows.

    **Raises:** `RowMixingError` if it cannot be run in chunks.
    """
    traced, captured = traced_call(call)
    label = call.label  # what is differentiated is kept, and must keep no tracer
    streamed = differentiable(traced, lambda program, args: run(planned(program, size, allowed, label), args), label)
    found = streamed([*map(jnp.asarray, call.dynamic), *captured])
    return call.unflatten([_like(x, leaf) for x, leaf in zip(found, call.result_leaves, strict=True)])


def traced_call(call: RowCall) -> tuple[Trace, list[Any]]:
    """The program of a call, for an unknown number of rows."""
    concrete = call.concrete  # the user's own errors come first
    types = [struct_of(leaf) for leaf in call.dynamic]
    traced, captured = trace(call.flat_whole, types, call.axes, call.length, call.label)
    if names := apart(traced.flat, flatten(concrete, traced.symbol, traced.rows)):
        raise RowMixingError(
            f"{call.label} is another program for {call.length} rows than for an unknown number of them "
            f"({', '.join(names)}). Expected a function that does the same for any number of rows. Fix: no decision by "
            "the type of x.shape[0]; or declare out=."
        )
    return traced, captured


def plan_call(call: RowCall, size: int, allowed: int | None) -> Plan:
    """The plan by which `run_auto` runs a call."""
    traced, _ = traced_call(call)
    return planned(traced.program, size, allowed, call.label)


def planned(program: Program, size: int, allowed: int | None, label: str) -> Plan:
    """The plan of a flat program."""
    try:
        return cheapest_plan(program, size, allowed)
    except (RowMixingError, BudgetError) as error:
        raise type(error)(f"{label} got {error}") from None


def _like(x: Any, leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):  # a random key
        return x
    return _compat.convert(x, leaf.dtype, weak_type=leaf.weak_type)
