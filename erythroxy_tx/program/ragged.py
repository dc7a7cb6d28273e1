"""Which axes are ragged, what their lengths are called, and how long they may be: the parameters of `pad_static`, read
and refused. Not here: the arguments of a call (`pad_call.py`).
"""

import dataclasses
from typing import Any

import jax.tree_util as jtu
import numpy as np

_ROWS = "rows"  # what the one length is called where it has no name


@dataclasses.dataclass(frozen=True)
class Ragged:
    """An entry of `in_axes`: which axes are ragged, each with the name of its length."""

    axes: tuple[tuple[int, str], ...]
    given: Any = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        return repr(dict(self.given) if isinstance(self.given, tuple) else self.given)


@dataclasses.dataclass(frozen=True)
class Limits:
    """For each name of a length, the lengths that there are programs for, the shortest first."""

    names: tuple[str, ...]
    steps: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        """As they are written."""
        each = [steps[0] if len(steps) == 1 else steps for steps in self.steps]
        if len(self.names) > 1:
            return repr(dict(zip(self.names, each, strict=True)))
        return repr(each[0]) if isinstance(each[0], int) else f"buckets={each[0]}"

    @property
    def shown(self) -> tuple[str, ...]:
        """What stands for the lengths in shapes."""
        return ("n",) if len(self.names) == 1 else self.names

    def over(self, name: int, length: int) -> int | None:
        """The least that has place for a length; None if none has."""
        return next((step for step in self.steps[name] if step >= length), None)


def limits_of(max_len: Any, buckets: Any) -> Limits:
    """The limits that were given. **Raises:** `ValueError` for what are none."""
    if (max_len is None) == (buckets is None):
        raise ValueError(
            f"tx.pad_static got {'neither max_len nor buckets' if max_len is None else 'max_len and buckets'}. "
            "Expected one of them. Fix: @tx.pad_static(512) (it takes arguments; the function comes after them)."
        )
    what, given = ("max_len", max_len) if buckets is None else ("buckets", buckets)
    named = given if isinstance(given, dict) else {_ROWS: given}
    found = {}
    for name, steps in named.items():
        each = tuple(steps) if isinstance(steps, (tuple, list)) else (steps,)
        each = tuple(int(n) if isinstance(n, np.integer) else n for n in each)
        good = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in each)
        if (
            not each
            or not good
            or list(each) != sorted(set(each))
            or not (isinstance(name, str) and name.isidentifier())
        ):
            raise ValueError(
                f"tx.pad_static got {what}={given!r}. Expected an int ≥ 1"
                f"{', or for buckets several that grow' if buckets is not None else ''}; or a dict of those, by the "
                "names of lengths. Fix: @tx.pad_static(512) (it takes arguments; the function comes after them)."
            )
        found[name] = each
    return Limits(tuple(found), tuple(found.values()))


def _is_entry(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and bool(value) and all(isinstance(k, int) for k in value))


def ragged_axes(in_axes: Any, limits: Limits) -> Any:
    """`in_axes` with an entry in place of each int and each dict of axes."""

    def entry(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and len(limits.names) == 1:
            return Ragged(((value, limits.names[0]),), value)
        if isinstance(value, dict) and all(name in limits.names for name in value.values()):
            return Ragged(tuple(value.items()), tuple(value.items()))
        expected = "ints and None" if limits.names == (_ROWS,) else f"dicts of axis to one of {limits.names}, and None"
        raise ValueError(f"tx.pad_static got in_axes={in_axes!r} with {value!r} in it. Expected {expected}.")

    tree = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    return jtu.tree_map(entry, tree, is_leaf=_is_entry)


def own_arguments(what: str, given: Any, limits: Limits) -> tuple[tuple[int, str], ...]:
    """For each length that a function takes itself, its number and the name of the argument."""
    named = {limits.names[0]: given} if isinstance(given, str) and len(limits.names) == 1 else given or {}
    if not isinstance(named, dict) or not set(named) <= set(limits.names):
        raise ValueError(
            f"tx.pad_static got {what}={given!r}. Expected the name of an argument"
            f"{f', for each of {limits.names}: a dict' if len(limits.names) > 1 else ''}."
        )
    return tuple((limits.names.index(name), argument) for name, argument in named.items())
