"""The same program in float64: its equations on wider floats, the same random bits, integers and branches.

Running a function again with float64 inputs would not do: other random numbers are drawn, explicit casts round,
and integers change their width. Not here: what a result is held against it for (`core/accuracy.py`).
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from erythroxy_tx import _compat

Leaves = list[Any]

_CUSTOM_RULES = {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
_INLINED = {"jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint"} | _CUSTOM_RULES
_OF_BITS = {"bitcast_convert_type", "nextafter", "random_gamma"}  # what they give depends on the width
_TOLD = {"debug_callback", "debug_print"}  # once is enough
_ROUNDED = {"convert_element_type", "reduce_precision"}


def in_float64(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that traces `fn` on arguments as they are and runs its equations in float64.

    **Arguments:**

    - `fn`: a function of arrays that returns a pytree of arrays.

    **Returns:** a function of (the arguments that give `fn` its program, the same with wider values on the host) →
    the result with floats as float64 and complex numbers as complex128.

    **Raises:** `NotImplementedError` for an equation that cannot run in float64.

    >>> import jax.numpy as jnp, numpy as np
    >>> third = in_float64(lambda x: (x / 3).astype(jnp.float16))
    >>> x = np.float32(1)
    >>> third((x,), (np.float64(1),)).item()
    0.3333333333333333
    """
    programs: dict[Any, Any] = {}

    def run(args: tuple, wide_args: tuple) -> Any:
        key = jax.tree.structure(args), tuple(map(jax.typeof, jax.tree.leaves(args)))
        if key not in programs:
            closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
            programs[key] = jax.jit(lambda *leaves: _eval(closed, leaves)), jax.tree.structure(shape)
        program, structure = programs[key]
        wide = [_as_taken(x, kind) for x, kind in zip(jax.tree.leaves(wide_args), key[1], strict=True)]
        with jax.enable_x64(True):  # noqa: FBT003
            return jax.tree.unflatten(structure, program(*wide))

    return run


def widened(tree: Any) -> Any:
    """Arguments with their floats on the host as float64: the same numbers."""
    return jax.tree.map(lambda x: _host(x) if _is_inexact(x) else x, tree)


def _as_taken(x: Any, kind: Any) -> Any:
    """An integer in the width that the program takes, where the host has a wider one."""
    narrow = jnp.issubdtype(kind.dtype, np.integer) and not isinstance(x, jax.Array)
    return np.asarray(x).astype(kind.dtype) if narrow else x


def _host(x: Any) -> Any:
    return np.asarray(x).astype(_wide(jnp.result_type(x)))


def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), np.inexact)


def _wide(dtype: Any) -> Any:
    if not jnp.issubdtype(dtype, np.inexact):
        return dtype
    return np.complex128 if jnp.issubdtype(dtype, np.complexfloating) else np.float64


def _widen(x: Any) -> Any:
    return lax.convert_element_type(x, _wide(jnp.result_type(x))) if _is_inexact(x) else x


def _as(x: Any, aval: Any) -> Any:
    return lax.convert_element_type(x, aval.dtype) if _is_inexact(x) else x


def _eval(closed: Any, args: Sequence[Any]) -> Leaves:
    jaxpr = closed.jaxpr
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, map(_widen, getattr(closed, "consts", ())), strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))

    def of(var: Any) -> Any:
        if not isinstance(var, _compat.Literal):
            return known[var]
        aval: Any = var.aval
        return _widen(jnp.asarray(var.val, aval.dtype))

    for eqn in jaxpr.eqns:
        known.update(zip(eqn.outvars, _equation(eqn, list(map(of, eqn.invars))), strict=True))
    return list(map(of, jaxpr.outvars))


