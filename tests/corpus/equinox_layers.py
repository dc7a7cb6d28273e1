"""Layers of `equinox.nn`, with a batch as rows under `jax.vmap`, and with a sequence as rows where a layer takes one.

Weights are fixed numbers, written as constants while tracing, so that neither an import nor a program draws them.
"""

from collections.abc import Callable
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import nn
from jax import Array
from jax import lax

from .draws import BOOL
from .draws import KEY
from .draws import LABEL
from .draws import NORMAL
from .entry import Entry
from .entry import Family
from .entry import calling

_EQUINOX = Family("equinox", "eqx.")
_SIGNAL, _IMAGE, _VOLUME = NORMAL(3, 8), NORMAL(2, 6, 6), NORMAL(2, 4, 4, 4)
_SEQUENCE = NORMAL(3).along(1)
"""Channels first, as convolutions take it: the rows are along axis 1."""

Make = Callable[[Array], Any]


def built(make: Make) -> Any:
    """The layer that `make` makes of a key, with small fixed weights in place of random ones."""
    rng = np.random.default_rng(0)

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jnp.asarray(rng.normal(scale=0.4, size=leaf.shape), leaf.dtype)

    return jax.tree.map(fill, eqx.filter_eval_shape(make, jax.random.key(0)))


def _of_a_batch() -> Iterator[tuple[str, Make, tuple[Any, ...]]]:
    """A layer, and what one example of it is."""
    flat = (NORMAL,)
    yield "Linear", lambda k: nn.Linear(5, 3, key=k), flat
    yield "Linear without bias", lambda k: nn.Linear(5, 3, use_bias=False, key=k), flat
    yield "Linear of numbers", lambda k: nn.Linear("scalar", 3, key=k), (NORMAL(),)
    yield "MLP", lambda k: nn.MLP(5, 2, 4, 2, key=k), flat
    yield "MLP tanh to a number", lambda k: nn.MLP(5, "scalar", 4, 1, jnp.tanh, key=k), flat
    yield "Identity", lambda k: nn.Identity(), flat
    yield "Lambda", lambda k: nn.Lambda(jnp.sin), flat
    yield "Sequential", lambda k: nn.Sequential([nn.Linear(5, 4, key=k), nn.Lambda(jax.nn.relu), nn.LayerNorm(4)]), flat
    yield "PReLU", lambda k: nn.PReLU(), flat
    yield "LayerNorm", lambda k: nn.LayerNorm(5), flat
    yield "LayerNorm plain", lambda k: nn.LayerNorm(5, use_weight=False, use_bias=False), flat
    yield "RMSNorm", lambda k: nn.RMSNorm(5), flat
    yield "GroupNorm", lambda k: nn.GroupNorm(2, 4), (NORMAL(4, 3),)
    yield "WeightNorm", lambda k: nn.WeightNorm(nn.Linear(5, 3, key=k)), flat
    yield "Embedding", lambda k: nn.Embedding(5, 3, key=k), (LABEL,)
    yield "Dropout in inference", lambda k: nn.Dropout(0.5, inference=True), flat
    yield "GRUCell", lambda k: nn.GRUCell(5, 4, key=k), (NORMAL, NORMAL(4))
    yield "MultiheadAttention", lambda k: nn.MultiheadAttention(2, 4, key=k), (NORMAL(3, 4),) * 3
    yield "RotaryPositionalEmbedding", lambda k: nn.RotaryPositionalEmbedding(4), (NORMAL(3, 4),)
    yield "Conv", lambda k: nn.Conv(1, 3, 2, 3, key=k), (_SIGNAL,)
    yield "ConvTranspose", lambda k: nn.ConvTranspose(1, 3, 2, 3, key=k), (_SIGNAL,)
    for padding in (0, 1, "SAME", "VALID"):
        yield f"Conv1d padding={padding}", lambda k, p=padding: nn.Conv1d(3, 2, 3, padding=p, key=k), (_SIGNAL,)
    yield "Conv1d stride=2 dilation=2", lambda k: nn.Conv1d(3, 2, 3, stride=2, dilation=2, key=k), (_SIGNAL,)
    yield "Conv1d groups=3", lambda k: nn.Conv1d(3, 6, 3, groups=3, key=k), (_SIGNAL,)
    for mode in ("REFLECT", "REPLICATE", "CIRCULAR"):
        yield f"Conv1d {mode}", lambda k, m=mode: nn.Conv1d(3, 2, 3, padding=1, padding_mode=m, key=k), (_SIGNAL,)
    for axes, draw in ((1, _SIGNAL), (2, _IMAGE), (3, _VOLUME)):
        channels = draw.tail[0]
        for kind in ("Conv", "ConvTranspose"):
            layer = getattr(nn, f"{kind}{axes}d")
            yield f"{kind}{axes}d", lambda k, f=layer, c=channels: f(c, 2, 3, stride=2, padding=1, key=k), (draw,)
        for kind in ("AvgPool", "MaxPool"):
            layer = getattr(nn, f"{kind}{axes}d")
            yield f"{kind}{axes}d", lambda k, f=layer: f(2, stride=2), (draw,)
        for kind in ("AdaptiveAvgPool", "AdaptiveMaxPool"):
            layer = getattr(nn, f"{kind}{axes}d")
            yield f"{kind}{axes}d", lambda k, f=layer: f(2), (draw,)
    yield "Pool", lambda k: nn.Pool(0.0, lax.add, 1, 3, 1, padding=1), (_SIGNAL,)
    yield "AdaptivePool", lambda k: nn.AdaptivePool(2, 1, jnp.mean), (_SIGNAL,)


