"""Windows that slide along rows: what is not there is padding."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.masks.reductions import highest
from erythroxy_tx.program.masks.reductions import lowest
from erythroxy_tx.program.masks.rule import Leaves
from erythroxy_tx.program.masks.rule import Mask
from erythroxy_tx.program.masks.rule import Run
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import mixing
from erythroxy_tx.program.rules.windows import convolution_specs
from erythroxy_tx.program.rules.windows import slides_along_rows


def pooling(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """`out[i] = op over window of x[i * stride - low + window]`."""
    source, kind = eqn.ins[0], eqn.ins[0].dtype
    fill = 0 if eqn.name == "reduce_window_sum" else (lowest if eqn.name == "reduce_window_max" else highest)(kind)
    x, padding = extents.only(ins[0], source, fill=fill), list(eqn.params["padding"])
    for axis in source.rows:
        x, padding[axis] = _shifted(eqn, x, axis, eqn.symbolic["padding"][axis], padding[axis], extents, fill)
    return bound(eqn, [x], padding=tuple(padding))


def _shifted(
    eqn: Equation, x: Any, axis: int, pair: Any, known: Any, extents: Extents, fill: Any
) -> tuple[Any, tuple[int, int]]:
    """An input whose padding before it is as long as it has to be for the rows that are there, and what is left."""
    if not _compat.is_symbolic(pair[0]):
        return x, (int(known[0]), int(known[1]))
    if eqn.params.get("base_dilation", (1,) * x.ndim)[axis] != 1:
        raise mixing(eqn, "whose dilated padding depends on the number of rows", "padding of its own length")
    low, high = int(known[0]), int(known[1])
    room, size = x.shape[axis] + low + high, x.shape[axis]
    edges = [(room, room, 0) if i == axis else (0, 0, 0) for i in range(x.ndim)]
    wide = lax.pad(x, jnp.asarray(fill, x.dtype), edges)
    first = jnp.clip(room - extents.size(pair[0]), 0, room + size)
    return lax.dynamic_slice_in_dim(wide, first, room, axis=axis), (0, 0)


def picking(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Pooling by a program of the user's and the derivatives of pooling, along axes that are no rows."""
    if slides_along_rows(eqn):
        raise mixing(eqn, "whose windows slide along rows", "jnp.max over shifted copies, or pooling by a sum")
    return bound(eqn, ins)


def convolution(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """Zeros on both sides, wherever rows are summed over."""
    lhs, rhs, _ = convolution_specs(eqn)
    params, left, right = eqn.params, eqn.ins[0], eqn.ins[1]
    if params["batch_group_count"] != 1 and (lhs[0] in left.rows or right.rows):
        raise mixing(eqn, "of rows in groups", "a batch without groups")
    own = str(eqn.symbolic["feature_group_count"]) == str(left.shape[lhs[1]])  # each row by itself, as under vmap
    if params["feature_group_count"] != 1 and not own and {lhs[1]} & {*left.rows} | {rhs[0], rhs[1]} & {*right.rows}:
        raise mixing(eqn, "of features that are rows in groups", "features without groups")
    x = extents.only(ins[0], left, [i for i in left.rows if i != lhs[0]])
    kernel = extents.only(ins[1], right, [i for i in right.rows if i != rhs[0]])
    padding = list(params["padding"])
    for k in range(2, len(lhs)):
        pair = eqn.symbolic["padding"][k - 2]
        if lhs[k] in left.rows or _compat.is_symbolic(pair[0]):
            if _compat.is_symbolic(pair[0]) and params["lhs_dilation"][k - 2] != 1:
                raise mixing(eqn, "whose dilated padding depends on the number of rows", "padding of its own length")
            x, padding[k - 2] = _shifted(eqn, x, lhs[k], pair, padding[k - 2], extents, 0)
    return bound(eqn, [x, kernel], padding=tuple(padding))


_POOLS = ["reduce_window_sum", "reduce_window_max", "reduce_window_min"]
_PICKS = ["reduce_window", "select_and_scatter_add", "select_and_gather_add"]
RULES: dict[str, Mask] = {
    **dict.fromkeys(_POOLS, pooling),
    **dict.fromkeys(_PICKS, picking),
    "conv_general_dilated": convolution,
}
