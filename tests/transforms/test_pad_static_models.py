"""Sequence models that nobody wrote a mask for, and public reports of padding that leaks, through `pad_static`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx

MOST, WIDTH = 12, 8
LENGTHS = range(1, MOST + 1)
KEYS = jax.random.split(jax.random.key(0), 8)
X = np.random.default_rng(0).normal(size=(MOST, WIDTH)).astype(np.float32)


def over(cell):
    """A recurrent cell over a sequence: all of its states, and the last."""

    def run(x):
        start = jnp.zeros(WIDTH) if isinstance(cell, eqx.nn.GRUCell) else (jnp.zeros(WIDTH), jnp.zeros(WIDTH))
        last, states = lax.scan(lambda c, row: (cell(row, c),) * 2, start, x)
        return states, last

    return run


def backwards(cell):
    def run(x):
        return lax.scan(lambda c, row: (cell(row, c),) * 2, jnp.zeros(WIDTH), x, reverse=True)

    return run


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norms: list
    mlp: eqx.nn.MLP

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=a)
        self.norms = [eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)]
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 16, 1, key=b)

    def __call__(self, x):
        h = jax.vmap(self.norms[0])(x)
        x = x + self.attention(h, h, h)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


class Encoder(eqx.Module):
    blocks: list

    def __call__(self, x):
        position = jnp.arange(x.shape[0])[:, None] / 10
        h = x + jnp.sin(position * jnp.arange(1, WIDTH + 1))
        for block in self.blocks:
            h = block(h)
        return h.mean(0)


def causal_attention(x):
    scores = x @ x.T / jnp.sqrt(WIDTH)
    seen = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ x


def batch_statistics(x):
    mean, var = x.mean(0), x.var(0)
    return (x - mean) / jnp.sqrt(var + 1e-5), mean, var


attention = eqx.nn.MultiheadAttention(2, WIDTH, key=KEYS[0])
causal = eqx.nn.Conv1d(WIDTH, 4, 3, padding=((2, 0),), key=KEYS[1])
same = eqx.nn.Conv1d(WIDTH, 4, 3, padding="SAME", key=KEYS[2])
wide = eqx.nn.Conv1d(WIDTH, 4, 5, padding="SAME", dilation=2, key=KEYS[3])
MODELS = {
    "attention": lambda x: attention(x, x, x),
    "causal attention": causal_attention,
    "GRU": over(eqx.nn.GRUCell(WIDTH, WIDTH, key=KEYS[4])),
    "LSTM": over(eqx.nn.LSTMCell(WIDTH, WIDTH, key=KEYS[5])),
    "GRU from the end": backwards(eqx.nn.GRUCell(WIDTH, WIDTH, key=KEYS[4])),
    "causal convolution": lambda x: causal(x.T).T,
    "convolution": lambda x: same(x.T).T,
    "dilated convolution": lambda x: wide(x.T).T,
    "encoder": Encoder([Block(KEYS[6]), Block(KEYS[7])]),
    "layer statistics": jax.vmap(eqx.nn.LayerNorm(WIDTH)),
    "batch statistics": batch_statistics,
}


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("name", MODELS)
def test_as_without_padding_for_every_length(name: str) -> None:
    model = MODELS[name]
    padded, plain = (transform(lambda x: model(x)) for transform in (tx.pad_static(MOST), jax.jit))  # noqa: PLW0108
    for n in LENGTHS:
        for fill in (None, np.nan):
            got = padded(*padded.pad(X[:n], fill=fill))
            for a, b in zip(jax.tree.leaves(plain(X[:n])), jax.tree.leaves(got), strict=True):
                np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-6)


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("name", ["encoder", "GRU", "convolution", "attention"])
def test_gradients_for_several_lengths(name: str) -> None:
    model = MODELS[name]

    def loss(x):
        return sum((jnp.sin(out) ** 2).sum() for out in jax.tree.leaves(model(x)))

    padded = tx.pad_static(MOST)(loss)
    step = jax.jit(jax.grad(lambda d, n: padded(tx.Padded(d, n))))
    for n in (1, 5, MOST):
        (given,) = padded.pad(X[:n], fill=np.nan)
        found = step(given.data, n)
        np.testing.assert_allclose(found[:n], jax.jit(jax.grad(loss))(X[:n]), rtol=1e-3, atol=1e-4)
        assert not np.asarray(found[n:]).any()


# ---------------------------------------------------------------------- public reports


def test_case_08_one_trace_for_all_lengths() -> None:
    traces = []

    @tx.pad_static(16)
    def score(x):
        traces.append(x.shape)
        return jax.nn.logsumexp(x)

    rng, counts = np.random.default_rng(0), []
    for n in (7, 11, 5, 16, 9, 7, 11):
        x = rng.normal(size=n).astype("f")
        assert abs(float(score(x)) - float(jax.nn.logsumexp(x))) < 1e-6
        counts.append(len(traces))
    assert len(set(counts)) == 1


@pytest.mark.parametrize("most", [5, 8, 16])
@pytest.mark.parametrize("fill", [0.0, np.nan])
def test_case_09_mean_and_variance(most: int, fill: float) -> None:
    padded = tx.pad_static(most)(lambda x: (x.mean(), x.var()))
    found = padded(*padded.pad(np.array([3, 4, 5, 6, 7], "f"), fill=fill))
    assert [float(x) for x in found] == [5.0, 2.0]


def test_case_11_an_empty_row() -> None:
    attend = tx.pad_static(3)(lambda s, v: jax.nn.softmax(s) @ v)
    scores, lengths = jnp.asarray([[1.0, 2.0, 3.0]] * 2), jnp.asarray([2, 0])

    def total(scores, values):
        slots = jax.vmap(lambda s, n: attend(tx.Padded(s, n), tx.Padded(values, n)))(scores, lengths)
        return slots.sum()

    value, gradients = jax.jit(jax.value_and_grad(total, (0, 1)))(scores, jnp.asarray([1.0, 10.0, 100.0]))
    assert abs(float(value) - 7.579527) < 1e-5
    assert all(np.isfinite(g).all() for g in gradients)
    assert not np.asarray(gradients[0][1]).any()


def test_case_13_the_last_batch() -> None:
    traces = []

    @tx.pad_static(32)
    def total(x):
        traces.append(x.shape)
        return x.sum(), x.shape[0]

    data = np.arange(100, dtype="f")
    parts = [total(data[i : i + 32]) for i in range(0, 100, 32)]
    first = len(traces)
    assert sum(float(s) for s, _ in parts) / sum(int(n) for _, n in parts) == 49.5
    total(data[:7])
    assert len(traces) == first
