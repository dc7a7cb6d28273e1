"""How much an equation computes, in operations, and how many bytes its values take. Estimates, to weigh one plan
against another. Not here: what a plan is (`plan.py`).
"""

import math

import jax.numpy as jnp

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.inside import NAME as LOOP

DEAR = frozenset([
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "digamma", "erf", "erf_inv",
    "erfc", "exp", "exp2", "expm1", "lgamma", "log", "log1p", "logistic", "pow", "random_bits", "sin", "sinh", "sort",
    "tan", "tanh",
])  # fmt: skip
FREE = frozenset(["broadcast_in_dim", "copy", "iota", "reshape", "slice", "squeeze", "transpose"])
_CUBIC = frozenset([
    "cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "schur", "svd", "triangular_solve",
])  # fmt: skip


def work(eqn: Equation) -> float:
    """Operations of an equation on all rows."""
    name, params = eqn.name, eqn.params
    elements = max((math.prod(v.at) for v in (*eqn.outs, *eqn.ins)), default=0)
    if name in FREE:
        return 0.0
    if name == "dot_general":
        contracted = math.prod(eqn.ins[0].at[i] for i in params["dimension_numbers"][0][0])
        return 2.0 * math.prod(eqn.outs[0].at) * contracted
    if name == "products_about_means":
        return 2.0 * sum(math.prod(v.at) for v in eqn.outs) * eqn.ins[0].at[params["axes"][0]]
    if name == "conv_general_dilated":
        out_feature = params["dimension_numbers"].rhs_spec[0]
        kernel = math.prod(size for i, size in enumerate(eqn.ins[1].at) if i != out_feature)
        return 2.0 * math.prod(eqn.outs[0].at) * kernel
    if name == LOOP:
        return work(params["of"])
    if name == "scan":
        return params["length"] * work_of(eqn.inside(eqn.symbolic["jaxpr"]))
    if name == "while":
        return 10 * work_of(eqn.inside(eqn.symbolic["body_jaxpr"]))
    if name == "cond":
        return max(work_of(eqn.inside(branch)) for branch in eqn.symbolic["branches"])
    if name in _CUBIC:
        return elements * float(eqn.ins[0].at[-1])
    return elements * (10.0 if name in DEAR else 1.0)


def work_of(program: Program) -> float:
    """Operations of a program on all rows."""
    return sum(map(work, program.equations))


def bytes_of(value: Value) -> int:
    """Bytes of a value, all of its rows."""
    return math.prod(value.at) * (8 if value.keys else jnp.dtype(value.dtype).itemsize)
