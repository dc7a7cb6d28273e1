"""`every`: when a function runs, what comes between, and that a branch that is not due does not run."""

import gc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.runtime.every import every
from erythroxy_tx.runtime.metrics import MetricBuffer


def double(x: Any) -> Any:
    return 2 * x


# ------------------------------------------------------------------ on the host


def test_the_last_value_comes_between() -> None:
    encode = every(3)(double)
    assert [encode(x) for x in range(7)] == [0, 0, 0, 6, 6, 6, 12]
    assert encode.__name__ == "double"
    assert encode.__wrapped__ is double
    encode.reset()
    assert encode(50) == 100


def test_nothing_comes_between_what_is_skipped() -> None:
    log = every(3, "skip")(double)
    assert [log(x) for x in range(5)] == [0, None, None, 6, None]


def test_a_step_decides_in_place_of_the_count() -> None:
    encode = every(5)(double)
    assert [encode(x, step=x) for x in (10, 11, np.int64(14), 15)] == [20, 20, 20, 30]
    assert encode(1) == 2  # a count of its own, which begins
    again = every(5)(double)  # a run that starts again at step 12
    with pytest.raises(ValueError, match=r"step=12, at which it does not run.*last="):
        again(12, step=12)
    assert again(12, step=12, last=20) == 20
    assert again(15, step=15) == 30
    assert every(5, "skip")(double)(1, step=3) is None


def test_a_call_that_raises_does_not_count() -> None:
    calls = []

    @every(2)
    def fails_once(x: int) -> int:
        calls.append(x)
        if len(calls) == 1:
            raise ConnectionError
        return x

    with pytest.raises(ConnectionError):
        fails_once(0)
    assert [fails_once(x) for x in (1, 2, 3)] == [1, 1, 3]


