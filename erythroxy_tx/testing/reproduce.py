"""Values as Python code that makes them again, bit for bit."""

import base64
import dataclasses
import re
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from erythroxy_tx.core.contract import Contract

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
        return f"jnp.asarray({as_code(np.asarray(value))})"
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, np.generic):
        return f"{_array(np.asarray(value))}[()]"
    if isinstance(value, float):
        return _number(value)
    return _container(value)


def _container(value: Any) -> str:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{type(value).__name__}({', '.join(map(as_code, value))})"
    if type(value) is tuple:
        return f"({', '.join(map(as_code, value))}{',' if len(value) == 1 else ''})"
    if type(value) is list:
        return f"[{', '.join(map(as_code, value))}]"
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {as_code(each)}' for key, each in value.items())}}}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f"{f.name}={as_code(getattr(value, f.name))}" for f in dataclasses.fields(value) if f.init]
        return f"{type(value).__name__}({', '.join(fields)})"
    return repr(value)


def _array(array: np.ndarray) -> str:
    dtype = f"jnp.{array.dtype}" if array.dtype.kind == "V" else repr(str(array.dtype))  # bfloat16 and its kin
    if array.size > _SHORT:
        packed = base64.b85encode(zlib.compress(array.tobytes(), 9)).decode()
        return f"np.frombuffer(zlib.decompress(base64.b85decode({packed!r})), {dtype}).reshape({array.shape})"
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
    return str(value)


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
        *(_import_of(fn, name) for name, fn in functions.items()),
    ]
    return "\n".join(["To see it again:", "", *imports, "", f"args = {value}", call])


def _import_of(fn: Callable[..., Any], name: str) -> str:
    """The line that brings a function into scope, or a comment where it has no place to be imported from."""
    module, path = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    if module and module != "__main__" and path.isidentifier():
        return f"from {module} import {path}" + (f" as {name}" if path != name else "")
    return f"# {name} is {path or repr(fn)}" + (f", of {module}" if module else "")
