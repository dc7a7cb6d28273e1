"""One function on one kind of input in one way of calling, compiled, and in float64. Not here: the ways (`ways.py`),
nor what the results are held to (`judge.py`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.static import Static
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.static import split
from erythroxy_tx.program.float64 import in_float64
from erythroxy_tx.testing.nearby import companion
from erythroxy_tx.testing.ways import Way
from erythroxy_tx.testing.ways import is_smooth

Fn = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Example:
    """One input: its static half and its traced leaves, with a second input for what takes two."""

    args: tuple
    static: Static
    leaves: tuple
    twin: tuple
    names: tuple[str, ...]
    first: int  # how many of the leaves are of the first argument

    @classmethod
    def of(cls, fn: Fn, static_names: list[str], args: tuple) -> "Example":
        """Divide an input into its parts."""
        parts = declare(fn, static_names, args, {})
        static, leaves = split(parts, name_of(fn))
        names = [name for name, leaf in named_leaves(fn, *parts) if is_traced(leaf)]
        first = len(split(parts[0][:1], name_of(fn))[1])
        return cls(args, static, tuple(leaves), tuple(map(companion, leaves)), tuple(names), first)

    def inputs(self, way: Way) -> tuple:
        """The leaves that a way of calling takes."""
        return (*self.leaves, *self.twin) if way.paired else self.leaves


class Program:
    """One function in one way of calling, compiled, and in float64."""

    def __init__(self, fn: Fn, way: Way, example: Example, *, gradients: bool):
        static, first = example.static, example.first

        def call(*leaves: Any) -> Any:
            args, kwargs = static.merge(leaves)
            return fn(*args, **kwargs)

        self.values = way.build(call, first)
        run = self._with_gradients if gradients else lambda leaves, _: (self.values(*leaves), {})
        self.compiled, self.in_float64 = jax.jit(run), in_float64(run)

    def _with_gradients(self, leaves: tuple, cotangents: tuple) -> tuple[Any, dict[str, Any]]:
        smooth = [i for i, leaf in enumerate(leaves) if is_smooth(leaf)]

        def of_smooth(moved: dict[str, Any]) -> Any:
            return self.values(*(moved.get(str(i), leaf) for i, leaf in enumerate(leaves)))

        values, pull = jax.vjp(of_smooth, {str(i): jnp.asarray(leaves[i]) for i in smooth})
        given = iter(cotangents)
        flat, structure = jtu.tree_flatten(values)
        filled = [next(given) if is_smooth(out) else np.zeros(out.shape, jax.dtypes.float0) for out in flat]
        return values, pull(jtu.tree_unflatten(structure, filled))[0]

    def structs(self, leaves: tuple) -> Any:
        """The structure of the values, with the shape and the dtype of each."""
        found: list[Any]
        found, structure = jtu.tree_flatten(jax.eval_shape(self.values, *leaves))
        return structure, [(leaf.shape, leaf.dtype) for leaf in found]

    def cotangents(self, leaves: tuple) -> tuple:
        """Random numbers, always the same ones, for each output that can be differentiated."""
        outputs = filter(is_smooth, jtu.tree_leaves(jax.eval_shape(self.values, *leaves)))
        return tuple(_cotangent(output, i) for i, output in enumerate(outputs))


def _cotangent(shape: Any, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    drawn = random.normal(size=shape.shape)
    if jnp.issubdtype(shape.dtype, jnp.complexfloating):
        drawn = drawn + 1j * random.normal(size=shape.shape)
    return np.asarray(drawn).astype(shape.dtype)
