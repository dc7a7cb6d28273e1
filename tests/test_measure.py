"""`measure`: each run is blocked, compiling is apart, bytes are those of the program, removed work is
named, and a fresh process answers or is reported. Not here: host memory, which has its own tests.
"""

import dataclasses
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.host.memory import rss
from erythroxy_tx.host.psi import Stalled
from erythroxy_tx.measurement import clock
from erythroxy_tx.measurement import isolate
from erythroxy_tx.measurement import stage
from erythroxy_tx.measurement import timing
from erythroxy_tx.measurement.memory import DevicePeak
from erythroxy_tx.measurement.removed import findings
from erythroxy_tx.measurement.removed import flops_removed
from erythroxy_tx.measurement.timing import measure

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (64, 32))
W = jax.random.normal(KEY, (32, 32)) / 6
V = W[0]


def twice(x: jax.Array) -> jax.Array:
    return x * 2


def removed(fn: Callable[..., Any], *args: Any) -> list[str]:
    traced = stage.user_trace(fn, args, {})
    lowered = traced.lower()
    return findings(traced, stage.leaf_names(fn, args, {})) + flops_removed(lowered, lowered.compile())


# ------------------------------------------------------------------ seconds


def test_the_clock_stops_when_the_result_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.ones((1000, 1000))
    product = jax.jit(lambda x: (x @ x) @ x)
    product(x).block_until_ready()
    results: list[jax.Array] = []
    ready: list[list[bool]] = []

    def read() -> float:
        ready.append([result.is_ready() for result in results])
        return float(len(ready))

    def run() -> jax.Array:
        results.append(product(x))  # returns at once: the dispatch takes a hundredth of the work
        return results[-1]

    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=read))
    assert clock.blocked(run) == 1.0
    assert ready == [[], [True]]


def test_the_clock_stops_when_callbacks_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(jax, "effects_barrier", lambda: order.append("callbacks"))
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: order.append("clock") or 0.0))
    clock.blocked(lambda: order.append("run"))
    assert order == ["clock", "run", "callbacks", "clock"]


@pytest.mark.parametrize(
    ("seconds", "runs", "expected"),
    [(0.0, None, 100), (0.05, None, 20), (3.0, None, 5), (3.0, 2, 2), (0.0, 7, 7)],
)
def test_there_are_enough_runs_and_not_too_many(
    seconds: float, runs: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "blocked", lambda run: run())
    told: list[int] = []
    assert clock.steady(lambda: lambda: seconds, runs, told.append) == (seconds,) * expected
    assert told == list(range(expected))


def test_compiling_is_apart_from_running() -> None:
    calls = []

    def traced_once(x: jax.Array) -> jax.Array:
        calls.append(1)
        return jnp.sin(x) @ x.T

    found = measure(traced_once, X, runs=6)
    assert calls == [1]
    assert found.compiles == 1
    assert found.trace_seconds is not None
    assert found.compile_seconds is not None
    assert min(found.trace_seconds, found.compile_seconds, found.first_seconds, *found.seconds) > 0
    assert len(found.seconds) == 6
    low, high = found.quartile_seconds
    assert min(found.seconds) <= low <= found.median_seconds <= high <= max(found.seconds)


def test_a_program_that_was_compiled_before_gives_no_compile_time() -> None:
    jitted = jax.jit(lambda x: x @ x.T)
    jitted(X)
    found = measure(jitted, X, runs=2)
    assert (found.trace_seconds, found.compile_seconds, found.compiles) == (None, None, 0)
    assert any("nothing was compiled" in note for note in found.notes)


def test_compiling_in_a_timed_run_is_said() -> None:
    class Forgetful(eqx.Module):
        fn: Callable[..., Any]

        @property
        def __wrapped__(self) -> Callable[..., Any]:
            return self.fn

        def __call__(self, x: jax.Array) -> jax.Array:
            return jax.jit(lambda x: self.fn(x) + 1)(x)  # a new function, a new program

    found = measure(Forgetful(twice), X, runs=3)
    assert found.compiles == 1
    assert any("3 programs were compiled during the steady runs" in note for note in found.notes)


