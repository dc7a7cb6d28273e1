"""Equations that need all of some axes: sort and top-k put what is not there last, systems with as many unknowns as
rows get an identity in its place, and what would mix it with the rest is refused.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.masks.extents import positions
from erythroxy_tx.program.masks.reductions import lowest
from erythroxy_tx.program.masks.rule import Leaves
from erythroxy_tx.program.masks.rule import Mask
from erythroxy_tx.program.masks.rule import Run
from erythroxy_tx.program.masks.rule import plain
from erythroxy_tx.program.rules.along import FACTORIZATIONS
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import mixing

_FIX = "apply it to something without rows, such as a covariance or a Gram matrix, or outside of the function"


def sort(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """By whether it is there first: a NaN comes after the numbers, and before what is not there."""
    axis, keys = eqn.params["dimension"], eqn.params["num_keys"]
    if (inside := extents.inside(eqn.ins[0], [i for i in eqn.ins[0].rows if i == axis])) is None:
        return bound(eqn, ins)
    away = jnp.broadcast_to(~inside, ins[0].shape)
    return list(lax.sort([away, *ins], dimension=axis, is_stable=eqn.params["is_stable"], num_keys=keys + 1))[1:]


def top(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """The lowest of all numbers comes after an equal one that is there."""
    axis = eqn.params.get("axis", len(eqn.ins[0].at) - 1) % len(eqn.ins[0].at)
    rows, kind = [axis] if axis in eqn.ins[0].rows else [], jnp.dtype(eqn.ins[0].dtype)
    last = lowest(kind)
    if jnp.issubdtype(kind, jnp.floating):  # below the lowest number comes a NaN with all bits set
        last = np.frombuffer(b"\xff" * kind.itemsize, kind)[0]
    return bound(eqn, [extents.only(ins[0], eqn.ins[0], rows, last)])


def factorization(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Of each matrix of a batch."""
    return bound(eqn, ins) if not _in_matrix(eqn, 2) else _mixes(eqn)


def with_identity(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """A matrix of as many rows as there are becomes a block of a larger one, whose other block is an identity."""
    square = str(eqn.ins[0].shape[-1]) == str(eqn.ins[0].shape[-2])
    return bound(eqn, [_bordered(eqn, ins[0], extents), *ins[1:]]) if square or not _in_matrix(eqn, 2) else _mixes(eqn)


def triangular(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Unknowns that are not there are zero."""
    right, last = eqn.ins[1], len(eqn.outs[0].at)
    solved = last - (2 if eqn.params["left_side"] else 1)
    known = extents.only(ins[1], right, [solved] if solved in right.rows else [])
    return bound(eqn, [_bordered(eqn, ins[0], extents), known])


def _bordered(eqn: Equation, x: Any, extents: Extents) -> Any:
    inside = extents.inside(eqn.ins[0], _in_matrix(eqn, 2))
    if inside is None:
        return x
    size, ndim = x.shape[-1], x.ndim
    diagonal = positions(size, ndim - 2, ndim) == positions(size, ndim - 1, ndim)
    return jnp.where(inside, x, jnp.broadcast_to(diagonal, x.shape).astype(x.dtype))


def transform(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """A Fourier transform along axes of its own."""
    return bound(eqn, ins) if not _in_matrix(eqn, len(eqn.params["fft_lengths"])) else _mixes(eqn)


def _in_matrix(eqn: Equation, last: int) -> list[int]:
    return [i for i in eqn.ins[0].rows if i >= len(eqn.ins[0].at) - last]


def _mixes(eqn: Equation) -> Leaves:
    raise mixing(eqn, "which mixes all rows", _FIX)


def gamma(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Each number is drawn by its place in what one key gives, which is the same for fewer if the rows lead."""
    keys = len(eqn.ins[0].at)
    if any(axis > keys for axis in eqn.outs[0].rows) or (keys and any(axis >= keys for axis in eqn.outs[0].rows)):
        raise mixing(eqn, "drawn by place, of which rows do not lead", "a shape whose rows come first")
    return bound(eqn, ins)


RULES: dict[str, Mask] = {
    "sort": sort,
    "top_k": top,
    "fft": transform,
    **dict.fromkeys(FACTORIZATIONS, factorization),
    **dict.fromkeys(["cholesky", "lu"], with_identity),
    "lu_pivots_to_permutation": plain,  # rows that are there change places with each other alone
    "triangular_solve": triangular,
    "threefry2x32": plain,
    "random_gamma": gamma,
}
