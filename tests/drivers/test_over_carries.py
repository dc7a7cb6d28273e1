"""Carries along rows that lie on a mesh: each device begins where the one before it would have ended, also where a
product of what rows do to a carry would lose that. Not here: other values (`test_over.py`).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_over import close
from test_over import data
from test_over import over

import erythroxy_tx as tx

U = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32) / 3)


def cumulative(x: Any) -> Any:
    y = 1 + x / 9
    return lax.cumsum(x), lax.cumprod(y), lax.cummax(x, reverse=True), lax.cummin(x), lax.cumlogsumexp(x, reverse=True)


def of_cumulative(x: Any) -> Any:
    z = jnp.cumsum(x, 0)
    return z - z.mean(0), lax.cumsum(lax.cummax(x), reverse=True), jnp.cumsum(jnp.diff(x, axis=0), 0)


def each_number(x: Any) -> Any:
    return lax.scan(lambda c, v: (0.9 * c + 0.1 * v, c), jnp.ones(3), x)


def gated(x: Any) -> Any:
    return lax.scan(lambda c, v: (jax.nn.sigmoid(v) * c + v, c * 2), x[0], x, reverse=True)


def nothing(x: Any) -> Any:
    """Nothing is carried, alone and beside what is."""
    doubled = lax.scan(lambda c, v: (c, v * 2), (), x)[1]
    return lax.map(lambda v: jnp.sort(v) / (1 + v @ v), x), doubled, lax.scan(lambda c, v: (c / 2 + v, c), 0.0, x[:, 0])


def matrix(x: Any) -> Any:
    return lax.scan(lambda c, v: (c @ U + v, c), jnp.ones(3), x)


def leaves(x: Any) -> Any:
    return lax.scan(lambda c, v: ((c[0] * 0.5 + v, c[1] + c[0]), c[1]), (jnp.ones(3), jnp.zeros(3)), x, reverse=True)


def of_another(x: Any) -> Any:
    return each_number(gated(x)[1])


def centred(x: Any) -> Any:
    y = each_number(x)[1]
    return (y - y.mean(0)).max(0)


def growing(x: Any) -> Any:
    return lax.scan(lambda c, v: (1.2 * c + v, c), jnp.ones(3), x)[0]


def held(x: Any) -> Any:
    """The last of some rows, from NaN."""
    return lax.scan(lambda c, v: (jnp.where(v > 1, v, c), c), jnp.full(3, jnp.nan), x)


def lagged(x: Any) -> Any:
    return lax.scan(lambda c, v: ((v, c[0]), c[1]), (jnp.full(3, -jnp.inf), jnp.zeros(3)), x)


def vanishing(x: Any) -> Any:
    """What rows do to a carry is zero by rounding, and infinity stays what it is."""
    return lax.scan(lambda c, v: (1e-9 * c + v, c), jnp.full(3, jnp.inf), x)


AFFINE = [nothing, each_number, gated, matrix, leaves, of_another, centred, growing, held, lagged, vanishing]


@pytest.mark.sampled(0.1)
@pytest.mark.parametrize("n", [24, 23, 3])
@pytest.mark.parametrize("fn", [cumulative, of_cumulative, *AFFINE], ids=lambda fn: fn.__name__)
def test_the_same_as_one_shot(fn: Any, n: int) -> None:
    close(over(fn)(data(n)), jax.jit(fn)(data(n)))


@pytest.mark.sampled(0.15)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 0.0])
@pytest.mark.parametrize("at", [2, 20])
def test_rows_that_are_not_finite_or_zero(value: float, at: int) -> None:
    def fn(x: Any) -> Any:
        v = x[:, 0]
        both = lax.scan(lambda c, v: (c * v, c), 1.0, v), lax.scan(lambda c, v: (c / v, c), 1.0, v)
        return lax.cumsum(v), lax.cumprod(v), lax.cummax(v), each_number(x), both, lax.scan(lambda c, v: (v, c), 0.0, v)

    x = data(24)
    x[at] = value
    close(over(fn)(x), jax.jit(fn)(x))


def test_growth_that_cancels() -> None:
    """From zero the rows of a device lead to -2^100 + 1, which float32 rounds; from one they stay there."""

    def fn(x: Any) -> Any:
        return lax.scan(lambda c, v: (2 * c - v, c), jnp.ones(3), x)

    x = np.ones((200, 3), np.float32)
    close(over(fn, size=20)(x), jax.jit(fn)(x))


def squared(c: Any, v: Any) -> Any:
    return c * c + v / 9


def clipped(c: Any, v: Any) -> Any:
    return jnp.maximum(c + v, 0)


def kept_if_positive(c: Any, v: Any) -> Any:
    return jnp.where(c > 0, c, v)


def divided_by(c: Any, v: Any) -> Any:
    return v / (c + 5)


def rounded(c: Any, v: Any) -> Any:
    return (c * 0.9).astype(jnp.bfloat16).astype(jnp.float32) + v


def through_a_function(c: Any, v: Any) -> Any:
    return jax.jit(jnp.sin)(c) + v


def stopped(c: Any, v: Any) -> Any:
    """Affine, but with another derivative."""
    return lax.stop_gradient(c) * 0.9 + v


@pytest.mark.sampled(0.2)
@pytest.mark.parametrize(
    "step", [squared, clipped, kept_if_positive, divided_by, rounded, through_a_function], ids=lambda fn: fn.__name__
)
def test_a_step_that_is_not_affine_is_refused_or_runs_in_turn(step: Any) -> None:
    def fn(x: Any) -> Any:
        return lax.scan(lambda c, v: (step(c, v), c), jnp.ones(3) / 2, x / 4)

    with pytest.raises(tx.RowMixingError, match=r"not affine in the carry, .* Fix: tx\.over\(…, chain=True\)"):
        over(fn)(data(23))
    close(over(fn, chain=True)(data(23)), jax.jit(fn)(data(23)))


def test_a_derivative_that_is_stopped_does_not_stop_a_carry() -> None:
    def fn(x: Any) -> Any:
        return lax.scan(lambda c, v: (stopped(c, v), c), jnp.ones(3), x)

    close(over(fn, chain=True)(data(23)), jax.jit(fn)(data(23)))


@pytest.mark.sampled(0.2)
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bfloat16, jnp.complex64], ids=lambda dtype: dtype.__name__)
def test_carries_of_other_kinds_run_in_turn(dtype: Any) -> None:
    def fn(x: Any) -> Any:
        return lax.scan(lambda c, v: (c * 2 + v, c), jnp.ones(3, dtype), (x * 2).astype(dtype), reverse=True)

    close(over(fn, chain=True)(data(13)), jax.jit(fn)(data(13)))


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("fn", [each_number, matrix, held], ids=lambda fn: fn.__name__)
def test_gradients(fn: Any) -> None:
    def loss(x: Any, run: Any) -> Any:
        return run(lambda x: (jnp.where(jnp.isnan(y := fn(x)[1]), 0, y) ** 2).mean())(x)

    x = jnp.asarray(data(23))
    close(jax.grad(loss)(x, over), jax.grad(loss)(x, lambda fn: fn))
