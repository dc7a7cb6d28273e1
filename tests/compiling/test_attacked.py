"""What an attack on `no_recompile` found: each kind of it, and what must be so."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def told(call: Callable[[], Any]) -> str:
    """The changes that an error tells, one a line."""
    with pytest.raises(tx.RetraceError) as raised:
        call()
    return "\n".join(map(str, raised.value.changes))


def in_block(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with tx.no_recompile():
            return call()

    return run


# ---------------------------------------------------------------------- looking at a call breaks nothing


class Loud:
    def __repr__(self):
        raise RuntimeError("no repr")


class Unhashable:
    def __hash__(self):
        raise RuntimeError("no hash")


class Obliging:
    def __getattr__(self, name):
        if name.startswith("__"):  # JAX itself fails at these
            raise AttributeError(name)
        return self

    def __call__(self, x):
        return x + 1


class Carrying:
    func = np.ones(3)

    def __call__(self, x):
        return x + 2


@pytest.mark.parametrize("function", [mock.Mock(side_effect=lambda x: x + 1), Obliging(), Carrying()], ids=type)
def test_a_callable_of_any_kind_compiles_unguarded(function: Any) -> None:
    with tx.compiles():
        assert jax.jit(function)(ones(3)).shape == (3,)


def test_a_static_argument_without_a_repr_compiles_unguarded() -> None:
    with tx.compiles():
        assert jax.jit(lambda x, loud: x, static_argnums=1)(ones(3), Loud()).shape == (3,)


@pytest.mark.parametrize(
    "value",
    [np.array(["a"]), 2**40, np.zeros(2, [("a", "f4")]), np.datetime64("2026-01-01"), Loud(), Unhashable(), Obliging()],
    ids=type,
)
def test_arguments_that_never_reach_jax_may_be_anything(value: Any) -> None:
    f = tx.no_recompile(lambda value: jnp.tanh(ones(3)))
    f(value)
    f(value)


# ---------------------------------------------------------------------- nothing is missed


def test_what_was_traced_before_the_block_compiles_in_it() -> None:
    f = jax.jit(lambda x: x * 2.5)
    jax.eval_shape(f, ones(3))
    with pytest.raises(tx.RetraceError):
        in_block(lambda: f(ones(3)))()
    lowered = jax.jit(lambda x: x * 2.6).lower(ones(3))
    with pytest.raises(tx.RetraceError):
        in_block(lowered.compile)()


def _message(call: Callable[[], Any]) -> str:
    with pytest.raises(tx.RetraceError) as raised:
        call()
    return str(raised.value)


def test_work_that_is_given_to_a_running_pool_is_watched() -> None:
    f = jax.jit(lambda x: x * 2.7)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        guarded = tx.no_recompile(lambda n: pool.submit(f, ones(n)).result())
        guarded(3)
        guarded(3)
        with pytest.raises(tx.RetraceError):
            guarded(4)
        pool.submit(f, ones(5)).result()  # nothing is around it


def test_the_methods_of_modules_are_one_function() -> None:
    class Scale(eqx.Module):
        w: jax.Array

        @tx.no_recompile
        @eqx.filter_jit
        def filtered(self, x):
            return self.w * x

        @tx.no_recompile
        @jax.jit
        def jitted(self, x):
            return self.w * x

    for name in ("filtered", "jitted"):
        scale = Scale(jnp.ones(3))
        for _ in range(3):
            getattr(scale, name)(ones(1, 3))
            scale = Scale(scale.w + 1)
        lines = told(lambda name=name, scale=scale: getattr(scale, name)(ones(2, 3)))
        assert lines == "x: f32[1,3] → f32[2,3], axis 0"


def test_what_runs_later_is_refused() -> None:
    @contextlib.contextmanager
    def managed():
        yield

    class Later:
        async def __call__(self):
            pass

    for fn in (managed, Later()):
        with pytest.raises(TypeError, match="runs after the call returned"):
            tx.no_recompile(fn)
    with pytest.raises(TypeError, match="runs after the call returned"):
        tx.no_recompile(lambda: (i for i in range(3)))()


def test_a_new_bucket_of_another_dtype_is_no_new_bucket() -> None:
    f = tx.no_recompile(tx.pad_static(buckets=(4, 8))(lambda x: x.sum(0)))
    f(ones(3))
    with pytest.raises(tx.RetraceError):
        f(np.ones(6, np.int32))
    f(ones(6))


# ---------------------------------------------------------------------- nothing is raised that should not be


def test_a_block_in_a_generator_ends_with_it() -> None:
    def blocks(n):
        with tx.no_recompile():
            yield from range(n)

    for _ in zip(blocks(2), blocks(5), strict=False):
        pass
    gc.collect()
    jnp.tanh(ones(201))
    first = blocks(1)
    next(first)
    with tx.no_recompile():
        list(first)
        with pytest.raises(tx.RetraceError):
            jnp.tanh(ones(203))


def test_one_block_in_two_threads_and_two_tasks() -> None:
    block, f = tx.no_recompile(), jax.jit(lambda x: x * 2.8)
    f(ones(3))
    both = threading.Barrier(2)

    def enter():
        with block:
            both.wait(20)
            return f(ones(3))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(enter) for _ in range(2)]:
            assert future.result().shape == (3,)

    async def task():
        with block:
            await asyncio.sleep(0)
            f(ones(3))

    async def tasks():
        await asyncio.gather(task(), task())

    asyncio.run(tasks())
    jnp.tanh(ones(205))


def test_a_task_that_outlives_its_block_is_free() -> None:
    async def late():
        await asyncio.sleep(0.01)
        jnp.tanh(ones(207))

    async def main():
        with tx.no_recompile():
            task = asyncio.create_task(late())
        await task

    asyncio.run(main())


def test_a_call_that_began_in_the_warm_up_is_part_of_it() -> None:
    f = jax.jit(lambda x: x * 2.9)

    @tx.no_recompile
    def recursive(n):
        if n:
            recursive(n - 1)
        f(ones(3 + n))

    recursive(2)
    with pytest.raises(tx.RetraceError):
        recursive(3)

    @tx.no_recompile
    def slow(n):
        time.sleep(0.05 * n)
        return jnp.tanh(ones(300 + n))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(slow, n) for n in (1, 0)]:
            future.result()


def test_functions_of_a_loop_that_differ_are_several_functions() -> None:
    def make(k):
        @tx.no_recompile
        @jax.jit
        def predict(x):
            return x * k

        return predict

    for k in (1, 2, 3):
        make(k)(ones(3))
    for rate in (0.1, 0.2):

        @tx.no_recompile
        def fit(x):
            return jax.jit(lambda x: x * rate)(x)  # noqa: B023

        fit(ones(3))


@pytest.mark.parametrize(
    "body",
    [
        lambda x: jax.random.key(1),
        lambda x: x[2:4],
        lambda x: x.at[0].set(1.0),
        list,
        lambda x: jnp.asarray([1.0, 2.0]) + jnp.zeros(2),
        lambda x: jnp.linalg.solve(jnp.eye(2), jnp.ones(2)),
        jax.value_and_grad(lambda x: (x**2).sum()),
    ],
    ids=["key", "slice", "update", "rows", "constants", "solve", "gradient"],
)
def test_all_that_was_cleared_may_compile_once_more(body: Callable, caplog: pytest.LogCaptureFixture) -> None:
    x, f = jnp.arange(8.0), tx.no_recompile(body, warmup=2)
    f(x)
    f(x)
    jax.clear_caches()
    f(x)
    assert "jax.clear_caches() was called" in caplog.text
    f(x)
    f(x)


def test_what_was_cleared_before_the_warm_up_is_no_excuse() -> None:
    n = [401]
    f = tx.no_recompile(lambda: jnp.tanh(ones(n[0])))
    jnp.tanh(ones(403))
    jax.clear_caches()
    f()
    n[0] = 403
    with pytest.raises(tx.RetraceError):
        f()


def test_debug_nans_finds_the_nan() -> None:
    f = tx.no_recompile(jax.jit(jnp.log))
    f(ones(3))
    with jax.debug_nans(new_val=True), pytest.raises(FloatingPointError):
        f(-ones(3))


def test_a_thread_of_another_runtime_is_no_callback() -> None:
    import _thread

    f, done = jax.jit(lambda x: x * 3.1), threading.Event()

    def foreign():
        f(ones(9))
        done.set()

    with tx.no_recompile():
        _thread.start_new_thread(foreign, ())
        assert done.wait(20)


# ---------------------------------------------------------------------- what is said is true


def test_a_batch_is_named_under_vmap() -> None:
    f = jax.jit(lambda x: x * 3.2)
    for guarded in (
        tx.no_recompile(lambda x: jax.vmap(f)(x) + 0),
        tx.no_recompile(jax.vmap(f)),
        jax.vmap(tx.no_recompile(f)),
    ):
        guarded(ones(2, 3))
        guarded(ones(2, 3))
        assert "f32[2,3] → f32[5,3], axis 0" in told(lambda guarded=guarded: guarded(ones(5, 3)))
        jax.clear_caches()


def test_only_the_shape_is_told_under_grad() -> None:
    loss = jax.jit(lambda w: (w**2).sum())
    guarded = tx.no_recompile(jax.grad(loss))
    guarded(jnp.ones(3))
    guarded(jnp.ones(3))
    lines = told(lambda: guarded(jnp.ones(4)))
    assert "f32[3] → f32[4], axis 0" in lines
    assert "called directly" not in lines


def test_a_name_that_begins_like_another() -> None:
    f = tx.no_recompile(jax.jit(lambda x, x_mask: None))
    f((ones(3),), None)
    assert told(lambda: f([ones(3)], ones(3))).splitlines() == ["x: tuple of 1 → list of 1", "x_mask: None → f32[3]"]


class Block(eqx.Module):
    w: jax.Array
    activation: str = eqx.field(static=True)
    description: str = eqx.field(static=True)
    heads: int = eqx.field(static=True)


def test_a_static_field_is_named() -> None:
    f = tx.no_recompile(eqx.filter_jit(lambda block, x: block.w * x))
    first, other = (Block(jnp.ones(3), "gelu", "a" * 80, heads) for heads in (2, 4))
    f(first, ones(3))
    assert told(lambda: f(other, ones(3))) == "block.heads: 2 → 4"


@dataclasses.dataclass(frozen=True)
class Config:
    width: int
    run: str = dataclasses.field(compare=False)


def test_what_is_equal_is_no_change() -> None:
    f = tx.no_recompile(jax.jit(lambda x, config: x * config.width, static_argnums=1))
    f(ones(3), Config(2, "a"))
    f(ones(3), Config(2, "b"))
    assert told(lambda: f(ones(4), Config(2, "c"))) == "x: f32[3] → f32[4], axis 0"


def test_two_functions_of_one_line_are_two() -> None:
    def make(k):
        return jax.jit(lambda x: x * k)

    one, two = make(1), make(2)
    two(ones(3))
    one(ones(4))
    assert told(in_block(lambda: two(ones(4)))) == "x: f32[3] → f32[4], axis 0"
    three = make(3)
    assert "was not compiled before" in _message(in_block(lambda: three(ones(3))))


def test_what_a_plain_function_is_called_with_is_not_the_cause_if_there_is_one() -> None:
    inner = jax.jit(lambda x: x * 3.3)
    f = tx.no_recompile(lambda label, n: inner(ones(n)))
    f("a", 3)
    f("b", 3)
    assert told(lambda: f("c", 4)) == "x of <lambda>: f32[3] → f32[4], axis 0"


def test_the_statics_of_filter_jit_are_named() -> None:
    @tx.no_recompile
    @eqx.filter_jit
    def step(state, training=False):
        return {"w": state["w"] * 0.9, "i": state["i"] + 1}

    state = step({"w": jnp.ones(3), "i": 0})
    assert told(lambda: step(state)).splitlines()[0] == "state['i']: 0 → 1"
    message = _message(lambda: step({"w": jnp.ones(3), "i": 0}, training=True))
    assert "training: left out (False) → True (static)" in message
    assert "step (test_attacked.py:" in message


def test_self_is_named_and_so_is_the_rest() -> None:
    class Model:
        @tx.no_recompile
        @functools.partial(jax.jit, static_argnums=0)
        def double(self, x):
            return x * 2

    model = Model()
    model.double(ones(1, 3))
    assert told(lambda: model.double(ones(2, 3))) == "x: f32[1,3] → f32[2,3], axis 0"


@pytest.mark.parametrize(
    ("before", "after", "fix"),
    [
        (0.1, 1, "pass a float each time: float(1)"),
        (0.1, np.float32(0.1), "start it as jnp.float32(0.1)"),
        (np.float32(0.1), 0.2, "pass it as jnp.float32(0.2)"),
        (np.float32(0.1), ones(3), "pass it with the same axes each time"),
    ],
)
def test_the_fix_of_a_number_fixes_it(before: Any, after: Any, fix: str) -> None:
    f = tx.no_recompile(jax.jit(lambda x, s: x * s))
    f(ones(3), before)
    with pytest.raises(tx.RetraceError) as raised:
        f(ones(3), after)
    assert [change.fix for change in raised.value.changes] == [fix]


@pytest.mark.parametrize(
    ("before", "after", "fix"),
    [
        ((ones(2), ones(8)), (ones(2), ones(5)), "@tx.pad_static(8, in_axes=(None, 0))"),
        ((ones(4, 7),), (ones(4, 9),), "@tx.pad_static(9, in_axes=(1,))"),
        ((ones(7), ones(7)), (ones(9), ones(9)), "@tx.pad_static(9)"),
        (({"a": ones(7), "b": ones(3)},), ({"a": ones(9), "b": ones(3)},), "pad it to one length"),
    ],
)
def test_the_fix_of_a_length_is_one_that_can_be_written(before: tuple, after: tuple, fix: str) -> None:
    f = tx.no_recompile(jax.jit(lambda *args: jax.tree.map(lambda x: x.sum(), args)))
    f(*before)
    assert f": {fix}" in _message(lambda: f(*after)).partition("Fix: ")[2]


# ---------------------------------------------------------------------- nothing is kept


def test_a_thread_keeps_no_argument_alive() -> None:
    class Large:
        pass

    stop = threading.Event()

    @tx.no_recompile
    def start(large):
        threading.Thread(target=stop.wait, args=(20,), daemon=True).start()

    large = Large()
    alive = weakref.ref(large)
    start(large)
    del large
    gc.collect()
    assert alive() is None
    stop.set()


def test_a_recorder_can_be_entered_again() -> None:
    seen = tx.compiles()
    seen.stop()
    with seen:
        jax.jit(lambda x: x * 3.4)(1.0)
    assert seen.traces == 1
