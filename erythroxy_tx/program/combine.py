"""How the results of chunks come together, for each declared kind of output:

    "rows": f(x)[i] = f(chunk)[i - start]       "mean": f(x) = sum of len(chunk) / len(x) * f(chunk)
    "sum", "max", "min", "prod", "all", "any":  f(x) = that reduction of f(chunk) over the chunks

Not here: the loop (`loop.py`), nor which rows are in a chunk (`chunks.py`).
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax

from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.program.chunks import Chunks
from erythroxy_tx.program.loop import SUM
from erythroxy_tx.program.loop import Fold
from erythroxy_tx.program.loop import Leaves
from erythroxy_tx.program.loop import Out
from erythroxy_tx.program.loop import Rows
from erythroxy_tx.program.loop import hoisted
from erythroxy_tx.program.loop import run
from erythroxy_tx.program.loop import run_remat
from erythroxy_tx.program.row_call import RowCall


def _limit(dtype: Any, top: bool) -> Any:
    """The largest or the smallest value of a dtype: where a fold starts that any value replaces."""
    if dtype == bool:
        return top
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.inf if top else -jnp.inf
    return jnp.iinfo(dtype).max if top else jnp.iinfo(dtype).min


def _full(value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: jnp.full(a.shape, value(a.dtype), a.dtype)


_FOLDS = {
    "sum": SUM,
    "mean": SUM,
    "max": Fold(_full(lambda dtype: _limit(dtype, top=False)), jnp.maximum),
    "min": Fold(_full(lambda dtype: _limit(dtype, top=True)), jnp.minimum),
    "prod": Fold(_full(lambda dtype: 1), lambda total, value: total * value),
    "all": Fold(_full(lambda dtype: True), jnp.logical_and),
    "any": Fold(_full(lambda dtype: False), jnp.logical_or),
}
_OVER_STACK = {"max": jnp.max, "min": jnp.min, "prod": jnp.prod}

KINDS = ("rows", *_FOLDS)


def run_declared(call: RowCall, kinds: Sequence[str], chunks: Chunks, remat: bool) -> Any:
    """Run a call over chunks and combine its outputs as declared.

    **Arguments:**

    - `call`: the function and its arguments. `kinds`: one of `KINDS` for each output.
    - `chunks`: the plan, of more than one chunk. `remat`: compute each chunk again in reverse mode.

    **Returns:** the result, in the structure, shapes, dtypes and weak types that the function gives on all rows.

    **Raises:** `ValueError` if an output cannot be what it was declared to be.
    """
    rows, axes = call.rows, call.row_axes
    ins = [Rows(axis) for axis in axes]
    lengths = [chunks.size, chunks.rows % chunks.size]  # also where the last chunk overlaps: its backward pass may not
    cuts = [_cut_types(rows, axes, length) for length in lengths if length]
    fn, example, tracers = hoisted(call.flat, cuts, [struct_of(leaf) for leaf in call.shared])
    shared = call.shared + tracers
    named, _ = jtu.tree_flatten_with_path(call.result)
    whole = [out for _, out in named]
    for (path, out), kind, chunk in zip(named, kinds, example, strict=True):
        _check(call.label, "result" + jtu.keystr(path), kind, out, chunk, chunks)
    key_impls: dict[int, Any] = {}

    def by_kind(row_leaves: Leaves, shared_leaves: Leaves, stacks: bool) -> Leaves:
        part = row_leaves[0].shape[axes[0]] / chunks.rows
        values = fn(row_leaves, shared_leaves)
        for i, value in enumerate(values):
            if _is_key(value):  # keys travel as their data: a buffer of keys cannot be made of zeros
                key_impls[i], values[i] = jax.random.key_impl(value), jax.random.key_data(value)
        scaled = [v.astype(_wide(v)) * part if kind == "mean" else v for kind, v in zip(kinds, values, strict=True)]
        return [v[None] if stacks and _stacked(kind, v) else v for kind, v in zip(kinds, scaled, strict=True)]

    def form(runner: Callable[..., Leaves], stacks: bool, rows: Leaves, shared: Leaves) -> Leaves:
        outs: list[Out] = [
            Rows(0, each=kind != "rows") if kind == "rows" or (stacks and _stacked(kind, out)) else _FOLDS[kind]
            for kind, out in zip(kinds, whole, strict=True)
        ]
        found = runner(lambda a, b: by_kind(a, b, stacks), rows, shared, ins, outs, chunks)
        return [
            _OVER_STACK[kind](x, axis=0) if stacks and _stacked(kind, out) else x
            for kind, out, x in zip(kinds, whole, found, strict=True)
        ]

    stacks = any(_stacked(kind, out) for kind, out in zip(kinds, whole, strict=True))
    if remat and stacks:
        found = _folded_forward(form, rows, shared)
    else:
        found = form(run_remat if remat else run, stacks, rows, shared)
    return call.unflatten(
        [
            jax.random.wrap_key_data(x, impl=key_impls[i]) if i in key_impls else _like(x, out)
            for i, (x, out) in enumerate(zip(found, whole, strict=True))
        ]
    )


def _stacked(kind: str, out: Any) -> bool:
    """Kinds whose derivative needs every chunk's value at once: these are stacked when differentiated."""
    return kind in _OVER_STACK and jnp.issubdtype(out.dtype, jnp.inexact)


