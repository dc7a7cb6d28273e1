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

from erythroxy_tx.core.instance import attributes
from erythroxy_tx.core.instance import is_plain
from erythroxy_tx.core.instance import with_attributes
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.errors import StaticArgumentError


class OpenedMethod(eqx.Module):
    """A method of an ordinary object whose attributes are the leaves."""

    fields: dict[str, Any]
    cls: type
    func: Callable[..., Any]

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(functools.partial(self.func, None))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        instance = with_attributes(self.cls, self.fields)
        before = _parts(self.fields)
        result = self.func(instance, *args, **kwargs)
        after = _parts(attributes(instance))
        if changed := sorted(name for name in {**before, **after} if not _same(before.get(name), after.get(name))):
            raise StaticArgumentError(
                f"{name_of(self.func)} sets self.{', self.'.join(changed)} while it is traced; the value would be "
                "lost or would leak a tracer. Expected a method that only reads self. Fix: return the new value."
            )
        return result


class OpenedPartial(eqx.Module):
    """A function with its first arguments, which are leaves."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(functools.partial(self.func, *self.args, **self.kwargs))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.func(*self.args, *args, **{**self.kwargs, **kwargs})


def opened(fn: Any) -> Any:
    """The pytree form of a callable: itself where it is a plain function or a pytree already."""
    if isinstance(fn, functools.partial):
        return OpenedPartial(opened(fn.func), fn.args, fn.keywords)
    if isinstance(fn, types.MethodType):
        return _opened_method(fn.__self__, fn.__func__)
    call = getattr(type(fn), "__call__", None)  # noqa: B004  # what is asked is who wrote it
    if isinstance(call, types.FunctionType) and is_leaf(fn) and not hasattr(fn, "__wrapped__"):
        return _opened_method(fn, call)
    return fn


def is_leaf(value: Any) -> bool:
    """Whether JAX sees a value as one leaf."""
    return jtu.all_leaves([value])


def _opened_method(instance: Any, func: Callable[..., Any]) -> OpenedMethod | OpenedPartial:
    if is_leaf(instance) and not isinstance(instance, type) and is_plain(type(instance)):
        return OpenedMethod(attributes(instance), type(instance), func)
    return OpenedPartial(func, (instance,), {})


def _parts(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: jtu.tree_flatten(value) for name, value in fields.items()}


def _same(before: Any, after: Any) -> bool:
    """Whether an attribute holds the very same leaves in the same structure."""
    if before is None or after is None:
        return False
    return before[1] == after[1] and all(map(lambda a, b: a is b, before[0], after[0]))
