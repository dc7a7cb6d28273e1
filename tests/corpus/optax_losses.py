"""Losses and projections of Optax; none where Optax is not installed."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .draws import BOOL
from .draws import LABEL
from .draws import NORMAL
from .draws import POSITIVE
from .draws import PROBABILITY
from .draws import SIGN
from .draws import SIMPLEX
from .draws import SMALL
from .draws import Draw
from .entry import Entry
from .entry import Family
from .entry import named

try:
    import optax
except ImportError:
    optax = None

_OPTAX = Family("optax", "optax.")

_LOSSES: dict[tuple[Draw, Draw], str] = {
    (NORMAL, NORMAL): "cosine_distance cosine_similarity huber_loss l2_loss log_cosh squared_error",
    (NORMAL, SIMPLEX): """
        generalized_kl_divergence kl_divergence poly_loss_cross_entropy ranking_softmax_loss
        safe_softmax_cross_entropy softmax_cross_entropy""",
    (NORMAL, SIGN): "hinge_loss perceptron_loss",
    (NORMAL, PROBABILITY): "sigmoid_binary_cross_entropy sigmoid_focal_loss",
    (NORMAL(), BOOL()): "sparsemax_loss",
    (NORMAL, LABEL): """
        multiclass_hinge_loss multiclass_perceptron_loss multiclass_sparsemax_loss
        softmax_cross_entropy_with_integer_labels""",
    (NORMAL, BOOL): "binary_dice_loss dice_loss multiclass_generalized_dice_loss",
}
"""Predictions or scores, then targets or labels."""

_WITH_AXIS = """
    cosine_distance cosine_similarity generalized_kl_divergence kl_divergence poly_loss_cross_entropy
    softmax_cross_entropy"""
_PROJECTIONS = "l1_ball l1_sphere l2_ball l2_sphere linf_ball non_negative simplex hypercube"


def _losses() -> Iterator[Entry]:
    along, entry = _OPTAX.along, _OPTAX.entry
    losses = optax.losses
    for draws, names in _LOSSES.items():
        for name, loss in named(losses, names):
            yield entry(name, loss, *draws)

            def mean(x: Array, y: Array, f: Callable[..., Array] = loss) -> Array:
                return jnp.mean(f(x, y))

            yield entry(f"{name} mean, value and gradient", jax.value_and_grad(mean), *draws)
    for name in _WITH_AXIS.split():
        yield from along(losses, name, NORMAL, NORMAL if name.startswith("cosine") else SIMPLEX, axes=(0,))

    def masked(x: Array, y: Array, m: Array) -> Array:
        return losses.softmax_cross_entropy(x, y, where=m.at[:, 0].set(True))

    yield entry("softmax_cross_entropy masked", masked, NORMAL, SIMPLEX, BOOL)
    yield entry("huber_loss with a shared target", lambda x, y: losses.huber_loss(x, y).mean(), NORMAL, NORMAL.shared)

    def logs(p: Array, q: Array) -> Array:
        return losses.kl_divergence_with_log_targets(jnp.log(p), jnp.log(q))

    yield entry("kl_divergence_with_log_targets", logs, SIMPLEX, SIMPLEX)
    yield entry("smooth_labels", lambda y: losses.smooth_labels(jax.nn.one_hot(y, 5), 0.1), LABEL)
    yield entry("ntxent", losses.ntxent, NORMAL, LABEL)
    yield entry("triplet_margin_loss", losses.triplet_margin_loss, NORMAL, NORMAL, NORMAL)
    young = jax.vmap(losses.make_fenchel_young_loss(jax.nn.logsumexp))
    yield entry("make_fenchel_young_loss", young, NORMAL, SIMPLEX)

    def ctc(fn: Callable[..., Any]) -> Callable[..., Any]:
        def run(logits: Array, labels: Array) -> Any:
            return fn(logits, jnp.zeros(logits.shape[:2]), labels, jnp.zeros(labels.shape))

        return run

    for name in ("ctc_loss", "ctc_loss_with_forward_probs"):
        yield entry(name, ctc(getattr(losses, name)), NORMAL(6, 5), SMALL(2))


def _projections() -> Iterator[Entry]:
    entry = _OPTAX.entry
    for name in _PROJECTIONS.split():
        project = getattr(optax.projections, f"projection_{name}")
        yield entry(f"projection_{name} of the table", lambda x, f=project: f(x), NORMAL)
        yield entry(f"projection_{name} in each row", jax.vmap(lambda x, f=project: f(x)), NORMAL)
    for name in ("halfspace", "hyperplane"):
        project = getattr(optax.projections, f"projection_{name}")
        yield entry(f"projection_{name} of the table", lambda x, a, f=project: f(x, a, 0.5), NORMAL(), POSITIVE())
        yield entry(
            f"projection_{name} in each row",
            jax.vmap(lambda x, a, f=project: f(x, a, 0.5), (0, None)),
            NORMAL,
            POSITIVE.shared,
        )
    project = optax.projections.projection_vector
    yield entry("projection_vector of the table", project, NORMAL(), POSITIVE())
    yield entry("projection_vector in each row", jax.vmap(project, (0, None)), NORMAL, POSITIVE.shared)

    def box(x: Array, low: Array, high: Array) -> Array:
        return optax.projections.projection_box(x, low - 2, high)

    yield entry("projection_box", box, NORMAL, PROBABILITY, POSITIVE)


def _steps() -> Iterator[Entry]:
    """Optimisers inside a function of rows."""

    def descend(x: Array, y: Array, make: Callable[[], Any]) -> Array:
        optimiser = make()

        def step(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], Array]:
            w, state = carry
            loss, slope = jax.value_and_grad(lambda w: optax.losses.squared_error(x @ w, y).mean())(w)
            updates, state = optimiser.update(slope, state, w)
            return (optax.apply_updates(w, updates), state), loss

        w = jnp.zeros(x.shape[1])
        return jax.lax.scan(step, (w, optimiser.init(w)), None, length=4)[0][0]

    for name, make in named(optax, "sgd adam rmsprop"):

        def run(x: Array, y: Array, f: Callable[..., Any] = make) -> Array:
            return descend(x, y, lambda: f(0.1))

        yield _OPTAX.entry(f"{name} for four steps", run, NORMAL, NORMAL())


ENTRIES = [] if optax is None else [*_losses(), *_projections(), *_steps()]
