"""Functions of `jax.numpy` that move, pick, place, join or make elements.

Not here: windows of rows inside a larger function (`compositions_order.py`).
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from .draws import BOOL
from .draws import BYTE
from .draws import COUNT
from .draws import LABEL
from .draws import NORMAL
from .draws import SMALL
from .entry import Entry
from .entry import Family
from .entry import named

_NUMPY = Family("numpy", "jnp.")
_MODES = ("constant", "edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "mean", "median", "minimum")


def _arranged() -> Iterator[Entry]:
    call, along, entry = _NUMPY.call, _NUMPY.along, _NUMPY.entry
    for name in (
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "matrix_transpose",
        "ravel",
        "transpose",
        "fliplr",
        "flipud",
    ):
        yield call(jnp, name, NORMAL)
    yield call(jnp, "atleast_2d", NORMAL(), note="numbers")
    yield from along(jnp, "expand_dims", NORMAL, axes=(0, 1, 2))
    yield from along(jnp, "flip", NORMAL)
    yield from along(jnp, "squeeze", NORMAL(1, 4), axes=(1,))
    yield from along(jnp, "unstack", NORMAL(3), axes=(1,))
    yield from along(jnp, "roll", NORMAL, shift=2)
    yield call(jnp, "roll", NORMAL, shift=-1, axis=0)
    yield entry("roll by a shared shift", lambda x, k: jnp.roll(x, k, axis=0), NORMAL, SMALL().shared)
    yield entry("rot90", jnp.rot90, NORMAL)
    yield entry("rot90 k=2", lambda x: jnp.rot90(x, 2), NORMAL)
    yield entry("rot90 in the row", lambda x: jnp.rot90(x, axes=(1, 2)), NORMAL(3, 4))
    yield entry("moveaxis", lambda x: jnp.moveaxis(x, 0, 2), NORMAL(3, 4))
    yield entry("swapaxes", lambda x: jnp.swapaxes(x, 0, 1), NORMAL(3, 4))
    yield entry("swapaxes in the row", lambda x: jnp.swapaxes(x, 1, 2), NORMAL(3, 4))
    yield entry("rollaxis", lambda x: jnp.rollaxis(x, 2), NORMAL(3, 4))
    yield entry("permute_dims", lambda x: jnp.permute_dims(x, (2, 0, 1)), NORMAL(3, 4))
    yield entry("transpose then sum", lambda x: jnp.sum(jnp.transpose(x), axis=1), NORMAL)
    yield entry("ravel order=F", lambda x: jnp.ravel(x, order="F"), NORMAL)
    yield entry("reshape to one axis", lambda x: jnp.reshape(x, (-1,)), NORMAL)
    yield entry("reshape in the row", lambda x: jnp.reshape(x, (x.shape[0], 2, 3)), NORMAL(6))
    yield entry("reshape joins the row", lambda x: jnp.reshape(x, (-1, 12)), NORMAL(3, 4))
    yield entry("reshape splits rows", lambda x: jnp.reshape(x, (-1, 2)), NORMAL(6))
    yield entry("reshape order=F", lambda x: jnp.reshape(x, (2, -1), order="F"), NORMAL(6))
    yield entry("broadcast_arrays", jnp.broadcast_arrays, NORMAL, NORMAL.shared)
    yield entry("broadcast_to rows", lambda x, y: jnp.broadcast_to(y, x.shape), NORMAL, NORMAL.shared)
    yield entry("broadcast_to more", lambda x: jnp.broadcast_to(x, (2, *x.shape)), NORMAL)
    yield entry("resize", lambda x: jnp.resize(x, (2, 3)), NORMAL)
    yield entry("meshgrid", jnp.meshgrid, NORMAL(), NORMAL(3).shared)
    yield entry("ix_", lambda x, i: x[jnp.ix_(jnp.arange(x.shape[0]), i)], NORMAL, SMALL(2).shared)


def _joined() -> Iterator[Entry]:
    call, entry = _NUMPY.call, _NUMPY.entry
    yield entry("append", lambda x, y: jnp.append(x, y, axis=0), NORMAL, NORMAL)
    yield entry("append flat", lambda x: jnp.append(x, 3.0), NORMAL)
    yield entry("block", lambda x, y: jnp.block([[x, y], [y, x]]), NORMAL, NORMAL)
    yield entry("block in the row", lambda x, y: jnp.block([x, y]), NORMAL, NORMAL)
    for name, join in named(jnp, "concat concatenate stack"):
        for axis in (0, 1):
            yield entry(f"{name} axis={axis}", lambda x, y, f=join, axis=axis: f([x, y], axis=axis), NORMAL, NORMAL)
    yield entry("stack axis=2", lambda x, y: jnp.stack([x, y], axis=2), NORMAL, NORMAL)
    yield entry("concatenate with itself", lambda x: jnp.concatenate([x, x * 2]), NORMAL)
    yield entry("concatenate a shared row first", lambda x, r: jnp.concatenate([r[None], x]), NORMAL, NORMAL.shared)
    yield entry("concatenate a constant row last", lambda x: jnp.concatenate([x, jnp.zeros((1, 5))]), NORMAL)
    yield entry("concatenate a column of ones", lambda x: jnp.concatenate([x, jnp.ones_like(x[:, :1])], 1), NORMAL)
    for name, join in named(jnp, "column_stack dstack hstack vstack"):
        yield entry(name, lambda x, y, f=join: f([x, y]), NORMAL, NORMAL)
        yield entry(f"{name} of numbers", lambda x, y, f=join: f([x, y]), NORMAL(), NORMAL())
    yield entry("c_", lambda x, y: jnp.c_[x, y], NORMAL(), NORMAL())
    yield entry("r_", lambda x, y: jnp.r_[x, y, 0.0], NORMAL(), NORMAL())
    yield entry("repeat axis=0", lambda x: jnp.repeat(x, 2, axis=0), NORMAL)
    yield entry("repeat axis=1", lambda x: jnp.repeat(x, 2, axis=1), NORMAL)
    yield entry("repeat axis=None", lambda x: jnp.repeat(x, 2), NORMAL)
    yield entry("repeat by counts", lambda x, c: jnp.repeat(x, c, axis=0, total_repeat_length=4), NORMAL, SMALL())
    yield entry("tile rows", lambda x: jnp.tile(x, (2, 1)), NORMAL)
    yield entry("tile columns", lambda x: jnp.tile(x, (1, 2)), NORMAL)
    for mode in _MODES:
        yield call(jnp, "pad", NORMAL, pad_width=((1, 1), (0, 0)), mode=mode)
        yield call(jnp, "pad", NORMAL, pad_width=((0, 0), (2, 1)), mode=mode)
    yield entry("pad numbers before", lambda x: jnp.pad(x, (3, 0), constant_values=7.0), NORMAL())
    yield entry("lax.pad between rows", lambda x: jax.lax.pad(x, 0.0, ((1, 0, 1), (0, 0, 0))), NORMAL)


def _picked() -> Iterator[Entry]:
    entry = _NUMPY.entry
    for name, draw in (("array_split", NORMAL), ("split", NORMAL(4)), ("hsplit", NORMAL(4))):
        cut = getattr(jnp, name)
        fixed = {} if name == "hsplit" else {"axis": 1}
        yield entry(f"{name} columns", lambda x, f=cut, fixed=fixed: f(x, 2, **fixed), draw)
    yield entry("dsplit", lambda x: jnp.dsplit(x, 2), NORMAL(3, 4))
    yield entry("vsplit at a row", lambda x: jnp.vsplit(x, [1]), NORMAL)
    yield entry("split at rows", lambda x: jnp.split(x, [1, 3]), NORMAL, at_least=3)
    yield entry("array_split in rows", lambda x: jnp.array_split(x, 2), NORMAL)
    yield entry("delete a row", lambda x: jnp.delete(x, 0, axis=0), NORMAL)
    yield entry("delete a column", lambda x: jnp.delete(x, 1, axis=1), NORMAL)
    yield entry("insert a row", lambda x: jnp.insert(x, 1, 5.0, axis=0), NORMAL)
    yield entry("insert a column", lambda x: jnp.insert(x, 1, 5.0, axis=1), NORMAL)
    yield entry("take rows", lambda x, i: jnp.take(x, i % x.shape[0], axis=0), NORMAL, COUNT(3).shared)
    yield entry("take columns", lambda x, i: jnp.take(x, i, axis=1), NORMAL, SMALL(3).shared)
    yield entry("take flat", lambda x: jnp.take(x, jnp.array([0, 4])), NORMAL)
    for mode in ("fill", "clip", "wrap"):
        yield entry(f"take mode={mode}", lambda x, i, m=mode: jnp.take(x, i, axis=0, mode=m), NORMAL, COUNT(3).shared)
    yield entry("take from shared by rows", lambda i, t: jnp.take(t, i, axis=0), LABEL, NORMAL(5, 3).shared)
    yield entry("take from rows by rows", lambda x, i: jnp.take(x, i % x.shape[0], axis=0), NORMAL, COUNT())
    yield entry("take_along_axis axis=1", lambda x, i: jnp.take_along_axis(x, i[:, None], 1), NORMAL, LABEL)
    yield entry(
        "take_along_axis axis=0", lambda x, i: jnp.take_along_axis(x, i[None] % x.shape[0], 0), NORMAL, SMALL.shared
    )
    yield entry("diag of a row's matrix", jax.vmap(jnp.diag), NORMAL(3, 3))
    yield entry("diag of numbers", jnp.diag, NORMAL())
    yield entry("diagflat", jnp.diagflat, NORMAL())
    yield entry("diagonal of rows", lambda x: jnp.diagonal(x, axis1=1, axis2=2), NORMAL(3, 3))
    yield entry("diagonal", jnp.diagonal, NORMAL)
    yield entry("tril", jnp.tril, NORMAL)
    yield entry("triu", lambda x: jnp.triu(x, 1), NORMAL)
    yield entry("tril of rows", jnp.tril, NORMAL(3, 3))
    yield entry("packbits axis=1", lambda x: jnp.packbits(x, axis=1), BOOL(8))
    yield entry("packbits axis=0", lambda x: jnp.packbits(x, axis=0), BOOL)
    yield entry("unpackbits axis=1", lambda x: jnp.unpackbits(x, axis=1), BYTE(3))
    yield entry("unpackbits axis=0", lambda x: jnp.unpackbits(x, axis=0), BYTE(3))
    yield entry("apply_along_axis axis=1", lambda x: jnp.apply_along_axis(jnp.cumsum, 1, x), NORMAL)
    yield entry("apply_along_axis axis=0", lambda x: jnp.apply_along_axis(jnp.cumsum, 0, x), NORMAL)
    yield entry("apply_over_axes", lambda x: jnp.apply_over_axes(jnp.sum, x, [0, 1]), NORMAL)
    yield entry(
        "lax.dynamic_slice", lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 2), NORMAL, SMALL().shared, at_least=2
    )


def _placed() -> Iterator[Entry]:
    entry = _NUMPY.entry
    yield entry("at set first row", lambda x: x.at[0].set(7.0), NORMAL)
    yield entry("at set last row", lambda x: x.at[-1].set(7.0), NORMAL)
    yield entry("at add a column", lambda x: x.at[:, 1].add(1.0), NORMAL)
    yield entry("at multiply after the first", lambda x: x.at[1:].multiply(2.0), NORMAL)
    yield entry("at set in rows", lambda x, i: x.at[jnp.arange(x.shape[0]), i].set(9.0), NORMAL, LABEL)
    yield entry("at add rows of shared index", lambda x, i: x.at[i % x.shape[0]].add(1.0), NORMAL, COUNT(3).shared)
    for how in ("add", "max", "min", "multiply"):
        place = lambda i, x, how=how: getattr(jnp.ones((5, 3)).at[i], how)(x)  # noqa: E731
        yield entry(f"at {how} into shared by rows", place, LABEL, NORMAL(3))
    yield entry("at get fill", lambda x, i: x.at[i].get(mode="fill", fill_value=-1.0), NORMAL, COUNT(3).shared)
    yield entry("fill_diagonal", lambda x: jnp.fill_diagonal(x, 3.0, inplace=False), NORMAL)
    yield entry("place", lambda x: jnp.place(x, x > 0, jnp.array([1.0, 2.0]), inplace=False), NORMAL)
    yield entry("put", lambda x: jnp.put(x, jnp.array([0, 3]), 9.0, inplace=False), NORMAL)
    yield entry(
        "put_along_axis axis=1",
        lambda x, i: jnp.put_along_axis(x, i[:, None], 9.0, axis=1, inplace=False),
        NORMAL,
        LABEL,
    )


def _made() -> Iterator[Entry]:
    """Arrays that only the number of rows decides."""
    entry = _NUMPY.entry
    for name, make in named(jnp, "arange zeros ones empty eye identity tri"):
        yield entry(f"{name} of the number of rows", lambda x, f=make: f(x.shape[0]), NORMAL())
    for name, make in named(jnp, "bartlett blackman hamming hanning"):
        yield entry(f"{name} over the rows", lambda x, f=make: x * f(x.shape[0]), NORMAL())
    for name, make in named(jnp, "linspace logspace geomspace"):
        yield entry(f"{name} over the rows", lambda x, f=make: x * f(1.0, 3.0, x.shape[0]), NORMAL())
    yield entry("linspace between rows", lambda x, y: jnp.linspace(x, y, 4), NORMAL, NORMAL)
    yield entry("kaiser over the rows", lambda x: x * jnp.kaiser(x.shape[0], 2.0), NORMAL())
    yield entry("full of the number of rows", lambda x: jnp.full(x.shape[0], 2.5), NORMAL())
    yield entry("indices of the rows", lambda x: jnp.indices(x.shape), NORMAL)
    yield entry("fromfunction of the rows", lambda x: jnp.fromfunction(lambda i, j: i + j, x.shape), NORMAL)
    yield entry("diag_indices of the rows", lambda x: jnp.diag_indices(x.shape[0]), NORMAL())
    yield entry("diag_indices_from", lambda x: jnp.diag_indices_from(x @ x.T), NORMAL)
    yield entry("tril_indices in the row", lambda x: x[:, *jnp.tril_indices(3)], NORMAL(3, 3))
    yield entry("triu_indices in the row", lambda x: x[:, *jnp.triu_indices(3, 1)], NORMAL(3, 3))
    yield entry("tril_indices_from", lambda x: x[:, *jnp.tril_indices_from(x[0])], NORMAL(3, 3))
    yield entry("triu_indices_from", lambda x: x[:, *jnp.triu_indices_from(x[0])], NORMAL(3, 3))
    yield entry("shape", jnp.shape, NORMAL)
    yield entry("fft.fftfreq over the rows", lambda x: x * jnp.fft.fftfreq(x.shape[0]), NORMAL())
    yield entry("fft.rfftfreq of the rows", lambda x: jnp.fft.rfftfreq(x.shape[0]), NORMAL())


ENTRIES = [*_arranged(), *_joined(), *_picked(), *_placed(), *_made()]
