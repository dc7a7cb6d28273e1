"""A program that gives results and gradients, cut in two: what can be computed before a cotangent is known, and the
rest.

What has no rows and was reduced from rows (a mean, a Gram matrix, the solution of a system) crosses the cut: it is
small, and adding it up again would take a pass. Rows are computed again, or kept where nothing is saved by that.
Not here: how either half runs.
"""

import dataclasses

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value

_AGAIN = frozenset(["broadcast_in_dim", "iota", "reshape", "transpose"])  # takes no work


@dataclasses.dataclass(frozen=True)
class Halves:
    """`forward` gives the results and after them what crosses; `backward` takes arguments, cotangents and that."""

    forward: Program
    backward: Program


def cut(program: Program, arguments: int, results: int, *, rows: bool = False) -> Halves:
    """Cut a program of (arguments, cotangents) → (results, gradients).

    **Arguments:** `arguments`, `results`: how many inputs and outputs are those. `rows`: whether rows are kept too.
    """
    late = _downstream(program.equations, set(program.ins[arguments:]))
    of_rows = _downstream(program.equations, {v for v in program.ins[:arguments] if v.rows})
    crossing: dict[Value, None] = {}
    waiting, seen = list(program.outs[results:]), set[Value]()
    while waiting:
        value = waiting.pop()
        if value in seen or value.maker is None or value.known is not None:
            continue
        seen.add(value)
        reduced = not value.rows and value in of_rows
        if value not in late and (reduced or (rows and value.maker.name not in _AGAIN)):
            crossing[value] = None
        else:
            waiting += value.maker.ins
    order = sorted(crossing, key=lambda v: v.maker.index if v.maker else 0)
    ins, outs = program.ins, program.outs
    return Halves(
        dataclasses.replace(program, ins=ins[:arguments], outs=[*outs[:results], *order]),
        dataclasses.replace(program, ins=[*ins, *order], outs=outs[results:]),
    )


def _downstream(equations: list[Equation], values: set[Value]) -> set[Value]:
    """The values, and everything that is computed from them."""
    found = set(values)
    for eqn in equations:
        if not found.isdisjoint(eqn.ins):
            found.update(eqn.outs)
    return found
