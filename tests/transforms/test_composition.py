"""What transforms do together, and what a call leaves behind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx

X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)


def doubled_in_chunks(**size):
    return tx.chunked(lax.map, out="rows", **size)(lambda x: x * 2)


def test_the_outermost_transform_offers_what_is_inside() -> None:
    f = tx.assert_relocation(lambda x: x * 2)(tx.vram_resident(doubled_in_chunks(n=4)))
    f(X)
    assert f.chunks(X).count == 4
    assert [entry.name for entry in f.resident()] == ["x"]
    f.evict()
    assert X.flags.writeable
    with pytest.raises(AttributeError, match="'nothing_such'"):
        _ = f.nothing_such


def test_a_guard_inside_a_compiled_function_is_refused() -> None:
    with pytest.raises(tx.TransformOrderError, match=r"tx\.assert_relocation on the outside"):
        tx.vram_resident(tx.assert_relocation(np.sin)(jnp.sin))


@pytest.mark.parametrize("size", [{"size": 100}, {"n": 1}, {"budget": "1GiB"}])
def test_a_sample_compares_the_declaration(size: dict) -> None:
    """The sample would fit one chunk, in which a wrong declaration does not show."""
    centred = lambda x: x - x.mean(0)  # noqa: E731
    wrong = tx.chunked(lax.map, out="rows", **size)(centred)
    with pytest.raises(tx.RelocationError, match="on 50 of 200 rows"):
        tx.assert_relocation(centred, sample=50)(wrong)(X)
    tx.assert_relocation(lambda x: x * 2, sample=50)(doubled_in_chunks(**size))(X)


def test_a_reference_with_other_arguments_is_told_as_such() -> None:
    with pytest.raises(TypeError, match=r"reference .* cannot be called as the function was: too many"):
        tx.assert_relocation(lambda x: x)(lambda x, y: x + y)(1.0, 2.0)


def test_a_call_that_fails_keeps_nothing() -> None:
    x = np.ones(4, np.float32)
    f = tx.vram_resident(lambda x: x.nothing_such)
    with pytest.raises(AttributeError):
        f(x)
    assert not f.resident()
    x[0] = 2.0


def test_a_captured_array_is_held() -> None:
    a = np.float32([2.0])
    f = tx.vram_resident(lambda x: x * a)
    assert f(X[0]).shape == (3,)
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 3.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_captured_array_that_changes_is_never_served_stale(dtype: type) -> None:
    base = np.arange(6, dtype=dtype).reshape(2, 3)
    row = base[0]
    f = tx.vram_resident(lambda x: x * row)
    x = jnp.ones(3)
    assert f(x).tolist() == [0, 1, 2]
    base[0] = 7
    with pytest.raises(tx.StaleArrayError, match=r"captures row: f(32|64)\[3\].*tx\.clear\(\)"):
        f(x)
    tx.clear()
    assert f(x).tolist() == [7, 7, 7]


def test_a_number_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(OverflowError, match=rf"got step={2**40}.*int32"):
        tx.vram_resident(lambda step: step)(2**40)


def test_sums_of_many_chunks_are_as_accurate_as_promised() -> None:
    x = jnp.full(200_000, 0.1)
    exact = np.asarray(x, np.float64).sum()
    for size in (1, 256):
        f = tx.chunked(lax.map, size=size, out="sum")(lambda x: x.sum())
        own = abs(float(jax.jit(lambda x: x.sum())(x)) - exact)
        slack = 16 * np.finfo(np.float32).eps * exact
        assert abs(float(f(x)) - exact) <= 4 * own + slack
