"""The last rows of some metrics in arrays of one size, and what is reduced over them: functions of arrays, which run
on the device and inside of traces. Not here: names, the host, and what is refused (`metrics.py`).
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

_BLOCK = 64
_BYTES = 2**20
NEVER = np.uint32(2**32 - 1)
Struct = tuple[tuple[int, ...], np.dtype]


class Plan(NamedTuple):
    """What the arrays of a ring are made for."""

    structs: tuple[Struct, ...]  # of one row
    capacity: int
    block: int  # rows that are written at once
    is_watched: bool  # for NaN
    has_totals: bool  # over all rows that ever came, not only those that are held


def plan_of(structs: tuple[Struct, ...], size: int | None, check_nan: int | None) -> Plan:
    """The ring for so many steps, or, without a size, for a part of them that takes a megabyte at most."""
    row = max(1, sum(math.prod(shape) * dtype.itemsize for shape, dtype in structs))
    block = max(1, min(_BLOCK, size or _BLOCK, _BYTES // row))
    if check_nan is not None:  # about a divisor of it, so that a check seldom finds a block that is not full
        block = math.ceil(check_nan / math.ceil(check_nan / block))
    capacity = size or block * max(1, min(_BLOCK, _BYTES // (block * row)))
    return Plan(structs, capacity, block, check_nan is not None, size is None)


class Ring(NamedTuple):
    """Rows, and where the next one goes."""

    rows: tuple[jax.Array, ...]  # [capacity, ...] of each metric
    at: jax.Array
    steps: jax.Array  # how many came in all; NEVER for more
    bad: jax.Array | None  # of each metric the first step that was NaN or infinite, or NEVER
    totals: tuple[Any, ...]  # of each metric sum, what that lost by rounding, minimum, maximum


@functools.partial(jax.jit, static_argnums=0)
def empty(plan: Plan) -> Ring:
    """A ring to which nothing was appended."""
    rows = tuple(jnp.full((plan.capacity, *shape), _none(dtype), dtype) for shape, dtype in plan.structs)
    bad = jnp.full(len(rows), NEVER, jnp.uint32) if plan.is_watched else None
    totals = tuple(
        (*(jnp.zeros(shape, _wide(dtype)) for _ in range(2)), *(jnp.full(shape, each, dtype) for each in _ends(dtype)))
        for shape, dtype in plan.structs
    )
    return Ring(rows, jnp.int32(0), jnp.uint32(0), bad, totals if plan.has_totals else ())


@functools.partial(jax.jit, static_argnums=0)
def numbers(count: int) -> tuple[jax.Array, ...]:
    """0 … count as arrays of the device, which nobody has to upload."""
    return tuple(jnp.int32(n) for n in range(count + 1))


def without_faults(ring: Ring, bad: np.ndarray) -> Ring:
    """The ring, with no memory of a step that was NaN or infinite."""
    assert ring.bad is not None
    return ring._replace(bad=jax.device_put(np.full_like(bad, NEVER), place_of((ring.bad,))))


def append_row(ring: Ring, row: tuple[jax.Array, ...]) -> Ring:
    """One row more, where it is traced."""
    rows = tuple(lax.dynamic_update_index_in_dim(old, new, ring.at, 0) for old, new in zip(ring.rows, row, strict=True))
    block = tuple(new[None] for new in row)
    return _moved(ring, rows, block, jnp.int32(1))


def append_block(ring: Ring, block: tuple[tuple[jax.Array, ...], ...], count: jax.Array) -> Ring:
    """The first `count` rows of a block of a fixed length, which is at most the capacity."""
    stacked = tuple(map(jnp.stack, zip(*block, strict=True)))
    capacity, order = len(ring.rows[0]), jnp.arange(len(block), dtype=jnp.int32)
    index = jnp.where(order < count, (ring.at + order) % capacity, capacity)
    rows = tuple(old.at[index].set(new, mode="drop") for old, new in zip(ring.rows, stacked, strict=True))
    return _moved(ring, rows, stacked, count)


def _moved(ring: Ring, rows: tuple, block: tuple[jax.Array, ...], count: jax.Array) -> Ring:
    came = count.astype(jnp.uint32)
    steps = ring.steps + jnp.minimum(came, NEVER - ring.steps)
    bad = (
        None if ring.bad is None else jnp.minimum(ring.bad, jnp.stack([_first_bad(ring, new, count) for new in block]))
    )
    totals = tuple(_added(old, new, count) for old, new in zip(ring.totals, block)) if ring.totals else ()  # noqa: B905
    return Ring(rows, (ring.at + count) % len(rows[0]), steps, bad, totals)


def _first_bad(ring: Ring, block: jax.Array, count: jax.Array) -> jax.Array:
    if not jnp.issubdtype(block.dtype, jnp.floating):
        return jnp.uint32(NEVER)
    is_bad = ~jnp.isfinite(block).all(tuple(range(1, block.ndim))) & _held(block, count, whole=False)
    step = jnp.minimum(ring.steps, NEVER - 1 - len(block)) + jnp.argmax(is_bad).astype(jnp.uint32)
    return jnp.where(is_bad.any(), step, NEVER)


def _added(totals: tuple, block: jax.Array, count: jax.Array) -> tuple:
    """The totals with those of a block, and what the sum loses by rounding (Knuth's two-sum)."""
    total, lost, low, high = totals
    new, least, most = (reduce(block, count) for reduce in (_sum, _min, _max))
    found = total + new
    part = found - total
    error = (total - (found - part)) + (new - part)
    return found, lost + jnp.where(jnp.isfinite(error), error, 0), jnp.minimum(low, least), jnp.maximum(high, most)


class Writer:
    """The program that writes a block. A compiled one: it takes weak types and committed arrays as well as others."""

    def __init__(self, ring: Ring, row: tuple[jax.Array, ...], block: int) -> None:
        self.block, self.capacity, place = block, len(ring.rows[0]), place_of((*ring.rows, *row))
        self._places = [leaf.sharding for leaf in row]
        self._counts = jax.device_put(numbers(block), place)
        jitted = jax.jit(append_block, **({} if place is None else {"out_shardings": place}))
        with jax.disable_jit(False):  # noqa: FBT003
            self._program = jitted.lower(ring, (row,) * block, self._counts[0]).compile()

    def fault(self, row: tuple[jax.Array, ...], names: tuple[str, ...]) -> str | None:
        """Why a row cannot be written, if it cannot."""
        for name, leaf, place in zip(names, row, self._places, strict=True):
            if leaf.is_deleted():
                return (
                    f"tx.MetricBuffer got {name}, which was deleted after it was appended. Expected arrays that stay "
                    "until they are written. The row is left out. Fix: no donation of what holds it, or append "
                    "jnp.copy of it."
                )
            if leaf.sharding != place and not leaf.sharding.is_equivalent_to(place, leaf.ndim):
                return (
                    f"tx.MetricBuffer got {name} on {leaf.sharding}, and before on {place}. Expected all rows in one "
                    "place. The row is left out. Fix: jax.device_put, or a buffer for each place."
                )
        return None

    def write(self, ring: Ring, rows: list[tuple[jax.Array, ...]]) -> Ring:
        """The ring with some rows more, at most a block."""
        block = rows + [rows[-1]] * (self.block - len(rows))
        with jax.disable_jit(False):  # noqa: FBT003
            return self._program(ring, tuple(block), self._counts[len(rows)])


def place_of(row: tuple[jax.Array, ...]) -> Any:
    """Where the arrays of a buffer belong: where the metrics are held, in whole on each of several devices."""
    for leaf in row:
        if isinstance(leaf, jax.Array) and leaf.committed:  # numpy's are in a buffer that was fetched
            sharding = leaf.sharding
            return NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else sharding
    return None


# ------------------------------------------------------------------ what is read


@functools.partial(jax.jit, static_argnames="kind")
def statistic(ring: Ring, kind: str) -> tuple[jax.Array, ...]:
    """`last`, `mean`, `min` or `max` of each metric: of all rows that came where there are totals, or of those held."""
    held = jnp.minimum(ring.steps, len(ring.rows[0])).astype(jnp.int32)
    if kind == "last":
        return tuple(rows[ring.at - 1] for rows in ring.rows)
    if kind == "mean" and ring.totals:
        return tuple((total + lost) / ring.steps.astype(total.dtype) for total, lost, _, _ in ring.totals)
    if kind == "mean":
        sums = [_sum(rows, held) for rows in ring.rows]
        return tuple(total / held.astype(total.dtype) for total in sums)
    if ring.totals:
        found = [totals[2 if kind == "min" else 3] for totals in ring.totals]
    else:
        found = [(_min if kind == "min" else _max)(rows, held) for rows in ring.rows]
    return tuple(jnp.where(ring.steps == 0, _none(each.dtype), each) for each in found)


def _held(rows: jax.Array, count: jax.Array, *, whole: bool = True) -> jax.Array:
    mask = jnp.arange(len(rows)) < count
    return mask.reshape(-1, *[1] * (rows.ndim - 1)) if whole else mask


def _sum(rows: jax.Array, count: jax.Array) -> jax.Array:
    return jnp.where(_held(rows, count), rows.astype(_wide(rows.dtype)), 0).sum(0)


def _min(rows: jax.Array, count: jax.Array) -> jax.Array:
    return jnp.where(_held(rows, count), rows, _ends(rows.dtype)[0]).min(0)


def _max(rows: jax.Array, count: jax.Array) -> jax.Array:
    return jnp.where(_held(rows, count), rows, _ends(rows.dtype)[1]).max(0)


def _wide(dtype: Any) -> Any:
    """What a mean is taken in: at least 32 bits, and no integers, which wrap."""
    return jnp.float64 if np.dtype(dtype).itemsize == 8 else jnp.float32


def _none(dtype: Any) -> Any:
    """What there is where nothing came."""
    return np.asarray(np.nan if jnp.issubdtype(dtype, jnp.floating) else 0, dtype)


def _ends(dtype: Any) -> tuple[Any, Any]:
    """The largest number and the smallest."""
    if jnp.issubdtype(dtype, jnp.floating):
        ends = np.inf, -np.inf
    elif np.dtype(dtype).kind == "b":
        ends = 1, 0
    else:
        ends = jnp.iinfo(dtype).max, jnp.iinfo(dtype).min
    return np.asarray(ends[0], dtype), np.asarray(ends[1], dtype)
