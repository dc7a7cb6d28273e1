"""`bf16_carry_scan`: values bit for bit, gradients close, sums in f32, and the fate of each carry told."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scanning import PROGRAMS
from scanning import UNFUSED
from scanning import H
from scanning import W
from scanning import bits
from scanning import cell
from scanning import gradient
from scanning import inputs

import erythroxy_tx as tx
from erythroxy_tx import _compat
from erythroxy_tx.program.scans import half
from erythroxy_tx.program.scans import tape
from erythroxy_tx.transforms import bf16_carry_scan as transform

NOTHING_ADDS_UP = {
    "without a carry",
    "nothing but what is shared",
    "one step",
    "no step",
    "in a custom_jvp",
    "optimiser",
}


def far(a: Any, b: Any) -> float:
    """The largest difference of a pair of leaves, of the largest number of the first."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(jnp.abs(x - y).max() / (jnp.abs(x).max() + 1e-30)) for x, y in pairs)


@pytest.mark.sampled(0.4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_the_same_bits_and_gradients_close(name: str) -> None:
    f = PROGRAMS[name]
    g = tx.bf16_carry_scan(f)
    assert bits(jax.jit(f)(W, H), g(W, H))
    found = jax.jit(jax.grad(g, (0, 1)), compiler_options=UNFUSED)(W, H)
    assert far(gradient(name), found) < 2e-2
    assert bits(gradient(name), found) == (name in NOTHING_ADDS_UP)


@pytest.mark.parametrize("name", ["forwards", "lstm", "a prime length in reverse", "in vmap"])
def test_with_segments_too(name: str) -> None:
    f = PROGRAMS[name]
    alone, outside, inside = (
        jax.jit(jax.grad(g, (0, 1)), compiler_options=UNFUSED)(W, H)
        for g in (
            tx.bf16_carry_scan(f),
            tx.checkpointed_scan(tx.bf16_carry_scan(f)),
            tx.bf16_carry_scan(tx.checkpointed_scan(f)),
        )
    )
    assert bits(alone, outside)
    assert bits(outside, inside)


@pytest.mark.parametrize("name", ["forwards", "lstm", "in reverse, with outputs", "a number carried"])
def test_carried_in_bf16(name: str) -> None:
    f = PROGRAMS[name]
    g = tx.bf16_carry_scan(f, round="carry")
    assert 0 < far(jax.jit(f)(W, H), g(W, H)) < 2e-2
    found = jax.jit(jax.grad(g, (0, 1)))(W, H)
    assert far(gradient(name), found) < 2e-2
    segments = jax.jit(jax.grad(tx.checkpointed_scan(g), (0, 1)))(W, H)
    assert far(found, segments) < 1e-5
    jaxpr = str(jax.make_jaxpr(g)(W, H))
    assert "bf16[3,4]" in jaxpr or name == "a number carried"


def test_second_derivatives_are_right_or_refused() -> None:
    f = PROGRAMS["in reverse, with outputs"]
    g = tx.bf16_carry_scan(f)
    twice = [jax.grad(lambda h, fn=fn: (jax.grad(fn, 1)(W, h) ** 2).sum()) for fn in (f, g)]
    forwards = [lambda h, fn=fn: jax.jvp(jax.grad(fn, 1), (W, h), (W, h))[1] for fn in (f, g)]
    for expected, found in (twice, forwards):
        if _compat.rewrites_stacks_of_bf16():
            with pytest.raises(NotImplementedError, match="was differentiated twice"):
                jax.jit(found)(H)
        else:
            assert far(jax.jit(expected)(H), jax.jit(found)(H)) < 3e-2
    assert far(jax.jvp(f, (W, H), (W, H))[1], jax.jvp(g, (W, H), (W, H))[1]) < 2e-2
    batch = jnp.stack([W, W / 2])
    assert far(*(jax.vmap(jax.grad(fn, 1), (0, None))(batch, H) for fn in (f, g))) < 2e-2


def test_bits_cannot_be_differentiated_wherever_the_derivative_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compat, "rewrites_stacks_of_bf16", lambda: True)
    tx.clear()
    g = tx.bf16_carry_scan(lambda w, h: (lax.scan(cell(w), h, inputs(5))[0] ** 2).sum())
    assert far(jax.grad(lambda w: (lax.scan(cell(w), H, inputs(5))[0] ** 2).sum())(W), jax.grad(g)(W, H)) < 2e-2
    for twice in (
        jax.grad(lambda h: (jax.grad(g, 1)(W, h) ** 2).sum()),
        lambda h: jax.jit(jax.jacfwd(jax.grad(g, 1), 1))(W, h),
        lambda h: jax.hessian(g, 1)(W, h),
        lambda h: jax.jacrev(jax.jit(jax.grad(g, 1)), 1)(W, h),
    ):
        with pytest.raises(NotImplementedError, match=r"Fix: tx\.checkpointed_scan"):
            twice(H)
    tx.clear()


