"""The static half of a call: what is neither an array nor a number, told apart by value and type, or refused
where a changed value could not be told from the old one. Not here: the names of arguments (`signature.py`).
"""

import dataclasses
import functools
import types
import weakref
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.instance import attributes
from erythroxy_tx.core.instance import is_plain
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import positional_names
from erythroxy_tx.errors import StaticArgumentError


def has_static(args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether any leaf of a call is neither an array nor a numeric Python scalar, nor declared."""
    return not all(is_traced(leaf) or isinstance(leaf, Declared) for leaf in jtu.tree_leaves((args, kwargs)))


class Declared:
    """An argument that the user named in `static_argnames=`: one static leaf, whatever it is.

    **Raises:** `TypeError` if the value cannot be hashed.
    """

    def __init__(self, value: Any):
        self.value, self._key = value, _typed(value)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Declared) and self._key == other._key


def declare(
    fn: Callable[..., Any], names: Collection[str], args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Mark the arguments that are named in `names` as static, by position or by keyword."""
    if not names:
        return args, kwargs
    positions = positional_names(fn, len(args))
    marked = tuple(_declared(fn, name, a) if name in names else a for name, a in zip(positions, args, strict=True))
    return marked, {key: _declared(fn, key, a) if key in names else a for key, a in kwargs.items()}


def undeclare(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The arguments as they were before `declare`."""
    bare = lambda a: a.value if isinstance(a, Declared) else a  # noqa: E731
    return tuple(map(bare, args)), {key: bare(a) for key, a in kwargs.items()}


def _declared(fn: Callable[..., Any], name: str, value: Any) -> Declared:
    try:
        return value if isinstance(value, Declared) else Declared(value)
    except TypeError as error:
        raise StaticArgumentError(
            f"{name_of(fn)} got {name}: {type(value).__name__}, which static_argnames= names and which cannot be "
            f"hashed ({error}). Expected a hashable value. Fix: a tuple in place of a list or an array, a frozen "
            "dataclass in place of a dict."
        ) from error


class Static:
    """The static half of a call: hashable, equal only where every static value is equal *and* of one type.

    `1`, `1.0` and `True` are equal to Python; as static values they give different programs. Functions and classes
    are held weakly: what was compiled for them does not keep them.
    """

    def __init__(self, treedef: Any, values: tuple[tuple[int, Any], ...], traced: tuple[int, ...]):
        self.treedef, self.traced = treedef, traced
        self.values = tuple((i, _Weak(v) if _is_held_weakly(v) else v) for i, v in values)
        self._key = (treedef, traced, tuple((i, _typed(v)) for i, v in self.values))
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def merge(self, dynamic: tuple) -> Any:
        """Put the traced leaves back where they came from."""
        leaves: list[Any] = [None] * self.treedef.num_leaves
        for i, value in self.values:
            leaves[i] = value() if isinstance(value, _Weak) else value.value if isinstance(value, Declared) else value
        for i, value in zip(self.traced, dynamic, strict=True):
            leaves[i] = value
        return jtu.tree_unflatten(self.treedef, leaves)


class _Weak(weakref.ref):
    """A function or a class; equal where it is the same one."""


def _is_held_weakly(value: Any) -> bool:
    by_identity = type(value).__hash__ is object.__hash__ and type(value).__weakrefoffset__
    return isinstance(value, (type, types.FunctionType)) or bool(callable(value) and by_identity)


def _typed(value: Any) -> Any:
    """A value with the type of each of its parts, by which 1 and True, or 0.0 and -0.0, are told apart."""
    kind = type(value)
    if isinstance(value, (float, complex, np.generic)):
        return kind, repr(value)
    if isinstance(value, (tuple, frozenset)):
        return kind, (frozenset if isinstance(value, frozenset) else tuple)(map(_typed, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name, None) for field in dataclasses.fields(value) if field.compare]
        return kind, value, tuple(_typed(part) for part in parts if _has_equals(part))
    return kind, value


def _has_equals(value: Any) -> bool:
    """Whether a value is equal to some of other types, or holds such ones."""
    return isinstance(value, (int, float, complex, np.generic, tuple, frozenset)) or dataclasses.is_dataclass(value)


def split(tree: Any, label: str) -> tuple[Static, list[Any]]:
    """Divide a pytree into its static half and its traced leaves.

    **Arguments:**

    - `tree`: the arguments of a call, the callable among them where it holds arrays.
    - `label`: what is called, for errors.

    **Returns:** the static half, and the traced leaves in order.

    **Raises:** `StaticArgumentError` for a static value that has no hash, or that is told apart by identity
    while it holds state that can change (it would be served stale).
    """
    leaves, treedef = jtu.tree_flatten(tree)
    values, traced, dynamic = [], [], []
    for i, leaf in enumerate(leaves):
        if is_traced(leaf):
            traced.append(i)
            dynamic.append(leaf)
        else:
            _check_static(leaf, tree, i, label)
            values.append((i, leaf))
    return Static(treedef, tuple(values), tuple(traced)), dynamic


def _check_static(leaf: Any, tree: Any, position: int, label: str) -> None:
    if isinstance(leaf, Declared) or (fault := _fault(leaf)) is None:
        return
    path = jtu.keystr(jtu.tree_flatten_with_path(tree)[0][position][0])
    raise StaticArgumentError(
        f"{label} got a static value of type {type(leaf).__name__} at {path}, {fault}. Expected arrays and numbers "
        "(traced), or hashable values. Fix: register the class as a pytree, make it a frozen dataclass, "
        "or name the argument in static_argnames= if it never changes."
    )


def _fault(value: Any) -> str | None:
    """Why a changed value could not be told from the old one, or None if it could."""
    try:
        hash(value)
    except TypeError:
        return "which cannot be hashed, so a changed value could not be told from the old one"
    if isinstance(value, functools.partial):
        parts = (value.func, *value.args, *value.keywords.values())
        return next((fault for part in parts if (fault := _fault_of_part(part))), None)
    owner = getattr(value, "__self__", None) if callable(value) else None
    if owner is not None and not isinstance(owner, (type, types.ModuleType)):
        return _fault(owner)
    if _is_opaque(value) or not _is_identity(type(value)):
        return None
    if is_plain(type(value)) and not attributes(value):
        return None
    return "which is hashed by identity: a changed attribute would be served stale"


def _fault_of_part(part: Any) -> str | None:
    if isinstance(part, np.ndarray):
        return "which holds a numpy array: a changed array would be served stale"
    return None if is_traced(part) else _fault(part)


def _is_identity(kind: type) -> bool:
    of_jax = str(kind.__module__).partition(".")[0] in ("jax", "jaxlib")  # devices and meshes never change
    return kind.__hash__ is object.__hash__ and not of_jax


def _is_opaque(value: Any) -> bool:
    """Functions, classes and modules: identity is what they mean."""
    if isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return True
    by_python = isinstance(getattr(type(value), "__call__", None), types.FunctionType)  # noqa: B004  # who wrote it
    return callable(value) and (hasattr(value, "__wrapped__") or not by_python)
