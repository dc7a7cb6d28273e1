"""Sums of products about means in one way over the rows, where a program takes two: covariances, and the normal
equations of what was standardised.

    sum (x - mean x) (z - mean z)  =  C_a + C_b + (mean_b x - mean_a x) (mean_b z - mean_a z) a b / (a + b)

for chunks of a and of b rows; and a factor without rows, such as one over a standard deviation, is taken out of it.
Products are summed in units of each column, powers of two, so that nothing overflows or vanishes on the way that would
not in the program as it is written.

Source: T. F. Chan, G. H. Golub, R. J. LeVeque, Updating formulae and a pairwise algorithm for computing sample
variances, COMPSTAT (1982). Not here: squares of one value (`variance.py`).
"""

import dataclasses
import math
from typing import Any
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import whole
from erythroxy_tx.program.centred import Centred
from erythroxy_tx.program.centred import centred
from erythroxy_tx.program.centred import without
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import StandIn
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.folds import Fold
from erythroxy_tx.program.folds import compensated
from erythroxy_tx.program.folds import evaluated
from erythroxy_tx.program.rows import live
from erythroxy_tx.program.rules import RULES
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Folding
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import only

_TINY = float(np.finfo(np.float32).tiny)


class _Product(NamedTuple):
    """An equation that multiplies and contracts two operands."""

    eqn: Equation
    left: Centred
    right: Centred


class ProductsAboutMeans(Rule):
    """`sum over rows of (x - mean x) (z - mean z)` for each z, in units of each column, and the units of x and z."""

    def kind(self, eqn: Equation) -> Kind:  # noqa: ARG002
        return Kind.FOLD

    def fold(self, eqn: Equation) -> Folding:
        axes, pairs, precision = (eqn.params[name] for name in ("axes", "pairs", "precision"))
        widths = [math.prod(without(v, axis)[1]) for v, axis in zip(eqn.ins, axes, strict=True)]

        def split(columns: Any) -> list[Any]:
            return jnp.split(columns, np.cumsum(widths)[:-1])

        def wants(part: Range) -> list[Want | None]:
            arrays = zip(eqn.ins, axes, strict=True)
            return [tuple(part if i == axis else None for i in range(len(v.at))) for v, axis in arrays]

        def value(ins: list[Any], part: Range, at: At, own: Any) -> Any:  # noqa: ARG001
            rows = jnp.int32(part.extent) if own is None else own.sum(dtype=jnp.int32)
            flat = [jnp.moveaxis(v, axis, 0).reshape(part.extent, -1) for v, axis in zip(ins, axes, strict=True)]
            return rows, own, [only(v, 0, own, 0) for v in flat]

        def start(like: list[Any]) -> Any:  # noqa: ARG001
            none = jnp.zeros(sum(widths), jnp.float32)
            products = [jnp.zeros((widths[0], widths[k]), jnp.float32) for k in pairs]
            return jnp.int32(0), (none, none), none + _TINY, [(c, c) for c in products]

        def step(state: Any, chunk: Any) -> Any:
            count, mean, unit, products = state
            more_rows, own, arrays = chunk
            rows, length = count + more_rows, more_rows.astype(jnp.float32)
            weight = length / rows.astype(jnp.float32)
            its_mean = jnp.concatenate([v.sum(0) for v in arrays]) / length
            apart = [only(v - m, 0, own, 0) for v, m in zip(arrays, split(its_mean), strict=True)]
            far = jnp.concatenate([jnp.abs(v).max(0) for v in apart])
            moved = jnp.where(count == 0, 0, its_mean - mean[0])
            new = jnp.maximum(unit, _power_of_two(jnp.maximum(far, jnp.abs(moved))))
            apart = [v / each for v, each in zip(apart, split(new), strict=True)]
            rounded = jnp.concatenate([v.sum(0) for v in apart]) / length  # off the mean, in the new unit
            ahead = (its_mean - mean[0]) + (rounded * new - mean[1])
            shift, change, off = map(split, (jnp.where(count == 0, 0, ahead) / new, unit / new, rounded))
            added = []
            for k, (total, rest) in zip(pairs, products, strict=True):
                more = lax.dot_general(apart[0], apart[k], (((0,), (0,)), ((), ())), precision=precision)
                more += jnp.outer(shift[0], shift[k]) * (count * weight) - jnp.outer(off[0], off[k]) * length
                left, right = change[0][:, None], change[k]
                old = total * left * right, rest * (left * right)  # alike, XLA's CPU would write both down beside it
                added.append(compensated(old, more))
            return rows, compensated(mean, ahead * weight), new, added

        def finish(state: Any) -> list[Any]:
            outs = [*split(state[2]), *map(evaluated, state[3])]
            return [out.reshape(v.at) for out, v in zip(outs, eqn.outs, strict=True)]

        x, axis = eqn.ins[0], axes[0]
        return Folding(x.at[axis], x.shape[axis], wants, value, Fold(start, step), finish, shares=True)


