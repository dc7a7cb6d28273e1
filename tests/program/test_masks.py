"""Equations with masks: what was found to let padding in, or to count from the wrong end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
KEY = jax.random.key(1)


def under(fn, n: int, fill: float = np.nan):
    padded = tx.pad_static(8)(fn)
    return padded(*padded.pad(X[:n], fill=fill))


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: lax.top_k((x - x).T / (x - x).T, 1),  # a NaN with its sign set is below the lowest number
        lambda x: lax.top_k(x.T.astype(jnp.bfloat16), 1),
        lambda x: x.at[jnp.array([0, 2, 99])].add(1.0),
        lambda x: x.at[jnp.array([0, 2, 99])].set(1.0, mode="clip"),
        jax.grad(lambda y: (y[jnp.array([-1, 0, 5, 99])] ** 2).sum()),
        lambda x: jnp.zeros((10, 4)).at[: x.shape[0]].set(x),
        lambda x: x.at[:, 1].set(x[:, 2]),
        lambda x: x.T.reshape(-1),
        lambda x: jnp.ravel(x, order="F"),
        lambda x: x.T.reshape(2, -1),
        lambda x: jnp.tile(x, (2, 1)),
        lambda x: jnp.repeat(x, 2, axis=0),
        lambda x: jnp.roll(x, 1, axis=0),
        lambda x: jnp.linalg.inv(x @ x.T + jnp.eye(x.shape[0])),
        lambda x: jnp.linalg.slogdet(x @ x.T + jnp.eye(x.shape[0]))[1],
        jax.vmap(lambda r: lax.while_loop(lambda s: s < 9, lambda s: s * 2 + 1, jnp.abs(r[0]))),
        lambda x: lax.conv_general_dilated(x.T[None], jnp.ones((2, 4, 3)), (2,), "SAME")[0],
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME"),
        lambda x: jax.random.gamma(KEY, 2.0, (x.shape[0], 3)),
        lambda x: jax.random.normal(KEY, (3, x.shape[0])),
        lambda x: jax.random.bits(KEY, (2, x.shape[0], 3), jnp.uint8),
        lambda x: jax.random.key_data(jax.random.split(KEY, x.shape[0])),
    ],
)
def test_as_without_padding(fn, n: int) -> None:
    for a, b in zip(jax.tree.leaves(jax.jit(fn)(X[:n])), jax.tree.leaves(under(fn, n)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(b, float), np.asarray(a, float), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: x.at[1:].apply(jnp.exp), "by a function of its own"),
        (lambda x: jax.random.gamma(KEY, 2.0, (3, x.shape[0])), "of which rows do not lead"),
        (lambda x: jnp.fft.fft(x[:, 0]).real, "which mixes all rows"),
    ],
)
def test_what_is_refused(fn, why: str) -> None:
    with pytest.raises(tx.RowMixingError, match=why):
        under(fn, 5)


def test_a_function_of_its_own_at_some_rows_in_chunks() -> None:
    fn = lambda x: x.at[1:].apply(jnp.exp)  # noqa: E731
    np.testing.assert_allclose(tx.chunked(lax.map, size=3)(fn)(X), fn(jnp.asarray(X)), rtol=1e-6)
