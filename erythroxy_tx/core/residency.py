"""Device copies of host arrays: made once, found again by identity, dropped with the array.
Not here: the function that they are the arguments of.
"""

import collections
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from erythroxy_tx.core.captured import check_captured
from erythroxy_tx.core.freeze import Freeze
from erythroxy_tx.core.freeze import freeze
from erythroxy_tx.core.freeze import prove
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import BudgetError
from erythroxy_tx.errors import StaleArrayError
from erythroxy_tx.units import format_bytes

_SCALARS = 256  # device scalars kept, the least recently used goes first
_LOCK = threading.RLock()  # copies are shared, and two threads may be the first to use one array


@dataclasses.dataclass(frozen=True)
class Resident:
    """One host array that is on the device. `checked` arrays are checksummed at each call."""

    name: str
    value: jax.Array
    hold: Freeze

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.value.nbytes)

    @property
    def checked(self) -> bool:
        """Whether something else may be able to write to the host array."""
        return self.hold.checksum is not None

    def __repr__(self) -> str:
        how = ", checksummed at each call" if self.checked else ""
        return f"{self.name}: {shape_of(self.value)}, {self.nbytes} bytes{how}"


_SHARED: weakref.WeakValueDictionary[tuple[Any, ...], Resident] = weakref.WeakValueDictionary()


class Residency:
    """The device copies that one function uses. Copies are shared between functions."""

    def __init__(self, label: str, device: Any, budget: int | None):
        self.label, self.device, self.budget = label, device, budget
        self._up: collections.OrderedDict[int, Resident] = collections.OrderedDict()
        self._refs: dict[int, weakref.ref] = {}  # tell when a host array is freed
        self._scalars: collections.OrderedDict[Any, jax.Array] = collections.OrderedDict()
        self._is_wide = jax.config.read("jax_enable_x64")
        self._newest: list[int] = []  # what the latest call brought
        self.captured: dict[str, Freeze] = {}  # host arrays that are compiled into the program

    def place(self, leaves: Sequence[Any], names: Callable[[], list[str]]) -> list[Any]:
        """Device values for the leaves of a call: numpy arrays and numbers are looked up or copied, what is on
        the device or static stays. `names` gives each leaf's name where one is needed.
        """
        with _LOCK:
            self._follow_precision()
            arrays = {id(leaf): i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)}
            again = [
                found.hold for key in arrays if (found := self._up.get(key)) is not None and found.hold.may_be_alone
            ]
            if missing := [i for key, i in arrays.items() if not self._has(key, leaves[i])]:
                named = names()
                self._make_room([leaves[i] for i in missing], {key: (named[i], leaves[i]) for key, i in arrays.items()})
                self._upload([leaves[i] for i in missing], [named[i] for i in missing])
            self._newest = [id(leaves[i]) for i in missing]
            placed = [self._value(leaf, i, names) for i, leaf in enumerate(leaves)]
            if again:
                prove(again)
            return placed

    def entries(self) -> list[Resident]:
        """What is on the device, the least recently used first."""
        return list(self._up.values())

    def take_back(self) -> None:
        """Drop what the latest call brought."""
        with _LOCK:
            for key in self._newest:
                self._drop(key)

    def capture(self, name: str, array: np.ndarray) -> None:
        """Hold an array that the function captures: it was compiled into the program as it is now."""
        self.captured[name] = freeze([array])[0]

    def check_captured(self) -> None:
        """Refuse to serve a program whose captured arrays have changed."""
        check_captured(self.label, self.captured.items())

    def evict(self, arrays: Sequence[np.ndarray]) -> None:
        """Drop the copies of these arrays, or of all. An array is writable again when no function holds it."""
        with _LOCK:
            for key in [id(a) for a in arrays] if arrays else list(self._up):
                self._drop(key)

    def replace(self, old: np.ndarray, new: np.ndarray) -> None:
        """Swap the copy of `old` for one of `new`, dropping the old one first."""
        resident = self._up.get(id(old))
        if resident is None or resident.hold.ref() is not old:
            raise ValueError(
                f"{self.label}.replace got old={shape_of(old)}, which is not on the device. Expected one of: "
                f"{self.entries() or 'nothing is resident'}. Fix: pass the very array that was called with."
            )
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ValueError(
                f"{self.label}.replace got new={shape_of(new)} for {resident.name}: {shape_of(old)}. Expected the same "
                "shape and dtype: another one compiles again. Fix: call the function with the new array."
            )
        name = resident.name
        with _LOCK:
            if new is old:
                resident.hold.broken = "was copied again by another function"
            del resident  # or both copies would be held during the upload
            self._drop(id(old))
            self._upload([new], [name])

    # ------------------------------------------------------------------

    def _upload(self, arrays: list[np.ndarray], names: list[str]) -> None:
        """Copy host arrays to the device and keep each copy for as long as its array lives."""
        for array, name in zip(arrays, names, strict=True):
            check_array(self.label, name, array)
        holds = freeze(arrays)  # before the copy: a change in between is then seen as one
        for array, name, hold in zip(arrays, names, holds, strict=True):
            key = (id(array), self.device, self._is_wide)
            resident = _SHARED.get(key)
            if resident is None or resident.hold is not hold:
                resident = _SHARED[key] = Resident(name, _copy_to_device(array, self.device), hold)
            self._up[id(array)] = resident
            self._refs[id(array)] = weakref.ref(array, functools.partial(_freed, weakref.ref(self), id(array)))

    def _follow_precision(self) -> None:
        """Copies and scalars that were made with or without 64-bit types do not serve the other way."""
        if jax.config.read("jax_enable_x64") != self._is_wide:
            self._is_wide = jax.config.read("jax_enable_x64")
            self._up.clear()
            self._refs.clear()
            self._scalars.clear()

    def _has(self, key: int, array: np.ndarray) -> bool:
        found = self._up.get(key)
        return found is not None and found.hold.ref() is array

    def _drop(self, key: int) -> None:
        self._up.pop(key, None)
        self._refs.pop(key, None)

    def _value(self, leaf: Any, position: int, names: Callable[[], list[str]]) -> Any:
        if isinstance(leaf, np.ndarray):
            resident = self._up[id(leaf)]
            if (fault := resident.hold.fault(leaf)) is not None:
                raise StaleArrayError(
                    f"{self.label} got {names()[position]}: {shape_of(leaf)}, which {fault} after it was copied to the "
                    "device. Expected an array that stays as it is. Fix: .replace(array, array) copies it again; a new "
                    "array has its own copy; .evict(array) drops it."
                )
            self._up.move_to_end(id(leaf))
            return resident.value
        if isinstance(leaf, (bool, int, float, complex, np.generic)):
            return self._scalar(leaf, position, names)
        return leaf

    def _scalar(self, number: Any, position: int, names: Callable[[], list[str]]) -> jax.Array:
        """A device scalar with the weak type that the number has under `jax.jit`."""
        key = (type(number), repr(number))  # repr tells 0.0 from -0.0, and 1 from True
        if key not in self._scalars:
            if isinstance(number, np.generic):
                check_array(self.label, names()[position], np.asarray(number))
            with jax.transfer_guard_host_to_device("allow"):
                try:
                    self._scalars[key] = jax.device_put(jnp.asarray(number), self.device)
                except OverflowError as error:
                    raise OverflowError(
                        f"{self.label} got {names()[position]}={number}, which does not fit the device's int32. Fix: a "
                        "float, a smaller number, or jax.config.update('jax_enable_x64', True)."
                    ) from error
        self._scalars.move_to_end(key)
        if len(self._scalars) > _SCALARS:
            self._scalars.popitem(last=False)
        return self._scalars[key]

    def _make_room(self, new: list[np.ndarray], used: dict[int, tuple[str, np.ndarray]]) -> None:
        """Evict the least recently used copies that this call does not use, before anything is uploaded."""
        if self.budget is None:
            return
        needed = sum(a.size * jax.dtypes.canonicalize_dtype(a.dtype).itemsize for a in new)
        kept = sum(r.nbytes for key, r in list(self._up.items()) if key in used)
        if needed + kept > self.budget:
            told = ", ".join(f"{name}: {shape_of(array)}" for name, array in used.values())
            raise BudgetError(
                f"{self.label} got budget={format_bytes(self.budget)}; one call needs {format_bytes(needed + kept)} on "
                f"the device ({told}). Expected a call's arrays to fit. Fix: a larger budget, or fewer rows a call."
            )
        for key in [k for k in list(self._up) if k not in used]:
            if needed + sum(r.nbytes for r in self.entries()) <= self.budget:
                return
            self._drop(key)


