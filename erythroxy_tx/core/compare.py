"""Hold one result against another under a contract, leaf by leaf, and say where they differ.

Compared are structure, shape, dtype, weak type, the places of NaN and of the infinities, the sign of zero
(under `Bitwise`), and the numbers. Not here: how numbers are held against each other (`numeric.py`,
`accuracy.py`), nor how the results were made.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.accuracy import Exact
from erythroxy_tx.core.accuracy import held_to_exact
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Contract
from erythroxy_tx.core.numeric import LeafReport
from erythroxy_tx.core.numeric import Names
from erythroxy_tx.core.numeric import Pair
from erythroxy_tx.core.numeric import held
from erythroxy_tx.core.signature import shape_of

_BITWISE = Bitwise()


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
    - `exact`: the same result in float64, or an `Exact`, for `AsAccurate`.
    - `names`: how messages call the two.
    - `dtype_fault`: (reference leaf, candidate leaf) → what is wrong with the change of dtype, or None. The
        default allows no change.
    - `atol`: an absolute difference that is allowed on top, for `Close`.

    **Returns:** a `Comparison`.

    >>> import numpy as np, erythroxy_tx as tx
    >>> print(compare(np.float32([1, 2]), np.float32([1, 3]), tx.Close(1e-6)))  # doctest: +NORMALIZE_WHITESPACE
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
    exacts = _exacts(exact, reference) if exact is not None else [Exact(None)] * len(contracts)
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


def _exacts(exact: Any, reference: Any) -> list[Exact]:
    exact = exact if isinstance(exact, Exact) else Exact(exact)
    shapes: list[Any] = [jtu.tree_map(np.shape, tree) for tree in (exact.values, reference)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"compare got exact= with shapes {shapes[0]}. Expected those of the reference, {shapes[1]}. Fix: pass the "
            "same function's result in float64."
        )
    return exact.leaves()


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
    path: str,
    reference: Any,
    candidate: Any,
    contract: Contract,
    exact: Exact,
    names: Names,
    fault_of: Any,
    atol: float,
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
    pair = Pair(a, b, names)
    with np.errstate(all="ignore"):  # what overflows is refused
        if isinstance(contract, AsAccurate) and pair.same_kind:
            found = held_to_exact(pair, contract, exact)
        else:
            found = held(pair, contract, atol)
    return dataclasses.replace(found, path=path, faults=(*faults, *found.faults))


def _no_numbers(leaf: Any, array: np.ndarray) -> str | None:
    if isinstance(leaf, np.ma.MaskedArray):
        return "is masked"
    if array.dtype == jax.dtypes.float0 or any(jnp.issubdtype(array.dtype, kind) for kind in (np.bool_, np.number)):
        return None
    return f"is of type {type(leaf).__name__} and dtype {array.dtype}"
