"""How many numbers are added up for one number of a result."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from erythroxy_tx.program.terms import longest_sum

X = jnp.ones((6, 4))
GROUPS = jnp.array([0, 0, 1, 1, 2, 2])

TERMS: dict[str, tuple[Callable[..., Any], int]] = {
    "no equations": (lambda x: x, 1),
    "none": (lambda x: jnp.sin(x) * x[::-1], 1),
    "no order matters": (lambda x: (x.max(0), x.argmin(1), jnp.sort(x)), 1),
    "sum": (lambda x: x.sum(), 24),
    "sum of rows": (lambda x: x.sum(0), 6),
    "mean": (lambda x: x.mean(1), 4),
    "product": (lambda x: x.prod(0), 6),
    "count": (lambda x: (x > 0).sum(), 24),
    "the longest of several": (lambda x: (x.sum(1), x.sum(0), x.mean(1)), 6),
    "matmul": (lambda x: x @ x.T, 4),
    "einsum over both": (lambda x: jnp.einsum("ij,ij->", x, x), 24),
    "running": (lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 1)), 4),
    "running log": (lambda x: lax.cumlogsumexp(x, axis=0), 6),
    "convolution": (lambda x: jnp.convolve(x[:, 0], x[:3, 1]), 3),
    "windows": (lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 1), "SAME"), 6),
    "scatter": (lambda x: jax.ops.segment_sum(x[:, 0], GROUPS, 3), 6),
    "scan": (lambda x: lax.scan(lambda c, r: (c + r, None), x[0], x)[0], 6),
    "sums in a scan": (lambda x: lax.scan(lambda c, r: (c + r @ r, None), 0.0, x)[0], 24),
    "counted loop": (lambda x: lax.fori_loop(0, 5, lambda _, c: c + x.sum(0), x[0]), 30),
    "loop of unknown length": (lambda x: lax.while_loop(lambda c: c[0] < 9, lambda c: c + x.sum(0), x[0]), 6),
    "branches": (lambda x: lax.cond(x[0, 0] > 0, lambda x: x.sum(0), lambda x: x.mean() * x[0], x), 24),
    "jit": (jax.jit(jax.jit(lambda x: x.sum())), 24),
    "checkpoint": (jax.checkpoint(lambda x: x.sum(0)), 6),
    "vmap": (jax.vmap(jnp.sum), 4),
    "custom rules": (lambda x: jax.nn.relu(x) + jax.nn.logsumexp(x, 0), 6),
    "gradient": (jax.grad(lambda x: jnp.sin(x @ x.T).sum()), 36),
    "solve": (lambda x: jnp.linalg.solve(x[:4], x[:4, 0]), 4),
    "empty": (lambda x: x[:0].sum() + 1, 1),
}


@pytest.mark.parametrize(("fn", "terms"), TERMS.values(), ids=TERMS)
def test_longest_sum(fn: Callable[..., Any], terms: int) -> None:
    assert longest_sum(fn, X) == terms


def test_several_arguments() -> None:
    assert longest_sum(lambda x, w: (x @ w).sum(0), X, X.T[:, :2]) == 6


@pytest.mark.parametrize(
    ("fn", "terms"),
    [
        (lambda x: lax.reduce(x, 0.0, lambda a, b: a + jnp.abs(b), (0,)), 6),
        (lambda x: lax.ragged_dot(x, jnp.ones((2, 4, 3)), jnp.array([2, 4])), 4),
    ],
    ids=["own reducer", "ragged"],
)
def test_sums_under_other_names(fn: Callable[..., Any], terms: int) -> None:
    assert longest_sum(fn, X) == terms