def _of_a_sequence() -> Iterator[tuple[str, Make, tuple[Any, ...], int]]:
    """A layer, what it takes with the sequence as rows, and the shortest sequence."""
    attend = NORMAL(4)
    yield "MultiheadAttention", lambda k: nn.MultiheadAttention(2, 4, key=k), (attend,) * 3, 1
    yield (
        "MultiheadAttention to shared",
        lambda k: nn.MultiheadAttention(2, 4, key=k),
        (attend, *(NORMAL(6, 4).shared,) * 2),
        1,
    )
    yield (
        "MultiheadAttention from shared",
        lambda k: nn.MultiheadAttention(2, 4, key=k),
        (NORMAL(6, 4).shared, attend, attend),
        1,
    )
    yield "RotaryPositionalEmbedding", lambda k: nn.RotaryPositionalEmbedding(4), (attend,), 1
    for padding in (0, 1, (2, 0), "SAME", "VALID"):
        pad = [padding] if isinstance(padding, tuple) else padding
        yield f"Conv1d padding={padding}", lambda k, p=pad: nn.Conv1d(3, 2, 3, padding=p, key=k), (_SEQUENCE,), 1
    yield "Conv1d causal", lambda k: nn.Conv1d(3, 3, 3, padding=((2, 0),), groups=3, key=k), (_SEQUENCE,), 1
    yield "Conv1d stride=2", lambda k: nn.Conv1d(3, 2, 2, stride=2, key=k), (_SEQUENCE,), 1
    yield "Conv1d dilation=2", lambda k: nn.Conv1d(3, 2, 3, padding=2, dilation=2, key=k), (_SEQUENCE,), 1
    for mode in ("REFLECT", "REPLICATE", "CIRCULAR"):
        make = lambda k, m=mode: nn.Conv1d(3, 2, 3, padding=1, padding_mode=m, key=k)  # noqa: E731
        yield f"Conv1d {mode}", make, (_SEQUENCE,), 1
    yield "ConvTranspose1d", lambda k: nn.ConvTranspose1d(3, 2, 2, stride=2, key=k), (_SEQUENCE,), 1
    for pool in (nn.AvgPool1d, nn.MaxPool1d):
        yield f"{pool.__name__} of three", lambda k, f=pool: f(3, padding=1), (_SEQUENCE,), 1
        yield f"{pool.__name__} of pairs", lambda k, f=pool: f(2, stride=2), (_SEQUENCE,), 1
    for pool in (nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d):
        yield pool.__name__, lambda k, f=pool: f(2), (_SEQUENCE,), 2
    yield "GroupNorm", lambda k: nn.GroupNorm(3, 3), (_SEQUENCE,), 1


def _gru(key: Array) -> nn.GRUCell:
    return nn.GRUCell(5, 4, key=key)


def _lstm(key: Array) -> nn.LSTMCell:
    return nn.LSTMCell(5, 4, key=key)


def _recurrent(make: Make, start: Callable[[], Any], x: Array) -> Any:
    cell = built(make)

    def step(state: Any, row: Array) -> tuple[Any, Any]:
        state = cell(row, state)
        return state, state

    return lax.scan(step, start(), x)


