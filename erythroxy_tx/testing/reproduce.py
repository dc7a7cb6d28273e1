"""Values as Python code that makes them again, bit for bit."""

import base64
import dataclasses
import re
import sys
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from erythroxy_tx.core.contract import Contract
from erythroxy_tx.core.transform import unwrapped

_SHORT = 400  # elements; longer arrays are written compressed


def as_code(value: Any) -> str:
    """An expression for a value, in terms of `np`, `jnp` and `jax`.

    >>> as_code({"x": np.float32([[-0.0, np.nan]]), "n": 3})
    "{'x': np.array([[-0.0, np.nan]], 'float32'), 'n': 3}"
    """
    if isinstance(value, jax.Array):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            data, impl = as_code(np.asarray(jax.random.key_data(value))), str(jax.random.key_impl(value))
            return f"jax.random.wrap_key_data({data}, impl={impl!r})"
        weak = value.weak_type and not value.ndim
        return f"jnp.asarray({_number(np.asarray(value)[()]) if weak else as_code(np.asarray(value))})"
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, np.generic):
        return f"{_array(np.asarray(value))}[()]"
    return _number(value) if isinstance(value, (float, complex)) else _container(value)


def _container(value: Any) -> str:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{type(value).__name__}({', '.join(map(as_code, value))})"
    if type(value) is tuple:
        return f"({', '.join(map(as_code, value))}{',' if len(value) == 1 else ''})"
    if type(value) is list:
        return f"[{', '.join(map(as_code, value))}]"
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {as_code(each)}' for key, each in value.items())}}}"
    if isinstance(value, dict):
        return f"{type(value).__name__}({as_code(dict(value))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f"{f.name}={as_code(getattr(value, f.name))}" for f in dataclasses.fields(value) if f.init]
        return f"{type(value).__name__}({', '.join(fields)})"
    return repr(value)


def _array(array: np.ndarray) -> str:
    if array.dtype.kind not in "biufcV":
        return f"np.array({array.tolist()!r}, {str(array.dtype)!r})"
    dtype = f"jnp.{array.dtype}" if array.dtype.kind == "V" else repr(str(array.dtype))  # bfloat16 and its kin
    if array.size > _SHORT:
        packed = base64.b85encode(zlib.compress(array.tobytes(), 9)).decode()
        return f"np.frombuffer(zlib.decompress(base64.b85decode({packed!r})), {dtype}).reshape({array.shape}).copy()"
    if not array.size:
        return f"np.zeros({array.shape}, {dtype})"
    first = array.reshape(-1)[:1]
    if array.size > 1 and array.tobytes() == first.tobytes() * array.size:
        return f"np.full({array.shape}, {_number(first[0])}, {dtype})"
    return f"np.array({_nested(array)}, {dtype})"


def _nested(array: np.ndarray) -> str:
    return _number(array[()]) if not array.ndim else f"[{', '.join(map(_nested, array))}]"


def _number(value: Any) -> str:
    """The shortest digits that give the value again in its own dtype."""
    if isinstance(value, (complex, np.complexfloating)):
        return f"complex({_number(value.real)}, {_number(value.imag)})"
    if isinstance(value, (bool, int, np.bool_, np.integer)):
        return str(value)
    if np.isnan(value):
        return "np.nan"
    if np.isinf(value):
        return "np.inf" if value > 0 else "-np.inf"
    return str(value if isinstance(value, (float, np.floating)) else float(value))  # bfloat16 writes -0.0 as -0


def in_code(contract: Any) -> str:
    """A contract, or a pytree of them, as it is written by a user: `tx.Close(rtol=1e-06)`."""
    if isinstance(contract, Contract):
        return f"tx.{contract!r}"
    return re.sub(r"\b(Bitwise|Close|AsAccurate)\(", r"tx.\1(", repr(contract))


def script(functions: dict[str, Callable[..., Any]], args: tuple, call: str) -> str:
    """A program that makes a call on arguments again.

    **Arguments:**

    - `functions`: what the call calls, by the names that it uses.
    - `args`: the arguments, to which the call refers as `args`.
    """
    value = as_code(args)
    imports = [
        *["import base64", "import zlib"] * ("zlib" in value),
        "import hypothesis.strategies as st",
        *["import jax"] * ("jax." in value),
        *["import jax.numpy as jnp"] * ("jnp." in value),
        "import numpy as np",
        "import erythroxy_tx as tx",
        *sorted({_import_of(kind, kind.__name__) for kind in _classes(args)}),
        *(_import_of(fn, name) for name, fn in functions.items()),
    ]
    return "\n".join(["# To see it again:", *imports, "", f"args = {value}", call])


def _classes(value: Any) -> set[type]:
    """The classes of the containers of a value that Python does not know by itself."""
    parts = list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, (tuple, list)) else []
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif not parts and not isinstance(value, (dict, tuple, list)):
        return set()
    own = set() if type(value).__module__ == "builtins" else {type(value)}
    return own.union(*map(_classes, parts))


def _import_of(fn: Callable[..., Any], name: str) -> str:
    """The line that brings a function into scope, or a comment where there is none."""
    inner = unwrapped(fn)
    module, path = getattr(inner, "__module__", None), getattr(inner, "__qualname__", "")
    found = getattr(sys.modules.get(module or ""), path, None)
    if module != "__main__" and (found is fn or found == fn):
        return f"from {module} import {path}" + (f" as {name}" if path != name else "")
    return f"# {name} is {path or repr(fn)}" + (f", of {module}" if module else "")
