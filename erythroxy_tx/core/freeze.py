"""Telling that a numpy array has not changed since it was copied.

An array that owns its memory is made read-only. Something may still be able to write to it: a view that was
taken before, a base that stays writable, a buffer of another library. Where that cannot be excluded, the array
is checksummed at each use (CRC-32, which sees every change within four bytes, and any other but for one in 2^32).
The one way around is to make the array writable, change it, and make it read-only again between two uses.
"""

import dis
import gc
import inspect
import sys
import sysconfig
import types
import weakref
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_HOLDERS = (dict, list, tuple, types.CellType, types.GeneratorType)
_COUNTS_REFERENCES = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
_CALL_HOLDS_ARGUMENTS = sys.version_info < (3, 14)  # later versions lend local variables to the stack
_TRIES = 5  # how often a checksummed array is looked at again, to find that nothing else holds it by now

_LIVE: weakref.WeakValueDictionary[int, "Freeze"] = weakref.WeakValueDictionary()


class Freeze:
    """One array that must not change for as long as this object lives."""

    def __init__(self, array: np.ndarray):
        self.ref = weakref.ref(array)
        self._tries = _TRIES
        self.locked = array.flags.writeable and _owner(array) is not None
        if self.locked:
            _set_writeable(array, on=False)
            weakref.finalize(self, _unlock, self.ref).atexit = False
        self.checksum: int | None = None
        if not _is_immutable(array) and not self._is_alone(array):
            self.checksum = _checksum(array)

    def fault(self, array: np.ndarray) -> str | None:
        """What happened to the array, or None if it is what it was."""
        if self.locked and (array.flags.writeable or _owner(array).flags.writeable):  # type: ignore[union-attr]
            return "was made writable"
        if self.checksum is None:
            return None
        if _checksum(array) != self.checksum:
            return "was changed through a view, its base or another buffer"
        if self._tries and self._is_alone(array):
            self.checksum = None
        return None

    def _is_alone(self, array: np.ndarray) -> bool:
        self._tries -= 1
        owner = _owner(array)
        if owner is None or not _COUNTS_REFERENCES:
            return False
        # An owner behind a view (`np.arange(6).reshape(2, 3)`) is held by the view and by `owner` here.
        return (owner is array or sys.getrefcount(owner) <= 3) and _is_alone(array)


def _owner(array: np.ndarray) -> np.ndarray | None:
    """The array whose memory this is: itself, or the base of a view of the whole of it."""
    owner = array if array.base is None else array.base
    whole = isinstance(owner, np.ndarray) and owner.flags.owndata and owner.nbytes == array.nbytes
    return owner if whole else None


def _set_writeable(array: np.ndarray, *, on: bool) -> None:
    owner = _owner(array)
    for one in (owner, array) if on else (array, owner):  # a view is writable only if its owner is
        if one is not None:
            one.flags.writeable = on


def freeze(array: np.ndarray) -> Freeze:
    """Hold an array as it is now; the holds of one array are one object.

    **Returns:** an object to keep: the array is writable again when the last holder drops it.
    """
    found = _LIVE.get(id(array))
    if found is None or found.ref() is not array:
        found = _LIVE[id(array)] = Freeze(array)
    return found


def _unlock(ref: weakref.ref) -> None:
    if (array := ref()) is not None:
        _set_writeable(array, on=True)


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _is_immutable(array: np.ndarray) -> bool:
    """Whether the memory belongs to a `bytes` object, which nothing can write to."""
    base: Any = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    return isinstance(base, bytes)


def _is_alone(array: np.ndarray) -> bool:
    """Whether every reference to an array is accounted for by containers and variables, so that no view is.

    Each reference that is not found counts as a view: an answer of True is certain, False may be caution.
    """
    if sys.getrefcount(array) > 64:
        return False
    collecting = gc.isenabled()
    gc.disable()  # a collection stops tracking tuples of arrays: one could be counted twice
    try:
        return _unaccounted(array) <= 0
    finally:
        if collecting:
            gc.enable()


def _unaccounted(array: np.ndarray) -> int:
    variables, values = 0, []
    for own, seen in map(_variables, _frames()):
        variables += sum(value is array for value in own)
        values += [value for value in seen if type(value) in (dict, list, tuple)]
        del own, seen
    stack = int(_CALL_HOLDS_ARGUMENTS and _is_plain_argument(array))
    containers = sum(_holds(holder, array) for holder in gc.get_referrers(array)) + _in_untracked(values, array)
    argument_of_getrefcount = 1
    return sys.getrefcount(array) - variables - stack - containers - argument_of_getrefcount


def _frames() -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _variables(frame: types.FrameType) -> tuple[list[Any], list[Any]]:
    """The values that a running function's own variables hold, and all that it sees.

    Cells and generators are found as containers, and a module's variables are a dict.
    """
    code, values = frame.f_code, frame.f_locals
    seen = list(values.values())
    if not code.co_flags & inspect.CO_OPTIMIZED or code.co_flags & _GENERATORS:
        return [], seen
    cells = {*code.co_cellvars, *code.co_freevars}
    own = [values[name] for name in code.co_varnames if name in values and name not in cells]
    if isinstance(values, dict):  # before 3.13 a copy, which would keep every variable alive
        values.clear()
    return own, seen


def _in_untracked(values: list[Any], array: np.ndarray, depth: int = 3) -> int:
    """References from plain containers that the garbage collector does not track: it skips those of arrays only."""
    found, known = 0, set()
    while values and depth:
        inner = []
        for value in values:
            if id(value) not in known:
                known.add(id(value))
                items = list(value.values()) if type(value) is dict else list(value)
                found += 0 if gc.is_tracked(value) else sum(item is array for item in items)
                inner += [item for item in items if type(item) in (dict, list, tuple)]
        values, depth = inner, depth - 1
    return found


def _holds(holder: Any, array: np.ndarray) -> int:
    """1 if an object is a plain container of the array, 0 if it may be a view of it."""
    if type(holder) in _HOLDERS:
        return 1
    fields = getattr(holder, "__dict__", None)
    return int(type(fields) is dict and any(value is array for value in fields.values()))


def _is_plain_argument(array: np.ndarray) -> bool:
    """Whether the array is an argument of the user's call `f(a, b)`, whose stack then holds it once more."""
    package, inner = __name__.partition(".")[0], sys._getframe()
    for frame in _frames():
        if frame.f_globals.get("__name__", "").partition(".")[0] == package:
            inner = frame
            continue
        args, kwargs = inner.f_locals.get("args", ()), inner.f_locals.get("kwargs", {})
        opcode, count = frame.f_code.co_code[frame.f_lasti], frame.f_code.co_code[frame.f_lasti + 1]
        plain = dis.opname[opcode] == "CALL" and count == len(args) and not kwargs
        return plain and any(arg is array for arg in args)
    return False
