"""Telling that a numpy array has not changed since it was copied.

An array that owns its memory is made read-only. Something may still be able to write to it: a view that was
taken before, a base that stays writable, a buffer of another library. Where that cannot be excluded, the array
is checksummed at each use (CRC-32, which sees every change within four bytes, and any other but for one in 2^32).
Not seen are an array that is made writable, changed, and made read-only again between two uses, a write through a
view that was taken while it was so, and a write to a bare address.
"""

import weakref
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from erythroxy_tx.core.alone import alone
from erythroxy_tx.core.alone import owner_of

_LARGE = 2**26  # bytes that take longer to checksum than it takes to see that nothing else holds them
_TRIES = 5  # how often a checksummed array is looked at, to find that nothing else holds it by now

_FROZEN: weakref.WeakValueDictionary[int, "Freeze"] = weakref.WeakValueDictionary()
_LOCKED: weakref.WeakValueDictionary[int, "_Lock"] = weakref.WeakValueDictionary()


class Freeze:
    """One array that must not change for as long as this object lives. `checksum` is None where nothing can."""

    def __init__(self, array: np.ndarray):
        self.ref = weakref.ref(array)
        self.checksum: int | None = None
        self.broken: str | None = None
        owner = owner_of(array)
        self.locks = [] if owner is None else [_lock(one) for one in {id(owner): owner, id(array): array}.values()]
        self.tries = _TRIES if self.locks else 0
        self._form = _form(array)

    @property
    def may_be_alone(self) -> bool:
        """Whether a checksummed array is worth another look."""
        return self.checksum is not None and self.tries > 0

    @property
    def array(self) -> np.ndarray:
        """The array, which its user holds while this is asked."""
        array = self.ref()
        assert array is not None
        return array

    def fault(self, array: np.ndarray) -> str | None:
        """What happened to the array, or None if it is what it was. A fault is not forgotten."""
        if self.broken is None:
            self.broken = self._fault(array)
        return self.broken

    def _fault(self, array: np.ndarray) -> str | None:
        if _form(array) != self._form:
            return "was given another shape or dtype"
        for lock in self.locks:
            if lock.is_open():
                return "was made writable"
        if self.checksum is not None and _checksum(array) != self.checksum:
            return "was changed through a view, its base or another buffer"
        return None


def freeze(arrays: Iterable[np.ndarray]) -> list[Freeze]:
    """Hold arrays as they are now; the holds of one array are one object, until it is found changed.

    **Returns:** an object to keep for each: the array is writable again when the last holder drops it.
    """
    holds, new = [], []
    for array in arrays:
        hold = _FROZEN.get(id(array))
        if hold is None or hold.ref() is not array or hold.fault(array) is not None:
            hold = _FROZEN[id(array)] = Freeze(array)
            new.append(hold)
        holds.append(hold)
    pays = sum(hold.array.nbytes for hold in new) >= _LARGE
    safe = _safe(new) if pays else [_is_immutable(hold.array) for hold in new]
    for hold, is_safe in zip(new, safe, strict=True):
        if not is_safe:
            hold.checksum = _checksum(hold.array)
    return holds


def prove(holds: list[Freeze]) -> None:
    """Look again whether arrays that are checksummed are alone with their memory by now."""
    for hold, is_safe in zip(holds, _safe(holds), strict=True):
        if is_safe:
            hold.checksum = None


def _safe(holds: list[Freeze]) -> list[bool]:
    """Which arrays nothing can change: by locking them, or because their memory is immutable."""
    lockable = [hold.array for hold in holds if hold.locks]
    found = dict(zip(map(id, lockable), alone(lockable), strict=True))
    for hold in holds:
        hold.tries -= 1
    return [found.get(id(hold.array), False) or _is_immutable(hold.array) for hold in holds]


class _Lock:
    """One array that is not writable for as long as this object lives."""

    def __init__(self, array: np.ndarray):
        self.ref = weakref.ref(array)
        weakref.finalize(self, _unlock, self.ref, array.flags.writeable).atexit = False
        array.flags.writeable = False

    def is_open(self) -> bool:
        """Whether someone made it writable nevertheless."""
        array = self.ref()
        return array is not None and array.flags.writeable


def _lock(array: np.ndarray) -> _Lock:
    found = _LOCKED.get(id(array))
    if found is None or found.ref() is not array:
        found = _LOCKED[id(array)] = _Lock(array)
    array.flags.writeable = False
    return found


def _unlock(ref: weakref.ref, was_writable: bool) -> None:
    array = ref()
    if array is None or not was_writable:
        return
    if (base := array.base) is None:
        array.flags.writeable = True
    else:  # a view is made writable only while its base is
        base_is = base.flags.writeable
        base.flags.writeable = True
        array.flags.writeable = True
        base.flags.writeable = base_is


def _form(array: np.ndarray) -> tuple[Any, ...]:
    return array.shape, array.strides, array.dtype


def _checksum(array: np.ndarray) -> int:
    rows_first = array.T if array.flags.f_contiguous else array
    return zlib.crc32(np.ascontiguousarray(rows_first).reshape(-1).view(np.uint8).data)


def _is_immutable(array: np.ndarray) -> bool:
    """Whether the memory belongs to a `bytes` object, which nothing can write to."""
    base: Any = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    return isinstance(base, bytes)
