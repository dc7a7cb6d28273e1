"""One call of a function on arguments of any length: along which axes they are ragged, how long they are, and the
same arguments with place for the most. Not here: what runs on them.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core.padded import Padded
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.errors import LengthError
from erythroxy_tx.program.call import Call
from erythroxy_tx.program.call import axis_of
from erythroxy_tx.program.ragged import Limits
from erythroxy_tx.program.ragged import Ragged


class PadCall(Call):
    """The arguments of one call, each with the axes along which it is ragged.

    **Arguments:** as of `Call`; a `Padded` stands for its data. `in_axes`: of `Ragged`s, each positional argument's.

    **Raises:** `ValueError` if there is no ragged argument, if two that share a length are of different ones, or for an
    axis that is not there; `LengthError` if one is longer than the limit.
    """

    def __init__(
        self,
        label: str,
        named: Callable[..., Any],
        fn: Callable[..., Any],
        args: tuple,
        kwargs: dict,
        in_axes: Prefix,
        limits: Limits,
    ):
        plain: Any = jtu.tree_map(lambda x: x.data if isinstance(x, Padded) else x, (args, kwargs), is_leaf=_is_padded)
        super().__init__(label, named, fn, *plain)
        self.limits = limits
        if self.unknown:
            return
        padded = [x if _is_padded(x) else None for x in jtu.tree_leaves((args, kwargs), is_leaf=_is_padded)]
        entries = in_axes.spread(plain[0], label, "in_axes", "the positional arguments")
        entries += [None] * (len(padded) - len(entries))
        traced = self.static.traced
        self.padded = [padded[i] for i in traced]
        self.axes = [self._axes(limits, j, entries[i]) for j, i in enumerate(traced)]
        if not any(self.axes):
            raise ValueError(
                f"{label} got nothing ragged: {len(args)} positional arguments, in_axes={in_axes}. Expected an array "
                "with such an axis. Fix: pass it by position; keyword arguments are whole."
            )
        self.lengths: list[Any] = [self._length(k) for k in range(len(limits.names))]
        self.most = tuple(self._most(k) for k in range(len(limits.names)))

    def _axes(self, limits: Limits, leaf: int, entry: Ragged | None) -> dict[int, int]:
        """For each ragged axis of a leaf, the number of its name."""
        value, padded = self.dynamic[leaf], self.padded[leaf]
        found: dict[int, int] = {}
        if entry is None and padded is None:
            return found
        for axis, length in entry.axes if entry is not None else ():
            found[axis_of(self.label, lambda: self.names[leaf], value, axis)] = limits.names.index(length)
        if padded is not None and not set(padded.axes) <= found.keys():
            raise ValueError(
                f"{self.label} got {self.names[leaf]}: a tx.Padded along {padded.axes}. Expected one along "
                f"{tuple(found)}, as in_axes= says. Fix: the axis in in_axes=; a Padded cannot be passed by keyword."
            )
        if found and jnp.issubdtype(value.dtype, jax.dtypes.extended):
            raise ValueError(
                f"{self.label} got {self.names[leaf]}: {shape_of(value)}, random keys along an axis that is padded. "
                "Expected numbers. Fix: pass one key and split it inside, jax.random.split(key, x.shape[0])."
            )
        return found

    def _given(self, name: int) -> list[tuple[tuple[int, int], Any, int]]:
        """Each axis of a name: of which leaf, how long it is, and how much place it has to have at least."""
        found = []
        for j, axes in enumerate(self.axes):
            for axis in (axis for axis, k in axes.items() if k == name):
                length = place = self.dynamic[j].shape[axis]
                if (padded := self.padded[j]) is not None and axis in padded.axes:
                    padded.check_single(self.label)
                    length = _number(padded.lengths[padded.axes.index(axis)])
                found.append(((j, axis), length, place))
        return found

    def _length(self, name: int) -> Any:
        given = self._given(name)
        if not given:
            raise ValueError(
                f"{self.label} got no argument along {self.limits.names[name]!r}. Expected one. Fix: in_axes=."
            )
        if len({id(length) for _, length, _ in given}) > 1:  # of arrays on the device that are not the same one
            given = [(who, _number(length, fetch=True), place) for who, length, place in given]
        known = [(who, length) for who, length, _ in given if isinstance(length, int)]
        if len({length for _, length in known}) > 1:
            told = ", ".join(f"{self.names[j]} has {length} along axis {axis}" for (j, axis), length in known)
            raise ValueError(
                f"{self.label} got different lengths: {told}. Expected one. Fix: None in in_axes= for what is whole, "
                "or pass it by keyword."
            )
        traced = [length for _, length, _ in given if not isinstance(length, int)]
        if not traced:
            return known[0][1]
        found, names = traced[0], " and ".join(self.names[j] for (j, _), _, _ in given)
        for other in (*traced[1:], *(length for _, length in known[:1])):
            if other is not found:
                found = eqx.error_if(found, found != other, f"{self.label} got different lengths of {names}")
        return found

    def _most(self, name: int) -> int:
        (leaf, _), _, place = max(self._given(name), key=lambda each: each[2])
        found = self.limits.over(name, place)
        if found is None:
            limit, what = self.limits.steps[name][-1], self.limits.names[name]
            along = "" if len(self.limits.names) == 1 else f" along {what!r}"
            raise LengthError(
                f"{self.label} got {self.names[leaf]} of length {place}{along}. Expected at most {limit}. Fix: a "
                "larger limit, or cut it before."
            )
        return found

    @property
    def key(self) -> tuple:
        """What a program depends on: the static half, and the types with place for the most."""
        kinds = []
        for leaf, axes in zip(self.dynamic, self.axes, strict=True):
            kind = leaf if isinstance(leaf, (np.ndarray, jax.Array)) else struct_of(leaf)
            shape = (
                [self.most[axes[i]] if i in axes else size for i, size in enumerate(kind.shape)] if axes else kind.shape
            )
            kinds.append((tuple(shape), kind.dtype, getattr(kind, "weak_type", False)))
        return self.static, self.most, tuple(kinds)

    @property
    def kinds(self) -> tuple:
        """What it is apart from every size: the static half, and the dtypes."""
        types = [leaf if isinstance(leaf, (np.ndarray, jax.Array)) else struct_of(leaf) for leaf in self.dynamic]
        return self.static, tuple((kind.dtype, getattr(kind, "weak_type", False)) for kind in types)

    def types(self, rows: tuple[Any, ...]) -> list[jax.ShapeDtypeStruct]:
        """The types of the traced leaves for these lengths, which may be unknown."""
        found = []
        for leaf, axes in zip(self.dynamic, self.axes, strict=True):
            kind = struct_of(leaf)
            shape = tuple(rows[axes[i]] if i in axes else size for i, size in enumerate(kind.shape))
            found.append(jax.ShapeDtypeStruct(shape, kind.dtype, weak_type=kind.weak_type))
        return found

    def places(self, dynamic: Sequence[Any]) -> list[int]:
        """How much place there is for each length in some leaves."""
        found = {k: x.shape[axis] for x, axes in zip(dynamic, self.axes, strict=True) for axis, k in axes.items()}
        return [found[k] for k in range(len(self.most))]

    def padded_leaves(self, fill: float | None) -> list[Any]:
        """The traced leaves with place for the most, as `Padded` where they are ragged."""
        found = self.placed(fill)
        for j, axes in enumerate(self.axes):
            if axes:
                data = found[j] if isinstance(found[j], jax.core.Tracer) else jnp.asarray(found[j])
                lengths = tuple(
                    np.int32(n) if isinstance(n, int) else n for n in map(self.lengths.__getitem__, axes.values())
                )
                found[j] = Padded.made(data, lengths, tuple(axes))
        return found

    def placed(self, fill: float | None = None) -> list[Any]:
        """The traced leaves with place for the most; those that are known are padded on the host."""
        return [
            _placed(leaf, {axis: self.most[k] for axis, k in axes.items()}, fill) if axes else leaf
            for leaf, axes in zip(self.dynamic, self.axes, strict=True)
        ]


def _is_padded(x: Any) -> bool:
    return isinstance(x, Padded)


def _number(length: Any, *, fetch: bool = False) -> Any:
    """A length that is known on the host as an int; one that is on the device if it is to be fetched."""
    known = isinstance(length, (int, np.integer, np.ndarray))
    fetched = fetch and isinstance(length, jax.Array) and not isinstance(length, jax.core.Tracer)
    return int(length) if known or fetched else length


def _placed(leaf: Any, places: dict[int, int], fill: Any) -> Any:
    """A leaf with more place along some axes; what is new there is a copy of its last entry, or `fill`."""
    if all(leaf.shape[axis] == size for axis, size in places.items()) or isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if isinstance(leaf, jax.core.Tracer):
        edges = [(0, places.get(i, size) - size) for i, size in enumerate(leaf.shape)]
        if fill is not None:
            return jnp.pad(leaf, edges, constant_values=as_filling(fill, leaf.dtype))
        return jnp.pad(leaf, edges, mode="edge" if 0 not in leaf.shape else "constant")
    with jax.transfer_guard("allow"):
        found = np.asarray(leaf)
    for axis, size in places.items():
        edge = found[(slice(None),) * axis + (slice(-1, None),)]
        shape = tuple(size - found.shape[axis] if i == axis else n for i, n in enumerate(found.shape))
        if fill is not None or not edge.size:
            edge = np.asarray(0 if fill is None else as_filling(fill, found.dtype), found.dtype)
        found = np.concatenate([found, np.broadcast_to(edge, shape)], axis=axis)
    if getattr(leaf, "weak_type", False):
        return _compat.convert(found, leaf.dtype, weak_type=True)
    return found


def as_filling(fill: Any, dtype: Any) -> Any:
    """A number of a dtype that is as near to a filling as there is."""
    if jnp.issubdtype(dtype, jnp.bool_):
        return bool(fill)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return limits.max if not np.isfinite(fill) else int(min(max(fill, limits.min), limits.max))
    return fill
