"""What a callable is made of: a plain function, or a pytree that holds arrays and a function.

A bound method of an ordinary object is opened into the object's attributes, so that a changed attribute
is an argument of the compiled program and never a stale constant. A `functools.partial` is opened likewise.
"""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from erythroxy_tx.core.signature import name_of
from erythroxy_tx.errors import StaticArgumentError


class OpenedMethod(eqx.Module):
    """A method of an ordinary object whose attributes are the leaves."""

    fields: dict[str, Any]
    cls: type = eqx.field(static=True)
    func: Callable[..., Any] = eqx.field(static=True)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(functools.partial(self.func, None))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        instance: Any = object.__new__(self.cls)
        vars(instance).update(self.fields)
        result = self.func(instance, *args, **kwargs)
        after = vars(instance)
        changed = [n for n in {**self.fields, **after} if after.get(n, self) is not self.fields.get(n, self)]
        if changed:
            raise StaticArgumentError(
                f"{name_of(self.func)} sets self.{', self.'.join(changed)} while it is traced; the value would be "
                "lost or would leak a tracer. Expected a method that only reads self. Fix: return the new value."
            )
        return result


def opened(fn: Any) -> Any:
    """The pytree form of a callable: itself where it is a plain function or a pytree already."""
    if isinstance(fn, functools.partial) and not isinstance(fn, jtu.Partial):
        return jtu.Partial(fn.func, *fn.args, **fn.keywords)
    if isinstance(fn, types.MethodType):
        if is_leaf(fn.__self__) and hasattr(fn.__self__, "__dict__") and not isinstance(fn.__self__, type):
            return _open_instance(fn.__self__, fn.__func__)
        return jtu.Partial(fn.__func__, fn.__self__)
    call = getattr(type(fn), "__call__", None)  # noqa: B004  # what is asked is who wrote it
    if isinstance(call, types.FunctionType) and is_leaf(fn) and not hasattr(fn, "__wrapped__"):
        return _open_instance(fn, call)
    return fn


def is_leaf(value: Any) -> bool:
    """Whether JAX sees a value as one leaf."""
    return jtu.all_leaves([value])


def _open_instance(instance: Any, func: Callable[..., Any]) -> OpenedMethod:
    return OpenedMethod(dict(vars(instance)), type(instance), func)
