"""Faults of the row program: a rule that is wrong, while the function around it is traced."""

import contextlib
import dataclasses
from unittest import mock

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
from jax import lax
from planted import Case
from planted import planted

import erythroxy_tx as tx
from erythroxy_tx.program import covariance
from erythroxy_tx.program import likeness
from erythroxy_tx.program import rules
from erythroxy_tx.program import stream
from erythroxy_tx.program import variance
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.equations import _Builder
from erythroxy_tx.program.folds import FOLDS
from erythroxy_tx.program.folds import Fold
from erythroxy_tx.program.rules.elementwise import Elementwise
from erythroxy_tx.program.rules.joins import Concatenate
from erythroxy_tx.program.rules.joins import Pad
from erythroxy_tx.program.rules.layout import Iota
from erythroxy_tx.program.rules.layout import Reverse
from erythroxy_tx.program.rules.loops import Scan
from erythroxy_tx.program.rules.random import RandomBits
from erythroxy_tx.program.rules.reductions import ArgReduction
from erythroxy_tx.program.rules.reductions import Dot
from erythroxy_tx.program.rules.reductions import Reduction
from erythroxy_tx.program.rules.reductions import Running
from erythroxy_tx.program.rules.scatter import Scatter
from erythroxy_tx.program.symbol import Symbol
from erythroxy_tx.testing import lengths
from erythroxy_tx.testing import rows

SOME = rows(lengths(min_length=1), 2)
TAME = {"extremes": False, "allow_nan": False, "allow_infinity": False}
FLOATS = rows(lengths(min_length=1), 2, **TAME)
LONG = rows(st.sampled_from([13, 9]), 2, **TAME)


def streamed(patch):
    """Run a function as a stream of three rows a chunk, while something is patched."""

    def how(f, *args):
        with patch(), mock.patch.object(likeness, "apart", return_value=[]):
            return tx.chunked(lax.map, size=3, in_axes=(0, *[None] * (len(args) - 1)))(f)(*args)

    return how


def with_rule(name, rule):
    return lambda: mock.patch.dict(rules.RULES, {name: rule})


def with_method(cls, name, method):
    return lambda: mock.patch.object(cls, name, method)


class ChunkIota(Iota):
    """Positions are counted from the chunk."""

    def block(self, eqn, request, ins, at):
        return super().block(eqn, request, ins, lambda start: 0)


class ChunkReverse(Reverse):
    """Each chunk is turned, and the chunks stay where they are."""

    def wants(self, eqn, request):
        return [request]


class ShiftedPad(Pad):
    """The padding is one row short at the front."""

    def _source(self, eqn, request):
        return {axis: part.moved(1) for axis, part in super()._source(eqn, request).items()}


class LateConcatenate(Concatenate):
    """The second piece begins a row too late."""

    def _firsts(self, eqn):
        return [first + bool(first) for first in super()._firsts(eqn)]


class ForgetfulRunning(Running):
    """A running sum starts anew in each chunk."""

    def carry(self, eqn):
        right = super().carry(eqn)
        return dataclasses.replace(
            right, step=lambda carry, *rest: right.step(jax.tree.map(jnp.zeros_like, carry), *rest)
        )


class ForgetfulScan(Scan):
    """A scan starts anew in each chunk."""

    def carry(self, eqn):
        right = super().carry(eqn)
        return dataclasses.replace(
            right, step=lambda carry, *rest: right.step([jnp.zeros_like(c) for c in carry], *rest)
        )


class ForwardScan(Scan):
    """The chunks of a reverse scan come from the front."""

    def carry(self, eqn):
        return dataclasses.replace(super().carry(eqn), reverse=False)


class ChunkArg(ArgReduction):
    """The position is that in its chunk."""

    def fold(self, eqn):
        right = super().fold(eqn)
        return dataclasses.replace(right, value=lambda ins, part, at, own: right.value(ins, part, lambda start: 0, own))


