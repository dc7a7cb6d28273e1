"""The loop itself: slices in, rows written in place, folds; and the same loop backwards."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from erythroxy_tx.program.chunks import Chunks
from erythroxy_tx.program.folds import SUM
from erythroxy_tx.program.loop import Rows
from erythroxy_tx.program.loop import hoisted
from erythroxy_tx.program.loop import run
from erythroxy_tx.program.loop import run_remat

BOTH = pytest.mark.parametrize("runner", [run, run_remat])


def integers(rng: np.random.Generator, *shape: int) -> jax.Array:
    """Floats that are integers: sums are exact in any order."""
    return jnp.asarray(rng.integers(-9, 9, shape), jnp.float32)


@BOTH
@pytest.mark.parametrize("chunks", [Chunks(8, 4), Chunks(9, 4), Chunks(9, 8), Chunks(5, 1)])
def test_rows_and_folds(runner: Any, chunks: Chunks, rng: np.random.Generator) -> None:
    x, y, w = integers(rng, chunks.rows, 3), integers(rng, 2, chunks.rows), integers(rng, 3)

    def fn(rows: Sequence[Any], shared: Sequence[Any]) -> list[Any]:
        a, b = rows
        return [a * shared[0], b * 2, a.sum(0), (a.sum() + b.sum())[None]]

    outs = runner(fn, [x, y], [w], [Rows(0), Rows(1)], [Rows(0), Rows(1), SUM, Rows(each=True)], chunks)
    assert np.array_equal(outs[0], x * w)
    assert np.array_equal(outs[1], y * 2)
    assert np.array_equal(outs[2], x.sum(0))
    cuts = [slice(i, i + chunks.size) for i in range(0, chunks.rows, chunks.size)]
    assert np.array_equal(outs[3], [x[c].sum() + y[:, c].sum() for c in cuts])


@BOTH
def test_overlapping_rows(runner: Any, rng: np.random.Generator) -> None:
    x = integers(rng, 11, 2)
    fn = lambda rows, shared: [rows[0] * 3]  # noqa: E731
    found = runner(fn, [x], [], [Rows()], [Rows()], Chunks(11, 4, overlaps=True))
    assert np.array_equal(found[0], x * 3)


def test_entries_of_one_a_chunk_come_in_again(rng: np.random.Generator) -> None:
    x, each = integers(rng, 9, 2), integers(rng, 3)
    fn = lambda rows, shared: [rows[0] * rows[1]]  # noqa: E731
    found = run(fn, [x, each], [], [Rows(), Rows(each=True)], [Rows()], Chunks(9, 4))
    assert np.array_equal(found[0], x * jnp.repeat(each, jnp.array([4, 4, 1]))[:, None])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8", "complex64"])
def test_sums_are_wide_inside_and_rounded_once(dtype: str) -> None:
    x = jnp.full((600, 1), 1, dtype)
    fn = lambda rows, shared: [rows[0].sum(0, dtype=dtype)]  # noqa: E731
    found = run(fn, [x], [], [Rows()], [SUM], Chunks(600, 1))[0]
    assert found.dtype == dtype
    assert complex(found[0]) == (600 if dtype != "int8" else 600 - 2 * 256 - 0)  # bf16 alone would stall at 256


def test_backward_keeps_only_what_is_asked(rng: np.random.Generator) -> None:
    x, w = integers(rng, 9, 3), integers(rng, 3)
    fn = lambda rows, shared: [rows[0] * shared[0], (rows[0] ** 2 * shared[0]).sum(0)]  # noqa: E731

    def number(x: jax.Array, w: jax.Array) -> jax.Array:
        outs = run_remat(fn, [x], [w], [Rows()], [Rows(), SUM], Chunks(9, 4))
        return (outs[0] ** 2).sum() + (outs[1] * jnp.arange(3.0)).sum()

    def plain(x: jax.Array, w: jax.Array) -> jax.Array:
        return ((x * w) ** 2).sum() + ((x**2 * w).sum(0) * jnp.arange(3.0)).sum()

    for argnums in (0, 1, (0, 1)):
        for one, other in zip(
            jax.tree.leaves(jax.grad(plain, argnums)(x, w)),
            jax.tree.leaves(jax.grad(number, argnums)(x, w)),
            strict=True,
        ):
            assert np.array_equal(one, other)
    only_w = str(jax.make_jaxpr(jax.grad(number, 1))(x, w))
    both = str(jax.make_jaxpr(jax.grad(number, (0, 1)))(x, w))
    assert only_w.count("dynamic_update_slice") < both.count("dynamic_update_slice")


def test_hoisted_functions_close_over_no_tracer() -> None:
    def outer(scale: jax.Array, shift: jax.Array) -> jax.Array:
        def fn(rows: Sequence[Any], shared: Sequence[Any]) -> list[Any]:
            return [rows[0] * scale + shift + shared[0] + constant + scale, 2.0]

        rows = [jax.ShapeDtypeStruct((4,), "float32")], [jax.ShapeDtypeStruct((1,), "float32")]
        made, types, tracers = hoisted(fn, rows, [jax.ShapeDtypeStruct((), "float32")])
        assert [[t.shape for t in one] for one in types] == [[(4,), ()], [(1,), ()]]
        assert sorted(map(id, tracers)) == sorted(map(id, (scale, shift)))  # each once
        zero = [jnp.zeros(())]
        moved = made([jnp.ones(4)], zero + [2 * t for t in tracers])
        assert all(isinstance(value, jax.Array) for value in moved)
        return moved[0] - made([jnp.ones(4)], zero + tracers)[0]

    constant = jnp.float32(7)
    assert jax.jit(outer)(jnp.float32(3), jnp.float32(5)).tolist() == [11.0] * 4


def test_nothing_of_all_rows_is_made_but_the_outputs() -> None:
    x = jnp.ones((4096, 8))
    fn = lambda rows, shared: [jnp.sort(rows[0][:, :, None] * rows[0][:, None], 1).max((1, 2)), rows[0].sum(0)]  # noqa: E731
    compiled = jax.jit(lambda x: run(fn, [x], [], [Rows()], [Rows(), SUM], Chunks(4096, 16))).lower(x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 6 * 16 * 8 * 8 * 4
    assert "concatenate" not in compiled.as_text()