class Trainer:
    @every(2)
    def encode(self, x: int) -> int:
        return x

    @classmethod
    @every(2)
    def of_class(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x

    @staticmethod
    @every(2)
    def of_none(x: int) -> int:
        return x


def test_each_instance_has_its_own_count() -> None:
    a, b = Trainer(), Trainer()
    assert [a.encode(1), b.encode(10), a.encode(2), b.encode(20), a.encode(3)] == [1, 10, 1, 10, 3]
    a.encode.reset()
    assert a.encode(7) == 7
    assert b.encode(30) == 30
    assert [Trainer.of_class(1), Trainer().of_class(2), Trainer.of_class(3)] == [("Trainer", x) for x in (1, 1, 3)]
    assert [Trainer.of_none(x) for x in (1, 2, 3)] == [1, 1, 3]


def test_a_count_goes_with_its_instance() -> None:
    gate = Trainer.__dict__["encode"]
    instances = [Trainer() for _ in range(3)]
    before = len(gate._counts)
    for instance in instances:
        instance.encode(1)
    assert len(gate._counts) == before + 3
    del instances, instance
    gc.collect()
    assert len(gate._counts) <= before


class Model(eqx.Module):
    w: jax.Array

    @every(2)
    def scaled(self, x: Any) -> Any:
        return self.w * x


def test_a_value_cannot_count() -> None:
    """A module is another object after each update: a count of its own would always be at its beginning."""
    model = Model(jnp.ones(2))
    with pytest.raises(ValueError, match=r"every\(2\)\(Model.scaled\).* a pytree.*step="):
        model.scaled(1)
    assert model.scaled(3, step=2).tolist() == [3, 3]
    assert model.scaled(3, step=3, last=5) == 5
    with pytest.raises(ValueError, match="cannot keep"):
        model.scaled(3, step=3)


# ------------------------------------------------------------------ inside of a trace


def counted(fn: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """The function, and a list that grows each time it really runs."""
    runs: list[int] = []

    def run(*args: Any) -> Any:
        jax.debug.callback(lambda: runs.append(1))
        return fn(*args)

    return run, runs


def target(gate: Callable[..., Any], steps: int = 11) -> Callable[..., Any]:
    """A loop that sums what the gate gives at each step."""

    def loop(p: jax.Array) -> jax.Array:
        def step(last: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
            new = gate(p * (i + 1), step=i, last=last)
            return new, new.sum()

        return lax.scan(step, jnp.zeros_like(p), jnp.arange(steps))[1].sum()

    return loop


P = jnp.arange(1.0, 4)


def test_it_is_a_branch_that_does_not_run_when_it_is_not_due() -> None:
    run, runs = counted(double)
    loop = target(every(5)(run))
    expected = sum(2 * (i - i % 5 + 1) for i in range(11)) * float(P.sum())
    assert float(jax.jit(loop)(P)) == expected
    jax.effects_barrier()
    assert len(runs) == 3


def test_the_program_has_a_branch_and_no_select() -> None:
    gate = every(5)(double)
    batched = jax.vmap(lambda p, i: gate(p, step=i, last=p), (0, None))
    for fn in (batched, lambda p, i: gate(p, step=i, last=p)):
        text = str(jax.make_jaxpr(fn)(P, 1))
        assert "cond[" in text
        assert "select_n" not in text
    np.testing.assert_array_equal(batched(P, 5), 2 * P)
    np.testing.assert_array_equal(jax.jit(batched)(P, 6), P)


def test_what_is_skipped_is_an_effect() -> None:
    log, runs = counted(lambda _: None)
    gate = every(4, "skip")(log)
    jax.jit(lambda: lax.scan(lambda c, i: (c, gate(c, step=i)), 0, jnp.arange(9)))()
    jax.effects_barrier()
    assert len(runs) == 3


def test_gradients_flow_through_the_branch() -> None:
    loop = target(every(5)(jnp.square))
    expected = sum(2 * (i - i % 5 + 1) ** 2 for i in range(11)) * P
    for derivative in (jax.grad, jax.jacfwd):
        for fn in (loop, jax.checkpoint(loop)):
            np.testing.assert_allclose(jax.jit(derivative(fn))(P), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(loop))(P), expected, rtol=1e-6)


def test_a_step_that_is_known_while_tracing_needs_no_branch() -> None:
    gate = every(2)(double)
    for step, factor in ((0, 2), (1, 0)):
        jaxpr = jax.make_jaxpr(lambda p, step=step: gate(p, step=step, last=jnp.zeros(3)))(P)
        assert "cond" not in str(jaxpr)
        np.testing.assert_array_equal(
            jax.grad(lambda p, s=step: gate(p, step=s, last=jnp.zeros(3)).sum())(P), [factor] * 3
        )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int32"])
def test_steps_of_few_bits(dtype: str) -> None:
    gate = jax.jit(lambda i: every(1000)(lambda: 1.0)(step=i, last=0.0))
    assert [float(gate(jnp.asarray(i, dtype))) for i in (0, 1, 120)] == [1, 0, 0]


def call(p: jax.Array, i: jax.Array) -> jax.Array:
    return every(5)(double)(p, step=i, last=p)


@pytest.mark.parametrize(
    "batched",
    [
        jax.vmap(call, (None, 0)),
        jax.vmap(jax.jit(call), (None, 0)),
        jax.jit(jax.vmap(jax.jit(call), (0, 0))),
        jax.vmap(jax.grad(lambda p, i: call(p, i).sum()), (None, 0)),
        jax.vmap(lambda p, i: lax.scan(lambda c, j: (c, call(p, j)), 0, i + jnp.arange(2)), (None, 0)),
    ],
)
def test_a_batch_of_steps_is_refused(batched: Callable[..., Any]) -> None:
    with pytest.raises(tx.TransformOrderError, match=r"every\(5\)\(double\) got 3 steps under vmap.*in_axes=None"):
        batched(P, jnp.arange(3))


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ({}, tx.TransformOrderError, r"inside of a trace.*Expected step=.*and last="),
        ({"step": 1}, TypeError, "without last="),
        ({"step": 1.0, "last": P}, TypeError, r"step: f32\[\]. Expected one integer"),
        ({"step": jnp.arange(2), "last": P}, TypeError, r"step: i32\[2\]"),
        ({"step": 1, "last": {"a": P}}, TypeError, r"last of \['a'\]: f32\[3\], and returned f32\[3\]"),
        ({"step": 1, "last": P[:2]}, TypeError, r"last of f32\[2\], and returned f32\[3\]"),
        ({"step": 1, "last": jnp.arange(3)}, TypeError, r"last of i32\[3\], and returned f32\[3\]"),
    ],
)
def test_refusals_inside_of_a_trace(how: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        jax.jit(lambda p, how: every(5)(double)(p, **how))(P, how)


def test_refusals() -> None:
    with pytest.raises(TypeError, match=r'returned f32\[3\] inside of a trace.*Fix: otherwise="last"'):
        jax.jit(lambda p, i: every(5, "skip")(double)(p, step=i))(P, 1)
    with pytest.raises(TypeError, match=r"last: str. Expected arrays"):
        jax.jit(lambda p, i: every(5)(double)(p, step=i, last="x"))(P, 1)
    for make, error, told in (
        (lambda: every(double), TypeError, r"got double in place of n. Expected @tx.every\(5\)"),
        (lambda: every(0), ValueError, "n=0"),
        (lambda: every(True), ValueError, "n=True"),  # noqa: FBT003
        (lambda: every(2, "none"), ValueError, "otherwise='none'"),
        (lambda: every(2)(3), TypeError, "got int in place of a function"),
        (lambda: every(2)(lambda step: step), TypeError, "has a parameter step"),
        (lambda: every(2)(double)(1, step=1.0), TypeError, "step: float"),
        (lambda: every(2)(double)(1, step=jnp.int32(1)), TypeError, r"step: i32\[\] on the device"),
        (lambda: every(2, "skip")(double)(1, last=1), TypeError, "last= with otherwise"),
    ):
        with pytest.raises(error, match=told):
            make()

    def late() -> Any:
        yield 1

    with pytest.raises(TypeError, match="body runs after the call"):
        every(2)(late)


def test_a_buffer_of_metrics_behind_the_gate() -> None:
    @every(5)
    def log(w, metrics):
        metrics.append(w=w)
        return metrics

    step = jax.jit(lambda w, metrics, i: (w + 1, log(w, metrics, step=i, last=metrics)))
    w, metrics = jnp.float32(0), MetricBuffer(10, like={"w": 0.0})
    for i in range(11):
        w, metrics = step(w, metrics, i)
    assert metrics.dict() == {"w": [0, 5, 10]}


def test_a_method_that_is_called_by_its_class_counts_for_its_object() -> None:
    class A:
        @every(2)
        def m(self, x):
            return x

    class B(A):
        def m(self, x):
            return A.m(self, x)

    b, c = B(), B()
    assert (b.m(1), c.m(10), b.m(2), c.m(20)) == (1, 10, 1, 10)
