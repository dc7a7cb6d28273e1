"""How the compilation cache fares in this process, by the events that JAX announces. JAX is not imported here: it is
looked up among what the process has imported.

JAX announces a request for each program that it compiles while the cache is not disabled, then a hit, or, where it
stores the program, what it calls a miss. A request with neither was not stored.
"""

import dataclasses
import sys
import threading
from typing import Any

from erythroxy_tx._compat_started import backend_started

_REQUEST = "/jax/compilation_cache/compile_requests_use_cache"
_HIT = "/jax/compilation_cache/cache_hits"
_STORED = "/jax/compilation_cache/cache_misses"
_COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass
class CacheCounts:
    """Programs since the count began.

    **Attributes:**

    - `requests`: compiled, or looked up.
    - `hits`: found in the cache.
    - `stored`: written to it.
    - `too_fast`: not written, since they compiled in less than `jax_persistent_cache_min_compile_time_secs`.
    - `before_folder`: compiled while the cache had no folder.
    - `slowest`: seconds that the slowest of those that were too fast took.
    - `is_complete`: whether the count began before a backend ran. If not, earlier programs are missing.
    """

    requests: int = 0
    hits: int = 0
    stored: int = 0
    too_fast: int = 0
    before_folder: int = 0
    slowest: float = 0.0
    is_complete: bool = True

    @property
    def misses(self) -> int:
        return self.requests - self.hits - self.before_folder

    @property
    def not_stored(self) -> int:
        """How many were lost for another reason."""
        return self.misses - self.stored - self.too_fast


class _Thread(threading.local):
    pending = False  # asked for, and neither found nor stored so far


_COUNTS = CacheCounts()
_LOCK = threading.Lock()
_THREAD = _Thread()
_LISTENS: list[Any] = []


def listen() -> None:
    """Count from now on, where this process has imported JAX."""
    monitoring = getattr(sys.modules.get("jax"), "monitoring", None)
    if monitoring is None or _LISTENS:
        return
    _LISTENS.append(monitoring)
    _COUNTS.is_complete = not backend_started()
    monitoring.register_event_listener(_heard)
    monitoring.register_event_duration_secs_listener(_ended)


def cache_counts() -> CacheCounts | None:
    """What was counted so far; None where nobody listened."""
    return dataclasses.replace(_COUNTS) if _LISTENS else None


def _heard(event: str, **_: Any) -> None:
    if event not in {_REQUEST, _HIT, _STORED}:
        return
    with _LOCK:
        if event == _REQUEST:
            _COUNTS.requests += 1
            has_folder = _setting("jax_compilation_cache_dir") is not None
            _COUNTS.before_folder += not has_folder
            _THREAD.pending = has_folder
            return
        _THREAD.pending = False
        if event == _HIT:
            _COUNTS.hits += 1
        else:
            _COUNTS.stored += 1


def _ended(event: str, seconds: float, **_: Any) -> None:
    if event != _COMPILED:
        return
    pending, _THREAD.pending = _THREAD.pending, False
    minimum = _setting("jax_persistent_cache_min_compile_time_secs")
    if pending and minimum is not None and seconds < minimum:
        with _LOCK:
            _COUNTS.too_fast += 1
            _COUNTS.slowest = max(_COUNTS.slowest, seconds)


def _setting(name: str) -> Any:
    """Of `jax.config`; None where it cannot be told. Here an exception would end a compilation of the user's."""
    return getattr(getattr(sys.modules.get("jax"), "config", None), "values", {}).get(name)
