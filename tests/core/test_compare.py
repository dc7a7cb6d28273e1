"""Comparisons: nothing that differs passes for equal, and what is equal is never refused."""

import math
import warnings
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st

from erythroxy_tx.core.compare import Comparison
from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close

NAN, INF = math.nan, math.inf
NARROW = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e5m2fnuz"]
FLOATS = [np.dtype(getattr(ml_dtypes, name)) for name in ["bfloat16", *NARROW]]
FLOATS += [np.dtype(kind) for kind in (np.float16, np.float32, np.float64)]
COMPLEX = [np.dtype(np.complex64), np.dtype(np.complex128)]
INTEGERS = [np.dtype(f"{sign}int{width}") for sign in ("", "u") for width in (8, 16, 32, 64)]
SMALL = [np.dtype(getattr(ml_dtypes, name)) for name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")]
CONTRACTS = [Bitwise(), Close(0), Close(1e-3), Close(1e9), AsAccurate(1), AsAccurate(4)]


def of_bits(dtype: np.dtype, content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype)


def arrays(dtypes: list[np.dtype], max_size: int = 6) -> st.SearchStrategy[np.ndarray]:
    """Arrays of any bits: NaN, infinities, subnormals and both zeros are among them."""
    return st.sampled_from(dtypes).flatmap(
        lambda dtype: st.integers(1, max_size).flatmap(
            lambda size: st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize).map(
                lambda content: of_bits(dtype, content)
            )
        )
    )


