"""Slices that are written as something else: the parts of a split; and indices that count evenly, such as `x[::2]` and
`x[::-1]`, which JAX writes as indices into all rows where their number is not known. As slices, a chunk needs its own
rows alone.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any

import numpy as np
from jax import lax

if TYPE_CHECKING:
    from erythroxy_tx.program.equations import Value

_THROUGH = {"convert_element_type", "copy", "squeeze", "reshape", "broadcast_in_dim"}


def strided(params: dict[str, Any], ins: "list[Value]", at: Callable[[Any], int]) -> list[tuple[Any, dict[str, Any]]]:
    """The equations that a gather is, one after another, each with its parameters; none if it is another one."""
    numbers, (operand, indices) = params["dimension_numbers"], ins
    if len(numbers.start_index_map) != 1 or numbers.operand_batching_dims or indices.at[1:] != (1,):
        return []
    (axis,) = numbers.start_index_map
    others = tuple(i for i in range(len(operand.at)) if i != axis)
    sizes = tuple(at(size) for size in params["slice_sizes"])
    whole = all(sizes[i] == operand.at[i] for i in others)
    if numbers.collapsed_slice_dims != (axis,) or numbers.offset_dims != others or not whole:
        return []
    count, found = indices.at[0], _even(indices)
    if axis not in operand.rows or found is None or not count:
        return []
    first, step = found
    last = first + step * (count - 1)
    if step == 0 or not (0 <= first < operand.at[axis] and 0 <= last < operand.at[axis]):
        return []
    low, high = min(first, last), max(first, last) + 1
    starts = tuple(low if i == axis else 0 for i in range(len(operand.at)))
    limits = tuple(high if i == axis else size for i, size in enumerate(operand.shape))
    strides = tuple(abs(step) if i == axis else 1 for i in range(len(operand.at)))
    slices = {"start_indices": starts, "limit_indices": limits, "strides": strides}
    return [(lax.slice_p, slices), *([(lax.rev_p, {"dimensions": (axis,)})] if step < 0 else [])]


def adds_to_all(params: dict[str, Any], ins: "list[Value]") -> bool:
    """Whether a scatter adds one update to each row, in order, as the derivative of `x[::-1]` does."""
    numbers, (operand, indices, updates) = params["dimension_numbers"], ins
    mapped = numbers.scatter_dims_to_operand_dims
    if len(mapped) != 1 or numbers.operand_batching_dims or indices.at[1:] != (1,) or updates.at != operand.at:
        return False
    others = tuple(i for i in range(len(operand.at)) if i not in mapped)
    in_place = numbers.inserted_window_dims == mapped and numbers.update_window_dims == others
    return in_place and mapped[0] in operand.rows and _even(indices) == (0, 1)


def parts_of(params: dict[str, Any], source: "Value") -> Iterator[dict[str, Any]]:
    """The parameters of a slice for each part of a split."""
    axis, first = params["axis"], 0
    for size in params["sizes"]:
        starts, limits = [0] * len(source.shape), list(source.shape)
        starts[axis], limits[axis] = first, first + size
        first = limits[axis]
        yield {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": None}


def _even(value: "Value") -> tuple[int, int] | None:
    """The first of some numbers along axis 0 and how far each is from the one before it, if that is always as far."""
    maker = value.maker
    if maker is None or not np.issubdtype(value.dtype, np.integer) or value.dtype.itemsize < 4:
        return None  # fewer bits would begin again from the least number
    if maker.name == "iota":
        return (0, 1) if maker.params["dimension"] == 0 else None
    if maker.name in ("add", "mul"):
        known = [v for v in maker.ins if isinstance(v.known, np.ndarray) and not v.at]
        left = [v for v in maker.ins if v.known is None]
        found = _even(left[0]) if len(left) == len(known) == 1 else None
        if found is None:
            return None
        number = int(known[0].known)
        return (found[0] + number, found[1]) if maker.name == "add" else (found[0] * number, found[1] * number)
    if maker.name != "rev" and maker.name not in _THROUGH:
        return None
    source = maker.ins[0]
    found = _even(source) if source.at[:1] == value.at[:1] and not any(n != 1 for n in source.at[1:]) else None
    if maker.name == "broadcast_in_dim" and maker.params["broadcast_dimensions"][:1] != (0,):
        return None
    if found is None or maker.name != "rev":
        return found
    return (found[0] + found[1] * (value.at[0] - 1), -found[1]) if maker.params["dimensions"] == (0,) else None
