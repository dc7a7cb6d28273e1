"""What was wrong once: functions whose stream gave another value, ran forever or broke."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx

X = jnp.arange(1.0, 9.0)
KEYS = jax.random.split(jax.random.key(0), 8)
RBG = jax.random.split(jax.random.key(0, impl="rbg"), 8)
TABLE = jnp.arange(20.0) * 10
CUBE = jnp.arange(32.0).reshape(8, 2, 2) ** 2
WIDE = jax.random.normal(jax.random.key(1), (23, 4))


def half(x):
    return x[: x.shape[0] // 2]


def filled(x):
    how = lax.GatherDimensionNumbers((0, 1), (), (0,))

    def cut(x):
        return lax.gather(x, jnp.array([5]), how, (x.shape[0] - 1, 4), mode="fill", fill_value=7.0)

    apart = cut(x - cut(x).mean(0))
    return apart.T @ apart


FORWARD = {
    "a prefix of a running sum": (lambda x: half(jnp.cumsum(x)), X),
    "a prefix of a reverse running sum": (lambda x: lax.cumsum(x, reverse=True)[:-1], X),
    "a prefix of a reverse scan": (lambda x: lax.scan(lambda c, a: (c + a, c + a), 0.0, x, reverse=True)[1][:-1], X),
    "a running sum of all numbers": (lambda x: jnp.cumsum(x.reshape(-1))[: x.shape[0]], X.reshape(4, 2)),
    "a running maximum of a prefix": (lambda x: half(lax.cummax(x)).sum(), X),
    "a running sum with a row more": (lambda x: jnp.concatenate([jnp.cumsum(x), jnp.zeros(1)]), X),
    "a reduction that starts at ten": (lambda x: lax.reduce(x, np.float32(10), lax.add, (0,)), X),
    "windows that start at three": (
        lambda x: lax.reduce_window(x, np.float32(3), lax.add, (2,), (1,), ((1, 1),)),
        X,
    ),
    "keys of a generator that draws from the first": (jax.vmap(jax.random.uniform), RBG),
    "keys that change places": (lambda k: jax.random.key_data(jnp.concatenate([k[1:], k[:1]])), KEYS),
    "an unsigned start past the end": (lambda x: lax.dynamic_slice_in_dim(x, x[0].astype("uint32") - 2, 2), X),
    "a product of bools": (lambda x: (x > 3) @ (x < 6), X),
    "a part of sorted distances": (lambda x: jnp.sort(jnp.abs(x[:, None] - x), 1)[:, 1], X),
    "a prefix of a table": (lambda x: x + TABLE[: x.shape[0]], X),
    "a suffix of a table": (lambda x: x + TABLE[-x.shape[0] :], X),
    "the sign of a sum of negative zeros": (lambda x: 1 / x.sum(), jnp.full(8, -0.0)),
    "a reshape of nothing": (lambda x: x[:, :0].reshape(x.shape[0], 1, 0), WIDE),
    "a slice of nothing": (lambda x: lax.slice(jnp.concatenate([jnp.zeros((0, 4)), x]) * 2, (0, 0), (0, 4)), WIDE),
    "a scan that stacks nothing": (lambda x: lax.scan(lambda c, r: (c + r, None), jnp.zeros(4), x)[0], WIDE),
    "each row picks from itself": (lambda x: jnp.tanh(x)[jnp.arange(x.shape[0]), jnp.argmax(x, 1)], WIDE),
    "each row adds to itself": (lambda x: x.at[jnp.arange(x.shape[0]), jnp.argmax(x, 1)].add(1), WIDE),
    "squares about means of another axis": (lambda x: ((x - x.mean((0, 1))[:, None]) ** 2).sum((0, 1)), CUBE),
    "squares about means that are turned": (
        lambda x: ((x - lax.reshape(x.mean(0), (2, 2), dimensions=(1, 0))) ** 2).sum(0),
        CUBE,
    ),
    "the variance of numbers whose square overflows": (lambda x: x.var(0), jnp.arange(8.0) * 2.0**50 + 2.0**65),
    "products about the mean of what was filled in": (filled, WIDE),
    "a scan over a number of rows": (lambda x: x + lax.fori_loop(0, x.shape[0], lambda i, c: c * 0.9 + i, 0.0), X),
}  # fmt: skip


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize(("fn", "x"), FORWARD.values(), ids=FORWARD.keys())
def test_value(fn, x) -> None:
    want = np.asarray(jax.jit(fn)(x))
    for size in (1, 3, 5):
        np.testing.assert_allclose(tx.chunked(lax.map, size=size)(fn)(x), want, rtol=1e-6)


GRADIENTS = {
    "padding by the edge": lambda x: (jnp.pad(x, ((1, 1), (0, 0)), mode="edge") ** 2).sum(),
    "padding by the maximum": lambda x: (jnp.pad(x, ((0, 0), (2, 1)), mode="maximum") ** 2).sum(),
    "a linear scan": lambda x: lax.scan(lambda c, r: (0.9 * c + r, None), jnp.zeros(4), x)[0].sum(),
}


@pytest.mark.parametrize("fn", GRADIENTS.values(), ids=GRADIENTS.keys())
def test_gradient(fn) -> None:
    want = jax.jit(jax.grad(fn))(WIDE)
    np.testing.assert_allclose(jax.grad(tx.chunked(lax.map, size=5)(fn))(WIDE), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fn", [lambda x: jnp.cumsum(x, 0), lambda x: lax.cumlogsumexp(x, axis=0)])
def test_a_running_sum_of_narrow_floats_is_carried_in_wide_ones(fn) -> None:
    x = jnp.full((4096, 1), 0.1, jnp.bfloat16)
    exact = fn(x.astype(jnp.float32))
    assert jnp.abs(tx.chunked(lax.map, size=8)(fn)(x).astype(jnp.float32) - exact).max() <= 2**-8 * exact.max()


def test_a_running_sum_in_many_chunks_is_compensated() -> None:
    x = jax.random.uniform(jax.random.key(0), (20000,))
    exact = np.cumsum(np.asarray(x, np.float64))
    found = tx.chunked(lax.map, size=1)(jnp.cumsum)(x)
    assert np.abs(np.asarray(found, np.float64) - exact).max() <= 2**-23 * exact.max()


@jax.custom_vjp
def mean_of_rows(x):
    return x.mean(0)


def _asks(rows, g):
    try:
        factor = float(int(rows.shape[0]))
    except Exception:  # noqa: BLE001  # as a user would
        factor = 1.0
    return (jnp.broadcast_to(g, rows.shape) * factor,)


mean_of_rows.defvjp(lambda x: (x.mean(0), x), _asks)


def test_a_backward_rule_that_asks_for_the_number_of_rows() -> None:
    with pytest.raises(tx.RowMixingError, match=r"the derivative of tx\.chunked\(mean_of_rows\) asks for the number"):
        jax.grad(lambda x: tx.chunked(lax.map, size=5)(mean_of_rows)(x).sum())(WIDE)


def test_an_error_of_a_backward_rule_is_raised_as_it_is() -> None:
    @jax.custom_vjp
    def fn(x):
        return x.sum()

    def backward(_, g):
        raise ValueError("mine")

    fn.defvjp(lambda x: (x.sum(), None), backward)
    with pytest.raises(ValueError, match=r"^mine"):
        jax.grad(tx.chunked(lax.map, size=5)(fn))(WIDE)


def test_a_derivative_that_asks_for_the_number_of_rows_is_refused() -> None:
    with pytest.raises(tx.RowMixingError, match=r"the derivative of tx\.chunked\(.*\) cannot be traced"):
        jax.grad(tx.chunked(lax.map, size=5)(lambda x: jnp.cumprod(x, 0).sum()))(WIDE)


def test_a_loop_as_long_as_the_rows_has_no_derivative() -> None:
    def fn(x):
        return lax.fori_loop(0, x.shape[0], lambda i, total: total + x[i].sum(), 0.0)

    with pytest.raises(tx.RowMixingError, match=r"fori_loop with dynamic .* Fix: lax\.scan over the rows"):
        jax.grad(tx.chunked(lax.map, size=5)(fn))(WIDE)


@pytest.mark.usefixtures("frozen_heap")
def test_no_tracer_is_kept() -> None:
    with jax.checking_leaks():
        tx.chunked(lax.map, size=5)(jnp.tanh)(WIDE)
        jax.grad(lambda x: tx.chunked(lax.map, size=5)(jnp.tanh)(x).sum())(WIDE)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * (2.0 if isinstance(x.shape[0], int) else 3.0),
        lambda x: x * (2.0 if type(x.shape[0]) is int else 3.0),
        lambda x: x * (2.0 if np.isscalar(x.shape[0]) else 3.0),
        lambda x: x * (2.0 if x.shape[0] in np.array([23]) else 3.0),
        lambda x: x * (2.0 if hasattr(x.shape[0], "bit_length") else 3.0),
    ],
)
def test_a_decision_by_the_type_of_the_number_of_rows_is_refused(fn) -> None:
    with pytest.raises(tx.RowMixingError, match="Expected a function that"):
        tx.chunked(lax.map, size=5)(fn)(WIDE)


def test_a_decision_by_a_float() -> None:
    fn = lambda x: x * (2.0 if x.shape[0] == 23.0 and 22.5 < x.shape[0] <= 23.5 else 3.0)  # noqa: E731
    np.testing.assert_allclose(tx.chunked(lax.map, size=5)(fn)(WIDE), 2 * WIDE)
    np.testing.assert_allclose(tx.chunked(lax.map, size=5)(fn)(WIDE[:9]), 3 * WIDE[:9])


@pytest.mark.parametrize("fn", [lambda x: x * x[0], lambda x: x[-1] - x, lambda x: lax.dynamic_slice_in_dim(x, 3, 6)])
def test_a_row_in_float64(fn) -> None:
    with jax.enable_x64(True):  # noqa: FBT003
        x = jnp.asarray(np.arange(8.0))
        np.testing.assert_array_equal(tx.chunked(lax.map, size=3)(fn)(x), fn(x))
