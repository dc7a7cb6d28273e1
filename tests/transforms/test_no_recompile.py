"""`no_recompile` as a decorator, a block and a method: what counts as warm-up, what is raised, when, and how it reads.
Which situations compile is in `tests/compiling/`.
"""

import asyncio
import concurrent.futures
import contextlib
import pickle
import threading
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx


def ones(n: int) -> np.ndarray:
    return np.ones(n, np.float32)


def counted() -> tuple[Any, list[int]]:
    """A jitted function, and how often its body ran."""
    traces = [0]

    @jax.jit
    def f(x):
        traces[0] += 1
        return x * 2

    return f, traces


# ---------------------------------------------------------------------- what it is


@tx.no_recompile
@jax.jit
def pickled(x):
    """A docstring."""
    return x + 1


def test_it_looks_like_the_function() -> None:
    assert (pickled.__name__, pickled.__doc__) == ("pickled", "A docstring.")
    assert pickle.loads(pickle.dumps(pickled)) == pickled
    assert [t.name for t in tx.stack(pickled)] == ["tx.no_recompile"]
    assert "warmup=1" in repr(pickled)


@pytest.mark.parametrize(
    "make",
    [tx.no_recompile, tx.no_recompile(), tx.no_recompile(warmup=1), lambda f: tx.no_recompile(f, warmup=1)],
    ids=["bare", "called", "warmup", "both"],
)
def test_each_way_to_put_it_on(make: Callable) -> None:
    f, traces = counted()
    g = make(f)
    assert g(ones(3)).tolist() == [2, 2, 2]
    with pytest.raises(tx.RetraceError):
        g(ones(4))
    assert traces == [1]


def test_it_changes_no_bit_and_compiles_nothing_itself() -> None:
    f, _ = counted()
    x = jnp.linspace(0, 1, 7)
    want = f(x)
    with tx.compiles() as seen:
        assert np.array_equal(tx.no_recompile(f)(x), want)
    assert not seen.events


def test_methods_warm_up_for_each_object() -> None:
    class Model:
        def __init__(self, n: int) -> None:
            self.x = ones(n)

        @tx.no_recompile
        def double(self) -> Any:
            return jnp.tanh(self.x)

        @classmethod
        @tx.no_recompile
        def of(cls, x: Any) -> Any:
            return jnp.sinh(x)

    small, large = Model(3), Model(77)
    small.double()
    large.double()
    small.x = ones(79)
    with pytest.raises(tx.RetraceError, match=r"Model\.double"):
        small.double()
    Model.of(ones(3))
    with pytest.raises(tx.RetraceError):
        Model.of(ones(78))


def test_modules_and_partials() -> None:
    layer = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    f = tx.no_recompile(eqx.filter_jit(layer))
    f(ones(3))
    f(ones(3))
    with pytest.raises(tx.RetraceError, match=r"x: f32\[3\] → i32\[3\]"):
        f(np.ones(3, np.int32))


def test_lower_is_that_of_the_function() -> None:
    assert "f32" in tx.no_recompile(jax.jit(lambda x: x + 1)).lower(ones(3)).as_text()


# ---------------------------------------------------------------------- warm-up


def test_weak_types_need_a_second_call() -> None:
    def updating():
        return jax.jit(lambda state: {"step": state["step"] + 1, "size": jnp.minimum(state["size"] * 1.5, one)})

    one = jnp.float32(1.0)
    once, twice = (tx.no_recompile(updating(), warmup=n) for n in (1, 2))
    state = twice(twice(twice({"step": 0, "size": 0.1})))
    assert int(state["step"]) == 3
    first = once({"step": 0, "size": 0.1})
    with pytest.raises(tx.RetraceError, match=r"start it as jnp\.float32\(0\.1\)") as raised:
        once(first)
    assert [change.path for change in raised.value.changes] == ["state['size']"]


def test_calls_that_raise_are_no_warm_up() -> None:
    f = tx.no_recompile(jax.jit(lambda x: x.reshape(2, 2)))
    with pytest.raises(TypeError):
        f(ones(3))
    f(ones(4))
    with pytest.raises(tx.RetraceError):
        f(np.ones(4, np.int32))


def test_no_warm_up_at_all() -> None:
    f = jax.jit(lambda x: x * 5)
    g = tx.no_recompile(f, warmup=0)
    with pytest.raises(tx.RetraceError, match=r"was not compiled before, as far as was seen; now with x: f32\[3\]"):
        g(ones(3))
    f(ones(3))
    assert g(ones(3)).tolist() == [5, 5, 5]


def test_clearing_warms_up_anew() -> None:
    f, traces = counted()
    g = tx.no_recompile(f)
    g(ones(3))
    tx.clear()
    g(ones(4))
    assert traces == [2]


