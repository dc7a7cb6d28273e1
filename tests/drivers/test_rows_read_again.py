"""Streams whose chunks need rows of what other chunks computed, or rows at a place that is computed on the way."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from rows_of import close
from rows_of import data

import erythroxy_tx as tx

SIZE = 16


def moving(x: Any, y: Any) -> Any:
    """A result that is read as well as given, and one that is not."""
    total = jnp.cumsum(x, 0)
    return total, (jnp.cumsum(y)[5:] - jnp.cumsum(y)[:-5]) / 5, total[5:] - total[:-5]


def lagged(x: Any, y: Any) -> Any:
    """What a scan gave, beside itself a row later; of few bits."""
    c, level = lax.scan(lambda c, r: (c / 2 + r, c), 0.0, y, reverse=True)
    return (level[1:] * level[:-1]).sum() + c, jnp.diff((jnp.cumsum(y) > 0).astype(jnp.bfloat16))


def thrice(x: Any, y: Any) -> Any:
    return jnp.diff(jnp.cumsum(jnp.diff(jnp.cumsum(y)))), jnp.cumsum(x, 0) / jnp.cumsum(x, 0)[-1]


def picked(x: Any, y: Any) -> Any:
    """Each place follows from what was read at the one before it."""
    first = x[jnp.argmax(y)]
    second = x[jnp.argmax(first) * 7]
    return (
        first,
        second,
        x[jnp.argmin(second - first)],
        (x - first).sum(0),
        lax.dynamic_slice_in_dim(y, 3 + y.argmin() // 9, 4),
    )


def minibatches(x: Any, y: Any) -> Any:
    def body(i: Any, w: Any) -> Any:
        some, its = (lax.dynamic_slice_in_dim(v, (i * 8) % 24, 8) for v in (x, y))
        return w - 0.1 * some.T @ (some @ w - its)

    return lax.fori_loop(0, 9, body, jnp.zeros(3))


FUNCTIONS = [moving, lagged, thrice, picked, minibatches]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_the_same_as_one_shot(fn: Any) -> None:
    streamed = tx.chunked(tx.stream(), size=SIZE)(fn)
    close(streamed(*data(40)), jax.jit(fn)(*data(40)))
    with tx.compiles() as seen:
        got = streamed(*data(65))
    assert not [event for event in seen.events if event.stage == "compile"]
    close(got, jax.jit(fn)(*data(65)))
    assert "40 rows" in str(tx.explain(streamed, *data(40)))


def placed(x: Any, y: Any) -> Any:
    """Rows at places that are known: set, added to, in a mask; one and many, of all columns and of one."""
    first, masked = x.at[0].set(7.0), x.sum(0, where=(x > 0).at[17].set(True))
    last = y.at[-2:].add(9.0), x.at[-1].mul(3.0)
    return first, first.sum(0), last, masked, x.at[20, 1].max(3.0), x.at[3:7, 2].min(0.0), x.T.at[1, 4].set(1.0)


@pytest.mark.parametrize("driver", [tx.stream(), lax.map])
def test_rows_at_places_that_are_known(driver: Any) -> None:
    close(tx.chunked(driver, size=SIZE)(placed)(*data(40)), jax.jit(placed)(*data(40)))


def turned(x: Any, y: Any) -> Any:
    """Every so many rows, from either end, of what was read and of what was computed."""
    back = jnp.cumsum(y[::-1])[::-1]
    columns = x[:, ::-1], x.T[:, ::3], jnp.flip(x, 0)[1::2], x[5::-2]
    return back, x[::2].sum(0), jnp.tanh(x)[::-1], y[1::3] * 2, columns, jnp.split(x, [1], axis=1), x[-3::-7]


@pytest.mark.parametrize("n", [17, 40, 65])
@pytest.mark.parametrize("driver", [tx.stream(), lax.map])
def test_rows_at_even_distances(driver: Any, n: int) -> None:
    close(tx.chunked(driver, size=SIZE)(turned)(*data(n)), jax.jit(turned)(*data(n)))


def returned(w: Any, x: Any, y: Any) -> Any:
    """Discounted returns, from the end on, of what is learned."""
    reward = (jnp.tanh(x @ w) * y)[::-1]
    total, each = lax.scan(lambda c, r: (0.9 * c + r,) * 2, 0.0, reward)
    return (each[::-1] * y).mean() + total


@pytest.mark.parametrize("driver", [tx.stream(), lax.map])
def test_the_gradient_of_what_is_turned(driver: Any) -> None:
    turned = tx.chunked(driver, size=SIZE, in_axes=(None, 0, 0))(returned)
    close(jax.value_and_grad(turned)(jnp.ones(3), *data(40)), jax.value_and_grad(returned)(jnp.ones(3), *data(40)))


def test_a_gradient() -> None:
    def loss(w: Any, x: Any) -> Any:
        total = jnp.cumsum(x @ w)
        return ((total[3:] - total[:-3]) ** 2).mean()

    streamed = tx.chunked(tx.stream(), size=SIZE, in_axes=(None, 0))(loss)
    x = data(40)[0]
    close(jax.value_and_grad(streamed)(jnp.ones(3), x), jax.value_and_grad(loss)(jnp.ones(3), x))


def test_a_minibatch_reads_no_more_than_its_rows() -> None:
    reads: list[int] = []

    class Rows:
        def __init__(self, rows: np.ndarray):
            self.rows = rows

        def __len__(self) -> int:
            return len(self.rows)

        def read(self, start: int, stop: int) -> np.ndarray:
            reads.append(stop - start)
            return self.rows[start:stop]

    x, y = data(40)
    tx.chunked(tx.stream(), size=SIZE)(minibatches)(Rows(x), y)
    assert reads == [1, *[8] * 9]


def test_results_are_written_to_files_and_read_again(tmp_path: Any) -> None:
    x, y = data(40)
    streamed = tx.chunked(tx.stream(out=(tmp_path / "total.npy", None, None)), size=SIZE)(moving)
    close(streamed(x, y), moving(x, y))
    assert [path.name for path in tmp_path.iterdir()] == ["total.npy"]


def test_random_keys_are_no_result() -> None:
    streamed = tx.chunked(tx.stream(), size=SIZE)(lambda x: jax.random.split(jax.random.key(0), x.shape[0]))
    with pytest.raises(TypeError, match=r"gives key<fry>\[n\], random keys.*Fix: jax\.random\.key_data"):
        streamed(data(40)[0])
