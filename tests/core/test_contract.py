"""Promises as values, and how they add up."""

import dataclasses
import math
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close
from erythroxy_tx.core.contract import Contract
from erythroxy_tx.core.contract import weaker

LOOSE = AsAccurate(4)


def contracts() -> st.SearchStrategy[Contract]:
    plain = st.one_of(
        st.just(Bitwise()),
        (st.floats(0, 1e-4, allow_subnormal=False) | st.floats(1e-2, 1)).map(Close),
        st.floats(1, 100).map(AsAccurate),
    )
    return plain | st.tuples(plain, plain).map(lambda pair: dataclasses.replace(pair[0], gradients=pair[1]))


@pytest.mark.parametrize("wrong", [-1e-9, math.nan, math.inf, "1", None, True, [1]])
def test_a_tolerance_is_a_finite_number(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"Close got rtol=.*Expected a finite number >= 0\.") as caught:
        Close(wrong)
    assert repr(wrong) in str(caught.value)
    with pytest.raises(ValueError, match=r"AsAccurate got k=.*Expected a finite number >= 1\."):
        AsAccurate(wrong)


def test_a_factor_below_one_is_no_promise() -> None:
    with pytest.raises(ValueError, match=r"AsAccurate got k=0\.5"):
        AsAccurate(0.5)
    assert AsAccurate(1).k == 1
    assert Close(0).rtol == 0


def test_they_are_values() -> None:
    assert Bitwise() == Bitwise()
    assert Close(1e-6) == Close(1e-6) != Close(1e-5)
    assert len({Bitwise(), Close(0), Close(0), AsAccurate(1), AsAccurate(2)}) == 4
    assert repr(Close(1e-6)) == "Close(rtol=1e-06)"
    assert repr(Bitwise(gradients=LOOSE)) == "Bitwise()"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Close(1).rtol = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (Bitwise(), Bitwise(), Bitwise()),
        (Bitwise(), Close(1e-6), Close(1e-6)),
        (Bitwise(), LOOSE, LOOSE),
        (Close(1e-6), Close(2e-6), Close(3e-6)),
        (Close(1e-6), LOOSE, LOOSE),
        (AsAccurate(2), AsAccurate(3), AsAccurate(6)),
    ],
)
def test_the_weaker_of_two(first: Contract, second: Contract, both: Contract) -> None:
    assert repr(weaker(first, second)) == repr(weaker(second, first)) == repr(both)


def test_gradients_have_a_promise_of_their_own() -> None:
    assert weaker(Bitwise(gradients=LOOSE), Bitwise()).gradients == LOOSE
    assert weaker(Bitwise(gradients=LOOSE), Bitwise()) == Bitwise()
    assert weaker(Bitwise(gradients=LOOSE), Bitwise(gradients=AsAccurate(2))).gradients == AsAccurate(8)
    assert weaker(Close(1e-4), Bitwise(gradients=LOOSE)).gradients == LOOSE
    assert weaker(Close(1), Bitwise(gradients=LOOSE)).gradients == Close(1)  # a few bits: as accurate as nothing
    assert (weaker(Bitwise(), Bitwise()).gradients or Bitwise()) == Bitwise()


def rank(contract: Contract) -> tuple[int, float]:
    is_coarse = isinstance(contract, Close) and contract.rtol > 1e-3
    return (
        3 if is_coarse else [Bitwise, Close, AsAccurate].index(type(contract)),
        getattr(contract, "rtol", getattr(contract, "k", 0.0)),
    )


@hypothesis.settings(max_examples=100)
@given(contracts(), contracts(), contracts())
def test_no_order_of_transforms_promises_more(a: Contract, b: Contract, c: Contract) -> None:
    both = weaker(a, b)
    assert both == weaker(b, a)
    assert rank(both) >= max(rank(a), rank(b))
    assert rank(both.gradients or both) >= max(rank(a.gradients or a), rank(b.gradients or b))
    left, right = weaker(weaker(a, b), c), weaker(a, weaker(b, c))
    assert type(left) is type(right)
    assert rank(left)[1] == pytest.approx(rank(right)[1], rel=0.05)  # a fine one beside a coarse one may count or not
    assert weaker(a, Bitwise()) == a
