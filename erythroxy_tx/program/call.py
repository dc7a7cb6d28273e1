"""One call of a function: its static half, its traced leaves, and the same function on a flat list of them.
Not here: which of them have rows (`row_call.py`, `pad_call.py`).
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.core.static import split


class Call:
    """The arguments of one call, split into what is traced and what is static.

    **Arguments:**

    - `label`: what is called, for errors. `named`: the user's function, for the names of its arguments.
    - `fn`: what runs. `args`, `kwargs`: the arguments of the call, or structs in their place.
    """

    def __init__(self, label: str, named: Callable[..., Any], fn: Callable[..., Any], args: tuple, kwargs: dict):
        self.label, self.named, self.fn = label, named, fn
        self._parts = args, kwargs
        self.static, self.dynamic = split((args, kwargs), label)

    @functools.cached_property
    def names(self) -> list[str]:
        """What the user calls each traced leaf."""
        return [name for name, leaf in named_leaves(self.named, *self._parts) if is_traced(leaf)]

    @property
    def key(self) -> tuple:
        """What a compiled program depends on: the static half, and the types of the traced leaves."""
        types = [struct_of(leaf) for leaf in self.dynamic]
        return self.static, tuple((t.shape, t.dtype, t.weak_type) for t in types)

    @functools.cached_property
    def unknown(self) -> bool:
        """Whether any dimension is an unknown number, as inside of a trace of ours."""
        traced = [leaf for leaf in self.dynamic if isinstance(leaf, (jax.core.Tracer, jax.ShapeDtypeStruct))]
        return any(_compat.is_symbolic(size) for leaf in traced for size in leaf.shape)

    def whole(self) -> Any:
        """Call the function on all rows at once."""
        args, kwargs = self.static.merge(tuple(self.dynamic))
        return self.fn(*args, **kwargs)

    def flat_whole(self, *dynamic: Any) -> list[Any]:
        """The function on its traced leaves, whatever their number of rows."""
        return [jnp.asarray(leaf) for leaf in jtu.tree_leaves(self.outputs(*dynamic))]

    @functools.cached_property
    def result(self) -> Any:
        """The types of the one-shot result. The function is traced, not run."""
        return self._traced[1]

    @functools.cached_property
    def _traced(self) -> tuple[Any, Any]:
        return jax.make_jaxpr(self.outputs, return_shape=True)(*map(struct_of, self.dynamic))

    @property
    def concrete(self) -> Any:
        """The program for the number of rows at hand."""
        return self._traced[0]

    @property
    def result_leaves(self) -> list[Any]:
        """The types of the leaves of the one-shot result."""
        return jtu.tree_leaves(self.result)

    def outputs(self, *dynamic: Any) -> Any:
        """The result of the function on its traced leaves."""
        args, kwargs = self.static.merge(dynamic)
        result = self.fn(*args, **kwargs)
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

    def like_result(self, leaves: list[Any]) -> Any:
        """Give a flat list of outputs the structure, the dtypes and the weak types of the result."""
        return self.unflatten([like(x, leaf) for x, leaf in zip(leaves, self.result_leaves, strict=True)])


def like(x: Any, leaf: Any) -> Any:
    """A value with the dtype and the weak type of another."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):  # a random key
        return x
    if isinstance(x, jax.Array) and (x.dtype, x.weak_type) == (leaf.dtype, leaf.weak_type):
        return x  # outside of a trace, a conversion is a program of its own
    return _compat.convert(x, leaf.dtype, weak_type=leaf.weak_type)


def axis_of(label: str, told: Callable[[], str], leaf: Any, axis: int) -> int:
    """The row axis of a leaf, counted from the front. **Arguments:** `told`: what the user calls it.

    **Raises:** `ValueError` if it is not there.
    """
    shape = getattr(leaf, "shape", ())
    if not -len(shape) <= axis < len(shape):
        name = told()
        what = "a scalar where rows are expected" if not shape else f"no axis {axis}"
        what += ", as each number of a list is one; np.asarray the list" if not shape and name.endswith("]") else ""
        raise ValueError(
            f"{label} got {name}: {shape_of(leaf)}, {what}. Expected rows along axis {axis}. Fix: None in in_axes= for "
            "what is no rows, or pass it by keyword."
        )
    return axis % len(shape)
