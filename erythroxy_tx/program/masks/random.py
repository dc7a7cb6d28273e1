"""Random numbers by their places among those that are there. Not here: other generators than threefry, which are
refused: what they draw for one place depends on how many there are.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.masks.rule import Leaves
from erythroxy_tx.program.masks.rule import Mask
from erythroxy_tx.program.masks.rule import Run
from erythroxy_tx.program.rules.random import drawn
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import mixing


def random_bits(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`bits[i] = threefry(key, place of i)`, in the shape that is there."""
    keys, out = len(eqn.ins[0].at), eqn.outs[0]
    kind = eqn.ins[0].dtype
    if not _compat.counts_positions(kind):
        raise mixing(eqn, f"drawn by {_compat.key_impl(kind)}, as all of them at once", "a threefry key, partitionable")
    if all(axis < keys for axis in out.rows):
        return bound(eqn, ins)
    if keys:
        raise mixing(eqn, "from many keys", "jax.vmap over one key each")
    if math.prod(out.at) >= 2**32:
        raise mixing(eqn, "of more numbers than 32 bits count", "fewer of them")
    place: Any = jnp.zeros(out.at, jnp.uint32)
    for axis, size in enumerate(extents.sizes(out)):
        place = place * jnp.asarray(size, jnp.uint32) + lax.broadcasted_iota(jnp.uint32, out.at, axis)
    return [drawn(eqn, ins[0], place)]


RULES: dict[str, Mask] = dict.fromkeys(["random_bits", "random_split"], random_bits)