def test_a_program_from_the_cache_on_disk_is_said() -> None:
    def loaded(x: jax.Array) -> jax.Array:
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")
        return x * 2

    assert any("1 programs came from the compilation cache" in note for note in measure(loaded, X, runs=1).notes)


def test_compiles_outside_the_block_do_not_count() -> None:
    with clock.Compiles() as compiles:
        jax.jit(lambda x: x + 1)(X)
    inside = compiles.count
    jax.jit(lambda x: x + 2)(X)
    assert inside == compiles.count == 1


@pytest.mark.parametrize(("dispatch", "said"), [(1e-9, None), (0.1, "about 10%"), (1.0, "as long as dispatch itself")])
def test_a_run_that_is_mostly_dispatch_is_said(dispatch: float, said: str | None) -> None:
    notes = list(timing._dispatched(1.0, dispatch))
    assert (said in notes[0]) if said else not notes


# ------------------------------------------------------------------ stalls


def test_stalls_are_those_of_the_steady_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Stalls:
        def __init__(self) -> None:
            order.append("start")

        def read(self) -> Stalled:
            order.append("read")
            return Stalled(2.0, 0.5, None, "no pressure here")

    monkeypatch.setattr(timing, "StallClock", Stalls)
    blocked = clock.blocked
    monkeypatch.setattr(clock, "blocked", lambda run: order.append("run") or blocked(run))
    found = measure(twice, X, runs=3)
    assert order[-5:] == ["start", "run", "run", "run", "read"]
    assert order.count("start") == 1
    assert found.to_dict()["stalled"] == {"seconds": 2.0, "memory": 0.5, "io": None, "missing": "no pressure here"}
    table = " ".join(str(found).split())
    assert "memory stalls 50.0% of 2.0 s of steady runs" in table
    assert "I/O stalls - no pressure here" in table


def test_stalls_of_this_machine_are_shares() -> None:
    stalled = measure(twice, X, runs=1).stalled
    assert all(share is None or 0 <= share <= 1 for share in (stalled.memory, stalled.io))
    assert bool(stalled.missing) == (stalled.memory is None or stalled.io is None)


# ------------------------------------------------------------------ what is run


def test_what_is_no_array_is_closed_over() -> None:
    def scaled(x: jax.Array, how: str, *, by: float, power: tuple[str, ...]) -> dict[str, Any]:
        assert isinstance(by, jax.core.Tracer)
        return {"value": x * by if how == "times" else x, "how": how, "power": power}

    found = measure(scaled, X, "times", runs=1, kwargs={"by": 3.0, "power": ("n",)})
    assert found.program is not None
    assert found.program.argument == X.nbytes + 4


def test_the_arrays_of_a_model_are_arguments() -> None:
    model = eqx.nn.Linear(32, 8, key=KEY)
    found = measure(model, V, runs=1)
    assert found.program is not None
    assert found.program.argument == 4 * (32 * 8 + 8 + 32)
    assert not [note for note in found.notes if "captured" in note]


def test_a_jitted_function_keeps_its_static_arguments() -> None:
    power = jax.jit(lambda x, n: x**n, static_argnums=1)
    found = measure(power, X, 3, runs=1)
    assert found.program is not None
    assert found.program.argument == X.nbytes


def test_donated_arguments_are_copied_for_each_run() -> None:
    found = measure(jax.jit(lambda x, y: (x + 1, y.sum()), donate_argnums=0), X, W, runs=3)
    assert not X.is_deleted()
    assert found.program is not None
    assert found.program.alias == X.nbytes
    assert found.compiles == 1
    assert any("donates arguments" in note for note in found.notes)


class HostSide(eqx.Module):
    """A wrapper that works on the host, and refuses to be traced."""

    fn: Callable[..., Any]

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fn

    def __call__(self, x: Any) -> jax.Array:
        assert not isinstance(x, jax.core.Tracer)
        return self.fn(jnp.asarray(x))


class Lowering(HostSide):
    def lower(self, x: Any) -> jax.stages.Lowered:
        return self.fn.lower(x)  # type: ignore[attr-defined]


