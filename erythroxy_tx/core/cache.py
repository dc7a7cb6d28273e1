"""The one home of state: compiled programs, counts and resident arrays, kept for as long as the object
that they belong to lives. Wrappers themselves hold none, so wrapping the same function again finds the
same programs. Not here: what is kept.
"""

import functools
import threading
import weakref
from collections.abc import Callable
from collections.abc import Hashable
from typing import Any
from typing import TypeVar

T = TypeVar("T")

_LOCK = threading.RLock()
_HOMES: dict[int, tuple[weakref.ref, dict[Hashable, Any]]] = {}
_SHORTCUTS: dict[int, tuple[weakref.ref, frozenset[str]]] = {}


def home(owner: Any) -> dict[Hashable, Any]:
    """What is kept for one object, found by identity: objects that cannot be hashed have a home too.

    **Raises:** `TypeError` if the object cannot be weakly referenced: its state could not be freed.
    """
    key = id(owner)
    found = _HOMES.get(key)
    if found is not None and found[0]() is owner:
        return found[1]
    if not type(owner).__weakrefoffset__:
        raise TypeError(
            f"{owner!r} is of type {type(owner).__name__}, which cannot be referenced weakly: what is kept for it "
            "could never be freed. Expected a Python function or an object with a __weakref__ slot. Fix: wrap it, as "
            "in lambda *args: f(*args)."
        )
    with _LOCK:
        found = _HOMES.get(key)
        if found is None or found[0]() is not owner:
            found = _HOMES[key] = weakref.ref(owner, functools.partial(_leave, _HOMES, key)), {}
        return found[1]


def keep(owner: Any, key: Hashable, build: Callable[[], T]) -> T:
    """The value kept for `owner` under `key`, built on first use. It must not hold `owner` strongly."""
    kept = home(owner)
    if key not in kept:
        kept.setdefault(key, build())  # or of another thread, which was quicker
    return kept[key]


def shortcut(wrapper: Any, names: frozenset[str]) -> None:
    """Say that a wrapper remembers what it found here, in its attributes `names`."""
    key = id(wrapper)
    _SHORTCUTS[key] = weakref.ref(wrapper, functools.partial(_leave, _SHORTCUTS, key)), names


def clear() -> None:
    """Forget everything: the next call of every wrapper traces, compiles and uploads anew.

    >>> import erythroxy_tx as tx
    >>> tx.clear()
    """
    _HOMES.clear()
    for ref, names in list(_SHORTCUTS.values()):
        if (wrapper := ref()) is not None:
            for name in names:
                vars(wrapper).pop(name, None)
    _SHORTCUTS.clear()


def _leave(table: dict[int, Any], key: int, ref: weakref.ref) -> None:
    found = table.get(key)
    if found is not None and found[0] is ref:
        del table[key]
