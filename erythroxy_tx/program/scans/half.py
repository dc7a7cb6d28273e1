"""Carries in half their bytes: f32 as bf16, on the tape that a derivative reads, or between the steps too. Not here:
which of them (`transforms/bf16_carry_scan.py`).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.scans.scan import Body
from erythroxy_tx.program.scans.scan import Leaves


@dataclasses.dataclass(frozen=True)
class Half:
    """Which carries are halved, and whether `between` the steps or on the tape alone."""

    which: tuple[bool, ...]
    between: bool = False

    def around(self, body: Body) -> Body:
        """A step from carries as they are handed on to carries as they are handed on."""

        def step(consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
            new, y = body(consts, self.read(carry), x)
            return self.carried(new), y

        return step

    def carried(self, carry: Leaves) -> Leaves:
        """Carries as a step hands them on."""
        return self._rounded(carry) if self.between else carry

    def stacked(self, carry: Leaves) -> Leaves:
        """Carries as they are handed on, to be stacked: bf16 as its bits, where a stack of it would cost more."""
        bits = _compat.rewrites_stacks_of_bf16()
        return [
            _compat.bits_of_bf16(leaf) if bits and half and leaf.dtype == jnp.bfloat16 else leaf
            for leaf, half in self._each(carry)
        ]

    def taped(self, carry: Leaves) -> Leaves:
        """Carries as they are handed on, to be stacked for a derivative."""
        return self.stacked(self._rounded(carry))

    def read(self, carry: Leaves) -> Leaves:
        """Carries as a step takes them."""
        return [_widened(leaf) if half else leaf for leaf, half in self._each(carry)]

    def _rounded(self, carry: Leaves) -> Leaves:
        return [_narrowed(leaf) if half else leaf for leaf, half in self._each(carry)]

    def _each(self, carry: Leaves) -> Iterator[tuple[Any, bool]]:
        return zip(carry, self.which, strict=True)


def _narrowed(leaf: jax.Array) -> jax.Array:
    """As bf16; what is finite stays so, though the largest of f32 would round up to infinity."""
    if leaf.dtype == jnp.bfloat16:
        return leaf
    most = float(jnp.finfo(jnp.bfloat16).max)
    return jnp.where(jnp.isfinite(leaf), jnp.clip(leaf, -most, most), leaf).astype(jnp.bfloat16)


def _widened(leaf: jax.Array) -> jax.Array:
    if leaf.dtype == jnp.uint16:
        leaf = lax.bitcast_convert_type(leaf, jnp.bfloat16)
    return leaf.astype(jnp.float32)
