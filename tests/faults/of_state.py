"""Faults of what is kept from call to call, of batches, and of arguments that are written to."""

import jax
import jax.numpy as jnp
import numpy as np
from planted import Case
from planted import planted

import erythroxy_tx as tx
from erythroxy_tx.testing import rows

BITS = tx.Bitwise()
ONE = rows(5, 2)


def doubled(x):
    return x * 2


def kept_by(key):
    """A copy on the device is kept, and found again by less than what the array holds."""
    kept = {}

    def how(f, x):
        found = key(x)
        if found not in kept:
            kept[found] = x, jnp.array(x)  # the host array too, whose identity is not given to another
        return jax.jit(f)(kept[found][1])

    return how


def memoised():
    """The result is kept for the first two numbers."""
    kept = {}

    def how(f, x):
        key = x[:1].tobytes()
        if key not in kept:
            kept[key] = jax.jit(f)(x)
        return kept[key]

    return how


def written_to(f, x):
    result = jax.jit(f)(x)
    np.multiply(x, 2, out=x)
    return result


def first_of_the_batch(f, x):
    """A batching rule that computes one element and repeats it."""
    one = jax.custom_batching.custom_vmap(f)

    @one.def_vmap
    def rule(axis_size, in_batched, x):
        return jnp.broadcast_to(f(x[0]), (axis_size, *x.shape[1:])), True

    return one(x)


def batch_mean(f, x):
    """A batching rule under which a reduction runs over the batch as well."""
    one = jax.custom_batching.custom_vmap(f)

    @one.def_vmap
    def rule(axis_size, in_batched, x):
        return x - x.mean((0, 1)), True

    return one(x)


def one_key_for_the_batch(f, seed, x):
    """A batching rule that splits the key of the first element by the batch."""
    one = jax.custom_batching.custom_vmap(f)

    @one.def_vmap
    def rule(axis_size, in_batched, seed, x):
        xs = x if in_batched[1] else jnp.broadcast_to(x, (axis_size, *x.shape))
        first = seed[0] if in_batched[0] else seed
        keys = jax.random.split(jax.random.key(first), axis_size)
        return xs + jax.vmap(lambda key: jax.random.normal(key, x.shape[-2:]))(keys), True

    return one(seed, x)


def noisy(seed, x):
    return x + jax.random.normal(jax.random.key(seed), x.shape)


FAULTS = [
    Case("stale input by identity", planted(kept_by(id), doubled, BITS, on_host=True), ONE),
    Case("stale input by shape", planted(kept_by(lambda x: x.shape), doubled, BITS, on_host=True), ONE),
    Case("stale input by its sum", planted(kept_by(lambda x: float(np.sum(x))), doubled, BITS, on_host=True), ONE),
    Case("stale result by its first row", planted(memoised(), doubled, BITS, on_host=True), ONE),
    Case("argument written to", planted(written_to, doubled, BITS, on_host=True), ONE),
    Case("batch of the first", planted(first_of_the_batch, doubled, BITS), ONE),
    Case("mean over the batch", planted(batch_mean, lambda x: x - x.mean(0)), ONE),
]
