"""Statistics and fits of a table, written one-shot: moments, regressions, clusters, mixtures, iterations over all rows.

Not here: what depends on the order of rows (`compositions_order.py`), and networks (`compositions_nets.py`).
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax import lax

from .draws import BOOL
from .draws import INTEGER
from .draws import KEY
from .draws import LABEL
from .draws import NANS
from .draws import NORMAL
from .draws import POSITIVE
from .draws import SMALL
from .draws import Draw
from .entry import Family

_entry = Family("composition", "compose: ").entry
_FLAG = Draw(BOOL.values, (), None)
_WEIGHTS = NORMAL.shared


def standardise(x: Array) -> Array:
    return (x - x.mean(0)) / (x.std(0) + 1e-3)


def standardised_ridge(x: Array, y: Array) -> Array:
    h = standardise(x)
    return jnp.linalg.solve(h.T @ h + 0.1 * jnp.eye(h.shape[1]), h.T @ y)


def fitted_residuals(x: Array, y: Array) -> Array:
    h = jnp.concatenate([jnp.ones((x.shape[0], 1)), standardise(x)], axis=1)
    return y - h @ jnp.linalg.solve(h.T @ h + 0.1 * jnp.eye(h.shape[1]), h.T @ y)


def masked_mean(x: Array, mask: Array) -> Array:
    return jnp.sum(jnp.where(mask[:, None], x, 0.0), axis=0) / jnp.maximum(mask.sum(), 1)


def principal_components(x: Array) -> Array:
    centred = x - x.mean(0)
    values, vectors = jnp.linalg.eigh(centred.T @ centred / x.shape[0])
    towards = vectors * jnp.sign(vectors[jnp.argmax(jnp.abs(vectors), axis=0), jnp.arange(x.shape[1])])
    return (centred @ towards[:, -2:]) / jnp.sqrt(values[-2:] + 1e-3)


def whitened(x: Array) -> Array:
    centred = x - x.mean(0)
    factor = jnp.linalg.cholesky(centred.T @ centred / x.shape[0] + 0.1 * jnp.eye(x.shape[1]))
    return jax.scipy.linalg.solve_triangular(factor, centred.T, lower=True).T


def k_means(x: Array, centres: Array) -> tuple[Array, Array]:
    def nearest(centres: Array) -> Array:
        return jnp.argmin(jnp.sum((x[:, None] - centres) ** 2, axis=-1), axis=1)

    def lloyd(_: int, centres: Array) -> Array:
        member = jax.nn.one_hot(nearest(centres), len(centres))
        count = member.sum(0)[:, None]
        return jnp.where(count > 0, member.T @ x / jnp.maximum(count, 1), centres)

    centres = lax.fori_loop(0, 5, lloyd, centres)
    return centres, nearest(centres)


def logistic_loss(w: Array, x: Array, y: Array) -> Array:
    return jnp.mean(jax.nn.softplus(x @ w) - y * (x @ w)) + 0.01 * w @ w


def logistic_descent(x: Array, y: Array) -> Array:
    def step(_: int, w: Array) -> Array:
        return w - 0.5 * jax.grad(logistic_loss)(w, x, y)

    return lax.fori_loop(0, 20, step, jnp.zeros(x.shape[1]))


def logistic_descent_scanned(x: Array, y: Array) -> tuple[Array, Array]:
    def step(w: Array, _: None) -> tuple[Array, Array]:
        loss, slope = jax.value_and_grad(logistic_loss)(w, x, y)
        return w - 0.5 * slope, loss

    return lax.scan(step, jnp.zeros(x.shape[1]), None, length=20)


def newton_logistic(x: Array, y: Array) -> tuple[Array, Array]:
    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        w, _, i = state
        p = jax.nn.sigmoid(x @ w)
        slope = x.T @ (p - y) / x.shape[0] + 0.1 * w
        curve = (x * (p * (1 - p))[:, None]).T @ x / x.shape[0] + 0.1 * jnp.eye(x.shape[1])
        return w - jnp.linalg.solve(curve, slope), jnp.max(jnp.abs(slope)), i + 1

    start = (jnp.zeros(x.shape[1]), jnp.float32(jnp.inf), 0)
    w, _, _ = lax.while_loop(lambda state: (state[1] > 1e-2) & (state[2] < 20), step, start)
    return w, x @ w


def power_iteration(x: Array) -> Array:
    def step(_: int, v: Array) -> Array:
        v = x.T @ (x @ v)
        return v / jnp.linalg.norm(v)

    return lax.fori_loop(0, 10, step, jnp.ones(x.shape[1]))


def huber_irls(x: Array, y: Array) -> Array:
    def step(w: Array, _: None) -> tuple[Array, None]:
        weight = 1 / jnp.maximum(1.0, jnp.abs(y - x @ w))
        xw = x * weight[:, None]
        return jnp.linalg.solve(xw.T @ x + 0.1 * jnp.eye(x.shape[1]), xw.T @ y), None

    return lax.scan(step, jnp.zeros(x.shape[1]), None, length=5)[0]


def mixture_terms(x: Array, means: Array) -> Array:
    return jax.scipy.stats.norm.logpdf(x[:, None], means).sum(-1) - jnp.log(1.0 * len(means))


def mixture_step(x: Array, means: Array) -> tuple[Array, Array]:
    terms = mixture_terms(x, means)
    share = jax.nn.softmax(terms, axis=1)
    return share.T @ x / (share.sum(0)[:, None] + 1e-3), share.mean(0)


def batch_norm_layers(x: Array, w: Array) -> Array:
    for _ in range(3):
        h = x @ w
        x = jax.nn.relu((h - h.mean(0)) * lax.rsqrt(h.var(0) + 1e-3))
    return x


def kernel_product(x: Array, y: Array) -> Array:
    return jnp.exp(-jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)) @ y


def kernel_ridge(x: Array, y: Array) -> Array:
    k = jnp.exp(-jnp.sum((x[:, None] - x[None]) ** 2, axis=-1))
    return jnp.linalg.solve(k + jnp.eye(x.shape[0]), y)


def scaled_by_deviation(x: Array) -> Array:
    middle = jnp.median(x, axis=0)
    return (x - middle) / (jnp.median(jnp.abs(x - middle), axis=0) + 1e-3)


def correlation(x: Array) -> Array:
    z = standardise(x)
    return z.T @ z / x.shape[0]


def newton_root(x: Array) -> Array:
    """The cube root of each row, in as many steps as that row needs."""

    def one(a: Array) -> Array:
        def step(v: Array) -> Array:
            return v - (v**3 - a) / (3 * v**2)

        return lax.while_loop(lambda v: jnp.abs(v**3 - a) > 1e-3, step, 1.0 + a)

    return jax.vmap(one)(x)


def steps_to_root(x: Array) -> Array:
    def one(a: Array) -> Array:
        def step(s: tuple[Array, int]) -> tuple[Array, int]:
            return (s[0] / 2, s[1] + 1)

        return lax.while_loop(lambda s: s[0] > 0.5, step, (a, 0))[1]

    return jax.vmap(one)(x)


def on_a_flag(x: Array, flag: Array) -> Array:
    return lax.cond(flag, lambda x: x - x.mean(0), lambda x: 2 * x, x)


def on_its_own_mean(x: Array) -> Array:
    return lax.cond(x.mean() > 0, lambda x: x - x.mean(0), lambda x: x / (1 + x.std(0)), x)


def switched_rows(x: Array, label: Array) -> Array:
    return jax.vmap(lambda i, r: lax.switch(i, [jnp.sum, jnp.max, jnp.min, jnp.mean, jnp.prod], r))(label, x)


def bootstrapped_mean(x: Array, key: Array) -> Array:
    rows = jax.random.choice(jax.random.wrap_key_data(key), x.shape[0], (4, x.shape[0]))
    return x[rows].mean(1)


def segment_moments(x: Array, label: Array) -> tuple[Array, Array]:
    total = jax.ops.segment_sum(x, label, 5)
    count = jax.ops.segment_sum(jnp.ones(x.shape[0]), label, 5)
    return total / jnp.maximum(count, 1)[:, None], jax.ops.segment_max(x, label, 5)


def centred_by_class(x: Array, label: Array) -> Array:
    return x - segment_moments(x, label)[0][label]


ENTRIES = [
    _entry("standardise", standardise, NORMAL),
    _entry("standardise then fit", standardised_ridge, NORMAL, NORMAL()),
    _entry("residuals of a fit with intercept", fitted_residuals, NORMAL, NORMAL()),
    _entry("masked mean", masked_mean, NORMAL, BOOL()),
    _entry("mean without NaN, then filled", lambda x: jnp.where(jnp.isnan(x), jnp.nanmean(x, 0), x), NANS),
    _entry("weighted mean and variance", lambda x, w: (w @ x / w.sum(), w @ x**2 / w.sum()), NORMAL, POSITIVE()),
    _entry("covariance", lambda x: (x - x.mean(0)).T @ (x - x.mean(0)) / (x.shape[0] - 1), NORMAL),
    _entry("correlation", correlation, NORMAL),
    _entry("principal components", principal_components, NORMAL),
    _entry("whitened by cholesky", whitened, NORMAL),
    _entry("k-means", k_means, NORMAL, NORMAL(3, 5).shared),
    _entry("gradient descent", logistic_descent, NORMAL, BOOL()),
    _entry("gradient descent scanned", logistic_descent_scanned, NORMAL, BOOL()),
    _entry("newton by while_loop", newton_logistic, NORMAL, BOOL()),
    _entry("power iteration", power_iteration, NORMAL),
    _entry("huber by reweighting", huber_irls, NORMAL, NORMAL()),
    _entry(
        "mixture log-likelihood",
        lambda x, m: jax.nn.logsumexp(mixture_terms(x, m), 1).sum(),
        NORMAL,
        NORMAL(3, 5).shared,
    ),
    _entry("mixture step", mixture_step, NORMAL, NORMAL(3, 5).shared),
    _entry("batch norm through three layers", batch_norm_layers, NORMAL, NORMAL(5, 5).shared),
    _entry("kernel product", kernel_product, NORMAL, NORMAL()),
    _entry("kernel ridge", kernel_ridge, NORMAL, NORMAL()),
    _entry(
        "distances to shared", lambda x, c: jnp.sqrt(jnp.sum((x[:, None] - c) ** 2, -1)), NORMAL, NORMAL(3, 5).shared
    ),
    _entry(
        "nearest other row",
        lambda x: jnp.sum(jnp.abs(x[:, None] - x), -1).at[jnp.diag_indices(x.shape[0])].set(jnp.inf).argmin(1),
        NORMAL,
    ),
    _entry(
        "triplet distances",
        lambda a, p, n: jnp.maximum(((a - p) ** 2).sum(1) - ((a - n) ** 2).sum(1) + 1, 0).mean(),
        NORMAL,
        NORMAL,
        NORMAL,
    ),
    _entry("median absolute deviation", scaled_by_deviation, NORMAL),
    _entry("z-score clipped", lambda x: jnp.clip(standardise(x), -1, 1), NORMAL),
    _entry("scaled to its range", lambda x: (x - x.min(0)) / (x.max(0) - x.min(0) + 1e-3), NORMAL),
    _entry("logsumexp over rows", lambda x: jax.nn.logsumexp(x, axis=0), NORMAL),
    _entry("logsumexp by hand", lambda x: jnp.log(jnp.exp(x - x.max(0)).sum(0)) + x.max(0), NORMAL),
    _entry("softmax over rows", lambda x: jax.nn.softmax(x, axis=0), NORMAL),
    _entry("softmax weighted mean", lambda x, s: jax.nn.softmax(s) @ x, NORMAL, NORMAL()),
    _entry("normalised by the norm of all", lambda x: x / jnp.linalg.norm(x), NORMAL),
    _entry("divided by the number of rows", lambda x: x / x.shape[0], NORMAL),
    _entry("number of rows alone", lambda x: x.shape[0], NORMAL),
    _entry("histogram features", lambda x: jnp.histogram(x[:, 0], jnp.linspace(-2, 2, 5))[0] / x.shape[0], NORMAL),
    _entry("segment means", segment_moments, NORMAL, LABEL),
    _entry("centred by class", centred_by_class, NORMAL, LABEL),
    _entry("confusion matrix", lambda a, b: jnp.zeros((5, 5), int).at[a, b].add(1), LABEL, LABEL),
    _entry("accuracy", lambda s, y: jnp.mean(jnp.argmax(s, 1) == y), NORMAL, LABEL),
    _entry("integer counting", lambda x: (jnp.sum(x > 1), jnp.sum(x == 0, axis=0)), SMALL),
    _entry("integer sum that wraps", lambda x: jnp.sum(x * 100_000_000, axis=0), INTEGER),
    _entry("any and all", lambda x: (jnp.any(x, 0), jnp.all(x, 0), jnp.all(jnp.any(x, 1))), BOOL),
    _entry("argmax row gather", lambda x, s: x[jnp.argmax(s)], NORMAL, NORMAL()),
    _entry("bfloat16 Gram matrix", lambda x: x.astype(jnp.bfloat16).T @ x.astype(jnp.bfloat16), NORMAL),
    _entry("bfloat16 sum", lambda x: jnp.sum(x.astype(jnp.bfloat16), axis=0), NORMAL),
    _entry("float16 mean", lambda x: jnp.mean(x.astype(jnp.float16), axis=0), NORMAL),
    _entry(
        "solve in each row", jax.vmap(lambda a, b: jnp.linalg.solve(a @ a.T + jnp.eye(3), b)), NORMAL(3, 3), NORMAL(3)
    ),
    _entry("newton root in each row", newton_root, POSITIVE()),
    _entry("while_loop counts in each row", steps_to_root, POSITIVE()),
    _entry("cond on a shared flag", on_a_flag, NORMAL, _FLAG),
    _entry("cond on its own mean", on_its_own_mean, NORMAL),
    _entry("switch in each row", switched_rows, NORMAL, LABEL),
    _entry("bootstrapped mean", bootstrapped_mean, NORMAL, KEY),
    _entry("random projection", lambda x, k: x @ jax.random.normal(jax.random.wrap_key_data(k), (5, 3)), NORMAL, KEY),
    _entry("rows along 1", lambda x: (x - x.mean(1, keepdims=True)) @ x.T, NORMAL.along(1)),
    _entry("two tables of rows along different axes", lambda x, y: x @ y, NORMAL.along(1), NORMAL(3)),
    _entry("shared weights, row offsets", lambda w, x, b: jnp.tanh(x @ w) + b, _WEIGHTS, NORMAL, NORMAL()),
    _entry("does not depend on rows", lambda x, w: (x.sum(), jnp.sin(w)), NORMAL, _WEIGHTS),
]
