"""Where one segment comes from, what is known of it before it is read, and how it is read into memory of its own. Not
here: what the sources of a pool have in common (`catalogue.py`), and when they are read (`loader.py`).
"""

import dataclasses
import math
import mmap
import os
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Literal

import jax
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import BudgetError
from erythroxy_tx.units import format_bytes

_PIECE = 16 * 2**20  # bytes that are read at once, after which a reader sees that it is to stop
_MAPPED = 2**18  # bytes from which a segment has a mapping of its own
_FIX = "Fix: load=, a function that takes a source and gives numpy arrays"


class Stop:
    """Whether the pool is closed. Without a lock, so that a finaliser or a handler of signals may set it."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class StoppedError(Exception):
    """The pool was closed while a segment was read."""


@dataclasses.dataclass(frozen=True)
class Form:
    """What all segments of a pool share: the structure, and of each leaf the path, the shape of a row and the dtype."""

    treedef: Any
    leaves: tuple[tuple[str, tuple[int, ...], np.dtype], ...]

    @property
    def row_bytes(self) -> int:
        return sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in self.leaves)

    def __str__(self) -> str:
        return "rows of " + ", ".join(f"{path}{' ' * bool(path)}{dtype}{shape}" for path, shape, dtype in self.leaves)


@dataclasses.dataclass(frozen=True)
class Segment:
    """A segment in memory; `nbytes` is what it keeps alive."""

    form: Form
    leaves: list[np.ndarray]
    nbytes: int

    @property
    def rows(self) -> int:
        return len(self.leaves[0])

    def overlaps(self, other: "Segment") -> bool:
        """Whether they are in the same memory, as far as its bounds tell."""
        return any(np.may_share_memory(mine, its) for mine in self.leaves for its in other.leaves)


class Stored:
    """A source whose rows and bytes are known before it is read: `.npy` files, or arrays that can be sliced."""

    def __init__(self, told: str, source: Any):
        paths, treedef = jtu.tree_flatten_with_path(source)
        named = [(jtu.keystr(path), leaf) for path, leaf in paths]
        self._leaves = [_leaf(told + path, leaf) for path, leaf in named]
        shapes = [(path, leaf.shape, leaf.dtype) for (path, _), leaf in zip(named, self._leaves, strict=True)]
        self.form, self.rows = _form(told, shapes, treedef)
        self.nbytes = self.rows * self.form.row_bytes
        self.piece = max(leaf.piece for leaf in self._leaves)

    def read(self, stop: Stop) -> Segment:
        return Segment(self.form, [leaf.read(stop) for leaf in self._leaves], self.nbytes)


class Loaded:
    """A source that a function of the user loads; of its bytes is known what the user says, if anything."""

    form: Form | None = None
    rows: int | None = None
    piece = 0

    def __init__(self, told: str, source: Any, load: Callable[[Any], Any], nbytes: int | None):
        self._told, self._source, self._load, self.nbytes = told, source, load, nbytes

    def read(self, stop: Stop) -> Segment:  # noqa: ARG002  # nobody can stop a function
        try:
            value = self._load(self._source)
        except StopIteration as error:  # would end the iteration over the pool
            raise RuntimeError(f"tx.SegmentPool called load for {self._told}, which raised StopIteration.") from error
        paths, treedef = jtu.tree_flatten_with_path(value)
        named = [(jtu.keystr(path), leaf) for path, leaf in paths]
        for path, leaf in named:
            if not isinstance(leaf, np.ndarray) or isinstance(leaf, np.ma.MaskedArray):
                raise TypeError(
                    f"tx.SegmentPool got value{path}: {shape_of(leaf)}, a {type(leaf).__name__}, from load for "
                    f"{self._told}. Expected numpy arrays, without masks."
                )
        form, _ = _form(self._told, [(path, leaf.shape, leaf.dtype) for path, leaf in named], treedef)
        owners = {id(owner): owner.nbytes for _, leaf in named if (owner := _owner(leaf)) is not None}
        nbytes = sum(owners.values()) + sum(leaf.nbytes for _, leaf in named if _owner(leaf) is None)
        if self.nbytes is not None and nbytes > self.nbytes:
            raise BudgetError(
                f"tx.SegmentPool got {nbytes} bytes, {format_bytes(nbytes)}, from load for {self._told}. Expected at "
                f"most nbytes={self.nbytes}, as was said. They were dropped. Fix: a larger nbytes=; or, of a view that "
                "keeps a larger array alive, its .copy()."
            )
        leaves = [np.array(leaf) if _owner(leaf) is None else np.asarray(leaf) for _, leaf in named]
        return Segment(form, leaves, nbytes)


def _owner(leaf: np.ndarray) -> np.ndarray | None:
    """The array whose memory this one uses; None for that of a file or of something else, which is copied."""
    while isinstance(leaf.base, np.ndarray):
        leaf = leaf.base
    return leaf if leaf.base is None else None


def _form(told: str, leaves: list[tuple[str, tuple[int, ...], Any]], treedef: Any) -> tuple[Form, int]:
    """What rows are made of, and how many there are, of arrays that have to agree."""
    if not leaves:
        raise ValueError(f"tx.SegmentPool got {told} without arrays. Expected an array, or a pytree of them.")
    for path, shape, dtype in leaves:
        if not shape or shape[0] != leaves[0][1][0]:
            raise ValueError(
                f"tx.SegmentPool got {told}{path} of shape {shape}; {leaves[0][0] or 'the first'} is of "
                f"{leaves[0][1]}. Expected arrays with as many rows, the first axis."
            )
        if dtype.hasobject:
            raise TypeError(f"tx.SegmentPool got {told}{path} of dtype object. Expected numbers, which have a size.")
    return Form(treedef, tuple((path, tuple(shape[1:]), dtype) for path, shape, dtype in leaves)), leaves[0][1][0]


def _leaf(told: str, leaf: Any) -> "_File | _Sliced":
    if isinstance(leaf, str | os.PathLike):
        return _File(told, leaf)
    if isinstance(leaf, jax.Array):
        raise TypeError(
            f"tx.SegmentPool got {told}: {shape_of(leaf)} of JAX, which the background may not read. Expected arrays "
            "on the host. Fix: np.asarray of it; what is on the device needs no pool."
        )
    if not isinstance(getattr(leaf, "dtype", None), np.dtype) or not getattr(leaf, "shape", ()):
        raise TypeError(
            f"tx.SegmentPool got {told}: {type(leaf).__name__}. Expected the path of a .npy file, or an array with "
            f"rows, a numpy dtype and slices. {_FIX}."
        )
    if isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(f"tx.SegmentPool got {told}, an array with a mask. Expected none. Fix: .filled(...).")
    return _Sliced(told, leaf)


class _File:
    """A `.npy` file, of which only the header is read before its turn."""

    piece = 0  # it is read where it stays

    def __init__(self, told: str, path: Any):
        self._told, self._path = told, path
        self._header = self._read_header()
        self.shape, self.dtype, self._begin, self._by_columns = self._header

    def _read_header(self) -> tuple[tuple[int, ...], np.dtype, int, bool]:
        """Shape, dtype, the byte at which the numbers begin, and whether they are column by column."""
        try:
            mapped = np.lib.format.open_memmap(self._path, mode="r")  # refuses a file that is too short
        except ValueError as error:
            raise ValueError(
                f"tx.SegmentPool got {self._told}, which is no whole .npy file of numbers: {error}. {_FIX}."
            ) from error
        return mapped.shape, mapped.dtype, mapped.offset, not mapped.flags.c_contiguous

    def read(self, stop: Stop) -> np.ndarray:
        if (found := self._read_header()) != self._header:
            raise ValueError(
                f"tx.SegmentPool got {self._told} of {found[1]}{found[0]}, which was {self.dtype}{self.shape}. "
                "Expected files that nobody changes."
            )
        out = _empty(self.shape, self.dtype, "F" if self._by_columns else "C")
        flat = (out.T if self._by_columns else out).reshape(-1).view(np.uint8)
        with open(self._path, "rb") as file:  # noqa: PTH123  # of a str too
            file.seek(self._begin)
            for piece in _pieces(flat.size, 1, stop):
                if file.readinto(flat[piece].data) != piece.stop - piece.start:
                    raise EOFError(f"tx.SegmentPool got {self._told}, which ended while it was read.")
        return out


class _Sliced:
    """An array of numpy, a file that is mapped into memory, or what is sliced like them."""

    def __init__(self, told: str, array: Any):
        self._told, self._array = told, array
        self.shape, self.dtype = tuple(array.shape), array.dtype
        self._row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        whole = self._row_bytes * self.shape[0]
        self.piece = 0 if isinstance(array, np.ndarray) else min(max(_PIECE, self._row_bytes), whole)

    def read(self, stop: Stop) -> np.ndarray:
        out = _empty(self.shape, self.dtype)
        for piece in _pieces(len(out), self._row_bytes, stop):
            found = np.asarray(self._array[piece])
            if found.shape != out[piece].shape or found.dtype != out.dtype:
                raise ValueError(
                    f"tx.SegmentPool got {shape_of(found)} for the rows {piece.start} to {piece.stop} of {self._told}. "
                    f"Expected {shape_of(out[piece])}, as its shape and dtype say."
                )
            out[piece] = found
        return out


def _empty(shape: tuple[int, ...], dtype: np.dtype, order: Literal["C", "F"] = "C") -> np.ndarray:
    """Memory for a segment. What is large is a mapping of its own, which goes back to the system when it is dropped;
    the allocator may keep half as much again for sizes that do not come back.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _MAPPED:
        return np.empty(shape, dtype, order)
    return np.ndarray(shape, dtype, mmap.mmap(-1, nbytes), order=order)


def _pieces(count: int, size: int, stop: Stop) -> Iterator[slice]:
    """Slices of at most `_PIECE` bytes that cover `count` things of a size, until it is to stop."""
    step = max(1, _PIECE // max(1, size))
    for start in range(0, count, step):
        if stop.is_set():
            raise StoppedError
        yield slice(start, min(start + step, count))
