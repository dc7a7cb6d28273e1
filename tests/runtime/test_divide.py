"""`safe_divide` against its law in float64: values, all derivatives, dtypes, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from erythroxy_tx.runtime.divide import safe_divide

Y = np.array([3.0, -3.0, 1e-3, -1e-3, 9e-11, -9e-11, 1e-38, 0.0, -0.0, 3e38, -3e38], np.float32)
X = np.linspace(-2, 3, len(Y)).astype(np.float32)


def law(x: np.ndarray, y: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The value, and the derivatives with respect to x and y, in float64."""
    x, y = x.astype(float), y.astype(float)
    clamped = np.abs(y) < eps
    d = np.where(clamped, np.copysign(eps, y), y)
    return x / d, 1 / d, np.where(clamped, 0, -x / d / d)


def near(found: Any, expected: Any, rtol: float = 1e-6) -> None:
    tiny = np.finfo(np.float32).tiny  # below it the device may say zero
    np.testing.assert_allclose(np.asarray(found, float), expected, rtol=rtol, atol=float(tiny))


@pytest.mark.parametrize("eps", [1e-10, 1e-30])
def test_law(eps: float) -> None:
    def fn(x: Any, y: Any) -> Any:
        return safe_divide(x, y, eps=eps)

    with np.errstate(over="ignore"):
        value, of_x, of_y = (np.asarray(each, np.float32) for each in law(X, Y, np.float32(eps)))
    near(fn(X, Y), value)
    near(jax.jit(jax.vmap(jax.grad(fn)))(X, Y), of_x)
    near(jax.jit(jax.vmap(jax.grad(fn, 1)))(X, Y), of_y)
    for along, expected in (((1.0, 0.0), of_x), ((0.0, 1.0), of_y)):
        tangents = [np.full_like(X, each) for each in along]
        near(jax.jit(lambda x, y, t=tangents: jax.jvp(fn, (x, y), tuple(t)))(X, Y)[1], expected)


@pytest.mark.parametrize("second", [jax.hessian, lambda f, n: jax.jacrev(jax.jacrev(f, n), n)])
@pytest.mark.parametrize("eps", [1e-10, 1e-30])
def test_second_derivatives(second: Any, eps: float) -> None:
    found = jax.jit(jax.vmap(second(lambda x, y: safe_divide(x, y, eps=eps), (0, 1))))(X[:9], Y[:9])
    x, y = X[:9].astype(float), Y[:9].astype(float)
    clamped = np.abs(y) < eps
    safe = np.where(clamped, 1, y)
    mixed = np.where(clamped, 0, -1 / safe**2)
    (xx, xy), (yx, yy) = found
    with np.errstate(over="ignore"):
        twice = np.where(clamped, 0, 2 * x / safe**3).astype(np.float32)
    fits = np.isfinite(twice) & (np.abs(safe) > 1e-18)  # of the others the square is infinite, as in jnp.divide
    for each, expected in ((xx, 0 * x), (xy, mixed), (yx, mixed), (yy, twice)):
        near(np.asarray(each)[fits], expected[fits], rtol=1e-5)
    assert fits.sum() >= 7


def test_infinite_quotients_of_what_is_clamped_have_finite_derivatives() -> None:
    for derivative in (jax.grad, jax.jacfwd):
        assert jax.jit(derivative(safe_divide, 1))(1e30, 0.0) == 0
        assert jax.jit(derivative(safe_divide, 0))(1e30, 0.0) == np.float32(1e10)
        for second in (jax.grad, jax.jacfwd):
            assert jax.jit(second(derivative(safe_divide, 1), 1))(1e30, 0.0) == 0
            assert jax.jit(second(derivative(safe_divide, 1), 0))(1e30, 0.0) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_bits(dtype: str) -> None:
    tiny = float(jnp.finfo(dtype).tiny)
    eps = max(1e-10, tiny)
    y = jnp.asarray([0.0, -0.0, eps / 2, -2 * eps, 2.0], dtype)
    found = safe_divide(jnp.ones(5, dtype), y)
    assert found.dtype == dtype
    d = np.where(np.abs(np.asarray(y, float)) < eps, np.copysign(eps, np.asarray(y, float)), np.asarray(y, float))
    np.testing.assert_allclose(np.asarray(found, float), 1 / d, rtol=0.01)
    gradients = jax.jit(jax.vmap(jax.grad(safe_divide, (0, 1))))(jnp.ones(5, dtype), y)
    np.testing.assert_allclose(np.asarray(gradients[0], float), 1 / d, rtol=0.02)
    assert not gradients[1][:3].any()
    assert jax.jit(jax.hessian(safe_divide, 1))(jnp.ones((), dtype), y[0]) == 0


