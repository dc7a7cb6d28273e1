"""What `tx.contract` promises of `chunked` functions, output by output. That random programs keep the promises is in
`tests/testing/test_programs.py`.
"""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.testing import prove

Fn = Callable[..., Any]


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
    assert tx.contract(f, jnp.ones((1, 3))) == AsAccurate(4)  # one chunk, compiled in another program


def test_a_stack_promises_what_its_parts_do() -> None:
    fn = lambda x: (x[:, ::-1], x.sum(0))  # noqa: E731
    f = tx.vram_resident(tx.chunked(lax.map, 4, out=("rows", "sum"))(fn))
    assert tx.contract(f, jnp.ones((8, 3))) == (Bitwise(), AsAccurate(4))


def assert_promise_kept(fn: Fn, out: Any, size: int, in_axes: Any, *args: jax.Array) -> None:
    f = tx.chunked(lax.map, size=size, in_axes=in_axes, out=out)(fn)
    prove(f, st.just(args), under=("jit",))


def test_integers_that_rounded_floats_decide(rng: np.random.Generator) -> None:
    x, v = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((1000, 300), (300,)))
    assert_promise_kept(lambda x, v: (x @ v * 1e4).astype(jnp.int32), "rows", 7, (0, None), x, v)


def test_bools_that_rounded_floats_decide(rng: np.random.Generator) -> None:
    x, v = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((1000, 300), (300,)))
    bound = jax.jit(lambda x, v: x @ v)(x, v) + (jnp.arange(1000) % 10 > 0)  # one in ten is decided by rounding
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