def wide(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def check(reference: Any, candidate: Any, contract: Any = Bitwise(), **more: Any) -> Comparison:  # noqa: B008
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return compare(reference, candidate, contract, **more)


# ---------------------------------------------------------------- equal is equal


@hypothesis.settings(max_examples=100)
@given(arrays(FLOATS + COMPLEX + INTEGERS), st.sampled_from(CONTRACTS))
def test_a_result_meets_every_contract_with_itself(x: np.ndarray, contract: Any) -> None:
    found = check(x, x.copy(), contract, exact=wide(x))
    assert found.ok, str(found)
    assert "meets it" in str(found)
    assert found.largest == 0


LEAVES: dict[str, Any] = {
    "number": 1.5,
    "int": 3,
    "bool": True,
    "complex": 1 + 2j,
    "none": None,
    "0-d": np.float32(1),
    "empty": np.zeros((0, 3), np.float32),
    "small": np.array([1, 0], ml_dtypes.int4),
    "float0": np.zeros(3, jax.dtypes.float0),
    "bits": jnp.zeros((2, 2), jnp.bfloat16),
    "weak": jnp.asarray(1.0),
    "key": jax.random.key(1),
    "keys": jax.random.split(jax.random.key(1, impl="rbg"), 3),
    "nested": {"a": [1, (None, np.ones(2))], "b": {}},
    "nothing": (),
    "longdouble": np.longdouble([1, 2]),
}


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize("contract", [Bitwise(), Close(1e-6), AsAccurate(2)], ids=repr)
def test_every_kind_of_leaf_meets_itself(leaf: Any, contract: Any) -> None:
    found = check(leaf, jax.tree.map(lambda x: x, leaf), contract, exact=leaf)
    assert found.ok, str(found)


def test_dict_order_does_not_count() -> None:
    assert check({"a": 1, "b": 2.0}, {"b": 2.0, "a": 1}).ok


# ---------------------------------------------------------------- a single bit


@hypothesis.settings(max_examples=100)
@given(arrays(FLOATS + COMPLEX + INTEGERS), st.data())
def test_a_single_flipped_bit_is_caught(x: np.ndarray, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, x.nbytes * 8 - 1))
    content = bytearray(x.tobytes())
    content[at // 8] ^= 1 << at % 8
    y = of_bits(x.dtype, bytes(content))
    parts = [wide(z).view(np.float64) for z in (x, y)]
    assume(not (np.isnan(parts[0]) & np.isnan(parts[1]) & changed(x, y)).any())  # a NaN matches any NaN
    found = check(x, y)
    assert not found.ok
    assert found.leaves[0].faults
    assert not check({"a": [x]}, {"a": [y]}).ok


def changed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which real parts differ in their bits."""
    size = x.dtype.itemsize // (2 if x.dtype.kind == "c" else 1)
    rows = [np.frombuffer(z.tobytes(), np.uint8).reshape(-1, size) for z in (x, y)]
    return (rows[0] != rows[1]).any(1)


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_small_numbers_differ(dtype: np.dtype) -> None:
    zero, one = np.array([0, 1], dtype), np.array([1, 1], dtype)
    assert not check(zero, one).ok
    assert check(zero, one, Close(1.0)).ok == (dtype.name == "float4_e2m1fn")


def test_the_widest_floats_are_not_narrowed() -> None:
    one = np.longdouble([1])
    assert not check(one, np.nextafter(one, 2)).ok
    assert not check(np.longdouble([0]), np.longdouble(10) ** np.longdouble([-400])).ok


# ---------------------------------------------------------------- integers and bools


@pytest.mark.parametrize("contract", [Bitwise(), Close(1e9)], ids=repr)
@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (np.uint64([2**64 - 1]), np.uint64([2**64 - 2])),
        (np.int64([2**63 - 1]), np.int64([2**63 - 2])),
        (np.int64([-(2**63)]), np.int64([-(2**63) + 1])),
        (np.int64([2**63 - 1]), np.int64([-(2**63)])),
        (np.int8([127]), np.int8([-128])),
        (np.uint8([0]), np.uint8([255])),
        (2**53, 2**53 + 1),
        (True, False),
        (np.array([True, True]), np.array([True, False])),
        (jnp.int32(7), jnp.int32(8)),
        (jax.random.key(0), jax.random.key(1)),
        (jax.random.split(jax.random.key(0)), jax.random.split(jax.random.key(1))),
    ],
)
def test_integers_are_equal(reference: Any, candidate: Any, contract: Any) -> None:
    found = check(reference, candidate, contract, exact=reference, atol=1e9)
    assert not found.ok
    assert "must be equal" in str(found)
    assert found.leaves[0].largest >= 1


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [(True, False), (jax.random.key(0), jax.random.key(1)), (np.array([True, True]), np.array([True, False]))],
)
def test_bools_and_keys_are_equal_under_every_contract(reference: Any, candidate: Any) -> None:
    assert not check(reference, candidate, AsAccurate(1e9), exact=reference).ok


@pytest.mark.parametrize(("candidate", "ok"), [([3, 9], True), ([4, 9], True), ([5, 9], False), ([3, 11], False)])
def test_integers_that_rounded_floats_decided_may_be_one_off(candidate: list[int], ok: bool) -> None:
    exact = np.int32([3, 9])
    assert check(exact, np.int32(candidate), AsAccurate(4), exact=exact).ok is ok


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_one_off_is_one_off_for_the_largest_integers_too(dtype: Any) -> None:
    exact = np.array([2**62], dtype)
    for off, ok in [(1, True), (2, False), (100, False)]:
        assert check(exact, exact + dtype(off), AsAccurate(4), exact=exact).ok is ok


# ---------------------------------------------------------------- structure, shape, dtype, weak type


@pytest.mark.parametrize(
    ("reference", "candidate", "fault"),
    [
        ([1.0], (1.0,), "structure differs: reference PyTreeDef([*]), candidate PyTreeDef((*,))"),
        ({"a": 1.0}, {"b": 1.0}, "structure differs"),
        ((1.0, None), (1.0, 2.0), "structure differs"),
        (np.zeros(3), np.zeros((3, 1)), "shape differs: reference f64[3], candidate f64[3,1]"),
        (np.zeros((0, 3)), np.zeros((3, 0)), "shape differs: reference f64[0,3], candidate f64[3,0]"),
        (np.float32(1), np.float32([1]), "shape differs: reference f32[], candidate f32[1]"),
        (np.float32([1]), np.float64([1]), "dtype float32 → float64"),
        (np.int32([1]), np.uint32([1]), "dtype int32 → uint32"),
        (1, 1.0, "dtype int64 → float64"),
        (True, 1, "dtype bool → int64"),
        (np.zeros(1, jnp.bfloat16), np.zeros(1, np.float16), "dtype bfloat16 → float16"),
        (jnp.asarray(1.0), jnp.float32(1), "weak type True → False (dtype float32)"),
        (jax.random.key(0), jax.random.key(0, impl="rbg"), "dtype key<fry> → key<rbg>"),
        (jax.random.key(0), jax.random.key_data(jax.random.key(0)), "dtype key<fry> → uint32"),
        (np.zeros(3, jax.dtypes.float0), np.zeros(3, bool), "dtype"),
        ("a", "a", "is of type str and dtype <U1. Expected an array of numbers"),
        (object(), object(), "dtype object. Expected an array of numbers"),
        (np.array(["2020"], "M8[D]"), np.array(["2020"], "M8[D]"), "Expected an array of numbers"),
        (np.zeros(2, [("a", "f4")]), np.zeros(2, [("a", "f4")]), "Expected an array of numbers"),
        (np.ma.masked_array([1.0], [True]), np.float64([1]), "is masked. Expected an array of numbers"),
        (jax.ShapeDtypeStruct((), float), jax.ShapeDtypeStruct((), float), "Expected an array of numbers"),
    ],
)
@pytest.mark.parametrize("contract", [Bitwise(), Close(1e9)], ids=repr)
def test_what_always_matches(reference: Any, candidate: Any, fault: str, contract: Any) -> None:
    found = check(reference, candidate, contract)
    assert not found.ok
    assert fault in str(found)


# ---------------------------------------------------------------- NaN, infinities, zeros


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.complex64 if any(isinstance(v, complex) for v in values) else np.float32)


SPECIAL: list[tuple[np.ndarray, np.ndarray]] = [
    (f32(NAN), f32(1)),
    (f32(1), f32(NAN)),
    (f32(NAN, 1), f32(1, NAN)),
    (f32(INF), f32(-INF)),
    (f32(INF), f32(3e38)),
    (f32(1), f32(INF)),
    (f32(INF), f32(NAN)),
    (f32(complex(NAN, 1)), f32(complex(1, NAN))),
    (f32(complex(INF, NAN)), f32(complex(-INF, NAN))),
    (f32(complex(1, INF)), f32(complex(1, -INF))),
    (f32(complex(NAN, INF)), f32(complex(NAN, 1))),
]


@pytest.mark.parametrize(("reference", "candidate"), SPECIAL)
@pytest.mark.parametrize("contract", CONTRACTS, ids=repr)
def test_nan_and_infinities_keep_their_places(reference: np.ndarray, candidate: np.ndarray, contract: Any) -> None:
    found = check(reference, candidate, contract, exact=wide(reference))
    assert not found.ok
    assert "NaN or infinity in other places: " in str(found)


def test_any_nan_matches_any_nan() -> None:
    other = np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    assert check(f32(NAN, NAN), other).ok


@pytest.mark.parametrize(("reference", "candidate"), [(f32(0.0), f32(-0.0)), (f32(0j), f32(complex(0.0, -0.0)))])
def test_the_sign_of_zero_counts_for_bits_only(reference: np.ndarray, candidate: np.ndarray) -> None:
    found = check(reference, candidate)
    assert not found.ok
    assert "sign of zero differs: 1 of 1, first at [0]" in str(found)
    assert check(reference, candidate, Close(0)).ok
    assert check(reference, candidate, AsAccurate(1), exact=wide(reference)).ok


def test_the_finite_part_of_a_complex_number_counts_beside_a_nan() -> None:
    found = check(f32(complex(NAN, 1)), f32(complex(NAN, 2)))
    assert "1 of 1 differ, worst at [0]" in str(found)
    assert check(f32(complex(INF, 1)), f32(complex(INF, 1.0001)), Close(1e-3)).ok
    assert not check(f32(complex(INF, 1)), f32(complex(INF, 1.0001)), Close(1e-5)).ok


# ---------------------------------------------------------------- Close


@hypothesis.settings(max_examples=100)
@given(arrays(FLOATS + COMPLEX), st.floats(0, 1), st.data())
def test_close_is_relative_to_the_largest_magnitude_of_the_reference(
    x: np.ndarray, rtol: float, data: st.DataObject
) -> None:
    y = of_bits(x.dtype, data.draw(st.permutations(x.tolist()).map(lambda v: np.array(v, x.dtype).tobytes())))
    special = ~(np.isfinite(wide(x)) & np.isfinite(wide(y)))
    assume(not special.any())
    with np.errstate(over="ignore"):
        largest, scale = np.abs(wide(y) - wide(x)).max(), np.abs(wide(x)).max()
    assume(np.isfinite(largest) and np.isfinite(scale))
    assert check(x, y, Close(rtol)).ok == (largest <= rtol * scale)


@pytest.mark.parametrize(
    ("reference", "candidate", "contract", "ok"),
    [
        (f32(1000, 1), f32(1000, 1.9), Close(1e-3), True),
        (f32(1000, 1), f32(1000, 2.1), Close(1e-3), False),
        (f32(1, 1), f32(1, 1000), Close(1e-1), False),  # not the candidate's magnitude
        (f32(0, 0), f32(0, 1e-30), Close(1.0), False),
        (f32(NAN, 1), f32(NAN, 1.1), Close(0.2), True),
        (f32(INF, 1), f32(INF, 1.1), Close(1e-3), False),  # an infinity is no magnitude
        (np.float64([1.7e308]), np.float64([-1.7e308]), Close(1.9), False),
        (
            np.complex128([complex(1.5e308, 1.5e308), 0]),
            np.complex128([complex(1.5e308, 1.5e308), 1e300]),
            Close(1e-9),
            False,
        ),
        (np.float64([5e-324]), np.float64([0]), Close(0.5), False),
        (np.zeros(0), np.zeros(0), Close(0), True),
    ],
)
def test_close(reference: np.ndarray, candidate: np.ndarray, contract: Close, ok: bool) -> None:
    assert check(reference, candidate, contract).ok == ok


def test_an_absolute_tolerance_is_added() -> None:
    assert check(f32(0), f32(0.5), Close(0), atol=0.5).ok
    assert not check(f32(0), f32(0.5), Close(0), atol=0.4).ok
    assert not check(f32(0), f32(0.5), Bitwise(), atol=0.5).ok
    assert "allowed 0.5 = 0.4 + 0.1 × 1" in str(check(f32(1), f32(2), Close(0.1), atol=0.4))


# ---------------------------------------------------------------- AsAccurate


def test_no_further_from_the_exact_result_than_the_reference() -> None:
    exact = np.float64([1.0, 100.0])
    reference = (exact + np.float64([0.01, 0])).astype(np.float32)
    for error, ok in [(0.01, True), (0.0199, True), (0.025, False)]:
        for sign in (1, -1):
            candidate = (exact + np.float64([0, sign * error])).astype(np.float32)
            assert check(reference, candidate, AsAccurate(2), exact=exact).ok == ok
    assert check(reference, exact.astype(np.float32), AsAccurate(1), exact=exact).ok


@pytest.mark.parametrize(("dtype", "units"), [(np.float32, 16), (jnp.bfloat16, 2), (np.float16, 2)])
def test_an_exact_reference_leaves_a_few_rounding_units(dtype: Any, units: int) -> None:
    eps = float(jnp.finfo(dtype).eps)
    exact = np.float64([1.0])
    for off, ok in [(units - 1, True), (units + 1, False)]:
        assert check(exact.astype(dtype), (exact + off * eps).astype(dtype), AsAccurate(1), exact=exact).ok == ok


def test_what_is_not_finite_is_left_out_of_the_errors() -> None:
    exact, x = np.float64([1, NAN, INF, 1e300]), f32(1, NAN, INF, INF)
    assert check(x, x, AsAccurate(1), exact=exact).ok
    assert not check(x, f32(1.1, NAN, INF, INF), AsAccurate(1), exact=exact).ok


@pytest.mark.parametrize("unknown", [NAN, INF, -INF])
def test_an_exact_result_that_is_not_finite_allows_nothing(unknown: float) -> None:
    exact = np.float64([unknown, 1])
    assert check(f32(5, 1), f32(5, 1), AsAccurate(2), exact=exact).ok
    for candidate in (f32(6, 1), f32(5, 900)):
        assert not check(f32(5, 1), candidate, AsAccurate(2), exact=exact).ok
    assert "1 of 2 differ, worst at [0]" in str(check(f32(5, 1), f32(6, 1), AsAccurate(2), exact=exact))


def test_the_exact_result_must_be_there_and_fit() -> None:
    with pytest.raises(TypeError, match=r"AsAccurate and no exact=.*Expected the float64 result\. Fix: pass exact="):
        check(f32(1), f32(1), AsAccurate(2))
    for exact in (np.float64(1), np.float64([[1]]), (np.float64([1]),), np.float64([1, 2])):
        with pytest.raises(ValueError, match=r"exact= with shapes .*Expected those of the reference.*Fix"):
            check(f32(1), f32(1), AsAccurate(2), exact=exact)


# ---------------------------------------------------------------- contracts as prefixes


def test_a_contract_for_each_output() -> None:
    reference = {"a": (f32(1), f32(1)), "b": f32(1)}
    candidate = {"a": (f32(1), f32(1.1)), "b": f32(1.1)}
    assert check(reference, candidate, Close(0.2)).ok
    assert check(reference, candidate, {"a": Close(0.2), "b": Close(0.2)}).ok
    assert check(reference, candidate, {"a": (Bitwise(), Close(0.2)), "b": Close(0.2)}).ok
    found = check(reference, candidate, {"a": (Close(0.2), Bitwise()), "b": Close(0.2)})
    assert [bool(leaf.faults) for leaf in found.leaves] == [False, True, False]
    assert check((None, f32(1)), (None, f32(1)), (None, Bitwise())).ok
    assert check((), (), Bitwise()).ok
    assert str(check((), ())) == "no leaves"


@pytest.mark.parametrize(
    "contract",
    [(Bitwise(),), (Bitwise(),) * 3, [Bitwise(), Bitwise()], {"a": Bitwise()}, (Bitwise(), (Bitwise(),)), None, ()],
)
def test_a_contract_that_does_not_fit_is_refused(contract: Any) -> None:
    with pytest.raises(
        ValueError, match=r"compare got contract=.*does not fit the reference.*Expected one.*Fix"
    ) as caught:
        check((f32(1), f32(2)), (f32(1), f32(2)), contract)
    assert repr(contract) in str(caught.value)


@pytest.mark.parametrize("contract", [1e-3, "close", Bitwise, (Bitwise(), 1e-3)])
def test_what_is_no_contract_is_refused(contract: Any) -> None:
    with pytest.raises(
        TypeError, match=r"compare got contract=.*Expected Bitwise\(\), Close\(rtol\) or AsAccurate\(k\)"
    ):
        check((f32(1), f32(2)), (f32(1), f32(2)), contract)


# ---------------------------------------------------------------- what is told


def test_the_report_names_path_index_values_and_counts() -> None:
    reference = {"loss": f32(1), "rows": [np.arange(6, dtype=np.float32).reshape(2, 3)]}
    candidate = {"loss": f32(1), "rows": [reference["rows"][0] + f32(0, 0.5, 0) + np.float32([[0], [1]])]}
    found = check(reference, candidate, Close(1e-3), names=("numpy", "relocated"))
    assert str(found) == (
        "['rows'][0]: 4 of 6 differ, worst at [1, 1]: numpy 4.0, relocated 5.5, difference 1.5 "
        "(0.3 of the largest magnitude 5), allowed 0.005 = 0.001 × 5"
    )
    leaf = found.leaves[1]
    assert (leaf.path, leaf.largest, leaf.scale, leaf.differing, leaf.total) == ("['rows'][0]", 1.5, 5.0, 4, 6)
    assert found.largest == 0.3
    assert found.leaves[0].faults == ()


def test_every_fault_of_a_leaf_is_told() -> None:
    found = check(f32(NAN, 0, 1), np.float64([1, -0.0, 2]))
    for part in (
        "dtype float32 → float64",
        "NaN or infinity in other places",
        "sign of zero",
        "1 of 3 differ, worst at [2]",
    ):
        assert part in str(found)


def test_dtypes_may_be_judged_by_the_caller() -> None:
    assert check(f32(1), np.float64([1]), dtype_fault=lambda a, b: None).ok
    assert "no" in str(check(f32(1), f32(1), dtype_fault=lambda a, b: "no"))
