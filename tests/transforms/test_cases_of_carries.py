"""Faults that people reported of JAX programs whose state is carried in bf16, each as a test of `bf16_carry_scan`.

| reported | where | what answers it |
|---|---|---|
| the gradient of a scan keeps the residuals of each step | jax issues 3186 and 2139 | a tape in bf16 |
| a running sum in bf16 stops at 256 | ml_dtypes 63, jax 29323, tensorflow 115731, numpy 24443 | sums stay f32 |
| weights and moments in bf16 lose small updates | optax issues 1552 and 1754, spd pull 944 | they are sums |
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import erythroxy_tx as tx

ROUNDS = pytest.mark.parametrize("round", ["tape", "carry"])


# ---------------------------------------------------------------------- the tape

D, BATCH = 256, 32
W = jnp.asarray(np.random.default_rng(0).normal(size=(D, D)) / 16, jnp.float32)


def loss(xs: jax.Array) -> jax.Array:
    return lax.scan(lambda h, x: (jnp.tanh(h @ W + x), None), jnp.zeros((BATCH, D)), xs)[0].sum()


def inputs(steps: int) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (steps, BATCH, D)) * 0.3


def temp_bytes(fn: Callable, steps: int) -> int:
    return jax.jit(fn).lower(inputs(steps)).compile().memory_analysis().temp_size_in_bytes


def test_the_tape_of_a_gradient_is_half() -> None:
    ours = tx.bf16_carry_scan(loss)
    carry = BATCH * D * 4
    for steps in (50, 200):
        assert temp_bytes(loss, steps) <= 3 * carry
        assert temp_bytes(jax.grad(loss), steps) >= steps * carry
        assert temp_bytes(jax.grad(ours), steps) <= 0.6 * temp_bytes(jax.grad(loss), steps)
    xs = inputs(200)
    right, found = (np.asarray(jax.jit(jax.grad(fn))(xs)) for fn in (loss, ours))
    assert 0 < np.linalg.norm(found - right) <= 5e-3 * np.linalg.norm(right)
    assert jax.jit(loss)(xs) == ours(xs)
    assert abs(float(tx.bf16_carry_scan(loss, round="carry")(xs)) - float(loss(xs))) <= 1e-2 * abs(float(loss(xs)))


# ---------------------------------------------------------------------- sums


def total(xs: jax.Array) -> jax.Array:
    return lax.scan(lambda c, x: (c + x, None), jnp.float32(0), xs)[0]


@ROUNDS
def test_a_running_sum_does_not_stop(round: str) -> None:  # noqa: A002
    ones = jnp.ones(1000)
    assert tx.bf16_carry_scan(total, round=round)(ones) == 1000
    assert tx.bf16_carry_scan(total, round="carry", keep=())(ones) == 256  # where it is asked for
    normals = jnp.asarray(np.random.default_rng(0).normal(size=10_000), jnp.bfloat16)
    found = tx.bf16_carry_scan(total, round=round)(normals.astype(jnp.float32))
    assert abs(float(found) - np.asarray(normals, np.float64).sum()) <= 1


# ---------------------------------------------------------------------- weights and moments


def climb(step: float) -> jax.Array:
    return lax.fori_loop(0, 1000, lambda i, w: w + step, jnp.float32(1))


def second_moment(gradient: jax.Array) -> jax.Array:
    adam = optax.scale_by_adam()
    state = lax.scan(lambda s, _: (adam.update(gradient, s)[1], None), adam.init(gradient), length=3000)[0]
    return state.nu[0]


def descend(weights: jax.Array) -> jax.Array:
    adam = optax.adam(1e-3)

    def step(state: Any, _: Any) -> tuple:
        w, moments = state
        updates, moments = adam.update(w - 3.0, moments, w)
        return (optax.apply_updates(w, updates), moments), None

    return lax.scan(step, (weights, adam.init(weights)), length=1000)[0][0]


@ROUNDS
def test_weights_and_moments_lose_nothing(round: str) -> None:  # noqa: A002
    weight = tx.bf16_carry_scan(climb, round=round)(1e-3)
    assert weight == jax.jit(climb)(1e-3)
    assert abs(float(weight) - 2) <= 1e-4
    ones = jnp.ones(1)
    nu = tx.bf16_carry_scan(second_moment, round=round)(ones)
    assert abs(float(nu) - (1 - 0.999**3000)) <= 1e-4
    assert tx.bf16_carry_scan(descend, round=round)(ones) == jax.jit(descend)(ones)
    asked = tx.bf16_carry_scan(second_moment, round="carry", keep=())(ones)
    assert abs(float(asked) - 0.95) > 0.3  # where every carry is rounded


@ROUNDS
def test_a_gradient_of_zero_moves_nothing(round: str) -> None:  # noqa: A002
    zero = jnp.zeros(3)
    at_rest = lambda w: descend(w + 3.0)  # noqa: E731
    assert np.array_equal(tx.bf16_carry_scan(at_rest, round=round)(zero), np.full(3, 3.0))
