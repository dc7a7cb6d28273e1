"""The arguments of one call: their names, how they are written for a person, and which of them are
traced. Arrays and numeric Python scalars are traced, everything else is static.
Not here: what is done with them.
"""

import inspect
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu

from erythroxy_tx.errors import StaticArgumentError

_OPAQUE = (type, type(inspect))  # classes and modules: identity is what they mean


def shape_of(value: Any) -> str:
    """Write a value as JAX writes its type: `f32[8,131]`, or the Python type of what is no array."""
    if not hasattr(value, "dtype"):
        return type(value).__name__
    name = str(value.dtype).replace("complex", "c").replace("bfloat", "bf").replace("float", "f")
    return f"{name.replace('uint', 'u').replace('int', 'i')}[{','.join(map(str, value.shape))}]"


def struct_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape, dtype and weak type of a traced leaf, without its value."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    kind = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)


def signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a callable, or None where Python cannot tell (some builtins)."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def positional_names(fn: Callable[..., Any], count: int) -> list[str]:
    """The user's own names of the first `count` positional arguments; `args[2]` past what is named."""
    signature = signature_of(fn)
    names: list[str] = []
    for parameter in signature.parameters.values() if signature else ():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        elif parameter.kind is not parameter.KEYWORD_ONLY and parameter.kind is not parameter.VAR_KEYWORD:
            names.append(parameter.name)
    return (names + [f"args[{i}]" for i in range(len(names), count)])[:count]


def named_leaves(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Every leaf of a call, in the order of `tree_leaves((args, kwargs))`, with its path in the user's names:
    `x`, `batch['tokens']`, `params[0].w`.
    """
    roots = list(zip(positional_names(fn, len(args)), args, strict=True)) + sorted(kwargs.items())
    return [
        (name + jtu.keystr(path), leaf) for name, value in roots for path, leaf in jtu.tree_flatten_with_path(value)[0]
    ]


def name_of(fn: Any) -> str:
    """What to call a callable in a message: its own name, or that of the function it is made of."""
    if hasattr(fn, "func"):  # a partial, an opened method
        return name_of(fn.func)
    return getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__name__


def is_traced(leaf: Any) -> bool:
    """Arrays and numeric Python scalars, and the structs that stand for arrays when nothing is run."""
    return eqx.is_array_like(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def has_static(args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether any leaf of a call is neither an array nor a numeric Python scalar."""
    return not all(map(is_traced, jtu.tree_leaves((args, kwargs))))


class Declared:
    """An argument that the user named in `static_argnames=`: one static leaf, whatever it is."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Declared) and type(self.value) is type(other.value) and self.value == other.value


def declare(
    fn: Callable[..., Any], names: Collection[str], args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Mark the arguments that are named in `names` as static, by position or by keyword."""
    if not names:
        return args, kwargs
    positions = positional_names(fn, len(args))
    marked = tuple(Declared(a) if name in names else a for name, a in zip(positions, args, strict=True))
    return marked, {key: Declared(a) if key in names else a for key, a in kwargs.items()}


class Static:
    """The static half of a call: hashable, equal only where every static value is equal *and* of one type.

    `1`, `1.0` and `True` are equal to Python; as static values they give different programs.
    """

    def __init__(self, treedef: Any, values: tuple[tuple[int, Any], ...], traced: tuple[int, ...]):
        self.treedef, self.values, self.traced = treedef, values, traced
        self._key = (treedef, traced, tuple((i, type(v), v) for i, v in values))
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def merge(self, dynamic: tuple) -> Any:
        """Put the traced leaves back where they came from."""
        leaves: list[Any] = [None] * self.treedef.num_leaves
        for i, value in self.values:
            leaves[i] = value.value if isinstance(value, Declared) else value
        for i, value in zip(self.traced, dynamic, strict=True):
            leaves[i] = value
        return jtu.tree_unflatten(self.treedef, leaves)


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
    by_identity = type(leaf).__hash__ is object.__hash__ and not isinstance(leaf, _OPAQUE)
    has_state = bool(getattr(leaf, "__dict__", None)) and not callable(leaf) and not isinstance(leaf, Declared)
    try:
        hash(leaf)
    except TypeError:
        fault = "which cannot be hashed, so a changed value could not be told from the old one"
    else:
        if not (by_identity and has_state):
            return
        fault = "which is hashed by identity: a changed attribute would be served stale"
    path = jtu.keystr(jtu.tree_flatten_with_path(tree)[0][position][0])
    raise StaticArgumentError(
        f"{label} got a static value of type {type(leaf).__name__} at {path}, {fault}. Expected arrays and numbers "
        "(traced), or hashable values. Fix: register the class as a pytree, make it a frozen dataclass, "
        "or name the argument in static_argnames= if it never changes."
    )
