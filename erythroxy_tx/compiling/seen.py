"""One call as JAX tells it apart from another: the type and place of each leaf, what is static, the structure, the
settings and the options of jit. It holds no array. Not here: how two calls differ (`changes.py`).
"""

import dataclasses
import functools
import re
import types
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import positional_names
from erythroxy_tx.core.signature import shape_of

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PACKAGE = __name__.partition(".")[0]
_LONGEST = 60  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class Traced:
    """A leaf that is an argument of the compiled program."""

    told: str  # f32[8,131]
    shape: tuple[int, ...]
    dtype: str
    weak: bool
    place: str  # where it is committed to; nothing where it is not
    python: str  # int, float, where it is a number of Python's
    value: str = dataclasses.field(compare=False)  # of such a number, which is no part of the program


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A leaf that is part of the program: a static argument, or what is no array."""

    told: str
    kind: str
    key: int  # its hash, or what it is made of where it has none
    made_at: str  # where the functions in it were defined


@dataclasses.dataclass(frozen=True)
class Node:
    """An inner node of a pytree."""

    told: str
    aux: str


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """One call."""

    name: str
    function: Callable[[], Any]  # a weak reference
    leaves: dict[str, Traced | Fixed]
    nodes: dict[str, Node]
    by_keyword: frozenset[str]
    by_position: frozenset[str]
    options: dict[str, Any]
    context: dict[str, Any]
    transforms: tuple[str, ...]
    generation: int  # how often the caches had been cleared


def seen_of(
    fn: Any,
    args: tuple,
    kwargs: dict[str, Any],
    options: dict[str, Any] | None = None,
    transforms: tuple[str, ...] = (),
) -> Seen:
    """Look at a call.

    **Arguments:** `fn`: the function as the user wrote it. `options`: those of its jit, by which some arguments are
    static. `transforms`: what is between the caller and the call.
    """
    options = options or {}
    names = positional_names(fn, len(args))
    static = {names[i] for i in options.get("static_argnums", ()) if -len(names) <= i < len(names)}
    static |= set(options.get("static_argnames", ()))
    leaves: dict[str, Traced | Fixed] = {}
    nodes: dict[str, Node] = {}
    for name, value in [*zip(names, args, strict=True), *kwargs.items()]:
        if name in static:
            leaves[name] = _fixed(value)
            continue
        for path, found in _walk(value, name):
            if isinstance(found, Node):
                nodes[path] = found
            else:
                leaves[path] = found
    return Seen(
        name_of(fn),
        _weak(fn),
        leaves,
        nodes,
        frozenset(kwargs),
        frozenset(names),
        {name: value for name, value in options.items() if not name.startswith("static_")},
        _compat.trace_context(),
        transforms,
        _compat.caches_cleared(),
    )


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = jtu.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)[0]
    if len(children) == 1 and children[0][1] is value and not children[0][0]:
        yield path, _leaf(value)
        return
    structure: Any = jtu.tree_structure(value, is_leaf=lambda x: x is not value)
    kind, aux = structure.node_data() or (type(None), None)
    told = "None" if value is None else f"{kind.__name__} of {len(children)}"
    yield path, Node(told, "" if isinstance(value, (dict, tuple, list)) else _told(aux))
    for key, child in children:
        yield from _walk(child, path + jtu.keystr(key))


def _leaf(value: Any) -> Traced | Fixed:
    if not isinstance(value, jax.ShapeDtypeStruct) and not eqx.is_array_like(value):
        return _fixed(value)
    kind = jax.typeof(value)
    python = type(value).__name__ if isinstance(value, (bool, int, float, complex)) else ""
    shown = repr(value) if python else "…"
    return Traced(shape_of(kind), kind.shape, str(kind.dtype), bool(kind.weak_type), _place(value), python, shown)


def _place(value: Any) -> str:
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return ""
    devices: list[Any] = sorted(value.sharding.device_set, key=lambda device: getattr(device, "id", 0))
    spec = getattr(value.sharding, "spec", None)
    if spec is not None:
        mesh = ", ".join(f"{name}={size}" for name, size in value.sharding.mesh.shape.items())  # type: ignore[attr-defined]
        return f"{spec} over the mesh ({mesh})".replace("PartitionSpec", "P")
    if not value.committed:
        return "" if devices[0] == jax.local_devices()[0] else f"uncommitted on {_device(devices[0])}"
    return f"committed to {', '.join(map(_device, devices))}"


def _device(device: Any) -> str:
    return f"{device.platform}:{device.id}"


def _fixed(value: Any) -> Fixed:
    try:
        key = hash(value)
    except TypeError:  # JAX will say so
        key = 0
    return Fixed(_told(value), type(value).__name__, key, ", ".join(dict.fromkeys(_lines(value))))


def _told(value: Any) -> str:
    text = _ADDRESS.sub("", repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _lines(value: Any, depth: int = 4) -> Iterator[str]:
    """Where the functions in a value were defined."""
    if isinstance(value, types.FunctionType):
        yield line_of(value)
    elif isinstance(value, functools.partial):
        yield from _lines(value.func, depth)
    elif depth and isinstance(value, (tuple, list)):
        for item in value:
            yield from _lines(item, depth - 1)
    elif depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _lines(getattr(value, field.name, None), depth - 1)


def code_of(fn: Any) -> types.CodeType | None:
    """The code of the Python function that a callable is made of."""
    if (code := getattr(fn, "user_code", None)) is not None:
        return code
    inner = next((x for name in ("__wrapped__", "func", "__func__") if (x := getattr(fn, name, None))), None)
    if inner is not None:
        return code_of(inner)
    own = getattr(type(fn), "__call__", None)  # noqa: B004  # its code is meant
    return getattr(fn, "__code__", None) or getattr(own, "__code__", None)


def is_own(fn: Any) -> bool:
    """Whether a callable is one of this library's own, and stands for none of the user's."""
    module = str(getattr(fn, "__module__", ""))
    return module.partition(".")[0] == _PACKAGE and getattr(fn, "user_code", None) is None


def line_of(fn: Any) -> str:
    """Where a callable was defined, as `train.py:12`; nothing where it is none of Python's."""
    code = code_of(fn)
    return "" if code is None else f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


def _weak(fn: Any) -> Callable[[], Any]:
    told_apart = isinstance(fn, (types.FunctionType, types.MethodType, functools.partial))  # others are made of leaves
    return weakref.ref(fn) if told_apart else lambda: None
