"""Functions of rows over time, each with a scan: what the transforms of scans are held to in the matrix. Not here: the
matrix (`matrix.py`).

Each takes `x`, steps of two numbers, and `w`, two numbers that the steps share.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def gru(x: Any, w: Any) -> Any:
    """A gated state, and the mean of each step."""

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        update, reset = jax.nn.sigmoid(x + w * h), jax.nn.sigmoid(w * x - h)
        h = (1 - update) * h + update * jnp.tanh(jnp.outer(w, w) @ (reset * h) + x)
        return h, h.mean()

    return lax.scan(step, jnp.zeros_like(w), x)


def lstm(x: Any, w: Any) -> Any:
    """A state and a cell, from the last step to the first."""

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        h, c = carry
        forget, take, give = (jax.nn.sigmoid(x + k * w * h) for k in (1.0, 0.5, -1.0))
        c = forget * c + take * jnp.tanh(x + w * h)
        return (give * jnp.tanh(c), c), None

    return lax.scan(step, (jnp.zeros_like(w), jnp.ones_like(w)), x, reverse=True)[0]


def state_space(x: Any, w: Any) -> Any:
    """A linear recurrence, whose matrix all steps share: Tustin's, of a continuous one."""

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        slope = jnp.array([[0.0, 1.0], [-1.0, -0.1]]) * w
        transition = jnp.linalg.solve(jnp.eye(2) - slope / 2, jnp.eye(2) + slope / 2)
        return transition @ h + x, (w * h).sum()

    return lax.scan(step, jnp.zeros_like(w), x)[1]


def kalman(x: Any, w: Any) -> Any:
    """A mean, a covariance, and a sum of squared surprises."""

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        mean, covariance, total = carry
        noise = jnp.outer(w, w) + jnp.eye(2)
        covariance = covariance + noise
        gain = covariance @ jnp.linalg.inv(covariance + jnp.eye(2))
        surprise = x - mean
        mean, covariance = mean + gain @ surprise, covariance - gain @ covariance
        return (mean, covariance, total + (surprise**2).sum()), None

    return lax.scan(step, (jnp.zeros_like(w), jnp.eye(2), 0.0), x)[0]


def optimiser(x: Any, w: Any) -> Any:
    """Weights under small steps with momentum, a running mean of them, and a count."""

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        weights, momentum, mean, count = carry
        loss, slope = jax.value_and_grad(lambda p: ((jnp.tanh(x * w) - p) ** 2).mean())(weights)
        momentum = 0.9 * momentum + slope
        weights = weights - 0.1 * momentum
        return (weights, momentum, 0.99 * mean + 0.01 * weights, count + 1), loss

    return lax.scan(step, (w, jnp.zeros_like(w), w, 0), x)


RECURRENCES = {"gru": gru, "lstm": lstm, "state space": state_space, "kalman": kalman, "optimiser": optimiser}