class OutOfUnits(Rule):
    """A product of two operands from the sum of products about the means of what they are made of, and the units."""

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:  # noqa: ARG002
        one = Range(Start(), 1)
        return [
            whole(v) if i < 3 else tuple(one if axis in v.rows else None for axis in range(len(v.at)))
            for i, v in enumerate(eqn.ins)
        ]

    def block(self, eqn: Equation, request: Any, ins: list[Any], at: At) -> list[Any]:  # noqa: ARG002
        products, units, factors, sides = ins[0], ins[1:3], ins[3:], eqn.params["sides"]
        order, rows = [], []
        for k, (side, unit) in enumerate(zip(sides, units, strict=True)):
            own, factors = factors[: len(side.factors)], factors[len(side.factors) :]
            places = side.places()
            rows.append(side.applied(unit, own).squeeze(places.index(side.axis)))
            free = [i for i in range(len(places)) if i != side.axis]
            order += [free.index(i) + k * units[0].ndim for i in places if i != side.axis]
        left, right = rows[0].reshape(*rows[0].shape, *[1] * rows[1].ndim), rows[1]
        known = jnp.isfinite(left) & jnp.isfinite(right)  # infinities of both signs add up to no number
        (left, by), (right, times) = jnp.frexp(left), jnp.frexp(right)  # one may be huge where the other is tiny
        return [jnp.where(known, jnp.ldexp(jnp.transpose(products, order) * left * right, by + times), jnp.nan)]

    def whole(self, eqn: Equation, ins: list[Any], run: Any) -> list[Any]:  # noqa: ARG002
        return self.block(eqn, None, ins, lambda start: start.known)  # no factor, or a number


class SquaresOutOfUnits(Rule):
    """The squares about the mean of `x` from its products with itself."""

    def whole(self, eqn: Equation, ins: list[Any], run: Any) -> list[Any]:  # noqa: ARG002
        products, units = ins
        return [products.reshape(units.size, units.size).diagonal().reshape(units.shape) * units * units]


def _power_of_two(number: Any) -> Any:
    """The largest power of two that is not above a number, which is not negative; at least the least normal one."""
    bits = lax.bitcast_convert_type(number, jnp.int32) & 0x7F800000
    return jnp.maximum(lax.bitcast_convert_type(bits, jnp.float32), _TINY)


