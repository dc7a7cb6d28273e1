"""Products about means: one way over the rows, as accurate as two, at any scale."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx

ROWS = 103
RNG = np.random.default_rng(0)
SCALES = np.array([1, 10, 0.1, 1e-12, 1e12, 3])
X = (RNG.standard_normal((ROWS, 6)) * SCALES + np.array([0, 1e3, 5, 1e-12, 0, 7])).astype(np.float32)
Y = RNG.standard_normal(ROWS).astype(np.float32)


def standardised(x):
    return (x - x.mean(0)) / x.std(0)


def ridge(x, y):
    z, n = standardised(x), x.shape[0]
    return jnp.linalg.solve(z.T @ z / n + jnp.eye(6), z.T @ (y - y.mean()) / n)


def of_the_first(x, y):
    a = x.shape[0] * 7 // 10
    first = x[:a]
    z = (x - first.mean(0)) / first.std(0)
    return z[:a].T @ z[:a], z[:a].T @ (y[:a] - y[:a].mean())


def of_cubes(x, y):
    x = x.reshape(x.shape[0], 2, 3)
    apart = x - x.mean(0)
    return jnp.tensordot(apart, apart, ((0,), (0,))), jnp.einsum("nij,n->ji", apart, y - y.mean())


def weighted_columns(x, y):
    turned = ((x - x.mean(0)) * jnp.arange(1.0, 7)).T
    return turned @ turned.T, turned @ (y - y.mean())


FORMS = {
    "ridge": ridge,
    "covariance": lambda x, y: jnp.cov(x, rowvar=False),
    "correlation": lambda x, y: jnp.corrcoef(x, rowvar=False),
    "the first rows": of_the_first,
    "more axes": of_cubes,
    "columns with weights": weighted_columns,
    "two columns": lambda x, y: standardised(x).T @ standardised(jnp.stack([y, y**2], 1)),
    "two vectors": lambda x, y: (y - y.mean()) @ (x[:, 0] - x[:, 0].mean()),
}


def highest(fn, *args):
    """What a function gives in float64."""
    with jax.enable_x64(True):  # noqa: FBT003
        return [np.asarray(leaf) for leaf in jax.tree.leaves(fn(*(jnp.asarray(np.float64(x)) for x in args)))]


@functools.cache
def highest_of_form(name: str):
    return highest(FORMS[name], X, Y)


@pytest.mark.sampled(0.4)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("size", [1, 16, 60, 102])
def test_one_way_over_the_rows(name: str, size: int) -> None:
    fn = FORMS[name]
    stream = tx.chunked(lax.map, in_axes=(0, 0), size=size)(fn)
    assert "1 pass over the rows" in str(tx.explain(stream, X, Y))
    for got, want in zip(jax.tree.leaves(stream(X, Y)), highest_of_form(name), strict=True):
        largest = np.abs(want).max(-1, keepdims=True)
        assert np.max(np.abs(got - want) / largest) < 2e-5


@pytest.mark.parametrize(("of_x", "of_y"), [(1e17, 1e25), (1e-16, 1e-24), (1e17, 1e-30), (1.0, 1.0)])
def test_nothing_overflows_that_does_not_one_shot(of_x: float, of_y: float) -> None:
    x, y = jnp.asarray(X[:, [0, 2, 5]] * of_x), jnp.asarray(Y * of_y)

    def moment(x, y):
        return standardised(x).T @ (y - y.mean())

    stream = tx.chunked(lax.map, in_axes=(0, 0), size=16)(moment)
    np.testing.assert_allclose(stream(x, y), highest(moment, x, y)[0], rtol=1e-4)


def test_a_column_that_never_changes() -> None:
    x = jnp.stack([jnp.full(ROWS, 3.0), jnp.asarray(Y)], 1)
    got = tx.chunked(lax.map, size=16)(lambda x: (x - x.mean(0)).T @ (x - x.mean(0)))(x)
    assert jnp.abs(jnp.append(got[0], got[1, 0])).max() < 1e-6 * got[1, 1]


def test_a_number_that_is_not_one_stays_in_its_column() -> None:
    x = jnp.asarray(X).at[50, 2].set(jnp.nan).at[3, 4].set(jnp.inf)
    got = np.asarray(tx.chunked(lax.map, size=16)(lambda x: jnp.cov(x, rowvar=False))(x))
    want = np.asarray(jnp.cov(x, rowvar=False))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


def test_as_accurate_as_two_ways_where_the_mean_rounds() -> None:
    x = (np.random.default_rng(0).standard_normal((40, 3)) * 1e-6 + 30).astype(np.float32)
    for fn in (lambda x: x.var(0), lambda x: (x - x.mean(0)).T @ (x - x.mean(0))):
        (want,) = highest(fn, x)
        one, ours = jax.jit(fn)(x), tx.chunked(lax.map, size=2)(fn)(x)
        assert np.abs(ours - want).max() < 2 * np.abs(one - want).max()


def test_one_side_centred_takes_two_ways() -> None:
    y = jnp.asarray(Y).at[7].set(jnp.inf)  # about its mean it would be NaN
    stream = tx.chunked(lax.map, in_axes=(0, 0), size=16)(lambda x, y: standardised(x).T @ y)
    np.testing.assert_array_equal(stream(X, y), standardised(jnp.asarray(X)).T @ y)
    assert "2 passes over the rows" in str(tx.explain(stream, X, Y))


@pytest.mark.parametrize("wanted", [0, (0, 1)])
def test_gradients_around(wanted) -> None:
    def loss(fn):
        return lambda x, w: (jnp.sin(fn(x, w)) ** 2).sum()

    def fn(x, w):
        z = standardised(x)
        return z @ w + (z.T @ z @ w).sum(0)

    x, w = jnp.asarray(X[:, [0, 2, 5]]), jnp.asarray(RNG.standard_normal((3, 2)), jnp.float32)
    ours = jax.grad(loss(tx.chunked(lax.map, in_axes=(0, None), size=16)(fn)), wanted)(x, w)
    want = highest(jax.grad(loss(fn), wanted), x, w)
    for a, b in zip(jax.tree.leaves(ours), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max())


ALIKE = {  # not a mean over all rows, or not of the same value, or not the same in each row
    "a mean of other rows": lambda x, y: (x - x[: x.shape[0] // 2].mean(0)).T @ x,
    "a mean of another value": lambda x, y: (x - (2 * x).mean(0)).T @ x,
    "a sum over all but one": lambda x, y: (x - x.sum(0) / (x.shape[0] - 1)).T @ x,
    "one mean of all": lambda x, y: (x - x.mean()).T @ x,
    "means of the columns, turned": lambda x, y: (x[:, :, None] - x.mean(0)).sum(2).T @ x,
    "weights of rows": lambda x, y: ((x - x.mean(0)) * y[:, None]).T @ x,
    "a part of the rows, of a mean of all": lambda x, y: (x - x.mean(0))[3:].T @ (x - x.mean(0))[3:],
    "other rows on the other side": lambda x, y: (x - x.mean(0))[3:].T @ (x - y.mean())[:-3],
}


@pytest.mark.parametrize("fn", ALIKE.values(), ids=ALIKE.keys())
def test_what_only_looks_alike(fn) -> None:
    x = X[:, [0, 2, 5]]
    for size in (16, 60):
        got = tx.chunked(lax.map, in_axes=(0, 0), size=size)(fn)(x, Y)
        np.testing.assert_allclose(got, highest(fn, x, Y)[0], rtol=1e-4, atol=1e-2)
