"""The numbers that break ports, by dtype: tame ones that tie and add up exactly, plain ones, small differences of large
ones, NaN and infinities, and the edges of the dtype. Not here: arrays of them (`strategies.py`).
"""

import math
import sys
from typing import Any
from typing import Literal

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

_PLAIN = 1000.0  # magnitudes whose sums, products and exponentials mean something
_QUARTERS = [k / 4 for k in (0, 4, -4, *range(-8, 9))]


class Bounds:
    """Which values of one dtype may be drawn. Without `low` and `high` every finite value."""

    def __init__(self, caller: str, dtype: Any, low: Any, high: Any, nan: bool | None, infinity: bool | None):
        self.caller, self.dtype = caller, np.dtype(dtype)
        self.inexact = bool(jnp.issubdtype(self.dtype, np.inexact))
        self.low, self.high = self._checked("min_value", low), self._checked("max_value", high)
        if low is not None and high is not None and not low <= high:
            raise InvalidArgument(f"{caller} got min_value={low!r} and max_value={high!r}. Expected min <= max.")
        if self.dtype == np.bool_ and (low, high) != (None, None):
            raise InvalidArgument(f"{caller} got bounds for bools. Expected none. Fix: leave them out.")
        bounded = low is not None or high is not None
        self.nan = self._special("allow_nan", nan, default=not bounded)
        self.infinity = self._special("allow_infinity", infinity, default=not bounded)
        if self.infinity and low is not None and high is not None:
            raise InvalidArgument(f"{caller} got allow_infinity=True with two bounds, between which there is none.")
        if self.nan and bounded:
            raise InvalidArgument(
                f"{caller} got allow_nan=True with bounds. Expected one of them: NaN is in no bounds."
            )

    def _checked(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if jnp.issubdtype(self.dtype, np.complexfloating):
            raise InvalidArgument(f"{self.caller} got {name}={value!r} for {self.dtype}, which has no order.")
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:  # noqa: PLR0124
            raise InvalidArgument(f"{self.caller} got {name}={value!r}. Expected a number.")
        if self.inexact:
            return self._inside(name, value)
        limits = np.iinfo(self.dtype) if self.dtype != np.bool_ else None
        if limits is not None and (not isinstance(value, int) or not limits.min <= value <= limits.max):
            raise InvalidArgument(f"{self.caller} got {name}={value!r}, which is no {self.dtype}.")
        return value

    def _inside(self, name: str, value: float) -> float:
        """The nearest number of the dtype that is within the bound."""
        if abs(value) > sys.float_info.max:
            raise InvalidArgument(
                f"{self.caller} got {name}={value!r}. Expected a finite number, or None for no bound."
            )
        found = _narrowed(value, self.dtype)
        if math.isinf(float(found)):
            raise InvalidArgument(f"{self.caller} got {name}={value!r}, which is beyond {self.dtype}.")
        outside = float(found) < value if name == "min_value" else float(found) > value
        towards = np.asarray(math.inf if name == "min_value" else -math.inf, self.dtype)
        return float(np.nextafter(found, towards)) if outside else float(found)

    def _special(self, name: str, value: bool | None, *, default: bool) -> bool:
        if value not in (None, True, False):
            raise InvalidArgument(f"{self.caller} got {name}={value!r}. Expected True, False or None.")
        if value and not self.inexact:
            raise InvalidArgument(f"{self.caller} got {name}=True for {self.dtype}, which has neither.")
        return self.inexact and (default if value is None else value)

    def holds(self, value: Any) -> bool:
        """Whether a value may be drawn."""
        if self.inexact and math.isnan(value):
            return self.nan
        if self.inexact and math.isinf(value) and not self.infinity:
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


def palettes(bounds: Bounds, *, subnormal: bool, extremes: bool) -> list[SearchStrategy[Any]]:
    """Strategies of single values, the simplest first: each array is drawn from one of them."""
    if bounds.dtype == np.bool_:
        return [st.booleans()]
    if jnp.issubdtype(bounds.dtype, np.complexfloating):
        kind = np.float32 if bounds.dtype == np.complex64 else np.float64
        part = Bounds(bounds.caller, kind, None, None, bounds.nan, bounds.infinity)
        return [st.builds(complex, one, one) for one in palettes(part, subnormal=subnormal, extremes=extremes)]
    return _floats(bounds, subnormal, extremes) if bounds.inexact else _integers(bounds, extremes)


def _floats(bounds: Bounds, subnormal: bool, extremes: bool) -> list[SearchStrategy[Any]]:
    dtype, info = bounds.dtype, jnp.finfo(bounds.dtype)

    def some(values: list[float]) -> list[SearchStrategy[float]]:
        """A strategy of those that may be drawn, or none where they are too few to differ."""
        good = [x for x in values if bounds.holds(x) and (math.isnan(x) or float(_narrowed(x, dtype)) == x)]
        return [st.sampled_from(good)] if len(good) > 1 else []

    widths: dict[int, Literal[16, 32, 64]] = {2: 16, 4: 32, 8: 64}
    width = widths[dtype.itemsize] if dtype.kind == "f" else 32  # bfloat16 is rounded from 32
    low, high = (float(_narrowed(x, dtype)) for x in _plain_range(bounds, float(info.min), float(info.max)))
    plain = st.floats(low, high, width=width, allow_subnormal=subnormal, allow_nan=False, allow_infinity=False)
    found = [*some(_QUARTERS), plain.map(lambda x: float(_narrowed(x, dtype)))]
    ordinary = st.one_of(found)
    found += some([x for x in _QUARTERS if x < 0])  # a maximum is below what it may be started from
    found += some([_PLAIN + x for x in _QUARTERS])  # sums of squares cancel, differences do not
    if bounds.nan or bounds.infinity:
        found += some([0.0, 1.0, -0.0, math.inf, -math.inf, math.nan])
    if extremes:
        found += [st.one_of(ordinary, edges) for edges in some(_edges(info, subnormal))]
    return found


def _plain_range(bounds: Bounds, least: Any, most: Any) -> tuple[Any, Any]:
    """Up to 1000 from zero, or from a bound on the other side of it."""
    low, high = bounds.low, bounds.high
    if low is None:
        low = max(least, min(0, 0 if high is None else high) - int(_PLAIN))
    if high is None:
        high = min(most, max(0, 0 if bounds.low is None else bounds.low) + int(_PLAIN))
    return low, high


def _edges(info: Any, subnormal: bool) -> list[float]:
    tiny, huge, eps = float(info.tiny), float(info.max), float(info.eps)
    root = float(_narrowed(math.sqrt(huge) * 2, info.dtype))  # its square overflows
    positive = [0.0, 1.0, 1 + eps, 1 - eps / 2, tiny, root, huge / 2, huge]
    if subnormal:
        positive += [float(info.smallest_subnormal), tiny / 2]
    return [*positive, *(-x for x in positive)]


def _integers(bounds: Bounds, extremes: bool) -> list[SearchStrategy[Any]]:
    limits = np.iinfo(bounds.dtype)
    plain = st.integers(*_plain_range(bounds, limits.min, limits.max))
    small = [k for k in (0, 1, 2, 3, -1, -2, -3) if limits.min <= k <= limits.max and bounds.holds(k)]
    found: list[SearchStrategy[Any]] = [*([st.sampled_from(small)] if small else []), plain]
    found += [st.sampled_from(negative)] if len(negative := [k for k in small if k < 0]) > 1 else []
    near = [limits.min, limits.min + 1, limits.max // 2 + 1, limits.max - 1, limits.max]
    near += [2**24 + 1, 2**31 - 1, 2**31, -(2**31) - 1]  # beyond float32, and beyond int32
    if edges := [k for k in near if extremes and limits.min <= k <= limits.max and bounds.holds(k)]:
        found.append(st.one_of(*found, st.sampled_from(edges)))
    return found


def _narrowed(value: float, dtype: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.asarray(value, np.float64).astype(dtype)
