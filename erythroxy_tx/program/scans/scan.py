"""One `lax.scan` of a traced program: what it loops over, and its body as a function of flat lists. Not here: what
is put in its place.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Leaves = list[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
    """A scan at hand. `body(consts, carry, x) -> (carry, y)`; `line` is where it was written, and `effects` whether a
    run of the body can be seen from outside.
    """

    consts: Leaves
    init: Leaves
    xs: Leaves
    length: int
    reverse: bool
    unroll: int
    body: Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]
    line: str
    effects: bool

    def plain(self) -> Leaves:
        """Run it as it is."""
        carry, ys = lax.scan(
            lambda carry, x: self.body(self.consts, carry, x),
            self.init,
            self.xs,
            length=None if self.xs else self.length,  # which may be unknown, where the inputs tell it
            reverse=self.reverse,
            unroll=self.unroll,
        )
        return [*carry, *ys]


def is_float(x: Any) -> bool:
    """Whether a leaf has a derivative."""
    return bool(jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact))
