"""A plan in words: its passes, what each adds up, carries and writes down, and its bytes as a formula in n.

Not here: the stack around it (`explanation.py`).
"""

import collections
import math
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp

from erythroxy_tx import _compat
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.inside import inside_of
from erythroxy_tx.program.masked import Masked
from erythroxy_tx.program.masks.run import masks_in
from erythroxy_tx.program.passes import Carry
from erythroxy_tx.program.passes import Pass
from erythroxy_tx.program.passes import Store
from erythroxy_tx.program.passes import Task
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.plan import plan_of
from erythroxy_tx.program.rules.loops import programs_of
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import without_rows
from erythroxy_tx.program.stores import factor
from erythroxy_tx.program.stores import peak_bytes
from erythroxy_tx.program.symbol import shown
from erythroxy_tx.units import format_bytes

_SHOWN = 6  # equations of a pass, the dearest first


def told(plan: Plan) -> list[str]:
    """The plan, one line a sentence."""
    lines = [_summary(plan)]
    for index, one in enumerate(plan.passes):
        lines += _between(plan, index)
        lines += _pass(plan, index, one)
    lines += _between(plan, len(plan.passes))
    lines += ["bytes, for n rows:", *_bytes(plan)]
    return lines


def _summary(plan: Plan) -> str:
    loops = sum(one.loop is not None for one in plan.passes)
    own = sum(bool(one.tasks) for one in plan.passes)
    passes = f"{own} pass{'es' * (own != 1)}" if own else "no pass"
    passes += f" and {loops} loop{'s' * (loops != 1)}" if loops else ""
    again = factor(plan)
    return f"{passes} over the rows; computes {again:.1f} times what one-shot does" if plan.passes else passes


def _pass(plan: Plan, index: int, one: Pass) -> list[str]:
    way = ", from the last chunk to the first" if one.reverse else ""
    grid = one.grid
    if one.loop is not None:
        of: Equation = one.loop.params["of"]
        gives = f"{of.name} → {', '.join(map(str, of.outs))}{_at(of)}"
        inner = [line for each in inside_of(one.loop) for line in _inside(each.program, plan.size)]
        return [f"pass {index + 1}: a loop, each turn of which is: {gives}", *inner]
    if not one.tasks:
        return [f"pass {index + 1}: only the rows at a place that was computed are read"]
    lines = [f"pass {index + 1}: {grid.size} rows in {grid.count} chunks of {min(grid.step, grid.size)}{way}"]
    found = plan.needs(one, grid.chunk)
    names = collections.Counter(step.eqn.name for step in found.steps)
    if names:
        most = [name if times == 1 else f"{name} ×{times}" for name, times in names.most_common(_SHOWN)]
        lines.append(f"    computes {', '.join(most)}{', …' * (len(names) > _SHOWN)}")
    return lines + [f"    {_task(plan, task)}" for task in one.tasks]


def _task(plan: Plan, task: Task) -> str:
    if isinstance(task, Store):
        what = "writes the result" if task.value in plan.program.outs else "writes down"
        what = "hands out the rows of" if task.value in plan.yielded else what
        return f"{what} {task.value}{_at(task.eqn)}"
    verb = "carries" if isinstance(task, Carry) else "adds up"
    kept = ", kept at the start of each chunk" if isinstance(task, Carry) and task.saved else ""
    return f"{verb} {task.eqn.name} → {', '.join(map(str, task.eqn.outs))}{_at(task.eqn)}{kept}"


def _at(eqn: Equation) -> str:
    return f", {eqn.line}" if eqn.line else ""


def _between(plan: Plan, index: int) -> list[str]:
    steps = plan.before[index]
    whole = [s.eqn for s in steps if s.eqn in plan.kinds and plan.kinds[s.eqn] is Kind.WHOLE]
    free = collections.Counter(s.eqn.name for s in steps if s.eqn not in whole)
    lines = []
    for eqn in whole:
        what = f"{eqn.name} → {', '.join(map(str, eqn.outs))}{_at(eqn)}"
        inner = [line for program in programs_of(eqn) for line in _inside(program, plan.size)]
        lines += [f"as it is, its body a stream: {what}", *inner] if inner else [f"on all rows at once: {what}"]
    if free:
        lines.append(f"once: {', '.join(list(free)[:_SHOWN])}{', …' * (len(free) > _SHOWN)}")
    return lines


def _inside(program: Program, size: int) -> list[str]:
    """The passes of a program inside of a loop or a branch."""
    if without_rows(program):
        return []
    plan, lines = plan_of(program, size), list[str]()
    for index, one in enumerate(plan.passes):
        lines += [*_between(plan, index), *_pass(plan, index, one)]
    return [f"    {line}" for line in [*lines, *_between(plan, len(plan.passes))]]


def _bytes(plan: Plan) -> list[str]:
    program = plan.program
    results = [v for v in dict.fromkeys(program.outs) if v.maker is not None]
    lines = [
        f"    arguments {_formula(program.ins)}, results {_formula(results)}",
        f"    the largest value on the way {_formula(_widest(plan))}, of which a chunk has {plan.size} rows and not n",
    ]
    if plan.stored:
        peak = f"{format_bytes(peak_bytes(plan))} at one time for n = {program.rows}"
        lines.append(f"    written down: {_formula(plan.stored)}; {peak}")
    squares = [v for eqn in plan.kinds for v in eqn.outs if len(v.rows) > 1]
    for value in sorted(squares, key=lambda v: -math.prod(v.at))[:1]:
        where = _at(value.maker) if value.maker else ""
        lines.append(f"    warning: {value} grows as n²{where}; a chunk holds {plan.size} of its rows")
    return lines


def _widest(plan: Plan) -> list[Value]:
    """The largest value with rows that is computed on the way."""
    made = [v for eqn in plan.kinds for v in eqn.outs if v.rows]
    return [max(made, key=lambda v: math.prod(v.at) * _each(v))] if made else []


def _each(value: Value) -> int:
    return 8 if value.keys else jnp.dtype(value.dtype).itemsize


def _formula(values: Iterable[Value]) -> str:
    """Bytes of values with the unknown in them: `256*n + 4096`."""
    total: Any = 0
    for value in values:
        total = total + math.prod(value.shape, start=1) * _each(value)
    return shown(total) if _compat.is_symbolic(total) else format_bytes(total)


def masked_told(masked: Masked) -> list[str]:
    """The programs for each kind of length, and what is masked in them, one line a sentence."""
    lines = []
    for one in masked.regimes:
        if one.trace is None:
            lines.append(f"{one.told} rows: refused, the function raises {type(one.error).__name__}")
        elif one.single:
            lines.append(f"{one.told} rows: as it is")
        else:
            found = collections.Counter(_masked_line(eqn) for eqn in masks_in(one.program))
            lines += [f"{one.told} rows: {len(found) or 'no'} equation{'s' * (len(found) != 1)} masked"]
            lines += [f"    {line}{f' ×{times}' * (times > 1)}" for line, times in found.items()]
    return lines


def _masked_line(eqn: Equation) -> str:
    return f"{eqn.name}: {', '.join(map(str, eqn.ins))} → {', '.join(map(str, eqn.outs))}{_at(eqn)}"
