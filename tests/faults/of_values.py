"""Faults of single values: dtypes, weak types, NaN, infinities, zeros, structure."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
from planted import Case
from planted import planted

import erythroxy_tx as tx
from erythroxy_tx.testing import arrays
from erythroxy_tx.testing import rows

BITS = tx.Bitwise()
ONE = rows(5, 2)


def same(x):
    return x


def doubled(x):
    return x * 2


def pair(x):
    return {"low": x.min(1), "high": x.max(1)}


FAULTS = [
    Case(
        "weak type lost",
        planted(lambda f, x, s: jnp.float32(f(x, s)), lambda x, s: s * 2, BITS),
        st.tuples(ONE, st.just(1.5)),
    ),
    Case("dtype widened", planted(lambda f, x: f(x).astype("float32"), doubled, BITS), rows(5, 2, "bfloat16")),
    Case("dtype narrowed in between", planted(lambda f, x: f(x.astype("bfloat16")).astype("float32"), doubled), ONE),
    Case(
        "integers as floats",
        planted(lambda f, x: f(x.astype("float32")).astype("int32"), doubled, BITS),
        rows(5, 2, "int32"),
    ),
    Case("NaN swallowed", planted(lambda f, x: f(jnp.where(jnp.isnan(x), 0, x)), lambda x: x.sum(0)), ONE),
    Case("infinity clipped", planted(lambda f, x: f(jnp.clip(x, -3e38, 3e38)), doubled, BITS), ONE),
    Case("sign of zero lost", planted(lambda f, x: jnp.where(x == 0, 0, f(x)), same, BITS), ONE),
    Case("sign of zero of a minimum", planted(lambda f, x: jnp.abs(f(x)) * jnp.sign(f(x)), same, BITS), ONE),
    Case("subtracted from itself", planted(lambda f, x: f(x) + (x - x), same, BITS), ONE),
    Case("structure changed", planted(lambda f, x: tuple(f(x).values()), pair, BITS), ONE),
    Case("outputs exchanged", planted(lambda f, x: {"low": f(x)["high"], "high": f(x)["low"]}, pair, BITS), ONE),
    Case("an axis too many", planted(lambda f, x: f(x)[:, None], lambda x: x.sum(1)), ONE),
    Case("axes exchanged", planted(lambda f, x: f(x.T).T, lambda x: x - x[:1], BITS), rows(3, 3)),
    Case("divided in another way", planted(lambda f, x: f(x) * (1 / 3), lambda x: x / 3, BITS), arrays(shape=(7,))),
    Case("overflow guarded away", planted(lambda f, x: f(jnp.minimum(x, 80)), jnp.exp), arrays(shape=(7,))),
    Case(
        "a softmax without its maximum",
        planted(lambda f, x: jnp.exp(x) / jnp.exp(x).sum(), jax.nn.softmax),
        arrays(shape=(7,)),
    ),
    Case(
        "a tie broken the other way",
        planted(lambda f, x: 6 - f(x[::-1]), jnp.argmax, BITS),
        arrays(shape=(7,), allow_nan=False),
    ),
    Case(
        "an index from the end",
        planted(lambda f, x, i: f(x, jnp.maximum(i, 0)), lambda x, i: x[i], BITS),
        st.tuples(ONE, st.integers(-5, 4)),
    ),
]
