"""What `tx.contract` promises of `chunked` functions, searched for counterexamples.

Functions are drawn from a small grammar of rows, compiled one-shot and in chunks, and held against exactly the
promise; "no worse than" is measured from the float64 result.
"""

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise

Fn = Callable[..., Any]

# (rows of 4, a shared 4 × 4 matrix, a shared vector of 4) -> rows of 4
STEPS: dict[str, Fn] = {
    "negative": lambda h, w, b: -h,
    "reversed": lambda h, w, b: h[:, ::-1],
    "rolled": lambda h, w, b: jnp.roll(h, 1, axis=1),
    "at least": lambda h, w, b: jnp.maximum(h, b),
    "chosen": lambda h, w, b: jnp.where(h > b, h, -b),
    "sorted": lambda h, w, b: jnp.sort(h, axis=1),
    "ranked": lambda h, w, b: jnp.take_along_axis(h, jnp.argsort(h, axis=1), axis=1),
    "spread": lambda h, w, b: jnp.broadcast_to(h.max(1, keepdims=True), h.shape),
    "scaled": lambda h, w, b: h * b + 0.25,
    "bent": lambda h, w, b: h / (1 + h * h),
    "curved": lambda h, w, b: jnp.sin(h),
    "mixed": lambda h, w, b: h @ w,
    "centred": lambda h, w, b: h - h.mean(1, keepdims=True),
    "shared out": lambda h, w, b: jax.nn.softmax(h, axis=1),
    "added up": lambda h, w, b: jnp.cumsum(h, axis=1),
}
EXACT = list(STEPS)[:8]
REDUCED: dict[str, Fn] = {
    "rows": lambda h: h,
    "sum": lambda h: h.sum(0),
    "mean": lambda h: h.mean(0),
    "max": lambda h: h.max(0),
    "min": lambda h: h.min(0),
    "prod": lambda h: (1 + h / 64).prod(0),
}


def composed(steps: list[str], kinds: list[str]) -> Fn:
    def fn(x: jax.Array, i: jax.Array, w: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
        h = x
        for step in steps:
            h = STEPS[step](h, w, b)
        return *(REDUCED[kind](h) for kind in kinds), i * 3 + 1, (i * i).sum(), (i % 5 == 0).any()

    return fn


def arguments(seed: int, rows: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(seed)
    x, w, b = rng.normal(size=(rows, 4)), rng.normal(size=(4, 4)) / 2, rng.normal(size=4)
    i = rng.integers(-(2**20), 2**20, rows)
    return (
        jnp.asarray(x, jnp.float32),
        jnp.asarray(i, jnp.int32),
        jnp.asarray(w, jnp.float32),
        jnp.asarray(b, jnp.float32),
    )


def in_double(fn: Fn, args: tuple[jax.Array, ...]) -> Any:
    """The result in float64, on the very same inputs."""
    on_host = [np.asarray(a) for a in args]
    with jax.enable_x64(True):  # noqa: FBT003
        wide = [jnp.asarray(a, jnp.float64 if a.dtype == np.float32 else None) for a in on_host]
        return jax.tree.map(np.asarray, jax.jit(fn)(*wide))


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    steps=st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=4),
    kinds=st.lists(st.sampled_from(list(REDUCED)), min_size=1, max_size=3),
    rows=st.integers(2, 40),
    size=st.integers(1, 20),
    seed=st.integers(0, 2**16),
)
def test_values_keep_the_promise(steps: list[str], kinds: list[str], rows: int, size: int, seed: int) -> None:
    fn, args = composed(steps, kinds), arguments(seed, rows)
    f = tx.chunked(lax.map, size=size, in_axes=(0, 0, None, None), out=(*kinds, "rows", "sum", "any"))(fn)
    promise = tx.contract(f, *args)
    assert promise[-3:] == (Bitwise(), Bitwise(), Bitwise())
    if set(steps) <= set(EXACT):
        exact_kinds = {"rows", "max", "min"} | (set(REDUCED) if size >= rows else set())
        assert [one == Bitwise() for one in promise[:-3]] == [kind in exact_kinds for kind in kinds]
    found = compare(jax.jit(fn)(*args), f(*args), promise, exact=in_double(fn, args))
    assert found.ok, f"{steps} {kinds}: {found}"


@hypothesis.settings(max_examples=10)
@hypothesis.given(
    steps=st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=3),
    kind=st.sampled_from(["rows", "sum", "mean"]),
    rows=st.integers(2, 30),
    size=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)
