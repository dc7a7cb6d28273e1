"""Programs that people reported as slow, since they compiled again: each is told by `no_recompile` with its cause, and
compiles once when it is mended.

| reported | where |
|---|---|
| one trace for each length of an input | tapnet issue 44, jax issue 5000 |
| a state that starts with Python numbers is traced twice | jaxopt issue 451, jax issues 4274 and 3163 |
| an optimizer that is built again compiles the step again | equinox issues 940 and 686, jax issue 4712 |
| a lambda, a partial or a bound method is jitted in the loop | jax issues 9288 and 19570, blackjax issue 486 |
| one trace, and two compiles: committed and uncommitted arguments | jax issue 15924, vmex pulls 307, 319 and 321 |
| `lax.cond` outside of jit compiles at every call | netket issue 2043 |
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import erythroxy_tx as tx


def test_a_length_that_varies() -> None:
    lengths = (7, 11, 5, 16, 9, 7, 11)
    inputs = [np.linspace(0, 1, n, dtype=np.float32) for n in lengths]
    plain = tx.no_recompile(jax.jit(jax.nn.logsumexp))
    plain(inputs[0])
    with pytest.raises(tx.RetraceError, match=r"a: f32\[7\] → f32\[11\], axis 0") as raised:
        plain(inputs[1])
    assert "Fix: a: @tx.pad_static(11), if the length varies" in str(raised.value)
    padded = tx.no_recompile(tx.pad_static(16)(jax.nn.logsumexp))
    for x in inputs:
        np.testing.assert_allclose(padded(x), jax.nn.logsumexp(x), rtol=1e-6)


def updating(traces: list[int]) -> Any:
    @tx.no_recompile
    @jax.jit
    def update(state):
        traces[0] += 1
        return {"step": state["step"] + 1, "size": jnp.minimum(state["size"] * 1.5, jnp.float32(1.0))}

    return update


def test_a_state_of_python_numbers() -> None:
    traces = [0]
    update = updating(traces)
    state = update({"step": 0, "size": 0.1})
    with pytest.raises(tx.RetraceError, match=r"start it as jnp\.float32\(0\.1\)") as raised:
        update(state)
    assert [(change.kind, change.path) for change in raised.value.changes] == [("weak type", "state['size']")]
    update, state = updating(traces), {"step": 0, "size": jnp.float32(0.1)}
    for _ in range(5):
        state = update(state)
    assert traces == [2]  # one of each

    add = tx.no_recompile(jax.jit(lambda a, b: a + b))
    total = 0
    for i in range(5):
        total = add(total, i)
    assert int(total) == 10


def test_an_optimizer_that_is_built_again() -> None:
    traces = [0]

    @tx.no_recompile
    @functools.partial(jax.jit, static_argnames="opt")
    def step(params, state, grads, opt):
        traces[0] += 1
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def fit(opt):
        params = jnp.ones(3)
        state = opt.init(params)
        for _ in range(4):
            params, state = step(params, state, jnp.ones(3), opt=opt)

    shared = optax.adam(1e-3)
    for _ in range(3):
        fit(shared)
    with pytest.raises(tx.RetraceError, match=r"holds functions that are made anew at .*py:") as raised:
        fit(optax.adam(1e-3))
    assert [(change.kind, change.path) for change in raised.value.changes] == [("static", "opt")]
    assert traces == [1]


class Env:
    def step(self, x):
        return x * 2


def body(x):
    return x + 1


@pytest.mark.parametrize("name", ["lambda", "partial", "method"])
def test_a_function_that_is_jitted_in_the_loop(name: str) -> None:
    env = Env()
    make = {"lambda": lambda: lambda x: x + 1, "partial": lambda: functools.partial(body), "method": lambda: env.step}

    def around_each() -> None:
        for i in range(5):
            tx.no_recompile(jax.jit(make[name]()))(float(i))

    @tx.no_recompile
    def inside(i):
        return jax.jit(make[name]())(i)

    def around_all() -> None:
        for i in range(5):
            inside(float(i))

    for loop in (around_each, around_all):
        with pytest.raises(tx.RetraceError, match="a new function object from the same line"):
            loop()


def test_a_named_function_may_be_jitted_in_the_loop() -> None:
    for i in range(5):
        assert tx.no_recompile(jax.jit(body))(float(i)) == i + 1


def test_a_function_that_is_made_again_for_another_use() -> None:
    def fit(steps):
        step = tx.no_recompile(jax.jit(lambda x: x * 3))
        for i in range(steps):
            step(float(i))

    for steps in (3, 3, 2):
        fit(steps)


def test_committed_and_uncommitted() -> None:
    traces = [0]

    @tx.no_recompile
    @jax.jit
    def step(x):
        traces[0] += 1
        return x * 2

    fresh, restored = jnp.ones(3), jax.device_put(np.ones(3, np.float32), jax.devices()[0])
    step(fresh)
    step(np.ones(3, np.float32))
    with pytest.raises(tx.RetraceError, match="x: uncommitted → committed to cpu:0") as raised:
        step(restored)
    assert "compiled (it is traced already)" in str(raised.value)
    assert traces == [1]


def test_a_cond_outside_of_jit() -> None:
    def adaptive_step(t, error):
        return jax.lax.cond(error < 1.0, lambda: t + 0.1, lambda: t * 0.5)

    eager, jitted = tx.no_recompile(adaptive_step), tx.no_recompile(jax.jit(adaptive_step))
    t, error = jnp.float32(1.0), jnp.float32(0.5)
    eager(t, error)
    with pytest.raises(tx.RetraceError, match=r"jax\.lax\.cond, called outside of jit"):
        eager(t, error)
    for _ in range(8):
        t = jitted(t, error)
