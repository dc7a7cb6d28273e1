"""What is right, and in which no proof may find anything: every transform, on functions of every kind."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import of_streams
from jax import lax
from planted import Case
from planted import planted

import erythroxy_tx as tx
from erythroxy_tx.testing import arrays
from erythroxy_tx.testing import indices
from erythroxy_tx.testing import rows

FEW = st.sampled_from([7, 4, 1, 0])  # each is compiled in every way
N = st.shared(FEW, key="rows")


def sums(x):
    return jnp.sin(x), x.sum(0), (x * x).mean(0)


def extremes(x):
    return jnp.sort(x, 1), x.max(0, initial=-jnp.inf), x.min(0, initial=jnp.inf)


def layer(x, w, b):
    h = jax.nn.relu(x @ w + b)
    return h, jax.nn.softmax(h, 1).sum(0)


def moments(x, y):
    return x.T @ x, x.T @ y, (1 + y / 64).prod(0)


def counts(x):
    return x.sum(0), x * 3 + 1, (x > 2).any(), (x > -5).all()


def standardised(x):
    return (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)


def filtered(x):
    return jax.vmap(lambda row: lax.scan(lambda c, v: (0.5 * c + v, c * v), 0.0, row)[1])(x)


def picked(base, i):
    return base[i] * 2, jnp.take(base, i, axis=0, mode="clip").sum(0)


def binned(i, v):
    return jnp.zeros(5).at[i].add(v)


def noisy(seed, x):
    return x + jax.random.normal(jax.random.key(seed), x.shape[1:])


def relu_in_numpy(x):
    return np.maximum(x, 0)


CASES = [
    Case("sums", tx.chunked(lax.map, 3, out=("rows", "sum", "mean"))(sums), rows(FEW, features=3)),
    Case(
        "sums of bfloat16",
        tx.chunked(lax.map, 4, out="sum")(lambda x: x.sum(0)),
        rows(FEW, features=2, dtype="bfloat16"),
    ),
    Case(
        "means of float16",
        tx.chunked(lax.map, 4, out="mean")(lambda x: x.mean(0)),
        rows(FEW, features=2, dtype="float16"),
    ),
    Case(
        "complex",
        tx.chunked(lax.map, 4, out=("rows", "sum"))(lambda x: (x * x, x.sum(0))),
        rows(FEW, features=2, dtype="complex64"),
    ),
    Case("extremes", tx.chunked(lax.map, size=4, out=("rows", "max", "min"))(extremes), rows(FEW, features=2)),
    Case(
        "layer",
        tx.chunked(lax.map, size=4, in_axes=(0, None, None), out=("rows", "sum"))(layer),
        st.tuples(rows(FEW, features=3), arrays(shape=(3, 4)), arrays(shape=4)),
    ),
    Case(
        "moments", tx.chunked(lax.map, size=4, out=("sum", "sum", "prod"))(moments), st.tuples(rows(N, 3), rows(N, ()))
    ),
    Case(
        "counts",
        tx.chunked(lax.map, 4, out=("sum", "rows", "any", "all"))(counts),
        rows(FEW, features=2, dtype="int32"),
    ),
    Case("standardised", tx.chunked(lax.map, size=4, out="rows")(standardised), rows(FEW, features=5)),
    Case("filtered", tx.chunked(lax.map, size=4, out="rows")(filtered), rows(FEW, features=6)),
    Case(
        "picked",
        tx.chunked(lax.map, size=4, in_axes=(None, 0), out=("rows", "sum"))(picked),
        st.tuples(arrays(shape=(9, 2)), indices(9, FEW, out_of_range=True)),
    ),
    Case("binned", tx.chunked(lax.map, size=4, out="sum")(binned), st.tuples(indices(5, N), rows(N, ()))),
    Case(
        "noisy",
        tx.chunked(lax.map, size=4, in_axes=(None, 0), out="rows")(noisy),
        st.tuples(st.integers(0, 9), rows(FEW, features=2)),
    ),
    Case(
        "from the host",
        planted(of_streams.streamed(), lambda x: (x.sum(0), x * 3, jnp.cumsum(x, 0)), on_host=True),
        of_streams.FLOATS,
    ),
    Case("one chunk", tx.chunked(lax.scan, 1, out=("rows", "sum", "mean"))(sums), rows(FEW, features=3)),
    Case(
        "by budget",
        tx.chunked(lax.map, budget="1KiB", out=("rows", "sum", "mean"))(sums),
        rows(FEW, features=3),
    ),
    Case("resident", tx.vram_resident(layer), st.tuples(rows(FEW, features=3), arrays(shape=(3, 4)), arrays(shape=4))),
    Case(
        "resident and chunked",
        tx.vram_resident(tx.chunked(lax.map, 3, out=("rows", "sum", "mean"))(sums)),
        rows(FEW, features=3),
    ),
    Case(
        "compared",
        tx.assert_relocation(relu_in_numpy, calls="always")(jax.nn.relu),
        rows(FEW, features=2, allow_nan=False),
    ),
    Case("a sum in numpy", lambda x: x.sum(0), rows(FEW, features=2), tx.AsAccurate(4), original=lambda x: x.sum(0)),
    Case(
        "a product in numpy",
        lambda x, w: x @ w,
        st.tuples(rows(FEW, features=3), arrays(shape=(3, 2))),
        tx.AsAccurate(4),
        original=lambda x, w: x @ w,
    ),
    Case("a flip in numpy", lambda x: x[::-1], rows(FEW, features=2), tx.Bitwise(), original=np.flipud),
]
