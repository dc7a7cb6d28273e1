"""Holding a relocated function's result against its numpy reference: what may differ, and how a difference is
told. Not here: when the reference runs.
"""

from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.compare import Comparison
from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.compare import host_array
from erythroxy_tx.core.contract import Close

_NARROWED = {"float64": "float32", "complex128": "complex64"}  # what JAX does without x64, within `rtol`


def dtype_fault(reference: Any, candidate: Any) -> str | None:
    """What is wrong with a change of dtype. Narrower floats are within the tolerance; anything else is another
    function: an integer that became narrower wraps.
    """
    before, after = host_array(reference).dtype, host_array(candidate).dtype
    if before == after or _NARROWED.get(before.name) == after.name:
        return None
    fault = f"dtype {before} → {after}"
    if before.kind in "iu" and after.kind in "iu" and np.size(reference):
        limits, low, high = np.iinfo(after), int(np.min(reference)), int(np.max(reference))
        if low < limits.min or high > limits.max:
            return f"{fault}, and the reference has values from {low} to {high}, outside {limits.min} to {limits.max}"
        return f"{fault} (every value fits; cast the reference if that is meant)"
    return fault


def narrowed(reference: Any, candidate: Any) -> list[str]:
    """The changes of dtype that are allowed, to be named: `result[0]: float64 → float32`."""
    pairs = zip(jtu.tree_flatten_with_path(reference)[0], jtu.tree_leaves(candidate), strict=True)
    return [
        f"result{jtu.keystr(path)}: {host_array(a).dtype} → {host_array(b).dtype}"
        for (path, a), b in pairs
        if host_array(a).dtype != host_array(b).dtype and dtype_fault(a, b) is None
    ]


def compare_relocated(reference: Any, candidate: Any, rtol: float, atol: float) -> Comparison:
    """Compare under `max |candidate - reference| <= atol + rtol * max |reference|` for each leaf; integers and
    bools must be equal.
    """
    reference, candidate = as_tuples(reference), as_tuples(candidate)
    names = ("numpy", "relocated")
    return compare(reference, candidate, Close(rtol), names=names, dtype_fault=dtype_fault, atol=atol)


def as_tuples(tree: Any) -> Any:
    """A result with its lists and named tuples as tuples. numpy and JAX name some differently (`EighResult`): what
    counts is the nesting and the order.
    """
    if isinstance(tree, (list, tuple)):
        return tuple(map(as_tuples, tree))
    if isinstance(tree, dict):
        return {key: as_tuples(value) for key, value in tree.items()}
    return tree


def ties(reference: Any, candidate: Any, inputs: list[tuple[str, Any]]) -> list[str]:
    """Which outputs are indices that differ only among equal values of an input: an argsort or a top-k with ties."""
    found = []
    leaves = zip(jtu.tree_flatten_with_path(reference)[0], jtu.tree_leaves(candidate), strict=True)
    for (path, before), after in leaves:
        a, b = host_array(before), host_array(after)
        if a.dtype.kind in "iu" and b.dtype.kind in "iu" and a.shape == b.shape and (a != b).any():
            found += [f"result{jtu.keystr(path)} is equal up to ties: {told}" for told in _tied(a, b, inputs)][:1]
    return found


def _tied(a: np.ndarray, b: np.ndarray, inputs: list[tuple[str, Any]]) -> list[str]:
    told = []
    for name, leaf in inputs:
        values = host_array(leaf)
        for axis in range(values.ndim):
            left, right = _take(values, a, axis), _take(values, b, axis)
            if left is not None and right is not None and np.array_equal(left, right, equal_nan=_has_nan(values)):
                told.append(
                    f"both pick the same values of {name} along axis {axis}, indices differ only where those are equal"
                )
    return told


def _has_nan(values: np.ndarray) -> bool:
    return bool(jnp.issubdtype(values.dtype, np.inexact))


def _take(values: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray | None:
    """The values that an index output picks along an axis, or None where it cannot be one."""
    length = values.shape[axis]
    if not length or index.min(initial=0) < 0 or index.max(initial=0) >= length:
        return None
    others = [k for k in range(values.ndim) if k != axis]
    if index.ndim == values.ndim and all(index.shape[k] == values.shape[k] for k in others):
        repeats = (np.diff(np.sort(index, axis), axis=axis) == 0).any()  # no sort picks an element twice
        return None if repeats else np.take_along_axis(values, index, axis)
    if index.shape == values.shape[:axis] + values.shape[axis + 1 :]:  # an argmin or argmax
        return np.take_along_axis(values, np.expand_dims(index, axis), axis)
    return None
