"""Networks, losses and their gradients, written one-shot by hand, and the transformations of JAX inside a function.

Not here: the layers of Equinox (`equinox_layers.py`) and the losses of Optax (`optax_losses.py`).
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax import lax

from .draws import BOOL
from .draws import LABEL
from .draws import NORMAL
from .draws import SIGN
from .draws import Draw
from .entry import Family

_entry = Family("composition", "compose: ").entry
_INNER, _OUTER = NORMAL(5, 4).shared, NORMAL(4, 3).shared
_SQUARE = NORMAL(6, 6).shared
_W = NORMAL.shared
_TWO_WAYS = Draw(NORMAL.values, (3, 6, 6), None)


def network(x: Array, inner: Array, outer: Array) -> Array:
    return jnp.tanh(x @ inner) @ outer


def cross_entropy(x: Array, inner: Array, outer: Array, label: Array) -> Array:
    scores = jax.nn.log_softmax(network(x, inner, outer))
    return -jnp.mean(jnp.take_along_axis(scores, label[:, None] % 3, axis=1))


def ridge_loss(w: Array, x: Array, y: Array) -> Array:
    return jnp.mean((x @ w - y) ** 2) + 0.1 * jnp.sum(w**2)


def attention(x: Array, w: Array) -> Array:
    q, k, v = x @ w[0], x @ w[1], x @ w[2]
    return jax.nn.softmax(q @ k.T / jnp.sqrt(6.0), axis=-1) @ v


def causal_attention(x: Array, w: Array) -> Array:
    q, k, v = x @ w[0], x @ w[1], x @ w[2]
    n = x.shape[0]
    allowed = jnp.tril(jnp.ones((n, n), bool))
    return jax.nn.softmax(jnp.where(allowed, q @ k.T, -jnp.inf), axis=-1) @ v


def layer_norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3)


def transformer_block(x: Array, w: Array) -> Array:
    x = x + attention(layer_norm(x), w)
    return x + jax.nn.gelu(layer_norm(x) @ w[0]) @ w[1]


def batch_of_sequences(x: Array, w: Array) -> Array:
    return jax.vmap(transformer_block, (0, None))(x, w)


def gru(x: Array, w: Array, u: Array) -> Array:
    def step(h: Array, row: Array) -> tuple[Array, Array]:
        gate = jax.nn.sigmoid(row @ w[0] + h @ u[0])
        reset = jax.nn.sigmoid(row @ w[1] + h @ u[1])
        h = gate * h + (1 - gate) * jnp.tanh(row @ w[2] + (reset * h) @ u[2])
        return h, h

    return lax.scan(step, jnp.zeros(6), x)[1]


def contrastive(x: Array, y: Array) -> Array:
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    y = y / jnp.linalg.norm(y, axis=1, keepdims=True)
    scores = x @ y.T / 0.5
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(scores, axis=1)))


def mixture_of_experts(x: Array, gate: Array, experts: Array) -> Array:
    weight = jax.nn.softmax(x @ gate, axis=1)
    return jnp.einsum("ne,nej->nj", weight, jnp.einsum("ni,eij->nej", x, experts))


def sampled_elbo(x: Array, w: Array) -> Array:
    mean, spread = x @ w, jax.nn.softplus(x @ w)
    noise = jax.random.normal(jax.random.key(3), mean.shape)
    return jnp.mean(jnp.sum((mean + spread * noise) ** 2 + spread - jnp.log(spread), axis=1))


@jax.custom_vjp
def _clipped_gradient(x: Array) -> Array:
    return x


_clipped_gradient.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


@jax.custom_jvp
def _safe_sqrt(x: Array) -> Array:
    return jnp.sqrt(jnp.maximum(x, 0.0))


_safe_sqrt.defjvp(lambda p, t: (_safe_sqrt(p[0]), t[0] * 0.5 / (_safe_sqrt(p[0]) + 1e-3)))


@jax.jit
def _inner_standardise(x: Array) -> Array:
    return (x - x.mean(0)) / (1 + x.std(0))


def clipped_slope(w: Array, x: Array) -> Array:
    return jax.grad(lambda w: jnp.sum(_clipped_gradient(x @ w) ** 2))(w)


def checkpointed_slope(x: Array, inner: Array, outer: Array) -> Array:
    return jax.grad(lambda w: jnp.mean(jax.checkpoint(network)(x, w, outer) ** 2))(inner)


def hinge_slope(w: Array, x: Array, y: Array) -> Array:
    return jax.grad(lambda w: jnp.mean(jnp.maximum(0, 1 - y * (x @ w))))(w)


def descent_on_a_network(x: Array, inner: Array, outer: Array, label: Array) -> tuple[Array, Array]:
    def step(weights: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        loss, slopes = jax.value_and_grad(lambda w: cross_entropy(x, *w, label))(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes), loss

    (inner, _), losses = lax.scan(step, (inner, outer), None, length=4)
    return inner, losses


ENTRIES = [
    _entry("network", network, NORMAL, _INNER, _OUTER),
    _entry("cross-entropy with labels", cross_entropy, NORMAL, _INNER, _OUTER, LABEL),
    _entry("cross-entropy gradient of weights", jax.grad(cross_entropy, (1, 2)), NORMAL, _INNER, _OUTER, LABEL),
    _entry("cross-entropy gradient of rows", jax.grad(cross_entropy), NORMAL, _INNER, _OUTER, LABEL),
    _entry("losses of each row", jax.vmap(ridge_loss, (None, 0, 0)), _W, NORMAL, NORMAL()),
    _entry("gradients of each row", jax.vmap(jax.grad(ridge_loss), (None, 0, 0)), _W, NORMAL, NORMAL()),
    _entry("ridge value and gradient", jax.value_and_grad(ridge_loss), _W, NORMAL, NORMAL()),
    _entry("ridge hessian", jax.hessian(ridge_loss), _W, NORMAL, NORMAL()),
    _entry("ridge jvp", lambda w, x, y: jax.jvp(lambda w: ridge_loss(w, x, y), (w,), (w,)), _W, NORMAL, NORMAL()),
    _entry(
        "jacobian of each row",
        lambda x, a, b: jax.vmap(jax.jacrev(lambda r: network(r, a, b)))(x),
        NORMAL,
        _INNER,
        _OUTER,
    ),
    _entry("hinge gradient", hinge_slope, _W, NORMAL, SIGN()),
    _entry("gradient through standardise", jax.grad(lambda x: jnp.sum(jnp.sin(_inner_standardise(x)))), NORMAL),
    _entry("gradient through sort", jax.grad(lambda x: jnp.sort(x) @ jnp.arange(1.0 * x.shape[0])), NORMAL()),
    _entry("gradient through cumsum", jax.grad(lambda x: jnp.sum(jnp.cumsum(x) ** 2)), NORMAL()),
    _entry("gradient through max", jax.grad(lambda x: jnp.max(x, axis=0).sum()), NORMAL),
    _entry("gradient through logsumexp", jax.grad(jax.nn.logsumexp), NORMAL()),
    _entry(
        "gradient through a scan",
        jax.grad(lambda x, w, u: jnp.sum(gru(x, w, u)[-1]), (0, 1)),
        NORMAL(6),
        _TWO_WAYS,
        _TWO_WAYS,
    ),
    _entry(
        "gradient through attention", jax.grad(lambda x, w: jnp.sum(attention(x, w) ** 2), (0, 1)), NORMAL(6), _TWO_WAYS
    ),
    _entry("descent on a network", descent_on_a_network, NORMAL, _INNER, _OUTER, LABEL),
    _entry("attention over rows", attention, NORMAL(6), _TWO_WAYS),
    _entry("causal attention over rows", causal_attention, NORMAL(6), _TWO_WAYS),
    _entry("transformer block over rows", transformer_block, NORMAL(6), _TWO_WAYS),
    _entry("transformer over a batch", batch_of_sequences, NORMAL(4, 6), _TWO_WAYS),
    _entry("gru over rows", gru, NORMAL(6), _TWO_WAYS, _TWO_WAYS),
    _entry("gru over a batch", jax.vmap(gru, (0, None, None)), NORMAL(4, 6), _TWO_WAYS, _TWO_WAYS),
    _entry("contrastive", contrastive, NORMAL, NORMAL),
    _entry("mixture of experts", mixture_of_experts, NORMAL(6), NORMAL(6, 3).shared, _TWO_WAYS),
    _entry("sampled elbo", sampled_elbo, NORMAL, NORMAL(5, 3).shared),
    _entry(
        "convolution over rows",
        lambda x, w: lax.conv_general_dilated(x.T[None], w, (1,), "SAME")[0].T,
        NORMAL(6),
        Draw(NORMAL.values, (6, 6, 3), None),
    ),
    _entry("pooling over rows", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME"), NORMAL),
    _entry(
        "pooling over rows with a stride", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 1), (2, 1), "VALID"), NORMAL
    ),
    _entry(
        "images in a batch",
        lambda x, w: lax.conv(x, w, (1, 1), "SAME").mean((2, 3)),
        NORMAL(2, 5, 5),
        NORMAL(3, 2, 3, 3).shared,
    ),
    _entry(
        "masked attention pooling", lambda x, m, w: jax.nn.softmax(jnp.where(m, x @ w, -1e9)) @ x, NORMAL, BOOL(), _W
    ),
    _entry("low rank product", lambda x, a: (x @ a) @ (x @ a).T @ x, NORMAL, NORMAL(5, 2).shared),
    _entry("custom_vjp inside", clipped_slope, _W, NORMAL),
    _entry("custom_jvp inside", lambda x: _safe_sqrt(x).sum(0), NORMAL),
    _entry("custom_jvp differentiated", jax.grad(lambda x: _safe_sqrt(x).sum()), NORMAL),
    _entry("checkpoint inside", checkpointed_slope, NORMAL, _INNER, _OUTER),
    _entry("nested jit", jax.jit(lambda x: _inner_standardise(x) * 2), NORMAL),
    _entry("vmap over columns", jax.vmap(lambda c: (c - c.mean()) / (1 + c.std()), 1, 1), NORMAL),
    _entry("vmap over columns, then shared", jax.vmap(lambda c: c @ c, 1), NORMAL),
    _entry("stop_gradient inside", jax.grad(lambda x: jnp.sum(x * lax.stop_gradient(x.mean(0)))), NORMAL),
    _entry("results in a dict", lambda x: {"rows": x * 2, "total": x.sum(0), "nested": [x[0], (x.max(),)]}, NORMAL),
    _entry("argument returned", lambda x, w: (x, w), NORMAL, _W),
    _entry("constant returned", lambda x: (x, jnp.arange(3)), NORMAL),
    _entry(
        "spectral penalty", lambda x, w: jnp.sum(x @ w) + jnp.linalg.svd(w, compute_uv=False)[0], NORMAL(6), _SQUARE
    ),
]
