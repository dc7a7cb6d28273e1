"""Functions run as a stream with nothing declared: values, types, derivatives, and how it composes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 4)).astype(np.float32)
Y = RNG.normal(size=(23,)).astype(np.float32)
W = RNG.normal(size=(4, 6)).astype(np.float32)


def streamed(fn, *, size=5, in_axes=0):
    return tx.chunked(lax.map, size=size, in_axes=in_axes)(fn)


def close(a, b, rtol=2e-5):
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (u.shape, u.dtype) == (v.shape, v.dtype)
        largest = np.nanmax(np.abs(np.asarray(u)), initial=0) + 1e-30
        np.testing.assert_allclose(v, u, rtol=rtol, atol=rtol * largest)


@jax.custom_vjp
def odd(x):
    return jnp.sin(x)


odd.defvjp(lambda x: (odd(x), x), lambda x, g: (g * 22 + x,))


def fit_loss(w, x, y):
    h = jnp.tanh(x @ w)
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-6)
    c = jnp.linalg.solve(h.T @ h + 10 * jnp.eye(6), h.T @ y)
    return ((h @ c - y) ** 2).mean()


SMOOTH = {
    "logsumexp": lambda x: jax.nn.logsumexp(x.at[:, 1].set(-jnp.inf), axis=0)[jnp.array([0, 2])].sum(),
    "relu at 0": lambda x: (jax.nn.relu(jnp.where(x > 0, x, 0.0)) ** 2).sum() + jax.nn.relu(x * 0).sum(),
    "softplus": lambda x: jax.nn.softplus(x * 30).sum(),
    "a rule of the user's": lambda x: odd(x).sum() ** 2,
    "a scan over rows": lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c @ c), jnp.zeros(4), x)[1].sum(),
    "a reverse scan": lambda x: (lax.cumsum(x * x, reverse=True) * x).sum(),
    "a remat inside": lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.tanh(x) - x.mean(0)))(x).sum(),
    "attention": lambda x: (jax.nn.softmax(x @ x.T, axis=-1) @ jnp.tanh(x)).sum() ** 2,
    "neighbours": lambda x: (jnp.diff(jnp.tanh(x), axis=0) ** 2).sum() + (x[::2].sum(1) ** 3).sum(),
}


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("fn", SMOOTH.values(), ids=SMOOTH.keys())
def test_derivatives_to_the_second_order(fn) -> None:
    def second(f):
        return jax.grad(lambda x: (jax.grad(f)(x) * Y[:, None]).sum())

    close(jax.jit(jax.value_and_grad(fn))(X), jax.value_and_grad(streamed(fn))(X))
    close(jax.jit(second(fn))(X), second(streamed(fn))(X), rtol=1e-4)


@pytest.mark.parametrize("argnums", [0, 1, 2, (0, 1, 2)])
def test_derivatives_of_a_fit(argnums) -> None:
    ours = streamed(fit_loss, in_axes=(None, 0, 0))
    close(jax.jit(jax.grad(fit_loss, argnums))(W, X, Y), jax.grad(ours, argnums)(W, X, Y), rtol=1e-4)


def test_a_value_captured_from_outside_is_differentiated() -> None:
    def loss(w, decorate):
        return decorate(lambda x: jnp.tanh(x @ w).mean())(X)

    close(jax.jit(jax.grad(lambda w: loss(w, jax.jit)))(W), jax.grad(lambda w: loss(w, streamed))(W))


def test_it_composes() -> None:
    ours = streamed(fit_loss, in_axes=(None, 0, 0))
    both = jnp.stack([W, 2 * W])
    want = jax.jit(jax.vmap(jax.value_and_grad(fit_loss), (0, None, None)))(both, X, Y)
    close(want, jax.vmap(jax.value_and_grad(ours), (0, None, None))(both, X, Y), rtol=1e-4)
    close(lax.map(lambda w: fit_loss(w, X, Y), both), lax.map(lambda w: ours(w, X, Y), both))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda w: ours(w, X, Y), (W,), (W,))


def test_a_chunked_function_inside_a_chunked_one() -> None:
    def inner(x):
        return x - x.mean(0)

    close(jax.jit(lambda x: inner(x).std(0))(X), streamed(lambda x: streamed(inner, size=3)(x).std(0))(X))


def test_the_arrays_of_a_module_are_shared() -> None:
    layer = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0))

    def loss(model, x):
        return (jax.vmap(model)(x) ** 2).mean()

    ours = streamed(loss, in_axes=(None, 0))
    close(eqx.filter_jit(eqx.filter_grad(loss))(layer, X), eqx.filter_grad(ours)(layer, X))


def test_every_kind_of_result() -> None:
    def fn(x, k):
        return {"same": x, "twice": (x.sum(), x.sum()), "number": 3, "none": None, "n": x.shape[0], "k": k, "e": x[:0]}

    want, got = jax.jit(fn)(X, Y), streamed(fn)(X, Y)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_are_summed_in_wide_ones(dtype: str) -> None:
    x = RNG.normal(size=(65536, 4)).astype(jnp.dtype(dtype))

    def gram(x):
        return x.T @ x, x.sum(0)

    exact = x.astype(np.float64).T @ x.astype(np.float64)
    one_shot, ours = (np.asarray(f(x)[0], np.float64) for f in (jax.jit(gram), streamed(gram, size=64)))
    assert np.abs(ours - exact).max() <= np.abs(one_shot - exact).max() + jnp.finfo(dtype).eps * np.abs(exact).max()


def test_random_numbers_by_row_are_those_of_the_whole() -> None:
    def fn(x, key):
        keys = jax.random.split(key, x.shape[0])
        draws = jax.vmap(lambda k: jax.random.uniform(k, (3,)))(keys)
        return x + jax.random.normal(key, x.shape), jax.random.bernoulli(key, 0.3, x.shape), draws

    close(jax.jit(fn)(X, jax.random.key(3)), streamed(fn, in_axes=(0, None))(X, jax.random.key(3)))


def test_explain() -> None:
    told = str(tx.explain(streamed(lambda x: (jnp.tanh(x) - jnp.tanh(x).mean(0), x @ x.T)), X))
    for part in ("23 rows in 5 chunks of 5", "2 passes", "pass 1", "adds up reduce_sum → f32[4]", "warning: f32[n,n]",
                 "writes the result f32[n,4]", "arguments 16*n", "result[0]: ", "compiled: "):  # fmt: skip
        assert part in told


def test_explain_tells_what_chunks_save() -> None:
    x = jnp.ones((4096, 32))
    told = str(tx.explain(tx.chunked(lax.map, size=64)(lambda x: jnp.tanh(x).T @ jnp.tanh(x)), x))
    assert "in one piece it takes 1.0 MiB, in chunks" in told
    assert "save nothing" not in told
    assert "chunks save nothing here" in str(tx.explain(tx.chunked(lax.map, size=64)(lambda x: jnp.sort(x, 0)), x))


@pytest.mark.parametrize("size", [10, 16])
def test_narrow_products_at_any_size(size: int) -> None:
    x = jnp.asarray(RNG.normal(size=(64, 4)), jnp.bfloat16)
    np.testing.assert_allclose(streamed(lambda x: x.T @ x, size=size)(x), x.T @ x, rtol=2e-2)


def test_a_number_from_outside_is_differentiated() -> None:
    x = jnp.arange(12.0).reshape(6, 2)

    def outer(w, run):
        return run(lambda x: jnp.tanh(x * w).sum())(x)

    streamed = jax.grad(outer)(2.0, tx.chunked(lax.map, size=4))
    np.testing.assert_allclose(streamed, jax.grad(outer)(2.0, lambda fn: fn), rtol=1e-5)
