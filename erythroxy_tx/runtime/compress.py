"""`compress`: arrays that repeat themselves, kept in the small form that they repeat, and floats in half their bytes.
Not here: compression of bytes, which a compiled program could not read.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax

from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.units import format_bytes


def compress(tree: Any, half: str | None = None) -> "Compressed":
    """Keep each array in the smallest block that, repeated along its axes, gives it back; expand it where it is used::

        compress(x).expand() = x                        bit for bit
        |compress(x, half).expand() - x| ≤ u · |x|      u = 2⁻¹¹ for "float16", 2⁻⁸ for "bfloat16"

    What `jnp.broadcast_to`, `jnp.tile` and `jnp.repeat` of one row made is found from the values, along each axis by
    itself: an array that is constant along an axis keeps one entry of it, one that has a period keeps that. `expand`
    is a broadcast that XLA may fuse with what reads it.

    **Arguments:**

    - `tree`: a pytree of numpy and JAX arrays with known values. Arrays of JAX are searched on the device, with one
        small transfer at the end, and a program for each shape. Scalars, arrays without elements, random keys and what
        is no array stay as they are, and what saves nothing is the same object.
    - `half`: None, or the dtype to keep float32 and float64 in. A leaf that has a finite number beyond the largest or
        the smallest normal one of that dtype stays as it is, and the table says so. NaN and infinity remain; the
        payload of a NaN does not.

    **Returns:** a `Compressed`, a pytree: an argument of compiled functions. `expand()` gives the tree back, of numpy
    arrays where they were; `nbytes` is what is kept and `saved` what is not, in bytes; its `repr` is a table by leaf,
    with the largest error that was measured.

    **Raises:** `ValueError` for another `half`; `TransformOrderError` for traced arrays, which have no values yet.

    >>> import numpy as np, erythroxy_tx as tx
    >>> last = np.arange(27 * 64, dtype=np.float32).reshape(27, 64)
    >>> kept = tx.compress({"prices": np.tile(last[:, None], (1, 64, 1))})
    >>> kept
    tx.compress: 432.0 KiB in 6.8 KiB, 64x
      ['prices']  f32[27,64,64]  in f32[27,1,64]
    >>> kept.expand()["prices"].shape
    (27, 64, 64)
    """
    if half not in (None, "float16", "bfloat16"):
        raise ValueError(f'tx.compress got half={half!r}. Expected None, "float16" or "bfloat16".')
    paths, treedef = jtu.tree_flatten_with_path(tree)
    for path, leaf in paths:
        if isinstance(leaf, jax.core.Tracer):
            raise TransformOrderError(
                f"tx.compress got tree{jtu.keystr(path)}: {shape_of(leaf)} inside of a trace (jit, scan, vmap, grad), "
                "where it has no values to compare. Expected it outside. Fix: compress before, and expand() inside."
            )
    given = [_without_strides(leaf) for _, leaf in paths]
    found = jax.device_get([_look(leaf, half) if _is_kept_small(leaf) else None for leaf in given])
    parts = [_part(*each, half) for each in zip([leaf for _, leaf in paths], given, found, strict=True)]
    kept, forms, notes = zip(*parts, strict=True) if parts else ((), (), ())
    return Compressed(jtu.tree_unflatten(treedef, kept), forms, notes)


@dataclasses.dataclass(frozen=True)
class _Form:
    """What an array was, and the shape that is kept of it."""

    shape: tuple[int, ...]
    dtype: np.dtype
    block: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@jtu.register_pytree_node_class
class Compressed:
    """A pytree whose arrays are kept small, as `kept`. Made by `compress`."""

    def __init__(self, kept: Any, forms: tuple[_Form | None, ...], notes: tuple[str, ...] = ()) -> None:
        self.kept, self._forms, self._notes = kept, forms, notes

    def tree_flatten(self) -> tuple[tuple, Any]:
        return (self.kept,), self._forms

    @classmethod
    def tree_unflatten(cls, forms: Any, children: Any) -> "Compressed":
        return cls(children[0], forms)  # other values, of which nothing was measured

    def expand(self) -> Any:
        """The pytree that was compressed."""
        leaves, treedef = jtu.tree_flatten(self.kept)
        return jtu.tree_unflatten(treedef, [_expanded(*each) for each in zip(leaves, self._forms, strict=True)])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, as they are kept."""
        return sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(self.kept))

    @property
    def saved(self) -> int:
        """Bytes that are not kept."""
        leaves = zip(jax.tree.leaves(self.kept), self._forms, strict=True)
        return sum(form.nbytes - leaf.nbytes for leaf, form in leaves if form is not None)

    def __repr__(self) -> str:
        paths = jtu.tree_flatten_with_path(self.kept)[0]
        rows = []
        for (path, leaf), form, note in itertools.zip_longest(paths, self._forms, self._notes):
            was = shape_of(leaf) if form is None else shape_of(jax.ShapeDtypeStruct(form.shape, form.dtype))
            how = "as it is" if was == shape_of(leaf) else f"in {shape_of(leaf)}"
            rows.append((jtu.keystr(path), was, f"{how}{note or ''}"))
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        total, now = self.nbytes + self.saved, self.nbytes
        title = f"tx.compress: {format_bytes(total)} in {format_bytes(now)}" + (f", {total / now:.3g}x" if now else "")
        return "\n".join([title, *(f"  {path:{widths[0]}}  {was:{widths[1]}}  {how}" for path, was, how in rows)])


# ------------------------------------------------------------------ what repeats


def _is_kept_small(leaf: Any) -> bool:
    """Whether a leaf is an array whose values can be compared bit by bit."""
    if type(leaf) not in (np.ndarray, np.memmap) and not isinstance(leaf, jax.Array):
        return False
    if not leaf.ndim or not leaf.size:
        return False
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.finfo(leaf.dtype).bits in (8, 16, 32, 64)
    return jnp.issubdtype(leaf.dtype, jnp.integer) or leaf.dtype == bool


