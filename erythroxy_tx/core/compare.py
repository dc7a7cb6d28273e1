"""Hold one result against another under a contract, leaf by leaf, and say where they differ.

Compared are structure, shape, dtype, weak type, the places of NaN and of the infinities, the sign of zero
(under `Bitwise`), and the numbers. Not here: how the results were made.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close
from erythroxy_tx.core.contract import Contract
from erythroxy_tx.core.signature import shape_of

Names = tuple[str, str]  # how messages call the reference and the candidate

_BITWISE = Bitwise()


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
        return f"{self.path or 'result'}: " + (
            "; ".join(self.faults) or f"meets it (largest difference {self.largest:.3g})"
        )


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
    contract: Any = _BITWISE,
    *,
    exact: Any = None,
    names: Names = ("reference", "candidate"),
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
    >>> print(compare(np.float32([1, 2]), np.float32([1, 3]), Close(1e-6)))  # doctest: +NORMALIZE_WHITESPACE
    result: 1 of 2 differ, worst at [1]: reference 2.0, candidate 3.0,
        difference 1 (0.5 of the largest magnitude 2), allowed 2e-06 = 1e-06 × 2
    """
    left: Any = jtu.tree_structure(reference)
    right: Any = jtu.tree_structure(candidate)
    if left != right:
        fault = f"structure differs: {names[0]} {left}, {names[1]} {right}"
        return Comparison((LeafReport("", (fault,)),))
    contracts = _broadcast(contract, reference)
    if exact is None and any(isinstance(one, AsAccurate) for one in contracts):
        raise TypeError("compare got AsAccurate and no exact=. Expected the float64 result. Fix: pass exact=.")
    exacts = _exacts(exact, reference) if exact is not None else [None] * len(contracts)
    pairs = zip(jtu.tree_flatten_with_path(reference)[0], jtu.tree_leaves(candidate), contracts, exacts, strict=True)
    fault_of = dtype_fault or _any_change
    return Comparison(tuple(_leaf(jtu.keystr(path), a, b, c, e, names, fault_of, atol) for (path, a), b, c, e in pairs))


def _broadcast(contract: Any, tree: Any) -> list[Contract]:
    spread = lambda one, sub: [one] * len(jtu.tree_leaves(sub))  # noqa: E731
    try:
        contracts = jtu.tree_leaves(jtu.tree_map(spread, contract, tree, is_leaf=_is_contract), is_leaf=_is_contract)
    except ValueError as error:
        raise ValueError(
            f"compare got contract={contract!r}, which does not fit the reference {jtu.tree_structure(tree)}. Expected "
            f"one contract for all, or a pytree prefix of it. Fix: one entry for each part. ({error})"
        ) from error
    if wrong := [one for one in contracts if not _is_contract(one)]:
        raise TypeError(f"compare got contract={wrong[0]!r}. Expected Bitwise(), Close(rtol) or AsAccurate(k).")
    return contracts


def _exacts(exact: Any, reference: Any) -> list[Any]:
    shapes: list[Any] = [jtu.tree_map(np.shape, tree) for tree in (exact, reference)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"compare got exact= with shapes {shapes[0]}. Expected those of the reference, {shapes[1]}. Fix: pass the "
            "same function's result in float64."
        )
    return jtu.tree_leaves(exact)


def _is_contract(value: Any) -> bool:
    return isinstance(value, Contract)


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
    path: str, reference: Any, candidate: Any, contract: Contract, exact: Any, names: Names, fault_of: Any, atol: float
) -> LeafReport:
    fault = fault_of(reference, candidate)
    faults = [fault] if fault is not None else []
    if np.shape(reference) != np.shape(candidate):
        told = f"shape differs: {names[0]} {shape_of(reference)}, {names[1]} {shape_of(candidate)}"
        return LeafReport(path, (*faults, told))
    a, b = host_array(reference), host_array(candidate)
    if odd := [what for pair in ((reference, a), (candidate, b)) if (what := _no_numbers(*pair))]:
        return LeafReport(path, (*faults, f"{odd[0]}. Expected an array of numbers"))
    if a.shape != b.shape or a.dtype == jax.dtypes.float0:  # keys of two kinds, which the dtype tells; or nothing
        return LeafReport(path, tuple(faults))
    if isinstance(reference, jax.Array) and jnp.issubdtype(reference.dtype, jax.dtypes.prng_key):
        contract = _BITWISE
    with np.errstate(all="ignore"):  # what overflows is refused
        return _numbers(path, faults, a, b, contract, exact, names, atol)


def _no_numbers(leaf: Any, array: np.ndarray) -> str | None:
    if isinstance(leaf, np.ma.MaskedArray):
        return "is masked"
    if array.dtype == jax.dtypes.float0 or any(jnp.issubdtype(array.dtype, kind) for kind in (np.bool_, np.number)):
        return None
    return f"is of type {type(leaf).__name__} and dtype {array.dtype}"


