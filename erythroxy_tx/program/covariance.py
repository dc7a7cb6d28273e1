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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import whole
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.folds import Fold
from erythroxy_tx.program.folds import compensated
from erythroxy_tx.program.means import mean_of
from erythroxy_tx.program.rules import RULES
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Folding
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule

_TINY = float(np.finfo(np.float32).tiny)
_FACTORS: dict[str, Any] = {"mul": jnp.multiply, "div": jnp.divide}


@dataclasses.dataclass(frozen=True)
class _Primitive:
    name: str


@dataclasses.dataclass(frozen=True)
class _Centred:
    """`steps` applied to `x` less its mean over the rows: a transposition, or a factor that is the same in each row."""

    x: Value
    axis: int
    steps: tuple[tuple[str, Any], ...] = ()

    @property
    def factors(self) -> list[Value]:
        return [by for name, by in self.steps if name in _FACTORS]

    def applied(self, units: Any, factors: list[Any]) -> Any:
        """The steps on one row of units, given one row of each factor."""
        left, row = iter(factors), jnp.expand_dims(units, self.axis)
        for name, by in self.steps:
            row = jnp.transpose(row, by) if name == "transpose" else _FACTORS[name](row, next(left))
        return row

    def places(self) -> list[int]:
        """The axis of `x` that each axis of the result is."""
        found = list(range(len(self.x.at)))
        for name, by in self.steps:
            found = [found[i] for i in by] if name == "transpose" else found
        return found


class ProductsAboutMeans(Rule):
    """`sum over rows of (x - mean x) (z - mean z)` in units of each column, and those of `x` and of `z`."""

    def kind(self, eqn: Equation) -> Kind:  # noqa: ARG002
        return Kind.FOLD

    def fold(self, eqn: Equation) -> Folding:
        x, axes = eqn.ins[0], eqn.params["axes"]
        dot = ((axes[0],), (axes[1],)), ((), ())

        def wants(part: Range) -> list[Want | None]:
            return [
                tuple(part if i == axis else None for i in range(len(v.at)))
                for v, axis in zip(eqn.ins, axes, strict=True)
            ]

        def value(ins: list[Any], part: Range, at: At) -> Any:  # noqa: ARG001
            means = [v.mean(axis, keepdims=True) for v, axis in zip(ins, axes, strict=True)]
            apart = [v - mean for v, mean in zip(ins, means, strict=True)]
            units = [_unit(jnp.abs(v).max(axis, keepdims=True)) for v, axis in zip(apart, axes, strict=True)]
            left, right = (v / unit for v, unit in zip(apart, units, strict=True))
            products = lax.dot_general(left, right, dot, precision=eqn.params["precision"])
            flat = [[v.squeeze(axis) for v, axis in zip(many, axes, strict=True)] for many in (means, units)]
            return jnp.float32(part.extent), *flat, products

        def start(like: Any) -> Any:
            count, means, units, products = jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), like)
            return count, [(mean, mean) for mean in means], [unit + _TINY for unit in units], (products, products)

        def step(state: Any, new: Any) -> Any:
            (count, means, units, products), (more, its_means, its_units, its_products) = state, new
            total = count + more
            apart = [(its - mean[0]) - mean[1] for its, mean in zip(its_means, means, strict=True)]
            after = [jnp.maximum(a, b) for a, b in zip(units, its_units, strict=True)]
            after = [jnp.maximum(unit, _unit(jnp.abs(d))) for unit, d in zip(after, apart, strict=True)]
            shift = [d / unit for d, unit in zip(apart, after, strict=True)]
            old, own = _ratio(units, after), _ratio(its_units, after)
            kept = products[0] * old, products[1] * old
            joined = its_products * own + _outer(*shift) * (count * (more / total))
            means = [compensated(mean, d * (more / total)) for mean, d in zip(means, apart, strict=True)]
            return total, means, after, compensated(kept, joined)

        fold = Fold(start, step, lambda state: [state[3][0], *state[2]])
        return Folding(x.at[axes[0]], x.shape[axes[0]], wants, value, fold, finish=list)


class OutOfUnits(Rule):
    """The products of two operands from those about the means of what they were made of, and their units."""

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
        left, right = rows
        return [jnp.transpose(products, order) * left.reshape(*left.shape, *[1] * right.ndim) * right]

    def whole(self, eqn: Equation, ins: list[Any], run: Any) -> list[Any]:  # noqa: ARG002
        return self.block(eqn, None, ins, lambda start: start.known)  # no factor, or a number


def _unit(most: Any) -> Any:
    """The power of two below a magnitude; at least the least normal number."""
    bits = lax.bitcast_convert_type(most, jnp.int32) & 0x7F800000
    return jnp.maximum(lax.bitcast_convert_type(bits, jnp.float32), _TINY)


def _outer(a: Any, b: Any) -> Any:
    return a.reshape(*a.shape, *[1] * b.ndim) * b


def _ratio(units: list[Any], after: list[Any]) -> Any:
    return _outer(*[old / new for old, new in zip(units, after, strict=True)])


def merged(program: Program) -> Program:
    """The program with each product of what is centred, contracted over rows, summed about the means."""
    levels = _levels(program)
    equations: list[Equation] = []
    for eqn in program.equations:
        sides = _sides(eqn)
        if sides is not None and max(levels[s.x] for s in sides) < max(levels[v] for v in eqn.ins):
            equations.append(_products(eqn, *sides))
            eqn.primitive, eqn.params = _Primitive("out_of_units"), {"sides": sides}
            eqn.ins = [*equations[-1].outs, *(by for side in sides for by in side.factors)]
        equations.append(eqn)
    for index, eqn in enumerate(equations):
        eqn.index = index
    program.equations = equations
    return program


