"""Finds work that was to be timed and that the compiler removes: results that reach no output, results
that depend on no argument, outputs that are inputs. Read from the traced program, which still holds all
that was written; lowering drops the dead part. Not here: anything that is measured.
"""

import collections
import itertools
import operator
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
import jax.tree_util as jtu

from erythroxy_tx._compat import Literal
from erythroxy_tx._compat import all_constants
from erythroxy_tx._compat import source_line
from erythroxy_tx._compat import sub_jaxprs
from erythroxy_tx.measurement.work import work
from erythroxy_tx.units import format_bytes

_SHARE = 0.1  # of the work; less is what library functions leave over
_FLOPS = 0.4  # compiled over written; sharing of common subexpressions alone often reaches a half
_LARGE = 2**20  # bytes of captured constants
_LINES = 3  # most source lines to name

_CALLS = {"jit", "pjit", "closed_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call"}

_Times = list[tuple[Any, float]]  # equations, each with how often it would run


def findings(traced: jax.stages.Traced, names: Sequence[str]) -> list[str]:
    """Say what of a traced program the compiler removes, or may.

    **Arguments:**

    - `traced`: the program as it was written.
    - `names`: the user's name of each of its inputs; ignored if the number differs.

    **Returns:** sentences, none if all work counts.
    """
    jaxpr = traced.jaxpr.jaxpr
    if len(names) != len(jaxpr.invars):
        names = [f"input {i}" for i in range(len(jaxpr.invars))]
    outputs = [jtu.keystr(path) for path, _ in jtu.tree_flatten_with_path(traced.out_info)[0]]
    return [
        *_dead(jaxpr),
        *_constant(jaxpr),
        *_unchanged(dict(zip(jaxpr.invars, names, strict=True)), zip(outputs, jaxpr.outvars, strict=True)),
        *_captured(traced.jaxpr),
    ]


def flops_removed(lowered: jax.stages.Lowered, compiled: jax.stages.Compiled) -> list[str]:
    """Say so if the compiled program does far fewer operations than the one that was written."""
    written, done = _flops(lowered), _flops(compiled)
    # A running sum is written as a window over all rows, and compiled as something better.
    if not (written > 0 and done > 0) or done >= _FLOPS * written or "reduce_window" in lowered.as_text():
        return []
    written_to_done = f"{done:.3g} of the {written:.3g} floating-point operations that were written"
    return [f"the compiled program does {written_to_done}: XLA folded, shared or removed the rest."]


def _flops(stage: Any) -> float:
    return float((stage.cost_analysis() or {}).get("flops", 0))


# ------------------------------------------------------------------ the rules


def _dead(jaxpr: Any) -> list[str]:
    dead = [(eqn, times * work(eqn)) for eqn, times in _dead_equations(jaxpr, jaxpr.outvars, 1)[0]]
    share = _share(dead, jaxpr)
    if share < _SHARE:
        return []
    finding = f"about {share:.0%} of the work reaches no output, so the compiler removes it and it is not timed"
    return [f"{finding}: {_lines(dead)}. Return it, unless it is what a derivative leaves over."]


def _constant(jaxpr: Any) -> list[str]:
    constant, varying = _constant_equations(jaxpr, jaxpr.invars, 1)
    if jaxpr.outvars and not any(_among(varying, jaxpr.outvars)):
        every = [(eqn, times * work(eqn)) for eqn, times in constant]
        finding = "no result depends on an argument, so the compiler may fold the work into constants"
    else:
        every = [(eqn, times * work(eqn, only_heavy=True)) for eqn, times in constant]
        share = _share(every, jaxpr)
        if share < _SHARE:
            return []
        finding = f"about {share:.0%} of the work depends on no argument, so the compiler may do it beforehand"
    return [f"{finding}{': ' if _lines(every) else ''}{_lines(every)}. Pass the arrays as arguments."]


def _unchanged(inputs: dict[Any, str], outputs: Iterable[tuple[str, Any]]) -> list[str]:
    return [
        f"result{path} is {inputs[var]} unchanged: no work."
        for path, var in outputs
        if not isinstance(var, Literal) and var in inputs
    ]


def _captured(closed: Any) -> list[str]:
    count = sum(getattr(value, "nbytes", 0) for value in all_constants(closed))
    if count < _LARGE:
        return []
    finding = f"{format_bytes(count)} of captured arrays are constants inside the program, in no figure of bytes"
    return [f"{finding}. Pass them as arguments."]


def _share(part: _Times, jaxpr: Any) -> float:
    whole = sum(work(eqn) for eqn in jaxpr.eqns)
    return sum(operations for _, operations in part) / whole if whole else 0.0


def _lines(operations: _Times) -> str:
    by_line: collections.Counter[str] = collections.Counter()
    for eqn, count in operations:
        if count:
            by_line[source_line(eqn)] += int(count)
    more = len(by_line) - _LINES
    return ", ".join(line for line, _ in by_line.most_common(_LINES)) + (f" and {more} more" if more > 0 else "")


# ------------------------------------------------------------------ what depends on what


def _dead_equations(jaxpr: Any, wanted: Iterable[Any], times: float) -> tuple[_Times, set[Any]]:
    """The equations that reach none of the wanted variables, and the variables that do."""
    live = set(_variables(wanted))
    dead: _Times = []
    for eqn in reversed(jaxpr.eqns):
        used = _among(live, eqn.outvars)
        if not any(used) and not eqn.effects:
            dead.append((eqn, times))
            continue
        needed = eqn.invars
        for body in sub_jaxprs(eqn):
            is_call = _is_call(eqn, body)
            inner = body.outvars
            if is_call:
                inner = itertools.compress(inner, used)
            elif eqn.primitive.name == "scan":
                inner = itertools.compress(inner, map(operator.or_, used, _carried(eqn, body)))
            more, live_inside = _dead_equations(body, inner, times * eqn.params.get("length", 1))
            dead += more
            if is_call:
                needed = itertools.compress(eqn.invars, _among(live_inside, body.invars))
        live.update(_variables(needed))
    return dead, live


def _constant_equations(jaxpr: Any, given: Iterable[Any], times: float) -> tuple[_Times, set[Any]]:
    """The equations that depend on none of the given variables, and the variables that do."""
    varying = set(given)
    constant: _Times = []
    for eqn in jaxpr.eqns:
        depends = _among(varying, eqn.invars)
        body = next(sub_jaxprs(eqn), None)
        if not any(depends) and not eqn.effects:
            constant.append((eqn, times))
        elif body is not None and _is_call(eqn, body):
            more, inside = _constant_equations(body, itertools.compress(body.invars, depends), times)
            constant += more
            varying.update(itertools.compress(eqn.outvars, _among(inside, body.outvars)))
        else:
            varying.update(eqn.outvars)
    return constant, varying


def _is_call(eqn: Any, body: Any) -> bool:
    """Whether the inputs and outputs of an equation are those of the program inside, in order."""
    sizes = len(body.invars) == len(eqn.invars) and len(body.outvars) == len(eqn.outvars)
    return eqn.primitive.name in _CALLS and sizes


def _carried(scan: Any, body: Any) -> list[bool]:
    """Which outputs of a scan are its carry, which the next step wants; a stacked one has an axis more."""
    return [inner.aval.shape == outer.aval.shape for inner, outer in zip(body.outvars, scan.outvars, strict=True)]


def _variables(atoms: Iterable[Any]) -> Iterator[Any]:
    return (atom for atom in atoms if not isinstance(atom, Literal))


def _among(variables: set[Any], atoms: Iterable[Any]) -> list[bool]:
    return [not isinstance(atom, Literal) and atom in variables for atom in atoms]
