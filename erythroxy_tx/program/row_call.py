"""One call of a function on rows: which leaves are rows, and how many rows there are. Not here: how they are cut."""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu

from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.program.call import Call
from erythroxy_tx.program.call import axis_of


class RowCall(Call):
    """The arguments of one call, split into row leaves, shared leaves and what is static.

    **Arguments:** as of `Call`. `in_axes`: as in `jax.vmap`; keyword arguments are shared.

    **Raises:** `ValueError` if there are no rows, or rows of different lengths, or an axis that is not there.
    """

    def __init__(
        self,
        label: str,
        named: Callable[..., Any],
        fn: Callable[..., Any],
        args: tuple,
        kwargs: dict,
        in_axes: Prefix,
    ):
        super().__init__(label, named, fn, args, kwargs)
        self._in_axes = in_axes
        axes = in_axes.spread(args, label, "in_axes", "the positional arguments")
        leaves = named_leaves(named, args, kwargs)
        axes += [None] * (len(leaves) - len(axes))
        traced = [(name, leaf, axis) for (name, leaf), axis in zip(leaves, axes, strict=True) if is_traced(leaf)]
        self.axes = [
            None if axis is None else axis_of(label, functools.partial(str, name), leaf, axis)
            for name, leaf, axis in traced
        ]
        lengths = {n: x.shape[a] for (n, x, _), a in zip(traced, self.axes, strict=True) if a is not None}
        if not lengths:
            raise ValueError(
                f"{label} got no rows: {len(args)} positional arguments, in_axes={in_axes}. Expected an array with "
                "rows. Fix: pass it by position; keyword arguments are whole."
            )
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"{label} got rows of different lengths: {', '.join(f'{n} has {k}' for n, k in lengths.items())}. "
                "Expected one length. Fix: None in in_axes= for what every chunk gets whole, or pass it by keyword."
            )
        self.length: int = next(iter(lengths.values()))

    def on(self, dynamic: Sequence[Any]) -> "RowCall":
        """The same call on other values of the traced leaves."""
        args, kwargs = self.static.merge(tuple(dynamic))
        return RowCall(self.label, self.named, self.fn, args, kwargs, self._in_axes)

    @property
    def rows(self) -> list[Any]:
        return [leaf for leaf, axis in zip(self.dynamic, self.axes, strict=True) if axis is not None]

    @property
    def shared(self) -> list[Any]:
        return [leaf for leaf, axis in zip(self.dynamic, self.axes, strict=True) if axis is None]

    @property
    def row_axes(self) -> list[int]:
        return [axis for axis in self.axes if axis is not None]

    def flat(self, rows: list[Any], shared: list[Any]) -> list[Any]:
        """The function on flat lists: row leaves of any length, and shared leaves."""
        cut, kept = iter(rows), iter(shared)
        found = self.outputs(*(next(kept) if axis is None else next(cut) for axis in self.axes))
        structures: list[Any] = [jtu.tree_structure(found), jtu.tree_structure(self.result)]
        if structures[0] != structures[1]:
            raise ValueError(
                f"{self.label} got a result {structures[0]} from a chunk and {structures[1]} from all {self.length} "
                "rows. Expected one structure for any number of rows."
            )
        return [jnp.asarray(leaf) for leaf in jtu.tree_leaves(found)]