def _numbers(
    path: str,
    faults: list[str],
    a: np.ndarray,
    b: np.ndarray,
    contract: Contract,
    exact: Any,
    names: Names,
    atol: float,
) -> LeafReport:
    inexact = jnp.issubdtype(a.dtype, np.inexact) and jnp.issubdtype(b.dtype, np.inexact)
    kind = np.result_type(_wide(a), _wide(b))
    wide_a, wide_b = _wide(a).astype(kind), _wide(b).astype(kind)
    if inexact:
        faults += _special_faults(wide_a, wide_b, contract, names)
    held_to_exact = inexact or a.dtype.kind + b.dtype.kind in ("ii", "uu", "bb")
    accuracy = contract if isinstance(contract, AsAccurate) and held_to_exact else None
    wide_exact = np.asarray(host_array(exact), wide_a.dtype) if accuracy else wide_a
    wide_a, wide_b, wide_exact = _finite(wide_a, wide_b, wide_exact)
    difference = _magnitude(wide_b - wide_a)
    if not inexact:  # integers past 2^53 differ where their float64 values do not
        difference = np.where(a != b, np.maximum(difference, 1.0), 0.0)
    scale, largest = _most(wide_a), _most(difference)
    rule, error = _rule(contract if inexact else None, scale, atol), largest
    if accuracy:
        rule, error, unknown = _accuracy(accuracy, wide_a, wide_b, wide_exact, b.dtype)
        faults += [f"exact= is not finite where the two differ: {unknown} of {a.size}"] if unknown else []
    if not error <= min(rule.allowed, sys.float_info.max):
        at = np.unravel_index(int(np.argmax(difference)), difference.shape)
        share = f" ({largest / scale:.3g} of the largest magnitude {scale:.6g})" if scale else ""
        faults.append(
            f"{np.count_nonzero(difference)} of {difference.size} differ, worst at {list(map(int, at))}: "
            f"{names[0]} {a[at]}, {names[1]} {b[at]}, difference {largest:.3g}{share}, {rule.told}"
        )
    return LeafReport(path, tuple(faults), largest, scale, int(np.count_nonzero(difference)), difference.size)


class _Rule(NamedTuple):
    """The largest error that is allowed, and how to tell it."""

    allowed: float
    told: str


def _rule(contract: Contract | None, scale: float, atol: float) -> _Rule:
    match contract:
        case Close(rtol):
            allowed = atol + rtol * scale
            return _Rule(allowed, f"allowed {allowed:.3g} = {f'{atol:g} + ' if atol else ''}{rtol:g} × {scale:.6g}")
        case Bitwise():
            return _Rule(0.0, "bits must be equal")
    return _Rule(0.0, "must be equal")


def _accuracy(
    contract: AsAccurate, a: np.ndarray, b: np.ndarray, exact: np.ndarray, dtype: Any
) -> tuple[_Rule, float, int]:
    """What is allowed, the error of `b`, and in how many places neither can be told."""
    known = np.isfinite(exact)
    own, error = (_most(np.where(known, values - exact, 0)) for values in (a, b))
    slack = 1.0  # an integer that a rounded float decided
    if dtype == np.bool_:
        own, error = (float(np.count_nonzero(values != exact)) for values in (a, b))
        slack = float(a.size // 1000)
    elif jnp.issubdtype(dtype, np.inexact):
        slack = contract.units * float(jnp.finfo(dtype).eps) * _most(np.where(known, exact, 0))
    allowed = contract.k * own + slack
    rule = _Rule(allowed, f"allowed {allowed:.3g} from float64 = {contract.k:g} × {own:.3g} + {slack:.3g}")
    return rule, error, int(np.count_nonzero(~known & (a != b)))


def _most(values: np.ndarray) -> float:
    found = _magnitude(values)
    return float(np.max(found, initial=0.0)) or float(found.any()) * sys.float_info.min  # wider floats reach below


def _magnitude(values: np.ndarray) -> np.ndarray:
    if not np.iscomplexobj(values):
        return np.abs(values)
    found = np.abs(values)
    return np.where(np.isinf(found), np.maximum(np.abs(values.real), np.abs(values.imag)), found)


def _wide(a: np.ndarray) -> np.ndarray:
    if a.dtype in (np.longdouble, np.clongdouble):
        return a
    if a.dtype in (np.int64, np.uint64):  # float64 does not tell neighbours past 2^53 apart
        return a.astype(np.longdouble)
    return a.astype(np.complex128 if jnp.issubdtype(a.dtype, np.complexfloating) else np.float64)


def _parts(a: np.ndarray) -> list[np.ndarray]:
    return [a.real, a.imag] if np.iscomplexobj(a) else [a]


def _finite(a: np.ndarray, b: np.ndarray, exact: np.ndarray) -> tuple[np.ndarray, ...]:
    """Copies in which what is not finite in `a` or `b` is 0 everywhere, real and imaginary parts apart."""
    copies = a.copy(), b.copy(), exact.copy()
    for parts in zip(*map(_parts, copies), strict=True):
        odd = ~(np.isfinite(parts[0]) & np.isfinite(parts[1]))
        for part in parts:
            part[odd] = 0
    return copies


def _special_faults(a: np.ndarray, b: np.ndarray, contract: Contract, names: Names) -> list[str]:
    """NaN in other places, infinities that are not the same one, and under `Bitwise` a zero of the other sign."""
    moved, turned = np.zeros(a.shape, bool), np.zeros(a.shape, bool)
    for x, y in zip(_parts(a), _parts(b), strict=True):
        moved |= (np.isnan(x) != np.isnan(y)) | ((np.isinf(x) | np.isinf(y)) & ~np.isnan(x) & (x != y))
        turned |= (x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y))
    faults = [_first(moved, a, b, names, "NaN or infinity in other places")]
    if isinstance(contract, Bitwise):
        faults.append(_first(turned, a, b, names, "sign of zero differs"))
    return [fault for fault in faults if fault is not None]


def _first(off: np.ndarray, a: np.ndarray, b: np.ndarray, names: Names, what: str) -> str | None:
    if not off.any():
        return None
    at = np.unravel_index(int(np.argmax(off)), off.shape)
    count = int(np.count_nonzero(off))
    return f"{what}: {count} of {off.size}, first at {list(map(int, at))}: {names[0]} {a[at]}, {names[1]} {b[at]}"