def test_a_wrapper_is_measured_by_its_call() -> None:
    found = measure(HostSide(jax.jit(lambda x: x @ x.T)), np.ones((8, 8), np.float32), runs=2)
    assert found.program is found.total_bytes is found.trace_seconds is None
    assert found.compiles >= 1
    assert found.compile_seconds == max(found.first_seconds - found.median_seconds, 0)
    assert any("offers no lower()" in note for note in found.notes)
    assert any("the first call less a steady run" in note for note in found.notes)
    assert "offers no lower()" in str(found)


def test_a_wrapper_that_lowers_gives_the_bytes_and_the_removed_work() -> None:
    @jax.jit
    def wasteful(x: jax.Array) -> jax.Array:
        x.T @ x
        return x + 1

    found = measure(Lowering(wasteful), X, runs=2)
    assert found.program is not None
    assert (found.program.argument, found.program.output) == (X.nbytes, X.nbytes)
    assert any("reaches no output" in note for note in found.notes)
    assert found.trace_seconds is not None
    assert found.compile_seconds == max(found.first_seconds - found.median_seconds, 0)
    assert found.host_compile_bytes is None


def test_equinox_filter_jit_is_a_wrapper() -> None:
    found = measure(eqx.filter_jit(lambda x, n: x * n), X, 3, runs=2)
    assert found.program is not None
    assert found.program.argument == X.nbytes


def test_a_function_that_cannot_be_traced_alone_is_said() -> None:
    class Static(Lowering):
        def __call__(self, x: Any) -> Any:
            return self.fn(x, 3)

        def lower(self, x: Any) -> jax.stages.Lowered:
            return self.fn.lower(x, 3)  # type: ignore[attr-defined]

    found = measure(Static(jax.jit(lambda x, n: x * n)), X, runs=1)
    assert any("removed work was not looked for" in note for note in found.notes)


# ------------------------------------------------------------------ removed work


def dead(x: jax.Array) -> jax.Array:
    x.T @ x
    return jnp.sin(x)


def dead_in_a_call(x: jax.Array) -> jax.Array:
    return jax.jit(lambda x: (x + 1, x @ W))(x)[0]


def dead_in_a_scan(x: jax.Array) -> jax.Array:
    def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        jnp.outer(row, row) @ W
        return carry + row, None

    return jax.lax.scan(step, V, x)[0]


def stacked_for_nobody(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda carry, row: (carry + row, jnp.outer(row, row) @ W), V, x)[0]


def dead_in_a_branch(x: jax.Array) -> jax.Array:
    def branch(x: jax.Array) -> jax.Array:
        x @ W
        return x + 1

    return jax.lax.cond(x[0, 0] > 0, branch, lambda x: x, x)


def dead_after_checkpoint(x: jax.Array) -> jax.Array:
    jax.checkpoint(lambda x: jnp.tanh(x @ W))(x)
    return x + 1


def dead_before_a_call(x: jax.Array) -> jax.Array:
    return jax.jit(lambda x, y: x + 1)(x, x @ W)


@pytest.mark.parametrize(
    "fn",
    [
        dead,
        dead_before_a_call,
        dead_in_a_call,
        dead_in_a_scan,
        stacked_for_nobody,
        dead_in_a_branch,
        dead_after_checkpoint,
    ],
    ids=lambda fn: fn.__name__,
)
def test_work_that_reaches_no_output_is_named_with_its_line(fn: Callable[..., Any]) -> None:
    (note,) = removed(fn, X)
    assert "of the work reaches no output, so the compiler removes it" in note
    assert "test_measure.py" in note
    assert fn.__name__ in note


