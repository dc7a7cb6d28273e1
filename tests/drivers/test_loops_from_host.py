"""Loops and branches that reduce over all rows in each turn, as streams: the same as one-shot, or a clear error."""

import functools
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


def epochs(x: Any, y: Any) -> Any:
    """A number of turns that is known."""
    return lax.fori_loop(0, 7, lambda i, w: w - x.T @ (x @ w - y) / (i + 2) / x.shape[0], jnp.zeros(3))


def schedule(x: Any, y: Any) -> Any:
    """A step size and a loss for each turn, on rows that are standardised before, and from the last to the first."""
    z = (x - x.mean(0)) / x.std(0)

    def body(w: Any, rate: Any) -> Any:
        off = jnp.tanh(z @ w) - y
        return w - rate * z.T @ off / x.shape[0], ((off**2).mean(), rate)

    w, history = lax.scan(body, jnp.ones(3) / 3, jnp.linspace(0.1, 1, 5))
    return w, history, z @ w, lax.scan(body, w, jnp.linspace(0.1, 1, 3), reverse=True)


def converged(x: Any, y: Any) -> Any:
    """Until the gradient, which is added up for that, is small."""

    def gradient(w: Any) -> Any:
        return x.T @ (x @ w - y) / x.shape[0]

    return lax.while_loop(
        lambda s: (jnp.abs(gradient(s[0])).max() > 1e-3) & (s[1] < 50),
        lambda s: (s[0] - 0.3 * gradient(s[0]), s[1] + 1),
        (jnp.zeros(3), 0),
    )


def batch(x: Any, y: Any) -> Any:
    """A loop for each of some numbers, each as long as it takes."""

    def root(k: Any) -> Any:
        return lax.while_loop(lambda t: (x[:, 0] > t).sum() > k, lambda t: t + 0.25, -2.0)

    return jax.vmap(root)(jnp.asarray([1, 5, 100]))


def branches(x: Any, y: Any) -> Any:
    def of(sign: float) -> Any:
        return lax.cond(sign * x.sum() > 0, lambda: (x * y[:, None]).sum(0), lambda: x.max(0) + sign)

    return of(1.0), of(-1.0), lax.switch(5, [lambda: x.sum(0), lambda: x.max(0), lambda: jnp.zeros(3)])


def nested(x: Any, y: Any) -> Any:
    def inner(w: Any, _: Any) -> Any:
        w = lax.fori_loop(0, 3, lambda i, w: w - 0.1 * x.T @ (x @ w - y) / x.shape[0], w)
        return lax.cond(w.sum() > 0, lambda w: w + jnp.cumsum(x, 0).mean(0), lambda w: w - x.min(0) / 9, w), w

    return lax.scan(inner, jnp.zeros(3), None, 3)


def around(x: Any, y: Any) -> Any:
    """Passes before and after, and no turn at all."""
    w = lax.fori_loop(0, 3, lambda i, w: w / 2 + x.mean(0), x.max(0))
    none = lax.scan(lambda w, r: (w + r * x.sum(0), w), w, jnp.zeros((0, 3)))
    return ((x @ w - y) ** 2).mean(), none, (x @ w)[::1]


FUNCTIONS = [epochs, schedule, converged, batch, branches, nested, around]


@functools.cache
def streamed(fn: Any) -> Any:
    return tx.chunked(tx.stream(), size=SIZE)(fn)


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("n", [7, 40])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_the_same_as_one_shot(fn: Any, n: int) -> None:
    close(streamed(fn)(*data(n)), jax.jit(fn)(*data(n)))


@pytest.mark.parametrize("fn", [epochs, schedule, converged])
def test_another_length_compiles_nothing(fn: Any) -> None:
    streamed(fn)(*data(40))
    with tx.compiles() as seen:
        streamed(fn)(*data(65))
    assert not [event for event in seen.events if event.stage == "compile"]


def test_each_turn_reads_the_rows() -> None:
    reads: list[int] = []

    class Rows:
        def __init__(self, rows: np.ndarray):
            self.rows = rows

        def __len__(self) -> int:
            return len(self.rows)

        def read(self, start: int, stop: int) -> np.ndarray:
            reads.append(stop - start)
            return self.rows[start:stop]

    x, y = data(4 * SIZE)
    close(streamed(epochs)(Rows(x), y), epochs(x, y))
    assert sum(reads) == 7 * len(x) + 1  # one to see what they are


def learned(rates: Any, x: Any, y: Any) -> Any:
    """A loss after some steps: differentiated, each step is computed again."""

    @jax.checkpoint
    def step(w: Any, rate: Any, x: Any, y: Any) -> Any:
        return w - rate * jax.grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w)

    w, _ = lax.scan(lambda w, rate: (step(w, rate, x, y), None), jnp.ones(3) / 3, rates)
    return ((jnp.tanh(x @ w) - y) ** 2).mean()


def linear(w: Any, x: Any, y: Any) -> Any:
    """Nothing with rows has to be kept for the way back."""
    w = lax.fori_loop(0, 4, lambda i, w: w - 0.2 * x.T @ (x @ w - y) / x.shape[0], w[:3])
    return ((x @ w - y) ** 2).mean()


@pytest.mark.parametrize("fn", [learned, linear])
def test_gradients(fn: Any) -> None:
    rates = jnp.linspace(0.1, 0.5, 4)
    streamed = tx.chunked(tx.stream(), size=SIZE, in_axes=(None, 0, 0))(fn)
    close(jax.value_and_grad(streamed)(rates, *data(40)), jax.value_and_grad(fn)(rates, *data(40)))


def test_a_gradient_that_would_keep_rows_of_each_turn_says_what_to_do() -> None:
    def loss(w: Any, x: Any, y: Any) -> Any:
        def step(w: Any, _: Any) -> Any:
            return w - jax.grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w), None

        return ((x @ lax.scan(step, w, None, 3)[0] - y) ** 2).mean()

    streamed = tx.chunked(tx.stream(), size=SIZE, in_axes=(None, 0, 0))(loss)
    with pytest.raises(tx.RowMixingError, match=r"results have rows.*Fix: jax\.checkpoint around the body"):
        jax.grad(streamed)(jnp.ones(3), *data(40))


def test_a_carry_that_has_rows_is_refused() -> None:
    def f(x: Any, y: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, r: r - x @ (x.T @ r) / 99, y)

    with pytest.raises(tx.RowMixingError, match=r"whose carry or results have rows.*lax\.map"):
        streamed(f)(*data(40))


def test_it_is_told() -> None:
    told = str(tx.explain(streamed(nested), *data(40)))
    assert "again in each turn of a loop" in told
    assert "a loop, each turn of which is: scan → f32[3], f32[3,3]" in told
    assert "1 loop over the rows" in told
