"""Faults that people reported of JAX programs that scan, each as a test of what answers it.

| reported | where | what answers it |
|---|---|---|
| all samples are kept for a mean of them | numpyro issues 1636, 1503, blackjax 529, 486, brax 123 | `explain` |
| a buffer in a carry is copied in each step | jax issues 17845, 17640, 10197, turbozero 8 | `explain` |
| work that is the same in all steps is done in each | jax 28748, 1664, 36799 | `hoist_invariants` |
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx

# ---------------------------------------------------------------------- explain: what a scan stacks

D = 1000


def kernel(state: dict[str, Any], key: Any) -> dict[str, Any]:
    noise = jax.random.normal(key, (D,))
    q = 0.9 * state["q"] + 0.1 * noise
    return {"q": q, "momentum": noise, "grad": -q, "logp": -0.5 * (q @ q)}


def start() -> dict[str, Any]:
    return {"q": jnp.zeros(D), "momentum": jnp.zeros(D), "grad": jnp.zeros(D), "logp": jnp.float32(0)}


def stacked(key: Any, n: int) -> dict[str, Any]:
    return lax.scan(lambda s, k: (kernel(s, k),) * 2, start(), jax.random.split(key, n))[1]


def mean_of_stacked(key: Any, n: int) -> Any:
    return stacked(key, n)["q"].mean(0)


def running_mean(key: Any, n: int) -> Any:
    def step(carry, key):
        state = kernel(carry[0], key)
        return (state, carry[1] + state["q"]), None

    return lax.scan(step, (start(), jnp.zeros(D)), jax.random.split(key, n))[0][1] / n


def live_bytes(fn: Callable[..., Any], n: int) -> int:
    found = jax.jit(fn, static_argnums=1).lower(jax.random.key(0), n).compile().memory_analysis()
    keys = 2 * 8 * n  # one for each step, and what they are made from
    return found.output_size_in_bytes + found.temp_size_in_bytes - keys


def test_a_stacked_state_of_which_a_mean_is_read() -> None:
    key, n = jax.random.key(0), 500
    one, few, many = (tx.explain(fn, key, n).lines for fn in (stacked, mean_of_stacked, running_mean))
    assert one[1].startswith(f"scan of 500 steps at {__file__}:")
    assert one[1].endswith("(stacked) stacks 5.7 MiB")
    assert one[2:5] == tuple(f"    result['{name}'], f32[500,1000], 1.9 MiB" for name in ("grad", "momentum", "q"))
    for name, line in zip(("grad", "momentum"), few[2:4], strict=True):
        assert line.startswith(f"    y['{name}'], f32[500,1000], 1.9 MiB: never read")
    assert few[4].endswith(
        "y['q'], f32[500,1000], 1.9 MiB: only its sum (or mean) over the steps is read: carry a running sum"
    )
    assert many[1:] == ("result: Bitwise()",)


def test_a_running_mean_is_the_same_and_its_bytes_do_not_grow() -> None:
    key = jax.random.key(0)
    want = np.asarray(jax.jit(mean_of_stacked, static_argnums=1)(key, 500))
    got = np.asarray(jax.jit(running_mean, static_argnums=1)(key, 500))
    assert np.abs(want - got).max() <= 1e-4
    assert live_bytes(mean_of_stacked, 2000) - live_bytes(mean_of_stacked, 500) >= 0.9 * 1500 * D * 4
    assert live_bytes(running_mean, 2000) - live_bytes(running_mean, 500) <= 1000


# ---------------------------------------------------------------------- explain: what a step copies

N = 400_000


def read_modify_write(buf, i):
    v = buf[i]
    return buf.at[i].set(v * 0.5), v


def with_barrier(buf, i):
    buf, v = lax.optimization_barrier((buf, buf[i]))
    return buf.at[i].set(v * 0.5), v


def write_only(buf, i):
    return buf.at[i].set(0.5), None


def cond_write(buf, i):
    v = buf[i]
    return lax.cond(v > 0, lambda b: b.at[i].set(-v), lambda b: b, buf), v


def looped(step: Callable[..., Any]) -> Any:
    return jax.jit(lambda buf, i: lax.scan(step, buf, i), donate_argnums=0)


STRUCTS = jax.ShapeDtypeStruct((N,), jnp.float32), jax.ShapeDtypeStruct((200,), jnp.int32)
BARRIER_HELPS = jax.__version_info__ >= (0, 11, 2)


@pytest.mark.parametrize(
    ("step", "copies"),
    [(read_modify_write, 2), (with_barrier, 2 * (not BARRIER_HELPS)), (write_only, 0), (cond_write, 3)],
)
def test_a_buffer_in_a_carry_is_copied(step: Any, copies: int) -> None:
    lines = [line for line in tx.explain(looped(step), *STRUCTS).lines if line.startswith("    carry")]
    assert len(lines) == (copies > 0)
    if lines:
        assert lines[0].startswith(
            f"    carry buf, f32[400000], 1.5 MiB: {copies} copies in each step, since the step keeps a"
        )
        assert "jax.lax.optimization_barrier((carry, value)) between read and write" in lines[0]


def test_a_barrier_leaves_the_values_and_takes_the_copies() -> None:
    i = jnp.arange(200) * 5
    want, got = (looped(step)(jnp.ones(N), i) for step in (read_modify_write, with_barrier))
    for a, b in zip(want, got, strict=True):
        assert np.array_equal(a, b)
    temp = looped(with_barrier).lower(*STRUCTS).compile().memory_analysis().temp_size_in_bytes
    assert (temp < 1000) == BARRIER_HELPS


# ---------------------------------------------------------------------- case 37, what XLA hoists, and what not


STEPS, WIDE = 20, 8
M = jnp.eye(WIDE) + jnp.asarray(np.random.default_rng(0).random((WIDE, WIDE)), jnp.float32) / WIDE
ROWS = jnp.ones((STEPS, WIDE))


def spectrum(m: Any) -> Any:
    return jnp.linalg.eigh(m + m.T)[1]


def in_every_step(m: Any, xs: Any) -> Any:
    return jax.lax.scan(lambda c, x: (c * 0.5 + spectrum(m) @ x, None), jnp.zeros(WIDE), xs)[0].sum()


def in_a_branch(m: Any, xs: Any) -> Any:
    def step(c, x):
        return c * 0.5 + jax.lax.cond(x[0] > 0, lambda: spectrum(m), lambda: m) @ x, None

    return jax.lax.scan(step, jnp.zeros(WIDE), xs)[0].sum()


def rematerialised(m: Any, xs: Any) -> Any:
    step = jax.checkpoint(lambda c, x: (jnp.tanh(c * 0.5 + spectrum(m) @ x), None))
    return jax.grad(lambda xs: jax.lax.scan(step, jnp.zeros(WIDE), xs)[0].sum())(xs).sum()


def where_it_runs(f: Any) -> set[str]:
    """In which computations of the compiled program the factorisation is called: the entry, or a loop or branch."""
    found, computation = set(), ""
    for line in jax.jit(f).lower(M, ROWS).compile().as_text().splitlines():
        if line and not line[0].isspace() and "{" in line:
            computation = line.split()[0]
        if "lapack_ssyevd" in line:
            found.add("outside" if computation == "ENTRY" else "in the loop")
    return found


@pytest.mark.parametrize(
    ("f", "by_xla", "how"),
    [
        (in_every_step, "outside", {}),
        (in_a_branch, "in the loop", {"branches": True}),
        (rematerialised, "in the loop", {}),
    ],
)
def test_37_work_that_is_the_same_in_all_steps(f: Any, by_xla: str, how: dict) -> None:
    hoisted = tx.hoist_invariants(f, **how)
    assert by_xla in where_it_runs(f)
    assert where_it_runs(hoisted) == {"outside"}
    np.testing.assert_allclose(hoisted(M, ROWS), jax.jit(f)(M, ROWS), rtol=1e-5)
