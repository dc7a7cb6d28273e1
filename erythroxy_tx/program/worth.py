"""Whether it pays to compute a value once and keep it, or to compute it again where it is used. Estimates, by the
equation that makes it. Not here: how a program is cut (`split.py`).
"""

import math
from typing import Any

from erythroxy_tx import _compat
from erythroxy_tx.program.work import DEAR
from erythroxy_tx.program.work import FREE

_CHEAP = FREE | frozenset([
    "abs", "add", "add_any", "and", "bitcast_convert_type", "ceil", "clamp", "complex", "concatenate", "conj",
    "convert_element_type", "copy_p", "div", "dynamic_slice", "dynamic_update_slice", "eq", "expand_dims", "floor",
    "gather", "ge", "gt", "imag", "integer_pow", "is_finite", "le", "lt", "max", "min", "mul", "name", "ne", "neg",
    "nextafter", "not", "optimization_barrier", "or", "pad", "random_seed", "random_unwrap", "random_wrap", "real",
    "reduce_precision", "rem", "rev", "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "split", "sqrt", "square", "stop_gradient", "sub", "xor",
])  # fmt: skip
_CALLS = frozenset(["checkpoint", "custom_jvp_call", "jit", "pjit", "remat", "remat2"])
_OWN_RULES = ("custom_transpose", "custom_vjp", "linear_call")
_FEW = 4  # numbers that are added up for one


def is_fused(eqn: Any) -> bool:
    """Whether a compiler may compute it inside of what reads it, so that its result is never in memory."""
    inner = list(_compat.sub_jaxprs(eqn))
    if eqn.primitive.name in _CALLS and inner:
        return all(is_fused(each) for jaxpr in inner for each in jaxpr.eqns)
    return eqn.primitive.name in _CHEAP or eqn.primitive.name in DEAR - {"sort"}


def is_dear(eqn: Any) -> bool:
    """Whether it computes much for each number that it gives. What is not known is dear."""
    name = eqn.primitive.name
    inner = list(_compat.sub_jaxprs(eqn))
    if inner and not name.startswith("reduce"):
        return any(is_dear(each) for jaxpr in inner for each in jaxpr.eqns)
    if name in _CHEAP:
        return False
    if name == "dot_general":
        shape = eqn.invars[0].aval.shape
        return math.prod(shape[axis] for axis in eqn.params["dimension_numbers"][0][0]) >= _FEW // 2
    if name.startswith("reduce"):
        return _size(eqn.invars[0]) >= _FEW * _size(eqn.outvars[0])
    return True


def is_pure(eqn: Any, *, own_rules: bool) -> bool:
    """Whether it may run once more, once less, or earlier: it has no effects, and cannot raise. With `own_rules` a
    function with a custom_vjp or a transpose of its own may, too: it need not be linear, and the cotangents of all
    steps may not be summed before it.
    """
    name = eqn.primitive.name
    if eqn.effects or "callback" in name or name in ("ffi_call", "rng_uniform"):  # which has a state of its own
        return False
    if name.startswith(_OWN_RULES) and not own_rules:
        return False
    return all(is_pure(each, own_rules=own_rules) for jaxpr in _compat.sub_jaxprs(eqn) for each in jaxpr.eqns)


def bytes_of(var: Any) -> int:
    """Of a variable's value. A random key counts as eight."""
    aval = var.aval
    return math.prod(aval.shape) * (8 if str(aval.dtype).startswith("key") else aval.dtype.itemsize)


def _size(var: Any) -> int:
    return math.prod(var.aval.shape)
