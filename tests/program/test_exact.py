"""Which equations are called exact: a search for one whose bits depend on how many rows run at once.

Subnormal numbers are left out: XLA flushes them to zero in some kernels and not in others.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.program.chunks import Chunks
from erythroxy_tx.program.combine import run_declared
from erythroxy_tx.program.exact import exact_outputs
from erythroxy_tx.program.row_call import RowCall

Fn = Callable[..., Any]


def call_of(fn: Fn, *args: Any) -> RowCall:
    return RowCall("f", fn, fn, args, {}, Prefix.of(0))


def is_exact(fn: Fn, *args: Any) -> list[bool]:
    return [exact for exact, _ in exact_outputs(call_of(fn, *args))]


def finite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=shape) * 3


def special(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0, 2.5, -2.5, 0.5, 1e30, -1e30], shape)


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([0.0, -0.0], shape)


def tied(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-2, 3, shape)


def large(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-(2**31), 2**31, shape)


def parts(z: jax.Array) -> tuple[jax.Array, ...]:
    return z, z.real, z.imag, -z


FLOATS: dict[str, Fn] = {
    "max": lambda x: jnp.maximum(x, x[:, ::-1]),
    "min": lambda x: jnp.minimum(x, x[:, ::-1]),
    "argmax": lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 1)),
    "signs": lambda x: (-x, jnp.abs(x), jnp.sign(x), jnp.floor(x), jnp.ceil(x)),
    "round": lambda x: (
        lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
        lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    ),
    "clamp": lambda x: lax.clamp(jnp.asarray(-1, x.dtype), x, jnp.asarray(1, x.dtype)),
    "relu": jax.nn.relu,
    "select": lambda x: jnp.where(x > 0, x, -x),
    "compare": lambda x: (x == x[:, ::-1], x < x[:, ::-1], jnp.isnan(x), jnp.isfinite(x)),
    "sort": lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1), jnp.argsort(x, 1, stable=False)),
    "sort by": lambda x: lax.sort((x, x[:, ::-1]), dimension=1, num_keys=1, is_stable=False),
    "top-k": lambda x: lax.top_k(x, 3),
    "moves": lambda x: (jnp.roll(x, 1, 1), x[:, ::2], jnp.pad(x, ((0, 0), (1, 2))), jnp.concatenate([x, x], 1)),
    "gather": lambda x: (x[:, jnp.array([0, -1, 3])], jnp.take_along_axis(x, jnp.argsort(x, 1), 1)),
    "slices": lambda x: (lax.dynamic_slice_in_dim(x, 1, 3, 1), lax.dynamic_update_slice_in_dim(x, x[:, :2], 2, 1)),
    "wider": lambda x: x.astype(jnp.float32),
    "parts": lambda x: parts(lax.complex(x.astype("float32"), x.astype("float32"))),
    "nested": jax.jit(jax.jit(jnp.sort)),
    "remat": jax.checkpoint(lambda x: jnp.maximum(-x, 0)),
    "split": lambda x: tuple(jnp.split(x[:, :4], 2, axis=1)),
}
INTEGERS: dict[str, Fn] = {
    "arithmetic": lambda x: (x + x[:, ::-1], x - 3, x * x[:, ::-1]),
    "sums": lambda x: (x.sum(1), x.prod(1), jnp.cumsum(x, 1), jnp.cumprod(x, 1), lax.cummax(x, axis=1)),
    "remainder": lambda x: lax.rem(x, x[:, ::-1]),
    "bits": lambda x: (x & 7, x | 8, x ^ x[:, ::-1], ~x, lax.shift_left(x, jnp.abs(x) % 40)),
    "to float": lambda x: x.astype(jnp.float32),
    "order": lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1), jnp.argmax(x, 1), x.max(1)),
    "bools": lambda x: ((x > 0).all(1), (x > 0).any(1), lax.reduce_xor(x, (1,))),
}


def assert_bits_do_not_depend_on_the_chunk(fn: Fn, x: jax.Array) -> None:
    """Each output in chunks of every kind of length is the one-shot's, bit for bit."""
    reference = jax.jit(fn)(x)
    for size in (1, 7) if x.dtype == jnp.float32 else (7,):
        call = call_of(fn, x)
        kinds = ["rows"] * len(jax.tree.leaves(call.result))

        def run(x: jax.Array, size: int = size, kinds: list[str] = kinds) -> Any:
            return run_declared(call_of(fn, x), kinds, Chunks(len(x), size, overlaps=True), remat=False)

        found = compare(reference, jax.jit(run)(x), Bitwise())
        assert found.ok, str(found)


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", FLOATS)
def test_exact_equations_of_floats(case: str, dtype: str, rng: np.random.Generator) -> None:
    parts = [make(rng, (12, 9)) for make in (finite, special, zeros, tied)]
    x = jnp.asarray(np.concatenate(parts)[rng.permutation(48)[:38]]).astype(dtype)
    assert all(is_exact(FLOATS[case], x))
    assert_bits_do_not_depend_on_the_chunk(FLOATS[case], x)


