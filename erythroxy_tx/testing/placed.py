"""A function in the places where users put one, with the transforms around it: a method of an object, a method of an
`equinox.Module`, called by keyword, unpickled.
"""

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import positional_names
from erythroxy_tx.core.signature import signature_of
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.core.transform import with_innermost

Fn = Callable[..., Any]


def as_method(fn: Fn) -> Fn:
    """As a method of an object with an attribute."""

    class Holder:
        method = _taking_self(fn)

        def __init__(self) -> None:
            self.unit = np.float32(1)

    return Holder().method


def as_module(fn: Fn) -> Fn:
    """As a method of an `equinox.Module` with a field."""

    class Holder(eqx.Module):
        unit: Any
        method = _taking_self(fn)

    return Holder(np.float32(1)).method


def by_keyword(fn: Fn) -> Fn:
    """All arguments but the first by keyword."""

    def call(*args: Any) -> Any:
        names = positional_names(unwrapped(fn), len(args))
        return fn(*args[:1], **dict(zip(names[1:], args[1:], strict=True)))

    return call


def unpickled(fn: Fn) -> Fn:
    """Pickled and unpickled."""
    return pickle.loads(pickle.dumps(fn))  # noqa: S301  # of our own making


def _taking_self(fn: Any) -> Fn:
    """The function with the transforms around it, as it stands in the body of a class."""
    inner = unwrapped(fn)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
        return inner(*args, **kwargs)

    method.__name__, method.__qualname__ = name_of(inner).rpartition(".")[2], name_of(inner)
    if (signature := signature_of(inner)) is not None:
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        rest = [p.replace(kind=max(p.kind, p.POSITIONAL_OR_KEYWORD)) for p in signature.parameters.values()]
        method.__signature__ = inspect.Signature([first, *rest])  # type: ignore[attr-defined]
    return with_innermost(fn, method) if isinstance(fn, Transform) else method
