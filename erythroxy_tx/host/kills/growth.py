"""How many more saves a process survives that holds more after each. Not here: the readings, which the user keeps."""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple


class Growth(NamedTuple):
    """What `saves_left` finds.

    **Attributes:**

    - `per_save`: bytes that a save leaves behind, in the mean.
    - `left`: how many more saves still fit; None where nothing grows.
    - `crosses`: which save from now on is the first past the limit, `left + 1`; None where nothing grows.
    """

    per_save: int
    left: int | None
    crosses: int | None


def saves_left(anon_after_each_save: Sequence[int], limit: int) -> Growth:
    """Tell which save will be the one that is killed, from what is held after each.

    With the slope $b$ of the line that fits the readings best, and $a$ the last of them::

        left = floor((limit - a) / b)

    **Arguments:**

    - `anon_after_each_save`: bytes, the lowest reading after each save; `anon` of
        `erythroxy_tx.host.cgroup.memory_cgroups`, since page cache is given back and does not count.
    - `limit`: bytes past which the kernel kills.

    **Raises:** `ValueError` for less than two readings.

    >>> saves_left([32 * 2**30, 48 * 2**30, 64 * 2**30], limit=100 * 2**30)
    Growth(per_save=17179869184, left=2, crosses=3)
    """
    count = len(anon_after_each_save)
    if count < 2:
        raise ValueError(
            f"saves_left got {count} readings. Expected at least two, each the bytes held after a save. "
            "Fix: call it again after the next save."
        )
    middle, mean = Fraction(count - 1, 2), Fraction(sum(anon_after_each_save), count)
    together = sum(((i - middle) * (held - mean) for i, held in enumerate(anon_after_each_save)), Fraction(0))
    slope = together / sum(((i - middle) ** 2 for i in range(count)), Fraction(0))
    if slope <= 0:
        return Growth(round(slope), None, None)
    left = max(0, (limit - anon_after_each_save[-1]) // slope)
    return Growth(round(slope), left, left + 1)