@pytest.mark.parametrize("case", INTEGERS)
def test_exact_equations_of_integers(case: str, rng: np.random.Generator) -> None:
    x = jnp.asarray(np.concatenate([large(rng, (20, 9)), tied(rng, (18, 9))]), jnp.int32)
    assert all(is_exact(INTEGERS[case], x))
    assert_bits_do_not_depend_on_the_chunk(INTEGERS[case], x)


X, Z, K = jnp.ones((4, 3)), jnp.ones((4, 3), jnp.complex64), jnp.ones((4, 3), jnp.int32)


@jax.custom_vjp
def rounded(x: jax.Array) -> jax.Array:
    return lax.round(x)


rounded.defvjp(lambda x: (lax.round(x), None), lambda _, ct: (ct,))


@pytest.mark.parametrize("fn", [rounded, jax.nn.relu, jax.vmap(jnp.sort)])
def test_custom_rules_are_looked_into(fn: Fn) -> None:
    assert is_exact(fn, X) == [True]
    assert is_exact(lambda x: fn(jnp.sin(x)), X) == [False]


@pytest.mark.parametrize(
    ("fn", "arg"),
    [
        (lambda x: x + 1.0, X),
        (lambda x: x * 2.0, X),
        (lambda x: x / 3, X),
        (lambda x: x**2, X),
        (lambda x: x.sum(1), X),
        (lambda x: x.mean(1), X),
        (lambda x: x.max(1), X),  # takes either zero of many
        (lambda x: x.min(1), X),
        (lambda x: jnp.cumsum(x, 1), X),
        (lambda x: lax.rem(x, 2.0), X),
        (jnp.sin, X),
        (jnp.sqrt, X),
        (jax.nn.softmax, X),
        (lambda x: x @ x.T, X),
        (lambda x: x.astype("bfloat16"), X),  # narrower: XLA may keep what was there before
        (lambda x: x.astype("int32"), X),
        (lambda x: lax.reduce_precision(x, 8, 7), X),
        (jnp.abs, Z),  # a root of a sum of squares
        (jnp.sign, Z),
        (lambda z: z * z, Z),
        (lambda z: z.sum(1), Z),
        (lambda i: i // 2, K),
        (lambda i: i / 2, K),
        (lambda i: i.astype("int8"), K),
        (lambda x: lax.cond(x.sum() > 0, jnp.sort, lambda x: -x, x), X),
        (lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, -c[1]), (0, x))[1], X),
        (lambda x: lax.scan(lambda c, r: (c, -r), 0, x)[1], X),
        (lambda x: x.at[0].set(0.0), X),
        (lambda x: jax.random.bits(jax.random.key(0), x.shape), X),
        (lambda x: jnp.sort(jnp.sin(x), 1), X),
        (lambda x: jnp.sin(x) > 0, X),
        (lambda x: jnp.argmax(x @ x.T, 1), X),
        (lambda x: jnp.where(jnp.sin(x) > 0, x, -x), X),
        (lambda x: jax.jit(jnp.sort)(x + 1), X),
        (lambda x: x[:, (x.sum() * 0).astype(int)], X),
    ],
)
def test_all_else_counts_as_inexact(fn: Fn, arg: Any) -> None:
    """An allow-list: what is not on it, and what comes after it, is not promised."""
    assert is_exact(fn, arg) == [False]


def test_each_output_on_its_own() -> None:
    found = exact_outputs(call_of(lambda x: (x[:, ::-1], jnp.sin(x), jnp.argmax(x, 1), (x > 0).sum(1), 3.0), X))
    assert found == [(True, False), (False, False), (True, True), (True, True), (True, False)]
