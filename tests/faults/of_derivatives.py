"""Faults of derivatives, where every value is right."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
from jax import lax
from planted import Case
from planted import pieces
from planted import planted

from erythroxy_tx.testing import arrays
from erythroxy_tx.testing import rows

SOME = rows(st.sampled_from([9, 6, 1]), 2)  # few lengths: the ways before the derivative compile them all
SHARED = st.tuples(SOME, arrays(shape=(2,)))


def squares(x):
    return (x * x).sum(0)


def products(x, w):
    return (x * w).sum(0)


@jax.custom_vjp
def rounded(x):
    """Rounds, with the derivative of the identity."""
    return jnp.round(x)


rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, ct: (ct,))


@jax.custom_jvp
def clipped(x):
    """Clips, with a derivative of 1 everywhere."""
    return jnp.clip(x, -1, 1)


clipped.defjvps(lambda t, _, x: t)


def last_chunk_constant(f, x):
    parts = pieces(x)
    parts[-1] = lax.stop_gradient(parts[-1]) if len(parts) > 1 else parts[-1]
    return sum(map(f, parts))


def shared_from_the_first_chunk(f, x, w):
    parts = pieces(x)
    return f(parts[0], w) + sum(f(part, lax.stop_gradient(w)) for part in parts[1:])


def rule_dropped(f, x):
    """The primal is evaluated without its rule, with the derivative of what is inside."""
    return jnp.round(x)


def rule_of_the_inside(f, x):
    return jnp.clip(x, -1, 1)


def with_backward(backward):
    """The right value with a derivative of ours."""

    def how(f, *args):
        g = jax.custom_vjp(f)
        g.defvjp(lambda *args: (f(*args), args), lambda args, ct: backward(f, args, ct))
        return g(*args)

    return how


def doubled(f, args, ct):
    first, *rest = jax.vjp(f, *args)[1](ct)
    return first, *(2 * each for each in rest)


def in_bfloat16(f, args, ct):
    return jax.vjp(f, *(x.astype("bfloat16").astype("float32") for x in args))[1](ct)


def cotangent_of_ones(f, args, ct):
    return jax.vjp(f, *args)[1](jnp.ones_like(ct))


def half_at_zero(f, x):
    return jnp.maximum(x, 0)


def not_at_infinity(f, x):
    """A guard on the outside of a division only."""
    return jnp.where(x == 0, 1.0, jnp.sin(x) / x)


def guarded(x):
    safe = jnp.where(x == 0, 1.0, x)
    return jnp.where(x == 0, 1.0, jnp.sin(safe) / safe)


FAULTS = [
    Case("gradient missing a chunk", planted(last_chunk_constant, squares), SOME),
    Case("shared gradient of one chunk", planted(shared_from_the_first_chunk, products), SHARED),
    Case("shared gradient doubled", planted(with_backward(doubled), products), SHARED),
    Case("residuals in bfloat16", planted(with_backward(in_bfloat16), squares), SOME),
    Case("cotangent ignored", planted(with_backward(cotangent_of_ones), squares), SOME),
    Case("custom vjp dropped", planted(rule_dropped, rounded), SOME),
    Case("custom jvp dropped", planted(rule_of_the_inside, clipped), SOME),
    Case("half the derivative at 0", planted(half_at_zero, jax.nn.relu), SOME),
    Case("NaN behind a where", planted(not_at_infinity, guarded), SOME),
]
