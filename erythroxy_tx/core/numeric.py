"""The numbers of one leaf against those of another: as wide as it takes, with NaN, infinities and the sign of zero.
Not here: structure and dtypes (`compare.py`), and what float64 says (`accuracy.py`).
"""

import dataclasses
import sys
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close
from erythroxy_tx.core.contract import Contract

Names = tuple[str, str]  # how messages call the reference and the candidate


@dataclasses.dataclass(frozen=True)
class LeafReport:
    """One leaf of a comparison. `faults` is empty where it meets the contract; errors are absolute."""

    path: str = ""
    faults: tuple[str, ...] = ()
    largest: float = 0.0
    scale: float = 0.0
    differing: int = 0
    total: int = 0
    decided: bool | None = True  # whether a wrong result would have been told from a rounded one; None of zeros

    def __str__(self) -> str:
        return f"{self.path or 'result'}: " + (
            "; ".join(self.faults) or f"meets it (largest difference {self.largest:.3g})"
        )


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two arrays of one shape, each as it is and as wide as it takes."""

    a: np.ndarray
    b: np.ndarray
    names: Names

    @property
    def inexact(self) -> bool:
        """Whether both are floats or complex numbers."""
        return bool(jnp.issubdtype(self.a.dtype, np.inexact) and jnp.issubdtype(self.b.dtype, np.inexact))

    @property
    def same_kind(self) -> bool:
        """Whether both are inexact, or both integers of one sign, or both bools."""
        return self.inexact or self.a.dtype.kind + self.b.dtype.kind in ("ii", "uu", "bb")

    def wide(self) -> tuple[np.ndarray, np.ndarray]:
        """Both in one dtype that holds every value of either."""
        kind = np.result_type(_wide(self.a), _wide(self.b))
        return _wide(self.a).astype(kind), _wide(self.b).astype(kind)


def held(pair: Pair, contract: Contract, atol: float) -> LeafReport:
    """Hold two leaves to `Bitwise` or `Close`; what is not a float must be equal."""
    a, b = pair.wide()
    faults = special_faults(a, b, pair.names, signs=isinstance(contract, Bitwise)) if pair.inexact else []
    a, b = finite(a, b)
    told = lambda scale: _rule(contract, scale, atol) if pair.inexact else (0.0, "must be equal")  # noqa: E731
    return measured(pair, a, b, faults, told)


def measured(
    pair: Pair,
    a: np.ndarray,
    b: np.ndarray,
    faults: list[str],
    rule: Callable[[float], tuple[float, str]],
    error: float | None = None,
    *,
    decided: bool | None = True,
) -> LeafReport:
    """The report on finite numbers: their largest difference, or `error` in its place, is within the rule's."""
    difference = magnitude(b - a)
    if not pair.inexact:  # integers past 2^53 differ where their float64 values do not
        difference = np.where(pair.a != pair.b, np.maximum(difference, 1.0), 0.0)
    scale, largest = most(a), most(difference)
    allowed, told = rule(scale)
    if not (largest if error is None else error) <= min(allowed, sys.float_info.max):
        at = np.unravel_index(int(np.argmax(difference)), difference.shape)
        share = f" ({largest / scale:.3g} of the largest magnitude {scale:.6g})" if scale else ""
        values = f"{pair.names[0]} {pair.a[at]}, {pair.names[1]} {pair.b[at]}"
        where = f"{np.count_nonzero(difference)} of {difference.size} differ, worst at {list(map(int, at))}"
        faults = [*faults, f"{where}: {values}, difference {largest:.3g}{share}, {told}"]
    return LeafReport("", tuple(faults), largest, scale, int(np.count_nonzero(difference)), difference.size, decided)


def _rule(contract: Contract, scale: float, atol: float) -> tuple[float, str]:
    if isinstance(contract, Close):
        allowed = atol + contract.rtol * scale
        return allowed, f"allowed {allowed:.3g} = {f'{atol:g} + ' if atol else ''}{contract.rtol:g} × {scale:.6g}"
    return 0.0, "bits must be equal"


def most(values: np.ndarray) -> float:
    """The largest magnitude, 0 of an empty array."""
    found = magnitude(values)
    return float(np.max(found, initial=0.0)) or float(found.any()) * sys.float_info.min  # wider floats reach below


def magnitude(values: np.ndarray) -> np.ndarray:
    """Absolute values; of a complex number whose own overflows, that of its larger part."""
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


def parts(a: np.ndarray) -> list[np.ndarray]:
    """The array, or the real and the imaginary part of a complex one."""
    return [a.real, a.imag] if np.iscomplexobj(a) else [a]


def finite(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Copies in which what is not finite in either is 0 in both, real and imaginary parts apart."""
    copies = a.copy(), b.copy()
    for x, y in zip(*map(parts, copies), strict=True):
        odd = ~(np.isfinite(x) & np.isfinite(y))
        x[odd] = y[odd] = 0
    return copies


def moved(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where one is NaN or an infinity and the other is not the same."""
    found = np.zeros(a.shape, bool)
    for x, y in zip(parts(a), parts(b), strict=True):
        found |= (np.isnan(x) != np.isnan(y)) | ((np.isinf(x) | np.isinf(y)) & ~np.isnan(x) & (x != y))
    return found


def special_faults(a: np.ndarray, b: np.ndarray, names: Names, *, signs: bool) -> list[str]:
    """NaN in other places, infinities that are not the same one, and where `signs` count, a zero of the other sign."""
    faults = [first(moved(a, b), a, b, names, "NaN or infinity in other places")]
    if signs:
        turned = np.zeros(a.shape, bool)
        for x, y in zip(parts(a), parts(b), strict=True):
            turned |= (x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y))
        faults.append(first(turned, a, b, names, "sign of zero differs"))
    return [fault for fault in faults if fault is not None]


def first(off: np.ndarray, a: np.ndarray, b: np.ndarray, names: Names, what: str) -> str | None:
    """Tell of the first place where something is off, or None."""
    if not off.any():
        return None
    at = np.unravel_index(int(np.argmax(off)), off.shape)
    count = int(np.count_nonzero(off))
    return f"{what}: {count} of {off.size}, first at {list(map(int, at))}: {names[0]} {a[at]}, {names[1]} {b[at]}"
