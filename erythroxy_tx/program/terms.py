"""How many numbers a program adds up for one number of its result: what a float's rounding grows with."""

import math
from collections.abc import Callable
from typing import Any

import jax

from erythroxy_tx import _compat

_REDUCTIONS = frozenset(["reduce_sum", "reduce_prod", "reduce_and", "reduce_or"])
_RUNNING = frozenset(["cumsum", "cumprod", "cumlogsumexp"])
_BY_ROWS = frozenset(["cholesky", "triangular_solve", "lu", "fft", "householder_product", "geqrf"])


def longest_sum(fn: Callable[..., Any], *args: Any) -> int:
    """The number of terms of the longest sum, product, contraction, running sum or scan of a function.

    Loops whose length is not known before they run count as one step.

    >>> import jax.numpy as jnp
    >>> longest_sum(lambda x, w: (x @ w).sum(0), jnp.ones((50, 7)), jnp.ones((7, 3)))
    50
    """
    return _longest(jax.make_jaxpr(fn)(*args).jaxpr)


def _longest(jaxpr: Any) -> int:
    return max((_terms(eqn) for eqn in jaxpr.eqns), default=1)


def _terms(eqn: Any) -> int:
    name, params = eqn.primitive.name, eqn.params
    inner = max(map(_longest, _compat.sub_jaxprs(eqn)), default=1)
    sizes: list[Any] = [getattr(var.aval, "shape", ()) for var in eqn.invars]
    if name in _REDUCTIONS:
        return math.prod(sizes[0][axis] for axis in params["axes"])
    if name in _RUNNING:
        return sizes[0][params["axis"]]
    if name == "reduce":
        return math.prod(sizes[0][axis] for axis in params["dimensions"])
    if name == "dot_general":
        return math.prod(sizes[0][axis] for axis in params["dimension_numbers"][0][0])
    if name == "ragged_dot_general":
        numbers = params["ragged_dot_dimension_numbers"].dot_dimension_numbers
        return math.prod(sizes[0][axis] for axis in numbers[0][0])
    if name == "conv_general_dilated":
        return math.prod(sizes[1])
    if name == "reduce_window_sum":
        return math.prod(params["window_dimensions"])
    if name in _BY_ROWS:
        return sizes[0][-1]
    if name in ("scatter-add", "scatter_add"):
        return math.prod(sizes[2])
    return inner * params["length"] if name == "scan" else inner
