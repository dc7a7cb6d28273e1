"""`compress`: what is found to repeat itself, that it comes back bit for bit, and what halves cost."""

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.guards.syncs import HostSyncs
from erythroxy_tx.runtime.compress import compress

ODD = np.array([0x7FA00001, 0xFFC01234, 0x80000000, 1, 0x3F800000], np.uint32).view(np.float32)  # NaN, -0.0, subnormal
PLACES = pytest.mark.parametrize("place", [np.asarray, jnp.asarray], ids=["numpy", "device"])


def bits(x: Any) -> tuple:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return (x.dtype, x.shape, np.ascontiguousarray(x).tobytes()) if hasattr(x, "dtype") else (x,)


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(a) is type(b)
        assert bits(a) == bits(b)


@PLACES
def test_the_last_value_that_was_tiled(place: Any) -> None:
    last = np.random.default_rng(0).normal(size=(27, 64)).astype(np.float32)
    tree = {"x": place(np.tile(last[:, :, None], (1, 1, 64)))}
    kept = compress(tree)
    assert kept.kept["x"].shape == (27, 64, 1)
    assert (kept.nbytes, kept.saved) == (last.nbytes, 63 * last.nbytes)
    assert_same(kept.expand(), tree)
    assert repr(kept) == "tx.compress: 432.0 KiB in 6.8 KiB, 64x\n  ['x']  f32[27,64,64]  in f32[27,64,1]"


@given(
    st.lists(st.sampled_from([(1, 1), (1, 6), (2, 3), (3, 4), (5, 1), (2, 2)]), min_size=1, max_size=3),
    st.sampled_from([False, True]),
    st.integers(0, 5),
)
def test_the_smallest_block_is_found_and_gives_all_back(axes: list[tuple[int, int]], changed: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    block = rng.integers(0, 3, [n for n, _ in axes]).astype(np.float32)
    x = np.tile(block, [times for _, times in axes])
    if changed:
        x[tuple(rng.integers(0, n) for n in x.shape)] = 7
    kept = compress(x)
    assert_same(kept.expand(), x)
    smallest = [
        next(p for p in range(1, n + 1) if n % p == 0 and (np.take(x, np.arange(n) % p, axis) == x).all())
        for axis, n in enumerate(x.shape)
    ]
    assert list(kept.kept.shape) == smallest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64", "int8", "bool"])
@PLACES
def test_bit_for_bit(dtype: str, place: Any) -> None:
    kind = np.dtype(jnp.dtype(dtype))
    pattern = ODD[:3].view(f"u{min(kind.itemsize, 4)}")
    x = np.tile(pattern, 4) & 1 if dtype == "bool" else np.tile(pattern, 4)
    x = place(x.view(kind))
    kept = compress(x)
    assert kept.saved
    assert_same(kept.expand(), x)
    if isinstance(x, jax.Array):
        assert_same(jax.jit(lambda kept: kept.expand())(kept), x)


@PLACES
def test_zeros_of_two_signs_and_two_kinds_of_not_a_number_differ(place: Any) -> None:
    for pair in (np.float32([0.0, -0.0]), ODD[:2]):
        kept = compress(place(np.tile(pair, 3)))
        assert kept.kept.shape == (2,)


def test_a_view_that_numpy_repeats_without_memory() -> None:
    x = np.broadcast_to(np.arange(3.0), (10**12, 3))
    kept = compress(x)
    assert kept.kept.shape == (1, 3)
    assert kept.saved == (10**12 - 1) * 24


def test_what_is_no_array_of_numbers_stays() -> None:
    tree = {
        "key": jax.random.split(jax.random.key(0)),
        "scalar": jnp.float32(1),
        "empty": np.zeros((0, 3)),
        "int": 3,
        "text": "x",
        "object": np.array([None, None]),
        "masked": np.ma.zeros(4),
        "plain": np.arange(5.0),
        "none": None,
    }
    kept = compress(tree)
    for name, value in tree.items():
        assert kept.kept[name] is value
        assert kept.expand()[name] is value
    assert kept.saved == 0
    assert compress([]).expand() == []


def test_what_is_kept_does_not_hold_the_whole() -> None:
    x = np.tile(np.arange(4.0), 100)
    kept = compress(x).kept
    assert kept.base is None
    assert kept.nbytes == 32


# ------------------------------------------------------------------ halves

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.mark.parametrize("half", UNIT)
@PLACES
def test_the_bound_of_halves(half: str, place: Any) -> None:
    rng = np.random.default_rng(0)
    tree = {
        "x": (10.0 ** rng.uniform(-4, 4.5, 999)).astype(np.float32),
        "tiled": np.tile(rng.normal(size=5).astype(np.float32), 3),
        "special": np.float32([np.nan, ODD[0], np.inf, -np.inf, -0.0, 1.1]),
        "ints": np.arange(3, dtype=np.int32),
        "half": np.float16([1.1, 2.1]),
        "large": np.float32([1.0, 3.4e38]),
        "small": np.float32([1.0, 1e-42]),
    }
    tree = {name: place(value) for name, value in tree.items()}
    kept = compress(tree, half)
    found = kept.expand()
    kinds = {name: str(value.dtype) for name, value in kept.kept.items()}
    assert [kinds[name] for name in ("x", "tiled", "special")] == [half] * 3
    assert [kinds[name] for name in ("ints", "half", "large", "small")] == ["int32", "float16", "float32", "float32"]
    assert kept.kept["tiled"].shape == (5,)
    for name, value in tree.items():
        assert found[name].dtype == value.dtype
        with np.errstate(invalid="ignore"):
            a, b = np.asarray(found[name], float), np.asarray(value, float)
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite])
        a, b = a[finite], b[finite]
        assert (np.abs(a - b) <= UNIT[half] * np.abs(b)).all()
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b))
    a, b = np.asarray(found["x"], float), np.asarray(tree["x"], float)
    lines = dict(line.split(maxsplit=1) for line in repr(kept).splitlines()[1:])
    assert f"within {np.max(np.abs(a - b) / b):.1e}·|x|" in lines["['x']"]
    assert lines["['large']"].endswith(f"as it is, too large for {half}")
    assert lines["['small']"].endswith(f"as it is, too small for {half}")
    assert "within" not in repr(jax.tree.map(lambda leaf: leaf, kept))  # other values, which nobody measured


