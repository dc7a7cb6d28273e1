"""What a plan that is run from the host needs beside the rows of a chunk: rows that are read again, and what it cannot
have, which is all rows of anything.
"""

from typing import Any

from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.passes import Store
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.rows import Step
from erythroxy_tx.program.rules.loops import programs_of
from erythroxy_tx.program.rules.rule import mixing

_FIX = "tx.chunked(lax.map, …), which holds all rows"
_IN_LOOPS = "jax.checkpoint around the body of a loop that is differentiated"


def small_reads(steps: list[Step]) -> list[tuple[Value, Want]]:
    """The parts of values that are read between two passes, and not computed there."""
    small = [step for step in steps if step.request is not None]
    made = {v for step in small for v in step.eqn.outs}
    pairs = [pair for step in small for pair in zip(step.eqn.ins, step.wants(), strict=True)]
    return [(value, want) for value, want in pairs if want is not None and value not in made]


def read_again(plan: Plan) -> dict[Value, int]:
    """Values with rows that are written down and of which chunks of later passes need some, with the last such pass."""
    written = {t.value for one in plan.passes for t in one.tasks if isinstance(t, Store)}
    found: dict[Value, int] = {}
    for index, steps in enumerate(plan.before):
        reads = [value for value, _ in small_reads(steps)]
        if index < len(plan.passes):
            one = plan.passes[index]
            rows = [rows for rows in (one.grid.chunk, one.grid.last) if rows.extent and one.grid.size]
            reads += [v for each in rows for v in plan.needs(one, each).reads]
        found |= {v: index for v in reads if v in written}
    return found


def check(host: Any) -> None:
    """Refuse what a `HostRun` cannot do.

    **Raises:** `RowMixingError` if a chunk, or anything between two passes, needs all rows of anything.
    """
    for step in (step for steps in host.plan.before for step in steps):
        if step.request is None and step.eqn in host.plan.kinds:
            loop = bool(programs_of(step.eqn))
            why = "whose carry or results have rows" if loop else "which needs all rows at once"
            raise mixing(step.eqn, why, f"{_IN_LOOPS}; or {_FIX}" if loop else _FIX)
    for value in host.read_again:
        if value.keys and value.maker is not None:
            raise mixing(value.maker, "random keys, of which other chunks need rows", "fold_in the row")
    _check_side_by_side(host.plan)
    for one in host.passes:
        for rows in (one.grid.chunk, one.grid.last):
            parts = host.parts(one, rows) if rows.extent and one.grid.size else ()
            if long := next((v for v, want in parts if any(p is not None and p.long for p in want)), None):
                raise mixing(one.tasks[0].eqn, f"for which every chunk needs all rows of {long}", _FIX)
    there = {v for v in host.plan.program.ins if not v.rows}
    for index in range(len(host.plan.before)):
        for value, want in host.small_parts(index):
            asked = next((piece.start.reads() for piece in want if piece is not None), None)
            if any(piece is not None and piece.long for piece in want):
                reader = next(s.eqn for s in host.plan.before[index] if value in s.eqn.ins)
                raise mixing(reader, f"which needs all rows of {value}", _FIX)
            if asked is not None and asked not in there and asked.known is None:
                reader = next(s.eqn for s in host.plan.before[index] if value in s.eqn.ins)
                raise mixing(reader, "which reads rows at a place that was computed just before", _FIX)
        there.update(v for step in host.plan.before[index] for v in step.eqn.outs)
        if index < len(host.passes):
            one = host.passes[index]
            there.update(v for eqn in (one.loop, *(task.eqn for task in one.tasks)) if eqn for v in eqn.outs)


def _check_side_by_side(plan: Plan) -> None:
    """Rows that are handed out together are of one grid."""
    for value in plan.yielded:
        assert value.maker is not None
        if not any(isinstance(task, Store) and task.value is value for task in plan.passes[-1].tasks):
            own, others = value.at[value.rows[0]], plan.passes[-1].grid.size
            why = f"whose {own} rows cannot be handed out beside the {others} of another result"
            raise mixing(value.maker, why, "out=iter for one of them, a file for the other")
