"""Whether a program traced for an unknown number of rows does what one traced for the number at hand does.

A function may decide on the number of rows where nothing can see it: `isinstance(n, int)`, `type(n)`, `n is 7`. So the
arithmetic of both programs is counted: which operations are done to what comes from the inputs, on which shapes,
and with which numbers. How rows are moved is left out: an unknown number of rows is sliced in other ways.
"""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.equations import flatten
from erythroxy_tx.program.numbers import computed
from erythroxy_tx.program.rows import live
from erythroxy_tx.program.trace import Trace

_MOVES = frozenset([
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "dynamic_slice", "dynamic_update_slice", "empty",
    "empty2", "expand_dims", "gather", "iota", "pad", "reshape", "rev", "scatter", "scatter-add", "select_n", "slice",
    "squeeze", "stack", "tile", "transpose", "unstack",
])  # fmt: skip
_LOOPS = frozenset(["cond", "scan", "while"])


STREAMED = "tx.chunked"  # the name of what a function gives that another transform of ours runs


def check_alike(traced: Trace, known: Any, label: str) -> None:
    """Compare a trace with the program for the number of rows that it was traced at.

    **Raises:** `RowMixingError` if they differ.
    """
    flat = flatten(traced.closed, traced.symbol, traced.rows)
    if names := apart(flat, flatten(known, traced.symbol, traced.rows)):
        count = " and ".join(map(str, traced.rows)) if isinstance(traced.rows, tuple) else traced.rows
        raise RowMixingError(
            f"{label} is another program for {count} rows than for an unknown number of them ({', '.join(names)}). "
            "Expected a function that does the same for any number of rows. Fix: no decision by the type of x.shape[0]."
        )


def apart(unknown: Program, known: Program) -> list[str]:
    """The operations by which two programs differ. One that runs another chunked function inside is not compared: for
    an unknown number of rows that is opened.
    """
    if any(eqn.name == "name" and eqn.params["name"] == STREAMED for eqn in known.equations):
        return []
    a, b = arithmetic(unknown), arithmetic(known)
    return sorted({name for name, *_ in (a - b) + (b - a)})


def arithmetic(program: Program) -> collections.Counter:
    """How often each operation is done to what comes from the inputs."""
    found: collections.Counter = collections.Counter()
    from_inputs, numbers = set(program.ins), dict[Value, Any]()
    for eqn in live(program):
        if from_inputs.isdisjoint(eqn.ins):
            _compute(eqn, numbers)
            continue
        from_inputs.update(eqn.outs)
        if eqn.name in _LOOPS:  # a loop with an unknown number of turns is another primitive, and counts them itself
            for param in eqn.symbolic.values():
                for closed in param if isinstance(param, tuple) else (param,):
                    if hasattr(closed, "eqns"):
                        inner = arithmetic(eqn.inside(closed))
                        found.update({key: times for key, times in inner.items() if "float" in key[2]})
        elif eqn.outs and eqn.name not in _MOVES and 0 not in eqn.outs[0].at:
            with_numbers = tuple(_short(v, numbers) for v in eqn.ins if not v.at)
            found[eqn.name, eqn.outs[0].at, str(eqn.outs[0].dtype), with_numbers] += 1
    return found


def _compute(eqn: Equation, numbers: dict[Value, Any]) -> None:
    """Compute what comes from literals and the number of rows alone, where it is a single number."""
    ins = [v.known if v.known is not None else numbers.get(v) for v in eqn.ins]
    single = all(not v.at and not v.keys for v in (*eqn.ins, *eqn.outs))
    calls = bool(eqn.effects) or "callback" in eqn.name
    known = all(isinstance(x, (np.ndarray, jax.Array)) and not isinstance(x, jax.core.Tracer) for x in ins)
    if single and ins and known and not calls:
        numbers.update(zip(eqn.outs, computed(eqn.primitive, ins, eqn.params), strict=True))


def _short(value: Value, numbers: dict[Value, Any]) -> str:
    """A number to four digits: one program may have rounded it in another way."""
    known = value.known if value.known is not None else numbers.get(value)
    if known is None or isinstance(known, jax.core.Tracer) or value.keys:
        return ""
    number = np.asarray(known)
    return f"{complex(number):.4g}" if jnp.issubdtype(number.dtype, jnp.number) else str(number)
