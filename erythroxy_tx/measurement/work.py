"""A rough count of the operations of an equation, for shares of the work. Exact for products,
convolutions and elementwise arithmetic; an order of magnitude for sorts and decompositions. A branch
counts as its longest, a `while` as one step. Not here: what the shares are of, and bytes.
"""

import math
from collections.abc import Callable
from typing import Any

from erythroxy_tx._compat import sub_jaxprs

_FREE = {"broadcast_in_dim", "iota", "reshape", "squeeze", "expand_dims", "convert_element_type", "copy"}
_PER_ELEMENT = ("reduce", "scatter", "select_and", "argm")  # the program inside combines two elements


def work(eqn: Any, *, only_heavy: bool = False) -> float:
    """Count the operations of one equation, with what it calls.

    **Arguments:**

    - `eqn`: an equation of a traced program.
    - `only_heavy`: leave elementwise operations, reductions and moves out.
    """
    name = eqn.primitive.name
    inside = list(sub_jaxprs(eqn))
    if inside and not name.startswith(_PER_ELEMENT):
        each = [sum(work(inner, only_heavy=only_heavy) for inner in body.eqns) for body in inside]
        return max(each) if name == "cond" else eqn.params.get("length", 1) * sum(each)
    if name in _HEAVY:
        return _HEAVY[name](eqn)
    if only_heavy or name in _FREE:
        return 0.0
    return float(max(_size(var) for var in [*eqn.invars, *eqn.outvars]))


def _size(var: Any) -> int:
    return math.prod(getattr(var.aval, "shape", ()))


def _product(eqn: Any) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return 2.0 * _size(eqn.outvars[0]) * math.prod(shape[axis] for axis in contracted)


def _convolution(eqn: Any) -> float:
    kernel = eqn.invars[1]
    features = kernel.aval.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
    return 2.0 * _size(eqn.outvars[0]) * _size(kernel) / max(features, 1)


def _n_log_n(eqn: Any) -> float:
    size = max(_size(eqn.invars[0]), 2)
    return 5.0 * size * math.log2(size)


def _decomposition(eqn: Any) -> float:
    return float(_size(eqn.invars[0]) * eqn.invars[0].aval.shape[-1])


_DECOMPOSITIONS = "cholesky lu eig eigh svd qr geqrf householder_product schur triangular_solve tridiagonal"

_HEAVY: dict[str, Callable[[Any], float]] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "fft": _n_log_n,
    "sort": _n_log_n,
    **dict.fromkeys(_DECOMPOSITIONS.split(), _decomposition),
}