def _without_strides(leaf: Any) -> Any:
    """One entry of each axis along which numpy repeats itself without memory: to look at them all would take it."""
    if type(leaf) not in (np.ndarray, np.memmap):
        return leaf
    return leaf[tuple(slice(None) if stride else slice(0, 1) for stride in leaf.strides)]


def _shifts(shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Axis, prime and shift: which of these leave an array as it is says its smallest period along each axis.

    Shifts that do are the multiples of that period, which divides n. So q is in n / period as often as n / q, n / q²,
    … are among them: at most 20 comparisons for a million, not one for each divisor.
    """
    for axis, n in enumerate(shape):
        rest, q = n, 2
        while rest > 1:
            q = q if q * q <= rest else rest
            power = 1
            while rest % q == 0:
                rest, power = rest // q, power * q
                yield axis, q, n // power
            q += 1


def _look(x: Any, half: str | None) -> Any:
    """Which shifts leave an array as it is; and whether some number is too large or too small for `half`, and by how
    much it changes the others, as a part of their size.
    """
    return _look_on_device(x, half) if isinstance(x, jax.Array) else _looked(np, x, half)


def _looked(xp: Any, x: Any, half: str | None) -> tuple[Any, Any]:
    bits = [part for each in ((x.real, x.imag) if x.dtype.kind == "c" else (x,)) for part in [_bits(each)]]
    same = [
        functools.reduce(xp.logical_and, [xp.all(_cut(b, axis, shift, None) == _cut(b, axis, 0, -shift)) for b in bits])
        for axis, _, shift in _shifts(x.shape)
    ]
    return xp.stack(same) if same else [], xp.stack(_rounded(xp, x, half)) if _is_halved(x.dtype, half) else []


_look_on_device = jax.jit(functools.partial(_looked, jnp), static_argnames="half")


def _cut(x: Any, axis: int, start: int, stop: int | None) -> Any:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def _bits(x: Any) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    kind = np.dtype(f"u{x.dtype.itemsize}")
    return x.view(kind) if isinstance(x, np.ndarray) else lax.bitcast_convert_type(x, kind)


def _part(leaf: Any, given: Any, found: Any, half: str | None) -> tuple[Any, _Form | None, str]:
    """What is kept of a leaf, what it was, and what there is to say of it."""
    if found is None:
        return leaf, None, ""
    same, rounded = found
    block = list(given.shape)
    for (axis, q, _), is_same in zip(_shifts(given.shape), same, strict=True):
        block[axis] //= q if is_same else 1
    dtype, note = leaf.dtype, ""
    if len(rounded):
        large, small, error = rounded
        why = "large" if large else "small" if small else ""
        dtype = dtype if why else jnp.dtype(half)
        note = f", too {why} for {half}" if why else f", within {float(error):.1e}·|x|"
    form = _Form(leaf.shape, leaf.dtype, tuple(block))
    if form.block == form.shape and dtype == leaf.dtype:
        return leaf, form, note
    if isinstance(leaf, jax.Array):
        return _taken(leaf, form.block, dtype), form, note
    with np.errstate(invalid="ignore"):  # which numpy says of a NaN that it has to change
        return np.array(given[tuple(map(slice, block))], dtype, order="C"), form, note


@functools.partial(jax.jit, static_argnums=(1, 2))
def _taken(x: jax.Array, block: tuple[int, ...], dtype: Any) -> jax.Array:
    return x[tuple(map(slice, block))].astype(dtype)


def _expanded(leaf: Any, form: _Form | None) -> Any:
    if form is None:
        return leaf
    if jnp.shape(leaf) != form.block:
        raise ValueError(
            f"tx.compress kept an array of shape {form.block}, and expand() got {shape_of(leaf)}. Expected it as it "
            "was kept. Fix: jax.vmap(lambda kept: kept.expand()) of what is stacked; expand() before it is cut."
        )
    xp = np if isinstance(leaf, np.ndarray) else jnp
    with np.errstate(invalid="ignore"):
        leaf = leaf if leaf.dtype == form.dtype else leaf.astype(form.dtype)
    repeats = [n // small for n, small in zip(form.shape, form.block, strict=True)]
    return leaf if form.block == form.shape else xp.tile(leaf, repeats)


# ------------------------------------------------------------------ halves


def _is_halved(dtype: Any, half: str | None) -> bool:
    return half is not None and dtype.kind == "f" and dtype.itemsize in (4, 8)


def _rounded(xp: Any, x: Any, half: Any) -> list[Any]:
    """By the bits of the numbers: a compiler may take those that are too small for zero."""
    x = x.astype(x.dtype.newbyteorder("="), copy=False) if xp is np else x
    half = jnp.dtype(half)
    limits, kind = jnp.finfo(half), np.dtype(f"u{x.dtype.itemsize}")
    tiny, most, infinite = (
        np.asarray(each, x.dtype).view(kind) for each in (float(limits.tiny), float(limits.max), np.inf)
    )
    size = _bits(x) & (np.iinfo(kind).max >> 1)
    fits = (size >= tiny) & (size <= most)
    x = xp.where(fits, x, 1)
    # A compiler may leave out a conversion and its reverse.
    near = x.astype(half).astype(x.dtype) if xp is np else lax.reduce_precision(x, limits.nexp, limits.nmant)
    error = xp.max(xp.abs(near - x) / xp.abs(x))
    wrong = xp.any((size > most) & (size < infinite)), xp.any((size > 0) & (size < tiny))
    return [each.astype(x.dtype) for each in wrong] + [error]
