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
        rows = lambda n, k=k: tuple(n if i == k else most for i, most in enumerate(call.most))  # noqa: E731
        try:
            seen = {n: shapes(rows(n)) for n in sorted({0, 1, 2, 3, size // 2, size - 1, size, size + 1})}
        except Exception as error:
            if not any(size in shape for shape in most):  # no result can have rows
                continue
            raise RowMixingError(
                f"{call.label} raises for other numbers of places than {size}, so that which results have rows cannot "
                f"be told: {type(error).__name__}: {error}. Expected a function of any number of places. Fix: cut "
                "tables to x.shape[0]; or return nothing with rows."
            ) from error
        for out, axis in [(out, axis) for out, shape in enumerate(most) for axis in range(len(shape))]:
            sizes = {n: each[out][axis] for n, each in seen.items()}
            if set(sizes.values()) == {most[out][axis]}:
                continue
            more = sizes[size] - size
            if (
                any(found_size != max(n + more, 0) for n, found_size in sizes.items())
                or found[out][axis] != sizes[size]
            ):
                raise RowMixingError(
                    f"{call.label} gives a result whose axis {axis} is {sizes[size]} long for {size} rows, and "
                    f"{sizes[size // 2]} for {size // 2}. Expected one that grows by one with each row. Fix: cut or "
                    "reshape it outside of the function."
                )
            found[out][axis] = k, more
    return found


def sizes_of(growth: Growth, lengths: tuple[Any, ...]) -> list[list[Any]]:
    """How long each axis of each result is, for these lengths."""

    def length(size: Any) -> Any:
        if isinstance(size, int):
            return size
        found = lengths[size[0]] + size[1]
        return max(found, 0) if isinstance(found, int) else jnp.maximum(found, 0)

    return [[length(size) for size in each] for each in growth]
