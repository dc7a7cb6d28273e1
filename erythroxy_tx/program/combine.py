"""How the results of chunks come together, for each declared kind of output:

    "rows": f(x)[i] = f(chunk)[i - start]       "mean": f(x) = sum of len(chunk) / len(x) * f(chunk)
    "sum", "max", "min", "prod", "all", "any":  f(x) = that reduction of f(chunk) over the chunks

Not here: the loop (`loop.py`), nor which rows are in a chunk (`chunks.py`).
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.program.chunks import Chunks
from erythroxy_tx.program.folds import FOLDS
from erythroxy_tx.program.folds import wide
from erythroxy_tx.program.loop import ChunkFn
from erythroxy_tx.program.loop import Leaves
from erythroxy_tx.program.loop import Out
from erythroxy_tx.program.loop import Rows
from erythroxy_tx.program.loop import batched_together
from erythroxy_tx.program.loop import hoisted
from erythroxy_tx.program.loop import run
from erythroxy_tx.program.loop import run_remat
from erythroxy_tx.program.row_call import RowCall


def _with_nan(stack: Any, value: Any) -> Any:
    # Of 4096 numbers or more XLA's CPU drops a NaN. 0.10.2, 0.12.0.
    return jnp.where(jnp.isnan(stack).any(0), jnp.nan, value)


_OVER_STACK: dict[str, Callable[[Any], Any]] = {
    "max": lambda stack: _with_nan(stack, jnp.max(stack, axis=0)),
    "min": lambda stack: _with_nan(stack, jnp.min(stack, axis=0)),
    "prod": lambda stack: jnp.prod(stack, axis=0),
}

KINDS = ("rows", *FOLDS)

Runner = Callable[..., Leaves]  # `run` or `run_remat`


def check_one_chunk(call: RowCall, kinds: Sequence[str]) -> None:
    """Refuse outputs that cannot be what they are declared to be, where one chunk holds all rows."""
    for (path, whole), kind in zip(jtu.tree_flatten_with_path(call.result)[0], kinds, strict=True):
        _check(call.label, "result" + jtu.keystr(path), kind, whole, call.length, whole, call.length)


def run_declared(call: RowCall, kinds: Sequence[str], chunks: Chunks, remat: bool) -> Any:
    """Run a call over chunks and combine its outputs as declared.

    **Arguments:**

    - `call`: the function and its arguments. `kinds`: one of `KINDS` for each output.
    - `chunks`: the plan, of more than one chunk. `remat`: compute each chunk again in reverse mode.

    **Returns:** the result, in the structure, shapes, dtypes and weak types that the function gives on all rows.

    **Raises:** `ValueError` if an output cannot be what it was declared to be.
    """
    lengths = [chunks.size, chunks.rows % chunks.size]  # also where the last chunk overlaps: its backward pass may not
    lengths = [length for length in lengths if length]
    cuts = [_cut_types(call.rows, call.row_axes, length) for length in lengths]
    fn, types, tracers = hoisted(call.flat, cuts, [struct_of(leaf) for leaf in call.shared])
    named, _ = jtu.tree_flatten_with_path(call.result)
    for length, parts in zip(lengths, types, strict=True):
        for (path, whole), kind, part in zip(named, kinds, parts, strict=True):
            _check(call.label, "result" + jtu.keystr(path), kind, whole, call.length, part, length)
    combination = _Combination(fn, kinds, [whole for _, whole in named], call.row_axes, chunks)
    return call.unflatten(combination.run(call.rows, call.shared + tracers, remat))


class _Combination:
    """The declared kinds of a function's outputs, turned into folds over chunks."""

    def __init__(self, fn: ChunkFn, kinds: Sequence[str], whole: Leaves, axes: Sequence[int], chunks: Chunks):
        self.fn, self.kinds, self.whole, self.axes, self.chunks = fn, kinds, whole, axes, chunks
        # Where a derivative needs every chunk's value at once, the values are stacked.
        self.stacked = [
            kind in _OVER_STACK and jnp.issubdtype(out.dtype, jnp.inexact)
            for kind, out in zip(kinds, whole, strict=True)
        ]

    def run(self, rows: Leaves, shared: Leaves, remat: bool) -> Leaves:
        if remat and any(self.stacked):
            found = self._fold_and_stack_for_derivatives(rows, shared)
        elif any(self.stacked):
            found = self._stack(run, rows, shared)
        else:
            found = self._fold(run_remat if remat else run, rows, shared)
        return [
            x if _is_key(x) else _compat.convert(x, out.dtype, weak_type=out.weak_type)
            for x, out in zip(found, self.whole, strict=True)
        ]

    def _values(self, row_leaves: Leaves, shared_leaves: Leaves) -> Leaves:
        """The outputs of one chunk, means weighted by its share of the rows."""
        values = self.fn(row_leaves, shared_leaves)
        share = row_leaves[0].shape[self.axes[0]] / self.chunks.rows
        for i, (kind, value) in enumerate(zip(self.kinds, values, strict=True)):
            if kind == "mean":
                values[i] = _scaled(value.astype(wide(value.dtype)), share)
        return values

    def _fold(self, runner: Runner, rows: Leaves, shared: Leaves) -> Leaves:
        outs: list[Out] = [Rows() if kind == "rows" else FOLDS[kind] for kind in self.kinds]
        return runner(self._values, rows, shared, list(map(Rows, self.axes)), outs, self.chunks)

    def _stack(self, runner: Runner, rows: Leaves, shared: Leaves) -> Leaves:
        """As `_fold`, with one entry a chunk for the outputs that are stacked, reduced at the end."""

        def values(row_leaves: Leaves, shared_leaves: Leaves) -> Leaves:
            found = self._values(row_leaves, shared_leaves)
            return [v[None] if stacked else v for v, stacked in zip(found, self.stacked, strict=True)]

        outs: list[Out] = [
            Rows(each=stacked) if stacked or kind == "rows" else FOLDS[kind]
            for kind, stacked in zip(self.kinds, self.stacked, strict=True)
        ]
        found = runner(values, rows, shared, list(map(Rows, self.axes)), outs, self.chunks)
        return [
            _OVER_STACK[kind](x) if stacked else x
            for kind, stacked, x in zip(self.kinds, self.stacked, found, strict=True)
        ]

    def _fold_and_stack_for_derivatives(self, rows: Leaves, shared: Leaves) -> Leaves:
        """Fold in the forward pass; stack only where there is a derivative to take."""

        @jax.custom_vjp
        def folded(rows: Leaves, shared: Leaves) -> Leaves:
            return batched_together(self._fold(run, rows, shared), rows + shared)

        def forward(rows: Leaves, shared: Leaves) -> tuple[Leaves, Any]:
            found, pull = jax.vjp(functools.partial(self._stack, run_remat), rows, shared)
            return batched_together(found, rows + shared), pull

        folded.defvjp(forward, lambda pull, cotangents: pull(cotangents))
        return folded(rows, shared)


