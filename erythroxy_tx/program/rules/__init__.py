"""One rule a primitive, gathered by theme. A primitive that is not here is refused."""

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.rules import along
from erythroxy_tx.program.rules import elementwise
from erythroxy_tx.program.rules import indexing
from erythroxy_tx.program.rules import joins
from erythroxy_tx.program.rules import layout
from erythroxy_tx.program.rules import loops
from erythroxy_tx.program.rules import random
from erythroxy_tx.program.rules import reductions
from erythroxy_tx.program.rules import scatter
from erythroxy_tx.program.rules import windows
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import mixing

RULES: dict[str, Rule] = {}
for family in (elementwise, layout, joins, reductions, indexing, scatter, along, loops, windows, random):
    RULES.update(family.RULES)


def rule_of(eqn: Equation) -> Rule:
    """The rule of an equation.

    **Raises:** `RowMixingError` if there is none.
    """
    found = RULES.get(eqn.name)
    if found is None:
        raise mixing(eqn, "and no rule says how it treats rows", "apply it along another axis, or outside")
    return found
