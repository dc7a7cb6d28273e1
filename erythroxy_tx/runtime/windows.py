"""`windows`: stretches of rows, gathered where they are used from the rows they start at. Not here: what gathers them
in chunks (`transforms/chunked.py`).
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.core.padded import Padded
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import LengthError

_MOST = np.iinfo(np.int32).max  # what an index reaches


def windows(x: Any, starts: Any, width: int, *, outside: str = "raise") -> Any:
    """Gather windows of rows from the rows that they start at, so that only the starts have to be kept.

        windows(x, starts, width)[i] = x[starts[i] : starts[i] + width]

    One gather, which XLA may fuse with what reads the windows; under `chunked` over the starts no more than a chunk of
    them is ever there. A start is neither clamped, as `lax.dynamic_slice` does, nor counted from the end if it is
    negative: a window that does not lie inside of `x` is an error, or is masked.

    **Arguments:**

    - `x`: an array, of any dtype, or a pytree of arrays with as many rows (the first axis).
    - `starts`: integers, the first row of each window: an array of any shape, a list, or one int.
    - `width`: how many rows a window has, a Python int.
    - `outside`: what becomes of a window that is not wholly inside. `"raise"` checks every start; those that are on a
        GPU are brought to the host for it, one sync a call. `"mask"` fills the window with zeros, gives `x` no gradient
        from it, and says which in a second result; it never syncs, and takes starts that are traced.

    **Returns:** like `x`, with arrays of shape `(*starts.shape, width, *x.shape[1:])`; with `outside="mask"` a pair of
    that and `inside`, a `bool` for each start. Exact, and so is `x`'s gradient but for the order of its sum; that of a
    float of fewer than 32 bits is summed in float32.

    **Raises:** `LengthError` for a window that is not inside, with its position; `TypeError` for starts that are no
    integers, or are traced without `outside="mask"`; `ValueError` for a bad parameter, or arrays of different lengths;
    `OverflowError` for 64-bit integers of numpy that would wrap on the device.

    >>> import numpy as np, erythroxy_tx as tx
    >>> prices = np.arange(10.0)
    >>> tx.windows(prices, [0, 4, 7], 3).tolist()
    [[0.0, 1.0, 2.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
    >>> found, inside = tx.windows(prices, [7, 8, -1], 3, outside="mask")
    >>> found.tolist(), inside.tolist()
    ([[7.0, 8.0, 9.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [True, False, False])
    """
    if outside not in ("raise", "mask"):
        raise ValueError(f'tx.windows got outside={outside!r}. Expected "raise" or "mask".')
    width, starts = _width(width), _integers(starts)
    leaves, treedef, told = _with_rows(x)
    rows = leaves[0].shape[0]
    if outside == "raise":
        _check_inside(starts, width, rows, told)
    if width <= rows:
        found, inside = _windows(leaves, _as_int32(starts), width)
    else:  # no start is inside, and XLA has no such gather
        inside = jnp.zeros(starts.shape, bool)
        found = [jnp.zeros((*starts.shape, width, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
    found = treedef.unflatten(found)
    return (found, inside) if outside == "mask" else found


def _width(width: Any) -> int:
    try:
        found = operator.index(width)
    except TypeError:
        found = -1
    if found < 0 or isinstance(width, bool):
        raise ValueError(f"tx.windows got width={width!r}. Expected a number of rows, a Python int from 0 on.")
    return found


def _integers(starts: Any) -> Any:
    """The starts as an array, on the host if they came from there."""
    if not isinstance(starts, jax.Array):
        traced = any(isinstance(start, jax.core.Tracer) for start in jax.tree.leaves(starts))
        found = jnp.asarray(starts) if traced else np.asarray(starts)
        empty = not hasattr(starts, "dtype") and not found.size  # an empty list is one of floats to numpy
        starts = found.astype(np.int32) if empty else found
    if not jnp.issubdtype(starts.dtype, jnp.integer):
        raise TypeError(
            f"tx.windows got starts: {shape_of(starts)}. Expected integers, the first row of each window. Fix: "
            "starts.astype(int); of a mask, its jnp.flatnonzero."
        )
    return starts


def _with_rows(x: Any) -> tuple[list[Any], Any, str]:
    """The arrays, on the device, what they are leaves of, and the first of them as a message tells it."""
    paths, treedef = jtu.tree_flatten_with_path(x, is_leaf=lambda leaf: isinstance(leaf, Padded))
    named = [(f"x{jtu.keystr(path)}: {shape_of(leaf)}", leaf) for path, leaf in paths]
    if not named:
        raise ValueError("tx.windows got x without arrays. Expected an array, or a pytree of them.")
    for told, leaf in named:
        if not getattr(leaf, "shape", ()):
            raise ValueError(
                f"tx.windows got {told}. Expected an array with rows. Fix: jnp.asarray of a list, .data of a "
                "tx.Padded; leave out what has no rows."
            )
        if leaf.shape[0] != named[0][1].shape[0]:
            raise ValueError(f"tx.windows got {named[0][0]} and {told}. Expected arrays with as many rows.")
    first, leaf = named[0]
    if not _compat.is_symbolic(leaf.shape[0]) and leaf.shape[0] > _MOST:
        raise LengthError(f"tx.windows got {first}. Expected at most {_MOST} rows, which an int32 counts. Fix: cut it.")
    return [_on_device(told, leaf) for told, leaf in named], treedef, first


def _on_device(told: str, leaf: Any) -> jax.Array:
    found = jnp.asarray(leaf)
    if found.dtype != leaf.dtype and leaf.dtype.kind in "iu" and not np.array_equal(leaf.astype(found.dtype), leaf):
        raise OverflowError(
            f"tx.windows got {told} with values that do not fit {found.dtype}: on the device they would wrap. Fix: "
            "subtract an offset, or jax.config.update('jax_enable_x64', True)."
        )
    return found


def _check_inside(starts: Any, width: int, rows: Any, told: str) -> None:
    """Refuse a window that is not inside, by the lowest start and the highest."""
    if isinstance(starts, jax.core.Tracer):
        raise TypeError(
            f"tx.windows got starts: {shape_of(starts)}, which are traced, so that no window can be checked. Expected "
            'known starts. Fix: windows, inside = tx.windows(..., outside="mask"); or call it outside of the traced '
            "function, under no vmap: starts may have any shape."
        )
    values = np.asarray(jax.device_get(starts))
    if not values.size:
        return
    at = np.unravel_index(values.argmin() if values.min() < 0 else values.argmax(), values.shape)
    start = int(values[at])
    if start < 0 or start + width > rows:
        place = f"[{', '.join(map(str, at))}]" if at else ""
        raise LengthError(
            f"tx.windows got starts{place} = {start} and width={width}, rows {start} to {start + width} of {told}. "
            f"Expected 0 <= start, and start + {width} <= {rows} rows. Fix: leave such starts out, or outside="
            '"mask", which fills their windows with zeros and says which.'
        )


def _as_int32(starts: Any) -> Any:
    """The starts, those of the host as int32 with -1 for what would wrap on the device."""
    if isinstance(starts, np.ndarray):
        return np.where((starts >= 0) & (starts <= _MOST), starts.astype(np.int32), -1)
    return starts


@functools.partial(jax.jit, static_argnums=2)
def _windows(leaves: list[jax.Array], starts: jax.Array, width: int) -> tuple[list[jax.Array], jax.Array]:
    """The windows of each array, and which are inside: one program, where nothing around it is compiled."""
    if starts.dtype.itemsize < 4:  # of few bits: the number of rows could not be written in them
        starts = starts.astype(jnp.int32)
    inside = (starts >= 0) & (starts <= jnp.asarray(leaves[0].shape[0] - width, starts.dtype))
    index = jnp.where(inside, starts.astype(jnp.int32), -1)
    return [(_narrow if _is_narrow(leaf) else _gather)(leaf, index, width) for leaf in leaves], inside


def _is_narrow(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32


def _gather(x: jax.Array, index: jax.Array, width: int) -> jax.Array:
    numbers = lax.GatherDimensionNumbers(tuple(range(index.ndim, index.ndim + x.ndim)), (), (0,))
    sizes = (width, *x.shape[1:])
    return lax.gather(x, index[..., None], numbers, sizes, mode=lax.GatherScatterMode.FILL_OR_DROP, fill_value=0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _narrow(x: jax.Array, index: jax.Array, width: int) -> jax.Array:
    return _gather(x, index, width)


@_narrow.defjvp
def _narrow_jvp(width: int, primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    """Where many windows share a row, a sum of their cotangents in few bits would stop growing."""
    x, index = primals
    tangent = _gather(tangents[0].astype(jnp.float32), index, width)
    return _narrow(x, index, width), tangent.astype(x.dtype)
