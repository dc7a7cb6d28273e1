"""The promise `AsAccurate`: what float64 says of two results in a narrower dtype. Not here: how the float64 results
are made.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.numeric import LeafReport
from erythroxy_tx.core.numeric import Pair
from erythroxy_tx.core.numeric import first
from erythroxy_tx.core.numeric import measured
from erythroxy_tx.core.numeric import most
from erythroxy_tx.core.numeric import moved
from erythroxy_tx.core.numeric import parts

_VAGUE = 0.1  # an allowance beyond this share of the largest magnitude tells nothing


@dataclasses.dataclass(frozen=True)
class Exact:
    """A result in float64, with what else is known of it: pytrees like the result, or one leaf of each.

    - `values`: the result on the same inputs.
    - `nearby`: the results where every float input is moved by one rounding unit. How far they are from `values` is
      how well the inputs determine the result.
    - `candidate`: computes the candidate's result in float64, for what overflows on the way in a narrower dtype.
    - `strained`: computes the reference's result in its own dtype on inputs that are eight times as large, and more
        than 8.
    - `determined`: whether the inputs determine the result at all.
    """

    values: Any
    nearby: Sequence[Any] = ()
    candidate: Callable[[], Any] | None = None
    strained: Callable[[], Any] | None = None
    determined: bool = True

    def leaves(self) -> "list[Exact]":
        """One `Exact` for each leaf."""
        nearby: list[list[Any]] = [jtu.tree_leaves(tree) for tree in self.nearby]
        return [
            Exact(leaf, [x[i] for x in nearby], _leaf(self.candidate, i), _leaf(self.strained, i), self.determined)
            for i, leaf in enumerate(jtu.tree_leaves(self.values))
        ]


def _leaf(tree: Callable[[], Any] | None, i: int) -> Callable[[], Any] | None:
    return None if tree is None else lambda: jtu.tree_leaves(tree())[i]


def held_to_exact(pair: Pair, contract: AsAccurate, exact: Exact) -> LeafReport:
    """Hold the second of two leaves to `AsAccurate`.

    Where a result in float64 is finite for some inputs nearby and not for others, it is not determined, and nothing
    is asked. Where the candidate alone is not finite, it overflowed on the way, or it is wrong. It is excused where the
    reference is about to overflow as well, and the candidate's own float64 result is right.
    """
    a, b = pair.wide()
    known = np.asarray(exact.values).astype(a.dtype)
    nearby = [np.asarray(one).astype(a.dtype) for one in exact.nearby]
    settled = np.full(a.shape, exact.determined)
    for one in nearby:
        settled &= ~moved(one, known)
    faults: list[str] = []
    if pair.inexact:
        off = settled & moved(a, b) & moved(_rounded(known, pair.a.dtype), b)
        narrower = pair.a.dtype != pair.b.dtype  # then it is the dtype that overflows, which the reference's does not
        if off.any() and (narrower or not _overflowed(contract, known, nearby, settled, off, exact, pair.b.dtype)):
            faults = [str(first(off, a, b, pair.names, "NaN or infinity in other places"))]
    for x, y, z in zip(parts(known), parts(a), parts(_rounded(known, pair.a.dtype)), strict=True):
        x[~np.isfinite(z)] = y[~np.isfinite(z)]  # no number in this dtype: the reference is what there is
    settled &= np.isfinite(known)
    known = np.where(settled, known, 0)
    a, b = (np.where(settled & np.isfinite(values), values, known) for values in (a, b))
    if not pair.inexact:
        return _held_by_count(pair, contract, a, b, known, nearby, settled)
    own, spread = most(a - known), _spread(known, nearby, settled)
    slack = _slack(contract, known, pair.b.dtype)
    allowed = contract.k * max(own, spread) + slack
    told = f"allowed {allowed:.3g} from float64 = {contract.k:g} × {max(own, spread):.3g} + {slack:.3g}"
    size = most(known)
    decided = allowed <= _VAGUE * size if size else None
    return measured(pair, a, b, faults, lambda _: (allowed, told), most(b - known), decided=decided)


def _held_by_count(
    pair: Pair,
    contract: AsAccurate,
    a: np.ndarray,
    b: np.ndarray,
    known: np.ndarray,
    nearby: list[np.ndarray],
    settled: np.ndarray,
) -> LeafReport:
    """Integers and bools that rounded floats may have decided: no more are turned than rounding turns, and integers
    are not further off than it moves them, and 1.
    """
    runs = [a, *(np.where(settled, one, known) for one in nearby)]
    turned = max(int(np.count_nonzero(one != known)) for one in runs)
    spare = max(pair.b.dtype != np.bool_, known.size // 1000)
    few = contract.k * turned + spare
    far = contract.k * max(most(one - known) for one in runs) + 1.0
    wrong, off = int(np.count_nonzero(b != known)), most(b - known)
    told = f"allowed {few:g} that rounding turned = {contract.k:g} × {turned} + {spare:d}, by {far:g} at most"
    decided = contract.k * turned <= known.size / 2 if known.size else None
    fits = wrong <= few and (off <= far or pair.b.dtype == np.bool_)
    return measured(pair, a, b, [], lambda _: (0.0, told), 0.0 if fits else 1.0, decided=decided)


def _rounded(known: np.ndarray, dtype: Any) -> np.ndarray:
    """The float64 result as it is in the narrower dtype, where it may be infinite."""
    return np.asarray(known.astype(dtype).astype(known.dtype))


def _slack(contract: AsAccurate, known: np.ndarray, dtype: Any) -> float:
    """Rounding units, of a narrow dtype only two: what is summed is wider, and rounded once."""
    info = jnp.finfo(dtype)
    units = min(contract.units * float(info.eps), max(2 * float(info.eps), 2.0**-10))
    return units * most(known) + float(info.tiny)  # subnormals are flushed


def _spread(known: np.ndarray, nearby: list[np.ndarray], settled: np.ndarray) -> float:
    """How far inputs one rounding unit away move the result."""
    return max((most(np.where(settled & np.isfinite(one), one - known, 0)) for one in nearby), default=0.0)


def _overflowed(
    contract: AsAccurate,
    known: np.ndarray,
    nearby: list[np.ndarray],
    settled: np.ndarray,
    off: np.ndarray,
    exact: Exact,
    dtype: Any,
) -> bool:
    """Whether the reference is about to overflow, and the candidate is right in float64, where nothing does."""
    if exact.candidate is None or exact.strained is None:
        return False
    if (off & np.isfinite(np.asarray(exact.strained()).astype(known.dtype))).any():
        return False
    found = np.asarray(exact.candidate()).astype(known.dtype)
    if (settled & moved(known, found)).any():
        return False
    settled = settled & np.isfinite(known)
    known = np.where(settled, known, 0)
    allowed = contract.k * _spread(known, nearby, settled) + _slack(contract, known, dtype)
    return most(np.where(settled, found, 0) - known) <= allowed
