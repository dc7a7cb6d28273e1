"""Numpy arrays that a function captures: they are compiled into the program, and copied with it.
Not here: captured device arrays, which are on the device already.
"""

import inspect
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core.freeze import Freeze
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import StaleArrayError


def captured_arrays(closed: Any, fn: Callable[..., Any]) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """The numpy constants of a traced program, each with the name under which `fn` captured it and the captured
    array itself, where they are found.
    """
    for constant in _compat.all_constants(closed):
        if not isinstance(constant, (jax.Array, jax.core.Tracer, _compat.Ref)) and hasattr(constant, "dtype"):
            array = np.asarray(constant)
            found = next(((n, v) for n, v in _captures(fn, set()) if _is_same(v, array)), ("an array", None))
            yield found[0], array, found[1]


def check_captured(label: str, holds: Iterable[tuple[str, Freeze]]) -> None:
    """Refuse to serve a program of which an array that it captures has changed since it was compiled in."""
    for name, hold in holds:
        array = hold.ref()
        if array is not None and (fault := hold.fault(array)) is not None:
            raise StaleArrayError(
                f"{label} captures {name}: {shape_of(array)}, which {fault} after it was compiled in. "
                "Expected an array that stays as it is. Fix: pass it as an argument; tx.clear() compiles anew."
            )


def _is_same(value: Any, constant: np.ndarray) -> bool:
    """Whether a captured value became this constant: by its memory, or by its values where they were converted."""
    if not isinstance(value, np.ndarray) or value.shape != constant.shape or value.dtype.kind in "OSUVmM":
        return False
    return value.ctypes.data == constant.ctypes.data or np.array_equal(value.astype(constant.dtype), constant)


def _captures(fn: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Names and values that a function sees from outside, and those of the functions among them."""
    function = inspect.unwrap(fn)
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function) or id(function) in seen:
        return
    seen.add(id(function))
    found = inspect.getclosurevars(function)
    defaults = {p.name: p.default for p in inspect.signature(function).parameters.values()}
    for name, value in [*found.nonlocals.items(), *found.globals.items(), *defaults.items()]:
        yield name, value
        yield from _captures(value, seen) if callable(value) else ()
