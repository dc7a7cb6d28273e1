"""What the strategies draw: the values that break ports really occur, and nothing that was not asked for does."""

import math
import random
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis.errors import InvalidArgument

from erythroxy_tx.testing import arrays
from erythroxy_tx.testing import indices
from erythroxy_tx.testing import lengths
from erythroxy_tx.testing import pytrees
from erythroxy_tx.testing import rows
from erythroxy_tx.testing.strategies import Pair

SHAPE = (3, 4)
PLAIN = 1000

Test = Callable[[Any], Any]


def draws(strategy: st.SearchStrategy[Any], count: int = 25, seed: int = 0) -> list[Any]:
    """The same draws each time."""
    found: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=count, phases=[hypothesis.Phase.generate], database=None, deadline=None)
    @hypothesis.given(strategy)
    def collect(drawn: Any) -> None:
        found.append(drawn)

    collect()
    return found


def occur(strategy: st.SearchStrategy[Any], *wanted: Test) -> bool:
    """Whether each of some tests passes on one of at most 1000 draws."""
    left = list(wanted)
    for seed in range(40):
        for drawn in draws(strategy, seed=seed):
            left = [test for test in left if not np.any(test(drawn))]
        if not left:
            return True
    return False


def equal_to(values: Iterable[Any]) -> Iterator[Test]:
    return ((lambda x, value=value: x == value) for value in values)


def numbers(found: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([x.ravel().astype(np.float64) for x in found])


def is_subnormal(x: np.ndarray) -> np.ndarray:
    wide = np.abs(x.astype(np.float64))  # comparing bfloat16 with NaN may warn
    return (wide > 0) & (wide < float(jnp.finfo(x.dtype).tiny))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_floats_reach_the_edges_of_their_dtype(name: str) -> None:
    dtype, info = jnp.dtype(name), jnp.finfo(name)
    root = math.sqrt(float(info.max))
    edges = [info.tiny, info.max, -info.max, math.inf, -math.inf, 1 + info.eps, 1 - info.eps / 2]
    assert occur(
        arrays(dtype, SHAPE),
        np.isnan,
        lambda x: (x == 0) & np.signbit(x),
        lambda x: (x == 0) & ~np.signbit(x),
        lambda x: np.abs(np.abs(x.astype(np.float64)) - 2 * root) < root,  # its square overflows
        *equal_to(map(dtype.type, edges)),
    )
    found = draws(arrays(dtype, SHAPE))
    assert {(x.dtype, x.shape) for x in found} == {(dtype, SHAPE)}
    assert not any(is_subnormal(x).any() for x in found)


def test_whole_arrays_of_floats_tie_and_add_up_exactly() -> None:
    def varied(x: np.ndarray) -> bool:
        return bool(np.isfinite(x).all()) and len(np.unique(x)) > 3

    def quarters(x: np.ndarray) -> bool:
        return varied(x) and (x % 0.25 == 0).all()

    assert occur(
        arrays("float32", SHAPE),
        lambda x: quarters(x) and (np.abs(x) <= 2).all(),
        lambda x: quarters(x) and (x < 0).all(),  # whose maximum is below zero
        lambda x: quarters(x) and (np.abs(x - PLAIN) <= 2).all(),  # where squares cancel
        lambda x: varied(x) and (np.abs(x) <= PLAIN).all() and (x % 0.25 != 0).any(),
    )


def test_complex_numbers_of_every_pair_of_parts() -> None:
    z = arrays("complex64", SHAPE)
    assert {x.dtype for x in draws(z, 5)} == {np.dtype("complex64")}
    assert occur(
        z,
        lambda x: np.isnan(x.real) & np.isfinite(x.imag),
        lambda x: np.isinf(x.imag) & np.isfinite(x.real),
        lambda x: (x.real == 0) & np.signbit(x.real),
    )


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_subnormals_where_they_are_allowed(name: str) -> None:
    assert occur(arrays(jnp.dtype(name), SHAPE, allow_subnormal=True), is_subnormal)


def test_without_extremes_all_is_tame() -> None:
    floats = arrays("float32", SHAPE, extremes=False, allow_nan=False, allow_infinity=False)
    for strategy in (floats, arrays("int64", SHAPE, extremes=False)):
        x = numbers(draws(strategy))
        assert np.abs(x).max() < PLAIN + 3
        assert len(np.unique(x)) > 9


@pytest.mark.parametrize("name", ["int8", "uint8", "int64"])
def test_integers_are_small_or_near_an_overflow(name: str) -> None:
    limits = np.iinfo(name)
    values = [limits.min, limits.max, limits.max - 1, limits.max // 2 + 1, 0, 1, 2, 3]
    values += [-1, -2] if limits.min else []
    values += [2**24 + 1, 2**31 - 1, 2**31] if limits.bits > 32 else []  # float32 does not hold the first
    assert occur(
        arrays(name, SHAPE),
        lambda x: (x > 3) & (x <= PLAIN),
        lambda x: (x <= 3).all() and len(np.unique(x)) > 3,
        *equal_to(values),
    )
    assert {x.dtype for x in draws(arrays(name, SHAPE), 5)} == {np.dtype(name)}


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("float32", -1.5, 2),
        ("float32", 5000, None),
        ("float16", None, -2000),
        ("bfloat16", 0.5, 2),
        ("float64", 0.1, 0.1),
        ("float32", 0.1, 0.9),
        ("bfloat16", -0.9, np.float32(0.1)),
        ("float32", 2.0**-126, 2.0**-125),
        ("int8", -3, None),
        ("int32", 5000, 6000),
        ("int32", None, -5000),
    ],
)
def test_bounds_are_kept(name: str, low: float | None, high: float | None) -> None:
    x = numbers(draws(arrays(jnp.dtype(name), SHAPE, min_value=low, max_value=high), 40))
    assert np.isfinite(x).all()
    assert (x >= (-math.inf if low is None else low)).all()
    assert (x <= (math.inf if high is None else high)).all()
    assert low == high or len(np.unique(x)) > 9


