"""What one row of metrics is: the names, shapes and dtypes that every row of a buffer has. Not here: the rows
(`buffers/ring.py`).
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.runtime.buffers.ring import Struct

CALL = "tx.MetricBuffer"


class Form(NamedTuple):
    """What a row is."""

    treedef: Any
    names: tuple[str, ...]
    structs: tuple[Struct, ...]

    def is_of(self, leaves: list[Any], treedef: Any) -> bool:
        """Whether arrays are a row of it."""
        return treedef == self.treedef and all(
            type(leaf) is _compat.ArrayImpl and leaf.dtype == dtype and leaf.shape == shape
            for leaf, (shape, dtype) in zip(leaves, self.structs, strict=True)
        )

    def told(self) -> list[str]:
        arrays = [jax.ShapeDtypeStruct(*struct) for struct in self.structs]
        return [f"{name}: {shape_of(array)}" for name, array in zip(self.names, arrays, strict=True)]


def form_of(tree: Any, *, like: Form | None = None, on_host: bool = False) -> Form:
    """The form of a row, which has to be that of the first."""
    paths, treedef = jtu.tree_flatten_with_path(tree)
    names = tuple(_named(path) for path, _ in paths)
    structs = tuple(_struct_of(name, leaf, on_host) for name, (_, leaf) in zip(names, paths, strict=True))
    form = Form(treedef, names, structs)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{CALL} got {', '.join(form.told()) or 'no arrays'}. Expected metrics of different names.")
    if like is not None and form != like:
        differ = [told for told in form.told() if told not in like.told()]
        raise TypeError(
            f"{CALL}.append got {', '.join(differ or form.told())}. Expected what the first append had, "
            f"{', '.join(like.told())}. Fix: one buffer for each kind of row."
        )
    return form


def _struct_of(name: str, leaf: Any, on_host: bool) -> Struct:
    told = f"{CALL} got {name}: {shape_of(leaf)}"
    if on_host and isinstance(leaf, jax.core.Tracer):
        raise TypeError(f"{told}, a tracer outside of its trace. Expected what the traced function returned.")
    if on_host and not isinstance(leaf, jax.Array):
        raise TypeError(
            f"{told} of the host, which each append would transfer. Expected arrays of JAX. Fix: return it from the "
            "compiled step; numbers of the host go into a list."
        )
    if on_host and not leaf.is_fully_replicated:
        raise ValueError(f"{told}, of which each device has a part. Fix: reduce it in the compiled step.")
    if not is_traced(leaf):
        raise TypeError(f"{told}. Expected arrays.")
    dtype = jnp.result_type(leaf) if isinstance(leaf, (bool, int, float, complex)) else leaf.dtype
    is_float = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize > 1
    if not is_float and not jnp.issubdtype(dtype, jnp.integer) and not jnp.issubdtype(dtype, jnp.bool_):
        raise TypeError(f"{told}. Expected real numbers, of floats those of 16 bits and more.")
    return np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype)


def _named(path: tuple) -> str:
    """`loss`, `norm['encoder']`, `[0]`; `value` for what is no tree."""
    first = getattr(path[0], "key", getattr(path[0], "name", None)) if path else "value"
    return first + jtu.keystr(path[1:]) if isinstance(first, str) else jtu.keystr(path)
