"""`chunked(budget=)`: the chunk that is taken is the largest whose compiled program fits."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.program.chunks import sizes
from erythroxy_tx.transforms import chunked as module
from erythroxy_tx.units import parse_bytes

X = jnp.ones((60, 24))


def wide(x: jax.Array) -> jax.Array:
    """Takes 24 × 24 floats for each row on the way."""
    return jnp.sort(x[:, :, None] * x[:, None, :], axis=1).max((1, 2))


def total_bytes(fn: Any, *args: Any) -> int:
    found = fn.lower(*args).compile().memory_analysis()
    parts = found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes
    return sum(parts) - found.alias_size_in_bytes


def with_size(size: int, out: Any = "rows") -> Any:
    return tx.chunked(lax.map, size=size, out=out)(wide)


@pytest.mark.parametrize("budget", ["40KiB", "100KiB", 61_000])
def test_the_largest_that_fits(budget: Any) -> None:
    f = tx.chunked(lax.map, budget=budget, out="rows")(wide)
    limit, plan = parse_bytes(budget, "budget"), f.chunks(X)
    assert plan.total_bytes == total_bytes(f, X) == total_bytes(with_size(plan.size), X)
    assert plan.total_bytes <= limit
    candidates = sizes(60)
    larger = candidates[candidates.index(plan.size) - 1]
    assert total_bytes(with_size(larger), X) > limit
    assert "the compiled program takes" in str(plan)


def test_one_chunk_where_everything_fits() -> None:
    f = tx.chunked(lax.map, budget="1GiB", out="rows")(wide)
    assert f.chunks(X).one
    assert f.chunks(X).total_bytes == total_bytes(jax.jit(wide), X)


def test_one_row_that_does_not_fit() -> None:
    f = tx.chunked(lax.map, budget="6KiB", out="rows")(wide)
    with pytest.raises(tx.BudgetError) as caught:
        f(X)
    needed = total_bytes(with_size(1), X)
    for part in (
        "tx.chunked(wide)",
        "budget=6.0 KiB",
        "chunks of one row take",
        "argument",
        f"at least {needed} bytes",
    ):
        assert part in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    assert tx.chunked(lax.map, budget=needed, out="rows")(wide).chunks(X).size == 1
    with pytest.raises(tx.BudgetError):
        tx.chunked(lax.map, budget=needed - 1, out="rows")(wide).chunks(X)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of the searches that were made. Each finds seven rows, and compiles nothing."""
    made: list[str] = []

    def noted(sizes: Any, bytes_of: Any, budget: int, label: str) -> tuple[int, int]:
        made.append(label)
        return 7, budget

    monkeypatch.setattr(module, "largest_fitting", noted)
    return made


def test_the_search_is_made_once_for_each_shape(searches: list[str]) -> None:
    def own(x: jax.Array, scale: float = 1.0) -> jax.Array:
        return wide(x) * scale

    f = tx.chunked(lax.map, budget="40KiB", out="rows")(own)
    assert f(X).shape == (60,)
    f.chunks(X)
    f(X + 1)
    tx.chunked(lax.map, budget="40KiB", out="rows")(own).chunks(X)
    assert len(searches) == 1
    f.chunks(X, scale=2.0)
    f.chunks(X, scale=3.0)
    assert len(searches) == 2
    f.chunks(X[:50])
    f.chunks(X.astype(jnp.bfloat16))
    tx.chunked(lax.map, budget="1MiB", out="rows")(own).chunks(X)
    assert len(searches) == 5
    tx.clear()
    f.chunks(X[:50])
    assert len(searches) == 6


def test_the_remainder_counts() -> None:
    """A sum runs a second program for what is left over: it is in the bytes."""
    f = tx.chunked(lax.map, budget="80KiB", out="sum")(lambda x: wide(x).sum())
    plan = f.chunks(X[:59])
    assert plan.remainder
    assert plan.total_bytes == total_bytes(f, X[:59]) <= 80 * 1024


def test_inside_other_transforms() -> None:
    """The function may close over tracers while the search compiles on its own."""
    x = X[:, :4]

    def scaled(by: jax.Array) -> jax.Array:
        return tx.chunked(lax.map, budget="3KiB", out="sum")(lambda x: (wide(x) * by).sum())(x)

    assert jax.grad(scaled)(2.0) == 60
    assert jax.jit(scaled)(2.0) == 120
    assert jax.jit(jax.vmap(jax.grad(scaled)))(jnp.arange(3.0)).tolist() == [60] * 3


def test_values_are_those_of_the_chunks() -> None:
    x = jnp.arange(60.0 * 24).reshape(60, 24) % 7
    f = tx.chunked(lax.map, budget="40KiB", out="rows")(wide)
    assert f.chunks(x).count > 1
    assert f(x).tolist() == wide(x).tolist()