def _equation(eqn: Any, ins: Leaves) -> Leaves:
    name, params = eqn.primitive.name, eqn.params
    if name in _ROUNDED:
        kind = _wide(params.get("new_dtype", eqn.outvars[0].aval.dtype))
        from_complex = jnp.iscomplexobj(ins[0]) and not jnp.issubdtype(kind, np.complexfloating)
        return [lax.convert_element_type(lax.real(ins[0]) if from_complex else ins[0], kind)]
    if name in _OF_BITS:
        return list(map(_widen, _bound(eqn, list(map(_as, ins, (v.aval for v in eqn.invars))))))
    if name in _INLINED:
        return _eval(_compat.closed(params.get("jaxpr", params.get("call_jaxpr"))), ins)
    if name in _TOLD:
        return []
    if name == "scan":
        return _scan(eqn, ins)
    if name == "while":
        return _while(eqn, ins)
    if name == "cond":
        branches = [lambda *xs, b=b: _eval(b, xs) for b in params["branches"]]
        return list(lax.switch(ins[0], branches, *ins[1:]))
    if name == "custom_linear_solve":
        return _linear_solve(eqn, ins)
    try:
        expanded = _compat.expanded(eqn, ins)
    except (TypeError, ValueError, AssertionError) as error:
        raise _refusal(eqn, error) from error
    if expanded is not None:
        return list(map(_widen, expanded))
    return list(map(_widen, _bound(eqn, ins)))


def _bound(eqn: Any, ins: Leaves) -> Leaves:
    """An equation on other floats."""
    of_bits = eqn.primitive.name in _OF_BITS
    params = eqn.params if of_bits else {key: _wide_parameter(value) for key, value in eqn.params.items()}
    if eqn.effects or eqn.primitive.name == "pure_callback":
        raise _refusal(eqn, "it works on something outside the program")
    try:
        return _compat.bind(eqn.primitive, ins, params)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _refusal(eqn, error) from error


def _refusal(eqn: Any, why: Any) -> NotImplementedError:
    return NotImplementedError(
        f"{eqn.primitive.name}, at {_compat.source_line(eqn)}, cannot run in float64 ({why}). Expected a function "
        "whose equations can, to know how exact its result is. Fix: state contract=Close(rtol)."
    )


def _wide_parameter(value: Any) -> Any:
    """A dtype of floats (an accumulator's), or a program (of a reduction, or of a scatter), made wider; no algorithm
    that rounds what it multiplies.
    """
    if isinstance(value, np.dtype):
        return np.dtype(_wide(value))
    if isinstance(value, (lax.DotAlgorithm, lax.DotAlgorithmPreset)):
        return None
    if not hasattr(value, "eqns"):
        return value
    closed = _compat.closed(value)
    avals: list[Any] = [var.aval for var in closed.jaxpr.invars]
    inputs = [jax.ShapeDtypeStruct(aval.shape, _wide(aval.dtype)) for aval in avals]
    again = jax.make_jaxpr(lambda *xs: _eval(closed, xs))(*inputs)
    return again if value is closed else again.jaxpr


def _scan(eqn: Any, ins: Leaves) -> Leaves:
    consts, carry = _compat.scan_counts(eqn)
    fixed, start, rows = ins[:consts], ins[consts : consts + carry], ins[consts + carry :]

    def body(state: Leaves, row: Leaves) -> tuple[Leaves, Leaves]:
        out = _eval(eqn.params["jaxpr"], [*fixed, *state, *row])
        return out[:carry], out[carry:]

    last, stacked = lax.scan(body, start, rows, length=eqn.params["length"], reverse=eqn.params["reverse"])
    return [*last, *stacked]


def _while(eqn: Any, ins: Leaves) -> Leaves:
    of_cond, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_consts, body_consts, start = ins[:of_cond], ins[of_cond : of_cond + of_body], ins[of_cond + of_body :]

    def goes_on(state: Any) -> Any:
        return _eval(eqn.params["cond_jaxpr"], [*cond_consts, *state])[0]

    def body(state: Any) -> Any:
        after, on = _eval(eqn.params["body_jaxpr"], [*body_consts, *state]), goes_on(state)
        if not jnp.ndim(on):
            return after
        whole = [jnp.reshape(on, on.shape + (1,) * (jnp.ndim(x) - on.ndim)) for x in after]  # under vmap
        return [jnp.where(each, new, old) for each, new, old in zip(whole, after, state, strict=True)]

    return list(lax.while_loop(lambda state: jnp.any(goes_on(state)), body, start))


def _linear_solve(eqn: Any, ins: Leaves) -> Leaves:
    """By the solver that the equation carries; its derivative rules were applied when it was traced."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    first = lengths.matvec + lengths.vecmat
    return _eval(solve, [*ins[first : first + lengths.solve], *ins[sum(lengths) :]])
