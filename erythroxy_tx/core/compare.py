"""Hold one result against another under a contract, leaf by leaf, and say where they differ.

Compared are structure, shape, dtype, weak type, the places of NaN and of the infinities, the sign of zero
(under `Bitwise`), and the numbers. Not here: how the results were made.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close
from erythroxy_tx.core.contract import Contract
from erythroxy_tx.core.signature import shape_of

Bound = Callable[[float, float], float]  # (largest magnitude, error of the reference) -> allowed error


@dataclasses.dataclass(frozen=True)
class LeafReport:
    """One leaf of a comparison. `faults` is empty where it meets the contract; errors are absolute."""

    path: str
    faults: tuple[str, ...] = ()
    largest: float = 0.0
    scale: float = 0.0
    differing: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.path or 'result'}: " + ("; ".join(self.faults) or f"meets it (largest difference {self.largest:.3g})")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The outcome for every leaf."""

    leaves: tuple[LeafReport, ...]

    @property
    def ok(self) -> bool:
        """Whether every leaf meets its contract."""
        return not any(leaf.faults for leaf in self.leaves)

    @property
    def largest(self) -> float:
        """The largest difference of any leaf, over that leaf's largest magnitude."""
        return max((leaf.largest / leaf.scale if leaf.scale else leaf.largest for leaf in self.leaves), default=0.0)

    def __str__(self) -> str:
        wrong = [str(leaf) for leaf in self.leaves if leaf.faults]
        return "\n".join(wrong or map(str, self.leaves)) or "no leaves"


def compare(
    reference: Any,
    candidate: Any,
    contract: Any = Bitwise(),
    *,
    exact: Any = None,
    names: tuple[str, str] = ("reference", "candidate"),
    dtype_fault: Callable[[Any, Any], str | None] | None = None,
    atol: float = 0.0,
) -> Comparison:
    """Compare two results under a contract.

    **Arguments:**

    - `reference`, `candidate`: pytrees of arrays and numbers.
    - `contract`: a `Contract`, or a pytree prefix of them.
    - `exact`: the same result in float64, for `AsAccurate`.
    - `names`: how messages call the two.
    - `dtype_fault`: (reference leaf, candidate leaf) → what is wrong with the change of dtype, or None. The
        default allows no change.
    - `atol`: an absolute difference that is allowed on top, for `Close`.

    **Returns:** a `Comparison`.

    >>> import numpy as np
    >>> print(compare(np.float32([1, 2]), np.float32([1, 3])))
    result: 1 of 2 differ, worst at [1]: reference 2.0, candidate 3.0, difference 1 (0.5 of the largest magnitude 2), bits must be equal
    """
    left, right = jtu.tree_structure(reference), jtu.tree_structure(candidate)
    if left != right:
        fault = f"structure differs: {names[0]} {left}, {names[1]} {right}"
        return Comparison((LeafReport("", (fault,)),))
    contracts = _broadcast(contract, reference)
    exacts = jtu.tree_leaves(exact) if exact is not None else [None] * len(contracts)
    pairs = zip(jtu.tree_flatten_with_path(reference)[0], jtu.tree_leaves(candidate), contracts, exacts, strict=True)
    fault_of = dtype_fault or _any_change
    return Comparison(
        tuple(_leaf(jtu.keystr(path), a, b, c, e, names, fault_of, atol) for (path, a), b, c, e in pairs)
    )


def _broadcast(contract: Any, tree: Any) -> list[Contract]:
    is_contract = lambda x: isinstance(x, Contract)  # noqa: E731
    spread = jtu.tree_map(lambda c, sub: [c] * len(jtu.tree_leaves(sub)), contract, tree, is_leaf=is_contract)
    return [c for c in jtu.tree_leaves(spread, is_leaf=is_contract)]