def test_nan_and_infinities_are_allowed_apart() -> None:
    with_nan = arrays("float32", SHAPE, allow_infinity=False)
    assert occur(with_nan, np.isnan)
    assert not np.isinf(numbers(draws(with_nan))).any()
    for options in ({"allow_nan": False}, {"min_value": 0, "allow_infinity": True}):
        without = arrays("float32", SHAPE, **options)
        assert occur(without, np.isinf)
        assert not np.isnan(numbers(draws(without))).any()


def test_shapes_and_dtypes_may_be_drawn() -> None:
    shapes = [(), (1,), (3,), (7,), (2, 3), (5, 1), (0,), (2, 0)]
    assert {x.shape for x in draws(arrays("int8"))} <= set(shapes)
    assert occur(arrays("int8"), *((lambda x, shape=shape: x.shape == shape) for shape in shapes))
    assert occur(arrays("bool", 4), lambda x: x, lambda x: ~x, lambda x: x.shape == (4,))
    found = draws(arrays(st.sampled_from(["bool", jnp.bfloat16]), st.sampled_from([2, (1, 2)])))
    kinds = {(x.dtype.name, x.shape) for x in found}
    assert kinds == {(name, shape) for name in ("bool", "bfloat16") for shape in ((2,), (1, 2))}


def test_rows_are_sometimes_repeated() -> None:
    seven = rows(7, 4, min_value=-1000)
    assert {x.shape for x in draws(seven, 10)} == {(7, 4)}
    counts = [np.unique(x, axis=0, return_counts=True)[1] for x in draws(seven, 100)]
    assert sum(len(count) == 7 for count in counts) > 5
    assert sum(len(count) > 3 and (count > 1).sum() > 1 for count in counts) > 5


def test_rows_have_any_features_and_share_a_length() -> None:
    assert {x.shape[1:] for x in draws(rows(), 20)} == {(4,)}
    n = st.shared(lengths(5))
    found = draws(st.tuples(rows(n, 2), rows(n, (), "int32"), rows(n, (2, 3), jnp.bfloat16)))
    assert len({len(x) for x, _, _ in found}) > 3
    for x, y, z in found:
        assert (x.shape[1:], y.shape[1:], z.shape[1:]) == ((2,), (), (2, 3))
        assert len(x) == len(y) == len(z)
        assert (x.dtype, y.dtype, z.dtype) == (np.float32, np.int32, jnp.bfloat16)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (lengths(), {0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33}),
        (lengths(24, around=[7]), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24}),
        (lengths(9, min_length=7), {7, 8, 9}),
        (lengths(0), {0}),
    ],
)
def test_lengths_at_which_things_go_wrong(strategy: st.SearchStrategy[int], expected: set[int]) -> None:
    assert set(draws(strategy)) <= expected
    assert occur(strategy, *equal_to(expected))


