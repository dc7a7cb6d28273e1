"""The search for the largest chunk within a budget: what it finds, and how often it compiles for that."""

from collections.abc import Callable

import hypothesis
import hypothesis.strategies as st
import pytest

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.errors import BudgetError
from erythroxy_tx.program.chunks import sizes
from erythroxy_tx.program.cost import largest_fitting

GROWTH: dict[str, Callable[[float], float]] = {
    "in proportion": lambda size: size,
    "square": lambda size: size * size,
    "root": lambda size: size**0.5,
    "steps": lambda size: size // 64 * 64,
    "not at all": lambda size: 0,
    "cliff": lambda size: 10**6 * (size > 17),
}


def search(rows: int, taken: Callable[[int], int], budget: int) -> tuple[int, int, list[int]]:
    compiled: list[int] = []

    def bytes_of(size: int) -> ProgramBytes:
        compiled.append(size)
        return ProgramBytes(argument=taken(size), output=3, temp=4, alias=7)

    size, total = largest_fitting(sizes(rows), bytes_of, budget, "f")
    return size, total, compiled


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    rows=st.sampled_from([1, 2, 3, 10, 97, 1000, 4096, 100_003]),
    growth=st.sampled_from(list(GROWTH)),
    fixed=st.integers(1, 10_000),
    each=st.floats(0.01, 100),
    part=st.floats(0, 1.2),
)
def test_the_largest_that_fits(rows: int, growth: str, fixed: int, each: float, part: float) -> None:
    taken = lambda size: int(fixed + each * GROWTH[growth](size))  # noqa: E731
    budget = int(taken(1) + part * (taken(rows) - taken(1)))
    size, total, compiled = search(rows, taken, budget)
    assert size == max(s for s in sizes(rows) if taken(s) <= budget)
    assert total == taken(size)
    assert size in compiled
    assert len(compiled) == len(set(compiled)) <= 2 * len(sizes(rows)).bit_length() + 2


def test_bytes_that_grow_in_proportion_take_a_handful_of_compilations() -> None:
    _, _, compiled = search(100_003, lambda size: 5000 + 640 * size, 10**6)
    assert len(compiled) <= 5


@pytest.mark.parametrize("rows", [1, 10])
def test_one_row_that_does_not_fit(rows: int) -> None:
    with pytest.raises(BudgetError, match=r"f got budget=100 B; chunks of one row take 101 B") as caught:
        search(rows, lambda size: 100 + size, 100)
    assert "at least 101 bytes" in str(caught.value)


def test_a_size_that_fits_by_chance_is_one_that_was_compiled() -> None:
    """XLA's bytes may fall where the size grows: what is found was still compiled, and fits."""
    taken = lambda size: 1000 * size - 900 * (size % 7 == 0) * size  # noqa: E731
    size, total, compiled = search(500, taken, 20_000)
    assert size in compiled
    assert total == taken(size) <= 20_000
