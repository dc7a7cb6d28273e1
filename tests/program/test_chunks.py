"""The arithmetic of a plan, and which sizes are worth a compilation."""

import hypothesis
import hypothesis.strategies as st
import pytest

from erythroxy_tx.program.chunks import Chunks
from erythroxy_tx.program.chunks import sizes


def starts(plan: Chunks) -> list[tuple[int, int]]:
    """First row and number of rows of each chunk, as the loop runs them."""
    if plan.one:
        return [(0, plan.rows)]
    last = plan.rows - plan.size
    looped = [(min(i * plan.size, last) if plan.overlaps else i * plan.size, plan.size) for i in range(plan.looped)]
    return looped + ([(plan.looped * plan.size, plan.remainder)] if plan.remainder else [])


@hypothesis.settings(max_examples=100)
@hypothesis.given(rows=st.integers(0, 300), size=st.integers(1, 320), overlaps=st.booleans())
def test_every_row_is_in_a_chunk(rows: int, size: int, overlaps: bool) -> None:
    plan = Chunks(rows, size, overlaps and rows > size)
    cut = starts(plan)
    assert plan.count == len(cut)
    assert {row for start, length in cut for row in range(start, start + length)} == set(range(rows))
    assert all(start >= 0 and start + length <= rows for start, length in cut)
    if not plan.overlaps:
        assert sum(length for _, length in cut) == rows  # each row once
    else:
        assert {length for _, length in cut} == {size}  # one length, so one program


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (Chunks(10, 5), "10 rows in 2 chunks of 5"),
        (Chunks(10, 4), "10 rows in 3 chunks of 4, the last of 2"),
        (Chunks(10, 4, overlaps=True), "10 rows in 3 chunks of 4, the last overlapping by 2"),
        (Chunks(12, 4, overlaps=True), "12 rows in 3 chunks of 4"),
        (Chunks(3, 8), "3 rows in 1 chunks of 3"),
        (Chunks(10, 5, total_bytes=2048), "10 rows in 2 chunks of 5; the compiled program takes 2.0 KiB"),
    ],
)
def test_told(plan: Chunks, told: str) -> None:
    assert str(plan) == told


@hypothesis.settings(max_examples=100)
@hypothesis.given(rows=st.integers(0, 3000))
def test_sizes_are_the_smallest_for_each_number_of_chunks(rows: int) -> None:
    """Between two sizes there is none that saves a chunk; a size one smaller would take one more."""
    found = sizes(rows)
    count = lambda size: -(-rows // size)  # noqa: E731
    assert found == [s for s in range(max(rows, 1), 0, -1) if s == 1 or count(s - 1) > count(s)]
