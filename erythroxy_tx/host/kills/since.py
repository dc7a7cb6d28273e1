"""How far back to look, as people write it. Not here: what is found there."""

import datetime as dt
import re
import time

_AGO = re.compile(r"(?a)\s*(\d{1,9}(?:\.\d+)?) ?([a-z]+)(?: ago)?\s*")
_UNITS = {"s": "s sec secs second seconds", "min": "m min mins minute minutes", "h": "h hour hours", "d": "d day days"}
_LENGTHS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_SECONDS = {word: _LENGTHS[unit] for unit, words in _UNITS.items() for word in words.split()}
_DAYS = {"today": 0, "yesterday": 1}  # ago, from their midnight on


def seconds_since(since: float | str | dt.datetime | None) -> float | None:
    """The same in seconds since 1970; None stays None."""
    try:
        seconds = _seconds(since)
        if seconds is None or 0 <= seconds <= time.time():
            return seconds
        is_future = 0 <= seconds < 2**40
    except (TypeError, ValueError, OverflowError, OSError):
        is_future = False
    was = ", which is in the future" if is_future else ""
    raise ValueError(
        f"diagnose_oom got since={since!r}{was}. Expected seconds since 1970, a datetime, or a string such as "
        '"10min", "2h", "3d", "1 hour ago", "today", "yesterday" or "2026-08-17 01:00"; a time that is past.'
    )


def _seconds(since: float | str | dt.datetime | None) -> float | None:
    if isinstance(since, str):
        if (ago := _AGO.fullmatch(since)) and ago[2] in _SECONDS:
            return time.time() - float(ago[1]) * _SECONDS[ago[2]]
        if (days := _DAYS.get(since.strip())) is not None:
            day = dt.datetime.now().astimezone().date() - dt.timedelta(days)
            return dt.datetime.combine(day, dt.time()).timestamp()
        since = dt.datetime.fromisoformat(since)
    return since.timestamp() if isinstance(since, dt.datetime) else since
