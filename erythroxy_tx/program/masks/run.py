"""A program for up to so many rows, run for fewer. Not here: what an equation does with them (`masks/`)."""

from collections.abc import Iterator
from typing import Any

from erythroxy_tx import _compat
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.masks import is_plain
from erythroxy_tx.program.masks import mask_of
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.rows import live
from erythroxy_tx.program.rules.loops import programs_of
from erythroxy_tx.program.rules.rule import mixing

Leaves = list[Any]


def run_masked(program: Program, args: Leaves, results: int | None = None) -> Leaves:
    """A program whose first inputs are the numbers of rows that are there, one for each name of its symbol.

    **Arguments:** `results`: how many of its outputs are zero past the end, and not anything; by default all.
    """
    extents = Extents(program.symbol, tuple(args[: len(program.symbol.names)]))
    outs = _run(program, args, extents)
    clean = [v.rows and not v.keys and (results is None or i < results) for i, v in enumerate(program.outs)]
    return [extents.only(x, v) if zero else x for x, v, zero in zip(outs, program.outs, clean, strict=True)]


def _run(program: Program, args: Leaves, extents: Extents) -> Leaves:
    there = dict(zip(program.ins, args, strict=True))

    def read(value: Any) -> Any:
        return value.known if value.known is not None else there[value]

    def inside(program: Program, args: Leaves) -> Leaves:
        return _run(program, args, extents)

    for eqn in live(program):
        ins = [read(v) for v in eqn.ins]
        if needs_mask(eqn):
            outs = mask_of(eqn)(eqn, ins, extents, inside)
        else:
            outs = _compat.bind(eqn.primitive, ins, eqn.params)
        there.update(zip(eqn.outs, outs, strict=True))
    return [read(v) for v in program.outs]


def needs_mask(eqn: Equation) -> bool:
    """Whether an equation has to do with rows, or asks how many there are, itself or in a program inside.

    **Raises:** `RowMixingError` if it does, and has an effect on something else.
    """
    found = eqn.rows or eqn.name == "dim_as_value" or any(map(needs_mask, _within(eqn)))
    if found and eqn.effects:
        raise mixing(eqn, "which would happen for rows that are not there", "take it out of the function")
    return found


def _within(eqn: Equation) -> Iterator[Equation]:
    for program in programs_of(eqn):
        yield from program.equations


def masks_in(program: Program) -> Iterator[Equation]:
    """The equations that do something else where some rows are not there."""
    for eqn in live(program):
        if needs_mask(eqn) and not is_plain(eqn):
            yield eqn
        for inner in programs_of(eqn):
            yield from masks_in(inner)
