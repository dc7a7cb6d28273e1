"""What a mask is: how one primitive runs for fewer rows than there is place for. Not here: any primitive.

It is given whole inputs, of which the first rows are there (`extents.py`), and gives outputs of the same kind. What
comes after may not reach what is there.
"""

from collections.abc import Callable
from typing import Any

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.rules.rule import bound

Leaves = list[Any]
Run = Callable[[Program, Leaves], Leaves]  # a program inside of an equation
Mask = Callable[[Equation, Leaves, Extents, Run], Leaves]


def plain(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """The equation as it is: each entry comes from entries at its own place."""
    return bound(eqn, ins)
