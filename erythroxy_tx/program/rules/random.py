"""Random numbers by row. With threefry each number is a function of the key and its position among all, so that a
chunk draws what the whole would have drawn; with other generators they are drawn for all rows at once.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import block_shape
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import bound


class RandomBits(Rule):
    """`bits[i] = threefry(key, position of i)`, for the numbers of one key or the keys split from it."""

    def kind(self, eqn: Equation) -> Kind:
        keys = len(eqn.ins[0].at)
        counted = _compat.counts_positions(eqn.ins[0].dtype) and math.prod(eqn.outs[0].at) < 2**32
        own = all(i < keys for i in eqn.outs[0].rows)  # rbg draws for a batch of keys from the first of them
        return Kind.BLOCK if counted and (own or not keys) else Kind.WHOLE

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        return [request[: len(eqn.ins[0].at)]]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:
        keys = len(eqn.ins[0].at)
        if all(i < keys for i in eqn.outs[0].rows):
            return bound(eqn, ins)
        shape, position = block_shape(eqn.outs[0].at, request), jnp.zeros((), jnp.uint32)
        for axis, part in enumerate(request):
            each = math.prod(eqn.outs[0].at[axis + 1 :])
            row = lax.broadcasted_iota(jnp.uint32, shape, axis)
            first = jnp.asarray(at(part.start) if part else 0).astype(jnp.uint32)
            position = position + (row + first) * jnp.uint32(each)
        return [drawn(eqn, ins[0], jnp.broadcast_to(position, shape))]


def drawn(eqn: Equation, key: Any, position: Any) -> Any:
    """What one key gives at these positions: bits, or keys split from it."""
    data = jax.random.key_data(key)
    high, low = _compat.threefry(data[0], data[1], jnp.zeros_like(position), position)
    if eqn.name == "random_split":
        return jax.random.wrap_key_data(jnp.stack([high, low], axis=-1), impl=_compat.key_impl(eqn.outs[0].dtype))
    if eqn.params["bit_width"] == 64:
        wide = lax.shift_left(high.astype(jnp.uint64), jnp.uint64(32))
        return wide | low.astype(jnp.uint64)
    return lax.convert_element_type(high ^ low, eqn.outs[0].dtype)


RULES: dict[str, Rule] = dict.fromkeys(["random_bits", "random_split"], RandomBits())
