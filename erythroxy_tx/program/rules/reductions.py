"""Reductions: along rows they run over the chunks, along other axes on each row."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import everything
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.folds import ADD
from erythroxy_tx.program.folds import FOLDS
from erythroxy_tx.program.folds import Fold
from erythroxy_tx.program.folds import compensated
from erythroxy_tx.program.folds import evaluated
from erythroxy_tx.program.folds import wide
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Carrying
from erythroxy_tx.program.rules.rule import Folding
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import only

_XOR = Fold(lambda like: jnp.zeros(like.shape, like.dtype), lambda total, value: total ^ value)
_NUMBERS = {name: Fold(FOLDS[name].start, FOLDS[name].step) for name in ("max", "min", "prod")}
_HOW = {
    "reduce_sum": ADD,
    "reduce_prod": _NUMBERS["prod"],
    "reduce_max": _NUMBERS["max"],
    "reduce_min": _NUMBERS["min"],
    "reduce_xor": _XOR,
}


class Reduction(Rule):
    """`out = op over axes of x`."""

    ordered = False

    def kind(self, eqn: Equation) -> Kind:
        reduced = set(eqn.params["axes"]) & set(eqn.ins[0].rows)
        return Kind.FOLD if reduced and not eqn.outs[0].rows else Kind.BLOCK

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        left = iter(request)
        source = eqn.ins[0]
        return [
            tuple(
                (everything(size) if i in source.rows else None) if i in eqn.params["axes"] else next(left)
                for i, size in enumerate(source.at)
            )
        ]

    def _cut(self, eqn: Equation) -> int:
        """The axis that is cut into chunks: the first of rows that is reduced."""
        return next(i for i in eqn.ins[0].rows if i in eqn.params["axes"])

    def fold(self, eqn: Equation) -> Folding:
        source, axis = eqn.ins[0], self._cut(eqn)

        def wants(part: Range) -> list[Want | None]:
            return [
                tuple(
                    part if i == axis else everything(size) if i in source.rows else None
                    for i, size in enumerate(source.at)
                )
            ]

        return Folding(
            source.at[axis],
            source.shape[axis],
            wants,
            self._value(eqn),
            self._how(eqn),
            self._finish(eqn),
            ordered=self.ordered,
            shares=True,
        )

    def _how(self, eqn: Equation) -> Fold:
        if eqn.name in ("reduce_and", "reduce_or"):
            if eqn.outs[0].dtype == bool:
                return FOLDS["all" if eqn.name == "reduce_and" else "any"]
            full, op = (-1, jnp.bitwise_and) if eqn.name == "reduce_and" else (0, jnp.bitwise_or)
            return Fold(lambda like: jnp.full(like.shape, full).astype(like.dtype), op)
        return _HOW[eqn.name]

    def _value(self, eqn: Equation) -> Callable[[list[Any], Range, At, Any], Any]:
        axis, start = self._cut(eqn), self._how(eqn).start

        def value(ins: list[Any], part: Range, at: At, own: Any) -> Any:  # noqa: ARG001
            x = ins[0]
            if eqn.name in ("reduce_sum", "reduce_prod"):
                x = x.astype(wide(x.dtype))
            fill = None if own is None else start(jax.ShapeDtypeStruct((), x.dtype))
            return bound(eqn, [only(x, axis, own, fill)])[0]

        return value

    def _finish(self, eqn: Equation) -> Callable[[Any], list[Any]]:
        return lambda folded: [folded.astype(eqn.outs[0].dtype)]


class Variadic(Rule):
    """A reduction by a program of the user's, of several arrays at once; the starting values come last.

    Along rows it is run on all of them: a starting value counts once, and need not be an identity.
    """

    def kind(self, eqn: Equation) -> Kind:
        reduced = set(eqn.params["dimensions"]) & set(eqn.ins[0].rows)
        return Kind.WHOLE if reduced else Kind.BLOCK

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        left = iter(request)
        part = tuple(None if i in eqn.params["dimensions"] else next(left) for i in range(len(eqn.ins[0].at)))
        return [*[part] * len(eqn.outs), *[()] * len(eqn.outs)]


class ArgReduction(Reduction):
    """The position of an extreme: the first of equal ones, and a NaN before any number."""

    ordered = True

    def _how(self, eqn: Equation) -> Fold:
        better: Any = jnp.greater if eqn.name == "argmax" else jnp.less

        def step(best: Any, new: Any) -> Any:
            (old_value, old_at, old_any), (value, at, _) = best, new
            wins = better(value, old_value)
            if jnp.issubdtype(value.dtype, jnp.inexact):
                wins = wins | (jnp.isnan(value) & ~jnp.isnan(old_value))
                wins &= ~jnp.isnan(old_value)
            wins |= ~old_any
            return jnp.where(wins, value, old_value), jnp.where(wins, at, old_at), jnp.ones_like(old_any)

        return Fold(lambda like: tuple(jnp.zeros(x.shape, x.dtype) for x in like), step)

    def _value(self, eqn: Equation) -> Callable[[list[Any], Range, At, Any], Any]:
        axis, fill = self._cut(eqn), eqn.name.removeprefix("arg")

        def value(ins: list[Any], part: Range, at: At, own: Any) -> Any:
            x = only(ins[0], axis, own, FOLDS[fill].start(jax.ShapeDtypeStruct((), ins[0].dtype)))
            found = bound(eqn, [x])[0]
            if own is not None:  # where all that count are like the others, it is the first of them
                found = jnp.where(own[found], found, jnp.argmax(own).astype(found.dtype))
            values = jnp.take_along_axis(x, jnp.expand_dims(found, axis), axis=axis).squeeze(axis)
            return values, found + jnp.asarray(at(part.start), found.dtype), jnp.ones(found.shape, bool)

        return value

    def _finish(self, eqn: Equation) -> Callable[[Any], list[Any]]:  # noqa: ARG002
        return lambda folded: [folded[1]]


class Dot(Rule):
    """`out = sum over the contracted axes of a * b`; contracted rows run over the chunks."""

    def _axes(self, eqn: Equation) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """For each operand, its contracted axes, and where each axis of the result is in it (-1: nowhere)."""
        (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
        a, b = eqn.ins[0].at, eqn.ins[1].at
        free_a = [i for i in range(len(a)) if i not in left and i not in left_batch]
        free_b = [i for i in range(len(b)) if i not in right and i not in right_batch]
        return [
            (tuple(left), (*left_batch, *free_a, *[-1] * len(free_b))),
            (tuple(right), (*right_batch, *[-1] * len(free_a), *free_b)),
        ]

    def kind(self, eqn: Equation) -> Kind:
        return Kind.BLOCK if eqn.outs[0].rows else Kind.FOLD

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        return [self._want(eqn.ins[k], request, *self._axes(eqn)[k]) for k in range(2)]

    def _want(self, value: Any, request: Want, contracted: tuple[int, ...], places: tuple[int, ...]) -> Want:
        parts: list[Range | None] = [None] * len(value.at)
        for part, axis in zip(request, places, strict=True):
            if axis >= 0:
                parts[axis] = part
        for axis in contracted:
            parts[axis] = everything(value.at[axis]) if axis in value.rows else None
        return tuple(parts)

    def fold(self, eqn: Equation) -> Folding:
        (left, right), _ = eqn.params["dimension_numbers"]
        pairs = list(zip(left, right, strict=True))
        a, b = pairs[next(i for i, (x, y) in enumerate(pairs) if x in eqn.ins[0].rows or y in eqn.ins[1].rows)]
        out = eqn.outs[0]

        def wants(part: Range) -> list[Want | None]:
            found = self.wants(eqn, (None,) * len(out.at))
            return [
                tuple(part if i == axis else p for i, p in enumerate(want or ()))
                for want, axis in zip(found, (a, b), strict=True)
            ]

        def value(ins: list[Any], part: Range, at: At, own: Any) -> Any:  # noqa: ARG001
            ins = [only(x, axis, own, 0) for x, axis in zip(ins, (a, b), strict=True)]
            if own is not None and not plain:  # XLA's CPU cannot select before a bf16 product. 0.10.2
                ins = [lax.optimization_barrier(x) for x in ins]
            return bound(eqn, ins, preferred_element_type=jnp.dtype(wide(out.dtype)))[0]

        dim = eqn.ins[0].shape[a] if a in eqn.ins[0].rows else eqn.ins[1].shape[b]
        how = FOLDS["any"] if out.dtype == bool else ADD
        plain = all(v.dtype == wide(v.dtype) for v in eqn.ins)
        return Folding(eqn.ins[0].at[a], dim, wants, value, how, lambda total: [total.astype(out.dtype)], shares=True)


class Running(Rule):
    """`cumsum` and its kin: along rows carried from chunk to chunk, along other axes on each row."""

    def kind(self, eqn: Equation) -> Kind:
        rows = eqn.ins[0].rows
        if eqn.params["axis"] not in rows:
            return Kind.BLOCK
        return Kind.CARRY if len(rows) == 1 else Kind.BLOCK

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        axis = eqn.params["axis"]
        return [tuple(everything(eqn.ins[0].at[i]) if p and i == axis else p for i, p in enumerate(request))]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:
        found, axis = bound(eqn, ins)[0], eqn.params["axis"]
        part = request[axis]
        if part is not None and found.shape[axis] != part.extent:
            found = lax.dynamic_slice_in_dim(found, at(part.start), part.extent, axis=axis)
        return [found]

    def carry(self, eqn: Equation) -> Carrying:
        source, axis, reverse = eqn.ins[0], eqn.params["axis"], eqn.params["reverse"]
        shape, kind = tuple(1 if i == axis else size for i, size in enumerate(source.at)), wide(source.dtype)
        join, start = _JOIN[eqn.name]
        sums = eqn.name == "cumsum" and jnp.issubdtype(kind, jnp.inexact)

        def step(carry: Any, ins: list[Any], rows: int, own: Any) -> tuple[Any, list[Any]]:
            x = only(ins[0].astype(kind), axis, own, start((), kind))
            alone = bound(eqn, [x])[0]  # the chunk's, from nothing
            last = 0 if reverse else rows - 1
            edge = lax.slice_in_dim(alone, last, last + 1, axis=axis)
            after = compensated(carry, edge) if sums else join(carry, edge)
            return after, [join(evaluated(carry) if sums else carry, alone).astype(source.dtype)]

        def first(ins: list[Any]) -> Any:  # noqa: ARG001
            return (start(shape, kind), start(shape, kind)) if sums else start(shape, kind)

        def wants(part: Range) -> list[Want | None]:
            return [tuple(part if i == axis else None for i in range(len(source.at)))]

        def both(before: Any, after: Any) -> Any:
            if not sums:
                return join(before, after)
            rest = jnp.where(jnp.isfinite(after[0]), after[1], 0)  # of an infinity it is NaN
            return compensated(compensated(before, after[0]), rest)

        return Carrying(source.at[axis], source.shape[axis], reverse, wants, first, step, [axis], join=both)


def _full(name: str) -> Callable[[Any, Any], Any]:
    return lambda shape, dtype: FOLDS[name].start(jnp.zeros(shape, dtype)).astype(dtype)


_JOIN: dict[str, tuple[Any, Any]] = {
    "cumsum": (jnp.add, jnp.zeros),
    "cumprod": (jnp.multiply, jnp.ones),
    "cummax": (jnp.maximum, _full("max")),
    "cummin": (jnp.minimum, _full("min")),
    "cumlogsumexp": (jnp.logaddexp, lambda shape, dtype: jnp.full(shape, -jnp.inf, dtype)),
}
_REDUCTIONS = ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor"]
RULES: dict[str, Rule] = dict.fromkeys(_REDUCTIONS, Reduction())
RULES |= dict.fromkeys(["argmax", "argmin"], ArgReduction())
RULES |= dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"], Running())
RULES["dot_general"] = Dot()
RULES["reduce"] = Variadic()