def _scaled(value: Any, share: float) -> Any:
    if jnp.issubdtype(value.dtype, jnp.complexfloating):  # a complex product would turn infinities into NaN
        return lax.complex(value.real * share, value.imag * share)
    return value * share


def _cut_types(rows: Leaves, axes: Sequence[int], size: int) -> Leaves:
    return jax.eval_shape(lambda: [lax.slice_in_dim(x, 0, size, axis=a) for x, a in zip(rows, axes, strict=True)])


def _is_key(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _check(label: str, what: str, kind: str, whole: Any, rows: int, part: Any, length: int) -> None:
    """Refuse an output, `whole` from all rows and `part` from `length` of them, that cannot be what it is declared."""
    got = f"{shape_of(whole)} from all {rows} rows and {shape_of(part)} from {length}"
    fix = None
    if kind == "rows":
        if not whole.ndim or whole.shape[0] != rows or part.shape != (length, *whole.shape[1:]):
            fix = 'one entry along axis 0 for each row. Fix: declare "sum", "mean", … or move the row axis to the front'
    elif whole.shape != part.shape:
        fix = 'the same shape from any number of rows. Fix: declare "rows", or reduce over the rows in the function'
    elif kind in ("all", "any") and whole.dtype != bool:
        fix = 'a bool. Fix: declare "min" or "max", or compare in the function'
    elif kind in ("sum", "mean", "prod") and whole.dtype == bool:
        fix = 'a number. Fix: declare "all" or "any", or count in the function'
    elif kind == "mean" and not jnp.issubdtype(whole.dtype, jnp.inexact):
        fix = 'a float: a mean of rounded means is not the mean. Fix: declare "sum" and divide outside'
    elif _is_key(whole) or (kind in ("max", "min") and jnp.issubdtype(whole.dtype, jnp.complexfloating)):
        fix = 'values that have an order or a sum. Fix: declare "rows"'
    if whole.dtype != part.dtype:
        fix = "one dtype for any number of rows"
    if fix is not None:
        raise ValueError(f"{label} got {what} declared {kind!r}: {got}. Expected {fix}.")
