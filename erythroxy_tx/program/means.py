"""Which value is the mean of which: what `x - mean(x)` is in a program. Not here: what is made of it."""

import math

import numpy as np

from erythroxy_tx.program.equations import Value


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