def test_what_fails_for_every_length_is_shown_with_one_row() -> None:
    for least, smallest in ((0, 1), (4, 4)):
        assert hypothesis.find(lengths(), lambda n, least=least: n >= least, random=random.Random(0)) == smallest


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"allow_negative": True}, {-5, -4, -3, -2, -1, 0, 1, 2, 3, 4}),
        ({"out_of_range": True}, {-(2**31), -6, 0, 1, 2, 3, 4, 5, 6, 2**31 - 1}),
        ({"dtype": "uint8", "out_of_range": True, "allow_negative": True}, {0, 1, 2, 3, 4, 5, 6, 255}),
    ],
)
def test_indices(options: dict[str, Any], expected: set[int]) -> None:
    strategy = indices(5, (3, 4), **options)
    found = draws(strategy)
    assert {(x.dtype, x.shape) for x in found} == {(np.dtype(options.get("dtype", "int32")), (3, 4))}
    assert {int(k) for x in found for k in x.ravel()} <= expected
    assert occur(strategy, *equal_to(expected))


def test_indices_into_nothing() -> None:
    assert {x.shape for x in draws(indices(0, (2, 3)), 5)} == {(0, 3)}
    assert {len(x) for x in draws(indices(st.sampled_from([0, 2]), 4), 20)} == {0, 4}
    beyond = {int(k) for x in draws(indices(0, 8, out_of_range=True)) for k in x}
    assert beyond <= {-(2**31), -1, 0, 1, 2**31 - 1}


def test_negative_indices_into_more_than_the_dtype_counts() -> None:
    assert occur(indices(300, 8, dtype="int8", allow_negative=True), lambda x: x < -99)


def test_pytrees() -> None:
    strategy = pytrees(arrays("float32", 2), max_leaves=4)
    assert {type(tree) for tree in draws(strategy)} <= {tuple, list, dict, Pair}
    assert max(len(jax.tree.leaves(tree)) for tree in draws(strategy)) <= 8
    assert occur(
        strategy,
        *((lambda tree, kind=kind: type(tree) is kind and len(tree) > 0) for kind in (tuple, list, dict, Pair)),
        lambda tree: not tree,
        lambda tree: "None" in str(tree),
        lambda tree: len(jax.tree.leaves(tree)) > 2,
        lambda tree: type(tree) is Pair and type(tree.second) is dict,
    )


INVALID: list[tuple[Callable[[], st.SearchStrategy[Any]], str]] = [
    (lambda: arrays("U3"), "arrays got dtype='U3'. Expected one of float16, bfloat16"),
    (lambda: arrays(shape=-1), "arrays got shape=-1. Expected an int >= 0, a tuple of them, or a strategy"),
    (lambda: arrays(min_value=2, max_value=1), "arrays got min_value=2 and max_value=1. Expected min <= max"),
    (lambda: arrays(max_value=math.nan), "arrays got max_value=nan. Expected a number"),
    (lambda: arrays(min_value=math.inf), "arrays got min_value=inf. Expected a finite number, or None"),
    (lambda: arrays(min_value=10**400), "Expected a finite number, or None"),
    (lambda: arrays("float16", max_value=1e6), "max_value=1000000.0, which is beyond float16"),
    (lambda: arrays("int8", max_value=128), "arrays got max_value=128, which is no int8"),
    (lambda: arrays("complex64", min_value=0), "arrays got min_value=0 for complex64, which has no order"),
    (lambda: arrays("bool", min_value=0), "arrays got bounds for bools. Expected none. Fix: leave them out"),
    (lambda: arrays(min_value=0, allow_nan=True), "allow_nan=True with bounds. Expected one of them"),
    (lambda: arrays(allow_nan="no"), "arrays got allow_nan='no'. Expected True, False or None"),
    (lambda: arrays("int8", allow_infinity=True), "arrays got allow_infinity=True for int8, which has neither"),
    (lambda: rows(features=1.5), "rows got features=1.5. Expected an int >= 0, a tuple of them, or a strategy"),
    (lambda: lengths(5, around=[-1]), "lengths got around=-1"),
    (lambda: lengths(5, min_length=6), "lengths got min_length=6 and max_length=5. Expected min <= max"),
    (lambda: indices(-1), "indices got n=-1. Expected an int >= 0"),
    (lambda: indices(3, dtype="float32"), "indices got dtype=float32. Expected integers"),
    (lambda: pytrees(3), "pytrees got leaves=3. Expected a strategy, as in pytrees(arrays())"),
    (lambda: pytrees(arrays(), max_leaves=-1), "pytrees got max_leaves=-1. Expected an int >= 0"),
]


@pytest.mark.parametrize(("make", "told"), INVALID, ids=[told for _, told in INVALID])
def test_options_that_are_none(make: Callable[[], st.SearchStrategy[Any]], told: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        draws(make(), 1)
    assert told in str(raised.value)


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "int4", "longdouble"])
def test_a_dtype_that_cannot_be_drawn_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"arrays got dtype=.*{name}"):
        draws(arrays(getattr(jnp, name, name), 3), 1)
