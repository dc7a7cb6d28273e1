"""Functions that decide on the number of rows in Python: right at every number, or refused."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.program.auto import plan_call
from erythroxy_tx.program.row_call import RowCall
from erythroxy_tx.program.symbol import symbol_for

ROWS = (64, 65, 128, 7, 64)


def by_number(x):
    return x * 2 if x.shape[0] == 64 else x


def by_remainder(x):
    return x + 1 if x.shape[0] % 8 else x


def by_member(x):
    return x * 3 if x.shape[0] in (64, 128) else x


def by_size(x):
    return x.sum(0) if x.shape[0] > 100 else x.max(0)


def by_default(x):
    return x * ((x.shape[0] // 65) or 5)


def by_dict(x):
    return x * {64: 2.0, 7: 3.0}.get(x.shape[0], 1.0)


def by_text(x):
    return x * len(f"{x.shape[0]}")


def by_words(x):
    return x * len(str(x.shape))


def by_attempt(x):
    try:
        return x * int(x.shape[0])
    except Exception:  # noqa: BLE001  # as a user would
        return x


def by_loop(x):
    total = x[0]
    for row in x[1:]:
        total = total * 0.5 + row
    return total


@functools.lru_cache
def kept(n):
    return 2.0 if n == 64 else 1.0


def by_cache(x):
    return x * kept(x.shape[0])


@jax.jit
def inner(x):
    return x * 2 if x.shape[0] == 64 else x


def by_inner_jit(x):
    return inner(x) + 1


def by_inner_text(x):
    return jax.jit(by_text)(x)


ALL = [
    by_number, by_remainder, by_member, by_size, by_default, by_dict, by_text, by_words, by_attempt, by_loop, by_cache,
    by_inner_jit, by_inner_text,
]  # fmt: skip
REFUSED = {by_attempt, by_loop}


@pytest.mark.parametrize("fn", ALL, ids=lambda fn: fn.__name__)
def test_right_at_every_number_of_rows(fn, rng: np.random.Generator) -> None:
    streamed = tx.chunked(lax.map, size=5)(fn)
    for n in ROWS:
        x = rng.normal(size=(n, 3)).astype(np.float32)
        if fn in REFUSED:
            with pytest.raises(tx.RowMixingError, match="int"):
                streamed(x)
        else:
            np.testing.assert_allclose(streamed(x), jax.jit(fn)(x), rtol=1e-4)


def test_a_trace_serves_every_number_that_answers_alike() -> None:
    seen = []

    def fn(x):
        seen.append(symbol_for(40).names)
        return x.cumsum(0)

    streamed = tx.chunked(lax.map, size=5)(fn)
    for n in (40, 41, 57):
        streamed(jnp.ones((n, 2)))
    assert len(set(seen)) == 1


def test_a_symbol_that_was_told_stands_for_one_number() -> None:
    symbol = symbol_for(33)
    with symbol.standing_for(33):
        assert (symbol.dim == 33) is True
        assert symbol.dim > 30
        assert not symbol.dim % 11
    assert symbol.holds(33)
    assert not symbol.holds(34)
    with symbol.standing_for(33):
        assert f"{symbol.dim}" == "33"
    assert symbol.only == 33


def test_outside_of_a_trace_jax_answers_as_ever() -> None:
    dim = symbol_for(12).dim
    assert dim != 12
    assert str(dim) == symbol_for(12).names[0]
    with pytest.raises(Exception, match="inconclusive"):
        bool(dim > 12)


def test_a_cache_of_jax_takes_no_known_number_for_the_unknown() -> None:
    """The C++ caches of JAX ask whether keys are equal whose hashes differ."""
    symbol = symbol_for(23)
    inside = {"__name__": "jax.somewhere", "dim": symbol.dim, "looked_up": operator.eq}
    with symbol.standing_for(23):
        assert eval("dim == 23", inside)
        assert eval("23 in (5, dim)", inside)
        assert not eval("looked_up(dim, 23)", inside)
        assert not eval("looked_up((dim, 4), (23, 4))", inside)
        assert operator.eq(symbol.dim, 23)


def test_random_numbers_of_a_known_shape_are_not_taken_for_those_of_an_unknown_one() -> None:
    def fn(x):
        return x + jax.random.normal(jax.random.key(0), x.shape)

    def kinds(x):
        jax.jit(fn)(x)
        return plan_call(RowCall("f", fn, fn, (x,), {}, Prefix.of(0)), 3, None).kinds

    found = []
    jax.jit(lambda x: found.append(kinds(x)))(jnp.ones((7, 2)))
    assert "random_bits" in [eqn.name for eqn in found[0]]
