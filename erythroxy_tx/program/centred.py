"""What is less its own mean, `x - mean(x)`, in a program, however it was scaled since. Not here: what is made of it."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Value

_FACTORS: dict[str, Any] = {"mul": jnp.multiply, "div": jnp.divide}


@dataclasses.dataclass(frozen=True)
class Centred:
    """`steps` applied to `x` less its mean over the rows: a transposition, or a factor that is the same in each row."""

    x: Value
    axis: int
    steps: tuple[tuple[str, Any], ...] = ()

    @property
    def factors(self) -> list[Value]:
        return [by for name, by in self.steps if name in _FACTORS]

    def applied(self, units: Any, factors: list[Any]) -> Any:
        """The steps on one row of units, given one row of each factor."""
        left, row = iter(factors), jnp.expand_dims(units, self.axis)
        for name, by in self.steps:
            row = jnp.transpose(row, by) if name == "transpose" else _FACTORS[name](row, next(left))
        return row

    def places(self) -> list[int]:
        """The axis of `x` that each axis of the result is."""
        found = list(range(len(self.x.at)))
        for name, by in self.steps:
            found = [found[i] for i in by] if name == "transpose" else found
        return found


def mean_of(value: Value, axes: tuple[int, ...]) -> Value | None:
    """The x whose mean over these axes a value is, repeated along them."""
    on = list(range(len(value.at)))  # the axis of x on which each axis of the value at hand lies
    divided: tuple[str, np.ndarray] | None = None
    while value.maker is not None:
        eqn = value.maker
        if eqn.name == "reduce_sum":
            x = eqn.ins[0]
            own = [i for i in range(len(x.at)) if i not in axes]
            placed = len(own) == len(on) and all(a == b or x.at[a] == 1 for a, b in zip(own, on, strict=True))
            return x if placed and set(eqn.params["axes"]) == set(axes) and _is_count(divided, x, axes) else None
        if eqn.name in ("div", "mul"):
            by = eqn.ins[1].known
            if divided is not None or not isinstance(by, np.ndarray) or by.shape:
                return None
            divided = eqn.name, by
        elif eqn.name == "broadcast_in_dim":
            on = [on[i] for i in eqn.params["broadcast_dimensions"]]
        elif eqn.name in ("reshape", "squeeze"):
            sizes = eqn.ins[0].at
            if eqn.name == "reshape" and eqn.params["dimensions"] is not None:  # it is turned before
                return None
            if [size for size in sizes if size != 1] != [size for size in value.at if size != 1]:
                return None
            long = iter([axis for axis, size in zip(on, value.at, strict=True) if size != 1])
            on = [next(long) if size != 1 else -1 for size in sizes]
        elif eqn.name != "copy":
            return None
        value = eqn.ins[0]
    return None


def _is_count(divided: tuple[str, np.ndarray] | None, x: Value, axes: tuple[int, ...]) -> bool:
    """Whether a sum was divided by the number of its terms."""
    count = np.float32(math.prod(x.at[i] for i in axes))
    return divided is not None and divided[1] == (count if divided[0] == "div" else np.float32(1) / count)


def centred(value: Value) -> Centred | None:
    """A value as steps from something less its mean over the rows."""
    steps: list[tuple[str, Any]] = []
    cut: Equation | None = None
    while value.maker is not None and len(value.rows) == 1:
        eqn, axis = value.maker, value.rows[0]
        if eqn.name == "sub":
            x = mean_of(eqn.ins[1], (axis,))
            if x is None or eqn.ins[0].at != eqn.outs[0].at:
                return None
            same = x is eqn.ins[0] if cut is None else _is_cut(x, eqn.ins[0], cut)
            return Centred(x, axis, tuple(reversed(steps))) if same else None
        if eqn.name == "transpose" and cut is None:
            steps.append(("transpose", eqn.params["permutation"]))
            value = eqn.ins[0]
        elif cut is None and _cuts_rows(eqn, axis):
            cut, value = eqn, eqn.ins[0]
        elif eqn.name in _FACTORS:
            sources = eqn.ins if eqn.name == "div" else sorted(eqn.ins, key=lambda v: _same_in_each_row(v, axis))
            if not _same_in_each_row(sources[1], axis) or sources[0].rows != (axis,):
                return None
            steps.append((eqn.name, sources[1]))
            value = sources[0]
        else:
            return None
    return None


def _is_cut(x: Value, source: Value, cut: Equation) -> bool:
    """Whether a value is the part of another that an equation cuts out."""
    eqn = x.maker
    if eqn is None or eqn.name != cut.name or eqn.params != cut.params or eqn.ins[0] is not source:
        return False
    return all(_same_number(a, b) for a, b in zip(eqn.ins[1:], cut.ins[1:], strict=True))


def _cuts_rows(eqn: Equation, axis: int) -> bool:
    """Whether an equation gives some rows of its input, one after the other, and nothing else."""
    if eqn.name == "gather":
        how, inside = eqn.params["dimension_numbers"], eqn.params["mode"] == GatherScatterMode.PROMISE_IN_BOUNDS
        in_order = how.offset_dims == tuple(range(len(eqn.outs[0].at))) and how.start_index_map == (axis,)
        if eqn.ins[1].at != (1,) or not in_order or not inside:
            return False
    source, out = eqn.ins[0], eqn.outs[0]
    alike = len(source.at) == len(out.at) and without(source, axis)[1] == without(out, axis)[1]
    return eqn.name in ("slice", "dynamic_slice", "gather") and alike


def _same_number(a: Value, b: Value) -> bool:
    both = isinstance(a.known, np.ndarray) and isinstance(b.known, np.ndarray)
    return a is b or (both and np.array_equal(a.known, b.known))


def without(value: Value, axis: int) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The shape of a value without one axis, with the unknown and for the rows at hand."""
    return value.shape[:axis] + value.shape[axis + 1 :], value.at[:axis] + value.at[axis + 1 :]


def _same_in_each_row(value: Value, axis: int) -> bool:
    eqn = value.maker
    if not value.at or (axis not in value.rows and value.at[axis] == 1):
        return True
    if eqn is None or eqn.name != "broadcast_in_dim":
        return False
    places = eqn.params["broadcast_dimensions"]
    return axis not in places or (not eqn.ins[0].rows and eqn.ins[0].at[places.index(axis)] == 1)