def _any_change(reference: Any, candidate: Any) -> str | None:
    a, b = _dtype(reference), _dtype(candidate)
    if a != b:
        return f"dtype {a} → {b}"
    weak = [bool(getattr(x, "weak_type", False)) for x in (reference, candidate)]
    if isinstance(reference, jax.Array) and isinstance(candidate, jax.Array) and weak[0] != weak[1]:
        return f"weak type {weak[0]} → {weak[1]} (dtype {a})"
    return None


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def host_array(leaf: Any) -> np.ndarray:
    """A leaf as numpy; PRNG keys by their key data."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _leaf(
    path: str, reference: Any, candidate: Any, contract: Contract, exact: Any, names: tuple, fault_of: Any, atol: float
) -> LeafReport:
    faults = []
    if (fault := fault_of(reference, candidate)) is not None:
        faults.append(fault)
    if np.shape(reference) != np.shape(candidate):
        faults.append(f"shape differs: {names[0]} {shape_of(reference)}, {names[1]} {shape_of(candidate)}")
        return LeafReport(path, tuple(faults))
    a, b = host_array(reference), host_array(candidate)
    number = jnp.issubdtype(a.dtype, np.inexact) and jnp.issubdtype(b.dtype, np.inexact)
    if number:
        a, b = _wide(a), _wide(b)
        odd = _special_fault(a, b, names) or (_zero_sign_fault(a, b, names) if isinstance(contract, Bitwise) else None)
        faults += [odd] if odd else []
        finite = np.isfinite(a) & np.isfinite(b)
        a, b = np.where(finite, a, 0), np.where(finite, b, 0)
        difference, scale = np.abs(b - a), float(np.max(np.abs(a), initial=0.0))
    else:
        difference = np.where(a != b, np.maximum(np.abs(_wide(a) - _wide(b)), 1.0), 0.0)
        scale = float(np.max(np.abs(_wide(a)), initial=0.0))
    largest, differing = float(np.max(difference, initial=0.0)), int(np.count_nonzero(difference))
    allowed, rule = _allowed(contract, number, scale, atol, _dtype(candidate), a, b, exact)
    error = largest
    if isinstance(contract, AsAccurate) and number:
        error = float(np.max(np.abs(b - np.where(np.isfinite(b), _wide(host_array(exact)), 0)), initial=0.0))
    if not error <= allowed:
        at = np.unravel_index(int(np.argmax(difference)), difference.shape)
        share = f" ({largest / scale:.3g} of the largest magnitude {scale:.6g})" if scale else ""
        faults.append(
            f"{differing} of {difference.size} differ, worst at {list(map(int, at))}: {names[0]} {host_array(reference)[at]}, "
            f"{names[1]} {host_array(candidate)[at]}, difference {largest:.3g}{share}, {rule}"
        )
    return LeafReport(path, tuple(faults), largest, scale, differing, difference.size)


def _allowed(
    contract: Contract, number: bool, scale: float, atol: float, dtype: Any, a: Any, b: Any, exact: Any
) -> tuple[float, str]:
    match contract:
        case Close(rtol) if number:
            allowed = atol + rtol * scale
            return allowed, f"allowed {allowed:.3g} = {f'{atol:g} + ' if atol else ''}{rtol:g} × {scale:.6g}"
        case AsAccurate(k) if number:
            if exact is None:
                raise TypeError("compare got AsAccurate without exact=. Expected the float64 result. Fix: pass exact=.")
            wide = _wide(host_array(exact))
            own = float(np.max(np.abs(np.where(np.isfinite(a), a - wide, 0)), initial=0.0))
            slack = AsAccurate.units * float(jnp.finfo(dtype).eps) * scale
            return k * own + slack, f"allowed {k * own + slack:.3g} from float64 = {k:g} × {own:.3g} + {slack:.3g}"
        case Bitwise():
            return 0.0, "bits must be equal"
    return 0.0, "must be equal"


def _wide(a: np.ndarray) -> np.ndarray:
    kind = np.complex128 if jnp.issubdtype(a.dtype, np.complexfloating) else np.float64
    return a.astype(kind)


def _special_fault(a: np.ndarray, b: np.ndarray, names: tuple[str, str]) -> str | None:
    """NaN in other places, or infinities that are not the same infinity."""
    off = (np.isnan(a) != np.isnan(b)) | ((np.isinf(a) | np.isinf(b)) & ~np.isnan(a) & (a != b))
    return _first(off, a, b, names, "NaN or infinity in other places")


def _zero_sign_fault(a: np.ndarray, b: np.ndarray, names: tuple[str, str]) -> str | None:
    parts = [(a.real, b.real), (a.imag, b.imag)] if np.iscomplexobj(a) else [(a, b)]
    off = np.zeros(a.shape, bool)
    for x, y in parts:
        off |= (x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y))
    return _first(off, a, b, names, "sign of zero differs")


def _first(off: np.ndarray, a: np.ndarray, b: np.ndarray, names: tuple[str, str], what: str) -> str | None:
    if not off.any():
        return None
    at = np.unravel_index(int(np.argmax(off)), off.shape)
    count = int(np.count_nonzero(off))
    return f"{what}: {count} of {off.size}, first at {list(map(int, at))}: {names[0]} {a[at]}, {names[1]} {b[at]}"