def test_the_largest_numbers_stay_finite() -> None:
    def lowest(w: Any, xs: Any) -> Any:
        return lax.scan(lambda low, x: (jnp.tanh(x) + low * 0.1, low * w), jnp.finfo(jnp.float32).max, xs)[1][1:].sum()

    xs = jnp.arange(3.0)
    assert far(jax.grad(lowest)(1.0, xs), jax.grad(tx.bf16_carry_scan(lowest, keep=()))(1.0, xs)) < 2e-2


def test_in_chunks_and_padded() -> None:
    def each(x: Any) -> Any:
        return jax.vmap(lambda row: lax.scan(lambda h, t: (jnp.tanh(h + row * t), h), row, jnp.arange(9.0))[0])(x)

    x = jax.random.normal(jax.random.key(2), (10,))
    for around in (tx.chunked(lax.map, size=4), tx.pad_static(16)):
        for inside in (tx.bf16_carry_scan, tx.checkpointed_scan):
            f = around(inside(each))
            np.testing.assert_allclose(f(x), each(x), rtol=1e-6)
            slopes = (jax.grad(lambda x, fn=fn: (fn(x) ** 2).sum())(x) for fn in (f, each))
            np.testing.assert_allclose(*slopes, rtol=3e-2, atol=2e-2)


def test_the_tape_is_small() -> None:
    def loss(w: Any, h: Any, xs: Any) -> Any:
        return (lax.scan(cell(w), h, xs)[0] ** 2).mean()

    w, h, xs = jnp.eye(64), jnp.ones((8, 64)), jnp.ones((256, 8, 64))
    rematerialised = lambda w, h, xs: (lax.scan(jax.checkpoint(cell(w)), h, xs)[0] ** 2).mean()  # noqa: E731
    temps = [
        jax.jit(jax.grad(f)).lower(w, h, xs).compile().memory_analysis().temp_size_in_bytes
        for f in (
            rematerialised,
            tx.bf16_carry_scan(loss),
            tx.checkpointed_scan(loss),
            tx.checkpointed_scan(tx.bf16_carry_scan(loss)),
        )
    ]
    assert temps[1] < 0.65 * temps[0]
    assert temps[3] < temps[2] < temps[1]


def test_keep_names_what_stays() -> None:
    def f(h: Any) -> Any:
        def step(state, x):
            moved = jnp.tanh(state["h"] @ W + x)
            return {"h": moved, "sums": (state["sums"][0] + moved, state["sums"][1] + 1)}, None

        return lax.scan(step, {"h": h, "sums": (jnp.zeros_like(h), 0)}, inputs())[0]["sums"][0].sum()

    fates = {
        "auto": {"state['h']": "bf16 on the tape", "state['sums'][0]": "stays f32, as it is added to at"},
        (): {"state['h']": "bf16 on the tape", "state['sums'][0]": "bf16 on the tape"},
        "state['h']": {"state['h']": "stays f32, as keep says", "state['sums'][0]": "bf16 on the tape"},
        ("state['sums']",): {"state['h']": "bf16 on the tape", "state['sums'][0]": "stays f32, as keep says"},
        "state": {"state['h']": "stays f32, as keep says", "state['sums'][0]": "stays f32, as keep says"},
        lambda name, leaf: leaf.shape == H.shape and "h" in name: {
            "state['h']": "stays f32, as keep says",
            "state['sums'][0]": "bf16 on the tape",
        },
    }
    for keep, expected in fates.items():
        told = str(tx.explain(tx.bf16_carry_scan(f, keep=keep), H))
        assert "state['sums'][1], i32[]: stays as it is, not being f32" in told
        for name, fate in expected.items():
            assert f"{name}, f32[3,4]: {fate}" in told
    with pytest.raises(ValueError, match=r"keep='pnl', which no scan of .* carries. Expected of \"state\['h'\]\""):
        tx.bf16_carry_scan(f, keep="pnl")(H)
    with pytest.raises(ValueError, match="Expected 'tape' or 'carry'"):
        tx.bf16_carry_scan(f, round="all")
    with pytest.raises(ValueError, match=r"keep=3\. Expected 'auto', names of carries"):
        tx.bf16_carry_scan(f, keep=3)


