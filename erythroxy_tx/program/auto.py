"""A call run as a stream, with nothing declared. Not here: which chunk (`transforms/chunked.py`)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.errors import BudgetError
from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.derivative import Traced
from erythroxy_tx.program.derivative import differentiable
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.likeness import check_alike
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.row_call import RowCall
from erythroxy_tx.program.stores import cheapest_plan
from erythroxy_tx.program.stream import run
from erythroxy_tx.program.symbol import Symbol
from erythroxy_tx.program.symbol import symbol_for
from erythroxy_tx.program.trace import Trace
from erythroxy_tx.program.trace import trace


def run_auto(call: RowCall, size: int, allowed: int | None) -> Any:
    """Run a call in chunks of `size` rows, with at most `allowed` bytes of values written down on the way.

    **Returns:** the result, in the structure, shapes, dtypes and weak types that the function gives on all rows.

    **Raises:** `RowMixingError` if it cannot be run in chunks.
    """
    traced, captured = traced_call(call)
    label = call.label  # what is differentiated is kept, and must keep no tracer
    streamed = Traced(traced, lambda program, args: run(planned(program, size, allowed, label), args), label)
    return call.like_result(differentiable(streamed)([*map(jnp.asarray, call.dynamic), *captured]))


def traced_call(call: RowCall) -> tuple[Trace, list[Any]]:
    """The program of a call, for an unknown number of rows."""
    concrete = call.concrete  # the user's own errors come first
    types = [struct_of(leaf) for leaf in call.dynamic]
    unknown = functools.partial(_with_rows, types, call.axes)
    traced, captured = trace(call.flat_whole, unknown, call.length, symbol_for, call.label)
    check_alike(traced, concrete, call.label)
    return traced, captured


def _with_rows(types: list[Any], axes: list[int | None], symbol: Symbol) -> list[Any]:
    shapes = [
        [symbol.dim if i == a else size for i, size in enumerate(t.shape)] for t, a in zip(types, axes, strict=True)
    ]
    return [jax.ShapeDtypeStruct(tuple(s), t.dtype, weak_type=t.weak_type) for s, t in zip(shapes, types, strict=True)]


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
