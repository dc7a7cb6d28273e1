"""Small random programs of rows, for the tests of the library itself: elementwise work, reductions, products, scans
and gathers, one after another, and then what is kept of the rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx.testing import arrays
from erythroxy_tx.testing import indices
from erythroxy_tx.testing import rows

# (rows of 4, an index for each, a shared 4 × 4 matrix, a shared vector of 4) -> rows of 4
EXACT: dict[str, Callable[..., Any]] = {
    "negative": lambda h, i, w, b: -h,
    "reversed": lambda h, i, w, b: h[:, ::-1],
    "rolled": lambda h, i, w, b: jnp.roll(h, 1, axis=1),
    "at least": lambda h, i, w, b: jnp.maximum(h, b),
    "chosen": lambda h, i, w, b: jnp.where(h > b, h, -b),
    "sorted": lambda h, i, w, b: jnp.sort(h, axis=1),
    "ranked": lambda h, i, w, b: jnp.take_along_axis(h, jnp.argsort(h, axis=1), axis=1),
    "gathered": lambda h, i, w, b: w[i],
    "picked": lambda h, i, w, b: jnp.broadcast_to(jnp.take_along_axis(h, i[:, None], 1), h.shape),
}
ROUNDED: dict[str, Callable[..., Any]] = {
    "scaled": lambda h, i, w, b: h * b + 0.25,
    "bent": lambda h, i, w, b: h / (1 + h * h),
    "curved": lambda h, i, w, b: jnp.sin(h),
    "mixed": lambda h, i, w, b: h @ w,
    "centred": lambda h, i, w, b: h - h.mean(1, keepdims=True),
    "shared out": lambda h, i, w, b: jax.nn.softmax(h, axis=1),
    "added up": lambda h, i, w, b: jnp.cumsum(h, axis=1),
    "filtered": lambda h, i, w, b: jax.vmap(lambda r: lax.scan(lambda c, v: (c / 2 + v, c), 0.0, r)[1])(h),
    "binned": lambda h, i, w, b: jnp.zeros_like(h).at[jnp.arange(len(h)), i].add(h[:, 0]),
}
STEPS = EXACT | ROUNDED
KINDS: dict[str, Callable[..., Any]] = {
    "rows": lambda h: h,
    "sum": lambda h: h.sum(0),
    "mean": lambda h: h.mean(0),
    "max": lambda h: h.max(0),
    "min": lambda h: h.min(0),
    "prod": lambda h: (1 + h / 64).prod(0),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of rows, by the names of its parts."""

    steps: tuple[str, ...]
    kinds: tuple[str, ...]

    def function(self) -> Callable[..., Any]:
        def fn(x: Any, i: Any, w: Any, b: Any) -> tuple[Any, ...]:
            h = x
            for step in self.steps:
                h = STEPS[step](h, i, w, b)
            return *(KINDS[kind](h) for kind in self.kinds), i * 3 + 1, (i * i).sum(), (i % 5 == 0).any()

        return fn

    @property
    def out(self) -> tuple[str, ...]:
        """What `tx.chunked` is told of the results."""
        return (*self.kinds, "rows", "sum", "any")

    @property
    def in_axes(self) -> tuple[int | None, ...]:
        """Which arguments have rows."""
        return (0, 0, None, None)


def programs() -> st.SearchStrategy[Program]:
    """Programs of at most four steps and three results."""
    steps = st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=4).map(tuple)
    kinds = st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3).map(tuple)
    return st.builds(Program, steps, kinds)


def arguments() -> st.SearchStrategy[tuple]:
    """What a program takes: at least one row, for a maximum of none is refused."""
    n = st.shared(st.sampled_from([7, 4, 1]))
    tame = {"extremes": False, "allow_nan": False, "allow_infinity": False}
    return st.tuples(
        rows(n, 4, **tame), indices(4, n.map(lambda k: (k,))), arrays(shape=(4, 4), **tame), arrays(shape=4, **tame)
    )
