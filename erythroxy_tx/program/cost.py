"""The largest chunk whose compiled program fits a budget. Not here: how a chunk is run."""

from collections.abc import Callable
from collections.abc import Sequence

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.progress import progress
from erythroxy_tx.core.units import format_bytes
from erythroxy_tx.errors import BudgetError


def largest_fitting(
    sizes: Sequence[int], bytes_of: Callable[[int], ProgramBytes], budget: int, label: str
) -> tuple[int, int]:
    """Find the largest size whose program takes at most `budget` bytes.

    Bytes grow almost in proportion to the size, so two compiles give a guess that the next ones correct.
    A size counts as fitting only if it was compiled.

    **Arguments:**

    - `sizes`: candidates in rows, from the largest to the smallest.
    - `bytes_of`: compiles the program of a size and reads its bytes.
    - `budget`: bytes. `label`: what is called, for errors and progress.

    **Returns:** the size, and the bytes of its program.

    **Raises:** `BudgetError` if the smallest size does not fit.
    """
    known: dict[int, int] = {}
    with progress(f"{label}: looking for the largest chunk within {format_bytes(budget)}") as update:

        def fits(index: int) -> bool:
            size = sizes[index]
            found = bytes_of(size)
            known[index] = found.total
            update(f"{label}: {size} rows take {found}, budget {format_bytes(budget)}")
            if index == len(sizes) - 1 and found.total > budget:
                raise BudgetError(
                    f"{label} got budget={format_bytes(budget)}; chunks of {size} row take {found}. Expected a "
                    f"budget that one row fits. Fix: a budget of at least {found.total} bytes, or smaller arguments and results: "
                    "they count, whatever the chunk."
                )
            return found.total <= budget

        if fits(0):
            return sizes[0], known[0]
        too_large, fitting = 0, len(sizes) - 1
        if fitting == 0 or not fits(fitting):  # the one size there is does not fit; `fits` raised
            raise AssertionError("unreachable")
        while fitting - too_large > 1:
            guess = _between(sizes, too_large, fitting, known, budget)
            if fits(guess):
                fitting = guess
            else:
                too_large = guess
    return sizes[fitting], known[fitting]


def _between(sizes: Sequence[int], too_large: int, fitting: int, known: dict[int, int], budget: int) -> int:
    """The candidate that a straight line through the two known ends puts at the budget, kept strictly between."""
    low, high = sizes[fitting], sizes[too_large]
    slope = (known[too_large] - known[fitting]) / (high - low)
    target = low + (budget - known[fitting]) / slope if slope > 0 else (low * high) ** 0.5
    inside = range(too_large + 1, fitting)
    guess = next((i for i in inside if sizes[i] <= target), inside[-1])
    # A line that keeps missing on one side would step by one: halve the rest when the guess is next to an end.
    return guess if inside[0] < guess < inside[-1] or len(inside) < 3 else _closer(guess, inside)


def _closer(guess: int, inside: range) -> int:
    return inside[min(len(inside) // 8, 8)] if guess == inside[0] else inside[-1 - min(len(inside) // 8, 8)]
