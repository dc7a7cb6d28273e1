"""Reads of device arrays by the host, as they happen: all of them go through two slots of the array's type."""

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src.array import ArrayImpl as _ArrayImpl

# `float`, `bool`, `str`, `jax.device_get` and kin take a property. Numpy asks for a buffer first, which only Python
# 3.12 lets a program stand in the way of; before, the slot is emptied, and numpy takes the property too.
# 0.10.2, 0.12.0.
_HAS_BUFFER = sys.version_info >= (3, 12)
# Where CPython's types keep the size of their objects, and their buffer slots.
_BASIC_SIZE, _AS_BUFFER = (n * ctypes.sizeof(ctypes.c_void_p) for n in (4, 20))

ArrayImpl: Any = _ArrayImpl  # whose slots are assigned to
# The modules of JAX in which arrays are read for these. 0.10.2, 0.12.0.
READERS = {
    "jax._src.callback": "callback",
    "jax._src.debugging": "jax.debug.print",
    "jax._src.interpreters.mlir": "constant of a jit",
}
Hook = Callable[[Any, Callable[[], Any]], Any]


def stand_in_reads(hook: Hook) -> Callable[[], None]:
    """Let `hook(array, read)` do every read of an array's value on the host, of all threads; it returns `read()`.

    **Returns:** what puts everything back as it was. On Python 3.11 `memoryview(array)` fails until then.
    """
    value, dlpack = (vars(ArrayImpl)[name] for name in ("_value", "__dlpack__"))

    def shared(self: Any, **how: Any) -> Any:  # memory that numpy or another library gets without a copy
        read = functools.partial(dlpack, self, **how)
        on_host = all(device.platform == "cpu" for device in self.devices())
        from_jax = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] == "jax"
        return read() if from_jax or not on_host else hook(self, read)

    ArrayImpl._value = property(lambda self: hook(self, functools.partial(value.fget, self)))
    ArrayImpl.__dlpack__ = shared
    give_back = _stand_in_buffer(hook) if _HAS_BUFFER else _empty_buffer()

    def restore() -> None:
        ArrayImpl._value, ArrayImpl.__dlpack__ = value, dlpack
        give_back()

    return restore


def _stand_in_buffer(hook: Hook) -> Callable[[], None]:
    kept: Any = ArrayImpl.__buffer__

    def buffer(self: Any, flags: int) -> memoryview:
        return hook(self, functools.partial(kept, self, flags))

    ArrayImpl.__buffer__ = buffer

    def restore() -> None:  # to assign the slot itself restores it; to delete it would leave none
        ArrayImpl.__buffer__ = kept

    return restore


def _empty_buffer() -> Callable[[], None]:
    if ctypes.c_ssize_t.from_address(id(ArrayImpl) + _BASIC_SIZE).value != ArrayImpl.__basicsize__:
        raise RuntimeError(f"reads cannot be watched on this build of Python, {sys.version.split()[0]}.")
    slots: Any = ctypes.c_void_p.from_address(id(ArrayImpl) + _AS_BUFFER).value
    slot = ctypes.c_void_p.from_address(slots)
    kept = slot.value

    def put(value: int | None) -> None:
        slot.value = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(ArrayImpl))

    put(None)
    return functools.partial(put, kept)


@functools.cache
def check_stand_in() -> None:
    """Raise where reads cannot be seen in this Python and this JAX, before anybody relies on it."""
    with jax.transfer_guard("allow"):
        array = jax.block_until_ready(jax.device_put(np.zeros(())))
        seen: list[str] = []

        def hook(_: Any, read: Callable[[], Any]) -> Any:
            seen.append(reading)
            return read()

        restore = stand_in_reads(hook)
        try:
            reading = "float"
            float(array)
            reading = "np.asarray"
            np.asarray(array)
        finally:
            restore()
        missed = {"float", "np.asarray"} - set(seen)
        np.asarray(array)
        before = len(seen)
        float(array)
        if missed or len(seen) != before or memoryview(array).nbytes != array.nbytes:
            raise RuntimeError(
                f"tx.no_host_sync cannot watch reads with jax {jax.__version__} on Python {sys.version.split()[0]}: "
                f"{', '.join(sorted(missed)) or 'what was replaced did not come back'}. Fix: one of the versions that "
                "it was checked with, jax 0.10.2 to 0.12.0 on CPython 3.11 to 3.13."
            )


def was_read(array: Any) -> bool:
    """Whether JAX keeps the value of an array on the host, so that a read copies nothing: 0.10.2, 0.12.0."""
    return array._npy_value is not None