def test_the_share_and_the_line_are_right() -> None:
    def half(x: jax.Array) -> jax.Array:
        y = x @ W
        x @ W.T  # here
        return y

    (note,) = removed(half, X)
    line = half.__code__.co_firstlineno + 2
    assert note.startswith("about 50% of the work")
    assert f"test_measure.py:{line}:" in note


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda: jnp.sort((W @ W).ravel()), "no result depends on an argument"),
        (lambda: W, "no result depends on an argument"),
        (lambda x: x @ (W @ W @ W), "of the work depends on no argument"),
        (lambda x: (x + 1, jnp.linalg.inv(W)), "of the work depends on no argument"),
        (lambda x: jax.jit(lambda x, w: x + (w @ w)[0])(x, W), "of the work depends on no argument"),
        (lambda x: x @ (jax.jit(lambda x: (x, W * 2))(x)[1] @ W), "of the work depends on no argument"),
        (lambda x: x + jnp.sort(W.ravel())[:32], "of the work depends on no argument"),
    ],
)
def test_work_that_depends_on_no_argument_is_said(fn: Callable[..., Any], said: str) -> None:
    note, *more = removed(fn, X) if fn.__code__.co_argcount else removed(fn)
    assert said in note
    assert all("floating-point operations" in other for other in more)
    assert "Pass the arrays as arguments" in note


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: x, "result is x unchanged"),
        (lambda x: {"a": x + 1, "b": x}, "result['b'] is x unchanged"),
        (jax.jit(lambda x, n=2: (x * n, x), static_argnames="n"), "result[1] is x unchanged"),
    ],
)
def test_an_output_that_is_an_input_is_said(fn: Callable[..., Any], said: str) -> None:
    assert removed(fn, X) == [f"{said}: no work."]


def test_keyword_arguments_have_their_names() -> None:
    found = measure(lambda *, b, a: (b, a + 1), runs=1, kwargs={"b": X, "a": X})
    assert "result[0] is b unchanged: no work." in found.notes


def test_captured_arrays_are_said() -> None:
    table = np.ones((1024, 512), np.float32)
    (note,) = removed(lambda i: jnp.asarray(table)[i], jnp.arange(3))
    assert note.startswith("2.0 MiB of captured arrays")


def test_work_that_xla_shares_is_said() -> None:
    (note,) = removed(lambda x: (x @ W).sum() + (x @ W).max() + (x @ W).min() + (x @ W).prod(), X)
    assert "floating-point operations that were written" in note
    assert "of the" in note


def mlp_gradient(x: jax.Array) -> Any:
    model = eqx.nn.MLP(32, 4, 16, 2, key=KEY)
    return eqx.filter_value_and_grad(lambda model: (jax.vmap(model)(x) ** 2).mean())(model)


def attention(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x @ x.T / 6) @ x


def recurrent(x: jax.Array) -> Any:
    return jax.lax.scan(lambda carry, row: (jnp.tanh(carry @ W + row), carry.sum()), V, x)


def ridge(x: jax.Array) -> jax.Array:
    return jnp.linalg.solve(x.T @ x + 0.1 * jnp.eye(32), x.T @ x[:, 0])


def reported(x: jax.Array) -> jax.Array:
    jax.debug.callback(lambda _: None, x.T @ x)
    return x + 1


def reassociated(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return x @ w @ v


ORDINARY: dict[str, tuple[Callable[..., Any], tuple]] = {
    "mlp gradient": (mlp_gradient, (X,)),
    "attention": (attention, (X,)),
    "softmax": (jax.nn.softmax, (X,)),
    "fft": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.exp(-jnp.arange(17) / 9)), (X,)),
    "identity matrix": (lambda x: x @ (jnp.eye(32) * 2), (X,)),
    "positions": (lambda x: x + jnp.sin(jnp.arange(32) / 10), (X,)),
    "window": (lambda x: x * jnp.hanning(32), (X,)),
    "ridge": (ridge, (X,)),
    "reassociated product": (reassociated, (X, W, V)),
    "running sum": (lambda x: jnp.cumsum(x, 0), (X,)),
    "sort": (lambda x: jnp.sort(x, 0), (X,)),
    "quantiles": (lambda x: jnp.quantile(x, jnp.array([0.1, 0.5]), axis=0), (X,)),
    "recurrent": (recurrent, (X,)),
    "recurrent gradient": (jax.grad(lambda x: recurrent(x)[0].sum()), (X,)),
    "least squares gradient": (jax.grad(lambda w, x: ((x @ w - x[:, 0]) ** 2).mean()), (V, X)),
    "standardised": (lambda x: (x - x.mean(0)) / x.std(0), (X,)),
    "random": (lambda key: jax.random.normal(key, (64, 32)), (KEY,)),
    "dropout": (lambda x: jnp.where(jax.random.bernoulli(jax.random.key(1), 0.5, x.shape), x, 0) @ W, (X,)),
    "convolution": (lambda x: jax.lax.conv(x[None, None], x[None, None, :3, :3], (1, 1), "SAME"), (X,)),
    "branch": (lambda x, w: jax.lax.cond(x[0, 0] > 0, lambda x: x @ w, lambda x: x + 1, x), (X, W)),
    "loop": (lambda x, w: jax.lax.fori_loop(0, 9, lambda i, c: jnp.tanh(c @ w), x), (X, W)),
    "callback": (reported, (X,)),
    "scatter": (lambda x: jnp.zeros((9, 32)).at[jnp.arange(64) % 9].add(2 * x), (X,)),
}


