"""Indices by which each row picks from itself: `x[jnp.arange(n), y]`, as in a cross-entropy. JAX writes them as indices
into all rows; here the rows become a batch of the gather or the scatter, so that a chunk needs its own rows alone.
"""

from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from erythroxy_tx.program.equations import Value

_THROUGH = {"convert_element_type", "copy", "squeeze", "reshape"}


def batched_by_row(
    name: str, params: dict[str, Any], ins: "list[Value]"
) -> "tuple[dict[str, Any], list[Value]] | None":
    """The parameters and inputs of the same gather or scatter with its rows as a batch; None if it is another one."""
    numbers, operand, indices = params["dimension_numbers"], ins[0], ins[1]
    gathers = name == "gather"
    mapped = numbers.start_index_map if gathers else numbers.scatter_dims_to_operand_dims
    dropped = numbers.collapsed_slice_dims if gathers else numbers.inserted_window_dims
    columns = _columns(indices)
    if numbers.operand_batching_dims or len(indices.shape) != 2 or columns is None or len(mapped) != len(columns):
        return None
    for i, (axis, column) in enumerate(zip(mapped, columns, strict=True)):
        rows = axis in operand.rows and axis in dropped and str(operand.shape[axis]) == str(indices.shape[0])
        if not rows or not _is_own_number(column):
            continue
        left = [c for j, c in enumerate(columns) if j != i]
        if len(left) != 1:
            return None
        kept = tuple(a for a in mapped if a != axis)
        others = tuple(a for a in dropped if a != axis)
        changed: dict[str, Any] = {"operand_batching_dims": (axis,)}
        if gathers:
            changed |= {"start_index_map": kept, "collapsed_slice_dims": others, "start_indices_batching_dims": (0,)}
        else:
            changed |= {"scatter_dims_to_operand_dims": kept, "inserted_window_dims": others}
            changed["scatter_indices_batching_dims"] = (0,)
        again = numbers._replace(**changed)
        return params | {"dimension_numbers": again, "indices_are_sorted": False}, [operand, left[0], *ins[2:]]
    return None


def _columns(indices: "Value") -> "list[Value] | None":
    """The columns of a table of indices, each with one entry a row."""
    maker = indices.maker
    if maker is None or maker.name != "concatenate" or maker.params["dimension"] != 1:
        return None
    return list(maker.ins) if all(v.at[1:] == (1,) for v in maker.ins) else None


def _is_own_number(value: "Value") -> bool:
    """Whether entry i is i: an iota, also where negative numbers would have been counted from the end."""
    maker = value.maker
    if maker is None:
        return False
    if maker.name == "iota":
        return bool(maker.params["dimension"] == 0)
    if maker.name in ("add", "mul"):  # as arange writes its start and its step
        neutral = 0 if maker.name == "add" else 1
        left = [v for v in maker.ins if v.known is None or v.at or v.known != neutral]
        return len(left) == 1 and _is_own_number(left[0])
    if maker.name == "select_n":
        below, plain = maker.ins[0].maker, maker.ins[1]
        asks = below is not None and below.name == "lt" and below.ins[0] is plain and below.ins[1].known is not None
        return bool(asks and below is not None and below.ins[1].known == 0) and _is_own_number(plain)
    spread = maker.name == "broadcast_in_dim" and maker.params["broadcast_dimensions"][:1] == (0,)
    if maker.name not in _THROUGH and not spread:
        return False
    return maker.ins[0].at[:1] == value.at[:1] and _is_own_number(maker.ins[0])
