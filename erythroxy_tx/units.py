"""Byte counts and times as people write and read them. Not here: where they come from."""

import re
from fractions import Fraction

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_bytes(value: int | str, name: str) -> int:
    """Read a byte count such as `2147483648` or `"2GiB"`.

    **Arguments:**

    - `value`: a positive int (bytes), or a number followed by B, KB, MB, GB, TB (powers of 1000)
        or KiB, MiB, GiB, TiB (powers of 1024).
    - `name`: the caller's parameter, for the error.

    **Returns:** bytes, an int ≥ 1.

    **Raises:** `ValueError` naming the parameter, its value and the accepted forms.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str) and (match := _PATTERN.fullmatch(value)) and match[2] in _UNITS:
        count = int(Fraction(match[1]) * _UNITS[match[2]])
        if count > 0:
            return count
    raise ValueError(
        f"{name}={value!r} is not a byte count. Expected a positive int, or a string such as "
        f'"512MiB" or "2GB" (units: {", ".join(_UNITS)}).'
    )


def parse_seconds(value: float | str, name: str) -> float:
    """Read a time such as `0.5` or `"150ms"`.

    **Arguments:**

    - `value`: a number above zero (seconds), or a number followed by ms, s, min or h.
    - `name`: the caller's parameter, for the error.

    **Returns:** seconds, above zero.

    **Raises:** `ValueError` naming the parameter, its value and the accepted forms.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
        return float(value)
    if isinstance(value, str) and (match := _PATTERN.fullmatch(value)) and match[2] in _SECONDS:
        seconds = float(match[1]) * _SECONDS[match[2]]
        if seconds > 0:
            return seconds
    raise ValueError(
        f"{name}={value!r} is not a time. Expected seconds above zero, or a string such as "
        f'"150ms" or "2s" (units: {", ".join(_SECONDS)}).'
    )


def format_bytes(count: float) -> str:
    """Write a byte count for a person: `512 B`, `1.5 KiB`, `79.3 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
