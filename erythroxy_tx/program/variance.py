"""Mean and sum of squares about the mean in one way over the rows, where a program takes two.

    sum (x - mean(x))²  =  M_a + M_b + (mean_b - mean_a)² a b / (a + b)     for chunks of a and of b rows

Source: T. F. Chan, G. H. Golub, R. J. LeVeque, Updating formulae and a pairwise algorithm for computing sample
variances, COMPSTAT (1982). Not here: the sum of the mean itself, which is a reduction like any other.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.centred import mean_of
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import StandIn
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.folds import Fold
from erythroxy_tx.program.folds import compensated
from erythroxy_tx.program.folds import evaluated
from erythroxy_tx.program.rules import RULES
from erythroxy_tx.program.rules.reductions import Reduction
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Folding
from erythroxy_tx.program.rules.rule import only


class SquaresAboutMean(Reduction):
    """`out = sum over rows of (x - mean of x)²`, with the axes of the sum that it stands for."""

    def fold(self, eqn: Equation) -> Folding:
        source, axis, axes = eqn.ins[0], self._cut(eqn), tuple(eqn.params["axes"])
        others = math.prod(source.at[i] for i in axes if i != axis)

        def wants(part: Range) -> list[Want | None]:
            return [tuple(part if i == axis else None for i in range(len(source.at)))]

        def value(ins: list[Any], part: Range, at: At, own: Any) -> Any:  # noqa: ARG001
            rows = jnp.int32(part.extent) if own is None else own.sum(dtype=jnp.int32)
            length = (rows * others).astype(jnp.float32)
            mean = only(ins[0], axis, own, 0).sum(axes, keepdims=True) / length
            apart = only(ins[0] - mean, axis, own, 0)
            rounded = apart.sum(axes) / length  # off the mean, which the difference of two would keep
            return rows, (mean.squeeze(axes), rounded), jnp.square(apart).sum(axes) - rounded * (rounded * length)

        def start(like: Any) -> Any:
            zero = jnp.zeros(like[2].shape, like[2].dtype)
            return jnp.int32(0), (zero, zero), (zero, zero)

        def step(state: Any, new: Any) -> Any:
            count, mean, squares = state
            more, its_mean, its_squares = new
            apart = (its_mean[0] - mean[0]) + (its_mean[1] - mean[1])
            weight = more / (count + more).astype(jnp.float32)
            squares = compensated(squares, its_squares + apart * (apart * (count * weight * others)))
            return count + more, compensated(mean, apart * weight), squares

        fold = Fold(start, step, lambda state: evaluated(state[2]))
        return Folding(source.at[axis], source.shape[axis], wants, value, fold, shares=True)


def merged(program: Program) -> Program:
    """The program with each sum of squares about a mean as one equation of its own."""
    squares = [(eqn, x) for eqn in program.equations if (x := _about_mean(eqn)) is not None]
    for eqn, x in squares:
        eqn.primitive, eqn.ins = StandIn("squares_about_mean"), [x]
    return program


def _about_mean(eqn: Equation) -> Value | None:
    """The x of a `sum (x - mean(x))²` over one axis of rows, and maybe others."""
    if (
        eqn.name != "reduce_sum"
        or eqn.outs[0].rows
        or 0 in eqn.ins[0].at
        or len(eqn.ins[0].rows) != 1
        or eqn.outs[0].dtype != np.float32
    ):
        return None
    apart = _squared(eqn.ins[0].maker)
    if apart is None or apart.maker is None or apart.maker.name != "sub":
        return None
    x, mean = apart.maker.ins
    return x if x.at == eqn.ins[0].at and mean_of(mean, tuple(eqn.params["axes"])) is x else None


def _squared(eqn: Equation | None) -> Value | None:
    if eqn is None:
        return None
    if eqn.name == "square" or (eqn.name == "integer_pow" and eqn.params["y"] == 2):
        return eqn.ins[0]
    return eqn.ins[0] if eqn.name == "mul" and eqn.ins[0] is eqn.ins[1] else None


RULES["squares_about_mean"] = SquaresAboutMean()
