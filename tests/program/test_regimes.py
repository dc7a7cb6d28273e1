"""Which numbers of rows share a program: where a function asks, decides and raises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.transforms.pad_static import PadStatic

X = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)


def check(fn, most: int = 16, lengths=range(1, 17)) -> PadStatic:
    """Hold a function to what it gives without padding; where it raises, it is refused."""
    padded = tx.pad_static(most)(fn)
    for n in lengths:
        try:
            want = jax.jit(fn)(X[:n])
        except TypeError:
            with pytest.raises((TypeError, tx.LengthError)):
                padded(X[:n])
            continue
        for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(padded(X[:n])), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    return padded


def programs(padded: PadStatic, *args) -> list:
    """The numbers of rows of each program that it has."""
    masked, _ = padded._masked(padded._call(args, {}))
    return [one.rows for one in masked.runs]


def nested(x):
    n = x.shape[0]
    try:
        jnp.reshape(x[:, 0], (-1, 2))
    except TypeError:
        return x * 2 if n % 3 == 0 else x * 3
    return x * 2


def by_polynomial(x):
    n = x.shape[0]
    return x * (n if n > 5 else n + n * (n - 5))


def raising(x):
    try:
        x[:, 0].reshape(x.shape[0] // 2, 2)
    except TypeError:
        return x[::-1]
    return x


DECISIONS = {
    "one": lambda x: x.sum(0) if x.shape[0] == 1 else x.max(0),
    "parity": lambda x: x.sum(0) * (2 if x.shape[0] % 2 else 3),
    "thresholds": lambda x: x[:3] .sum(0) if x.shape[0] > 3 else x[0] if x.shape[0] > 1 else x.max(0),
    "a few": lambda x: x * (2 if x.shape[0] in (3, 7) else 3),
    "nested": nested,
    "a polynomial": by_polynomial,
    "shapes that are equal": lambda x: x + 1 if jnp.array_equal(x, jnp.zeros((4, 3))) else x,
    "what raises": raising,
    "the shape of another": lambda x: x @ x.T if x.shape[0] == x.shape[1] else x @ x.T * 2,
    "even alone": lambda x: x[:, 0].reshape(x.shape[0] // 2, 2).sum(0),
    "with a product": lambda x: x.sum(0) if x.shape[0] * (x.shape[0] - 3) > 20 else x.max(0),
}  # fmt: skip


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("name", [name for name in DECISIONS if name != "shapes that are equal"])
def test_decisions(name: str) -> None:
    check(DECISIONS[name])


def test_one_program_serves_where_jax_alone_asks() -> None:
    assert programs(check(lambda x: jax.nn.softmax(x @ x.T) @ x), X) == [(16,)]
    assert programs(check(lambda x: (x - x.mean(0)) / (x.std(0) + 1)), X) == [(16,)]
    assert programs(check(lambda x: jnp.broadcast_to(x.sum(1)[:, None], x.shape)), X) == [(16,)]


def test_a_program_that_is_opened_late_asks_in_time() -> None:
    padded = tx.pad_static(8)(lambda x: jnp.nonzero(x[:, 0] > 0, size=3, fill_value=-3)[0])
    for n in range(9):
        np.testing.assert_array_equal(padded(X[:n]), jnp.nonzero(X[:n, 0] > 0, size=3, fill_value=-3)[0])


class Named:
    """A function that is told apart by nothing that it says."""

    def __init__(self, factor: float):
        self.factor = factor

    def __repr__(self) -> str:
        return "Named()"

    def __call__(self, a, b):
        return a * b + a + b * self.factor


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.at[jnp.array([0])].apply(jnp.exp if x.shape[0] > 5 else jnp.sin),
        lambda x: lax.reduce_window(x, np.float32(0), Named(1.0 if x.shape[0] > 5 else 3.0), (1, 2), (1, 1), "VALID"),
        lambda x: lax.reduce(x, np.float32(0), Named(1.0 if x.shape[0] > 5 else 3.0), (1,)),
        lambda x: x.sum(0) * jnp.asarray([1.0, 2.0, 3.0] if x.shape[0] > 5 else [1.0, 2.0, 4.0]),
        lambda x: jnp.pad(x, ((0, 0), (0, 1)), constant_values=0.0 if x.shape[0] > 5 else -0.0),
    ],
)
def test_programs_that_differ_in_a_parameter_are_two(fn) -> None:
    check(fn, lengths=(2, 5, 6, 16))


# ---------------------------------------------------------------------- derivatives


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def decides(w, n):
    return w * 2


decides.defvjp(lambda w, n: (w * 2, None), lambda n, _, ct: (ct * (5.0 if n == 1 else 2.0),))


def harmless(x):
    return x.reshape(1, 3) if x.shape[0] == 1 else x


def through_a_loop(w, x):
    total = lax.while_loop(lambda s: s < 100.0, lambda s: s * 2 + 1, jnp.abs(harmless(x)).sum())
    return decides(w, x.shape[0]) * total


def test_a_derivative_that_decides_where_the_function_does_not() -> None:
    padded = tx.pad_static(8, in_axes=(None, 0))(lambda w, x: decides(w, x.shape[0]) * harmless(x).sum())
    looped = tx.pad_static(8, in_axes=(None, 0))(through_a_loop)
    for n in (1, 2, 8):
        for ours in (padded, looped):
            want = jax.grad(tx.unwrap(ours))(3.0, X[:n])
            try:
                found = jax.grad(ours)(3.0, X[:n])
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                assert "no derivative" in str(error)  # noqa: PT017
                continue
            np.testing.assert_allclose(found, want, rtol=1e-5)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def outer(w, n):
    return decides(w, n)


outer.defvjp(lambda w, n: (w * 2, w), lambda n, w, ct: (ct * decides(w, n),))


def test_a_second_derivative_that_decides() -> None:
    padded = tx.pad_static(8, in_axes=(None, 0))(lambda w, x: outer(w, x.shape[0]) * harmless(x).sum())
    for n in (1, 2, 8):
        want = jax.grad(jax.grad(tx.unwrap(padded)))(3.0, X[:n])
        try:
            found = jax.grad(jax.grad(padded))(3.0, X[:n])
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            assert "no derivative" in str(error)  # noqa: PT017
            continue
        np.testing.assert_allclose(found, want, rtol=1e-5)


def test_a_length_without_a_derivative_leaves_the_others_theirs() -> None:
    padded = tx.pad_static(8)(lambda x: x.at[jnp.array([0, 2, 99])].set(1.0, mode="drop"))
    want = jax.grad(lambda x: (tx.unwrap(padded)(x) ** 2).sum())(X[:5])
    np.testing.assert_allclose(jax.grad(lambda x: (padded(x) ** 2).sum())(X[:5]), want, rtol=1e-6)


# ---------------------------------------------------------------------- two lengths


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(0) if x.shape[0] == x.shape[1] else x.max(0),
        lambda x: x.reshape(-1).sum() if x.shape[0] * x.shape[1] > 6 else x.max(),
        lambda x: (x * 2 if x.shape[0] == 1 and x.shape[1] == 2 else x).mean(1),
        lambda x: jnp.concatenate([x, x[:, :1]], 1) @ jnp.ones(x.shape[1] + 1),
    ],
)
def test_decisions_on_two_lengths(fn) -> None:
    padded = tx.pad_static({"a": 5, "b": 3}, in_axes={0: "a", 1: "b"})(fn)
    for a in range(1, 6):
        for b in range(1, 4):
            part = X[:a, :b]
            np.testing.assert_allclose(padded(part), jax.jit(fn)(part), rtol=1e-5, atol=1e-6)
