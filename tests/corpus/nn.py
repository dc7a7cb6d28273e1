"""Functions of `jax.nn`."""

from collections.abc import Callable
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import Array

from .draws import BOOL
from .draws import LABEL
from .draws import NORMAL
from .draws import POSITIVE
from .entry import Entry
from .entry import Family
from .entry import named

_NN = Family("nn", "nn.")
_ACTIVATIONS = """
    celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid mish relu relu6 selu
    sigmoid silu soft_sign softplus sparse_plus sparse_sigmoid squareplus swish tanh"""


def _entries() -> Iterator[Entry]:
    call, along, entry = _NN.call, _NN.along, _NN.entry
    for name in _ACTIVATIONS.split():
        yield call(jax.nn, name, NORMAL)
    yield call(jax.nn, "gelu", NORMAL, approximate=False)
    yield call(jax.nn, "log1mexp", POSITIVE)
    yield from along(jax.nn, "glu", NORMAL(6), axes=(1,))
    for name, fn in named(jax.nn, "log_softmax logmeanexp logsumexp softmax standardize"):
        yield from along(jax.nn, name, NORMAL)

        def masked(x: Array, m: Array, f: Callable[..., Array] = fn) -> Array:
            return f(x, axis=0, where=m.at[0].set(True))

        yield entry(f"{name} masked rows", masked, NORMAL, BOOL)
    yield entry("logsumexp weighted", lambda x, b: jax.nn.logsumexp(x, axis=0, b=b), NORMAL, POSITIVE)
    yield entry("logsumexp signed", lambda x, b: jax.nn.logsumexp(x, axis=0, b=b, return_sign=True), NORMAL, NORMAL)
    yield entry("one_hot", lambda y: jax.nn.one_hot(y, 5), LABEL)
    yield entry("one_hot axis=0", lambda y: jax.nn.one_hot(y, 5, axis=0), LABEL)
    attend = jax.nn.dot_product_attention
    batch, sequence = NORMAL(4, 2, 3), NORMAL(2, 3)
    yield entry("dot_product_attention over a batch", attend, batch, batch, batch)
    yield entry("dot_product_attention over rows", attend, sequence, sequence, sequence)

    def causal(q: Array, k: Array, v: Array) -> Array:
        return attend(q, k, v, is_causal=True)

    yield entry("dot_product_attention causal", causal, sequence, sequence, sequence)
    yield entry(
        "dot_product_attention of rows to shared", attend, sequence, NORMAL(4, 2, 3).shared, NORMAL(4, 2, 3).shared
    )
    yield entry("relu then sum", lambda x: jnp.sum(jax.nn.relu(x), axis=0), NORMAL)
    each_row = (((2,), (2,)), ((0,), (0,)))
    yield entry(
        "scaled_dot_general", lambda a, b: jax.nn.scaled_dot_general(a, b, each_row), NORMAL(3, 4), NORMAL(2, 4)
    )


ENTRIES = list(_entries())
