"""How many saves are left, from readings after each."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erythroxy_tx.host.kills.growth import saves_left

GIB = 2**30


def test_case_49_host_memory_that_grows_with_each_checkpoint() -> None:
    """Source: marin-community/marin#6774 and #6908."""
    found = saves_left([32 * GIB + i * 16 * GIB for i in range(6)], limit=400 * GIB)
    assert found == (16 * GIB, 18, 19)  # from 112 GiB, 18 more reach the limit exactly, and the next crosses it


@given(first=st.integers(0, 2**40), step=st.integers(1, 2**40), count=st.integers(2, 20), room=st.integers(0, 2**45))
def test_what_grows_evenly_is_exact(first: int, step: int, count: int, room: int) -> None:
    readings = [first + i * step for i in range(count)]
    per_save, left, crosses = saves_left(readings, readings[-1] + room)
    assert per_save == step
    assert left == room // step
    assert readings[-1] + left * step <= readings[-1] + room < readings[-1] + crosses * step


def test_noise_does_not_decide() -> None:
    noise = random.Random(0)
    readings = [10 * GIB + i * GIB + noise.randrange(-GIB // 4, GIB // 4) for i in range(30)]
    found = saves_left(readings, limit=100 * GIB)
    assert abs(found.per_save - GIB) < GIB // 50
    assert abs(found.left - 61) <= 2


@pytest.mark.parametrize("readings", [[5, 5], [9, 7, 5]])
def test_nothing_grows(readings: list[int]) -> None:
    assert saves_left(readings, limit=100)[1:] == (None, None)


def test_past_the_limit() -> None:
    assert saves_left([10, 20], limit=15)[1:] == (0, 1)


def test_one_reading_is_no_growth() -> None:
    with pytest.raises(ValueError, match=r"got 1 readings\. Expected at least two"):
        saves_left([7], limit=100)
