"""Programs in which the order of rows matters: windows, recurrences, sorting, positions, random rows.

Not here: fits, in which rows are exchangeable (`compositions_fits.py`).
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax import lax

from .draws import ASCENDING
from .draws import BOOL
from .draws import INTEGER
from .draws import KEY
from .draws import LABEL
from .draws import NORMAL
from .draws import POSITIVE
from .draws import PROBABILITY
from .draws import SMALL
from .entry import Family

_entry = Family("composition", "compose: ").entry


def ewma(x: Array) -> Array:
    def step(mean: Array, row: Array) -> tuple[Array, Array]:
        mean = 0.9 * mean + 0.1 * row
        return mean, mean

    return lax.scan(step, x[0], x)[1]


def welford(x: Array) -> tuple[Array, Array]:
    def step(state: tuple[Array, Array, Array], row: Array) -> tuple[tuple[Array, Array, Array], Array]:
        count, mean, square = state
        count = count + 1
        gap = row - mean
        mean = mean + gap / count
        square = square + gap * (row - mean)
        return (count, mean, square), square / count

    (_, mean, _), variances = lax.scan(step, (0.0, jnp.zeros(x.shape[1]), jnp.zeros(x.shape[1])), x)
    return mean, variances


def kalman(y: Array, transition: Array) -> tuple[Array, Array]:
    transition = transition / (1 + jnp.linalg.norm(transition))

    def step(state: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], Array]:
        mean, spread = state
        mean = transition @ mean
        spread = transition @ spread @ transition.T + 0.1 * jnp.eye(3)
        gain = jnp.linalg.solve(spread + jnp.eye(3), spread).T
        mean = mean + gain @ (row - mean)
        return (mean, spread - gain @ spread), mean

    (_, spread), means = lax.scan(step, (jnp.zeros(3), jnp.eye(3)), y)
    return means, spread


def discounted(reward: Array, done: Array) -> Array:
    def step(value: Array, here: tuple[Array, Array]) -> tuple[Array, Array]:
        value = here[0] + 0.95 * value * ~here[1]
        return value, value

    return lax.scan(step, 0.0, (reward, done), reverse=True)[1]


def advantages(reward: Array, value: Array) -> Array:
    gap = reward[:-1] + 0.95 * value[1:] - value[:-1]
    return lax.scan(lambda a, d: (d + 0.9 * a, d + 0.9 * a), 0.0, gap, reverse=True)[1]


def there_and_back(x: Array) -> Array:
    forward = lax.scan(lambda c, r: (jnp.tanh(c + r), jnp.tanh(c + r)), jnp.zeros(x.shape[1]), x)[1]
    backward = lax.scan(lambda c, r: (jnp.tanh(c + r), jnp.tanh(c + r)), jnp.zeros(x.shape[1]), x, reverse=True)[1]
    return forward * backward / (1 + x.std(0))


def garch(r: Array) -> Array:
    def step(v: Array, s: Array) -> tuple[Array, Array]:
        return (0.1 + 0.8 * v + 0.1 * s, v)

    variance = lax.scan(step, jnp.var(r), r**2)[1]
    return -0.5 * jnp.sum(jnp.log(variance) + r**2 / variance)


def viterbi_scores(score: Array, move: Array) -> tuple[Array, Array]:
    def step(best: Array, row: Array) -> tuple[Array, Array]:
        through = best[:, None] + move
        return through.max(0) + row, through.argmax(0)

    return lax.scan(step, jnp.zeros(5), score)


def moving_deviation(x: Array) -> Array:
    padded = jnp.pad(x, ((2, 0), (0, 0)), mode="edge")
    windows = jnp.stack([padded[i : i + x.shape[0]] for i in range(3)])
    return windows.std(0)


def moving_sum_by_cumsum(x: Array) -> Array:
    total = jnp.cumsum(x, axis=0)
    return total.at[3:].add(-total[:-3])


def autocorrelation(x: Array) -> Array:
    z = x - x.mean()
    return jnp.stack([z @ z, z[1:] @ z[:-1], z[2:] @ z[:-2]]) / (z @ z)


def windows_gathered(x: Array) -> Array:
    return x[jnp.arange(x.shape[0] - 2)[:, None] + jnp.arange(3)].mean(1)


def auc(score: Array, label: Array) -> Array:
    rank = jnp.argsort(jnp.argsort(score)) + 1.0
    positive = label.sum()
    return (jnp.sum(rank * label) - positive * (positive + 1) / 2) / jnp.maximum(positive * (~label).sum(), 1)


def lorenz_curve(x: Array) -> Array:
    total = jnp.cumsum(jnp.sort(x))
    return total / total[-1]


def average_precision(score: Array, label: Array) -> Array:
    hit = label[jnp.argsort(-score)].astype(jnp.float32)
    precision = jnp.cumsum(hit) / (1 + jnp.arange(hit.shape[0]))
    return jnp.sum(precision * hit) / jnp.maximum(hit.sum(), 1)


def best_rows(x: Array, score: Array) -> Array:
    _, rows = lax.top_k(score, 3)
    return x[rows]


def positional(x: Array) -> Array:
    angle = jnp.arange(x.shape[0])[:, None] / 100 ** (jnp.arange(3) / 3)
    return x + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)


def detrended(y: Array) -> Array:
    t = jnp.arange(y.shape[0]) / y.shape[0]
    design = jnp.stack([jnp.ones_like(t), t], axis=1)
    return y - design @ jnp.linalg.solve(design.T @ design + 1e-3 * jnp.eye(2), design.T @ y)


def minibatches(x: Array, y: Array) -> Array:
    def step(w: Array, start: Array) -> tuple[Array, None]:
        rows = lax.dynamic_slice_in_dim(x, start, 2)
        target = lax.dynamic_slice_in_dim(y, start, 2)
        return w - 0.1 * rows.T @ (rows @ w - target), None

    return lax.scan(step, jnp.zeros(x.shape[1]), jnp.arange(3) % (x.shape[0] - 1))[0]


def shuffled(x: Array, key: Array) -> Array:
    return x[jax.random.permutation(jax.random.wrap_key_data(key), x.shape[0])]


def dropped(x: Array, key: Array) -> Array:
    return jnp.where(jax.random.bernoulli(jax.random.wrap_key_data(key), 0.7, x.shape), x / 0.7, 0.0)


def key_a_row(x: Array, key: Array) -> Array:
    keys = jax.random.split(jax.random.wrap_key_data(key), x.shape[0])
    return x + jax.vmap(lambda k: jax.random.normal(k, (x.shape[1],)))(keys)


def folded_keys(x: Array, key: Array) -> Array:
    key = jax.random.wrap_key_data(key)
    return x + jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(jnp.arange(x.shape[0]))[:, None]


def noisy_walk(x: Array, key: Array) -> Array:
    def step(state: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], Array]:
        key, place = state
        key, now = jax.random.split(key)
        place = place + row * jax.random.normal(now)
        return (key, place), place

    return lax.scan(step, (jax.random.wrap_key_data(key), jnp.zeros(x.shape[1])), x)[1]


def associative_decay(a: Array, b: Array) -> Array:
    return lax.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (a, b))[1]


def nested_scan(x: Array) -> Array:
    def outer(total: Array, row: Array) -> tuple[Array, Array]:
        inner, _ = lax.scan(lambda c, v: (0.5 * c + v, None), 0.0, row)
        return total + inner, total

    return lax.scan(outer, 0.0, x)[1]


def first_above(x: Array) -> Array:
    return jnp.argmax(jnp.cumsum(x) > 2.0)


def fori_over_rows(x: Array) -> Array:
    return lax.fori_loop(0, x.shape[0], lambda i, c: 0.5 * c + x[i], jnp.zeros(x.shape[1]))


def while_over_rows(x: Array) -> tuple[Array, Array]:
    def step(s: tuple[int, Array]) -> tuple[int, Array]:
        return (s[0] + 1, s[1] + x[s[0]])

    return lax.while_loop(lambda s: (s[0] < x.shape[0]) & (s[1].sum() < 3.0), step, (0, jnp.zeros(x.shape[1])))


ENTRIES = [
    _entry("ewma", ewma, NORMAL),
    _entry("running variance", welford, NORMAL),
    _entry("kalman", kalman, NORMAL(3), NORMAL(3, 3).shared),
    _entry("discounted returns", discounted, NORMAL(), BOOL()),
    _entry("advantages", advantages, NORMAL(), NORMAL()),
    _entry("scans both ways", there_and_back, NORMAL),
    _entry("garch likelihood", garch, NORMAL()),
    _entry("viterbi scores", viterbi_scores, NORMAL, NORMAL(5, 5).shared),
    _entry("scan that emits nothing", lambda x: lax.scan(lambda c, r: (0.9 * c + r, None), jnp.zeros(5), x)[0], NORMAL),
    _entry("scan unrolled", lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c), 0.0, x, unroll=2), NORMAL()),
    _entry("scan of a map", lambda x: lax.map(lambda r: jnp.sort(r) / (1 + r @ r), x), NORMAL),
    _entry("associative decay", associative_decay, PROBABILITY(), NORMAL()),
    _entry("nested scan", nested_scan, NORMAL),
    _entry("fori_loop over rows", fori_over_rows, NORMAL),
    _entry("while_loop over rows", while_over_rows, POSITIVE),
    _entry("differences", lambda x: x[1:] - x[:-1], NORMAL),
    _entry("log returns, then volatility", lambda p: jnp.std(jnp.log(p[1:] / p[:-1])), POSITIVE()),
    _entry("moving average of three", lambda x: (x[:-2] + x[1:-1] + x[2:]) / 3, NORMAL),
    _entry("moving average by convolve", lambda x: jnp.convolve(x, jnp.ones(3) / 3, mode="same"), NORMAL()),
    _entry("moving deviation", moving_deviation, NORMAL),
    _entry("moving sum by cumsum", moving_sum_by_cumsum, NORMAL),
    _entry("windows by gather", windows_gathered, NORMAL),
    _entry("autocorrelation", autocorrelation, NORMAL()),
    _entry("lagged regression", lambda y: y[1:] @ y[:-1] / (y[:-1] @ y[:-1] + 0.1), NORMAL()),
    _entry("every other row", lambda x: x[::2], NORMAL),
    _entry("every other row from the second", lambda x: x[1::2].sum(0), NORMAL),
    _entry("reversed", lambda x: x[::-1], NORMAL),
    _entry("reversed cumsum", lambda x: jnp.cumsum(x[::-1], axis=0)[::-1], NORMAL),
    _entry("last row", lambda x: x[-1], NORMAL),
    _entry("first row", lambda x: x[0], NORMAL),
    _entry("against the first row", lambda x: x / x[0], POSITIVE),
    _entry("first and last", lambda x: x[-1] - x[0], NORMAL),
    _entry("first half", lambda x: x[: x.shape[0] // 2], NORMAL),
    _entry("halves", lambda x: x[: x.shape[0] // 2].sum(0) - x[x.shape[0] // 2 :].sum(0), NORMAL),
    _entry("first three rows", lambda x: x[:3], NORMAL),
    _entry("last three rows", lambda x: x[-3:], NORMAL),
    _entry("cumsum over its last", lambda x: jnp.cumsum(x, axis=0) / jnp.sum(x, axis=0), POSITIVE),
    _entry("cumsum over its last row", lambda x: jnp.cumsum(x, axis=0) / jnp.cumsum(x, axis=0)[-1], POSITIVE),
    _entry("drawdown", lambda x: jnp.max(lax.cummax(jnp.cumsum(x)) - jnp.cumsum(x)), NORMAL()),
    _entry("running count", lambda m: jnp.cumsum(m.astype(jnp.int32)) * m, BOOL()),
    _entry("first above", first_above, NORMAL()),
    _entry("area under the curve", auc, NORMAL(), BOOL()),
    _entry("average precision", average_precision, NORMAL(), BOOL()),
    _entry("lorenz curve", lorenz_curve, POSITIVE()),
    _entry("top rows", best_rows, NORMAL, NORMAL(), at_least=3),
    _entry("rows sorted by a column", lambda x: x[jnp.argsort(x[:, 0])], NORMAL),
    _entry("trimmed mean", lambda x: jnp.sort(x, axis=0)[1:-1].mean(0), NORMAL),
    _entry("positional encoding", positional, NORMAL(6)),
    _entry("detrended", detrended, NORMAL()),
    _entry("time weighted", lambda x: jnp.arange(x.shape[0]) @ x / x.shape[0], NORMAL),
    _entry("minibatches by dynamic_slice", minibatches, NORMAL, NORMAL(), at_least=2),
    _entry("trapezoid over times", jnp.trapezoid, NORMAL(), ASCENDING()),
    _entry("lookup of shared by rows", lambda i, t: t[i], LABEL, NORMAL(5, 3).shared),
    _entry("row of itself", lambda x, i: x[i % x.shape[0]], NORMAL, SMALL()),
    _entry("integer parity", lambda x: (x % 2 == 0).sum(0), INTEGER),
    _entry("shuffled", shuffled, NORMAL, KEY),
    _entry("dropout", dropped, NORMAL, KEY),
    _entry("a key for each row", key_a_row, NORMAL, KEY),
    _entry("a folded key for each row", folded_keys, NORMAL, KEY),
    _entry("noisy walk", noisy_walk, NORMAL, KEY),
    _entry("noise of a shape", lambda x, k: x + jax.random.normal(jax.random.wrap_key_data(k), x.shape), NORMAL, KEY),
]