@pytest.mark.parametrize("warmup", [-1, 1.5, True, "2"])
def test_a_warm_up_that_is_none(warmup: Any) -> None:
    with pytest.raises(ValueError, match="Expected a number of calls ≥ 0"):
        tx.no_recompile(warmup=warmup)


def test_what_runs_after_its_call_is_refused() -> None:
    async def later():
        pass

    def stream():
        yield

    for fn in (later, stream):
        with pytest.raises(TypeError, match=r"with tx\.no_recompile"):
            tx.no_recompile(fn)
    with pytest.raises(TypeError, match="in place of a function"):
        tx.no_recompile(3)
    with pytest.raises(ValueError, match="a block, which has no calls"), tx.no_recompile(warmup=2):
        pass


# ---------------------------------------------------------------------- what is raised


def test_the_message() -> None:
    @tx.no_recompile
    @jax.jit
    def loss(params, batch):
        return (batch["x"] @ params["w"] - batch["y"]).mean()

    w = np.ones((2, 1), np.float32)
    good = {"x": np.ones((8, 2), np.float32), "y": np.ones((8, 1), np.float32)}
    bad = {"x": np.ones((5, 2), np.float32), "y": np.ones((5, 1), np.int32)}
    loss({"w": w}, good)
    with pytest.raises(tx.RetraceError) as raised:
        loss({"w": w}, bad)
    first, *rest = str(raised.value).splitlines()
    assert first.startswith(f"tx.no_recompile({loss.__qualname__}), call 2: loss (test_no_recompile.py:")
    assert ") would be traced and compiled, " in first
    assert first.endswith(f"({test_the_message.__name__})")
    padded = "@tx.pad_static(8, in_axes=(None, 0))"
    assert rest == [
        "  batch['x']: f32[8,2] → f32[5,2], axis 0",
        "  batch['y']: f32[8,1] → i32[5,1], axis 0",
        "  batch['y']: f32[8,1] → i32[5,1]",
        "Expected nothing to be traced or compiled after warmup=1. Stopped before it ran; what is compiled stays.",
        f"Fix: batch['x'], batch['y']: {padded}, if the length varies, or drop the last part",
        "     batch['y']: convert it, before the call: jnp.asarray(x, 'float32')",
    ]
    assert raised.value.stage == "trace"
    assert [change.kind for change in raised.value.changes] == ["shape", "shape", "dtype"]
    loss({"w": w}, good)


def test_the_inner_function_is_named_too() -> None:
    @jax.jit
    def inner(y):
        return y + 1

    @tx.no_recompile
    def outer(x):
        return inner(x[:2] if len(x) > 3 else x)

    outer(ones(3))
    with pytest.raises(tx.RetraceError) as raised:
        outer(ones(4))
    assert "outer), call 2: inner (test_no_recompile.py:" in str(raised.value)
    assert [change.path for change in raised.value.changes] == ["x", "y"]


def test_many_changes_are_counted() -> None:
    f = tx.no_recompile(jax.jit(lambda t: jax.tree.map(lambda x: x + 1, t)))
    f({str(i): ones(3) for i in range(40)})
    with pytest.raises(tx.RetraceError, match=r"… and 28 more") as raised:
        f({str(i): ones(4) for i in range(40)})
    assert len(raised.value.changes) == 40


def test_a_compile_is_told_from_a_trace() -> None:
    f = tx.no_recompile(jax.jit(lambda x: x + 1))
    f(jnp.ones(3))
    with pytest.raises(tx.RetraceError, match=r"compiled \(it is traced already\)") as raised:
        f(jax.device_put(ones(3), jax.devices()[0]))
    assert raised.value.stage == "lowering"


def test_errors_of_the_function_pass() -> None:
    def f(x):
        raise KeyError(x)

    with pytest.raises(KeyError):
        tx.no_recompile(f)(1)
    with pytest.raises(KeyError), tx.no_recompile():
        f(1)
    jnp.tanh(ones(1234))  # nothing is around any more


def test_one_that_is_caught_is_not_raised_again() -> None:
    f, _ = counted()
    f(ones(3))
    with tx.no_recompile():
        with pytest.raises(tx.RetraceError):
            f(ones(4))
        f(ones(3))


@pytest.mark.parametrize("catching", [False, True])
def test_an_error_in_a_callback_arrives_as_it_is(*, catching: bool) -> None:
    size = [3]

    def host(_):
        with contextlib.suppress(tx.RetraceError) if catching else contextlib.nullcontext():
            jnp.cosh(ones(size[0]))
        return ones(3)

    f = tx.no_recompile(jax.jit(lambda x: jax.pure_callback(host, x, x)))
    jax.block_until_ready(f(ones(3)))
    size[0] = 61
    with pytest.raises(tx.RetraceError, match="cosh"):
        jax.block_until_ready(f(ones(3)))
    size[0] = 3
    assert f(ones(3)).tolist() == [1, 1, 1]


