"""One `lax.scan` of a traced program: what it loops over, and its body as a function of flat lists. Not here: what
is put in its place.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx.core.signature import struct_of

Leaves = list[Any]
Body = Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]


@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
    """A scan at hand. `body(consts, carry, x) -> (carry, y)`, and `jaxpr` the same as it was written, at `line`, in
    the equation that `place` identifies; `effects` is whether a run of it can be seen from outside.
    """

    consts: Leaves
    init: Leaves
    xs: Leaves
    length: int
    reverse: bool
    unroll: int
    body: Body
    jaxpr: Any
    line: str
    place: int
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

    def bare(self) -> "Scan":
        """The same with types in the place of arrays: what outlives a trace must not hold its values."""
        consts, init, xs = (list(map(struct_of, leaves)) for leaves in (self.consts, self.init, self.xs))
        return dataclasses.replace(self, consts=consts, init=init, xs=xs)

    def program(self) -> Any:
        """One step as a closed program, from `[*consts, *carry, *x]` to `[*carry, *y]`."""
        n, m = len(self.consts), len(self.init)

        def flat(*leaves: Any) -> Leaves:
            new, y = self.body(list(leaves[:n]), list(leaves[n : n + m]), list(leaves[n + m :]))
            return [*new, *y]

        return jax.make_jaxpr(flat)(*self.consts, *self.init, *(leaf[0] for leaf in self.xs))

    @property
    def n_consts(self) -> int:
        """How many inputs of the body as it was written are shared by all steps."""
        return len(self.jaxpr.invars) - len(self.init) - len(self.xs)

    @property
    def is_derived(self) -> bool:
        """Whether JAX made it of another one, for a derivative."""
        return self.jaxpr.debug_info.arg_names is None

    def names(self) -> list[str]:
        """The carries as the body names them, `state['h']`."""
        names = self.jaxpr.debug_info.arg_names or ("",) * len(self.jaxpr.invars)
        return [name or f"carry[{i}]" for i, name in enumerate(names[self.n_consts : self.n_consts + len(self.init)])]


def is_float(x: Any) -> bool:
    """Whether a leaf has a derivative."""
    return bool(jnp.issubdtype(struct_of(x).dtype, jnp.inexact))
