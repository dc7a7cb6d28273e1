"""`chunked` over every kind of number: dtypes, weak types, accumulators, NaN, infinities, the sign of zero, keys."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close

FLOATS = ["float32", "bfloat16", "float16"]
INTEGERS = ["int32", "int8", "uint8", "uint32", "int16"]


def assert_same(reference: Any, candidate: Any, contract: Any = None) -> None:
    found = compare(reference, candidate, contract if contract is not None else Bitwise())
    assert found.ok, str(found)


def chunked(fn: Any, out: Any, size: int = 3, **parameters: Any) -> Any:
    return tx.chunked(lax.map, size=size, out=out, **parameters)(fn)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype: str, rng: np.random.Generator) -> None:
    def fn(x: jax.Array) -> tuple[jax.Array, ...]:
        return -x, x.sum(0), x.mean(0), x.max(0), x.min(0), (1 + x / 8).prod(0)

    x = jnp.asarray(rng.normal(size=(10, 4))).astype(dtype)
    eps = float(jnp.finfo(dtype).eps)
    f = chunked(fn, ("rows", "sum", "mean", "max", "min", "prod"))
    assert_same(jax.jit(fn)(x), f(x), (Bitwise(), Close(4 * eps), Close(4 * eps), Bitwise(), Bitwise(), Close(8 * eps)))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_as_one_shot(dtype: str, rng: np.random.Generator) -> None:
    def fn(x: jax.Array) -> tuple[jax.Array, ...]:
        total = lambda x: x.sum(0, dtype=x.dtype)  # noqa: E731
        return -x, total(x), x.max(0), x.min(0), x.prod(0, dtype=x.dtype), x.sum(0)

    limits = np.iinfo(dtype)
    x = jnp.asarray(rng.integers(limits.min, limits.max, (10, 50), endpoint=True, dtype=dtype))
    f = chunked(fn, ("rows", "sum", "max", "min", "prod", "sum"))
    assert_same(jax.jit(fn)(x), f(x))
    assert jax.tree.leaves(tx.contract(f, x)) == [Bitwise()] * 6


def test_extreme_integers() -> None:
    """The values that a fold starts from are results of their own."""
    for dtype in (*INTEGERS, "bool"):
        limits = np.iinfo(dtype) if dtype != "bool" else None
        low, high = (limits.min, limits.max) if limits else (False, True)
        x = jnp.asarray(np.full((7, 1), low, dtype))
        y = jnp.asarray(np.full((7, 1), high, dtype))
        f = chunked(lambda x, y: (x.max(0), y.min(0)), ("max", "min"))
        assert_same((x[0], y[0]), f(x, y))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4"])
def test_narrow_types_without_an_infinity(dtype: str) -> None:
    x = jnp.asarray(np.arange(-4.0, 6).reshape(10, 1)).astype(dtype)
    f = chunked(lambda x: (x.max(0), x.min(0), x[:, ::-1]), ("max", "min", "rows"))
    high, low, same = f(x)
    assert (high.dtype, float(high[0]), float(low[0])) == (jnp.dtype(dtype), 5.0, -4.0)
    assert same.tolist() == x.tolist()


def test_bools() -> None:
    fn = lambda x: (~x, x.all(0), x.any(0), x.max(0), x.min(0))  # noqa: E731
    f = chunked(fn, ("rows", "all", "any", "max", "min"))
    for flips in ([], [0], [9], [4], range(10)):
        x = np.zeros((10, 2), bool)
        x[list(flips), 1] = True
        for y in (jnp.asarray(x), jnp.asarray(~x)):
            assert_same(jax.jit(fn)(y), f(y))


def test_complex(rng: np.random.Generator) -> None:
    def fn(x: jax.Array) -> tuple[jax.Array, ...]:
        z = lax.complex(x, -2 * x)
        return jnp.conj(z), z.sum(0), z.mean(0), (1 + z / 8).prod(0)

    x = jnp.asarray(rng.normal(size=(10, 3)), jnp.float32)
    f = chunked(fn, ("rows", "sum", "mean", "prod"))
    assert_same(jax.jit(fn)(x), f(x), Close(1e-6))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_are_rows(impl: str) -> None:
    keys = jax.random.split(jax.random.key(0, impl=impl), 10)
    fn = jax.vmap(lambda key: jax.random.fold_in(key, 7))
    made = chunked(fn, "rows")(keys)
    assert made.dtype == keys.dtype
    assert_same(jax.jit(fn)(keys), made)


def test_random_numbers_by_row() -> None:
    keys = jax.random.split(jax.random.key(0), 10)
    fn = jax.vmap(lambda key: jax.random.normal(key, (2,)))
    assert_same(jax.jit(fn)(keys), chunked(fn, "rows")(keys))
    whole = tx.chunked(lax.map, size=3, in_axes=(0, None), out="rows")(
        lambda i, key: jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i)))(i)
    )
    i = jnp.arange(10)
    assert whole(i, keys[0]).tolist() == [int(jax.random.bits(jax.random.fold_in(keys[0], k))) for k in i]


def test_double_precision(rng: np.random.Generator) -> None:
    with jax.enable_x64(True):  # noqa: FBT003
        x = jnp.asarray(rng.normal(size=(10, 3)))
        fn = lambda x: (x * 2, (x**2).sum(0), (x**2).mean(0), jnp.arange(len(x)) * 2**40)  # noqa: E731
        f = chunked(fn, ("rows", "sum", "mean", "rows"))
        out = f(x)
        assert [o.dtype.name for o in out] == ["float64", "float64", "float64", "int64"]
        assert_same(jax.jit(fn)(x)[:3], out[:3], Close(1e-15))


# ---------------------------------------------------------------------- weak types


def test_weak_types_are_those_of_one_shot() -> None:
    def fn(x: jax.Array) -> tuple[Any, ...]:
        some = (x > 0).any()
        pick = lambda a, b: jnp.where(some, a, b)  # noqa: E731
        return jnp.where(x > 0, 1.0, 0.0), pick(1, 2), pick(1.0, 2.0), pick(1j, 2j), 3, 4.0, x, x.sum()

    kinds = ("rows", "max", "sum", "sum", "max", "min", "rows", "sum")
    x = jnp.ones((10, 2))
    for remat in (True, False):
        out, expected = chunked(fn, kinds, remat=remat)(x), jax.jit(fn)(x)
        assert [o.weak_type for o in out] == [o.weak_type for o in expected]
        assert [o.weak_type for o in out] == [True] * 6 + [False] * 2
        assert [o.dtype for o in out] == [o.dtype for o in expected]
        outer = jax.make_jaxpr(chunked(fn, kinds, remat=remat))(x)
        assert [aval.weak_type for aval in outer.out_avals] == [True] * 6 + [False] * 2


@pytest.mark.parametrize("scalar", [2.0, 2, True, np.float32(2), 2j])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_scalars_promote_as_under_jit(scalar: Any, dtype: str) -> None:
    x = jnp.ones((7, 2), dtype)
    f = tx.chunked(lax.map, size=3, in_axes=(0, None), out="rows")(lambda x, s: x * s)
    assert_same(jax.jit(lambda x, s: x * s)(x, scalar), f(x, scalar))


# ---------------------------------------------------------------------- accumulators


def exact_sum(x: jax.Array) -> np.ndarray:
    return np.asarray(x, np.float64).sum(0)


@pytest.mark.parametrize("sign", [0.0, 1.0])
def test_bf16_sums_are_no_worse_than_one_shot(sign: float, rng: np.random.Generator) -> None:
    """A bf16 accumulator would stall at 256 times a term: 1024 chunks need a wider one."""
    x = jnp.asarray(rng.random((65536, 2)) - (0.5 if sign == 0 else 0), jnp.bfloat16)
    exact = exact_sum(x)
    for fn, out, exact_of in (
        (lambda x: x.sum(0), "sum", exact),
        (lambda x: x.mean(0), "mean", exact / 65536),
    ):
        chunks, one_shot = (np.asarray(f(x), np.float64) for f in (chunked(fn, out, 64), jax.jit(fn)))
        unit = np.abs(exact_of).max() * float(jnp.finfo(jnp.bfloat16).eps)
        assert np.abs(chunks - exact_of).max() <= np.abs(one_shot - exact_of).max() + 2 * unit


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("differentiated", [False, True])
def test_products_are_kept_wide(dtype: str, differentiated: bool, rng: np.random.Generator) -> None:
    x = jnp.asarray(1 + rng.normal(size=(4096, 3)) / 100).astype(dtype)
    f = chunked(lambda x: x.prod(0), "prod", 1)
    got = jax.vjp(f, x)[0] if differentiated else f(x)
    exact = np.asarray(x, np.float64).prod(0)
    assert got.dtype == dtype
    assert np.abs(np.asarray(got, np.float64) / exact - 1).max() < 2 * float(jnp.finfo(dtype).eps)


def test_gradients_of_shared_bf16_arguments_are_summed_wide(rng: np.random.Generator) -> None:
    x, w = jnp.asarray(rng.random((8192, 4)), jnp.bfloat16), jnp.ones((4,), jnp.bfloat16)
    f = tx.chunked(lax.map, size=8, in_axes=(0, None), out="sum")(lambda x, w: (x * w).astype(jnp.float32).sum())
    got = jax.grad(f, 1)(x, w)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(got, np.float64), exact_sum(x), rtol=0.01)


def test_float16_sums_pass_what_float16_cannot_hold() -> None:
    """Halves of ±40000: the running total is 80000 on the way, past float16, and the sum is not."""
    x = jnp.asarray([[4e4], [4e4], [-4e4], [-4e4], [1.0]], jnp.float16)
    assert_same(jax.jit(lambda x: x.sum(0))(x), chunked(lambda x: x.sum(0), "sum", 1)(x))


# ---------------------------------------------------------------------- special values

SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0])


@pytest.mark.parametrize(("rows", "size"), [(7, 1), (7, 2), (7, 5), (40, 1)])
def test_special_values_as_one_shot(rows: int, size: int, rng: np.random.Generator) -> None:
    """NaN, infinities and signed zeros anywhere, in every kind, in a chunk of its own or with others."""

    def fn(x: jax.Array) -> tuple[jax.Array, ...]:
        return x, x.sum(0), x.mean(0), x.max(0), x.min(0), x.prod(0), jnp.isnan(x).any(0), (x > 0).all(0)

    kinds = ("rows", "sum", "mean", "max", "min", "prod", "any", "all")
    columns = [rng.choice(SPECIAL[rng.permutation(7)[: 1 + k % 4]], rows) for k in range(64)]
    x = jnp.asarray(np.stack(columns, 1))
    close = Close(1e-6)
    contract = (Bitwise(), close, close, *[Bitwise()] * 5)
    assert_same(jax.jit(fn)(x), chunked(fn, kinds, size)(x), contract)


@pytest.mark.parametrize("fill", [-0.0, 0.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_the_sign_of_zero(fill: float, dtype: str) -> None:
    """Where every chunk gives -0.0 the total is -0.0: no accumulator may start from +0.0."""

    def fn(x: jax.Array) -> tuple[jax.Array, ...]:
        zero = x[0]  # every row is the same
        return zero, zero, x

    x = jnp.full((7, 2), fill)
    x = lax.complex(x, x) if dtype == "complex64" else x.astype(dtype)
    outs = chunked(fn, ("sum", "mean", "rows"))(x)
    assert_same(jax.jit(fn)(x), outs)
    one = np.asarray(outs[0], "complex64" if dtype == "complex64" else "float32")
    assert np.signbit(one.real).all() == np.signbit(fill)
    assert np.signbit(one.imag).all() == (np.signbit(fill) and dtype == "complex64")


def test_complex_means_of_infinities() -> None:
    z = lax.complex(jnp.float32([jnp.inf, 1, 2, 3]), jnp.arange(4.0))  # every step is exact
    mean = lambda z: lax.complex(z.real.mean(), z.imag.mean())  # noqa: E731
    assert_same(jax.jit(mean)(z), chunked(mean, "mean", 2)(z))


def test_maxima_of_infinities_and_nan() -> None:
    for fill in (-np.inf, np.inf, np.nan):
        x = jnp.full((7, 2), fill)
        fn = lambda x: (x.max(0), x.min(0))  # noqa: E731
        assert_same(jax.jit(fn)(x), chunked(fn, ("max", "min"))(x))


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("remat", [True, False])
def test_a_nan_is_kept_where_chunks_are_differentiated(kind: str, remat: bool, rng: np.random.Generator) -> None:
    """Their values are stacked then, and XLA:CPU drops NaN from the maximum of 4096 numbers or more."""
    x = jnp.asarray(rng.choice(np.float32([1.0, 2.0, np.nan]), (64, 128), p=[0.49, 0.49, 0.02]))
    f = chunked(lambda x: getattr(x, kind)(0), kind, 1, remat=remat)
    expected = getattr(np.asarray(x), kind)(0)
    assert 0 < np.isnan(expected).sum() < 128
    value, pull = jax.vjp(f, x)
    for found in (f(x), value):
        np.testing.assert_array_equal(found, expected)
    to_x = np.asarray(pull(jnp.ones(128))[0])
    np.testing.assert_allclose(to_x[:, ~np.isnan(expected)].sum(0), 1, rtol=1e-6)