@PLACES
def test_the_range_of_float16(place: Any) -> None:
    for value, dtype in ((65504, "float16"), (65505, "float32"), (2.0**-14, "float16"), (2.0**-14.01, "float32")):
        assert compress(place(np.float32([1, value])), "float16").kept.dtype == dtype


def test_double_precision_on_the_host() -> None:
    x = np.array([1 / 3, 2.0])
    found = compress(x, "float16").expand()
    assert found.dtype == x.dtype
    assert (np.abs(found - x) <= 2.0**-11 * np.abs(x)).all()
    assert compress(np.array([1.0, 1e300]), "bfloat16").kept.dtype == np.float64
    big_endian = np.tile(np.array([1.5, 2.5], ">f4"), 2)
    assert compress(big_endian, "float16").nbytes == 4
    assert_same(compress(big_endian, "float16").expand(), big_endian)


# ------------------------------------------------------------------ in programs


def test_it_is_an_argument_of_compiled_functions() -> None:
    first, second = (compress({"w": jnp.tile(jnp.arange(3.0) + i, 4)}, "bfloat16") for i in range(2))
    read = jax.jit(lambda kept: kept.expand()["w"].sum())
    assert float(read(first)) == 12
    with tx.no_recompile():  # what was measured of the values is no part of the program
        assert float(read(second)) == 24
    gradient = jax.grad(lambda kept: (kept.expand()["w"] ** 2).sum())(compress({"w": jnp.tile(jnp.arange(3.0), 4)}))
    assert gradient.kept["w"].tolist() == [0, 8, 16]


def test_one_small_transfer() -> None:
    tree = [jnp.tile(jnp.arange(4.0), 1000), jnp.arange(12.0), jnp.ones((3, 4))]
    compress(tree)
    with jax.transfer_guard("disallow"), HostSyncs() as syncs:
        kept = compress(tree)
    assert syncs.bytes < 100
    assert kept.nbytes == 4 * (4 + 12 + 1)


def test_what_was_cut_is_refused() -> None:
    kept = compress(jnp.tile(jnp.arange(6.0).reshape(2, 3), (1, 2)))
    with pytest.raises(ValueError, match=r"kept an array of shape \(2, 3\), and expand\(\) got f32\[3\].*vmap"):
        lax.scan(lambda c, row: (c, row.expand()), 0, kept)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), kept)
    assert jax.vmap(lambda each: each.expand())(stacked).shape == (2, 2, 6)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"half='float8'\. Expected None"):
        compress(1, "float8")
    with pytest.raises(tx.TransformOrderError, match=r"tree\['a'\]: f32\[3\] inside of a trace.*expand\(\) inside"):
        jax.jit(lambda a: compress({"a": a}).expand())(jnp.ones(3))