# ---------------------------------------------------------------------- scopes


def test_the_outer_one_minds_the_warm_up_of_the_inner() -> None:
    f, _ = counted()
    inner = tx.no_recompile(f)
    with pytest.raises(tx.RetraceError, match=r"with tx.no_recompile\(\)"), tx.no_recompile():
        inner(ones(3))
    inner(ones(3))
    inner(ones(3))


def test_it_does_not_work_inside_of_jit() -> None:
    f = tx.no_recompile(jax.jit(lambda x: x + 1))
    f(ones(3))
    for outer in (jax.jit(f), lambda x: jax.eval_shape(f, x), jax.jit(jax.vmap(f)), lambda x: lax.map(f, x)):
        with pytest.raises(tx.TransformOrderError, match="swap the two"):
            outer(ones(3))
    with pytest.raises(tx.TransformOrderError, match="on the outside"):
        tx.chunked(lax.map, 2)(f)

    @jax.jit
    def block(x):
        with tx.no_recompile():
            return x + 1

    with pytest.raises(tx.TransformOrderError):
        block(ones(3))


def test_it_works_inside_of_grad_and_vmap() -> None:
    f = tx.no_recompile(jax.jit(lambda x: (x**2).sum()), warmup=2)
    for _ in range(3):
        assert jax.grad(f)(jnp.ones(3)).tolist() == [2, 2, 2]
    g = tx.no_recompile(jax.jit(lambda x: x + 1), warmup=2)
    for _ in range(3):
        jax.vmap(g)(jnp.ones((2, 3)))


def test_threads_that_call_it_are_watched() -> None:
    f = tx.no_recompile(jax.jit(lambda x: x * 3))
    f(ones(3))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(f, ones(3)).result()
        with pytest.raises(tx.RetraceError):
            pool.submit(f, ones(4)).result()


def test_a_thread_that_outlives_the_block_is_free() -> None:
    f, traces = counted()
    go = threading.Event()

    def late():
        go.wait()
        f(ones(5))

    with tx.no_recompile():
        thread = threading.Thread(target=late)
        thread.start()
    go.set()
    thread.join()
    assert traces == [1]


def test_tasks_do_not_watch_each_other() -> None:
    f, traces = counted()
    inside = asyncio.Event()

    async def guarded():
        with tx.no_recompile():
            inside.set()
            await asyncio.sleep(0)

    async def other():
        await inside.wait()
        f(ones(6))

    async def both():
        await asyncio.gather(guarded(), other())

    asyncio.run(both())
    assert traces == [1]


def test_it_is_heard_again_where_others_removed_the_listeners() -> None:
    f, _ = counted()
    f(ones(3))
    jax.monitoring.clear_event_listeners()
    with tx.compiles() as seen, pytest.raises(tx.RetraceError), tx.no_recompile():
        f(ones(4))
    f(ones(5))
    assert seen.events == []


def test_after_the_caches_were_cleared_each_program_may_compile_once() -> None:
    f, traces = counted()
    g = tx.no_recompile(f, warmup=2)
    g(ones(3))
    g(ones(4))
    jax.clear_caches()
    g(ones(3))
    g(ones(4))
    assert traces == [4]
    f.clear_cache()
    with pytest.raises(tx.RetraceError, match="clear_cache"):
        g(ones(3))


# ---------------------------------------------------------------------- stacks


def test_a_stack_of_four() -> None:
    @tx.no_recompile
    @tx.vram_resident
    @tx.pad_static(8)
    @tx.chunked(lax.map, size=4)
    def centred(x):
        return x - x.mean(0)

    x = jnp.arange(6.0)
    assert np.allclose(centred(x), x - 2.5)
    centred(x)
    with pytest.raises(tx.RetraceError):
        centred(jnp.arange(7.0))  # of device arrays the resident program has one length


def test_all_lengths_of_a_padded_function_are_warm() -> None:
    f = tx.no_recompile(tx.pad_static(16)(lambda x: (x - x.mean(0)) / x.std(0)))
    for n in (7, 11, 5, 16, 9):
        f(np.arange(n, dtype=np.float32))
    with pytest.raises(tx.RetraceError) as raised:
        f(np.arange(7))
    assert {change.kind for change in raised.value.changes} == {"dtype"}


def test_the_check_of_a_reference_is_no_compile_of_the_users() -> None:
    guarded = tx.no_recompile(jax.jit(lambda x: x + 1))
    inside = tx.assert_relocation(lambda x: x + 1, calls="always", sample=2)(guarded)
    outside = tx.no_recompile(tx.assert_relocation(lambda x: x + 1, calls="always", sample=2)(jax.jit(lambda x: x + 1)))
    for f in (inside, outside):
        for _ in range(3):
            f(ones(5))
        with pytest.raises(tx.RetraceError):
            f(ones(6))
