"""What float64 says of a result in a narrower dtype: luck of the reference, overflow on the way, results that the
inputs do not determine, and comparisons that tell nothing.
"""

from typing import Any

import numpy as np
import pytest

from erythroxy_tx.core.accuracy import Exact
from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.contract import AsAccurate

INF, NAN = np.inf, np.nan


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def holds(reference: Any, candidate: Any, exact: Exact) -> bool:
    with np.errstate(over="ignore"):
        return compare(reference, candidate, AsAccurate(2), exact=exact).ok


def test_a_reference_that_is_exact_by_luck_does_not_condemn() -> None:
    """1e8 + 1 - 1e8 is 1, or 0 in another order; one rounding unit of 1e8 is 8."""
    exact = np.float64([1.0])
    assert not holds(f32(1), f32(0), Exact(exact))
    nearby = [exact + 8, exact]
    assert holds(f32(1), f32(0), Exact(exact, nearby))
    assert not holds(f32(1), f32(40), Exact(exact, nearby))


def test_what_overflows_on_the_way_is_decided_in_float64() -> None:
    exact = np.float64([0.0, 1.0])
    for candidate in (f32(NAN, 1), f32(INF, 1), f32(-INF, 1)):
        assert not holds(f32(0, 1), candidate, Exact(exact))
        assert not holds(f32(0, 1), candidate, Exact(exact, candidate=lambda: exact))
        strained = lambda: f32(INF, 8)  # noqa: E731
        assert holds(f32(0, 1), candidate, Exact(exact, candidate=lambda: exact, strained=strained))
        assert not holds(f32(0, 1), candidate, Exact(exact, candidate=lambda: exact, strained=lambda: f32(0, INF)))
        for wrong in (np.float64([0.0, 2.0]), np.float64([NAN, 1.0]), np.float64([0.1, 1.0])):
            assert not holds(f32(0, 1), candidate, Exact(exact, candidate=lambda wrong=wrong: wrong, strained=strained))
        assert not holds(
            f32(0, 2), f32(NAN, 1.5), Exact(np.float64([0, 2]), candidate=lambda: np.float64([0, 2]), strained=strained)
        )


def test_the_candidate_in_float64_is_asked_for_only_then() -> None:
    def never() -> Any:
        raise AssertionError

    assert holds(f32(1, NAN, INF), f32(1, NAN, INF), Exact(np.float64([1, NAN, INF]), candidate=never))
    assert not holds(f32(1), f32(2), Exact(np.float64([1]), candidate=never))


def test_what_nearby_inputs_make_finite_is_not_determined() -> None:
    """0/0 of a standardised constant column: a rounding unit away it is 1, or -1."""
    exact = Exact(np.float64([NAN, 3]), [np.float64([1, 3]), np.float64([NAN, 3])])
    for value in (1.0, -1.0, NAN, INF):
        assert holds(f32(NAN, 3), f32(value, 3), exact)
    assert not holds(f32(NAN, 3), f32(NAN, 4), exact)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_each_part_of_a_complex_number_is_judged(dtype: Any) -> None:
    exact = np.array([1, 2], np.complex128 if dtype == np.complex64 else np.float64)
    good, bad = exact.astype(dtype), exact.astype(dtype)
    bad[1] = 2.5 if dtype == np.float32 else complex(2, 0.5)
    assert holds(good, good, Exact(exact))
    assert not holds(good, bad, Exact(exact))


def decided(reference: Any, exact: Exact) -> bool:
    (leaf,) = compare(reference, reference, AsAccurate(2), exact=exact).leaves
    return leaf.decided


def test_a_comparison_knows_whether_it_could_have_failed() -> None:
    exact = np.float64([1.0, 2.0])
    assert decided(f32(1, 2), Exact(exact))
    assert not decided(f32(1, 2.5), Exact(exact))  # allows 1 of 2
    assert not decided(f32(1, 2), Exact(exact, [exact * 1.5]))
    assert not decided(f32(NAN), Exact(np.float64([NAN]), [np.float64([0])]))
    assert not decided(f32(), Exact(np.float64([])))
    assert decided(np.int32([5, 6]), Exact(np.int32([5, 6])))
    assert not decided(np.int32([5, 6]), Exact(np.int32([50, 6])))
    assert decided(np.array([True] * 9), Exact(np.array([True] * 9)))
    assert not decided(np.array([True] * 9), Exact(np.array([False] * 9)))


def test_bools_and_integers_that_nearby_inputs_turn() -> None:
    exact = Exact(np.array([True, False]), [np.array([True, True])])
    assert holds(np.array([True, False]), np.array([False, False]), exact)
    assert not holds(np.array([True, False]), np.array([True, True]), Exact(np.array([True, False])))
    whole = Exact(np.int32([5, 9]), [np.int32([5, 12])])
    assert holds(np.int32([5, 9]), np.int32([5, 15]), whole)
    assert not holds(np.int32([5, 9]), np.int32([5, 17]), whole)
