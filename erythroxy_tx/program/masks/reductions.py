"""Reductions over the rows that are there: the others are numbers that change nothing."""

from typing import Any

import jax
import jax.numpy as jnp

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.folds import FOLDS
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.masks.rule import Leaves
from erythroxy_tx.program.masks.rule import Mask
from erythroxy_tx.program.masks.rule import Run
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import mixing


def lowest(dtype: Any) -> Any:
    """A number that no number of a dtype is below."""
    return FOLDS["max"].start(jax.ShapeDtypeStruct((), dtype))


def highest(dtype: Any) -> Any:
    """A number that no number of a dtype is above."""
    return FOLDS["min"].start(jax.ShapeDtypeStruct((), dtype))


def _neutral(name: str, dtype: Any) -> Any:
    kind = name.removeprefix("reduce_").removeprefix("arg").removeprefix("cum")
    if kind in ("max", "min"):
        return (lowest if kind == "max" else highest)(dtype)
    if kind == "and":
        return jnp.bitwise_not(jnp.zeros((), dtype))
    return {"prod": 1, "logsumexp": -jnp.inf}.get(kind, 0)


_IDEMPOTENT = {"min", "max", "and", "or"}


def reduction(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`out = op over axes of x`; of equal extremes the first is taken, which is one that is there."""
    source = eqn.ins[0]
    reduced = [i for i in source.rows if i in eqn.params["axes"]]
    return bound(eqn, [extents.only(ins[0], source, reduced, _neutral(eqn.name, source.dtype))])


def checked(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Equinox's check of a batch: what is not there is right."""
    return bound(eqn, [extents.only(ins[0], eqn.ins[0], fill=eqn.name == "unvmap_all")])


def variadic(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """A reduction by a program of the user's. Of one that only takes extremes, the starting values change nothing."""
    reduced = [i for i in eqn.ins[0].rows if i in eqn.params["dimensions"]]
    if not reduced:
        return bound(eqn, ins)
    if not {each.primitive.name for each in eqn.params["jaxpr"].eqns} <= _IDEMPOTENT:
        raise mixing(eqn, "by an operation of its own", "a sum, a maximum or a scan in its place")
    count = len(eqn.outs)
    found = [extents.only(ins[i], eqn.ins[i], reduced, ins[count + i]) for i in range(count)]
    return bound(eqn, [*found, *ins[count:]])


def dot(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`out = sum over the contracted axes of a * b`: zeros on both sides."""
    found = []
    for x, value, contracted in zip(ins, eqn.ins, eqn.params["dimension_numbers"][0], strict=True):
        found.append(extents.only(x, value, [i for i in contracted if i in value.rows]))
    if eqn.ins[0].dtype == jnp.bfloat16 and any(new is not old for new, old in zip(found, ins, strict=True)):
        found = [jax.lax.optimization_barrier(x) for x in found]  # XLA's CPU cannot select before a product. 0.10.2
    return bound(eqn, found)


def running(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`cumsum` and its kin; from the end they start where the rows end."""
    axis, x = eqn.params["axis"], ins[0]
    if eqn.params["reverse"] and axis in eqn.ins[0].rows:
        x = extents.only(x, eqn.ins[0], [axis], _neutral(eqn.name, eqn.ins[0].dtype))
    return bound(eqn, [x])


_REDUCTIONS = ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor"]
RULES: dict[str, Mask] = dict.fromkeys([*_REDUCTIONS, "argmax", "argmin"], reduction)
RULES |= dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"], running)
RULES |= {"dot_general": dot, "reduce": variadic, "unvmap_any": checked, "unvmap_all": checked}
