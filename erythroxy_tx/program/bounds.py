"""How far two ways to compute an output can be apart, where its equations bound that: products, quotients, roots, a few
functions of exact inputs, sums of what is not negative. An allow-list, as in `exact.py`: a difference of rounded
numbers, a solve, or an equation that is not here has no bound.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from erythroxy_tx import _compat

_MOVES = frozenset([
    "broadcast_in_dim", "concatenate", "copy", "copy_p", "expand_dims", "pad", "reshape", "rev", "slice", "squeeze",
    "stop_gradient", "transpose", "max", "min", "neg", "abs", "reduce_max", "reduce_min",
])  # fmt: skip
_OF_EXACT = {"tanh": 8, "logistic": 8, "erf": 8, "atan": 8}  # rounding units of XLA's own approximations
_POSITIVE = frozenset(["abs", "logistic", "sqrt", "square"])
_EXTREMES = frozenset(["argmax", "argmin", "cummax", "cummin", "reduce_max", "reduce_min"])
_NESTED = frozenset(["closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "remat2"])
_LOOPS = frozenset(["cond", "scan", "while", "custom_linear_solve"])
_FEW = 64  # rounding units: more than these are no bound worth a promise


@dataclasses.dataclass(frozen=True)
class Rounded:
    """What is known of a value: its largest relative error, None where nothing bounds it; that none is negative; and
    whether a maximum or a minimum of floats is behind it, of which XLA's CPU may drop a NaN.
    """

    error: float | None = 0.0
    positive: bool = False
    extreme: bool = False


def relative_bounds(closed: Any) -> list[tuple[float | None, bool]]:
    """For each output, how far two computations of it are apart at most, relative to itself, None without a bound; and
    whether a maximum or a minimum of floats is behind it.
    """
    found = _walk(closed.jaxpr, [Rounded()] * len(closed.jaxpr.invars))
    bounds: list[tuple[float | None, bool]] = []
    for value, aval in zip(found, closed.out_avals, strict=True):
        floats = jnp.issubdtype(aval.dtype, jnp.floating)
        few = floats and value.error is not None and value.error <= _FEW * float(jnp.finfo(aval.dtype).eps)
        bounds.append((2 * value.error if few and value.error is not None else None, value.extreme))
    return bounds


def _walk(jaxpr: Any, given: list[Rounded]) -> list[Rounded]:
    known: dict[Any, Rounded] = dict(zip(jaxpr.invars, given, strict=True))

    def of(var: Any) -> Rounded:
        if isinstance(var, _compat.Literal):
            number = np.asarray(var.val)
            return Rounded(0.0, bool(number.dtype.kind in "biuf" and (number >= 0).all()))
        return known.get(var, Rounded())

    for eqn in jaxpr.eqns:
        inputs = [of(v) for v in eqn.invars]
        inner = list(_compat.sub_jaxprs(eqn)) if eqn.primitive.name in _NESTED else []
        if len(inner) == 1 and len(inner[0].invars) == len(inputs):
            outputs = _walk(inner[0], inputs)
        elif len(eqn.outvars) == 1:
            outputs = [_rounded(eqn, inputs)]
        else:
            outputs = [Rounded(None)] * len(eqn.outvars)
        extreme = any(x.extreme for x in inputs) or _is_extreme(eqn)
        outputs = [dataclasses.replace(out, extreme=out.extreme or extreme) for out in outputs]
        known.update(zip(eqn.outvars, outputs, strict=True))
    return [of(v) for v in jaxpr.outvars]


def _rounded(eqn: Any, ins: list[Rounded]) -> Rounded:
    name, aval = eqn.primitive.name, eqn.outvars[0].aval
    if not jnp.issubdtype(aval.dtype, jnp.floating):
        return Rounded(0.0 if name not in _LOOPS and all(x.error == 0 for x in ins) else None)
    eps, positive = float(jnp.finfo(aval.dtype).eps), all(x.positive for x in ins)
    errors = [x.error for x in ins]
    if any(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in eqn.invars):
        return Rounded(None)
    if any(error is None for error in errors) or not ins:
        return Rounded(0.0 if not ins and name == "iota" else None)
    largest, total = max(e or 0.0 for e in errors), sum(e or 0.0 for e in errors)
    if name in _MOVES:
        return Rounded(largest, name == "abs" or (name != "neg" and positive) or (name == "max" and _any_positive(ins)))
    if name == "select_n":
        return Rounded(largest if ins[0].error == 0 else None, all(x.positive for x in ins[1:]))
    if name in ("mul", "div"):
        return Rounded(total + eps, positive or (name == "mul" and eqn.invars[0] is eqn.invars[1]))
    if name == "square":
        return Rounded(2 * largest + eps, positive=True)
    if name == "integer_pow":
        power = abs(eqn.params["y"])
        return Rounded(power * (largest + eps), positive or power % 2 == 0)
    if name in ("sqrt", "rsqrt"):
        return Rounded(largest / 2 + 2 * eps, positive=True)
    if name in _OF_EXACT:
        return Rounded(_OF_EXACT[name] * eps if largest == 0 else None, positive or name in _POSITIVE)
    if name == "add" and positive:
        return Rounded(largest + eps, positive=True)
    if name == "reduce_sum" and positive:
        terms = math.prod(eqn.invars[0].aval.shape[axis] for axis in eqn.params["axes"])
        return Rounded(largest + terms * eps, positive=True)
    if name == "convert_element_type":
        return Rounded(largest + eps, positive)
    return Rounded(None, positive)


def _is_extreme(eqn: Any) -> bool:
    """Whether an equation takes a maximum or a minimum of floats, or a loop of it does."""
    if eqn.primitive.name in _EXTREMES:
        return bool(jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.inexact))
    inner = _compat.sub_jaxprs(eqn) if eqn.primitive.name in _LOOPS else ()
    return any(_is_extreme(each) for jaxpr in inner for each in jaxpr.eqns)


def _any_positive(ins: list[Rounded]) -> bool:
    return any(x.positive for x in ins)
