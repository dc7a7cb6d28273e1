"""Faults that people reported of JAX programs that run over rows, each as a test of `chunked` with nothing declared.

| reported | where |
|---|---|
| a gather of rows and a window of each copies whole rows | jax issue 14808 |
| a function gives other bits by batch size | jax issues 31919, 38768 and 27591 |
| rows are dropped, or a shorter last batch is | jax pull 33965, skrl pull 459, cryojax pull 320 |
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx


def temp_bytes(fn: Any, *args: Any) -> int:
    return jax.jit(fn).lower(*args).compile().memory_analysis().temp_size_in_bytes


def test_windows_of_gathered_rows_hold_one_chunk_of_them(rng: np.random.Generator) -> None:
    pixels, width, size = 1024, 2048, 32
    table = jnp.asarray(rng.integers(-4, 5, (64, width)), jnp.float32)
    rows, starts = jnp.asarray(rng.integers(0, 64, pixels)), jnp.asarray(rng.integers(0, width - 3, pixels))

    def window(table, row, start):
        return lax.dynamic_slice(jnp.cumsum(table[row]), (start,), (3,)) @ jnp.array([1.0, 2.0, 4.0])

    one_shot = jax.vmap(window, (None, 0, 0))
    streamed = tx.chunked(lax.map, size=size, in_axes=(None, 0, 0))(one_shot)
    assert np.array_equal(streamed(table, rows, starts), jax.jit(one_shot)(table, rows, starts))  # small integers
    assert temp_bytes(one_shot, table, rows, starts) >= pixels * width * 4
    assert temp_bytes(streamed, table, rows, starts) <= 1.1 * 2 * size * width * 4  # the rows, and their running sums


def test_no_bits_are_promised_where_sums_take_another_order(rng: np.random.Generator) -> None:
    def fn(x):
        return jnp.exp(jnp.sin(x)).sum(1), x[:, ::-1], (x > 0).sum(0), jnp.sort(x, 0)

    x = rng.normal(size=(96, 64)).astype(np.float32)
    streamed = tx.chunked(lax.map, size=5)(fn)
    summed, *exact = tx.contract(streamed, x)
    assert summed == tx.AsAccurate(4)
    assert exact == [tx.Bitwise()] * 3
    for ours, one_shot in zip(streamed(x)[1:], jax.jit(fn)(x)[1:], strict=True):
        assert np.array_equal(ours, one_shot)


@pytest.mark.parametrize(("rows", "n"), [(10, 4), (10, 5), (3, 8), (0, 4), (1, 1), (7, 7)])
def test_no_row_is_lost(rows: int, n: int) -> None:
    by_count = tx.chunked(lax.map, n)(lambda x: (x * x, x.sum(), jnp.cumsum(x)))
    by_size = tx.chunked(lax.map, size=n)(lambda x: (x * x, x.sum(), jnp.cumsum(x)))
    for streamed in (by_count, by_size):
        squares, total, running = streamed(jnp.arange(rows))
        assert squares.tolist() == [i * i for i in range(rows)]
        assert total == rows * (rows - 1) // 2
        assert running.tolist() == np.cumsum(np.arange(rows)).tolist()
