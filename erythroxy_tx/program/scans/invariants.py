"""A scan without the work that is the same in all of its steps, which is done once before it. Not here: what of it
pays (`program/split.py`).
"""

import dataclasses

from erythroxy_tx import _compat
from erythroxy_tx.program.in_two import first
from erythroxy_tx.program.in_two import rest
from erythroxy_tx.program.scans.scan import Leaves
from erythroxy_tx.program.scans.scan import Scan
from erythroxy_tx.program.split import Moved
from erythroxy_tx.program.split import Split
from erythroxy_tx.program.split import Terms


def hoisted(scan: Scan, terms: Terms) -> tuple[Scan, list[Moved], list[Moved]]:
    """The scan that takes what does not change from outside, what that is, and what is left for its bytes."""
    if _compat.is_symbolic(scan.length) or scan.length < 2 or any(map(_compat.is_ref, (*scan.consts, *scan.init))):
        return scan, [], []
    n, m, unknown = len(scan.consts), len(scan.init), len(scan.init) + len(scan.xs)
    split = Split(scan.program(), [True] * n + [False] * unknown, terms)
    values = first(split, [*scan.consts, *[None] * unknown])

    def body(consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        found = rest(split, [*consts[:n], *carry, *x], consts[n:])
        return found[:m], found[m:]

    return dataclasses.replace(scan, consts=[*scan.consts, *values], body=body), split.moved, split.over_budget
