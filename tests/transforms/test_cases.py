"""Faults that people reported of JAX programs, each as a test of the transform that answers it.

| reported | where | the transform |
|---|---|---|
| a batched update copies its operand for each index | jax issue 23358 | `chunked` |
| rows are dropped, or a size of 0 means "all at once" | jax pull 33965, skrl pull 459, cryojax pull 320 | `chunked` |
| chunks bound the forward pass, and the gradient does not fit | jax pull 19614, exojax pull 604 | `chunked` |
| `x[i] += v` counts a repeated index once | jax issue 9344, QDax issue 2 | `assert_relocation` |
| an argsort differs among ties | numpy issues 27725 and 24064, jax pull 8237 | `assert_relocation` |
| an int64 counter wraps | jax issue 3840, pulls 18379 and 23236 | `assert_relocation` |
| a numpy data set is copied at every step | DESC pull 1051, jax issue 16602 | `vram_resident` |
| slices and scalars outside jit are copies | jax issues 26425 and 16002 | `vram_resident` |
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


# ---------------------------------------------------------------------- chunked


def test_a_batched_update_holds_one_chunk_of_copies() -> None:
    rows, size = 1024, 32
    x, positions = jnp.arange(rows) % 5.0, jnp.arange(rows)

    def replaced(i: jax.Array, x: jax.Array) -> jax.Array:
        return jax.vmap(lambda i: x.at[i].set(7.0).sum())(i)

    f = tx.chunked(lax.map, size=size, in_axes=(0, None), out="rows")(replaced)
    expected = float(x.sum()) - np.asarray(x) + 7  # small integers: exact in any order
    assert np.array_equal(f(positions, x), expected)
    assert temp_bytes(replaced, positions, x) >= rows * rows * 4
    assert temp_bytes(f, positions, x) <= 1.1 * size * rows * 4


@pytest.mark.parametrize(("rows", "n"), [(10, 4), (10, 5), (3, 8), (0, 4), (1, 1), (7, 7)])
def test_no_row_is_lost(rows: int, n: int) -> None:
    f = tx.chunked(lax.map, n, out="rows")(lambda x: x * x)
    found = f(jnp.arange(rows))
    assert found.shape == (rows,)
    assert found.tolist() == [i * i for i in range(rows)]
    by_size = tx.chunked(lax.map, size=n, out=("rows", "sum"))(lambda x: (x * x, x.sum()))
    squares, total = by_size(jnp.arange(rows))
    assert squares.tolist() == [i * i for i in range(rows)]
    assert total == rows * (rows - 1) // 2


@pytest.mark.parametrize("n", [0, -3])
def test_a_size_that_is_none_is_no_way_to_lose_the_bound(n: int) -> None:
    for given in ({"n": n}, {"size": n}):
        with pytest.raises(ValueError, match=f"={n}. Expected an int ≥ 1"):
            tx.chunked(lax.map, **given, out="rows")


def test_the_gradient_fits_too() -> None:
    def total(x: jax.Array) -> jax.Array:
        h = x
        for _ in range(8):
            h = jnp.tanh(h * 1.1 + jnp.sin(h))
        return h.sum()

    x = jax.random.normal(jax.random.key(0), (128, 512))
    f, kept = (tx.chunked(lax.map, size=8, out="sum", remat=remat)(total) for remat in (True, False))
    for streamed in (f, tx.chunked(lax.map, size=8)(total)):
        plain, found = (np.asarray(jax.jit(jax.grad(one))(x)) for one in (total, streamed))
        assert np.abs(plain - found).max() <= 1e-6 * np.abs(plain).max()
        assert temp_bytes(jax.grad(streamed), x) <= temp_bytes(streamed, x) + 4 * 8 * 512 * 4  # a few chunks more
    assert temp_bytes(jax.grad(kept), x) > 8 * temp_bytes(jax.grad(f), x)


# ---------------------------------------------------------------------- assert_relocation


def counted_in_numpy(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[index] += 1
    return x


def counted(x: Any, index: Any) -> jax.Array:
    return jnp.asarray(x).at[jnp.asarray(index)].add(1)


def test_a_repeated_index() -> None:
    x = np.zeros(4, np.int32)
    f = tx.assert_relocation(counted_in_numpy, calls="always")(counted)
    assert f(x, np.array([0, 3, 1])).tolist() == [1, 1, 0, 1]
    with pytest.raises(tx.RelocationError, match=r"1 of 4 differ, worst at \[1\]: numpy 1, relocated 2"):
        f(x, np.array([0, 1, 1, 2]))

    def added_at(x: np.ndarray, index: np.ndarray) -> np.ndarray:
        x = x.copy()
        np.add.at(x, index, 1)
        return x

    assert tx.assert_relocation(added_at)(counted)(x, np.array([0, 1, 1, 2])).tolist() == [1, 2, 1, 0]


def test_ties_in_an_argsort() -> None:
    values = np.random.default_rng(0).integers(0, 50, 1000).astype(np.float32)
    last_first = lambda a: np.lexsort((-np.arange(a.size), a)).astype(np.int32)  # noqa: E731  # as right as stable
    port = jnp.argsort
    with pytest.raises(tx.RelocationError, match="equal up to ties: both pick the same values of a") as caught:
        tx.assert_relocation(last_first)(port)(values)
    assert 'kind="stable"' in str(caught.value)
    stable = tx.assert_relocation(lambda a: np.argsort(a, kind="stable").astype(np.int32))(port)
    assert np.array_equal(stable(values), np.argsort(values, kind="stable"))


def test_a_counter_that_wraps() -> None:
    tokens = np.array([2_000_000_000, 1_000_000_000])
    port = jax.jit(lambda t: t.sum())
    assert port(tokens) == -1_294_967_296
    with pytest.raises(tx.RelocationError) as caught:
        tx.assert_relocation(lambda t: t.sum())(port)(tokens)
    message = str(caught.value)
    assert "dtype int64 → int32, and the reference has values from 3000000000 to 3000000000" in message
    assert message.index("dtype") < message.index("relocated -1294967296")
    with pytest.raises(OverflowError, match="4294967303"):
        tx.vram_resident(lambda t: t.sum())(np.array([2**32 + 7]))


# ---------------------------------------------------------------------- vram_resident


def test_a_data_set_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_copied: list[int] = []
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda x, *rest: (bytes_copied.append(x.nbytes), put(x, *rest))[1])
    data = {"x": np.ones(1_000_000, np.float32), "scale": 2.0}
    loss = tx.vram_resident(lambda data: (data["x"] * data["scale"]).sum())
    assert loss(data) == 2_000_000
    assert sorted(bytes_copied) == [4, 4_000_000]
    with jax.transfer_guard_host_to_device("disallow"):
        for _ in range(9):
            loss(data)
    assert sorted(bytes_copied) == [4, 4_000_000]
    assert [(entry.name, entry.nbytes) for entry in loss.resident()] == [("data['x']", 4_000_000)]


@pytest.mark.parametrize(
    "operation",
    [
        lambda a: a[1:, :10],
        lambda a: a[3],
        lambda a: a + 1.0,
        lambda a: jnp.zeros(()) + a.sum(),
        lambda a: jnp.where(a > 0, a, 0.0),
    ],
)
def test_operations_that_copy_outside_jit_do_not_inside(operation: Any) -> None:
    a = jnp.ones((10, 20))
    operation(a)
    with jax.transfer_guard_host_to_device("disallow"), pytest.raises(Exception, match="Disallowed host-to-device"):
        operation(a)
    f = tx.vram_resident(operation)
    f(a)
    with jax.transfer_guard_host_to_device("disallow"):
        f(a)