def merged(program: Program) -> Program:
    """The program with each product of what is centred, contracted over rows, summed about the means."""
    levels, alive = _levels(program), live(program)
    found = [_Product(eqn, *sides) for eqn in alive if (sides := _sides(eqn)) is not None]
    found = [p for p in found if max(levels[p.left.x], levels[p.right.x]) < max(levels[v] for v in p.eqn.ins)]
    others = set(alive) - {p.eqn for p in found}
    passes = {levels[v] for eqn in others for v in eqn.outs if _is_reduction(eqn)}  # those that are taken anyway
    groups: dict[tuple[Value, Any], list[_Product]] = {}
    for product in found:
        if levels[product.eqn.outs[0]] not in passes:
            groups.setdefault((product.left.x, product.eqn.params["precision"]), []).append(product)
    before: dict[Equation, Equation] = {}
    for (x, _), products in groups.items():
        with_itself = any(p.right.x is x for p in products)
        squares = [eqn for eqn in program.equations if with_itself and _is_squares(eqn, x, products[0].left.axis)]
        first = min((*squares, *(p.eqn for p in products)), key=lambda eqn: eqn.index)
        early = [p for p in products if p.right.x.maker is None or p.right.x.maker.index < first.index]
        before[first] = _summed(early, squares)
        before |= {p.eqn: _summed([p], []) for p in products if p not in early}
    program.equations = [e for eqn in program.equations for e in ([before[eqn]] if eqn in before else []) + [eqn]]
    for index, eqn in enumerate(program.equations):
        eqn.index = index
    return program


def _summed(products: list[_Product], squares: list[Equation]) -> Equation:
    """The equation that sums products of one x about the means; those and the squares of x are made to follow it."""
    x = products[0].left
    arrays = {x.x: x.axis, **{p.right.x: p.right.axis for p in products}}
    others = list(dict.fromkeys(p.right.x for p in products))
    free = {v: without(v, axis) for v, axis in arrays.items()}
    units = {v: _made(*free[v]) for v in arrays}
    sums = {z: _made(*(a + b for a, b in zip(free[x.x], free[z], strict=True))) for z in others}
    params = {"axes": tuple(arrays.values()), "pairs": tuple(list(arrays).index(z) for z in others)}
    params["precision"] = products[0].eqn.params["precision"]
    found = dataclasses.replace(
        products[0].eqn, primitive=StandIn("products_about_means"), ins=list(arrays), params=params,
        outs=[*units.values(), *sums.values()],
    )  # fmt: skip
    for value in found.outs:
        value.maker = found
    for eqn, left, right in products:
        eqn.primitive, eqn.params = StandIn("out_of_units"), {"sides": (left, right)}
        eqn.ins = [sums[right.x], units[x.x], units[right.x], *left.factors, *right.factors]
    for eqn in squares:
        eqn.primitive, eqn.ins = StandIn("squares_out_of_units"), [sums[x.x], units[x.x]]
    return found


def _made(shape: tuple[Any, ...], at: tuple[int, ...]) -> Value:
    return Value(shape, at, np.dtype(np.float32), used=True)


def _is_squares(eqn: Equation, x: Value, axis: int) -> bool:
    return eqn.name == "squares_about_mean" and eqn.ins[0] is x and tuple(eqn.params["axes"]) == (axis,)


def _levels(program: Program) -> dict[Value, int]:
    """How many reductions over rows are before each value, one after the other."""
    found = dict.fromkeys(program.ins, 0)
    for eqn in program.equations:
        level = max((found.setdefault(v, 0) for v in eqn.ins), default=0)
        found |= dict.fromkeys(eqn.outs, level + _is_reduction(eqn))
    return found


def _is_reduction(eqn: Equation) -> bool:
    return any(v.rows for v in eqn.ins) and not any(v.rows for v in eqn.outs)


def _sides(eqn: Equation) -> tuple[Centred, Centred] | None:
    """The two operands of a product that is contracted over rows alone, both less their means: about its mean, a
    column with an infinity would be NaN.
    """
    if eqn.name != "dot_general":
        return None
    (left, right), batch = eqn.params["dimension_numbers"]
    values = (*eqn.ins, *eqn.outs)
    if batch != ((), ()) or len(left) != 1 or any(v.dtype != np.float32 or 0 in v.at for v in values):
        return None
    if any(v.rows != axes for v, axes in zip(eqn.ins, (left, right), strict=True)):
        return None
    first, second = (centred(v) for v in eqn.ins)
    return None if first is None or second is None else (first, second)


RULES |= {
    "products_about_means": ProductsAboutMeans(),
    "out_of_units": OutOfUnits(),
    "squares_out_of_units": SquaresOutOfUnits(),
}
