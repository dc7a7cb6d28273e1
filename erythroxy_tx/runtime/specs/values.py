"""Values that JSON gives back exactly as they are, and how two of them differ. Not here: the file they are in."""

import json
import math
import textwrap
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np

_FIX = "a number, str, bool, None, list or dict; of an array .item() or .tolist(), of an enum its .value, of a path str"
_LONGEST = 120  # characters of a value in a message


class Change(NamedTuple):
    """One difference. `kind` is `"changed"`, `"missing"` (there before, and not now) or `"new"`."""

    path: str
    kind: str
    before: Any
    after: Any
    name: str  # of the whole parameter, `layers` of `layers[0].width`

    @property
    def told(self) -> str:
        """In words."""
        before = "not there" if self.kind == "new" else told(self.before)
        return f"{self.path}: {before} → {'not given' if self.kind == 'missing' else told(self.after)}"


def plain(path: str, value: Any) -> Any:
    """A value as JSON gives it back: a copy, tuples as lists, scalars of numpy as numbers of Python.

    **Raises:** `TypeError` for another type, `ValueError` for NaN and infinity, with the path.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is str and json.loads(json.dumps(value)) != value:
        raise ValueError(f"tx.RunSpec got {path}={value!r}, halves of characters, which JSON joins. Expected text.")
    if type(value) in (bool, int, str, type(None)):
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"tx.RunSpec got {path}={value!r}, which JSON has not. Expected a finite number, or None.")
        return value
    if type(value) in (list, tuple):
        return [plain(f"{path}[{i}]", each) for i, each in enumerate(value)]
    if type(value) is dict and all(type(key) is str for key in value):
        return {plain(path, key): plain(f"{path}[{key!r}]", each) for key, each in value.items()}
    kind = "dict with keys that are no str" if type(value) is dict else type(value).__name__
    raise TypeError(f"tx.RunSpec got {path} of type {kind}. Expected what JSON gives back as it is. Fix: {_FIX}.")


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """How two dicts of plain values differ, at the innermost paths; 1, 1.0 and True are three values."""
    return [change for name in dict.fromkeys([*before, *after]) for change in _of_key(name, name, before, after, name)]


def told(value: Any) -> str:
    """A value in a message."""
    return textwrap.shorten(repr(value), _LONGEST, placeholder=" …")


def _differ(path: str, before: Any, after: Any, name: str) -> Iterator[Change]:
    if type(before) is dict and type(after) is dict:
        for key in dict.fromkeys([*before, *after]):
            yield from _of_key(f"{path}[{key!r}]", key, before, after, name)
    elif type(before) is list and type(after) is list and len(before) == len(after):
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differ(f"{path}[{i}]", old, new, name)
    elif json.dumps(before) != json.dumps(after):
        yield Change(path, "changed", before, after, name)


def _of_key(path: str, key: str, before: dict[str, Any], after: dict[str, Any], name: str) -> Iterator[Change]:
    if key not in after:
        yield Change(path, "missing", before[key], None, name)
    elif key not in before:
        yield Change(path, "new", None, after[key], name)
    else:
        yield from _differ(path, before[key], after[key], name)
