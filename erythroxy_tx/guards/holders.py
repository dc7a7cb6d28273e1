"""Who holds host memory: arrays of JAX and of numpy, compiled programs, lines that allocate. A look, and what came in
between two of them. Not here: how much the process holds as a whole (`growth.py`).
"""

import functools
import gc
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from erythroxy_tx.core.call_site import frames
from erythroxy_tx.core.call_site import is_library
from erythroxy_tx.core.call_site import variables
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.units import format_bytes

_PATIENCE = 0.5  # seconds for the search of arrays of numpy
_AT_ONCE = 20_000  # objects whose contents are asked for
_SHOWN = 3
_LEAST = 64 * 2**10  # bytes of a kind of array that is worth a word
_LOCK = threading.Lock()
_PROGRAMS = {"compiled": 0}  # since the first look


class Kind(NamedTuple):
    """Arrays of one kind: how many, and their bytes together."""

    number: int
    nbytes: int


class Holders(NamedTuple):
    """One look. `numpy` is None where the search took too long, `lines` where `tracemalloc` is not started."""

    jax: dict[str, Kind]
    numpy: dict[str, Kind] | None
    programs: int
    lines: dict[str, int] | None


class Came(NamedTuple):
    """What came between two looks: bytes of arrays, programs, and lines of text."""

    jax: int
    numpy: int
    programs: int
    told: list[str]


def holders() -> Holders:
    """Look now, which takes some tens of milliseconds."""
    return Holders(_kinds(arrays_on_cpu()), _of_numpy(), _programs(), _lines())


def came(before: Holders, now: Holders) -> Came:
    """The difference, the largest first."""
    told, sums = [], {}
    for name, old, new in (("jax arrays on the CPU", before.jax, now.jax), ("numpy arrays", before.numpy, now.numpy)):
        if old is None or new is None:
            told.append(f"{name}: not counted, as there are too many objects")
            continue
        grown = {kind: Kind(*(b - a for a, b in zip(old.get(kind, (0, 0)), new[kind], strict=True))) for kind in new}
        gone = sum(nbytes for kind, (_, nbytes) in old.items() if kind not in new)
        sums[name] = sum(kind.nbytes for kind in grown.values()) - gone
        largest = sorted((item for item in grown.items() if item[1].nbytes >= _LEAST), key=lambda item: -item[1].nbytes)
        if largest:
            some = ", ".join(f"{k.number:+} of {n}, {format_bytes(k.nbytes)}" for n, k in largest[:_SHOWN])
            more = f", and of {len(largest) - _SHOWN} more" if len(largest) > _SHOWN else ""
            told.append(f"{name}: {signed(sums[name])}: {some}{more}")
    programs = now.programs - before.programs
    if programs:
        told.append(f"compiled: {programs} program{'s' * (programs != 1)}")
    if before.lines is not None and now.lines is not None:
        rises = Counter({line: nbytes - before.lines.get(line, 0) for line, nbytes in now.lines.items()})
        told += [f"allocated at {line}: {signed(size)}" for line, size in rises.most_common(_SHOWN) if size > 0]
    return Came(sums.get("jax arrays on the CPU", 0), sums.get("numpy arrays", 0), programs, told)


def signed(nbytes: int) -> str:
    """A difference of bytes for a person."""
    return f"{'-' if nbytes < 0 else '+'}{format_bytes(abs(nbytes))}"


def arrays_on_cpu() -> list[jax.Array]:
    """The live arrays of JAX in the memory of the host."""
    try:
        return [array for array in jax.live_arrays("cpu") if not array.is_deleted()]
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return []


def _kinds(arrays: list[Any]) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for array in arrays:
        number, nbytes = found.get(name := shape_of(array), (0, 0))
        found[name] = Kind(number + 1, nbytes + _nbytes(array))
    return found


def _nbytes(array: Any) -> int:
    if not isinstance(array, jax.Array):
        return int(array.nbytes)
    sharding = array.sharding
    return int(np.prod(sharding.shard_shape(array.shape))) * array.dtype.itemsize * len(sharding.addressable_devices)


def _of_numpy() -> dict[str, Kind] | None:
    """Arrays that own their memory and are in a variable of a running function, or in what the collector knows."""
    until = time.perf_counter() + _PATIENCE
    seen: dict[int, np.ndarray] = {}
    for frame in frames():
        if not is_library(frame):
            seen.update(_owners(variables(frame).values()))
    objects: list[Any] = gc.get_objects()
    for batch in _batches(objects):
        seen.update(_owners(gc.get_referents(*batch)))
        if time.perf_counter() > until:
            return None
    return _kinds(list(seen.values()))


def _batches(objects: list[Any]) -> Iterator[list[Any]]:
    for begin in range(0, len(objects), _AT_ONCE):
        yield objects[begin : begin + _AT_ONCE]


def _owners(values: Iterable[Any]) -> Iterator[tuple[int, np.ndarray]]:
    """The arrays that own the memory of those among some values, by their id."""
    for value in values:
        if issubclass(type(value), np.ndarray):  # `isinstance` would ask proxies, which may do anything
            array = value
            while issubclass(type(array.base), np.ndarray):
                array = array.base
            if array.flags.owndata:
                yield id(array), array


def _lines() -> dict[str, int] | None:
    if not tracemalloc.is_tracing():
        return None
    found = tracemalloc.take_snapshot().statistics("lineno")
    return {f"{each.traceback[0].filename}:{each.traceback[0].lineno}": each.size for each in found}


def _programs() -> int:
    _listen()
    return _PROGRAMS["compiled"]


@functools.cache
def _listen() -> None:
    jax.monitoring.register_event_duration_secs_listener(_count)


def _count(event: str, duration_secs: float, **_: str | int) -> None:  # noqa: ARG001  # as JAX calls it
    if event == "/jax/core/compile/backend_compile_duration":
        with _LOCK:
            _PROGRAMS["compiled"] += 1