@pytest.mark.parametrize(("fn", "args"), ORDINARY.values(), ids=ORDINARY)
def test_ordinary_functions_raise_no_alarm(fn: Callable[..., Any], args: tuple) -> None:
    assert removed(fn, *args) == []


# ------------------------------------------------------------------ refusals


def test_a_function_that_returns_no_array_is_refused() -> None:
    with pytest.raises(ValueError, match=r"measure\(.*\) got a function that returns no array.*Fix: return"):
        measure(lambda x: None, X)


def test_a_function_that_is_run_for_its_effect_is_not() -> None:
    seen = []
    measure(lambda x: jax.debug.callback(lambda _: seen.append(1), x), X, runs=2)
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"runs": 0}, ValueError, r"got runs=0. Expected an int above zero"),
        ({"runs": 2.0}, ValueError, r"got runs=2.0"),
        ({"runs": True}, ValueError, r"got runs=True"),
        ({"kwargs": [1]}, TypeError, r"got kwargs=\[1\]. Expected a dict"),
        ({"kwargs": {1: 2}}, TypeError, r"got kwargs=\{1: 2\}"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=rf"measure\(twice\) {said}"):
        measure(twice, X, **options)


def test_what_is_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match=r"measure got int 3. Expected a callable"):
        measure(3)  # type: ignore[arg-type]


def test_measuring_inside_a_trace_is_refused() -> None:
    with pytest.raises(TransformOrderError, match=r"measure\(twice\) was called while JAX traces"):
        jax.jit(lambda x: measure(twice, x))(X)


def test_errors_of_the_function_pass_through() -> None:
    with pytest.raises(TypeError, match="dot_general"):
        measure(lambda x: x @ x, X)


# ------------------------------------------------------------------ the device's mark


