"""Streams of any length: full chunks whose rows do not all count, in both directions; another compiles nothing."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from rows_of import close
from rows_of import data

import erythroxy_tx as tx

SIZE = 16
LENGTHS = (1, 16, 17, 32, 47)


def decayed(x: Any, y: Any) -> Any:
    """A scan forwards, whose steps count."""
    return lax.scan(lambda c, r: ((0.9 * c[0] + r[0].sum(), c[1] + 1), c[0] * r[1]), (0.0, 0), (x, y))


def backwards(x: Any, y: Any) -> Any:
    return lax.scan(lambda c, r: (jnp.tanh(c + r), c), jnp.ones(3), x, reverse=True), lax.cumsum(y, reverse=True)


def running(x: Any, y: Any) -> Any:
    return (
        jnp.cumsum(x, 0),
        lax.cumprod(1 + y / 9, reverse=True),
        lax.cummax(x),
        lax.cummin(x, reverse=True),
        lax.cumlogsumexp(y),
        lax.cumlogsumexp(y, reverse=True),
    )


def centred(x: Any, y: Any) -> Any:
    """Carries that a second pass takes up again, in both directions."""
    z, back = jnp.cumsum(x, 0), lax.cumsum(y, reverse=True)
    c, ys = lax.scan(lambda c, r: (0.5 * c + r, c * r), 0.0, y)
    return z - z.mean(0), back - back.mean(), (ys - c).std()


def extremes(x: Any, y: Any) -> Any:
    """Positions; of equal extremes the first."""
    level = jnp.round(x)
    return jnp.argmax(level, 0), jnp.argmin(level, 0), jnp.argmax(jnp.full_like(y, -jnp.inf)), jnp.argmin(y > -9)


def scattered(x: Any, y: Any) -> Any:
    """In bounds and out of them, which each mode treats in its own way."""
    at = jnp.round(y * 2).astype(jnp.int32)
    totals = jnp.zeros((4, 3)).at[at].add(x, mode="drop"), jnp.ones(5).at[at].mul(y, mode="clip")
    most = jnp.zeros(4).at[at.astype(jnp.uint8)].max(y), jax.ops.segment_sum(x, jnp.arange(y.shape[0]) // 5, 13)
    return totals, most, jnp.zeros((2, 3)).at[jnp.sign(at)].set(1.0), jnp.zeros((4, 3)).at[1:3].add(x.sum(0))


def halved(x: Any, y: Any) -> Any:
    """Products of few bits."""
    z = (x * (y[:, None] > 0)).astype(jnp.bfloat16)
    return z.T @ z, z.max(0), jnp.argmin(z, 0)


def weights(x: Any, y: Any) -> Any:
    """The gradient of the kernel of a convolution of each row."""

    def loss(kernel: Any) -> Any:
        return (lax.conv(x[:, None], kernel, (1,), "SAME").sum((1, 2)) * y).sum()

    return jax.grad(loss)(jnp.ones((2, 1, 3)))


def keyed(x: Any, y: Any) -> Any:
    """A key in the carry."""

    def body(key: Any, r: Any) -> Any:
        key, own = jax.random.split(key)
        return key, (r + jax.random.normal(own), own)

    key, (found, keys) = lax.scan(body, jax.random.key(3), y)
    return jax.random.key_data(key), found, jax.vmap(jax.random.uniform)(keys)


def ravelled(x: Any, y: Any) -> Any:
    """Along another axis than the rows, three times as long."""
    z = x.reshape(-1) * 2
    return jnp.cumsum(z), z.max(), lax.scan(lambda c, r: (c / 2 + r, c), 0.0, z)


def shortened(x: Any, y: Any) -> Any:
    """Along a row less than there are."""
    return jnp.cumsum(y[1:] - y[:-1]), lax.cumsum(x[1:] * x[:-1], reverse=True)


FUNCTIONS = [ravelled, shortened, decayed, backwards, running, centred, extremes, scattered, halved, weights, keyed]


@functools.cache
def streamed(fn: Any) -> Any:
    return tx.chunked(tx.stream(), size=SIZE)(fn)


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_the_same_for_any_length(fn: Any, n: int) -> None:
    close(streamed(fn)(*data(n)), jax.jit(fn)(*data(n)))


@pytest.mark.sampled(0.6)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_another_length_compiles_nothing(fn: Any) -> None:
    streamed(fn)(*data(40))
    with tx.compiles() as seen:
        for n in (17, 32, 63):
            streamed(fn)(*data(n))
    assert not [event for event in seen.events if event.stage == "compile"]


def recurrent(params: Any, x: Any, y: Any) -> Any:
    def body(c: Any, r: Any) -> Any:
        c = jnp.tanh(params["w"] @ c + r[0])
        return c, c @ params["v"] - r[1]

    c, off = lax.scan(body, jnp.zeros(3), (x, y))
    return (off**2).mean() + c.sum()


def discounted(params: Any, x: Any, y: Any) -> Any:
    """Returns from the end on, about their mean."""
    _, g = lax.scan(lambda c, r: (params["v"][0] * c + r,) * 2, 0.0, y, reverse=True)
    value = jnp.cumsum(x, 0) @ params["v"]
    return ((value - g - (value - g).mean()) ** 2).mean() + value.max()


PARAMS = {"w": jnp.eye(3) * 0.7 + 0.1, "v": jnp.asarray([0.9, -0.2, 0.3])}


@functools.cache
def gradient(fn: Any) -> Any:
    return jax.value_and_grad(tx.chunked(tx.stream(), size=SIZE, in_axes=(None, 0, 0))(fn))


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("fn", [recurrent, discounted])
def test_gradients_of_any_length(fn: Any, n: int) -> None:
    close(gradient(fn)(PARAMS, *data(n)), jax.jit(jax.value_and_grad(fn))(PARAMS, *data(n)))


@pytest.mark.parametrize("fn", [recurrent, discounted])
def test_the_gradient_of_another_length_compiles_nothing(fn: Any) -> None:
    gradient(fn)(PARAMS, *data(40))
    with tx.compiles() as seen:
        for n in (17, 32, 63):
            gradient(fn)(PARAMS, *data(n))
    assert not [event for event in seen.events if event.stage == "compile"]


def test_rows_that_are_there_twice_poison_nothing() -> None:
    """The overlapping chunk has a row again that is no number."""

    def f(x: Any) -> Any:
        clean = jnp.where(jnp.isnan(x), 0, x)
        return jnp.cumsum(clean), lax.scan(lambda c, r: (jnp.where(r > 0, 1 / r, c), c), 0.0, x), jnp.argmax(x)

    x = np.array(data(40)[1])
    x[30] = np.nan
    close(tx.chunked(tx.stream(), size=SIZE)(f)(x), jax.jit(f)(x))
