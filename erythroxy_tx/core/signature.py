"""The arguments of one call: their names, how they are written for a person, and which of them are
traced. Not here: what becomes of those that are not (`static.py`).
"""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu


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
        known = getattr(fn, "user_signature", None)
        return known if isinstance(known, inspect.Signature) else inspect.signature(fn)
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


_MADE_OF_A_FUNCTION = ("partial", "Partial", "OpenedMethod", "OpenedPartial")


def name_of(fn: Any) -> str:
    """What to call a callable in a message: its own name, or that of the function it is made of."""
    while type(fn).__name__ in _MADE_OF_A_FUNCTION:
        fn = fn.func
    names = (getattr(fn, name, None) for name in ("__qualname__", "__name__"))
    return next((name for name in names if isinstance(name, str)), type(fn).__name__)


def is_traced(leaf: Any) -> bool:
    """Arrays and numeric Python scalars, and the structs that stand for arrays when nothing is run."""
    return eqx.is_array_like(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
