"""`windows` against the slices of numpy, wherever it is called: values, gradients, memory, and what is refused."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example
from hypothesis import given
from jax import export
from jax import lax

import erythroxy_tx as tx

X = np.arange(1.0, 17).reshape(8, 2).astype(np.float32)
SOME = np.array([0, 5, 2, 2, 6, -1, 4, 5], np.int32)  # in windows of 3 rows: all but 6 and -1 are inside
KINDS = ("int8", "uint8", "int32", "uint32", "int64", "list")


def slices(x: np.ndarray, starts: Any, width: int) -> tuple[np.ndarray, list[bool]]:
    """The law, by a loop of numpy."""
    inside = [0 <= start <= len(x) - width for start in starts]
    found = np.zeros((len(inside), width, *x.shape[1:]), x.dtype)
    for window, start, is_inside in zip(found, starts, inside, strict=True):
        if is_inside:
            window[:] = x[start : start + width]
    return found, inside


def hold_against_slices(fn: Callable[..., Any], starts: Any, width: int) -> None:
    expected, expected_inside = slices(X, np.asarray(starts).tolist(), width)
    found, inside = fn(X, starts, width, outside="mask")
    np.testing.assert_array_equal(found, expected, strict=True)
    assert inside.tolist() == expected_inside
    if all(expected_inside):
        np.testing.assert_array_equal(fn(X, starts, width), expected, strict=True)
    else:
        with pytest.raises(tx.LengthError):
            fn(X, starts, width)


@given(
    st.lists(st.integers(-10, 12) | st.integers(-(2**40), 2**40), min_size=3, max_size=3),
    st.sampled_from([0, 1, 3, 8, 9]),
    st.sampled_from(KINDS),
    st.sampled_from(["host", "device"]),
)
@example([2**32 + 3, 2**32 - 1, -(2**32)], 3, "int64", "host")
@example([127, 0, 5], 3, "int8", "device")
@example([255, 0, 5], 3, "uint8", "device")
@example([2**32 - 1, 0, 5], 3, "uint32", "device")
@example([0, 0, 0], 9, "uint32", "device")
def test_windows_are_slices(numbers: list[int], width: int, kind: str, place: str) -> None:
    starts: Any = numbers
    if kind != "list":
        limits = np.iinfo("int32" if (kind, place) == ("int64", "device") else kind)
        starts = np.clip(numbers, limits.min, limits.max).astype(limits.dtype)
        starts = jnp.asarray(starts) if place == "device" else starts
    hold_against_slices(tx.windows, starts, width)


def clamps(x: Any, starts: Any, width: int, **how: Any) -> Any:
    return tx.windows(x, np.clip(starts, 0, len(x) - width), width, **how)


def counts_from_the_end(x: Any, starts: Any, width: int, **how: Any) -> Any:
    return tx.windows(x, np.where(np.less(starts, 0), np.add(starts, len(x)), starts), width, **how)


def wraps(x: Any, starts: Any, width: int, **how: Any) -> Any:
    inside = tx.windows(x, starts, width, outside="mask")[1]
    found = tx.windows(np.tile(x, (3, 1)), np.add(starts, len(x)), width)
    return (found, inside) if how else found


def starts_one_late(x: Any, starts: Any, width: int, **how: Any) -> Any:
    return tx.windows(x, np.add(starts, 1), width, **how)


def ends_one_early(x: Any, starts: Any, width: int, **how: Any) -> Any:
    return tx.windows(x[:-1], starts, width, **how)


def ends_one_late(x: Any, starts: Any, width: int, **how: Any) -> Any:
    return tx.windows(np.append(x, x[-1:], 0), starts, width, **how)


@pytest.mark.parametrize("fault", [clamps, counts_from_the_end, wraps, starts_one_late, ends_one_early, ends_one_late])
def test_planted_faults_are_caught(fault: Any) -> None:
    edges = [[0, 3, 5], [0, 3, 6], [-1, 3, 5], [-3, 3, 5]]
    for starts in edges:
        hold_against_slices(tx.windows, starts, 3)
    caught = 0
    for starts in edges:
        try:
            hold_against_slices(fault, starts, 3)
        except (AssertionError, tx.LengthError, pytest.fail.Exception):
            caught += 1
    assert caught


@pytest.mark.parametrize("starts", [4, np.int8(4), [], [[1, 2, 3], [5, 0, 5]], np.zeros((2, 0, 3), int)])
def test_starts_of_any_shape(starts: Any) -> None:
    shape = np.shape(starts)
    found, inside = jax.jit(lambda s: tx.windows(X, s, 3, outside="mask"))(np.asarray(starts, int))
    expected = slices(X, np.ravel(starts).astype(int), 3)[0].reshape(*shape, 3, 2)
    np.testing.assert_array_equal(tx.windows(X, starts, 3), expected, strict=True)
    np.testing.assert_array_equal(found, expected, strict=True)
    assert inside.shape == shape
    assert inside.all()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "bfloat16", "float16", "complex64"])
def test_dtypes(dtype: str, strict_jax: None) -> None:
    x = jnp.asarray(X > 5) if dtype == "bool" else jnp.asarray(X).astype(dtype)
    found, inside = tx.windows(x, SOME, 3, outside="mask")
    expected = slices(np.asarray(x), SOME, 3)
    assert inside.tolist() == expected[1]
    np.testing.assert_array_equal(np.asarray(found), expected[0], strict=True)


def test_a_tree_with_keys() -> None:
    x = {"key": jax.random.split(jax.random.key(0), 8), "price": X, "none": None, "volume": [X[:, 0]]}
    found, inside = tx.windows(x, SOME, 3, outside="mask")
    assert jax.tree.structure(found) == jax.tree.structure(x)
    np.testing.assert_array_equal(found["price"], slices(X, SOME, 3)[0])
    np.testing.assert_array_equal(found["volume"][0], slices(X[:, 0], SOME, 3)[0])
    data = jax.random.key_data
    np.testing.assert_array_equal(data(found["key"]), slices(np.asarray(data(x["key"])), SOME, 3)[0])
    kept = SOME[np.asarray(inside)]
    np.testing.assert_array_equal(tx.windows(x, kept, 3)["price"], slices(X, kept, 3)[0])


def test_starts_of_few_bits_in_many_rows() -> None:
    """The number of rows less the width does not fit their dtype."""
    x, starts = np.arange(300), jnp.asarray([127, 0, -1, -128], jnp.int8)
    found, inside = tx.windows(x, starts, 50, outside="mask")
    assert inside.tolist() == [True, True, False, False]
    assert found[:, -1].tolist() == [176, 49, 0, 0]


def test_starts_in_a_list_may_be_traced() -> None:
    found, inside = jax.jit(lambda start: tx.windows(X, [start, 2], 3, outside="mask"))(6)
    np.testing.assert_array_equal(found, slices(X, [6, 2], 3)[0])
    assert inside.tolist() == [False, True]


def test_a_mask_needs_no_transfer() -> None:
    x, starts = jnp.asarray(X), jnp.asarray(SOME)
    with jax.transfer_guard("disallow"):
        tx.windows(x, starts, 3, outside="mask")


def test_starts_in_64_bits() -> None:
    with jax.enable_x64(True):  # noqa: FBT003
        starts = jnp.asarray([3, 2**32 + 3, -(2**32) + 3], jnp.int64)
        found, inside = jax.jit(lambda s: tx.windows(X, s, 3, outside="mask"))(starts)
        large = tx.windows(np.array([2**40, 5]), [0], 2)
    np.testing.assert_array_equal(found, slices(X, [3, -1, -1], 3)[0])
    assert inside.tolist() == [True, False, False]
    assert large.tolist() == [[2**40, 5]]


# ------------------------------------------------------------------ derivatives


def loss(x: jax.Array, starts: Any) -> jax.Array:
    found, _ = tx.windows(x, starts, 3, outside="mask")
    return (found**2 * jnp.arange(1.0, 4)[:, None].astype(x.dtype)).sum()


def loss_by_slices(x: jax.Array, starts: Any) -> jax.Array:
    kept = [int(s) for s in starts if 0 <= s <= len(x) - 3]
    return sum(((x[s : s + 3] ** 2 * jnp.arange(1.0, 4)[:, None]).sum() for s in kept), jnp.zeros(()))


def test_derivatives() -> None:
    x, some = jnp.asarray(X), jnp.asarray(SOME)
    for derivative in (jax.grad, jax.hessian, lambda f: lambda x, s: jax.jvp(lambda x: f(x, s), (x,), (x,))):
        expected = derivative(loss_by_slices)(x, SOME)
        for found in (derivative(loss)(x, SOME), jax.jit(derivative(loss))(x, some)):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_no_gradient_from_what_is_outside() -> None:
    """Neither where a clamp would put it, nor as NaN."""
    x = jnp.asarray(X).at[0].set(jnp.nan)
    assert not jax.grad(loss)(x, np.array([-1, 6, 9])).any()
    assert not jax.grad(loss)(x[:2], np.array([-1, 0, 9])).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_narrow_floats_are_summed_in_float32(dtype: str) -> None:
    def total(x: jax.Array) -> jax.Array:
        return tx.windows(x, np.zeros(5000, int), 3).sum(dtype=jnp.float32)

    x = jnp.asarray(X).astype(dtype)
    gradient = jax.grad(total)(x)
    assert gradient.dtype == dtype
    assert gradient[:, 0].tolist() == [float(jnp.asarray(5000, dtype))] * 3 + [0] * 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vmap(dtype: str) -> None:
    batch = jnp.stack([jnp.asarray(X), -jnp.asarray(X)]).astype(dtype)
    starts = jnp.stack([SOME, SOME[::-1]])
    for run in (lambda x, s: tx.windows(x, s, 3, outside="mask"), jax.value_and_grad(loss)):
        found = jax.vmap(run)(batch, starts)
        each = [run(x, s) for x, s in zip(batch, starts, strict=True)]
        jax.tree.map(np.testing.assert_array_equal, found, jax.tree.map(lambda *a: jnp.stack(a), *each))
    shared = jax.vmap(lambda x: tx.windows(x, [0, 4], 3))(batch)  # the starts are known
    np.testing.assert_array_equal(shared, np.stack([slices(x, [0, 4], 3)[0] for x in np.asarray(batch)]))


# ------------------------------------------------------------------ under the transforms


def both(x: jax.Array, starts: jax.Array) -> tuple[jax.Array, ...]:
    found, inside = tx.windows(x, starts, 3, outside="mask")
    return found, inside, found.max((1, 2)), (found * found).sum()


def assert_same(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), found, expected)


TRANSFORMS = {
    "chunked": lambda in_axes=0: tx.chunked(lax.map, size=3, in_axes=in_axes),
    "pad_static": lambda in_axes=0: tx.pad_static(11, in_axes=in_axes),
}
each_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


@each_transform
@pytest.mark.parametrize(
    ("in_axes", "dtype"),
    [((None, 0), "float32"), ((0, None), "float32"), ((0, 0), "float32"), ((None, 0), "bfloat16")],
)
def test_rows_and_starts_of_an_unknown_number(transform: Any, in_axes: tuple, dtype: str) -> None:
    x, starts = jnp.asarray(X).astype(dtype), jnp.asarray(SOME)
    assert_same(transform(in_axes)(both)(x, starts), both(x, starts))
    assert_same(jax.grad(transform(in_axes)(loss))(x, starts), jax.grad(loss)(x, starts))


@each_transform
def test_known_starts_in_rows_of_an_unknown_number(transform: Any) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return x - tx.windows(x, [0, 5, 2], 3).max((0, 1))

    run = transform()(fn)
    assert_same(run(X), fn(jnp.asarray(X)))
    with pytest.raises(tx.LengthError, match=r"got starts\[1\] = 5 and width=3, rows 5 to 8 of x: f32\[7,2\]"):
        run(X[:7])


def test_contract_of_chunks() -> None:
    run = tx.chunked(lax.map, size=3, in_axes=(None, 0))(both)
    assert all(isinstance(part, tx.Bitwise) for part in tx.contract(run, X, SOME)[:2])


def test_rows_of_an_unknown_number_in_an_exported_program() -> None:
    starts = np.array([0, 5, 2])

    def known(x: jax.Array) -> Any:
        return tx.windows(x, starts, 3)

    def masked(x: jax.Array) -> Any:
        return tx.windows(x, starts, 3, outside="mask")

    for fn, least, shorter in ((known, 8, 10), (masked, 3, 6)):
        (n,) = export.symbolic_shape("n", constraints=[f"n >= {least}"])
        exported = export.export(jax.jit(fn))(jax.ShapeDtypeStruct((n, 2), jnp.float32))
        for x in (X, np.tile(X, (2, 1))[:shorter]):
            assert_same(exported.call(x), fn(x))
        (n,) = export.symbolic_shape("n")
        with pytest.raises(Exception, match=r"'n' (<|>=) .* is inconclusive"):
            export.export(jax.jit(fn))(jax.ShapeDtypeStruct((n, 2), jnp.float32))


# ------------------------------------------------------------------ memory


def temporaries(fn: Any, *args: Any) -> int:
    return jax.jit(fn).lower(*args).compile().memory_analysis().temp_size_in_bytes


def test_chunks_of_windows_are_never_all_there() -> None:
    def spread(x: jax.Array, starts: jax.Array) -> jax.Array:
        return tx.windows(x, starts, 64, outside="mask")[0].std((1, 2))

    def gradient(f: Any) -> Any:
        return jax.grad(lambda x, starts: f(x, starts).sum())

    x, starts = jnp.ones((1024, 8)), jnp.arange(960)
    windows = 960 * 64 * 8 * 4
    chunked = tx.chunked(lax.map, size=20, in_axes=(None, 0))(spread)
    assert temporaries(spread, x, starts) >= windows
    assert temporaries(chunked, x, starts) < windows / 10
    assert temporaries(gradient(chunked), x, starts) < windows / 10


def test_a_scan_that_returns_starts_in_place_of_what_is_seen() -> None:
    market, steps, width = jnp.asarray(np.random.default_rng(0).normal(size=(300, 8)), jnp.float32), 100, 16

    def episode(key: jax.Array, keep: Callable[[jax.Array], Any]) -> Any:
        def step(position: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
            seen = lax.dynamic_slice_in_dim(market, position, width)
            move = jax.random.randint(key, (), 0, 3) + (seen.mean() > 0)
            return (position + move) % (len(market) - width + 1), keep(position)

        return lax.scan(step, jnp.int32(0), jax.random.split(key, steps))[1]

    keys = jax.random.split(jax.random.key(0), 4)
    stacked = jax.vmap(lambda key: episode(key, lambda at: lax.dynamic_slice_in_dim(market, at, width)))(keys)
    starts = jax.vmap(lambda key: episode(key, lambda at: at))(keys)
    assert starts.nbytes == len(keys) * steps * 4
    assert stacked.nbytes == starts.nbytes * width * 8
    assert_same(tx.windows(market, starts, width), stacked)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("args", "error", "told"),
    [
        (
            (X, [0, 6], 3),
            tx.LengthError,
            r"\[1\] = 6 and width=3, rows 6 to 9 of x: f32\[8,2\]. Expected .* 8 rows",
        ),
        ((X, jnp.array([3, -2]), 3), tx.LengthError, r"starts\[1\] = -2 and width=3"),
        ((X, 6, 3), tx.LengthError, "starts = 6 and width=3"),
        (({"a": X}, [[0, 1], [2, 9]], 0), tx.LengthError, r"starts\[1, 1\] = 9 .* x\['a'\]: f32\[8,2\]"),
        ((X, [0], 9), tx.LengthError, r"start \+ 9 <= 8 rows. Fix: .*outside=\"mask\""),
        ((X, [0.0, 1.0], 3), TypeError, r"starts: f64\[2\]. Expected integers"),
        ((X, np.zeros(0), 3), TypeError, r"starts: f64\[0\]. Expected integers"),
        ((X, [True, False], 3), TypeError, r"starts: bool\[2\]. .*flatnonzero"),
        ((X, [0], -1), ValueError, "width=-1. Expected"),
        ((X, [0], 2.0), ValueError, "width=2.0. Expected"),
        ((X, [0], True), ValueError, "width=True. Expected"),
        (
            ((X, X[:5]), [0], 3),
            ValueError,
            r"x\[0\]: f32\[8,2\] and x\[1\]: f32\[5,2\]. .* as many rows",
        ),
        (([1.0, 2.0], [0], 1), ValueError, r"x\[0\]: float. Expected an array with rows. Fix: jnp.asarray"),
        ((tx.Padded(X, 3), [0], 1), ValueError, r"x: Padded. .* Fix: .*\.data"),
        ((None, [0], 1), ValueError, "x without arrays"),
        ((np.array([2**40, 5]), [0], 1), OverflowError, r"x: i64\[2\] with values that do not fit int32"),
    ],
)
def test_refusals(args: tuple, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=r"^tx\.windows got ") as caught:
        tx.windows(*args)
    assert caught.match(told)


def test_refused_ways() -> None:
    with pytest.raises(ValueError, match=r"outside='clip'. Expected"):
        tx.windows(X, [0], 3, outside="clip")
    with pytest.raises(TypeError, match=r'starts: i32\[8\], which are traced.*outside="mask"'):
        jax.jit(lambda starts: tx.windows(X, starts, 3))(SOME)
    with pytest.raises(TypeError, match=r"starts: i32\[\], which are traced.*under no vmap"):
        jax.vmap(lambda start: tx.windows(X, start, 3))(SOME)
    with pytest.raises(ValueError, match=r"width=.*Expected a number of rows, a Python int"):
        jax.jit(lambda width: tx.windows(X, [0], width))(3)
    with pytest.raises(tx.LengthError, match=r"x: i8\[2147483648\]. Expected at most 2147483647 rows"):
        jax.eval_shape(lambda x: tx.windows(x, [0], 3), jax.ShapeDtypeStruct((2**31,), jnp.int8))
