"""Two traces of one function are told to be alike, and two functions are not."""

import jax
import jax.numpy as jnp
import pytest

from erythroxy_tx.program.equations import flatten
from erythroxy_tx.program.likeness import apart
from erythroxy_tx.program.symbol import symbol_for


def programs(unknown, known, n=23):
    symbol = symbol_for(n)
    with symbol.standing_for(n):
        a = jax.make_jaxpr(unknown)(jax.ShapeDtypeStruct((symbol.dim, 4), jnp.float32))
    b = jax.make_jaxpr(known)(jax.ShapeDtypeStruct((n, 4), jnp.float32))
    return flatten(a, symbol, n), flatten(b, symbol, n)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[1:] * x[:-1],
        lambda x: x[::-1][::2].sum(0) / x.shape[0],
        lambda x: x.mean(0) * (1 / x.shape[0]),
        lambda x: jnp.concatenate([x, x[-1:]])[: x.shape[0] // 2],
        lambda x: x * jnp.linspace(0, 1, x.shape[0])[:, None],
    ],
)
def test_alike(fn) -> None:
    assert apart(*programs(fn, fn)) == []


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        (lambda x: x * 2, lambda x: x * 3, ["mul"]),
        (lambda x: x + 1, lambda x: x * 1.5, ["add", "mul"]),
        (lambda x: x.sum(0), lambda x: x.max(0), ["reduce_max", "reduce_sum"]),
        (lambda x: (x > 0) * 2, lambda x: (x > 0) * 3, ["mul"]),
    ],
)
def test_apart(a, b, names: list[str]) -> None:
    assert apart(*programs(a, b)) == names
