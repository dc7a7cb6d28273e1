"""One version of the ridge forecast, measured in this process: `ridge_measure.py VERSION FOLDER [--quick]`.

Writes `VERSION.json` (figures, and memory over time) and `VERSION.npy` (the forecast) into the folder, and
says on stdout what it is doing. Not here: what the figures have to be.
"""

import json
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import relocate_ridge as ridge

from erythroxy_tx.host.memory import HighWater
from erythroxy_tx.host.memory import MemoryTrace

VERSIONS = ("numpy", "one-shot", "decorated")
PROGRAM = ("argument", "output", "temp")  # bytes of the compiled program
QUICK = {"every": 50, "columns": 64}
ROUNDS = 5
EVENTS = {"/jax/core/compile/backend_compile_duration", "/jax/core/compile/jaxpr_trace_duration"}


def main(version: str, folder: Path, problem: ridge.Problem) -> None:
    figures, forecast = MEASURES[version](problem)
    np.save(folder / f"{version}.npy", forecast)
    (folder / f"{version}.json").write_text(json.dumps(figures))


def numpy_figures(problem: ridge.Problem) -> tuple[dict[str, Any], np.ndarray]:
    say("fitting, once")
    result, figures = first_call(ridge.fit_numpy, problem)
    train, _, test = ridge.split(len(problem.rows), problem.base)
    returns = ridge.returns(problem.base.astype(np.float64), problem.rows)
    truth, drift = returns[test], returns[train].mean()
    figures |= {
        "rows": len(problem.rows),
        "columns": problem.projection.shape[1],
        "penalty": float(result["penalty"]),
        "error_ridge": float(np.mean((result["forecast"] - truth) ** 2)),
        "error_zero": float(np.mean(truth**2)),
        "error_drift": float(np.mean((drift - truth) ** 2)),
    }
    return figures, result["forecast"]


def one_shot_figures(problem: ridge.Problem) -> tuple[dict[str, Any], np.ndarray]:
    say("compiling and fitting")
    jax.device_put(0.0).block_until_ready()
    result, figures = first_call(ridge.fit_one_shot, problem)
    say("fitting again")
    with counted() as events:
        jax.block_until_ready(ridge.fit_one_shot(*problem))
    figures |= program_bytes(ridge.fit_one_shot, problem) | {"compiles": len(events)}
    return figures, np.asarray(result["forecast"])


def decorated_figures(problem: ridge.Problem) -> tuple[dict[str, Any], np.ndarray]:
    say("compiling and fitting, without the check, whose reference needs the memory of numpy")
    jax.device_put(0.0).block_until_ready()
    result, figures = first_call(ridge.fit.fn, problem)
    say("the first call of the whole stack: the same, and the check against numpy")
    ridge.fit(*problem)
    figures["checked"] = str(ridge.fit.report())
    say("fitting again")
    with counted() as events:
        jax.block_until_ready(ridge.fit(*problem))
    figures |= program_bytes(ridge.fit, problem) | {"compiles": len(events)}

    on_device = jax.device_put(problem)
    jax.block_until_ready(ridge.fit_one_shot(*on_device))
    seconds: dict[str, list[float]] = {"one-shot": [], "decorated": []}
    for round_ in range(ROUNDS):
        say(f"timing against the one-shot version, in turns: {round_ + 1} of {ROUNDS}")
        seconds["one-shot"].append(timed(ridge.fit_one_shot, on_device))
        seconds["decorated"].append(timed(ridge.fit, problem))
    figures |= {"medians": {name: float(np.median(each)) for name, each in seconds.items()}}
    return figures, np.asarray(result["forecast"])


MEASURES = {"numpy": numpy_figures, "one-shot": one_shot_figures, "decorated": decorated_figures}


def first_call(fit: Callable[..., Any], problem: ridge.Problem) -> tuple[Any, dict[str, Any]]:
    """The first call in this process, from before the trace until the result is ready."""
    begin = time.perf_counter()
    with HighWater() as high, MemoryTrace(period=0.01) as trace:
        result = jax.block_until_ready(fit(*problem))
    return result, {
        "first_seconds": time.perf_counter() - begin,
        "host_rise": high.rise,
        "host_how": high.how,
        "trace_seconds": trace.seconds,
        "trace_bytes": [size - high.start for size in trace.bytes],
    }


def timed(fit: Callable[..., Any], problem: ridge.Problem) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(fit(*problem))
    return time.perf_counter() - begin


def program_bytes(fit: Any, problem: ridge.Problem) -> dict[str, int]:
    found = fit.lower(*problem).compile().memory_analysis()
    return {kind: getattr(found, f"{kind}_size_in_bytes") for kind in PROGRAM}


@contextmanager
def counted() -> Iterator[list[str]]:
    """Every trace and every compile of JAX inside the block, by anyone."""
    seen: list[str] = []

    def listen(event: str, _seconds: float, **_: Any) -> None:
        if event in EVENTS:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def say(stage: str) -> None:
    print(stage, flush=True)


if __name__ == "__main__":
    chosen, target, *flags = sys.argv[1:]
    main(chosen, Path(target), ridge.problem(**(QUICK if "--quick" in flags else {})))
