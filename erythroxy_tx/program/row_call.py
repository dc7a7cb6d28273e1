"""One call of a function on rows: which leaves are rows, how many rows there are, and the same function on
flat lists of leaves. Not here: how the rows are cut.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from erythroxy_tx import _compat
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.core.static import split


class RowCall:
    """The arguments of one call, split into row leaves, shared leaves and what is static.

    **Arguments:**

    - `label`: what is called, for errors. `named`: the user's function, for the names of its arguments.
    - `fn`: what runs. `args`, `kwargs`: the arguments of the call, or structs in their place.
    - `in_axes`: as in `jax.vmap`; keyword arguments are shared.

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
        self.label, self._named, self._fn, self._in_axes = label, named, fn, in_axes
        axes = in_axes.spread(args, label, "in_axes", "the positional arguments")
        leaves = named_leaves(named, args, kwargs)
        axes += [None] * (len(leaves) - len(axes))
        self.static, self.dynamic = split((args, kwargs), label)
        traced = [(name, leaf, axis) for (name, leaf), axis in zip(leaves, axes, strict=True) if is_traced(leaf)]
        self.axes = [_axis(label, *entry) for entry in traced]
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
        return RowCall(self.label, self._named, self._fn, args, kwargs, self._in_axes)

    @property
    def key(self) -> tuple:
        """What a compiled program depends on: the static half, and the types of the traced leaves."""
        types = [struct_of(leaf) for leaf in self.dynamic]
        return self.static, tuple((t.shape, t.dtype, t.weak_type) for t in types)

    @property
    def unknown(self) -> bool:
        """Whether any dimension is an unknown number, as inside of a trace of ours."""
        return any(_compat.is_symbolic(size) for leaf in self.dynamic for size in getattr(leaf, "shape", ()))

    @property
    def rows(self) -> list[Any]:
        return [leaf for leaf, axis in zip(self.dynamic, self.axes, strict=True) if axis is not None]

    @property
    def shared(self) -> list[Any]:
        return [leaf for leaf, axis in zip(self.dynamic, self.axes, strict=True) if axis is None]

    @property
    def row_axes(self) -> list[int]:
        return [axis for axis in self.axes if axis is not None]

    def whole(self) -> Any:
        """Call the function on all rows at once."""
        args, kwargs = self.static.merge(tuple(self.dynamic))
        return self._fn(*args, **kwargs)

    def flat(self, rows: list[Any], shared: list[Any]) -> list[Any]:
        """The function on flat lists: row leaves of any length, and shared leaves."""
        cut, kept = iter(rows), iter(shared)
        found = self._outputs(*(next(kept) if axis is None else next(cut) for axis in self.axes))
        structures: list[Any] = [jtu.tree_structure(found), jtu.tree_structure(self.result)]
        if structures[0] != structures[1]:
            raise ValueError(
                f"{self.label} got a result {structures[0]} from a chunk and {structures[1]} from all {self.length} "
                "rows. Expected one structure for any number of rows."
            )
        return [jnp.asarray(leaf) for leaf in jtu.tree_leaves(found)]

    def flat_whole(self, *dynamic: Any) -> list[Any]:
        """The function on its traced leaves, whatever their number of rows."""
        return [jnp.asarray(leaf) for leaf in jtu.tree_leaves(self._outputs(*dynamic))]

    @functools.cached_property
    def result(self) -> Any:
        """The types of the one-shot result. The function is traced, not run."""
        return self._traced[1]

    @functools.cached_property
    def _traced(self) -> tuple[Any, Any]:
        return jax.make_jaxpr(self._outputs, return_shape=True)(*map(struct_of, self.dynamic))

    @property
    def concrete(self) -> Any:
        """The program for the number of rows at hand."""
        return self._traced[0]

    @property
    def result_leaves(self) -> list[Any]:
        """The types of the leaves of the one-shot result."""
        return jtu.tree_leaves(self.result)

    def _outputs(self, *dynamic: Any) -> Any:
        args, kwargs = self.static.merge(dynamic)
        result = self._fn(*args, **kwargs)
        for path, leaf in jtu.tree_flatten_with_path(result)[0]:
            if not eqx.is_array_like(leaf):
                raise ValueError(
                    f"{self.label} got result{jtu.keystr(path)} of type {type(leaf).__name__}. Expected arrays and "
                    "numbers. Fix: return what is no array outside the function."
                )
        return result

    def unflatten(self, leaves: list[Any]) -> Any:
        """Give a flat list of outputs the structure of the result."""
        return jtu.tree_unflatten(jtu.tree_structure(self.result), leaves)


def _axis(label: str, name: str, leaf: Any, axis: int | None) -> int | None:
    """The row axis of a leaf, counted from the front."""
    if axis is None:
        return None
    shape = getattr(leaf, "shape", ())
    if not -len(shape) <= axis < len(shape):
        what = "a scalar where rows are expected" if not shape else f"no axis {axis}"
        what += ", as each number of a list is one; np.asarray the list" if not shape and name.endswith("]") else ""
        raise ValueError(
            f"{label} got {name}: {shape_of(leaf)}, {what}. Expected rows along axis {axis}. Fix: None in in_axes= for "
            "what every chunk gets whole, or pass it by keyword."
        )
    return axis % len(shape)