# Inputs on which a sum in bf16 is far off: where it stalls, where it grows, where signs cancel.
FAMILIES: dict[str, Callable[[np.random.Generator], Any]] = {
    "ones": lambda rng: np.ones((336, 8)),
    "not negative": lambda rng: rng.uniform(0, 1, (336, 8)),
    "signs": lambda rng: rng.normal(size=(336, 8)),
    "falling": lambda rng: rng.uniform(0, 1, (336, 8)) / np.arange(1, 337)[:, None],
    "one large, then small": lambda rng: np.concatenate([np.full((1, 8), 1e3), rng.uniform(0, 1, (335, 8))]),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("round", ["tape", "carry"])
def test_sums_of_336_steps_are_those_of_f32(family: str, round: str) -> None:  # noqa: A002
    xs = jnp.asarray(FAMILIES[family](np.random.default_rng(0)), jnp.float32)

    def run(xs: Any) -> Any:
        def step(state, x):
            h, total, mean, held = state
            h = jnp.tanh(0.5 * h + x)
            return (h, total + x, 0.99 * mean + 0.01 * x, jnp.where(x > 0, held + x, held)), None

        return lax.scan(step, (xs[0],) * 4, xs)[0]

    expected, found = jax.jit(run)(xs), tx.bf16_carry_scan(run, round=round)(xs)
    assert bits(expected[1:], found[1:])
    assert bits(expected[0], found[0]) == (round == "tape")
    asked = tx.bf16_carry_scan(run, round="carry", keep=())(xs)
    assert far(expected[1], asked[1]) > 1e-3


# ---------------------------------------------------------------------- wrong on purpose

FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "carries are rounded in the values": lambda patch: patch.setattr(half.Half, "carried", half.Half._rounded),
    "what adds up is rounded": lambda patch: patch.setattr(
        transform, "unrounded", lambda jaxpr, n, m, strict: [None] * m
    ),
    "the tape is that of the next step": lambda patch: patch.setattr(
        tape.Half,
        "taped",
        lambda self, carry: self._rounded([2 * leaf if leaf.dtype == jnp.float32 else leaf for leaf in carry]),
    ),
    "carries are read with their signs off": lambda patch: patch.setattr(
        half, "_widened", lambda leaf, right=half._widened: abs(right(leaf))
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_wrong_tape_is_caught(fault: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def sums(w: Any, h: Any) -> Any:
        def step(state, x):
            h, total = state
            h = jnp.tanh(h @ w + x)
            return (h, total + h**2), None

        return lax.scan(step, (h, h), inputs())[0][1].sum()

    def found(w: Any, h: Any) -> Any:
        return jax.jit(jax.value_and_grad(tx.bf16_carry_scan(sums), (0, 1)))(w, h), tx.bf16_carry_scan(
            sums, round="carry"
        )(w, h)

    tx.clear()
    right = found(W, H)
    fault(monkeypatch)
    tx.clear()  # or the program that is right would be found
    wrong = found(W, H)
    tx.clear()
    assert not bits(right[0][0], wrong[0][0]) or far(right[0][1], wrong[0][1]) > 2e-2 or far(right[1], wrong[1]) > 1e-4