def _freed(residency: weakref.ref[Residency], key: int, _: weakref.ref) -> None:
    if (found := residency()) is not None:
        found._drop(key)


def check_array(label: str, name: str, array: np.ndarray) -> None:
    """Refuse what would change on the way: a mask, an object, an integer that does not fit."""
    is_number = array.dtype == np.bool_ or jnp.issubdtype(array.dtype, np.number)
    if isinstance(array, np.ma.MaskedArray) or not is_number or array.dtype.kind == "m":
        raise TypeError(
            f"{label} got {name}: {type(array).__name__} of dtype {array.dtype}, which has no device form. Expected a "
            "plain array of numbers. Fix: fill the mask, or convert it, before the call."
        )
    kind = jax.dtypes.canonicalize_dtype(array.dtype)
    if kind != array.dtype and array.dtype.kind in "iu" and array.size:
        low, high = int(array.min()), int(array.max())
        if low < np.iinfo(kind).min or high > np.iinfo(kind).max:
            raise OverflowError(
                f"{label} got {name}: {shape_of(array)} with values from {low} to {high}, which do not fit {kind}: on "
                "the device they would wrap. Fix: subtract an offset, or jax.config.update('jax_enable_x64', True)."
            )


def _copy_to_device(array: np.ndarray, device: Any) -> jax.Array:
    """A device array whose memory the host array does not share."""
    on: set[Any] = device.device_set if isinstance(device, jax.sharding.Sharding) else {device or jax.devices()[0]}
    if any(one.platform == "cpu" for one in on):  # device_put may hand out the very buffer: it gets a private one
        array = np.array(array, dtype=jax.dtypes.canonicalize_dtype(array.dtype), copy=True, order="C", subok=False)
    with jax.transfer_guard_host_to_device("allow"):
        return jax.block_until_ready(jax.device_put(array, device))
