"""`measure`: one function, compiled and run, with its times, its bytes and what must be known to read
them. Not here: how each figure is got.
"""

import functools
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from erythroxy_tx._compat import outside_trace
from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.host.memory import HighWater
from erythroxy_tx.host.psi import StallClock
from erythroxy_tx.measurement import clock
from erythroxy_tx.measurement.isolate import in_fresh_process
from erythroxy_tx.measurement.memory import DevicePeak
from erythroxy_tx.measurement.removed import findings
from erythroxy_tx.measurement.removed import flops_removed
from erythroxy_tx.measurement.report import Measurement
from erythroxy_tx.measurement.stage import Staged
from erythroxy_tx.measurement.stage import leaf_names
from erythroxy_tx.measurement.stage import user_trace
from erythroxy_tx.progress import progress

_NOISE = 0.05  # of a run; less dispatch than that is lost in the spread
_DOMINATED = 0.5


def measure(
    fn: Callable[..., Any],
    *args: Any,
    runs: int | None = None,
    isolate: bool = False,
    kwargs: dict[str, Any] | None = None,
) -> Measurement:
    """Measure the seconds and the bytes of `fn(*args, **kwargs)`, compilation apart from steady runs.

    Each run is timed until its results are ready. A plain function is jitted: arrays and numbers are
    arguments, the rest is closed over. A jitted function is measured as it is, and so is a transform of
    this library. Where a call donates arguments, each run gets copies, made outside the clock.

    **Arguments:**

    - `fn`: a function, a jitted function, or a transform.
    - `args`: its positional arguments.
    - `runs`: how many steady runs; by default as many as fill about a second, from 5 to 100.
    - `isolate`: measure in a fresh process. Memory that this process had freed but not given back
        would hide an equal rise; a fresh one has none.
    - `kwargs`: its keyword arguments.

    **Returns:** a `Measurement`, which prints as a table.

    **Raises:** `TypeError` if `fn` is not callable, or with `isolate` cannot be pickled; `ValueError` for
    `runs` below 1, and for a plain or jitted function that returns no array; `TransformOrderError` inside a
    trace; with `isolate`, `ChildProcessError` if the process was killed; and what `fn` raises.

    >>> import jax.numpy as jnp
    >>> found = measure(jnp.linalg.inv, jnp.eye(64), runs=5)
    >>> len(found.seconds), found.program.argument
    (5, 16384)
    """
    kwargs = _checked(fn, runs, kwargs)
    if isolate:
        return in_fresh_process(functools.partial(_measured, runs=runs, fresh=True), fn, args, kwargs)
    return _measured(fn, args, kwargs, runs=runs, fresh=False)


def _measured(
    fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any], *, runs: int | None, fresh: bool
) -> Measurement:
    name = name_of(fn)
    jax.block_until_ready((args, kwargs))
    dispatch = clock.dispatch()
    compiled = compile_seconds = compile_rise = None
    text = f"measuring {name}: "
    with progress(text + "compiling") as update, HighWater() as high, clock.Compiles() as compiles:
        device = DevicePeak()
        staged = Staged(fn, args, kwargs)
        run = staged.run()
        before = compiles.count
        if staged.lowered is not None and staged.kind != "wrapper":
            begin = time.perf_counter()
            compiled = staged.lowered.compile()
            compile_seconds = time.perf_counter() - begin
            compile_rise = high.rise
        first = clock.blocked(run)
        at_first = compiles.count - before
        of = "" if runs is None else f" of {runs}"
        stalls = StallClock()
        seconds = clock.steady(staged.run, runs, lambda done: update(f"{text}{done}{of} runs"))
        stalled = stalls.read()
        again = compiles.count - before - at_first
        device_peak, device_how = device.read()
    if staged.lowered is not None and compiled is None:
        compiled = staged.lowered.compile()
    median = float(np.median(seconds))
    if staged.kind == "wrapper":
        compile_seconds = max(first - median, 0.0)
    return Measurement(
        name=name,
        platform=jax.default_backend(),
        trace_seconds=staged.trace_seconds if at_first else None,
        compile_seconds=compile_seconds if at_first else None,
        compiles=at_first,
        first_seconds=first,
        seconds=seconds,
        program=None if compiled is None else ProgramBytes.of(compiled),
        host_start_bytes=high.start,
        host_rise_bytes=high.rise,
        host_compile_bytes=compile_rise,
        host_how=high.how,
        device_peak_bytes=device_peak,
        device_how=device_how,
        stalled=stalled,
        fresh_process=fresh,
        notes=(
            *_removed(fn, args, kwargs, staged, compiled),
            *_readings(staged, at_first, again, compiles.loaded),
            *_dispatched(median, dispatch),
        ),
    )


def _removed(
    fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any], staged: Staged, compiled: Any
) -> Iterator[str]:
    if staged.lowered is None:
        yield "it offers no lower(): the bytes of its program, and work that was removed, are not known."
        return
    traced = staged.traced
    if traced is None:
        try:
            traced = user_trace(fn, args, kwargs)
        except TypeError as error:
            first = str(error).partition("\n")[0]
            yield f"removed work was not looked for, since the function does not trace alone: {first}"
    if traced is not None:
        yield from findings(traced, leaf_names(fn, args, kwargs))
    yield from flops_removed(staged.lowered, compiled)


def _readings(staged: Staged, at_first: int, again: int, loaded: int) -> Iterator[str]:
    if not at_first:
        yield "nothing was compiled: it was before, or needs none. What tracing and compiling take is not known."
    if at_first and staged.kind == "wrapper":
        yield "compile is the first call less a steady run, with all that only a first call does."
    if loaded:
        yield f"{loaded} programs came from the compilation cache on disk: compile is the time to load them."
    if again:
        yield f"{again} programs were compiled during the steady runs: some of these are no steady runs."
    if staged.donates:
        yield "it donates arguments: each run got copies, and host high water and device peak hold one copy."


def _dispatched(median: float, dispatch: float) -> Iterator[str]:
    share = dispatch / median
    if share > _DOMINATED:
        yield (
            f"the run takes about as long as dispatch itself, {dispatch * 1e6:.0f} µs for an almost empty "
            "program. Measure more work in one call."
        )
    elif share > _NOISE:
        yield f"dispatch takes {dispatch * 1e6:.0f} µs of each run, about {share:.0%}."


def _checked(fn: Any, runs: Any, kwargs: Any) -> dict[str, Any]:
    if not callable(fn):
        raise TypeError(f"measure got {type(fn).__name__} {fn!r}. Expected a callable, then its arguments.")
    if runs is not None and (not isinstance(runs, int) or isinstance(runs, bool) or runs < 1):
        raise ValueError(f"measure({name_of(fn)}) got runs={runs!r}. Expected an int above zero, or None.")
    if kwargs is not None and not (isinstance(kwargs, dict) and all(isinstance(key, str) for key in kwargs)):
        raise TypeError(f"measure({name_of(fn)}) got kwargs={kwargs!r}. Expected a dict of keyword arguments, by name.")
    if not outside_trace():
        raise TransformOrderError(
            f"measure({name_of(fn)}) was called while JAX traces, where nothing runs. "
            "Expected a call outside jit, grad, vmap and scan. Fix: measure the whole jitted function."
        )
    return kwargs or {}
