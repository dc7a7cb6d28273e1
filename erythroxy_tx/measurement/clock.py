"""Seconds, each until the results are ready, and the compilations that fall between. Not here: what
is timed.
"""

import time
from collections.abc import Callable
from typing import Any
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

_LEAST = 5  # runs
_MOST = 100  # runs
_ENOUGH = 1.0  # seconds of steady time

_COMPILED = "/jax/core/compile/backend_compile_duration"
_LOADED = "/jax/compilation_cache/cache_hits"

_empty = jax.jit(lambda x: x + 1)


def blocked(run: Callable[[], Any]) -> float:
    """Seconds from a call until all that it returns is ready, and its callbacks are done."""
    begin = time.perf_counter()
    jax.block_until_ready(run())
    jax.effects_barrier()
    return time.perf_counter() - begin


def steady(
    prepared: Callable[[], Callable[[], Any]], runs: int | None, update: Callable[[int], None]
) -> tuple[float, ...]:
    """Time a warm function run by run.

    **Arguments:**

    - `prepared`: prepares a run and returns it; the preparation is not timed.
    - `runs`: how many; None for as many as fill about a second, from 5 to 100.
    - `update`: is told how many runs are done.

    **Returns:** the seconds of each run.
    """
    seconds: list[float] = []
    while not _done(seconds, runs):
        update(len(seconds))
        seconds.append(blocked(prepared()))
    return tuple(seconds)


def dispatch() -> float:
    """Seconds that one run of an almost empty program takes: the median of 20."""
    x = jnp.zeros(())
    seconds = [blocked(lambda: _empty(x)) for _ in range(21)]
    return float(np.median(seconds[1:]))


class Compiles:
    """Count the programs that any thread compiles inside a `with` block.

    **Attributes:**

    - `count`: programs that XLA compiled, or that were loaded in place of that.
    - `loaded`: those of them that came from the compilation cache on disk.
    """

    def __init__(self) -> None:
        self.count = 0
        self.loaded = 0

    def __enter__(self) -> Self:
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)
        return self

    def __exit__(self, *exc_info: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_duration)
        jax.monitoring.unregister_event_listener(self._on_event)

    def _on_duration(self, event: str, duration_secs: float, **_: str | int) -> None:  # noqa: ARG002 # JAX calls it
        self.count += event == _COMPILED

    def _on_event(self, event: str, **_: str | int) -> None:
        self.loaded += event == _LOADED


def _done(seconds: list[float], runs: int | None) -> bool:
    if runs is not None:
        return len(seconds) >= runs
    return len(seconds) >= _LEAST and (sum(seconds) >= _ENOUGH or len(seconds) >= _MOST)
