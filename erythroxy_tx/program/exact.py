"""Which outputs of a function are computed by exact equations alone, so that no order and no kernel can change
a bit of them. An allow-list: an equation that is not on it counts as inexact.
"""

from typing import Any

import jax.numpy as jnp

from erythroxy_tx import _compat
from erythroxy_tx.program.call import Call


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_EXACT = _names("""
    broadcast_in_dim concatenate copy copy_p dynamic_slice dynamic_update_slice expand_dims gather iota
    optimization_barrier pad reshape rev select_n slice sort split squeeze stop_gradient top_k transpose
    and argmax argmin clamp complex eq ge gt imag is_finite le lt max min ne neg not or real
    reduce_and reduce_or reduce_xor xor
""")
_EXACT_UNLESS_COMPLEX = _names("abs ceil floor round sign")
# The maximum of 4096 floats or more takes either zero, and drops a NaN, on XLA's CPU (0.10.2, 0.12.0).
_EXACT_FOR_INTEGERS = _names("""
    add cummax cummin cumprod cumsum mul reduce_max reduce_min reduce_prod reduce_sum rem shift_left sub
""")
_NESTED = _names("closed_call custom_jvp_call custom_vjp_call jit pjit remat2")


def exact_outputs(call: Call) -> list[tuple[bool, bool]]:
    """For each output: whether every equation before it is exact, and whether it is an integer or a bool."""
    closed = call.concrete
    exact = exact_results(closed)
    kinds = [aval.dtype for aval in closed.out_avals]
    return [(good, not jnp.issubdtype(kind, jnp.inexact)) for good, kind in zip(exact, kinds, strict=True)]


def exact_results(closed: Any) -> list[bool]:
    """For each result of a closed program, whether every equation before it is exact."""
    return _walk(closed.jaxpr, [True] * len(closed.jaxpr.invars))


def _walk(jaxpr: Any, given: list[bool]) -> list[bool]:
    known: dict[Any, bool] = dict(zip(jaxpr.invars, given, strict=True))

    def of(var: Any) -> bool:
        return True if isinstance(var, _compat.Literal) else known.get(var, True)

    for eqn in jaxpr.eqns:
        inputs = [of(v) for v in eqn.invars]
        inner = list(_compat.sub_jaxprs(eqn)) if eqn.primitive.name in _NESTED else []
        if len(inner) == 1 and len(inner[0].invars) == len(inputs):
            outputs = _walk(inner[0], inputs)
        else:
            outputs = [all(inputs) and _is_exact(eqn)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, outputs, strict=True))
    return [of(v) for v in jaxpr.outvars]


def _is_exact(eqn: Any) -> bool:
    name = eqn.primitive.name
    kinds = [var.aval.dtype for var in [*eqn.invars, *eqn.outvars]]
    if name in _EXACT_FOR_INTEGERS:
        return not any(jnp.issubdtype(kind, jnp.inexact) for kind in kinds)
    if name in _EXACT_UNLESS_COMPLEX:
        return not any(jnp.issubdtype(kind, jnp.complexfloating) for kind in kinds)
    if name == "convert_element_type":
        return jnp.promote_types(*kinds) == kinds[1]
    return name in _EXACT
