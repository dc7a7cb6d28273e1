"""What tells a traced program from others, so that one that was compiled before is found again. Two that have one key
compute the same; two that compute the same may have two keys.
"""

import hashlib
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from erythroxy_tx import _compat

_SMALL = 4096  # bytes that are kept; of more their digest is
_COMPARED = 2**26  # bytes that are compared; a larger constant is told by which object it is


def key_of(closed: Any) -> Hashable:
    """The key of a closed program. What it tells by identity lives as long as the program."""
    return _key(_compat.closed(closed).jaxpr, getattr(closed, "consts", ()))


def _key(jaxpr: Any, consts: Any) -> Hashable:
    names: dict[Any, int] = {}

    def name(var: Any) -> Hashable:
        if isinstance(var, _compat.Literal):
            return "literal", _told(np.asarray(var.val)), str(var.aval)
        return names.setdefault(var, len(names))

    given = tuple((name(v), str(v.aval), v.aval.weak_type) for v in (*jaxpr.constvars, *jaxpr.invars))
    equations = tuple(
        (
            eqn.primitive,
            tuple(map(name, eqn.invars)),
            tuple((key, _told(value)) for key, value in sorted(eqn.params.items())),
            tuple((name(v), str(v.aval), getattr(v.aval, "weak_type", None)) for v in eqn.outvars),
        )
        for eqn in jaxpr.eqns
    )
    return given, tuple(map(_told, consts)), equations, tuple(map(name, jaxpr.outvars))


def _told(value: Any) -> Hashable:
    if hasattr(value, "eqns"):
        return _key(_compat.closed(value).jaxpr, getattr(value, "consts", ()))
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_told, value))
    if isinstance(value, dict):
        return tuple((key, _told(item)) for key, item in sorted(value.items()))
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object and value.nbytes <= _COMPARED:
        bits = value.tobytes()
        return value.dtype.str, value.shape, bits if len(bits) <= _SMALL else hashlib.sha256(bits).digest()
    if isinstance(value, (np.ndarray, jax.Array)):
        return "array", id(value)
    if isinstance(value, (float, complex)):
        return type(value), repr(value)  # of zeros, each
    return (type(value), value) if isinstance(value, Hashable) else ("object", id(value))