class LastArg(ArgReduction):
    """Of equal values the last chunk's wins."""

    def _how(self, eqn):
        right = super()._how(eqn)
        return Fold(right.start, lambda old, new: right.step((old[0], old[1], new[0] != old[0]), new))


class FromZero(Reduction):
    """A maximum starts at zero."""

    def fold(self, eqn):
        right = super().fold(eqn)
        return dataclasses.replace(right, fold=Fold(lambda like: jnp.zeros(like.shape, like.dtype), jnp.maximum))


class LastChunkOnly(Dot):
    """The sum over chunks is the last one's."""

    def fold(self, eqn):
        return dataclasses.replace(super().fold(eqn), fold=Fold(FOLDS["sum"].start, lambda old, new: new))


class SameBits(RandomBits):
    """Every chunk draws the numbers of the first."""

    def block(self, eqn, request, ins, at):
        return super().block(eqn, request, ins, lambda start: 0)


class FromNothing(Scatter):
    """What is scattered into is taken to be zero."""

    def fold(self, eqn):
        return dataclasses.replace(super().fold(eqn), start=lambda free: jnp.zeros_like(free[0]))


class Unweighted(variance.SquaresAboutMean):
    """Chunks weigh the same, however many rows they have."""

    def fold(self, eqn):
        right = super().fold(eqn)

        def value(ins, part, at, own):
            _, mean, squares = right.value(ins, part, at, own)
            return jnp.int32(1), mean, squares

        return dataclasses.replace(right, value=value)


class CountedTwice(Reduction):
    """A chunk adds up all of its rows, those of the one before it too."""

    def fold(self, eqn):
        right = super().fold(eqn)
        return dataclasses.replace(right, value=lambda ins, part, at, own: right.value(ins, part, at, None))


class Unmoved(covariance.ProductsAboutMeans):
    """Products of chunks are added up as if all had the same mean."""

    def fold(self, eqn):
        right = super().fold(eqn)

        def value(ins, part, at, own):
            rows, own, blocks = right.value(ins, part, at, own)
            return rows, own, [block - block.mean(0) for block in blocks]

        return dataclasses.replace(right, value=value)


@contextlib.contextmanager
def number_of_a_chunk():
    """A number of rows that is asked for as a value is that of a chunk."""
    original = _Builder._equation

    def equation(self, eqn, ins):
        outs = original(self, eqn, ins)
        if eqn.primitive.name == "dim_as_value":
            outs[0].known = outs[0].known * 0 + 3
        return outs

    with mock.patch.object(_Builder, "_equation", equation):
        yield


@contextlib.contextmanager
def never_equal():
    """No number of rows is ever equal to another, as JAX itself answers."""
    original = Symbol.answered

    def true(self, op, dim, rows):
        return False if op == "==" else original(self, op, dim, rows)

    with mock.patch.object(Symbol, "answered", true):
        yield


@contextlib.contextmanager
def halo_forgotten():
    """Rows beside the chunk are taken from the chunk."""
    original = Start.plus
    with mock.patch.object(Start, "plus", lambda self, more: self if self.of is not None else original(self, more)):
        yield


@contextlib.contextmanager
def tail_dropped():
    """The shorter last chunk is not run."""
    original = stream._Loop._step

    def step(self, state, chunk, first, index):
        return state if isinstance(first, int) and chunk.extent < 3 else original(self, state, chunk, first, index)

    with mock.patch.object(stream._Loop, "_step", step):
        yield


def if_seven(x):
    return x * 2 if x.shape[0] == 7 else x


