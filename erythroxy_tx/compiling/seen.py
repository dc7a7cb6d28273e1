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
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import positional_names
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import signature_of

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
    """A leaf that is part of the program: a static argument, or what is no array. Told apart by type and hash."""

    told: str = dataclasses.field(compare=False)
    kind: str
    key: int
    made_at: str = dataclasses.field(compare=False)  # where the functions in it were defined


LEFT_OUT = "left out"  # the kind of an argument that has a default, and was not passed


@dataclasses.dataclass(frozen=True)
class Node:
    """An inner node of a pytree. Told apart by its type, its number of children, and the hash of its aux data."""

    kind: str = dataclasses.field(compare=False)
    type_id: int
    children: int
    aux: Fixed | None

    @property
    def told(self) -> str:
        """The type and how many it holds."""
        return "None" if self.kind == "NoneType" else f"{self.kind} of {self.children}"


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """One call."""

    name: str
    code: types.CodeType | None  # where it was written
    function: Callable[[], Any]  # a weak reference
    leaves: dict[str, Traced | Fixed]
    nodes: dict[str, Node]
    by_position: tuple[str, ...]
    by_keyword: frozenset[str]
    options: dict[str, Any]
    context: dict[str, Any]
    transforms: tuple[str, ...]
    generation: int  # how often the caches had been cleared


def seen_of(
    fn: Any,
    args: tuple,
    kwargs: dict[str, Any],
    options: dict[str, Any],
    transforms: tuple[str, ...],
    *,
    concrete: tuple = (),
    filtered: bool = False,
) -> Seen:
    """Look at a call.

    **Arguments:**

    - `fn`: the function as the user wrote it.
    - `options`: those of its jit, by which some arguments are static.
    - `transforms`: what is between the caller and the call. `concrete`: of a batch, its arrays.
    - `filtered`: whether every value that is no array is static.
    """
    names = positional_names(fn, len(args))
    static = {names[i] for i in options.get("static_argnums", ()) if -len(names) <= i < len(names)}
    static |= set(options.get("static_argnames", ()))
    leaves: dict[str, Traced | Fixed] = {}
    nodes: dict[str, Node] = {}
    for name, value in [*zip(names, args, strict=True), *sorted(kwargs.items())]:
        for path, found in [(name, _fixed(value))] if name in static else _walk(value, name, filtered):
            if isinstance(found, Node):
                nodes[path] = found
            else:
                leaves[path] = found
    traced = [path for path, leaf in leaves.items() if isinstance(leaf, Traced)]
    if len(concrete) == len(traced):
        leaves.update((path, _leaf(value, filtered)) for path, value in zip(traced, concrete, strict=True))
    leaves.update(_left_out(fn, {*names, *kwargs}))
    return Seen(
        name_of(fn),
        code_of(fn),
        _weak(fn),
        leaves,
        nodes,
        tuple(names),
        frozenset(kwargs),
        {name: value for name, value in options.items() if not name.startswith("static_")},
        _context(),
        transforms,
        _compat.caches_cleared(),
    )


_CONTEXT: list[dict[str, Any]] = [{}]


def _context() -> dict[str, Any]:
    """The settings, in one dict for all calls between which none changed."""
    now = _compat.trace_context()
    if now != _CONTEXT[0]:
        _CONTEXT[0] = now
    return _CONTEXT[0]


def _left_out(fn: Any, given: set[str]) -> Iterator[tuple[str, Fixed]]:
    signature = signature_of(fn)
    for name, parameter in signature.parameters.items() if signature else ():
        if name not in given and parameter.default is not parameter.empty:
            yield name, Fixed(f"left out ({_told(parameter.default)})", LEFT_OUT, 0, "")


def _walk(value: Any, path: str, filtered: bool) -> Iterator[tuple[str, Any]]:
    children = jtu.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)[0]
    if len(children) == 1 and children[0][1] is value and not children[0][0]:
        yield path, _leaf(value, filtered)
        return
    structure: Any = jtu.tree_structure(value, is_leaf=lambda x: x is not value)
    kind, aux = structure.node_data() or (type(None), None)
    is_plain = isinstance(value, (dict, tuple, list, eqx.Module)) or value is None
    yield path, Node(kind.__name__, id(kind), len(children), None if is_plain else _fixed(aux))
    if isinstance(value, eqx.Module):
        for field in dataclasses.fields(value):
            if field.metadata.get("static", False):
                yield f"{path}.{field.name}", _fixed(getattr(value, field.name, None))
    for key, child in children:
        yield from _walk(child, path + jtu.keystr(key), filtered)


def _leaf(value: Any, filtered: bool) -> Traced | Fixed:
    is_number = isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)
    is_array = isinstance(value, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)) or is_number
    if not is_array or (filtered and is_number):
        return _fixed(value)
    try:
        kind = jax.typeof(value)
    except (TypeError, ValueError, OverflowError):  # an array of text, a number that is too large: no argument of JAX's
        return _fixed(value)
    python, shown = (type(value).__name__, repr(value)) if is_number else ("", "…")
    return _traced(shape_of(kind), kind.shape, str(kind.dtype), bool(kind.weak_type), _place(value), python, shown)


_traced = functools.lru_cache(4096)(Traced)  # most leaves are like others


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
    except Exception:  # noqa: BLE001  # that of a user's class; JAX refuses what has none where it needs one
        key = hash(_told(value, longest=None))
    return Fixed(_told(value), type(value).__name__, key, ", ".join(dict.fromkeys(_lines(value))))


def _told(value: Any, longest: int | None = _LONGEST) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  # that of a user's class must not end the program that is looked at
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    text = " ".join(_ADDRESS.sub("", text).split())
    return text if longest is None or len(text) <= longest else f"{text[:longest]}…"


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


def code_of(fn: Any, depth: int = 20) -> types.CodeType | None:
    """The code of the Python function that a callable is made of."""
    if isinstance(code := _attribute(fn, "user_code") or _attribute(fn, "__code__"), types.CodeType):
        wrapped = _attribute(fn, "__wrapped__") if _attribute(fn, "user_code") is None else None
        return (code_of(wrapped, depth - 1) if callable(wrapped) and depth else None) or code
    for name in ("__wrapped__", "func", "__func__"):
        if depth and callable(inner := _attribute(fn, name)):
            return code_of(inner, depth - 1)
    own = getattr(type(fn), "__call__", None)  # noqa: B004  # its code is meant
    return code if isinstance(code := getattr(own, "__code__", None), types.CodeType) else None


def _attribute(fn: Any, name: str) -> Any:
    """An attribute, of objects that answer to every name too."""
    try:
        return getattr(fn, name, None)
    except Exception:  # noqa: BLE001  # that of a user's class must not end the program that is looked at
        return None


def is_own(fn: Any) -> bool:
    """Whether a callable is one of this library's own, and stands for none of the user's."""
    module = str(_attribute(fn, "__module__"))
    return module.partition(".")[0] == _PACKAGE and _attribute(fn, "user_code") is None


def line_of(fn: Any) -> str:
    """Where a callable was defined, as `train.py:12`; nothing where it is none of Python's."""
    code = code_of(fn)
    return "" if code is None else f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


def _weak(fn: Any) -> Callable[[], Any]:
    rebuilt = isinstance(fn, eqx.Module) or not type(fn).__weakrefoffset__  # made of leaves, another object each time
    return (lambda: None) if rebuilt else weakref.ref(fn)
