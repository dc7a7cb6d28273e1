"""A scan without the work that is the same in all of its steps, which is done once before it. Not here: what of it
pays (`program/split.py`).
"""

import dataclasses

import jax

from erythroxy_tx import _compat
from erythroxy_tx.program.scans.scan import Leaves
from erythroxy_tx.program.scans.scan import Scan
from erythroxy_tx.program.split import Moved
from erythroxy_tx.program.split import Split
from erythroxy_tx.program.split import Terms


def hoisted(scan: Scan, terms: Terms) -> tuple[Scan, list[Moved]]:
    """The scan that takes what does not change from outside, and what that is."""
    if _compat.is_symbolic(scan.length) or scan.length < 2:
        return scan, []
    n, m = len(scan.consts), len(scan.init)
    carry = [_like(leaf) for leaf in scan.init]
    xs = [_like(leaf, 1) for leaf in scan.xs]

    def flat(*leaves: object) -> Leaves:
        new, y = scan.body(list(leaves[:n]), list(leaves[n : n + m]), list(leaves[n + m :]))
        return [*new, *y]

    closed = jax.make_jaxpr(flat)(*map(_like, scan.consts), *carry, *xs)
    split = Split(closed, [True] * n + [False] * (len(carry) + len(xs)), terms)
    values = split.first([*scan.consts, *[None] * (len(carry) + len(xs))])

    def body(consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        found = split.rest([*consts[:n], *carry, *x], consts[n:])
        return found[:m], found[m:]

    return dataclasses.replace(scan, consts=[*scan.consts, *values], body=body), split.moved


def _like(leaf: object, axes: int = 0) -> jax.ShapeDtypeStruct:
    """The type of an array, or of an element of it."""
    kind = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(kind.shape[axes:], kind.dtype, weak_type=kind.weak_type)
