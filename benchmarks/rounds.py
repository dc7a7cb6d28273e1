"""Time several programs in one run, round by round, so that what else the machine does falls on all of them
alike. Not here: what is timed.
"""

import random
import statistics
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax


def interleaved(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Time every run once a round, each until its results are ready.

    Each round has an order of its own: a run that follows a large one finds colder caches and less free memory.

    **Arguments:** `runs`: what to time, by name. Each is called once before, untimed. `rounds`: how many.

    **Returns:** the seconds of each run, round by round.
    """
    for run in runs.values():
        jax.block_until_ready(run())
    names = list(runs)
    order = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in order.sample(names, len(names)):
            begin = time.perf_counter()
            result = runs[name]()
            jax.block_until_ready(result)
            seconds[name].append(time.perf_counter() - begin)
            del result  # its buffers must not stand beside those of the next run
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over the rounds of ours / theirs: a slow round weighs on both."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
