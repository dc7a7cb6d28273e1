"""A function and the types of its arguments, traced with an unknown number of rows.

    trace(f, x: f32[64, 4]) = { x: f32[n, 4] -> ... },   true for every n that answers as 64 does

Not here: what the equations mean (`rows.py`), nor how questions about n are answered (`symbol.py`).
"""

import dataclasses
import functools
import math
import re
import traceback
from collections.abc import Callable
from typing import Any

import jax

from erythroxy_tx import _compat
from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program import covariance
from erythroxy_tx.program import variance
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import flatten
from erythroxy_tx.program.symbol import Rows
from erythroxy_tx.program.symbol import Symbol
from erythroxy_tx.program.symbol import shown

_WRAPPERS = {"cache_miss", "deferring_binary_op", "f_jitted", "reraise_with_filtered_traceback", "wrapper"}
_LIBRARIES = ("/lib/python3.", "/erythroxy_tx/")  # what is installed, and ours


@dataclasses.dataclass(frozen=True)
class Trace:
    """A program with `symbol` in its shapes, traced for `rows` rows. Its arguments are those of the function, and
    after them the values that it captured from an outer trace.
    """

    closed: Any
    symbol: Symbol
    rows: Rows
    captured: int = 0
    up_to: bool = False  # whether it is run for any number of rows up to that

    def __call__(self, *args: Any) -> list[Any]:
        """The program's own equations on other values, derivative rules kept."""
        own = len(args) - self.captured
        late = iter(args[own:])
        consts = [next(late) if const is None else const for const in self.closed.consts]
        return _compat.eval_closed(self.closed, consts, list(args[:own]))

    @functools.cached_property
    def flat(self) -> Program:
        """The program as a flat list of equations."""
        return flatten(self.closed, self.symbol, self.rows, up_to=self.up_to)

    def flat_at(self, rows: Rows, *, up_to: bool) -> Program:
        """That for another number of rows, or up to it."""
        return flatten(self.closed, self.symbol, rows, up_to=up_to, asked_for=self.rows)

    @functools.cached_property
    def program(self) -> Program:
        """That, with what is about a mean taken in one way over the rows: what is planned."""
        return covariance.merged(variance.merged(self.flat))

    @property
    def types(self) -> list[Any]:
        """The types of all arguments, with the unknown in them."""
        late = [v for v, const in zip(self.closed.jaxpr.constvars, self.closed.consts, strict=True) if const is None]
        avals: list[Any] = [v.aval for v in (*self.closed.jaxpr.invars, *late)]
        return [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]


def trace(
    fn: Callable[..., list[Any]],
    types: Callable[[Symbol], list[Any]],
    rows: Rows,
    symbols: Callable[[Rows], Symbol],
    label: str,
) -> tuple[Trace, list[Any]]:
    """Trace a function of flat leaves with an unknown number of rows.

    **Arguments:**

    - `fn`: takes the leaves, returns a flat list.
    - `types`: the `jax.ShapeDtypeStruct`s of the leaves, with a symbol in their shapes.
    - `rows`: how many there are. `symbols`: a symbol for them. `label`: what is called, for errors.

    **Returns:** the trace, and the tracers that the function captured.

    **Raises:** `RowMixingError` if the function needs the number of rows as a Python int.
    """
    for _ in range(2):  # a symbol whose text was taken stands for one number of rows, and must have from the start
        symbol = symbols(rows)
        known_before = symbol.only
        with symbol.standing_for(rows):
            try:
                closed = jax.make_jaxpr(fn)(*types(symbol))
            except Exception as error:
                raise refusal(label, error) from error
        check_asked(closed, symbol, rows, label)
        if symbol.only == known_before:
            break
    return hoisted(closed, symbol, rows)


def hoisted(closed: Any, symbol: Symbol, rows: Rows, *, up_to: bool = False) -> tuple[Trace, list[Any]]:
    """A program that holds no tracer, and the tracers that it held."""
    captured = [const for const in closed.consts if isinstance(const, jax.core.Tracer)]
    kept = [None if isinstance(const, jax.core.Tracer) else const for const in closed.consts]
    return Trace(closed.replace(consts=kept), symbol, rows, len(captured), up_to), captured


def check_asked(closed: Any, symbol: Symbol, rows: Rows, label: str) -> None:
    """Refuse what asked for the number of rows, was refused, and went on; and ask what JAX leaves out."""
    _ask_sizes(closed.jaxpr, symbol, rows, label)
    if symbol.asked_number:
        raise RowMixingError(
            f"{label} asks for the number of rows as a Python int and goes on without it. Expected a function that "
            "is the same for any number of rows. Fix: use x.shape[0] as it is, or declare out=."
        )


def _ask_sizes(jaxpr: Any, symbol: Symbol, rows: Rows, label: str) -> None:
    """Ask whether reshapes keep the number of entries, which JAX does not where it is unknown."""
    for eqn in jaxpr.eqns:
        for inner in _compat.sub_jaxprs(eqn):
            _ask_sizes(inner, symbol, rows, label)
        if eqn.primitive.name == "reshape":
            before, after = (v.aval for v in (eqn.invars[0], eqn.outvars[0]))
            difference = math.prod(before.shape) - math.prod(after.shape)
            if _compat.is_symbolic(difference) and not symbol.ask("==", difference, rows):
                raise RowMixingError(
                    f"{label} reshapes {shown(before)} to {shown(after)}, at {_compat.source_line(eqn)}, which has not "
                    "as many entries. Expected a shape that fits."
                )


def refusal(label: str, error: Exception) -> RowMixingError:
    """The error of a function that cannot be traced, with the line of its own that asked."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, frame in enumerate(frames) if not any(part in frame.filename for part in _LIBRARIES)]
    where = f" at {frames[own[-1]].filename}:{frames[own[-1]].lineno}, `{frames[own[-1]].line}`" if own else ""
    inside = [frame.name for frame in frames[own[-1] + 1 :] if "/jax/" in frame.filename] if own else []
    called = next((name for name in inside if not name.startswith("_") and name not in _WRAPPERS), None)
    reason = f"{type(error).__name__}: {shown(error)}".partition("\n")[0].rstrip(".")
    return RowMixingError(
        f"{label} cannot be traced for an unknown number of rows{where}: {reason}. Expected a function that takes any "
        f"number of rows. Fix: {_fix(called, reason)}"
    )


def of_unknown(error: Exception) -> bool:
    """Whether an error speaks of an unknown number of rows, as of a `fori_loop` over them."""
    return re.search(r"\bn\b|_DimExpr|[Ss]ymbolic dim|fori_loop with dynamic", shown(error)) is not None


def _fix(called: str | None, reason: str) -> str:
    if "fori_loop with dynamic" in reason:
        return "lax.scan over the rows, or a fixed number of steps: a loop as long as the rows has no reverse mode."
    if called == "associative_scan":
        return "lax.scan or jnp.cumsum in place of associative_scan, which unrolls by the number of rows."
    general = "use x.shape[0] only in shapes and arithmetic: not len(x), range(), int() or a number to draw from"
    return (
        f"{general}; or compute what {called} gives outside of the function, and pass it in."
        if called
        else f"{general}."
    )
