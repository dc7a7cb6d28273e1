"""One batch on its way: a private copy on the host, made by a worker, then arrays on the device."""

import copy
import dataclasses
import enum
import os
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.residency import check_array
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import ThreadError

NAME = "tx.prefetch"
_FIXED = (str, bytes, bool, int, float, complex, os.PathLike, enum.Enum)


@dataclasses.dataclass(frozen=True, slots=True)
class HostBatch:
    """A batch whose arrays nobody else can write to, in the dtypes that they will have on the device."""

    leaves: list[Any]
    treedef: Any
    places: list[int]  # of the leaves that are arrays
    wide: bool  # whether that was with 64-bit types

    @property
    def nbytes(self) -> int:
        """Bytes that will go up."""
        return sum(self.leaves[i].nbytes for i in self.places)

    def upload(self, device: Any) -> Any:
        """The batch with its arrays on the device; their transfers need not be done yet."""
        if is_wide() != self.wide:
            raise RuntimeError(
                f"{NAME} was made with jax_enable_x64={self.wide}, and read with {is_wide()}: its batches have the "
                "dtypes of the first. Expected one setting. Fix: tx.prefetch inside of the block that sets it."
            )
        leaves = list(self.leaves)
        with jax.transfer_guard_host_to_device("allow"):
            arrays = jax.device_put([leaves[i] for i in self.places], device)
        for i, array in zip(self.places, arrays, strict=True):
            leaves[i] = array
        return self.treedef.unflatten(leaves)


def is_wide() -> bool:
    """Whether arrays keep 64-bit types on the device."""
    return bool(jax.config.read("jax_enable_x64"))


def on_host(batch: Any, position: int) -> HostBatch:
    """Copy the arrays of a batch, and refuse what would change on the way up."""
    named, treedef = jtu.tree_flatten_with_path(batch)
    leaves, places = [], []
    for i, (path, leaf) in enumerate(named):
        name = f"batch {position}{jtu.keystr(path)}"
        if isinstance(leaf, jax.Array):
            raise ThreadError(
                f"{NAME} got {name}: {shape_of(leaf)}, which is on the device. Expected numpy arrays: its threads may "
                "not touch JAX. Fix: yield numpy, or add what is on the device to the batch after next()."
            )
        if isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, (str, bytes)):
            array = np.asanyarray(leaf)
            check_array(NAME, name, array)
            kind = jax.dtypes.canonicalize_dtype(array.dtype)
            leaves.append(np.array(array, dtype=kind, copy=True, order="C", subok=False))
            places.append(i)
        else:
            leaves.append(copied(leaf))
    return HostBatch(leaves, treedef, places, is_wide())


def copied(item: Any) -> Any:
    """A copy of all that may be written to again: arrays, buffers, containers, objects of the user's."""
    if item is None or isinstance(item, _FIXED):
        return item
    try:
        return copy.deepcopy(item)
    except TypeError as error:  # of a view of memory, an open file, a lock
        raise TypeError(
            f"{NAME} got {type(item).__name__}, which cannot be copied ({error}), and which its source may write to "
            "again. Expected arrays, numbers, strings and containers of them. Fix: an array of it, np.array(item); or "
            "open and view in prepare=."
        ) from error
