"""Programs with a scan in each place where one can be, as functions of weights and a state, for the tests of what
rewrites scans.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

W = jax.random.normal(jax.random.key(0), (4, 4)) / 3
H = jnp.linspace(-1, 1, 12).reshape(3, 4)


@functools.cache
def inputs(length: int = 16) -> np.ndarray:
    """Numbers, also inside a trace: a program that drew them would take longer to compile than what is tested."""
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.random.normal(jax.random.key(1), (length, 3, 4)))


def cell(w: Any) -> Callable:
    return lambda h, x: (jnp.tanh(h @ w + x), h.sum())


@jax.custom_jvp
def odd_rule(h: Any, w: Any) -> Any:
    return lax.scan(cell(w), h, inputs())[0]


@odd_rule.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    return odd_rule(*primals), tangents[0] * 5.0


def lstm(w: Any, h: Any) -> Any:
    def step(state, x):
        h, c = state
        i, f, o = (jax.nn.sigmoid(h @ w + x + k) for k in range(3))
        c = f * c + i * jnp.tanh(h @ w.T + x)
        return (o * jnp.tanh(c), c), (h * x).sum(-1)

    (h, c), ys = lax.scan(step, (h, h), inputs())
    return h.sum() + c.mean() + (ys**2).sum()


def kalman(w: Any, h: Any) -> Any:
    def step(state, x):
        mean, covariance = state
        covariance = w @ covariance @ w.T + jnp.eye(4)
        gain = covariance @ jnp.linalg.inv(covariance + jnp.eye(4))
        mean = mean @ w.T
        innovation = x[0] - mean
        return (mean + innovation @ gain.T, covariance - gain @ covariance), (innovation**2).sum()

    (mean, _), losses = lax.scan(step, (h[0], jnp.eye(4)), inputs(12))
    return mean.sum() + losses.sum()


def optimiser(w: Any, h: Any) -> Any:
    def step(state, x):
        p, m = state
        g = jax.grad(lambda p: ((jnp.tanh(x @ w) - p) ** 2).mean())(p)
        m = 0.9 * m + 0.1 * g
        return (p - 0.1 * m, m), None

    return (lax.scan(step, (h, jnp.zeros_like(h)), inputs())[0][0] ** 2).sum()


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "forwards": lambda w, h: lax.scan(cell(w), h, inputs())[0].sum(),
    "in reverse, with outputs": lambda w, h: sum(
        map(jnp.sum, jax.tree.leaves(lax.scan(cell(w), h, inputs(), reverse=True)))
    ),
    "unrolled": lambda w, h: lax.scan(cell(w), h, inputs(), unroll=3)[1].sum(),
    "without inputs": lambda w, h: lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h, None, length=16)[0].sum(),
    "without a carry": lambda w, h: lax.map(lambda x: jnp.tanh(x @ w), inputs()).sum() + h.sum(),
    "nothing but what is shared": lambda w, h: lax.scan(lambda _, x: (None, jnp.tanh(w)), None, None, length=9)[
        1
    ].sum(),
    "fori_loop": lambda w, h: lax.fori_loop(0, 13, lambda i, h: jnp.tanh(h @ w + i / 13), h).sum(),
    "weights used twice": lambda w, h: lax.scan(lambda h, x: (jnp.tanh(h @ w) @ w + x @ w.T, None), h, inputs())[
        0
    ].sum(),
    "a prime length": lambda w, h: sum(map(jnp.sum, lax.scan(cell(w), h, inputs(17)))),
    "a prime length in reverse": lambda w, h: sum(map(jnp.sum, lax.scan(cell(w), h, inputs(23), reverse=True))),
    "one step": lambda w, h: lax.scan(cell(w), h, inputs(1))[0].sum(),
    "no step": lambda w, h: lax.scan(cell(w), h, inputs(0))[0].sum(),
    "nested": lambda w, h: lax.scan(lambda h, x: (lax.scan(cell(w), h, inputs(5))[0] + x, None), h, inputs())[0].sum(),
    "in jit": lambda w, h: jax.jit(lambda h: lax.scan(cell(w), h, inputs())[0])(h).sum(),
    "in cond": lambda w, h: lax.cond(h.sum() < 9, lambda h: lax.scan(cell(w), h, inputs())[0], lambda h: h, h).sum(),
    "in remat": lambda w, h: jax.checkpoint(lambda h: lax.scan(cell(w), h, inputs())[0])(h).sum(),
    "in vmap": lambda w, h: jax.vmap(lambda h: lax.scan(cell(w), h, inputs()[:, 0])[0])(h).sum(),
    "in a custom_jvp": lambda w, h: odd_rule(h, w).sum(),
    "an integer and a bool carried": lambda w, h: lax.scan(
        lambda c, x: ((c[0] + 1, c[1] & True, jnp.tanh(c[2] @ w + x)), None), (0, True, h), inputs()
    )[0][2].sum(),
    "a key carried": lambda w, h: lax.scan(
        lambda c, x: ((jax.random.split(c[0])[0], jnp.tanh(c[1] @ w + x) * jax.random.uniform(c[0])), None),
        (jax.random.key(1), h),
        inputs(),
    )[0][1].sum(),
    "a number carried": lambda w, h: lax.scan(
        lambda c, x: ((c[0] * 0.9 + c[1].sum(), jnp.tanh(c[1] @ w + x * c[0])), None), (1.0, h), inputs()
    )[0][0],
    "lstm": lstm,
    "kalman": kalman,
    "optimiser": optimiser,
}
# The operations and their order are the same. Fused with others, a product and a sum may be rounded once, not twice.
UNFUSED = {"xla_disable_hlo_passes": "fusion,cpu-instruction-fusion"}


@functools.cache
def gradient(name: str) -> Any:
    return jax.jit(jax.grad(PROGRAMS[name], (0, 1)), compiler_options=UNFUSED)(W, H)


def bits(a: Any, b: Any) -> bool:
    return all(
        np.array_equal(x, y, equal_nan=True) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )
