"""`safe_divide`: a division whose denominator stays away from zero and keeps its sign. Not here: a division with a
mask, which is `jnp.where` twice.
"""

import functools
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import shape_of


def safe_divide(x: Any, y: Any, *, eps: float = 1e-10) -> jax.Array:
    """Divide by a denominator that is moved away from zero, in values and in derivatives::

        safe_divide(x, y) = x / y                  where |y| ≥ eps
                            x / copysign(eps, y)   elsewhere

    A denominator near zero keeps its sign, that of -0.0 too; `x / jnp.maximum(y, eps)` turns each negative one into
    `eps`. All derivatives are those of this function: with respect to `y` they are zero where it is clamped, and no
    infinity comes from what was not taken. NaN in `x` or `y` stays NaN.

    **Arguments:**

    - `x`, `y`: numbers or arrays, real, of shapes that broadcast. Dtypes and weak types are those of `jnp.divide`.
    - `eps`: a positive Python number, rounded to the dtype of the result. One below the smallest normal number of that
        dtype is raised to it: for float16, whose smallest is 6.1e-5, the default is.

    **Returns:** an array like `jnp.divide(x, y)`; finite wherever `x / eps` is, for finite `x` and `y`.

    **Raises:** `TypeError` for complex numbers, or an `eps` that is no Python number; `ValueError` for an `eps` that is
    not positive, or is too large for the dtype.

    >>> import jax, erythroxy_tx as tx
    >>> [float(tx.safe_divide(1.0, y, eps=0.5)) for y in (4.0, 0.25, -0.0)]
    [0.25, 2.0, -2.0]
    >>> [float(jax.grad(tx.safe_divide, argnums=1)(1.0, y)) for y in (2.0, 0.0)]
    [-0.25, 0.0]
    """
    if isinstance(eps, bool) or not isinstance(eps, numbers.Real):
        raise TypeError(f"tx.safe_divide got eps: {shape_of(eps)}. Expected a Python number, known when compiling.")
    if not 0 < eps < math.inf:
        raise ValueError(f"tx.safe_divide got eps={eps}. Expected a finite number > 0.")
    return _divided(x, y, eps=float(eps))


@functools.partial(jax.jit, static_argnames="eps")
def _divided(x: Any, y: Any, *, eps: float) -> jax.Array:
    like = jax.eval_shape(jnp.divide, x, y)
    if not jnp.issubdtype(like.dtype, jnp.floating):
        raise TypeError(
            f"tx.safe_divide got x: {shape_of(x)} and y: {shape_of(y)}. Expected real numbers: a complex denominator "
            "has no sign to keep. Fix: safe_divide(x * y.conj(), abs(y)**2)."
        )
    limits = jnp.finfo(like.dtype)
    if eps > float(limits.max):
        raise ValueError(f"tx.safe_divide got eps={eps}, too large for {like.dtype}. Expected at most {limits.max}.")
    x, y = (
        jnp.broadcast_to(_compat.convert(jnp.asarray(each), like.dtype, weak_type=like.weak_type), like.shape)
        for each in (x, y)
    )
    return _quotient(max(eps, float(limits.tiny)), x, y)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _quotient(eps: float, x: jax.Array, y: jax.Array) -> jax.Array:
    return x / jnp.where(jnp.abs(y) < eps, _clamp(eps, y), y)


@functools.partial(_quotient.defjvp, symbolic_zeros=True)
def _quotient_jvp(eps: float, primals: tuple, tangents: tuple) -> tuple[jax.Array, Any]:
    """Two divisions, of which each has only its own denominator: JAX differentiates a division by 1 / y², which is
    infinite for a small eps, and times the zero of what is clamped that is NaN.
    """
    (x, y), (dx, dy) = primals, tangents
    clamped, found = jnp.abs(y) < eps, _quotient(eps, x, y)
    of_x, of_y = (not isinstance(each, SymbolicZero) for each in (dx, dy))
    if not of_x and not of_y:
        return found, jnp.zeros_like(found)
    # What has no tangent is left out: an infinite quotient times zero would be NaN.
    free = (dx if of_x else 0) - (found * jnp.where(clamped, 0, dy) if of_y else 0)
    return found, jnp.where(clamped, (dx if of_x else 0) / _clamp(eps, y), free / jnp.where(clamped, 1, y))


def _clamp(eps: float, y: jax.Array) -> jax.Array:
    return jnp.where(jnp.signbit(y), -eps, eps)
