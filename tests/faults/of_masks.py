"""Faults of `pad_static`: an equation lets padding into a result, or counts from the wrong end."""

from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax
from planted import Case
from planted import planted

import erythroxy_tx as tx
from erythroxy_tx.program import masks
from erythroxy_tx.program.masks import reductions
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.masks.rule import plain
from erythroxy_tx.program.regimes import Regime
from erythroxy_tx.testing import lengths
from erythroxy_tx.testing import rows

SOME = rows(lengths(min_length=2), 2)
TAME = rows(lengths(min_length=2), 2, extremes=False, allow_nan=False, allow_infinity=False)


def padded(patch, fill=50.0):
    """Run a function on padded rows, while something is patched."""

    def how(f, *args):
        wrapper = tx.pad_static(40)(lambda *args: f(*args))  # noqa: PLW0108  # kept for nothing else
        with patch:
            return wrapper(*wrapper.pad(*args, fill=fill))

    return how


def as_it_is(*names):
    """Equations without their masks."""
    return mock.patch.dict(masks.RULES, dict.fromkeys(names, plain))


def with_mask(name, mask):
    return mock.patch.dict(masks.RULES, {name: mask})


def over_all_places(mask):
    """A mask that is told that every place is taken."""

    def wrong(eqn, ins, extents, run):
        return mask(eqn, ins, Extents(extents.symbol, (40,) * len(extents.rows)), run)

    return wrong


def full(name):
    return with_mask(name, over_all_places(masks.RULES[name]))


def one_side(eqn, ins, extents, run):
    """Zeros on the left of a product alone, where NaN on the right is not gone."""
    left = [i for i in eqn.params["dimension_numbers"][0][0] if i in eqn.ins[0].rows]
    return plain(eqn, [extents.only(ins[0], eqn.ins[0], left), ins[1]], extents, run)


def zeros_for_all(eqn, ins, extents, run):
    """Zeros in place of the lowest number."""
    return plain(eqn, [extents.only(ins[0], eqn.ins[0], eqn.ins[0].rows)], extents, run)


def last_state(x):
    return lax.scan(lambda c, row: (0.5 * c + row, c), jnp.zeros_like(x[0]), x)


def first_state(x):
    return lax.scan(lambda c, row: (0.5 * c + row, c), jnp.zeros_like(x[0]), x, reverse=True)


def last_of_many(x):
    return lax.dynamic_slice_in_dim(x, 99, 1)


def five_or_all(x):
    return x[:5].sum(0) if x.shape[0] > 5 else x.max(0)


def counted(x):
    return jnp.zeros(3, x.dtype).at[(x[:, 0] > 0) * 1].add(1)


def convolved(x):
    window = lax.conv_general_dilated(x.T[:, None], jnp.ones((1, 1, 3), x.dtype), (1,), [(1, 1)])
    return window[:, 0].T


def noisy(x):
    return x.T + jax.random.normal(jax.random.key(0), x.T.shape)


EXACT = tx.Bitwise()
FAULTS = [
    Case("mask: padding in a sum", planted(padded(as_it_is("reduce_sum")), lambda x: x.sum(0)), TAME),
    Case("mask: padding in a maximum", planted(padded(as_it_is("reduce_max")), lambda x: x.max(0), EXACT), SOME),
    Case(
        "mask: zeros in a maximum",
        planted(padded(with_mask("reduce_max", zeros_for_all)), lambda x: x.max(0), EXACT),
        SOME,
    ),
    Case("mask: padding in an argmax", planted(padded(as_it_is("argmax")), lambda x: x.argmax(0), EXACT), SOME),
    Case("mask: padding in a product", planted(padded(as_it_is("dot_general")), lambda x: x.T @ x), TAME),
    Case(
        "mask: one side of a product",
        planted(padded(with_mask("dot_general", one_side), float("nan")), lambda x: x.T @ x),
        TAME,
    ),
    Case("mask: the length is the limit", planted(padded(full("dim_as_value")), lambda x: x.sum(0) / x.shape[0]), TAME),
    Case("mask: turned about the limit", planted(padded(as_it_is("rev")), lambda x: lax.rev(x, (0,)), EXACT), SOME),
    Case("mask: the last place", planted(padded(full("dynamic_slice")), last_of_many, EXACT), SOME),
    Case("mask: sorted with padding", planted(padded(as_it_is("sort"), -9.0), lambda x: jnp.sort(x, 0), EXACT), SOME),
    Case("mask: top-k of padding", planted(padded(as_it_is("top_k")), lambda x: lax.top_k(x.T, 2)[0], EXACT), SOME),
    Case(
        "mask: sums from the limit", planted(padded(as_it_is("cumsum")), lambda x: lax.cumsum(x, 0, reverse=True)), TAME
    ),
    Case("mask: a carry goes on", planted(padded(full("scan")), last_state), TAME),
    Case("mask: a carry starts at the limit", planted(padded(full("scan")), first_state), TAME),
    Case(
        "mask: joined at the limit",
        planted(padded(as_it_is("concatenate")), lambda x: jnp.concatenate([x, -x]), EXACT),
        SOME,
    ),
    Case(
        "mask: padding before padding",
        planted(padded(as_it_is("pad")), lambda x: jnp.pad(x, ((0, 2), (0, 0))), EXACT),
        SOME,
    ),
    Case("mask: a window sees padding", planted(padded(as_it_is("conv_general_dilated")), convolved), TAME),
    Case("mask: an index to the limit", planted(padded(full("gather")), lambda x: x[jnp.array([1, 99])], EXACT), SOME),
    Case("mask: numbers of another shape", planted(padded(full("random_bits")), noisy), TAME),
    Case("mask: rows that do not lead", planted(padded(as_it_is("reshape")), lambda x: x.T.reshape(-1), EXACT), SOME),
    Case(
        "mask: padding is scattered",
        planted(padded(full("scatter-add"), 1.0), counted),
        TAME,
    ),
    Case(
        "mask: one row is like many",
        planted(padded(mock.patch.object(Regime, "holds", return_value=True)), five_or_all),
        TAME,
    ),
    Case(
        "mask: the lowest number is zero",
        planted(padded(mock.patch.object(reductions, "lowest", return_value=0)), lambda x: x.max(0), EXACT),
        SOME,
    ),
]
