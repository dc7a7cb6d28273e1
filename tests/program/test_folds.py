"""Folds on their own: what each starts from, how wide it is, and how near a long sum comes to the exact one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from erythroxy_tx.program.folds import FOLDS
from erythroxy_tx.program.folds import SUM
from erythroxy_tx.program.folds import Fold
from erythroxy_tx.program.folds import in_many_steps

MANY = 1000


def folded(fold: Fold, values: jax.Array, steps: int) -> jax.Array:
    """The fold of the values, as the loop makes it for a number of chunks."""
    fold = in_many_steps(fold, values[0], steps)
    state, _ = lax.scan(lambda state, value: (fold.step(state, value), None), fold.start(values[0]), values)
    return fold.finish(state)


def bits(value: Any) -> bytes:
    return np.asarray(value).tobytes()


ONE_VALUE = [
    (kind, dtype) for kind in ("sum", "mean", "prod", "max", "min") for dtype in ("float32", "bfloat16", "int8")
]
ONE_VALUE += [("sum", "complex64"), ("prod", "complex64"), ("max", "float8_e4m3fn"), ("sum", "float8_e4m3fn")]
ONE_VALUE += [("all", "bool"), ("any", "bool"), ("max", "bool"), ("min", "bool")]


@pytest.mark.parametrize(("kind", "dtype"), ONE_VALUE)
def test_a_fold_of_one_value_is_that_value(kind: str, dtype: str) -> None:
    special = [0.0, -0.0, 1.0, -3.0, np.inf, -np.inf] if dtype not in ("int8", "bool", "float8_e4m3fn") else [0, 1, 1]
    values = jnp.asarray(special, "float32").astype(dtype)
    for steps in (2, MANY):
        found = folded(FOLDS[kind], values[None], steps).astype(dtype)
        if dtype == "complex64" and kind == "prod":
            found, values = found[2:4], values[2:4]  # a complex product of an infinity is no infinity, nor keeps -0
        assert bits(found) == bits(values)


@pytest.mark.parametrize("kind", ["sum", "mean", "prod"])
def test_float_accumulators_are_at_least_float32(kind: str) -> None:
    for dtype, wide in {
        "bfloat16": "float32",
        "float16": "float32",
        "float32": "float32",
        "complex64": "complex64",
    }.items():
        assert FOLDS[kind].start(jax.ShapeDtypeStruct((2,), dtype)).dtype == wide
    assert FOLDS[kind].start(jax.ShapeDtypeStruct((2,), "int8")).dtype == "int8"  # wraps as it does in one go


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_long_sums_are_as_good_as_exact(dtype: str, rng: np.random.Generator) -> None:
    """Left to right, a hundred thousand additions lose three digits; here the last unit alone."""
    values = jnp.asarray(rng.random((100_000, 3)) + 0.1, "float32").astype(
        "bfloat16" if dtype == "bfloat16" else "float32"
    )
    values = lax.complex(values, -values) if dtype == "complex64" else values
    exact = np.asarray(values, "complex128").sum(0)
    found = np.asarray(jax.jit(lambda v: folded(SUM, v, len(v)))(values), "complex128")
    plain = np.asarray(jax.jit(lambda v: folded(SUM, v, 2))(values), "complex128")
    assert np.abs(found - exact).max() <= 1.5 * np.finfo("float32").eps * np.abs(exact).max()
    assert np.abs(plain - exact).max() > 10 * np.abs(found - exact).max()


def test_long_sums_that_cancel(rng: np.random.Generator) -> None:
    large = rng.normal(size=500).astype(np.float32) * 1e7
    values = np.concatenate([large, [1.0], -large])[rng.permutation(1001)].astype(np.float32)
    assert abs(float(folded(SUM, jnp.asarray(values)[:, None], MANY)[0]) - 1.0) < 1e-4


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([1.0, np.inf, 2.0], np.inf),
        ([1.0, -np.inf, 2.0], -np.inf),
        ([np.inf, -np.inf], np.nan),
        ([1.0, np.nan, 2.0], np.nan),
        ([np.inf, 3e38, 3e38], np.inf),
        ([3e38, 3e38, 1.0], np.inf),  # as any float32 accumulator
        ([-0.0, -0.0], -0.0),
        ([0.0, -0.0], 0.0),
        ([1.0, -1.0], 0.0),
        ([1e-30, 1e30, -1e30], 1e-30),
    ],
)
def test_special_values_of_long_sums(values: list[float], total: float) -> None:
    found = folded(SUM, jnp.float32(values)[:, None], MANY)[0]
    assert bits(found) == bits(np.float32(total)) or (np.isnan(found) and np.isnan(total))


def test_integers_are_not_compensated() -> None:
    values = jnp.full((300, 1), 100, jnp.int8)
    assert in_many_steps(SUM, values[0], MANY) is SUM
    assert folded(SUM, values, MANY)[0] == np.int8((300 * 100 + 128) % 256 - 128)


def test_the_derivative_of_a_long_sum_is_one() -> None:
    values = jnp.linspace(0.1, 1.7, 100)[:, None]
    fn = lambda v: folded(SUM, v, MANY)[0] ** 2  # noqa: E731
    total = float(values.sum())
    np.testing.assert_allclose(jax.grad(fn)(values), 2 * total, rtol=1e-5)
    np.testing.assert_allclose(jax.jvp(fn, (values,), (values,))[1], 2 * total**2, rtol=1e-5)
    np.testing.assert_allclose(jax.hessian(fn)(values), 2.0, rtol=1e-5)