def _products(eqn: Equation, left: _Centred, right: _Centred) -> Equation:
    """The equation of a sum of products about means, and of its units."""
    free = [
        ([d for i, d in enumerate(s.x.shape) if i != s.axis], [d for i, d in enumerate(s.x.at) if i != s.axis])
        for s in (left, right)
    ]
    shapes = [tuple(map(tuple, pair)) for pair in ((free[0][0] + free[1][0], free[0][1] + free[1][1]), *free)]
    outs = [Value(shape, at, np.dtype(np.float32), used=True) for shape, at in shapes]
    params = {"axes": (left.axis, right.axis), "precision": eqn.params["precision"]}
    found = dataclasses.replace(
        eqn, primitive=_Primitive("products_about_means"), ins=[left.x, right.x], outs=outs, params=params
    )
    for value in outs:
        value.maker = found
    return found


def _levels(program: Program) -> dict[Value, int]:
    """How many reductions over rows are before each value, one after the other."""
    found = dict.fromkeys(program.ins, 0)
    for eqn in program.equations:
        level = max((found.setdefault(v, 0) for v in eqn.ins), default=0)
        for value in eqn.outs:
            found[value] = level + (not value.rows and any(v.rows for v in eqn.ins))
    return found


def _sides(eqn: Equation) -> tuple[_Centred, _Centred] | None:
    """The two operands of a product that is contracted over rows alone, at least one of which is centred."""
    if eqn.name != "dot_general":
        return None
    (left, right), batch = eqn.params["dimension_numbers"]
    values = (*eqn.ins, *eqn.outs)
    if batch != ((), ()) or len(left) != 1 or any(v.dtype != np.float32 or 0 in v.at for v in values):
        return None
    if any(v.rows != axes for v, axes in zip(eqn.ins, (left, right), strict=True)):
        return None
    sides = [_centred(v) for v in eqn.ins]
    if sides == [None, None]:
        return None
    first, second = (side or _Centred(v, v.rows[0]) for side, v in zip(sides, eqn.ins, strict=True))
    return first, second


def _centred(value: Value) -> _Centred | None:
    """A value as steps from something less its mean over the rows."""
    steps: list[tuple[str, Any]] = []
    cut: Equation | None = None
    while value.maker is not None and len(value.rows) == 1:
        eqn, axis = value.maker, value.rows[0]
        if eqn.name == "sub":
            x = mean_of(eqn.ins[1], (axis,))
            if x is None or eqn.ins[0].at != eqn.outs[0].at:
                return None
            same = x is eqn.ins[0] if cut is None else _is_cut(x, eqn.ins[0], cut)
            return _Centred(x, axis, tuple(reversed(steps))) if same else None
        if eqn.name == "transpose" and cut is None:
            steps.append(("transpose", eqn.params["permutation"]))
            value = eqn.ins[0]
        elif cut is None and _cuts_rows(eqn, axis):
            cut, value = eqn, eqn.ins[0]
        elif eqn.name in _FACTORS:
            sources = eqn.ins if eqn.name == "div" else sorted(eqn.ins, key=lambda v: _same_in_each_row(v, axis))
            if not _same_in_each_row(sources[1], axis) or sources[0].rows != (axis,):
                return None
            steps.append((eqn.name, sources[1]))
            value = sources[0]
        else:
            return None
    return None


def _is_cut(x: Value, source: Value, cut: Equation) -> bool:
    """Whether a value is the part of another that an equation cuts out."""
    eqn = x.maker
    if eqn is None or eqn.name != cut.name or eqn.params != cut.params or eqn.ins[0] is not source:
        return False
    return all(_same_number(a, b) for a, b in zip(eqn.ins[1:], cut.ins[1:], strict=True))


def _cuts_rows(eqn: Equation, axis: int) -> bool:
    """Whether an equation gives some rows of its input, one after the other."""
    if eqn.name == "gather" and (eqn.ins[1].at != (1,) or eqn.params["dimension_numbers"].start_index_map != (axis,)):
        return False
    alike = len(eqn.ins[0].at) == len(eqn.outs[0].at) and _others(eqn.ins[0], axis) == _others(eqn.outs[0], axis)
    return eqn.name in ("slice", "dynamic_slice", "gather") and alike


def _same_number(a: Value, b: Value) -> bool:
    both = isinstance(a.known, np.ndarray) and isinstance(b.known, np.ndarray)
    return a is b or (both and np.array_equal(a.known, b.known))


def _others(value: Value, axis: int) -> tuple[int, ...]:
    return value.at[:axis] + value.at[axis + 1 :]


def _same_in_each_row(value: Value, axis: int) -> bool:
    eqn = value.maker
    if not value.at or (axis not in value.rows and value.at[axis] == 1):
        return True
    if eqn is None or eqn.name != "broadcast_in_dim":
        return False
    places = eqn.params["broadcast_dimensions"]
    return axis not in places or (not eqn.ins[0].rows and eqn.ins[0].at[places.index(axis)] == 1)


RULES |= {"products_about_means": ProductsAboutMeans(), "out_of_units": OutOfUnits()}