def _folded_forward(form: Callable[..., Leaves], rows: Leaves, shared: Leaves) -> Leaves:
    """Fold in the forward pass; stack one value a chunk only where there is a derivative to take."""

    @jax.custom_vjp
    def folded(rows: Leaves, shared: Leaves) -> Leaves:
        return form(run, False, rows, shared)

    folded.defvjp(
        lambda rows, shared: jax.vjp(lambda a, b: form(run_remat, True, a, b), rows, shared),
        lambda pull, cotangents: pull(cotangents),
    )
    return folded(rows, shared)


def _cut_types(rows: Leaves, axes: Sequence[int], size: int) -> Leaves:
    return jax.eval_shape(lambda: [lax.slice_in_dim(x, 0, size, axis=a) for x, a in zip(rows, axes, strict=True)])


def _is_key(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _wide(value: Any) -> Any:
    return jnp.promote_types(value.dtype, jnp.float32)


def _like(value: Any, out: Any) -> Any:
    """Give a combined value the dtype and weak type of the one-shot result."""
    value = lax.convert_element_type(value, out.dtype)
    if out.weak_type:
        scalar = {"f": float, "i": int, "c": complex}[out.dtype.kind]  # converting to a Python type makes it weak
        value = lax.convert_element_type(value, scalar)
    return value


def _check(label: str, what: str, kind: str, whole: Any, chunk: Any, chunks: Chunks) -> None:
    """Refuse an output that cannot be what it was declared to be."""
    got = f"{shape_of(whole)} from all {chunks.rows} rows and {shape_of(chunk)} from {chunks.size}"
    fix = None
    if kind == "rows":
        good = whole.ndim and chunk.ndim and (whole.shape[0], chunk.shape[0]) == (chunks.rows, chunks.size)
        if not good or whole.shape[1:] != chunk.shape[1:]:
            fix = 'one entry along axis 0 for each row. Fix: declare "sum", "mean", … or move the row axis to the front'
    elif whole.shape != chunk.shape:
        fix = 'the same shape from any number of rows. Fix: declare "rows", or reduce over the rows in the function'
    elif kind in ("all", "any") and whole.dtype != bool:
        fix = 'a bool. Fix: declare "min" or "max", or compare in the function'
    elif kind in ("sum", "mean", "prod") and whole.dtype == bool:
        fix = 'a number. Fix: declare "all" or "any", or count in the function'
    elif kind == "mean" and not jnp.issubdtype(whole.dtype, jnp.inexact):
        fix = 'a float: a mean of rounded means is not the mean. Fix: declare "sum" and divide outside'
    elif _is_key(whole) or (kind in ("max", "min") and jnp.issubdtype(whole.dtype, jnp.complexfloating)):
        fix = 'values that have an order or a sum. Fix: declare "rows"'
    if whole.dtype != chunk.dtype:
        fix = "one dtype for any number of rows"
    if fix is not None:
        raise ValueError(f"{label} got {what} declared {kind!r}: {got}. Expected {fix}.")
