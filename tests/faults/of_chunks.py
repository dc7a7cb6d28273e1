"""Faults of running a function over chunks of its rows."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
from planted import Case
from planted import pieces
from planted import planted

import erythroxy_tx as tx
from erythroxy_tx.testing import lengths
from erythroxy_tx.testing import rows

SOME = rows(lengths(min_length=1), 2)
TAME = {"extremes": False, "allow_nan": False, "allow_infinity": False}


def total(x):
    return x.sum(0)


def mean(x):
    return x.mean(0)


def largest(x):
    return x.max(0)


def squares(x):
    return x * x


def last_dropped(f, x):
    return sum(map(f, pieces(x)[: max(1, len(x) // 4)]))


def last_overlaps(f, x):
    """The last chunk is shifted to be whole, and its overlap is added twice."""
    parts = pieces(x)
    parts[-1] = x[-4:]
    return sum(map(f, parts))


def first_doubled(f, x):
    parts = pieces(x)
    return sum(map(f, parts), f(parts[0]) * (len(parts) > 1))


def mean_of_means(f, x):
    parts = pieces(x)
    return sum(map(f, parts)) / len(parts)


def mean_over_the_chunk_size(f, x):
    return sum(f(part) * 4 for part in pieces(x)) / (4 * len(pieces(x)))


def variance_of_chunks(f, x):
    return sum(f(part) * len(part) for part in pieces(x)) / len(x)


def last_rows_are_zeros(f, x):
    done = [f(part) for part in pieces(x)]
    if len(done) > 1 and len(x) % 4:
        done[-1] = jnp.zeros_like(done[-1])
    return jnp.concatenate(done)


def rows_in_another_order(f, x):
    return jnp.concatenate([f(part) for part in reversed(pieces(x))])


def maximum_from_zero(f, x):
    return jnp.maximum(f(x), 0)


def product_of_sums(f, x):
    """Products are folded as sums are."""
    return sum(map(f, pieces(x)))


def any_from_true(f, x):
    return f(x) | jnp.bool_(len(x) > 4)


def normalised_in_chunks(f, x):
    return jnp.concatenate([f(part) for part in pieces(x)])


def index_within_the_chunk(f, x):
    parts = pieces(x)
    best = jnp.argmax(jnp.stack([jnp.max(part, 0) for part in parts]), 0)
    return jnp.stack([f(part) for part in parts])[best, jnp.arange(x.shape[1])]


def carry_starts_anew(f, x):
    return jnp.concatenate([f(part) for part in pieces(x)])


def neighbours_cut(f, x):
    """A difference of neighbours loses those across a boundary."""
    return jnp.concatenate([f(part) for part in pieces(x)])


def summed_in_float16(f, x):
    return sum(f(part).astype("float16") for part in pieces(x)).astype(x.dtype)


def summed_in_bfloat16(f, x):
    return jax.lax.scan(lambda c, row: (c + row, None), jnp.zeros_like(x[0]), x)[0]


def summed_in_int8(f, x):
    return sum(f(part).astype("int8") for part in pieces(x)).astype(x.dtype)


def key_split_by_chunk(f, seed, x):
    keys = jax.random.split(jax.random.key(seed), len(pieces(x)))
    return jnp.concatenate(
        [part + jax.random.normal(key, part.shape) for key, part in zip(keys, pieces(x), strict=True)]
    )


def noisy(seed, x):
    return x + jax.random.normal(jax.random.key(seed), x.shape)


FAULTS = [
    Case("last chunk dropped", planted(last_dropped, total), rows(features=2)),
    Case("last chunk overlaps", planted(last_overlaps, total), SOME),
    Case("first chunk doubled", planted(first_doubled, total), SOME),
    Case("mean of means", planted(mean_of_means, mean), SOME),
    Case("mean over the chunk's size", planted(mean_over_the_chunk_size, mean), SOME),
    Case("variance of chunks", planted(variance_of_chunks, lambda x: x.var(0)), SOME),
    Case("last rows are zeros", planted(last_rows_are_zeros, squares, tx.Bitwise()), SOME),
    Case("rows in another order", planted(rows_in_another_order, squares, tx.Bitwise()), SOME),
    Case("maximum from zero", planted(maximum_from_zero, largest), SOME),
    Case("product folded as a sum", planted(product_of_sums, lambda x: (1 + x / 8).prod(0)), SOME),
    Case("any from True", planted(any_from_true, lambda x: (x > 3).any(), tx.Bitwise()), SOME),
    Case("softmax of each chunk", planted(normalised_in_chunks, lambda x: jax.nn.softmax(x, 0)), SOME),
    Case("index within the chunk", planted(index_within_the_chunk, lambda x: x.argmax(0), tx.Bitwise()), SOME),
    Case("carry starts anew", planted(carry_starts_anew, lambda x: jnp.cumsum(x, 0)), SOME),
    Case("difference across chunks", planted(neighbours_cut, lambda x: jnp.diff(x, axis=0, prepend=x[:1])), SOME),
    Case("summed in float16", planted(summed_in_float16, total), rows(lengths(min_length=1), 2, **TAME)),
    Case("summed in bfloat16", planted(summed_in_bfloat16, total), rows(600, 2, "bfloat16", min_value=1, max_value=2)),
    Case("summed in int8", planted(summed_in_int8, total, tx.Bitwise()), rows(lengths(min_length=1), 2, "int32")),
    Case("random key split by chunk", planted(key_split_by_chunk, noisy), st.tuples(st.integers(0, 9), SOME)),
]
