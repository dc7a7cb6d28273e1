"""What a transform promises about its results, as small values. Not here: how a promise is checked
(`compare.py`), nor what a stack of transforms promises together (`stack.py`).
"""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Contract:
    """A promise about one output. Structure, shape, dtype, weak type, and where NaN and the infinities are,
    always match; the subclasses say how close the numbers are.

    `gradients` is the promise about derivatives of that output, where it is another one.
    """

    gradients: "Contract | None" = dataclasses.field(default=None, kw_only=True, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Bitwise(Contract):
    """Every bit is the same, the sign of zero included (a NaN matches any NaN).

    >>> Bitwise()
    Bitwise()
    """


@dataclasses.dataclass(frozen=True)
class Close(Contract):
    """For each leaf: `max |candidate - reference| <= rtol * max |reference|`; integers and bools are equal.

    **Arguments:**

    - `rtol`: a finite number >= 0, relative to the largest magnitude of the reference leaf.

    >>> Close(1e-6)
    Close(rtol=1e-06)
    """

    rtol: float

    def __post_init__(self) -> None:
        _check_number("Close", "rtol", self.rtol, 0.0)


@dataclasses.dataclass(frozen=True)
class AsAccurate(Contract):
    """For each leaf: `max |candidate - exact| <= k * max(|reference - exact|, |nearby - exact|) + units * eps *
    max |exact|`, where `exact` is the same program in float64, `nearby` the same at inputs that are moved by one
    rounding unit, and eps the rounding unit of the leaf's dtype.

    The promise for sums in another order that then run through a solve, a division or a cancellation,
    where no bound from lengths alone holds. How far nearby inputs move the result says what it is worth: the
    reference may be exact by luck. Of bfloat16 and float16 the slack is two units: what is summed is wider. Of integers
    and bools, which rounded floats decided, at most `k` times as many are wrong as in the reference or nearby, and one
    in a thousand or one; integers by 1 more than there. Where a result is not finite in the narrower dtype alone,
    float64 decides.

    **Arguments:**

    - `k`: a finite number >= 1.
    - `units`: rounding units of slack.
    - `ties`: whether it holds where values tie, and where a maximum is NaN. Where one is reached twice, JAX shares its
        derivative equally; a maximum of the maxima of chunks shares it among the chunks first.

    >>> AsAccurate(2)
    AsAccurate(k=2)
    """

    k: float
    units: float = dataclasses.field(default=16, kw_only=True)
    ties: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        _check_number("AsAccurate", "k", self.k, 1.0)
        _check_number("AsAccurate", "units", self.units, 0.0)

    def __repr__(self) -> str:
        told = f"k={self.k}" + f", units={self.units}" * (self.units != 16) + ", ties=False" * (not self.ties)
        return f"AsAccurate({told})"


_COARSE = 1e-3  # more than what rounding in f32 does to a result: it is the weaker promise


def weaker(first: Contract, second: Contract) -> Contract:
    """The promise that holds when both apply one after the other.

    >>> weaker(Bitwise(), Close(1e-6)), weaker(Close(1e-6), Close(2e-6))
    (Close(rtol=1e-06), Close(rtol=3e-06))
    """
    gradients = _weaker_values(first.gradients or first, second.gradients or second)
    return dataclasses.replace(_weaker_values(first, second), gradients=gradients)


def _weaker_values(first: Contract, second: Contract) -> Contract:
    match first, second:
        case Bitwise(), _:
            return second
        case _, Bitwise():
            return first
        case Close(), Close():
            return Close(first.rtol + second.rtol)
        case AsAccurate(), AsAccurate():
            return dataclasses.replace(
                first, k=first.k * second.k, units=max(first.units, second.units), ties=first.ties and second.ties
            )
        case AsAccurate(), Close(rtol):
            return second if rtol > _COARSE else first
        case Close(rtol), AsAccurate():
            return first if rtol > _COARSE else second
    return second


def _check_number(name: str, field: str, value: float, least: float) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < least:
        raise ValueError(f"{name} got {field}={value!r}. Expected a finite number >= {least:g}.")
