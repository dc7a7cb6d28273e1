"""One mask a primitive, gathered by theme. A primitive that is not here is refused."""

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.masks import along
from erythroxy_tx.program.masks import indexing
from erythroxy_tx.program.masks import joins
from erythroxy_tx.program.masks import layout
from erythroxy_tx.program.masks import loops
from erythroxy_tx.program.masks import random
from erythroxy_tx.program.masks import reductions
from erythroxy_tx.program.masks import windows
from erythroxy_tx.program.masks.rule import Mask
from erythroxy_tx.program.masks.rule import plain
from erythroxy_tx.program.rules import elementwise
from erythroxy_tx.program.rules.rule import mixing

RULES: dict[str, Mask] = dict.fromkeys(elementwise.RULES, plain)
for family in (layout, joins, reductions, indexing, along, loops, windows, random):
    RULES.update(family.RULES)


def mask_of(eqn: Equation) -> Mask:
    """The mask of an equation.

    **Raises:** `RowMixingError` if there is none.
    """
    found = RULES.get(eqn.name)
    if found is None:
        raise mixing(eqn, "and no rule says how it treats rows that are not there", "apply it along another axis")
    return found


def is_plain(eqn: Equation) -> bool:
    """Whether an equation is run as it is whatever is there."""
    return RULES.get(eqn.name) in (plain, layout.broadcast, layout.iota)
