"""What a decorator of this library is: an immutable `equinox.Module` around a callable, itself callable,
that compiles once for each function and each set of parameters. Not here: what any transform does.
"""

import copy
import dataclasses
import functools
import importlib
import operator
import weakref
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Hashable
from typing import Any
from typing import ClassVar

import equinox as eqx
import jax
import jax.tree_util as jtu

from erythroxy_tx.core import cache
from erythroxy_tx.core.callables import is_leaf
from erythroxy_tx.core.callables import opened
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import signature_of
from erythroxy_tx.core.static import Static
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.static import has_static
from erythroxy_tx.core.static import split
from erythroxy_tx.core.static import undeclare
from erythroxy_tx.errors import TransformOrderError

_COPIED = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")


class Transform(eqx.Module):
    """A wrapped callable: `fn` and the parameters of the transform, which are static.

    A pytree whose leaves are those of `fn`. Subclasses say what runs (`_runner`) and, where they compile,
    what is traced (`_traced`).
    """

    fn: Callable[..., Any]

    name: ClassVar[str]  # how messages name the transform, `tx.chunked`
    usage: ClassVar[str]  # how it is put on a function, for the error of one that is not
    compiles: ClassVar[bool] = False  # traces what is inside
    traceable: ClassVar[bool] = False  # works inside a trace; otherwise on the host only

    # Equinox turns each bound method into a pytree in Python; a call must not pay for that.
    __getattribute__ = object.__getattribute__

    # The call is an attribute look-up in C that hands out what is kept for this function: no frame of ours.
    __call__ = property(operator.attrgetter("_run"))

    @classmethod
    def around(cls, fn: Callable[..., Any], /, **parameters: Any) -> "Transform":
        """Wrap a callable. Equinox's own constructor is passed over: it warns of callables that are no pytrees."""
        if not callable(fn) and not isinstance(fn, (classmethod, staticmethod)):
            raise TypeError(f"{cls.name} got {shape_of(fn)} in place of a function. Expected {cls.usage}.")
        if cls.compiles and (host := _first_host_side(fn)) is not None:
            raise TransformOrderError(
                f"{cls.name} is wrapped around {host.name}, which works on the host and cannot run inside a compiled "
                f"program. Expected {host.name} on the outside. Fix: swap the two decorators."
            )
        wrapper = object.__new__(cls)
        wrapper.__dict__.update(parameters, fn=fn)
        wrapper.__dict__.update({name: value for name in _COPIED if (value := getattr(fn, name, None)) is not None})
        return wrapper

    def __getattr__(self, name: str) -> Any:
        """What a transform further inside offers: `.resident()`, `.chunks()`, `.report()`."""
        inner = self.__dict__.get("fn")
        if isinstance(inner, Transform) and not name.startswith("_"):
            return getattr(inner, name)
        raise AttributeError(f"{self.name} has no attribute {name!r}")

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fn

    def __repr__(self) -> str:
        given = {n: v for n, v in self._parameters().items() if v not in (None, ())}
        told = ", ".join(f"{n}={getattr(v, '__name__', None) or repr(v)}" for n, v in given.items())
        return (
            f"{self.name}({told})({self.fn!r})"
            if isinstance(self.fn, Transform)
            else f"{self.name}({told})({name_of(self.fn)})"
        )

    @functools.cached_property
    def _run(self) -> Callable[..., Any]:
        return self._runner()

    @abstractmethod
    def _runner(self) -> Callable[..., Any]:
        """What a call runs, for the lifetime of this wrapper."""

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        """What is compiled, called with the arguments of the call on tracers."""
        return self.fn(*args, **kwargs)

    def _promise(self, args: tuple, kwargs: dict[str, Any]) -> Any:  # noqa: ARG002
        """The contract for these arguments: one for all outputs, or a pytree of them like the result."""
        return Bitwise()

    def _reference(self) -> Callable[..., Any] | None:
        """What it is held to, where that is not the function inside as it is."""
        return None

    def _keyed(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments as far as its programs depend on them."""
        return args, kwargs

    def _told(self, args: tuple, kwargs: dict[str, Any]) -> list[str]:  # noqa: ARG002
        """What it does with these arguments, in words: a line, and more that belong to it."""
        return []

    def _in_small_chunks(self) -> dict[str, Any]:
        """The parameters with which a few rows run in two chunks or more."""
        return self._parameters()

    def _static_names(self) -> tuple[str, ...]:
        return ()

    # ------------------------------------------------------------------ where state lives

    def _kept(self, what: Hashable, build: Callable[[], Any]) -> Any:
        """State of this wrapper, shared by every wrapper of the same function with the same parameters."""
        cache.shortcut(self, _remembered(type(self)))
        owner, structure = unwrapped(self), jtu.tree_structure(self)
        function, instance = getattr(owner, "__func__", None), getattr(owner, "__self__", None)
        if function is None:
            return cache.keep(owner, (what, structure), build)
        if isinstance(instance, type):  # a bound method is a new object at each access
            return cache.keep(function, (what, structure, weakref.ref(instance)), build)
        if not type(instance).__weakrefoffset__:  # a named tuple, slots: what is kept cannot go with it
            return cache.keep(function, (what, structure), build)
        return cache.keep(instance, (what, structure, function), build)

    @functools.cached_property
    def program(self) -> Callable[..., Any]:
        """The compiled form of `_traced`: a callable that traces and compiles on first use."""
        cache.shortcut(self, _remembered(type(self)))
        innermost = unwrapped(self)
        if opened(innermost) is innermost and is_leaf(innermost):
            structure = jtu.tree_structure(self)
            return cache.keep(innermost, ("program", structure), lambda: _of_function(self, innermost))
        return _of_tree(self)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower the program that a call with these arguments runs, without running it.

        **Arguments:** as the function's; a `jax.ShapeDtypeStruct` serves as an array.

        **Returns:** a `jax.stages.Lowered`; `.compile().memory_analysis()` tells its bytes.
        """
        return self.program.lower(*args, **kwargs)  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ methods, copies, pickles

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        is_method_of_class = isinstance(unwrapped(self), (classmethod, staticmethod))
        if (instance is None and not is_method_of_class) or not hasattr(self.fn, "__get__"):
            return self
        return self.around(self.fn.__get__(instance, owner), **self._parameters())

    def _parameters(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in dataclasses.fields(self) if field.name != "fn"}

    def __reduce__(self) -> Any:
        """By name where there is one: a decorated function is found there, and what it is made of no longer is."""
        path = self.__module__, str(self.__dict__.get("__qualname__"))
        instance, name = getattr(unwrapped(self), "__self__", None), path[1].rpartition(".")[2]
        if instance is not None and _is_same(getattr(instance, name, None), self):
            return getattr, (instance, name)
        try:
            found = _named(*path)
        except (ImportError, AttributeError):
            found = None
        return (_named, path) if _is_same(found, self) else (_rebuilt, (type(self), self.fn, self._parameters()))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Transform":
        return self.around(copy.deepcopy(self.fn, memo), **self._parameters())


def _rebuilt(cls: type[Transform], fn: Callable[..., Any], parameters: dict[str, Any]) -> Transform:
    return cls.around(fn, **parameters)


def _named(module: str, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _is_same(found: Any, wrapper: Transform) -> bool:
    """Whether two wrappers are the same one of the same function: methods make a new one at each access."""
    return isinstance(found, Transform) and bool(found == wrapper)


def with_innermost(wrapper: Transform, fn: Callable[..., Any]) -> Transform:
    """The same stack around another function."""
    inner = wrapper.fn
    return wrapper.around(with_innermost(inner, fn) if isinstance(inner, Transform) else fn, **wrapper._parameters())


@functools.cache
def _remembered(cls: type[Transform]) -> frozenset[str]:
    return frozenset(name for name in dir(cls) if isinstance(getattr(cls, name), functools.cached_property))


def in_small_chunks(fn: Any) -> Any:
    """The same stack, with what is chunked in it cut into two chunks or more."""
    if not isinstance(fn, Transform):
        return fn
    return fn.around(in_small_chunks(fn.fn), **fn._in_small_chunks())


def unwrapped(fn: Any) -> Any:
    """The callable inside any number of transforms."""
    while isinstance(fn, Transform):
        fn = fn.fn
    return fn


def _first_host_side(fn: Any) -> Transform | None:
    while isinstance(fn, Transform) and fn.traceable:
        fn = fn.fn
    return fn if isinstance(fn, Transform) else None


def _of_function(wrapper: Transform, function: Callable[..., Any]) -> Callable[..., Any]:
    """The program of a plain function. It holds the function weakly: it lives in the function's home."""
    structure, reference, label = jtu.tree_structure(wrapper), weakref.ref(function), name_of(function)
    names = wrapper._static_names()

    def traced(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = undeclare(args, kwargs)
        return jtu.tree_unflatten(structure, [reference()])._traced(*args, **kwargs)

    def merged(static: Static, *dynamic: Any) -> Any:
        args, kwargs = static.merge(dynamic)
        return traced(*args, **kwargs)

    signature, code = signature_of(function), getattr(function, "__code__", None)
    for each in (traced, merged):  # a message tells of the user's
        vars(each).update(user_code=code, user_signature=signature)
    traced.__qualname__ = merged.__qualname__ = label
    traced.__name__ = merged.__name__ = label.rpartition(".")[2]
    if signature is not None:
        traced.__signature__ = signature  # type: ignore[attr-defined]
    jitted = jax.jit(traced, static_argnames=names or None)
    with_static = jax.jit(merged, static_argnums=0)

    def staged(args: tuple, kwargs: dict[str, Any]) -> tuple[Any, tuple, dict[str, Any]]:
        args, kwargs = declare(traced, names, args, kwargs)
        if not has_static(args, kwargs):
            return jitted, args, kwargs
        static, dynamic = split((args, kwargs), label)
        return with_static, (static, *dynamic), {}

    takes_static = False

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal takes_static
        if names:
            args, kwargs = declare(traced, names, args, kwargs)
        if not takes_static:
            try:
                return jitted(*args, **kwargs)
            except TypeError:  # JAX refuses a static value before it traces; any other TypeError is the user's
                if not has_static(args, kwargs):
                    raise
            takes_static = True  # or each call would pay for a refusal
        call, args, kwargs = staged(args, kwargs)
        return call(*args, **kwargs)

    def lower(*args: Any, **kwargs: Any) -> jax.stages.Lowered:
        call, args, kwargs = staged(args, kwargs)
        return call.lower(*args, **kwargs)

    run.lower = lower  # type: ignore[attr-defined]
    return run


def _of_tree(wrapper: Transform) -> Callable[..., Any]:
    """The program of a callable that is a pytree: its arrays are arguments, the rest of it is static."""
    function = unwrapped(wrapper)
    names, label = wrapper._static_names(), name_of(function)
    jitted = cache.keep(_home_of(opened(function)), ("program", type(wrapper)), _tree_program)

    def staged(args: tuple, kwargs: dict[str, Any]) -> tuple[Any, ...]:
        form = opened(function)  # at each call: an object's attributes may have changed
        whole = wrapper if form is function else with_innermost(wrapper, form)
        static, dynamic = split((whole, *declare(function, names, args, kwargs)), label)
        return static, *dynamic

    def run(*args: Any, **kwargs: Any) -> Any:
        return jitted(*staged(args, kwargs))

    run.lower = lambda *args, **kwargs: jitted.lower(*staged(args, kwargs))  # type: ignore[attr-defined]
    return run


def _home_of(form: Any) -> Any:
    """What the programs of a callable live as long as: the function that it is made of, or its class."""
    while (inner := getattr(form, "func", None)) is not None:
        form = unwrapped(inner)
    return form if is_leaf(form) and type(form).__weakrefoffset__ else type(form)


def _tree_program() -> Any:
    def merged(static: Static, *dynamic: Any) -> Any:
        wrapper, args, kwargs = static.merge(dynamic)
        return wrapper._traced(*args, **kwargs)

    return jax.jit(merged, static_argnums=0)
