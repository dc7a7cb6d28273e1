"""Which carries add up: steps of scans, each with the carries to which something is added."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from erythroxy_tx import _compat
from erythroxy_tx.program.scans.accumulators import unrounded

N = 8
C = jax.ShapeDtypeStruct((N,), jnp.float32)
ONE = jax.ShapeDtypeStruct((), jnp.float32)
X = {"x": C, "i": jax.ShapeDtypeStruct((), jnp.int32), "on": jax.ShapeDtypeStruct((), jnp.bool), "n": ONE}
P = {
    "a": C,
    "w": jax.ShapeDtypeStruct((N, N), jnp.float32),
    "decay": ONE,
    "one": jax.ShapeDtypeStruct((1,), jnp.float32),
    "key": jax.eval_shape(jax.random.key, 0),
}


class At(dict):
    """What comes with a step, or is shared by all, by name: `at.x`, `at.w`."""

    __getattr__ = dict.__getitem__


def added(step: Callable[[At, Any], Any], init: Any = C) -> list[str | None]:
    """The line at which each carry of `step(at, carry) -> carry` is added to."""
    return [(why and why.partition("added to at ")[2]) or None for why in reasons(step, init)]


def reasons(step: Callable[[At, Any], Any], init: Any = C, *, strict: bool = False) -> list[str | None]:
    """Why each carry must not be rounded."""

    def run(shared: dict, init: Any, xs: dict) -> Any:
        return lax.scan(lambda carry, x: (step(At(shared | x), carry), None), init, xs)

    xs = {name: jax.ShapeDtypeStruct((5, *x.shape), x.dtype) for name, x in X.items()}
    (scan,) = (eqn for eqn in jax.make_jaxpr(run)(P, init, xs).jaxpr.eqns if eqn.primitive.name == "scan")
    return unrounded(_compat.closed(scan.params["jaxpr"]).jaxpr, *_compat.scan_counts(scan), strict=strict)


def cell(at: At, c: Any) -> Any:
    return jnp.tanh(c @ at.w + at.x)


@jax.custom_jvp
def plus(a: Any, b: Any) -> Any:
    return a + b


plus.defjvps(lambda d, _, a, b: 2 * d, None)


@jax.custom_vjp
def minus(a: Any, b: Any) -> Any:
    return a - b


minus.defvjp(lambda a, b: (a - b, None), lambda _, d: (d, -d))


def hidden_markov(at: At, c: Any) -> Any:
    return jax.nn.logsumexp(c[:, None] + at.w, axis=0) + at.x


def ctc(at: At, c: Any) -> Any:
    stayed = jnp.logaddexp(c, jnp.concatenate([jnp.full(1, -1e5), c[:-1]]))
    return jnp.where(at.on, stayed + at.x, c)


ADDS: dict[str, Callable[[At, Any], Any]] = {
    "sum": lambda at, c: c + at.x,
    "difference": lambda at, c: c - at.x,
    "signs that alternate": lambda at, c: at.x - c,
    "sum of many": lambda at, c: sum([at.x, at.x**2, c, at.a]),
    "in another order": lambda at, c: jnp.roll(c.reshape(2, 4).T.ravel()[::-1], 1) + at.x,
    "near it": lambda at, c: lax.cummin(lax.cummax(jnp.copy(jnp.ceil(jnp.round(lax.clamp(-9.0, -c, 9.0)))))) + at.x,
    "cut": lambda at, c: jnp.pad(jnp.concatenate(jnp.split(jnp.tile(lax.top_k(c, 3)[0], 2), 2)), 1) + at.x,
    # masks
    "where": lambda at, c: jnp.where(at.on, c + at.x, c),
    "where, inside": lambda at, c: c + jnp.where(at.on, at.x, 0.0),
    "lax.select": lambda at, c: lax.select(at.x > 0, c + at.x, c),
    "cond": lambda at, c: lax.cond(at.on, lambda c: c + at.x, lambda c: c, c),
    "cond without an operand": lambda at, c: lax.cond(at.on, lambda: c + at.x, lambda: c),
    "switch": lambda at, c: lax.switch(at.i, [lambda c: c, lambda c: c + 1, jnp.tanh], c),
    "started again": lambda at, c: jnp.where(at.on, at.x, c + at.x),
    "times a mask": lambda at, c: c + at.on * at.x,
    "times what is left of a mask": lambda at, c: (1 - at.on) * c + at.x,
    "chosen by a mask": lambda at, c: at.on * (c + at.x) + (1 - at.on) * c,
    "times a mask of numbers": lambda at, c: jnp.where(at.on, 0.0, 0.99) * c + at.x,
    # inside of
    "jit": lambda at, c: jax.jit(lambda c, x: c + x)(c, at.x),
    "jnp": lambda at, c: jnp.nan_to_num(jnp.clip(jnp.add(c, at.x), 0, 9)),
    "checkpoint": lambda at, c: jax.checkpoint(lambda c: c + jnp.sin(at.x))(c),
    "relu": lambda at, c: jax.nn.relu(c + at.x),
    "custom_jvp": lambda at, c: plus(c, at.x),
    "custom_vjp": lambda at, c: minus(c, at.x),
    "scan": lambda at, c: lax.scan(lambda c, x: (c + x, None), c, at.w)[0],
    "scan over it": lambda at, c: c + lax.scan(lambda s, x: (s + x, s), 0.0, c)[1],
    "fori_loop": lambda at, c: lax.fori_loop(0, 3, lambda i, c: c + i * at.x, c),
    "while_loop": lambda at, c: lax.while_loop(lambda c: c[0] < at.n, lambda c: c + at.x, c),
    "a loop that hands it round": lambda at, c: lax.fori_loop(0, 3, lambda i, s: (s[1], s[0] + at.x), (c, at.a))[1],
    "vmap": lambda at, c: jax.vmap(lambda c, x: lax.cond(x > 0, lambda c: c + x, lambda c: c, c))(c, at.x),
    "vmap of a loop": lambda at, c: jax.vmap(lambda c: lax.while_loop(lambda c: c < at.n, lambda c: c + 1, c))(c),
    "a name": lambda at, c: checkpoint_name(c + at.x, "total"),
    "stop_gradient": lambda at, c: lax.stop_gradient(c) + at.x,
    "barrier": lambda at, c: sum(lax.optimization_barrier((c, at.x))),
    # dtypes
    "in bf16": lambda at, c: (c.astype(jnp.bfloat16) + at.x.astype(jnp.bfloat16)).astype(jnp.float32),
    "with noise": lambda at, c: c + jax.random.normal(at.key, (N,)),
    "dropped out": lambda at, c: c * jax.random.bernoulli(at.key, 0.9, (N,)) + at.x,
    # decays
    "a decay": lambda at, c: 0.9 * c + at.x,
    "a slow decay": lambda at, c: c * 0.999 + 0.001 * at.x,
    "a decay that is shared": lambda at, c: at.decay * c + (1 - at.decay) * at.x,
    "a decay of one element": lambda at, c: at.one * c + at.x,
    "a learnt decay": lambda at, c: jax.nn.sigmoid(at.decay) * c + at.x,
    "a decay by the step": lambda at, c: 0.9**at.i * c + at.x,
    "a decay alone": lambda at, c: 0.999 * c,
    "a quotient": lambda at, c: c / 1.01 + at.x,
    "towards": lambda at, c: c + 0.1 * (at.x - c),
    "towards, by optax": lambda at, c: optax.incremental_update(at.x, c, 1e-3),
    "growth": lambda at, c: c + c * at.x,
    # weights
    "descent": lambda at, c: c - 1e-3 * jax.grad(lambda c: ((at.x @ at.w - c) ** 2).sum())(c),
    "residual": lambda at, c: c + cell(at, c),
    "Runge and Kutta": lambda at, c: c + 0.1 / 6 * (cell(at, c) + 2 * cell(at, c + 0.05 * cell(at, c))),
    # buffers
    "at[i].add": lambda at, c: c.at[at.i].add(at.n),
    "at[i].subtract": lambda at, c: c.at[at.i].subtract(at.n),
    "at[i].set of itself": lambda at, c: c.at[at.i].set(c[at.i] + at.n),
    "at[i].max after a sum": lambda at, c: (c + at.x).at[at.i].max(at.n),
    "at[:3].set of itself": lambda at, c: c.at[:3].set(c[:3] + at.x[:3]),
    "slice": lambda at, c: lax.dynamic_update_slice(c, lax.dynamic_slice(c, (at.i,), (2,)) + at.n, (at.i,)),
    "segment_sum": lambda at, c: c + jax.ops.segment_sum(at.x, jnp.arange(N) % 2, N),
    "histogram": lambda at, c: c + jnp.bincount(at.i[None], length=N),
    # means
    "mean of counts": lambda at, c: c + (at.x - c) / (at.i + 1),
    "mean of numbers": lambda at, c: c + (at.x - c) / at.n,
    "mean, as a product": lambda at, c: (c * at.i + at.x) / (at.i + 1),
    "mean of neighbours": lambda at, c: 0.25 * (jnp.roll(c, 1) + jnp.roll(c, 2) + jnp.roll(c, -1) + jnp.roll(c, -2)),
    "mean of all": lambda at, c: jnp.broadcast_to(c.mean(), (N,)) + at.x,
    "normalised": lambda at, c: (c + 0.01 * at.x) / jnp.linalg.norm(c + 0.01 * at.x),
    # limits
    "clip": lambda at, c: jnp.clip(c + at.x, -1, 1),
    "drawdown": lambda at, c: jnp.maximum(c + at.x, 0),
    "an angle": lambda at, c: (c + 0.01 * at.x) % (2 * jnp.pi),
    "reflected": lambda at, c: jnp.abs(c + at.x),
    "whole numbers": lambda at, c: jnp.floor(c + 1.5),
    "sorted": lambda at, c: jnp.sort(c) + at.x,
    # logarithms
    "logaddexp": lambda at, c: jnp.logaddexp(c, at.x),
    "hidden_markov": hidden_markov,
    "most likely path": lambda at, c: (c[:, None] + at.w).max(0) + at.x,
    "ctc": ctc,
    "cumsum": lambda at, c: jnp.cumsum(c) + at.x,
}

DOES_NOT_ADD: dict[str, Callable[[At, Any], Any]] = {
    "rnn": cell,
    "gru": lambda at, c: (1 - jax.nn.sigmoid(c @ at.w)) * c + jax.nn.sigmoid(c @ at.w) * jnp.tanh(at.x),
    "gate of inputs": lambda at, c: jax.nn.sigmoid(at.x) * c + at.x,
    "state space": lambda at, c: at.a * c + at.x,
    "state space, by a matrix": lambda at, c: c @ at.w + at.x,
    "leaky": lambda at, c: 0.1 * c + at.x,
    "leaky, in two steps": lambda at, c: 0.6 * (0.6 * c) + at.x,
    "leaky, as a quotient": lambda at, c: c / 10 + at.x,
    "leaky, through a function": lambda at, c: jax.jit(jnp.multiply)(0.1, c) + at.x,
    "none of it": lambda at, c: 0 * c + at.x,
    "replaced": lambda at, c: at.x,
    "maximum": lambda at, c: jnp.maximum(c, at.x),
    "maximum, by where": lambda at, c: jnp.where(at.x > c, at.x, c),
    "held": lambda at, c: jnp.where(at.on, at.x, c),
    "buffer": lambda at, c: c.at[at.i].set(at.n),
    "buffer, by a slice": lambda at, c: lax.dynamic_update_slice(c, at.x[:2], (at.i,)),
    "queue": lambda at, c: jnp.concatenate([c[1:], at.x[:1]]),
    "extremes": lambda at, c: c.at[at.i].max(at.n),
    "layer norm": lambda at, c: (c @ at.w - (c @ at.w).mean()) / (c @ at.w).std(),
    "one over": lambda at, c: 1 / c,
    "squares": lambda at, c: jnp.sqrt(c**2 + at.x**2),
    "replaced in a loop": lambda at, c: lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c + at.x), c),
    "compared": lambda at, c: (c > at.x) + at.x,
    "noise": lambda at, c: c * jax.random.uniform(jax.random.fold_in(at.key, at.i), (N,)) + at.x,
    "growth, as a product": lambda at, c: c * (1 + at.x),  # which looks as a gate does
}


@pytest.mark.parametrize("step", ADDS.values(), ids=ADDS)
def test_adds_up(step: Callable) -> None:
    (line,) = added(step)
    assert line is not None
    assert "test_accumulators.py" in line or "optax" in line


@pytest.mark.parametrize("step", DOES_NOT_ADD.values(), ids=DOES_NOT_ADD)
def test_does_not(step: Callable) -> None:
    assert added(step) == [None]


# ---------------------------------------------------------------------- several carries

ADAMW = optax.inject_hyperparams(optax.adamw)(1e-3)  # whose decays are in the state
OPTIMISERS = {"adam": optax.adam(1e-3), "sgd": optax.sgd(1e-2, 0.9), "rmsprop": optax.rmsprop(1e-3), "adamw": ADAMW}


def trained(optimiser: Any) -> Callable[[At, Any], Any]:
    def step(at: At, state: Any) -> Any:
        params, state = state
        gradient = jax.grad(lambda p: (jnp.tanh(at.x @ p["w"] + p["b"]) ** 2).sum())(params)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return step


def lstm(at: At, state: Any) -> Any:
    h, c = state
    i, f, o = (jax.nn.sigmoid(h @ at.w + at.x + k) for k in range(3))  # f has 1.0 added, as is usual
    c = f * c + i * jnp.tanh(h @ at.w)
    return o * jnp.tanh(c), c


def welford(at: At, state: Any) -> Any:
    n, mean, squares = state
    n = n + 1
    moved = mean + (at.x - mean) / n
    return n, moved, squares + (at.x - mean) * (at.x - moved)


def kahan(at: At, state: Any) -> Any:
    total, lost = state
    x = at.x - lost
    moved = total + x
    return moved, (moved - total) - x


TOGETHER: dict[str, tuple[Callable, Any, Any]] = {
    "a cell and a sum": (lambda at, s: (cell(at, s[0]), s[1] + cell(at, s[0])), (C, C), (False, True)),
    "a cell that reads the sum": (lambda at, s: (jnp.tanh(s[1] + at.x), s[1] + s[0]), (C, C), (False, True)),
    "by name": (
        lambda at, s: {"h": cell(at, s["h"]), "logs": {"pnl": s["logs"]["pnl"] + at.x, "last": at.x}},
        {"h": C, "logs": {"pnl": C, "last": C}},
        {"h": False, "logs": {"pnl": True, "last": False}},
    ),
    "an integer that counts": (lambda at, s: (s[0] + 1, cell(at, s[1])), (X["i"], C), (False, False)),
    "places that are changed": (lambda at, s: (s[1], s[0] + at.x), (C, C), (True, True)),
    "places that are changed, with a gate": (lambda at, s: (s[1], at.x * s[0] + at.x), (C, C), (False, False)),
    "places that are changed, leaky": (lambda at, s: (s[1], 0.3 * s[0] + at.x), (C, C), (False, False)),
    "the sum before": (lambda at, s: (s[0] + at.x, s[0]), (C, C), (True, True)),
    "the highest sum": (lambda at, s: (s[0] + at.x, jnp.maximum(s[1], s[0])), (C, C), (True, True)),
    "a function of the sum": (lambda at, s: (s[0] + at.x, jnp.tanh(s[0]) + 0.1 * s[0]), (C, C), (True, False)),
    "position and speed": (lambda at, s: (s[0] + 0.1 * s[1], s[1] + 0.1 * jnp.sin(s[0])), (C, C), (True, True)),
    "Verlet": (lambda at, s: (2 * s[0] - s[1] + at.x, s[0]), (C, C), (True, True)),
    "two that share what they have": (lambda at, s: (0.3 * s[0] + 0.3 * s[1], s[0]), (C, C), (True, True)),
    "lstm": (lstm, (C, C), (False, False)),
    "welford": (welford, (ONE, C, C), (True, True, True)),
    "kahan": (kahan, (C, C), (True, True)),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_carries_of_one_step(name: str) -> None:
    step, init, expected = TOGETHER[name]
    assert jax.tree.unflatten(jax.tree.structure(init), [line is not None for line in added(step, init)]) == expected


@pytest.mark.parametrize("name", OPTIMISERS)
def test_weights_and_moments(name: str) -> None:
    params = {"w": P["w"], "b": C}
    state = jax.eval_shape(OPTIMISERS[name].init, params)
    found = added(trained(OPTIMISERS[name]), (params, state))
    assert sum(line is not None for line in found) == sum(leaf.ndim > 0 for leaf in jax.tree.leaves((params, state)))


def test_the_line_is_that_of_the_addition() -> None:
    def step(at: At, state: Any) -> Any:
        mean, total = state
        mean = mean + 0.1 * (at.x - mean)  # the line
        return mean, jnp.logaddexp(total, at.x)  # and the next

    first, second = (line for line in added(step, (C, C)) if line)
    here = step.__code__.co_firstlineno
    assert f"test_accumulators.py:{here + 2}:" in first
    assert f"test_accumulators.py:{here + 3}:" in second


def test_lines_inside_of_jax() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_compat, "source_line", lambda eqn: "")
        assert added(lambda at, c: c + at.x) == ["a line inside of JAX"]


@pytest.mark.parametrize("odd", [np.nan, np.inf, 0.0, -1.0])
def test_a_loop_by_odd_numbers_ends(odd: float) -> None:
    assert added(lambda at, c: lax.fori_loop(0, 3, lambda i, c: c * odd + c / odd + 2 * c, c)) != [None]


LEVELS: dict[str, Callable] = {
    "a price that is differenced": lambda at, s: (at.x, jnp.tanh(s[1] * (at.x - s[0]))),
    "a price that a ratio is taken of": lambda at, s: (at.x, jnp.tanh(s[1] * (at.x / s[0] - 1))),
    "a price whose logarithm is": lambda at, s: (at.x, jnp.tanh(s[1] * (jnp.log(at.x) - jnp.log(s[0])))),
    "one that decides": lambda at, s: (at.x, jnp.where(at.x > s[0], jnp.tanh(s[1]), 0.3 * s[1])),
    "in jit": lambda at, s: (at.x, jnp.tanh(s[1] * jax.jit(jnp.subtract)(at.x, s[0]))),
}


@pytest.mark.parametrize("name", LEVELS)
def test_levels_are_compared(name: str) -> None:
    level, state = reasons(LEVELS[name], (C, C))
    assert "compared with others at" in str(level)
    assert state is None


def gru(at: At, h: Any) -> Any:
    z = jax.nn.sigmoid(at.w @ h + at.x)
    return (1 - z) * h + z * jnp.tanh(at.w @ h)


# What is halved where only the tape is rounded, and not where each step rounds.
BUILDS_UP: dict[str, Callable[[At, Any], Any]] = {
    "compound interest": lambda at, c: c * (1 + at.x),
    "compound interest by exp": lambda at, c: c * jnp.exp(at.x),
    "decays in an array": lambda at, c: at.a * c + (1 - at.a) * at.x,
    "a linear state": lambda at, c: at.w @ c + at.x,
    "a root": lambda at, c: jnp.sqrt(c * c + at.x**2),
    "a float mask": lambda at, c: c * at.x,
}


@pytest.mark.parametrize("name", BUILDS_UP)
def test_what_builds_up_by_products(name: str) -> None:
    assert reasons(BUILDS_UP[name]) == [None]
    assert "added to at" in str(reasons(BUILDS_UP[name], strict=True)[0])


def test_what_is_bounded_or_gated_is_halved_in_any_case() -> None:
    for step, init in ((cell, C), (gru, C), (lstm, (C, C))):
        assert set(reasons(step, init, strict=True)) == {None}