@pytest.mark.parametrize(
    ("before", "after", "peak", "said"),
    [
        ([None], [None], None, "not reported by cpu"),
        ([10], [25], 25, "one device"),
        ([10, 90], [25, 90], 25, "one device"),
        ([90], [90], None, "hidden by an earlier peak of 90 B; isolate=True"),
    ],
)
def test_a_device_peak_is_reported_only_if_it_rose(
    before: list, after: list, peak: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def devices(marks: list) -> list[Any]:
        stats = [None if mark is None else {"peak_bytes_in_use": mark} for mark in marks]
        return [Device(i, functools.partial(lambda s: s, s)) for i, s in enumerate(stats)]

    monkeypatch.setattr(jax, "local_devices", lambda: devices(before))
    device = DevicePeak()
    monkeypatch.setattr(jax, "local_devices", lambda: devices(after))
    found, how = device.read()
    assert found == peak
    assert said in how


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    memory_stats: Callable[[], Any] = dataclasses.field(compare=False)


# ------------------------------------------------------------------ the result


def test_the_result_prints_as_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = str(measure(twice, X, runs=2))
    lines = text.splitlines()
    assert lines[0] == "twice on cpu, in this process"
    rows = (
        "trace",
        "compile",
        "first call",
        "steady run",
        "arguments",
        "outputs",
        "temporaries",
        "aliased",
        "total",
    )
    for row, line in zip((*rows, "host high water", "device peak"), lines[1:], strict=False):
        assert line.startswith(row)
    assert "not reported by cpu" in text
    assert "(quartiles), 2 runs" in text
    assert "\x1b" not in text


def test_the_result_is_plain_data() -> None:
    found = measure(twice, X, runs=2)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["median_seconds"] == found.median_seconds
    assert data["total_bytes"] == found.total_bytes == 2 * X.nbytes
    assert data["program"] == {"argument": X.nbytes, "output": X.nbytes, "temp": 0, "alias": 0}
    assert data["fresh_process"] is False
    assert data["device_peak_bytes"] is None


def test_the_high_water_mark_includes_what_a_run_held() -> None:
    x = jnp.ones((8000, 4000))  # 128 MB, more than a process that ran other tests has left to give
    found = measure(lambda x: jnp.sort(x, 0), x, runs=1)
    assert found.host_compile_bytes is not None
    assert found.host_rise_bytes >= max(found.host_compile_bytes, 100_000_000)


# ------------------------------------------------------------------ a fresh process


@jax.jit
def outer(x: jax.Array) -> jax.Array:
    return jnp.outer(x, x)


def keeps_what_it_was(x: jax.Array, y: float, *, key: jax.Array) -> Any:
    assert (x.dtype, x.weak_type) == (jnp.float64, True)
    assert jax.config.jax_numpy_dtype_promotion == "strict"
    return x * y, jax.random.normal(key)


def fails(x: jax.Array) -> jax.Array:
    raise KeyError("planted")


def dies(x: jax.Array) -> jax.Array:
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def leaves(x: jax.Array) -> jax.Array:
    os._exit(3)


def test_a_fresh_process_gives_its_own_high_water_mark() -> None:
    ballast = np.ones(300_000_000, np.uint8)
    found = measure(outer, jnp.ones(4500), runs=1, isolate=True)
    assert found.fresh_process
    assert found.name == "outer"
    assert found.host_rise_bytes > 0.9 * 4500 * 4500 * 4
    assert found.host_start_bytes < rss() - 0.5 * ballast.nbytes
    assert "in a fresh process" in str(found)


def test_a_fresh_process_sees_the_same_arguments_and_settings() -> None:
    with jax.enable_x64(new_val=True), jax.numpy_dtype_promotion("strict"):
        x = jnp.full(3, 1.0)
        found = measure(keeps_what_it_was, x, 2.5, runs=1, isolate=True, kwargs={"key": KEY})
    assert found.program is not None
    assert found.program.argument == 3 * 8 + 8 + 8


@pytest.mark.parametrize(
    ("fn", "error", "said"),
    [
        (fails, KeyError, "planted"),
        (dies, ChildProcessError, r"dies.*was killed by SIGKILL before it answered. Out of memory\?"),
        (leaves, ChildProcessError, r"leaves.*ended with exit code 3 .*__main__"),
    ],
)
def test_a_fresh_process_that_fails_is_reported(fn: Callable, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        measure(fn, X, isolate=True)
    if fn is fails:
        assert "in fails\n    raise KeyError" in caught.value.__notes__[-1]
    assert not multiprocessing.active_children()


def test_only_a_sigkill_asks_about_memory() -> None:
    assert isolate._epitaph(twice, -signal.SIGSEGV).endswith("was killed by SIGSEGV before it answered.")


def test_a_function_that_does_not_pickle_is_refused() -> None:
    with pytest.raises(TypeError, match=r"measure\(.*lambda>, isolate=True\) cannot send.*Fix: define"):
        measure(lambda x: x, X, isolate=True)


def test_a_function_of_a_session_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twice, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(TypeError, match=r"interactive session.*Fix: move it into a file"):
        measure(twice, X, isolate=True)


def test_arrays_elsewhere_are_refused() -> None:
    x = jax.device_put(X, jax.devices()[1])
    with pytest.raises(ValueError, match=r"measure\(twice, isolate=True\) got x on .*Expected arrays on"):
        measure(twice, x, isolate=True)


def test_an_exception_that_does_not_pickle_keeps_its_text() -> None:
    class OddError(Exception):
        pass

    assert isolate._sendable(OddError()) is None
    assert isinstance(isolate._sendable(KeyError("a")), KeyError)


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    """Its fresh process imports the script again, and ends: the call must not be waited for."""
    script = tmp_path / "script.py"
    script.write_text(
        "import jax.numpy as jnp\n"
        "import erythroxy_tx as tx\n"
        "tx.measure(jnp.linalg.inv, jnp.ones((400, 400)), runs=1, isolate=True)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert 'under `if __name__ == "__main__":`' in done.stderr