FAULTS = [
    Case(
        "positions counted from the chunk",
        planted(streamed(with_rule("iota", ChunkIota())), lambda x: x + jnp.arange(x.shape[0])[:, None]),
        FLOATS,
    ),
    Case(
        "chunks turned in place",
        planted(streamed(with_rule("rev", ChunkReverse())), lambda x: lax.rev(x * 2, (0,)), tx.Bitwise()),
        SOME,
    ),
    Case(
        "padding one row short",
        planted(
            streamed(with_rule("pad", ShiftedPad())),
            lambda x: lax.pad(x * 2, jnp.zeros((), x.dtype), ((2, 0, 0), (0, 0, 0))),
        ),
        SOME,
    ),
    Case(
        "the second piece a row late",
        planted(streamed(with_rule("concatenate", LateConcatenate())), lambda x: jnp.concatenate([x, x[:1]])),
        SOME,
    ),
    Case(
        "a running sum starts anew",
        planted(streamed(with_rule("cumsum", ForgetfulRunning())), lambda x: jnp.cumsum(x, 0)),
        FLOATS,
    ),
    Case(
        "a scan starts anew",
        planted(
            streamed(with_rule("scan", ForgetfulScan())), lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(2), x)
        ),
        FLOATS,
    ),
    Case(
        "a reverse scan from the front",
        planted(
            streamed(with_rule("scan", ForwardScan())),
            lambda x: lax.scan(lambda c, r: (0.5 * c + r, c), jnp.zeros(2), x, reverse=True),
        ),
        FLOATS,
    ),
    Case(
        "the position in the chunk",
        planted(streamed(with_rule("argmax", ChunkArg())), lambda x: jnp.argmax(x, 0), tx.Bitwise()),
        FLOATS,
    ),
    Case(
        "the last of equal ones",
        planted(streamed(with_rule("argmax", LastArg())), lambda x: jnp.argmax(x > 0, 0), tx.Bitwise()),
        FLOATS,
    ),
    Case("a maximum from zero", planted(streamed(with_rule("reduce_max", FromZero())), lambda x: x.max(0)), FLOATS),
    Case(
        "the last chunk's product only",
        planted(streamed(with_rule("dot_general", LastChunkOnly())), lambda x: x.T @ x),
        FLOATS,
    ),
    Case(
        "every chunk draws the same",
        planted(
            streamed(with_rule("random_bits", SameBits())), lambda x: x + jax.random.normal(jax.random.key(0), x.shape)
        ),
        FLOATS,
    ),
    Case(
        "scattered into nothing",
        planted(
            streamed(with_rule("scatter-add", FromNothing())),
            lambda x: jnp.ones(3).at[jnp.arange(x.shape[0]) % 3].add(x[:, 0]),
        ),
        FLOATS,
    ),
    Case(
        "chunks of any length weigh the same",
        planted(streamed(with_rule("squares_about_mean", Unweighted())), lambda x: x.var(0)),
        FLOATS,
    ),
    Case(
        "products about the mean of each chunk",
        planted(streamed(with_rule("products_about_means", Unmoved())), lambda x: (x - x.mean(0)).T @ (x - x.mean(0))),
        FLOATS,
    ),
    Case(
        "a sort that takes rows for independent",
        planted(streamed(with_rule("sort", Elementwise())), lambda x: jnp.sort(x, 0), tx.Bitwise()),
        FLOATS,
    ),
    Case(
        "the number of rows of a chunk", planted(streamed(number_of_a_chunk), lambda x: x.sum(0) / x.shape[0]), FLOATS
    ),
    Case(
        "a decision on n that is not seen",
        planted(streamed(never_equal), if_seven),
        rows(st.sampled_from([7, 5]), 2, **TAME),
    ),
    Case(
        "the rows beside a chunk forgotten",
        planted(streamed(halo_forgotten), lambda x: (x * 2)[1:] - (x * 2)[:-1]),
        LONG,
    ),
    Case(
        "a shorter last chunk dropped",
        planted(streamed(tail_dropped), lambda x: (x.sum(0), jnp.cumsum(x, 0)[-1])),
        FLOATS,
    ),
    Case(
        "rows that two chunks have counted twice",
        planted(streamed(with_rule("reduce_sum", CountedTwice())), lambda x: x.sum(0)),
        FLOATS,
    ),
]
