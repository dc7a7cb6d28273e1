"""How long the results of a function are that masks by itself: read off from two lengths of its arguments."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.pad_call import PadCall

Growth = list[list[int | tuple[int, int]]]  # each axis of each result: its size, or (number of a length, so many more)


def growth_of(call: PadCall, fn: Callable[..., Any]) -> Growth:
    """Which axes of each result are as long as the rows.

    **Raises:** `RowMixingError` if a result does not grow by one entry with each row.
    """
    counts = tuple(jax.ShapeDtypeStruct((), jnp.int32) for _ in call.most)

    def shapes(rows: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [x.shape for x in jtu.tree_leaves(jax.eval_shape(fn, *call.types(rows), lengths=counts))]

    most = shapes(call.most)
    found: Growth = [list(shape) for shape in most]
    for k, size in enumerate(call.most):
        try:
            more = shapes(tuple(size + (i == k) for i, size in enumerate(call.most)))
        except Exception as error:
            if not any(size in shape for shape in most):  # no result can have rows
                continue
            raise RowMixingError(
                f"{call.label} raises for {size + 1} places, so that which results have rows cannot be told: "
                f"{type(error).__name__}: {error}. Expected a function of any number of places. Fix: cut tables to "
                "x.shape[0]; or return nothing with rows."
            ) from error
        for out, (one, two) in enumerate(zip(most, more, strict=True)):
            for axis, (short, long) in enumerate(zip(one, two, strict=True)):
                if long == short:
                    continue
                if long != short + 1 or not isinstance(found[out][axis], int):
                    raise RowMixingError(
                        f"{call.label} gives f{list(one)} for {size} rows and {list(two)} for {size + 1}. Expected a "
                        "result that grows by one with each row. Fix: reshape it outside of the function."
                    )
                found[out][axis] = k, short - size
    return found


def sizes_of(growth: Growth, lengths: tuple[Any, ...]) -> list[list[Any]]:
    """How long each axis of each result is, for these lengths."""
    return [[size if isinstance(size, int) else lengths[size[0]] + size[1] for size in each] for each in growth]
