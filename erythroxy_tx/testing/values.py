"""The numbers that break ports, by dtype: tame ones that tie and add up exactly, plain ones, and the edges of the
dtype. Not here: arrays of them (`strategies.py`).
"""

import math
from typing import Any
from typing import Literal

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

_PLAIN = 1000.0  # magnitudes whose sums, products and exponentials mean something


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
        if self.nan and bounded:
            raise InvalidArgument(
                f"{caller} got allow_nan=True with bounds. Expected one of them: NaN is in no bounds."
            )

    def _checked(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if jnp.issubdtype(self.dtype, np.complexfloating):
            raise InvalidArgument(f"{self.caller} got {name}={value!r} for {self.dtype}, which has no order.")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise InvalidArgument(f"{self.caller} got {name}={value!r}. Expected a number.")
        if not self.inexact and self.dtype != np.bool_:
            limits = np.iinfo(self.dtype)
            if not isinstance(value, int) or not limits.min <= value <= limits.max:
                raise InvalidArgument(f"{self.caller} got {name}={value!r}, which is no {self.dtype}.")
        elif self.inexact and float(_narrowed(value, self.dtype)) != value:
            raise InvalidArgument(
                f"{self.caller} got {name}={value!r}, which {self.dtype} cannot hold: it would be "
                f"{float(_narrowed(value, self.dtype))!r}."
            )
        return value

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
    quarters = [x for x in (k / 4 for k in (0, 4, -4, *range(-8, 9))) if bounds.holds(x)]
    widths: dict[int, Literal[16, 32, 64]] = {2: 16, 4: 32, 8: 64}
    width = widths[dtype.itemsize] if dtype.kind == "f" else 32  # bfloat16 is rounded from 32
    low = max(-_PLAIN, bounds.low) if bounds.low is not None else -_PLAIN
    high = min(_PLAIN, bounds.high) if bounds.high is not None else _PLAIN
    if low > high:  # the bounds are all beyond what is plain
        low, high = bounds.low, bounds.high
        low, high = (float(info.min) if low is None else low), (float(info.max) if high is None else high)
    plain = st.floats(low, high, width=width, allow_subnormal=subnormal, allow_nan=False, allow_infinity=False)
    plain = plain.map(lambda x: float(_narrowed(x, dtype)))
    found = [st.sampled_from(quarters)] if quarters else []
    found.append(plain)
    if edges := [x for x in _edges(info, subnormal) if extremes and bounds.holds(x)]:
        found.append(st.one_of(*found, st.sampled_from(edges)))
    return found


def _edges(info: Any, subnormal: bool) -> list[float]:
    tiny, huge, eps = float(info.tiny), float(info.max), float(info.eps)
    root = float(_narrowed(math.sqrt(huge) * 2, info.dtype))  # its square overflows
    positive = [0.0, 1.0, 1 + eps, 1 - eps / 2, tiny, root, huge / 2, huge, math.inf]
    if subnormal:
        positive += [float(info.smallest_subnormal), tiny / 2]
    return [*positive, *(-x for x in positive), math.nan]


def _integers(bounds: Bounds, extremes: bool) -> list[SearchStrategy[Any]]:
    limits = np.iinfo(bounds.dtype)
    low = limits.min if bounds.low is None else bounds.low
    high = limits.max if bounds.high is None else bounds.high
    small = [k for k in (0, 1, 2, 3, -1, -2, -3) if low <= k <= high] or [low]
    plain = st.integers(max(low, min(-1000, high)), min(high, max(1000, low)))
    found: list[SearchStrategy[Any]] = [st.sampled_from(small), plain]
    near = [limits.min, limits.min + 1, limits.max // 2 + 1, limits.max - 1, limits.max]
    near += [2**24 + 1, 2**31 - 1, 2**31, -(2**31) - 1]  # beyond float32, and beyond int32
    if edges := [k for k in near if extremes and low <= k <= high]:
        found.append(st.one_of(*found, st.sampled_from(edges)))
    return found


def _narrowed(value: float, dtype: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.asarray(value, np.float64).astype(dtype)
