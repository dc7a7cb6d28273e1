"""Equations that put rows beside each other: padding, concatenation."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import block_shape
from erythroxy_tx.program.blocks import everything
from erythroxy_tx.program.blocks import spread
from erythroxy_tx.program.blocks import within
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import bound


class Pad(Rule):
    """`out[i] = x[i - low]`, the padding value past both ends."""

    def kind(self, eqn: Equation) -> Kind:
        if eqn.outs[0].keys:
            return Kind.WHOLE
        inner = [int(c[2]) for i, c in enumerate(eqn.params["padding_config"]) if i in eqn.ins[0].rows]
        return Kind.WHOLE if any(inner) else Kind.BLOCK

    def _source(self, eqn: Equation, request: Want) -> dict[int, Range]:
        """For each axis of rows, the range of the input, which may reach past its ends."""
        low = [int(c[0]) for c in eqn.params["padding_config"]]
        return {
            i: (part or everything(eqn.outs[0].at[i])).moved(-low[i])
            for i, part in enumerate(request)
            if part is not None or i in eqn.ins[0].rows
        }

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        source = self._source(eqn, request)
        size = eqn.ins[0].at
        return [tuple(within(source[i], size[i]) if i in source else None for i in range(len(request))), ()]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:
        found, fill = ins
        source = self._source(eqn, request)
        edges = [(0, 0, 0) if i in source else c for i, c in enumerate(eqn.params["padding_config"])]
        found = lax.pad(found, fill, [(int(low), int(high), int(inner)) for low, high, inner in edges])
        for axis, part in source.items():
            found = spread(found, axis, part, eqn.ins[0].at[axis], fill, at)
        return [found]


class Concatenate(Rule):
    """Along rows, each row of the result is that of the piece in which it falls."""

    def kind(self, eqn: Equation) -> Kind:
        along = eqn.params["dimension"] in eqn.outs[0].rows
        return Kind.WHOLE if along and eqn.outs[0].keys else Kind.BLOCK

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        axis, part = eqn.params["dimension"], request[eqn.params["dimension"]]
        if part is None:
            return [
                request if axis not in v.rows else (*request[:axis], everything(v.at[axis]), *request[axis + 1 :])
                for v in eqn.ins
            ]
        wanted: list[Want | None] = []
        for v, first in zip(eqn.ins, self._firsts(eqn), strict=True):
            moved = part.moved(-first)
            if v.at[axis] == 0 or _never(moved, v.at[axis]):
                wanted.append(None)
            else:
                wanted.append((*request[:axis], within(moved, v.at[axis]), *request[axis + 1 :]))
        return wanted

    def _firsts(self, eqn: Equation) -> list[int]:
        sizes = [v.at[eqn.params["dimension"]] for v in eqn.ins]
        return [sum(sizes[:i]) for i in range(len(sizes))]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:
        axis, part = eqn.params["dimension"], request[eqn.params["dimension"]]
        if part is None:
            return bound(eqn, ins)
        found: Any = None
        for v, piece, first in zip(eqn.ins, ins, self._firsts(eqn), strict=True):
            if piece is None:
                continue
            here = spread(piece, axis, part.moved(-first), v.at[axis], jnp.zeros((), v.dtype), at)
            if found is None:
                found = here
            else:
                row = at(part.start) + lax.iota(jnp.int32, part.extent)
                shape = [1] * here.ndim
                shape[axis] = part.extent
                found = jnp.where((row >= first).reshape(shape), here, found)
        return [jnp.zeros(block_shape(eqn.outs[0].at, request), eqn.outs[0].dtype) if found is None else found]


def _never(part: Range, size: int) -> bool:
    """Whether a range lies past the ends of an axis wherever it starts."""
    bounds = part.start.bounds()
    return bounds is not None and (bounds[1] + part.extent <= 0 or bounds[0] >= size)


RULES: dict[str, Rule] = {"pad": Pad(), "concatenate": Concatenate()}
