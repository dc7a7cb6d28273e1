"""A callable whose arrays are arguments as well, for what compiles a call rather than a callable: its attributes, or
those of the object of a method, are looked at when it is called.
"""

from collections.abc import Callable
from typing import Any

from erythroxy_tx.core.callables import is_leaf
from erythroxy_tx.core.callables import opened
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.core.transform import with_innermost

_CALLED = "the object of the method"


def among_arguments(fn: Callable[..., Any], kwargs: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A function and keyword arguments that call the same: of a plain function, itself and its own."""
    innermost = unwrapped(fn)
    form = opened(innermost)
    if form is innermost and is_leaf(innermost):
        return fn, kwargs
    return _applied, kwargs | {_CALLED: with_innermost(fn, form) if isinstance(fn, Transform) else form}


def _applied(*args: Any, **kwargs: Any) -> Any:
    return kwargs.pop(_CALLED)(*args, **kwargs)
