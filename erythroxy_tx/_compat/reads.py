"""Reads of device arrays by the host, as they happen: all of them go through a few slots of the array's type."""

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

_CPU = 1  # as dlpack calls it
ArrayImpl: Any = _ArrayImpl  # whose slots are assigned to
# The modules of JAX in which arrays are read for these. 0.10.2, 0.12.0.
READERS = {
    "jax._src.callback": "callback",
    "jax._src.debugging": "jax.debug.print",
    "jax._src.interpreters.mlir": "constant of a jit",
}
Hook = Callable[[Any, Callable[[], Any]], Any]


@functools.cache
def _kept() -> dict[str, Any]:
    """JAX's own, as they were before anything stood in for them."""
    return {"_value": vars(ArrayImpl)["_value"], "__dlpack__": vars(ArrayImpl)["__dlpack__"]} | (
        {"__buffer__": ArrayImpl.__buffer__} if _HAS_BUFFER else {"slot": _buffer_slot().value}
    )


def stand_in_reads(hook: Hook) -> None:
    """Let `hook(array, read)` do every read of an array's value on the host, of all threads; it returns `read()`.

    On Python 3.11, `memoryview(array)` is a TypeError until `give_reads_back`.
    """
    kept = _kept()

    def shared(self: Any, **how: Any) -> Any:  # memory that numpy or another library gets
        read = functools.partial(kept["__dlpack__"], self, **how)
        asks = (how.get("dl_device") or (0,))[0] == _CPU
        to_host = asks or all(device.platform == "cpu" for device in self.devices())
        from_jax = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0] == "jax"
        return hook(self, read) if to_host and not from_jax else read()

    ArrayImpl._value = property(lambda self: hook(self, functools.partial(kept["_value"].fget, self)))
    ArrayImpl.__dlpack__ = shared
    if _HAS_BUFFER:
        ArrayImpl.__buffer__ = lambda self, flags: hook(self, functools.partial(kept["__buffer__"], self, flags))
    else:
        ArrayImpl.__bytes__ = lambda self: self.tobytes()  # or it would go by the elements
        _put_slot(None)


def give_reads_back() -> None:
    """Put JAX's own back."""
    kept = _kept()
    ArrayImpl._value, ArrayImpl.__dlpack__ = kept["_value"], kept["__dlpack__"]
    if _HAS_BUFFER:  # to assign the slot itself restores it; to delete it would leave none
        ArrayImpl.__buffer__ = kept["__buffer__"]
    else:
        _put_slot(kept["slot"])
        if "__bytes__" in vars(ArrayImpl):
            del ArrayImpl.__bytes__


def _buffer_slot() -> Any:
    if ctypes.c_ssize_t.from_address(id(ArrayImpl) + _BASIC_SIZE).value != ArrayImpl.__basicsize__:
        raise RuntimeError(f"reads cannot be watched on this build of Python, {sys.version.split()[0]}.")
    slots: Any = ctypes.c_void_p.from_address(id(ArrayImpl) + _AS_BUFFER).value
    return ctypes.c_void_p.from_address(slots)


def _put_slot(value: int | None) -> None:
    _buffer_slot().value = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(ArrayImpl))


@functools.cache
def check_stand_in() -> None:
    """Raise where reads cannot be seen in this Python and this JAX, before anybody relies on it. For one thread at a
    time, while nothing stands in.
    """
    with jax.transfer_guard("allow"):
        array = jax.block_until_ready(jax.device_put(np.zeros(())))
        seen: list[str] = []

        def hook(_: Any, read: Callable[[], Any]) -> Any:
            seen.append(reading)
            return read()

        stand_in_reads(hook)
        try:
            reading = "float"
            float(array)
            reading = "np.asarray"
            np.asarray(array)
        finally:
            give_reads_back()
        missed = {"float", "np.asarray"} - set(seen)
        np.asarray(array)
        before = len(seen)
        float(array)
        on_host = all(device.platform == "cpu" for device in array.devices())  # of whose memory alone there is a view
        if missed or len(seen) != before or (on_host and memoryview(array).nbytes != array.nbytes):
            raise RuntimeError(
                f"tx.no_host_sync cannot watch reads with jax {jax.__version__} on Python {sys.version.split()[0]}: "
                f"{', '.join(sorted(missed)) or 'what was replaced did not come back'}. Fix: one of the versions that "
                "it was checked with, jax 0.10.2 to 0.12.0 on CPython 3.11 to 3.13."
            )


def was_read(array: Any) -> bool:
    """Whether JAX keeps the value of an array on the host, so that a read copies nothing: 0.10.2, 0.12.0."""
    return array._npy_value is not None
