"""Faults of running a function at a fixed length: the padding reaches a result."""

import jax
import jax.numpy as jnp
from planted import Case
from planted import padded
from planted import planted

import erythroxy_tx as tx
from erythroxy_tx.testing import lengths
from erythroxy_tx.testing import rows

SOME = rows(lengths(min_length=1), 2)


def smallest(x):
    return x.argmin(0)


def decayed(x):
    return jax.lax.scan(lambda c, row: (0.5 * c + row, None), jnp.zeros_like(x[0]), x)[0]


def over_the_padded(f, *args, fill=0):
    return f(padded(args[0], fill), *args[1:])


def trimmed(f, x):
    return f(padded(x))[: len(x)]


def masked_by_multiplication(f, x):
    """Whatever the padding holds is multiplied by 0, and infinity is not gone by that."""
    mask = jnp.arange(40) < len(x)
    return f(padded(x, jnp.inf) * mask[:, None])


def filled_with_the_last_row(f, x):
    return f(jnp.concatenate([x, jnp.broadcast_to(x[-1:], (40 - len(x), *x.shape[1:]))]))


def sorted_with_the_padding(f, x):
    return f(padded(x))[: len(x)]


def divided_by_the_mask_of_another(f, x):
    """The count of a power of two in place of the length."""
    return f(padded(x)) * 40 / (1 << max(1, len(x) - 1).bit_length())


FAULTS = [
    Case("padding in a mean", planted(over_the_padded, lambda x: x.mean(0)), SOME),
    Case("padding in an argmin", planted(over_the_padded, smallest, tx.Bitwise()), SOME),
    Case("padding in a minimum", planted(over_the_padded, lambda x: x.min(0), tx.Bitwise()), SOME),
    Case("padding in a softmax", planted(trimmed, lambda x: jax.nn.softmax(x, 0)), SOME),
    Case("padding in a carry", planted(over_the_padded, decayed), SOME),
    Case("padding in a sort", planted(sorted_with_the_padding, lambda x: jnp.sort(x, 0), tx.Bitwise()), SOME),
    Case("padding in a median", planted(over_the_padded, lambda x: jnp.median(x, 0)), SOME),
    Case("padding in a count", planted(over_the_padded, lambda x: (x > -1).sum(0), tx.Bitwise()), SOME),
    Case("padding in a variance", planted(over_the_padded, lambda x: x.var(0)), SOME),
    Case("padding in an all", planted(over_the_padded, lambda x: (x != 0).all(0), tx.Bitwise()), SOME),
    Case("padding multiplied by 0", planted(masked_by_multiplication, lambda x: x.sum(0)), SOME),
    Case("last row repeated", planted(filled_with_the_last_row, lambda x: x.sum(0)), SOME),
    Case("mean over a bucket", planted(divided_by_the_mask_of_another, lambda x: x.mean(0)), SOME),
    Case("padding not cut off", planted(over_the_padded, lambda x: x * 2, tx.Bitwise()), SOME),
]