def test_not_a_number_stays_one() -> None:
    nan = np.float32(np.nan)
    assert np.isnan(safe_divide(nan, 1.0))
    assert np.isnan(safe_divide(1.0, nan))
    assert np.isnan(safe_divide(nan, 0.0))
    assert np.isnan(jax.grad(safe_divide, 1)(1.0, nan))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (1, 2),
        (1.0, 2),
        (np.arange(3), np.arange(3)),
        (np.float32(1), 2),
        (jnp.bfloat16(1), 2.0),
        (jnp.bfloat16(1), jnp.float16(1)),
        (True, np.ones(2, np.float32)),
        (np.ones((2, 1), np.float32), np.ones(3, np.float32)),
    ],
)
def test_shapes_dtypes_and_weak_types_are_those_of_divide(x: Any, y: Any) -> None:
    expected = jnp.divide(x, y)
    for found in (safe_divide(x, y), jax.jit(safe_divide)(x, y)):
        assert found.aval == expected.aval
        assert found.weak_type == expected.weak_type
    if np.all(y):
        np.testing.assert_array_equal(safe_divide(x, y), expected)


def test_a_batch_along_other_axes() -> None:
    x, y = jnp.arange(6.0).reshape(3, 2), jnp.asarray([[0.0, -1e-12, 2.0], [1.0, 0.0, -4.0]])
    batched = jax.vmap(safe_divide, (1, 0))
    for derivative in (jax.jacfwd, jax.jacrev):
        expected = jnp.stack([jax.jit(derivative(safe_divide))(x[:, i], y[i]) for i in range(2)])
        found = jax.jit(derivative(batched))(x, y)
        np.testing.assert_array_equal(np.stack([np.asarray(found)[i, :, :, i] for i in range(2)]), expected)
    np.testing.assert_array_equal(batched(x, y), safe_divide(x.T, y))


def test_it_uploads_nothing(strict_jax: None) -> None:
    x, y = jnp.ones(3), jnp.zeros(3)
    with jax.transfer_guard("disallow"):
        safe_divide(x, y)


@pytest.mark.parametrize(
    ("args", "eps", "error", "told"),
    [
        ((1j, 1.0), 1e-10, TypeError, r"x: c64\[\] and y: f32\[\]. Expected real"),
        ((1.0, 1.0), 0.0, ValueError, "eps=0.0. Expected a finite number > 0"),
        ((1.0, 1.0), np.nan, ValueError, "eps=nan"),
        ((1.0, 1.0), np.inf, ValueError, "eps=inf"),
        ((1.0, 1.0), True, TypeError, "eps: bool. Expected a Python number"),
        ((1.0, 1.0), jnp.float32(1), TypeError, r"eps: f32\[\]"),
        ((jnp.float16(1), 1.0), 1e6, ValueError, "eps=1000000.0, too large for float16. Expected at most 65504"),
    ],
)
def test_refusals(args: tuple, eps: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        safe_divide(*args, eps=eps)


def test_what_has_no_tangent_is_left_out() -> None:
    """An infinite quotient times zero is NaN."""
    assert jax.jacfwd(safe_divide)(3e38, 1e-9) == jnp.float32(1e9)
    assert jax.jvp(lambda x: safe_divide(x, 2.0), (jnp.inf,), (1.0,))[1] == 0.5
    assert jax.jvp(lambda y: safe_divide(1.0, y), (2.0,), (1.0,))[1] == -0.25
    assert jax.jvp(lambda x: safe_divide(1.0, 2.0) + x, (2.0,), (1.0,))[1] == 1
