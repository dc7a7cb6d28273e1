"""Where the equations of an output bound how far two ways to compute it are apart, and that they do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.program.bounds import relative_bounds
from erythroxy_tx.testing import arrays
from erythroxy_tx.testing import prove

EPS = 2.0**-23
X = jax.ShapeDtypeStruct((40, 3), jnp.float32)

BOUNDED = {
    "tanh": jnp.tanh,
    "a product": lambda x: x * x[:, ::-1] * 3,
    "a quotient of functions": lambda x: jax.nn.sigmoid(x) / (1 + jnp.square(x)),
    "a norm of each row": lambda x: jnp.sqrt(jnp.square(x).sum(1)),
    "a root": lambda x: jnp.sqrt(jnp.abs(x)),
    "moved and rounded": lambda x: jnp.concatenate([jnp.tanh(x), x**3])[::2],
}
UNBOUNDED = {
    "a difference": lambda x: jnp.tanh(x) - x,
    "a mean": lambda x: x.mean(0),
    "a product of matrices": lambda x: x @ jnp.ones((3, 2)),
    "a function of what is rounded": lambda x: jnp.tanh(x * x),
    "many squares": lambda x: jnp.square(jnp.tile(x, (20, 1))).sum(),
    "a solve": lambda x: jnp.linalg.solve(jnp.eye(3) + x.T @ x, x.T),
    "a choice by rounded numbers": lambda x: jnp.where(jnp.tanh(x) > 0.5, x, -x) * 2,
    "a magnitude of complex numbers": lambda x: jnp.abs(lax.complex(x, x)),
    "a loop": lambda x: lax.fori_loop(0, 3, lambda i, w: w - x.T @ (x @ w), jnp.ones(3)),
    "sine, whose zeros are between its arguments": jnp.sin,
}


@pytest.mark.parametrize("fn", BOUNDED.values(), ids=BOUNDED.keys())
def test_bounded(fn) -> None:
    ((bound, _),) = relative_bounds(jax.make_jaxpr(fn)(X))
    assert bound is not None
    assert EPS <= bound <= 128 * EPS
    assert tx.contract(tx.chunked(lax.map, size=7)(fn), X) == tx.Close(bound)


@pytest.mark.parametrize("fn", UNBOUNDED.values(), ids=UNBOUNDED.keys())
def test_unbounded(fn) -> None:
    assert relative_bounds(jax.make_jaxpr(fn)(X)) == [(None, False)]


@pytest.mark.parametrize("fn", BOUNDED.values(), ids=BOUNDED.keys())
def test_no_input_breaks_a_bound(fn) -> None:
    normal = arrays(np.float32, (40, 3), extremes=False, allow_nan=False, allow_infinity=False)
    assert prove(tx.chunked(lax.map, size=7)(fn), normal, under=("jit",)).examples


def test_a_maximum_behind_an_output_is_told() -> None:
    def fn(x):
        return x.max(0), x.sum(0) - x.max(), x.sum(0), lax.fori_loop(0, 3, lambda i, c: c + x.min(), 0.0)

    assert [extreme for _, extreme in relative_bounds(jax.make_jaxpr(fn)(X))] == [True, True, False, True]