def test_gradients_keep_the_promise(steps: list[str], kind: str, rows: int, size: int, seed: int) -> None:
    fn, (x, i, w, b) = composed(steps, [kind]), arguments(seed, rows)
    f = tx.chunked(lax.map, size=size, in_axes=(0, 0, None, None), out=(kind, "rows", "sum", "any"))(fn)
    promise = tx.contract(f, x, i, w, b)[0]

    def grads(f: Fn) -> Fn:
        weights = jnp.arange(4.0) - 1.5
        return jax.grad(lambda x, w, b: (f(x, i, w, b)[0] * weights.astype(x.dtype)).sum(), (0, 1, 2))

    reference, found = (jax.jit(grads(one))(x, w, b) for one in (fn, f))
    outcome = compare(reference, found, promise.gradients or promise, exact=in_double(grads(fn), (x, w, b)))
    assert outcome.ok, f"{steps} {kind}: {outcome}"


# ---------------------------------------------------------------------- the promise itself


def test_one_promise_for_each_output() -> None:
    def fn(x: jax.Array, w: jax.Array) -> dict[str, Any]:
        return {"moved": x[:, ::-1], "top": x.max(0), "products": (x @ w, (x @ w).sum(0)), "count": (x > 0).sum(0)}

    f = tx.chunked(
        lax.map, 4, in_axes=(0, None), out={"moved": "rows", "top": "max", "products": ("rows", "sum"), "count": "sum"}
    )(fn)
    shapes = jax.ShapeDtypeStruct((10, 3), "float32"), jax.ShapeDtypeStruct((3, 3), "float32")
    loose = AsAccurate(4)
    assert tx.contract(f, *shapes) == {
        "moved": Bitwise(),
        "top": loose,
        "products": (loose, loose),
        "count": Bitwise(),
    }
    assert tx.contract(f, *shapes)["moved"].gradients == loose


@pytest.mark.parametrize("kind", ["sum", "mean", "prod"])
def test_float_totals_are_inexact_whatever_leads_to_them(kind: str) -> None:
    f = tx.chunked(lax.map, 4, out=kind)(lambda x: x[0])
    assert tx.contract(f, jnp.ones((8, 3))) == AsAccurate(4)
    assert tx.contract(f, jnp.ones((2, 3))) == AsAccurate(4)
    assert tx.contract(f, jnp.ones((1, 3))) == Bitwise()  # one chunk


def test_a_stack_promises_what_its_parts_do() -> None:
    fn = lambda x: (x[:, ::-1], x.sum(0))  # noqa: E731
    f = tx.vram_resident(tx.chunked(lax.map, 4, out=("rows", "sum"))(fn))
    assert tx.contract(f, jnp.ones((8, 3))) == (Bitwise(), AsAccurate(4))


def assert_promise_kept(fn: Fn, out: Any, size: int, in_axes: Any, *args: jax.Array) -> None:
    f = tx.chunked(lax.map, size=size, in_axes=in_axes, out=out)(fn)
    found = compare(jax.jit(fn)(*args), f(*args), tx.contract(f, *args), exact=in_double(fn, args))
    assert found.ok, str(found)


def test_integers_that_rounded_floats_decide(rng: np.random.Generator) -> None:
    x, v = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((1000, 300), (300,)))
    assert_promise_kept(lambda x, v: (x @ v * 1e4).astype(jnp.int32), "rows", 7, (0, None), x, v)


def test_bools_that_rounded_floats_decide(rng: np.random.Generator) -> None:
    x, v = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((1000, 300), (300,)))
    bound = jax.jit(lambda x, v: x @ v)(x, v)
    assert_promise_kept(lambda x, v, bound: x @ v > bound, "rows", 7, (0, None, 0), x, v, bound)


@pytest.mark.parametrize("out", ["rows", "max"])
def test_maxima_of_many_zeros(out: str, rng: np.random.Generator) -> None:
    """From 4096 elements on XLA:CPU takes either zero."""
    x = jnp.asarray(rng.choice([0.0, -0.0], (64, 128)), jnp.float32)
    assert_promise_kept(lambda x: x.max(int(out == "rows")), out, 7, 0, x)


@pytest.mark.parametrize("out", ["rows", "max"])
def test_chunks_keep_a_nan(out: str, rng: np.random.Generator) -> None:
    """From 4096 elements on XLA:CPU drops NaN, and the one-shot result is wrong."""
    axis = int(out == "rows")
    x = rng.choice(np.float32([1.0, np.nan]), (64, 128))
    found = tx.chunked(lax.map, size=7, out=out)(lambda x: x.max(axis))(x)
    np.testing.assert_array_equal(found, x.max(axis))
