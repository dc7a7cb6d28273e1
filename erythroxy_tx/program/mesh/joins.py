"""How what each device added up comes together at the end of a pass. Not here: the collectives (`exchange.py`)."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from erythroxy_tx.program.folds import ADD
from erythroxy_tx.program.folds import FOLDS
from erythroxy_tx.program.folds import Fold as Adding
from erythroxy_tx.program.folds import compensated
from erythroxy_tx.program.folds import evaluated
from erythroxy_tx.program.mesh.exchange import extremes
from erythroxy_tx.program.mesh.exchange import of_each
from erythroxy_tx.program.mesh.exchange import summed
from erythroxy_tx.program.passes import Fold
from erythroxy_tx.program.rules.rule import mixing

Leaves = list[Any]
_BY_STEP = {
    ADD.step: "sum",
    compensated: "sum",
    FOLDS["max"].step: "max",
    FOLDS["min"].step: "min",
    FOLDS["any"].step: "max",
    FOLDS["all"].step: "min",
}
_SCATTERED = {"scatter-add": "sum", "scatter-max": "max", "scatter-min": "min"}  # starts from an array of the user's


def way_of(task: Fold) -> str:
    """How a reduction is joined: by a `sum`, `max` or `min` over the devices, or in their order.

    **Raises:** `RowMixingError` for one that is none of these.
    """
    if task.how.start is None:
        return _BY_STEP.get(task.how.fold.step, "in order")
    if task.eqn.name not in _SCATTERED:
        raise mixing(
            task.eqn, "whose rows write over each other", "tx.chunked(lax.map, …), or a sum in place of what is set"
        )
    return _SCATTERED[task.eqn.name]


def started(task: Fold, state: Any, me: Any) -> Any:
    """Where a device begins: what a sum starts from counts once."""
    if task.how.start is None or way_of(task) != "sum":
        return state
    return jax.tree.map(lambda x: jnp.where(me == 0, x, jnp.zeros_like(x)), state)


def joined(tasks: list[Fold], hows: list[Adding], states: Leaves, axis: str, devices: int, has_rows: Any) -> Leaves:
    """The states of all devices as one, the same on each.

    **Arguments:** `has_rows`: whether this device had any rows.
    """
    ways = [way_of(task) for task in tasks]
    pairs = [how.step is compensated for how in hows]
    plain = [evaluated(state) if pair else state for state, pair in zip(states, pairs, strict=True)]
    found = dict[int, Any]()
    for way in ("sum", "max", "min"):
        own = [i for i, each in enumerate(ways) if each == way]
        values = [plain[i] for i in own]
        ends = summed(values, axis) if way == "sum" else extremes(values, axis, largest=way == "max")
        found |= zip(own, ends, strict=True)
    own = [i for i, each in enumerate(ways) if each == "in order"]
    if own:
        leaves, structure = jax.tree.flatten([states[i] for i in own])
        *stacks, had = of_each([*leaves, jnp.asarray(has_rows)], axis, devices)
        for i, stack in zip(own, jax.tree.unflatten(structure, stacks), strict=True):
            found[i] = _in_order(hows[i], stack, had, devices)
    return [(found[i], jnp.zeros_like(found[i])) if pair else found[i] for i, pair in enumerate(pairs)]


def _in_order(how: Adding, stack: Any, had: Any, devices: int) -> Any:
    """One state after the other, those of devices without rows passed over."""

    def both(before: tuple[Any, Any], after: tuple[Any, Any]) -> tuple[Any, Any]:
        (old, is_there), (new, more) = before, after
        picked = functools.partial(_picked, is_there, more)
        return jax.tree.map(picked, how.step(old, new), old, new), is_there | more

    each = [(jax.tree.map(operator.itemgetter(i), stack), had[i]) for i in range(devices)]
    return functools.reduce(both, each)[0]


def _picked(is_there: Any, more: Any, both: Any, old: Any, new: Any) -> Any:
    return jnp.where(more, jnp.where(is_there, both, new), old)
