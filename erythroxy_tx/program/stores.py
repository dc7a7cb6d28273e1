"""Which values with rows are written down, rather than computed again in each pass that needs them.

Not here: what has to be written down in any case, since a chunk needs all of its rows (`plan.py`).
"""

import math
from collections.abc import Iterator

from erythroxy_tx.errors import BudgetError
from erythroxy_tx.program.blocks import block_shape
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.passes import Grid
from erythroxy_tx.program.passes import Store
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.plan import plan_of
from erythroxy_tx.program.rows import Step
from erythroxy_tx.program.work import bytes_of
from erythroxy_tx.program.work import work
from erythroxy_tx.units import format_bytes

PAYS = 1.25  # a plan that computes less than this many times what one-shot does is left as it is
LIMIT = 16.0  # and one that computes more than this many times is refused


def cheapest_plan(program: Program, size: int, allowed: int | None = None) -> Plan:
    """The plan that computes least, with at most `allowed` bytes written down.

    **Arguments:**

    - `allowed`: bytes of values that are there at one time, beside those that have to be; by default as much as
        arguments and results take.

    **Raises:** `BudgetError` if it would compute more than `LIMIT` times what one-shot does.
    """
    plan = plan_of(program, size)
    forced = peak_bytes(plan)
    if allowed is None:
        allowed = sum(map(bytes_of, {*program.ins, *program.outs}))
    if factor(plan) > PAYS:
        for candidate in _candidates(plan):
            if factor(candidate) < factor(plan) and peak_bytes(candidate) <= allowed + forced:
                plan = candidate
                break
    if factor(plan) > LIMIT:
        raise BudgetError(
            f"{len(plan.passes)} passes, which compute {factor(plan):.1f} times what one-shot computes, with "
            f"{format_bytes(allowed)} for values that are written down. Expected at most {LIMIT:g} times. Fix: a "
            "larger budget=."
        )
    return plan


def _candidates(plan: Plan) -> Iterator[Plan]:
    """The plan with what each pass takes up from earlier ones written down; then every second such pass, …"""
    borders = [values for index in range(1, len(plan.passes)) if (values := _border(plan, index))]
    every = 1
    while every <= len(borders):
        chosen = {v: None for values in borders[every - 1 :: every] for v in values}
        yield plan_of(plan.program, plan.size, chosen)
        every *= 2


def _border(plan: Plan, index: int) -> list[Value]:
    """The values that a pass computes again and that something new is computed from."""
    before = {step.eqn for one in plan.passes[:index] for step in plan.needs(one, one.grid.chunk).steps}
    one = plan.passes[index]
    steps = plan.needs(one, one.grid.chunk).steps
    again = {step.eqn for step in steps} & before
    used = [v for step in steps if step.eqn not in again for v in step.eqn.ins] + [
        v for v, _ in one.targets(one.grid.chunk)
    ]
    return [v for v in dict.fromkeys(used) if v.maker in again and len(v.rows) == 1]


def factor(plan: Plan) -> float:
    """How many times what one-shot computes a plan computes."""
    once = sum(work(eqn) for eqn in plan.kinds)
    return max(1.0, plan_work(plan) / once) if once else 1.0


def plan_work(plan: Plan) -> float:
    """Operations of a plan, those between its passes not among them."""
    total = 0.0
    for one in plan.passes:
        tasks = [task.eqn for task in one.tasks if not isinstance(task, Store)]
        written = sum(bytes_of(task.value) / 4 for task in one.tasks if isinstance(task, Store))
        steps = plan.needs(one, one.grid.chunk).steps
        total += sum(map(work, tasks)) + sum(work(step.eqn) * _share(step, one.grid) for step in steps) + written
    whole = [step.eqn for steps in plan.before for step in steps if step.request is None and step.eqn in plan.kinds]
    return total + sum(map(work, [*whole, *(one.loop for one in plan.passes if one.loop is not None)]))


def _share(step: Step, grid: Grid) -> float:
    """How much of its equation a step computes in all chunks of a grid; what is the same for each counts once."""
    value, part = next((v, part) for v, part in zip(step.eqn.outs, step.given(), strict=True) if part is not None)
    if all(piece.long for piece in part if piece is not None):
        return 1.0
    return math.prod(block_shape(value.at, part)) / max(1, math.prod(value.at)) * grid.size / grid.step


def peak_bytes(plan: Plan) -> int:
    """The most bytes of written values that are there at one time, arguments and results not among them."""
    born = {t.value: i for i, one in enumerate(plan.passes) for t in one.tasks if isinstance(t, Store)}
    spans = [(born[v], last, bytes_of(v)) for v, last in plan.last_read.items()]
    return max((sum(size for a, b, size in spans if a <= i <= b) for i in range(len(plan.passes))), default=0)
