"""Whether a numpy array is the only way to its memory, told by accounting for every reference to it.

A view holds a reference to the array that it is a view of, and nothing lists the views. But references that are no
views can be found: those of variables, of containers, and of the call that is running. Where they add up to the
reference count, there is no view. An answer of True is certain, False may be caution. Not seen is what keeps an
address and no reference (a number from `array.ctypes.data`, a copied `__array_interface__`).
"""

import gc
import inspect
import itertools
import sys
import sysconfig
import types
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import numpy as np

from erythroxy_tx.core.call_site import frames
from erythroxy_tx.core.call_site import on_the_stack
from erythroxy_tx.core.call_site import variables
from erythroxy_tx.core.instance import is_plain

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CONTAINERS = (dict, list, tuple, types.CellType)
_LENDS = ("__array_interface__", "__array_struct__")
_LEVELS = 3  # of containers inside each other that are looked into
_MANY = 64  # references to one array, past which the search is not worth its time

# Later versions lend local variables to the stack, and builds without a global lock keep two counts.
_COUNTS_REFERENCES = (
    sys.implementation.name == "cpython"
    and sys.version_info < (3, 14)
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)


def owner_of(array: np.ndarray) -> np.ndarray | None:
    """The array whose memory this is: itself, or the base of a view of the whole of it."""
    owner = array if array.base is None else array.base
    whole = isinstance(owner, np.ndarray) and owner.flags.owndata and owner.nbytes == array.nbytes
    return owner if whole else None


def alone(arrays: list[np.ndarray]) -> list[bool]:
    """Whether nothing but each array (and, for a view of the whole of it, its base) reaches its memory.

    It looks a few times at every object that the garbage collector tracks, for all arrays together: some 0.1 s.
    """
    if not _COUNTS_REFERENCES:
        return [False] * len(arrays)
    collecting = gc.isenabled()
    gc.disable()  # a collection stops tracking tuples of arrays: one could be counted twice
    try:
        counts = _counts(arrays)
        if all(count > _MANY for count in counts):
            return [False] * len(arrays)
        is_accounted = _is_accounted(arrays)
        steady = counts == _counts(arrays)  # or another thread is passing them on
    finally:
        if collecting:
            gc.enable()
    return [steady and all_found and _owns(array) for array, all_found in zip(arrays, is_accounted, strict=True)]


def _counts(arrays: list[np.ndarray]) -> list[int]:
    *counts, one = map(sys.getrefcount, [*arrays, object()])  # `one`: a reference here, and what counting adds
    return [count - one for count in counts]


def _owns(array: np.ndarray) -> bool:
    the_array_and_the_argument = 2
    return owner_of(array) is not None and (
        array.base is None or sys.getrefcount(array.base) == the_array_and_the_argument
    )


def _is_accounted(arrays: list[np.ndarray]) -> list[bool]:
    """Whether all references to each array are found and are no views. No variable here or below holds an array."""
    found = dict.fromkeys(map(id, arrays), 0)
    values: list[Any] = []
    for frame in frames():
        if frame.f_globals is globals():
            continue
        seen = variables(frame)
        _count(_own(frame.f_code, seen), found)
        values += [value for value in seen.values() if type(value) in _CONTAINERS]
        del seen
    for key in on_the_stack():
        if key in found:
            found[key] += 1
    holders = [holder for holder in gc.get_referrers(*arrays) if _holds_only(holder)]
    holders += _untracked(values)
    holders = [holder for holder in holders if _count(gc.get_referents(holder), found)]
    counts = _counts(arrays)  # while `holders` lives: the search itself leaves a tuple there
    lent = set(_lent(holders, {id(holders), id(values)}))
    return [found[key] == count and key not in lent for key, count in zip(map(id, arrays), counts, strict=True)]


def _count(values: Iterable[Any], found: dict[int, int]) -> bool:
    """Add those of the arrays that are among some values; whether there were any."""
    hits = [id(value) for value in values if id(value) in found]
    for key in hits:
        found[key] += 1
    return bool(hits)


def _own(code: types.CodeType, seen: dict[str, Any]) -> list[Any]:
    """The values of the variables that a running function itself holds.

    Cells are found as containers, and so is a module's dict. A running generator hides its own.
    """
    if not code.co_flags & inspect.CO_OPTIMIZED or code.co_flags & _GENERATORS:
        return []
    cells = {*code.co_cellvars, *code.co_freevars}
    return [seen[name] for name in code.co_varnames if name in seen and name not in cells]


def _holds_only(holder: Any) -> bool:
    """Whether an object can only hold arrays, unless it lends them."""
    kind = type(holder)
    if kind is types.GeneratorType:
        return not holder.gi_running
    return kind in _CONTAINERS or is_plain(kind)


def _lends(value: Any) -> bool:
    """Whether an object may give out the memory of an array that it holds, so that a view refers to the object."""
    kind = type(value)
    if kind is dict:
        return any(name in value for name in _LENDS)
    if kind in _CONTAINERS or kind in (types.FunctionType, types.ModuleType, types.FrameType):
        return False
    foreign = any(str(base.__module__).partition(".")[0] in ("numpy", "_ctypes") for base in kind.__mro__)
    by_class = any(name in vars(base) for base in kind.__mro__ for name in _LENDS)
    fields = getattr(value, "__dict__", None)
    return foreign or by_class or (type(fields) is dict and _lends(fields))


def _untracked(values: list[Any]) -> list[Any]:
    """Containers among some values that the garbage collector does not track, as it tracks none of arrays only."""
    found: list[Any] = []
    known: set[int] = set()
    for _ in range(_LEVELS):
        new = {id(value): value for value in values if id(value) not in known}
        known |= new.keys()
        found += [value for value in new.values() if not gc.is_tracked(value)]
        values = [inner for value in new.values() for inner in gc.get_referents(value) if type(inner) in _CONTAINERS]
    return found


def _lent(holders: list[Any], own: set[int]) -> Iterator[int]:
    """What is held, at some depth, by an object that may lend it."""
    known = {*own, *map(id, holders)}
    for holder in holders:
        if _lends(holder):
            yield from _below(holder)
    containers = [holder for holder in holders if type(holder) in _CONTAINERS and not _is_module(holder)]
    for _ in range(_LEVELS):
        if not containers:
            return
        known.add(id(containers))
        above = [value for value in gc.get_referrers(*containers) if id(value) not in known]
        known |= {id(above), *map(id, above)}
        for value in above:
            if _lends(value):
                yield from _below(value)
        containers = [value for value in above if type(value) in _CONTAINERS and not _is_module(value)]


def _below(value: Any) -> Iterator[int]:
    values = [value]
    for _ in range(_LEVELS + 1):
        inner = list(itertools.chain.from_iterable(map(gc.get_referents, values)))
        yield from map(id, inner)
        values = [value for value in inner if type(value) in _CONTAINERS]


def _is_module(value: Any) -> bool:
    return type(value) is dict and "__builtins__" in value