def _gru_over_rows(x: Array) -> Any:
    return _recurrent(_gru, lambda: jnp.zeros(4), x)


def _lstm_over_rows(x: Array) -> Any:
    return _recurrent(_lstm, lambda: (jnp.zeros(4), jnp.zeros(4)), x)


def _stateful(layer: Callable[[], Any], x: Array, inference: bool) -> tuple[Array, list[Array]]:
    model, state = nn.make_with_state(layer)()
    run = jax.vmap(partial(model, inference=inference), axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    result, state = run(x, state)
    return result, jax.tree.leaves(state)


def _batch_norm(x: Array, mode: str, inference: bool) -> tuple[Array, list[Array]]:
    return _stateful(lambda: nn.BatchNorm(5, "batch", mode=mode), x, inference)


def _spectral_norm(x: Array) -> Array:
    linear = built(lambda k: nn.Linear(5, 3, key=k))
    return _stateful(lambda: nn.SpectralNorm(linear, "weight", key=jax.random.key(1)), x, inference=True)[0]


def _dropped(x: Array, key: Array) -> Array:
    return nn.Dropout(0.4)(x, key=jax.random.wrap_key_data(key))


def _dropped_by_row(x: Array, key: Array) -> Array:
    keys = jax.random.split(jax.random.wrap_key_data(key), x.shape[0])
    return jax.vmap(lambda row, key: nn.Dropout(0.4)(row, key=key))(x, keys)


def _masked_attention(x: Array, mask: Array) -> Array:
    attend = built(lambda k: nn.MultiheadAttention(2, 4, key=k))
    return attend(x, x, x, mask=mask[None] | jnp.eye(x.shape[0], dtype=bool))


def _tied(x: Array) -> Array:
    pair = lambda k: (nn.Linear(5, 5, key=k), nn.Linear(5, 5, key=k))  # noqa: E731
    first, second = built(lambda k: nn.Shared(pair(k), lambda p: p[1].weight, lambda p: p[0].weight))()
    return jax.vmap(lambda row: second(jnp.tanh(first(row))))(x)


def _slopes(x: Array, y: Array) -> list[Array]:
    @eqx.filter_grad
    def slopes(model: nn.MLP) -> Array:
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    return jax.tree.leaves(slopes(built(lambda k: nn.MLP(5, "scalar", 4, 1, key=k))))


def _entries() -> Iterator[Entry]:
    entry = _EQUINOX.entry
    for name, make, draws in _of_a_batch():
        yield entry(f"{name} over a batch", lambda *x, m=make: jax.vmap(built(m))(*x), *draws)
    for name, make, draws, fewest in _of_a_sequence():
        yield entry(f"{name} over a sequence", lambda *x, m=make: built(m)(*x), *draws, at_least=fewest)
    yield entry("GRUCell over a sequence", _gru_over_rows, NORMAL)
    yield entry("LSTMCell over a sequence", _lstm_over_rows, NORMAL)
    yield entry("GRUCell over sequences in a batch", jax.vmap(_gru_over_rows), NORMAL(3, 5))
    one_step = lambda x, h, c: jax.vmap(built(_lstm))(x, (h, c))  # noqa: E731
    yield entry("LSTMCell over a batch", one_step, NORMAL, NORMAL(4), NORMAL(4))
    for layer in (nn.LayerNorm, nn.RMSNorm):
        plain = lambda x, f=layer: f(x.shape, use_weight=False, use_bias=False)(x)  # noqa: E731
        yield entry(f"{layer.__name__} over all rows", plain, NORMAL)
    yield entry("Embedding by its weight", lambda i: built(lambda k: nn.Embedding(5, 3, key=k)).weight[i], LABEL)
    yield entry("Dropout with a key", _dropped, NORMAL, KEY)
    yield entry("Dropout with a key a row", _dropped_by_row, NORMAL, KEY)
    yield entry("MultiheadAttention masked over a sequence", _masked_attention, NORMAL(4), BOOL())
    for mode, inference in product(("batch", "ema"), (False, True)):
        fn = calling(_batch_norm, mode=mode, inference=inference)
        yield entry(f"BatchNorm mode={mode} inference={inference}", fn, NORMAL)
    yield entry("SpectralNorm", _spectral_norm, NORMAL)
    yield entry("Shared", _tied, NORMAL)
    yield entry("MLP gradient of its weights", _slopes, NORMAL, NORMAL())


ENTRIES = list(_entries())
