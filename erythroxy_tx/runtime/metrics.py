"""`MetricBuffer`: the metrics of a loop, kept on the device until somebody reads them. Not here: the arrays that they
are kept in (`buffers/ring.py`).
"""

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core import cache
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.runtime.buffers import ring as rings
from erythroxy_tx.runtime.buffers.alone import alone
from erythroxy_tx.runtime.buffers.ring import NEVER
from erythroxy_tx.runtime.buffers.ring import Plan
from erythroxy_tx.runtime.buffers.ring import Ring
from erythroxy_tx.runtime.buffers.ring import Writer
from erythroxy_tx.runtime.buffers.ring import place_of
from erythroxy_tx.runtime.buffers.ring import plan_of
from erythroxy_tx.runtime.buffers.row import CALL
from erythroxy_tx.runtime.buffers.row import Form
from erythroxy_tx.runtime.buffers.row import form_of

_NONE: Any = object()


@jtu.register_pytree_with_keys_class
class MetricBuffer:
    """Metrics that stay on the device, appended at each step without a transfer and read with one::

        b.append(x₀), …, b.append(xₙ₋₁)   ⇒   b.numpy() = x₀ … xₙ₋₁, the last `size` of them, oldest first

    An append keeps what it is given, and writes each 64 rows to the device with one program, which is compiled by the
    first. Nothing is traced or compiled after that but what a first reading of each kind, `mean` or `last`, takes.

    Inside of `jit`, `scan`, `while_loop` and kin a buffer is part of what is passed in and returned: a pytree, whose
    `append` changes the object that the traced function got. There it needs a `size`, and in the carry of a loop
    `like=` or a first append as well, for the carry keeps its structure.

    **Arguments:**

    - `size`: how many steps are held, of which the last stay; None to hold all.
    - `like`: one row, with arrays, Python numbers or `jax.ShapeDtypeStruct`s, of which shapes and dtypes count. Without
        it the first append says.
    - `check_nan`: at each k-th append on the host look whether anything since was NaN or infinite: one sync. What is
        appended inside of a trace is marked there, and looked at by `check()` and by what reads to the host.

    **Raises:** `TypeError` for a row that is not like the first, with names, and for values that are not on the device;
    `TransformOrderError` for an append inside of a trace to a buffer of outside, or to one without a `size`;
    `FloatingPointError`, with `check_nan`, naming metric and step, once: the next reading gives what is there.

    >>> import jax.numpy as jnp, erythroxy_tx as tx
    >>> metrics = tx.MetricBuffer(3)
    >>> for loss in jnp.arange(5.0):
    ...     metrics.append(loss=loss)
    >>> metrics.dict(), metrics.steps, len(metrics)
    ({'loss': [2.0, 3.0, 4.0]}, 5, 3)
    >>> metrics.mean()
    {'loss': Array(3., dtype=float32)}
    """

    def __init__(self, size: int | None = None, *, like: Any = None, check_nan: int | None = None) -> None:
        for name, value in (("size", size), ("check_nan", check_nan)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31):
                raise ValueError(f"{CALL} got {name}={value!r}. Expected None or a number of steps, a Python int ≥ 1.")
        self._size, self._check_nan = size, check_nan
        self._form = None if like is None else form_of(like)
        self._ring: Ring | None = None
        self._full: tuple[tuple[jax.Array, ...], ...] = ()  # without a size: rings that were filled
        self._written: int | None = 0  # None where only the device knows
        self._start()
        if size is not None and like is not None:
            self._made()  # a carry has its arrays from the beginning

    def _start(self) -> None:
        self._pending: list[tuple[jax.Array, ...]] = []
        self._unchecked = 0
        self._writer: Writer | None = None
        self._trace = weakref.ref(_compat.current_trace.value)

    def __repr__(self) -> str:
        metrics = "nothing yet" if self._form is None else ", ".join(self._form.told())
        return f"{CALL}({'' if self._size is None else f'size={self._size}: '}{metrics})"

    # ------------------------------------------------------------------ append

    @alone
    def append(self, tree: Any = _NONE, /, **named: Any) -> None:
        """Append one step.

        **Arguments:** a pytree of real arrays, or metrics by name. On the host they are arrays of JAX, and none is
        read; Python numbers and numpy arrays are refused: each would be a transfer. Inside of a trace, what JAX takes.
        """
        if (tree is _NONE) != bool(named):
            raise TypeError(
                f"{CALL}.append got {'both' if named else 'nothing'}. Expected a pytree, or metrics by name."
            )
        tree = named or tree
        trace = _compat.current_trace.value
        if self._trace() is not trace:
            raise TransformOrderError(
                f"{CALL}.append was called inside of a trace (jit, scan, vmap, grad) on a buffer from outside of it, "
                "into which tracers would leak. Expected one that the traced function gets and returns. Fix: def "
                "step(state, metrics): …; metrics.append(loss=loss); return state, metrics. Out of grad, return what "
                "to append, with has_aux=True."
            )
        (self._append_on_host if trace is _compat.eager_trace else self._append_traced)(tree)

    def _append_on_host(self, tree: Any) -> None:
        leaves, treedef = jtu.tree_flatten(tree)
        if self._form is None or not self._form.is_of(leaves, treedef):
            self._form = form_of(tree, like=self._form, on_host=True)
        row = tuple(leaves)
        if self._writer is None:
            self._writer = self._find_writer(row)
        self._flush_if_due()  # what an interrupt may have left
        self._pending.append(row)
        self._flush_if_due()
        self._unchecked += 1
        if self._unchecked == self._check_nan:
            self.check()

    def _append_traced(self, tree: Any) -> None:
        if self._size is None:
            raise TransformOrderError(
                f"{CALL}.append was called inside of a trace on a buffer that grows, where no shape can. Expected a "
                "size. Fix: tx.MetricBuffer(size=the number of steps)."
            )
        self._form = form_of(tree, like=self._form)
        row = tuple(jnp.asarray(leaf) for leaf in jtu.tree_leaves(tree))
        self._ring, self._written = rings.append_row(self._unbatched(), row), None

    def _plan(self) -> Plan:
        return plan_of(self._shaped().structs, self._size, self._check_nan)

    def _made(self) -> Ring:
        if self._ring is None:
            self._ring = rings.empty(self._plan())
        return self._ring

    def _find_writer(self, row: tuple[jax.Array, ...]) -> Writer:
        ring = self._unbatched()
        self._ring = ring = jax.device_put(ring, place_of((*jax.tree.leaves(ring), *row)))
        plan, leaves = self._plan(), jax.tree.leaves((ring, row))
        key = plan, tuple((leaf.sharding, leaf.committed) for leaf in leaves)
        return cache.keep(rings.append_block, key, lambda: Writer(ring, row, plan.block))

    def _flush_if_due(self) -> None:
        """Write a whole block, or what fills the last of a part."""
        writer = self._writer
        if self._pending and writer is not None:
            ends_part = self._size is None and self._known_steps() % writer.capacity == 0
            if ends_part or len(self._pending) == writer.block:
                self._flush()

    def _flush(self) -> None:
        if not self._pending or self._writer is None:
            return
        faults = [self._writer.fault(row, self._shaped().names) for row in self._pending]
        if told := next(filter(None, faults), None):  # the others stay, to be read
            self._pending = [row for row, fault in zip(self._pending, faults, strict=True) if fault is None]
            raise RuntimeError(told)
        ring, full = self._writer.write(self._made(), self._pending), self._full
        written = None if self._written is None else self._written + len(self._pending)
        if self._size is None and self._known_steps() % self._writer.capacity == 0:
            full = *full, ring.rows
        # All at once: an interrupt between would lose rows.
        self._ring, self._full, self._written, self._pending = ring, full, written, []

    # ------------------------------------------------------------------ read on the device

    def last(self) -> Any:
        """The last row, on the device."""
        return self._statistic("last")

    def mean(self) -> Any:
        """The mean over the steps that are held, of each metric, on the device: float32, or float64 of 64 bits."""
        return self._statistic("mean")

    def min(self) -> Any:
        """The minimum over the steps that are held, of each metric, on the device; NaN where one is."""
        return self._statistic("min")

    def max(self) -> Any:
        """The maximum over the steps that are held, of each metric, on the device; NaN where one is."""
        return self._statistic("max")

    @alone
    def _statistic(self, kind: str) -> Any:
        self._refuse_stale()
        treedef = self._shaped().treedef
        if kind == "last" and self._pending:
            return treedef.unflatten(self._pending[-1])
        self._flush()
        return treedef.unflatten(rings.statistic(self._unbatched(), kind=kind))

    def _shaped(self) -> Form:
        if self._form is None:
            raise ValueError(f"{CALL} has no metrics: nothing was appended. Expected a first append, or like=.")
        return self._form

    def _refuse_stale(self) -> None:
        if self._trace() is _compat.eager_trace and _compat.inside_staging():
            raise TransformOrderError(
                f"{CALL} was read inside of a trace (jit, scan), but is from outside: what it holds now would be "
                "compiled in. Expected a buffer that the traced function gets. Fix: make it an argument."
            )

    def _unbatched(self) -> Ring:
        ring = self._made()
        if ring.at.shape:
            raise ValueError(
                f"{CALL} holds a batch of {ring.at.shape} buffers, out of vmap. Expected one. Fix: "
                "jax.tree.map(lambda leaf: leaf[0], buffer)."
            )
        return ring

    @property
    @alone
    def steps(self) -> Any:
        """How many were appended in all. What came out of a compiled function is asked once, a sync."""
        self._refuse_stale()
        is_traced = self._ring is not None and isinstance(self._ring.steps, jax.core.Tracer)
        return self._made().steps if is_traced else self._known_steps()

    def _known_steps(self) -> int:
        if self._written is None:
            self._written = int(self._fetched(self._unbatched().steps))
        return self._written + len(self._pending)

    @alone
    def __len__(self) -> int:
        self._refuse_stale()
        steps = self._known_steps()
        return min(steps, self._size or steps)

    # ------------------------------------------------------------------ read to the host

    def numpy(self) -> Any:
        """All rows that are held, oldest first: numpy arrays in the structure of a row. One transfer."""
        return self._shaped().treedef.unflatten(self._rows())

    def dict(self) -> dict[str, Any]:
        """All rows that are held, oldest first, by name: a list of a scalar, else a numpy array. One transfer."""
        named = zip(self._shaped().names, self._rows(), strict=True)
        return {name: rows.tolist() if rows.ndim == 1 else rows for name, rows in named}

    @alone
    def _rows(self) -> list[np.ndarray]:
        self._refuse_stale()
        self._flush()
        full, ring = self._fetched((self._full, self._unbatched()))
        self._raise_if_bad(ring.bad)
        capacity = len(ring.rows[0])
        held = int(ring.at) if self._size is None else min(int(ring.steps), capacity)
        order = (int(ring.at) - held + np.arange(held)) % capacity
        return [np.concatenate([*parts, rows[order]]) for *parts, rows in zip(*full, ring.rows, strict=True)]

    @alone
    def check(self) -> None:
        """Raise `FloatingPointError` if anything was NaN or infinite since this was last raised. One sync."""
        if self._check_nan is None:
            raise ValueError(f"{CALL}.check needs check_nan=, or nothing is looked at.")
        self._refuse_stale()
        self._unchecked = 0
        if self._form is not None:
            self._flush()
            self._raise_if_bad(self._fetched(self._unbatched().bad))

    def _fetched(self, tree: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
            raise TransformOrderError(
                f"{CALL} was read inside of a trace (jit, scan, vmap, grad), where there are no values. Expected that "
                "outside. Fix: return the buffer; .mean(), .min(), .max(), .last() and .steps work inside."
            )
        return jax.device_get(tree)

    def _raise_if_bad(self, bad: np.ndarray | None) -> None:
        if bad is None or (bad == NEVER).all():
            return
        self._ring = rings.without_faults(self._made(), bad)
        found = sorted(each for each in zip(bad.tolist(), self._shaped().names, strict=True) if each[0] < NEVER)
        raise FloatingPointError(
            f"{CALL} got {', '.join(f'{name} at step {step}' for step, name in found)}: NaN or infinite. Expected "
            "finite numbers, with check_nan; steps count from 0. Fix: jax.config.update('jax_debug_nans', True) finds "
            "the operation; what was appended is still here to be read."
        )

    # ------------------------------------------------------------------ as a pytree

    @alone
    def tree_flatten(self) -> tuple[tuple, tuple]:
        self._flush()
        return (self._ring, self._full), (self._size, self._check_nan, self._form)

    def tree_flatten_with_keys(self) -> tuple[tuple, tuple]:
        (ring, full), static = self.tree_flatten()
        return ((jtu.GetAttrKey("ring"), ring), (jtu.GetAttrKey("full"), full)), static

    def __reduce__(self) -> tuple:
        return MetricBuffer.tree_unflatten, self.tree_flatten()[::-1]

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> "MetricBuffer":
        self = object.__new__(cls)
        (self._size, self._check_nan, self._form), (self._ring, self._full), self._written = static, children, None
        self._start()
        return self
