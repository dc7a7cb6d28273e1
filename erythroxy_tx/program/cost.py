"""The largest chunk whose compiled program fits a budget. Not here: how a chunk is run."""

from collections.abc import Callable
from collections.abc import Sequence

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.errors import BudgetError
from erythroxy_tx.progress import progress
from erythroxy_tx.units import format_bytes


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
    smallest = len(sizes) - 1
    with progress(f"{label}: looking for the largest chunk within {format_bytes(budget)}") as update:

        def fits(index: int) -> bool:
            found = bytes_of(sizes[index])
            known[index] = found.total
            update(f"{label}: {sizes[index]} rows take {found}, budget {format_bytes(budget)}")
            if index == smallest and found.total > budget:
                least = min(known.values())
                raise BudgetError(
                    f"{label} got budget={format_bytes(budget)}; chunks of one row take {found}. Expected a "
                    f"budget that one row fits. Fix: a budget of at least {least} bytes, or less of what does not "
                    "shrink with the chunk: arguments, results, rows that are written down (tx.explain tells which)."
                )
            return found.total <= budget

        if fits(0):
            return sizes[0], known[0]
        fits(smallest)
        too_large, fitting, halve = 0, smallest, False
        while (width := fitting - too_large) > 1:
            guess = (too_large + fitting) // 2 if halve else _on_line(sizes, too_large, fitting, known, budget)
            too_large, fitting = (too_large, guess) if fits(guess) else (guess, fitting)
            halve = not halve and fitting - too_large > width / 2  # the line missed: it would creep
    return sizes[fitting], known[fitting]


def _on_line(sizes: Sequence[int], too_large: int, fitting: int, known: dict[int, int], budget: int) -> int:
    """The candidate at which a straight line through two known ones reaches the budget, strictly between them."""
    slope = (known[too_large] - known[fitting]) / (sizes[too_large] - sizes[fitting])
    target = sizes[fitting] + (budget - known[fitting]) / slope  # positive: one fits and the other does not
    inside = range(too_large + 1, fitting)
    return next((i for i in inside if sizes[i] <= target), inside[-1])
