"""`numpy_only`: all of JAX that runs or moves something is stopped in one thread, warm or cold, and nothing else is."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from erythroxy_tx import _compat
from erythroxy_tx._compat import threads as firewall
from erythroxy_tx.errors import ThreadError
from erythroxy_tx.runtime.threads import line_in
from erythroxy_tx.runtime.threads import numpy_only

HOST = np.ones(4, np.float32)


@pytest.fixture(scope="module")
def touches() -> dict[str, Callable[[], Any]]:
    """Ways to touch JAX, with all that can be compiled before."""
    device = jax.device_put(HOST)
    warm = jax.jit(lambda x: x * 2)
    ahead = warm.lower(device).compile()
    gradient = jax.value_and_grad(lambda x: (x * x).sum())
    custom = jax.custom_vjp(lambda x: x + 1)
    custom.defvjp(lambda x: (x + 1, None), lambda _, g: (g,))

    @jax.custom_jvp
    def rule(x: Any) -> Any:
        return x + 1

    rule.defjvp(lambda primals, tangents: (rule(*primals), *tangents))

    def folded() -> Any:
        with jax.ensure_compile_time_eval():
            return device + 1

    found: dict[str, Callable[[], Any]] = {
        "jit": lambda: warm(device),
        "jit of numpy": lambda: warm(HOST),
        "ahead of time": lambda: ahead(device),
        "eager": lambda: device + 1,
        "eager with numpy": lambda: HOST + device,
        "index": lambda: device[0],
        "grad": lambda: gradient(device),
        "vmap": lambda: jax.vmap(warm)(device),
        "custom_vjp": lambda: custom(device),
        "custom_jvp": lambda: rule(device),
        "ensure_compile_time_eval": folded,
        "asarray": lambda: jnp.asarray(HOST),
        "device_put": lambda: jax.device_put(HOST),
        "device_put of what is there": lambda: jax.device_put(device, jax.devices()[0]),
        "callback": lambda: jax.make_array_from_callback((4,), device.sharding, lambda i: HOST[i]),
        "key": lambda: jax.random.key(0),
    }
    for touch in found.values():
        touch()
    return found | {"cold jit": lambda: jax.jit(lambda x: x - 1)(HOST)}


def in_thread(body: Callable[[], Any]) -> BaseException | None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            with numpy_only("tx.prefetch"):
                body()
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            caught.append(error)

    thread = threading.Thread(target=run, name="loader")
    thread.start()
    thread.join()
    return caught[0] if caught else None


@pytest.mark.parametrize("has_trace", [True, False], ids=["trace", "settings"])
def test_all_of_jax_is_stopped(
    touches: dict[str, Callable[[], Any]], monkeypatch: pytest.MonkeyPatch, has_trace: bool
) -> None:
    assert firewall.trace_works()
    monkeypatch.setattr(firewall, "trace_works", lambda: has_trace)
    for name, touch in touches.items():
        error = in_thread(touch)
        if not has_trace and name == "device_put of what is there":
            assert error is None  # which moves nothing
            continue
        assert isinstance(error, ThreadError), (name, error)
        assert "tx.prefetch got " in str(error)
        assert "in the thread loader, at " in str(error)
        assert f"{__file__}:" in str(error), (name, error)
        assert "Fix: move it behind next()" in str(error)
        touch()  # here it goes on as it was


def test_what_was_touched_is_named(touches: dict[str, Callable[[], Any]]) -> None:
    def told(name: str) -> str:
        return str(in_thread(touches[name]))

    assert "got the JAX call `device_put` in" in told("device_put")
    assert "got the compiled jit(<lambda>) in" in told("ahead of time")
    assert "got an upload of float32[4] in" in told("asarray")
    assert "got a host-to-device transfer in" in told("callback")


def test_numpy_and_trees_are_free() -> None:
    def body() -> None:
        assert jax.tree.map(np.sum, {"a": HOST}) == {"a": 4.0}
        assert jnp.result_type(HOST) == jax.eval_shape(lambda x: x + 1, HOST).dtype

    assert in_thread(body) is None


def test_other_errors_pass_as_they_are() -> None:
    mine = RuntimeError("mine")

    def body() -> None:
        raise mine

    assert in_thread(body) is mine
    with pytest.raises(StopIteration), numpy_only("tx.prefetch"):
        next(iter(()))


def test_other_threads_go_on() -> None:
    inside, leave = threading.Event(), threading.Event()

    def body() -> None:
        inside.set()
        leave.wait()

    thread = threading.Thread(target=in_thread, args=(body,))
    thread.start()
    inside.wait()
    assert float(jax.device_put(HOST).sum()) == 4.0
    leave.set()
    thread.join()


def test_a_jax_that_traces_otherwise_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(firewall._core, "set_current_trace", lambda _: threading.Lock())
    with caplog.at_level(logging.WARNING), jax.transfer_guard("disallow_explicit"), jax.no_execution(True):  # noqa: FBT003
        assert not firewall.trace_works.__wrapped__()
    assert "stopped by public settings alone" in caplog.text


def test_where_a_thread_is() -> None:
    inside, leave = threading.Event(), threading.Event()

    def read_for_ever() -> None:
        inside.set()
        leave.wait()

    thread = threading.Thread(target=read_for_ever)
    assert line_in(thread) == "its end"
    thread.start()
    inside.wait()
    assert f"{__file__}:" in line_in(thread)
    assert "read_for_ever" in line_in(thread)
    leave.set()
    thread.join()


def test_only_jax_errors_are_refusals() -> None:
    assert _compat.refused_by_settings(RuntimeError("Disallowed")) is None
