"""`checkpointed_scan`: values and every gradient bit for bit, in each place where a scan can be, from a small tape."""

import functools
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
from erythroxy_tx.program.scans import tape


@pytest.mark.sampled(0.4)
@pytest.mark.parametrize(
    ("name", "segments"), [*((name, "sqrt") for name in PROGRAMS), ("lstm", 3), ("a prime length in reverse", 3)]
)
def test_values_and_gradients_are_the_same_bits(name: str, segments: Any) -> None:
    f = PROGRAMS[name]
    g = tx.checkpointed_scan(f, segments=segments)
    assert bits(jax.jit(f)(W, H), g(W, H))
    assert bits(gradient(name), jax.jit(jax.grad(g, (0, 1)), compiler_options=UNFUSED)(W, H))


@pytest.mark.parametrize(
    "name", ["in reverse, with outputs", "without a carry", "a prime length", "in cond", "a key carried"]
)
def test_forward_mode_and_batches(name: str) -> None:
    f = PROGRAMS[name]
    g = tx.checkpointed_scan(f)
    tangents = jnp.ones_like(W), jnp.cos(H)
    expected, found = (jax.jit(lambda w, h, fn=fn: jax.jvp(fn, (w, h), tangents))(W, H) for fn in (f, g))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
    batch = jnp.stack([W, W / 2])
    expected, found = (jax.jit(jax.vmap(jax.grad(fn, 1), (0, None)))(batch, H) for fn in (f, g))
    np.testing.assert_allclose(expected, found, rtol=2e-4, atol=1e-5)


def of_a_batch(h: Any, x: Any) -> Any:
    return lax.scan(lambda h, x: (jnp.tanh(h * x.sum() + x.sum()), {"h": h, "x": x * 2, "three": 3.0}), h, x)


AXES = ((0, 1), (None, 1), (0, None))


def batch(axes: tuple, length: int) -> list[jax.Array]:
    """As many steps as elements, where that is 16: axes that are mixed up would not be seen by their shapes."""
    h, x = jnp.linspace(-1, 1, 16), jax.random.normal(jax.random.key(5), (length, 16, 1))
    return [h if axes[0] == 0 else h[0], x if axes[1] == 1 else x[:, 0]]


def values_and_slopes(fn: Any, axes: tuple, length: int) -> tuple[Any, Any]:
    """Of a function of a batch: its values, also where it is linearised; its gradient. All in one program."""
    batched = jax.vmap(fn, axes)
    weights = jax.random.normal(jax.random.key(6), (16, length))

    def loss(*args: Any) -> Any:
        final, steps = batched(*args)
        return (steps["h"].reshape(16, length) * weights).sum() + final.sum()

    @jax.jit
    def run(*args: Any) -> tuple[Any, Any]:
        return (batched(*args), jax.linearize(batched, *args)[0]), jax.grad(loss, (0, 1))(*args)

    return run(*batch(axes, length))


@functools.cache
def plain_values_and_slopes(axes: tuple, length: int) -> tuple[Any, Any]:
    return values_and_slopes(of_a_batch, axes, length)


@pytest.mark.sampled(0.4)
@pytest.mark.parametrize("length", [16, 17, 1])
@pytest.mark.parametrize("around", [tx.checkpointed_scan, tx.bf16_carry_scan, tx.hoist_invariants])
def test_a_batch_keeps_its_axis(around: Callable, length: int) -> None:
    g = around(of_a_batch)
    for axes in AXES:
        expected, expected_slopes = plain_values_and_slopes(axes, length)
        found, slopes = values_and_slopes(g, axes, length)
        alone = jax.vmap(g, axes)(*batch(axes, length))
        for a, b in zip(*map(jax.tree.leaves, ((alone, *found), (expected[0], *expected))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        for a, b in zip(slopes, expected_slopes, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2 if around is tx.bf16_carry_scan else 1e-5)


@pytest.mark.usefixtures("frozen_heap")
def test_nothing_of_a_trace_is_held() -> None:
    f = lambda h, xs: lax.scan(lambda h, x: (jnp.tanh(h + x), h), h, xs)[0].sum()  # noqa: E731
    with jax.checking_leaks():
        for around in (tx.checkpointed_scan, tx.bf16_carry_scan, tx.hoist_invariants):
            jax.block_until_ready(jax.jit(jax.grad(around(f)))(jnp.ones(3), jnp.ones((9, 3))))


@pytest.mark.parametrize("name", ["in reverse, with outputs", "a prime length"])
def test_second_derivatives(name: str) -> None:
    f = PROGRAMS[name]
    g = tx.checkpointed_scan(f)
    expected, found = (jax.jit(jax.grad(lambda h, fn=fn: (jax.grad(fn, 1)(W, h) ** 2).sum()))(H) for fn in (f, g))
    np.testing.assert_allclose(expected, found, rtol=1e-3, atol=1e-4)


def test_the_tape_is_small() -> None:
    def loss(w: Any, h: Any, xs: Any) -> Any:
        return (lax.scan(cell(w), h, xs)[0] ** 2).mean()

    w, h, xs = jnp.eye(64), jnp.ones((8, 64)), jnp.ones((256, 8, 64))
    plain, ours = (
        jax.jit(jax.grad(f)).lower(w, h, xs).compile().memory_analysis().temp_size_in_bytes
        for f in (loss, tx.checkpointed_scan(loss))
    )
    assert ours < plain / 5


def test_effects_happen_once() -> None:
    seen: list[float] = []

    def f(h: Any) -> Any:
        def step(h, x):
            jax.debug.callback(lambda h: seen.append(float(h)), h.sum())
            return jnp.tanh(h + x), None

        return lax.scan(step, h, inputs(4))[0].sum()

    g = tx.checkpointed_scan(f)
    jax.block_until_ready(jax.jit(jax.grad(g))(H))
    jax.effects_barrier()
    assert len(seen) == 4
    assert "left as it is, as a step that is run again would repeat its effects" in str(tx.explain(g, H))


def test_what_is_out_of_reach_is_told() -> None:
    @jax.custom_vjp
    def odd(h):
        return lax.scan(cell(W), h, inputs())[0]

    odd.defvjp(lambda h: (odd(h), h), lambda h, g: (g * 7.0,))
    g = tx.checkpointed_scan(lambda h: odd(h).sum() + lax.scan(cell(W), h, inputs())[0].sum())
    told = str(tx.explain(g, H))
    assert "16 steps at" in told
    assert "4 segments of 4 steps" in told
    assert "a scan inside of a function with a custom_vjp" in told
    only = tx.checkpointed_scan(lambda h: odd(h).sum())
    assert bits(jax.jit(jax.grad(lambda h: odd(h).sum()))(H), jax.jit(jax.grad(only))(H))


def test_names_donation_and_static_arguments_stay() -> None:
    donating = jax.jit(lambda h: lax.scan(cell(W), h, inputs())[0], donate_argnums=0)
    jaxpr = jax.make_jaxpr(tx.checkpointed_scan(donating))(H)
    assert "donated_invars=(True" in str(jaxpr)

    @tx.checkpointed_scan(static_argnames="steps")
    def run(h: Any, steps: int) -> Any:
        return lax.fori_loop(0, steps, lambda i, h: jnp.tanh(h @ W), h)

    assert run(H, steps=3).shape == H.shape
    with pytest.raises(ValueError, match="Expected 'sqrt' or a number ≥ 1"):
        tx.checkpointed_scan(segments=0)


def test_inside_of_chunks() -> None:
    def running(xs: Any) -> Any:
        return lax.scan(lambda c, x: (jnp.tanh(c + x), c * x), 0.0, xs)[1]

    x = jnp.linspace(-1, 1, 10)
    chunked = tx.chunked(lax.map, size=4)(tx.checkpointed_scan(running))
    np.testing.assert_allclose(chunked(x), running(x), rtol=1e-6)
    gradients = (jax.grad(lambda x, fn=fn: (fn(x) ** 2).sum())(x) for fn in (chunked, running))
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-6)


def test_methods_and_modules() -> None:
    import equinox as eqx

    layer = eqx.nn.GRUCell(4, 4, key=jax.random.key(3))

    def loss(layer: Any, h: Any) -> Any:
        return lax.scan(lambda h, x: (layer(x, h), None), h, inputs()[:, 0])[0].sum()

    expected, found = (eqx.filter_jit(eqx.filter_grad(f))(layer, H[0]) for f in (loss, tx.checkpointed_scan(loss)))
    for a, b in zip(*(jax.tree.leaves(eqx.filter(each, eqx.is_array)) for each in (expected, found)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- wrong on purpose


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the order of steps is not turned": lambda patch: patch.setattr(
        tape.lax, "scan", lambda *args, right=lax.scan, **how: right(*args, **how | {"reverse": False})
    ),
    "cotangents of a segment are summed before": lambda patch: patch.setattr(
        tape.jax, "checkpoint", lambda fn=None, **how: fn or (lambda fn: fn)
    ),
    "the steps after the last whole segment are dropped": lambda patch: patch.setattr(
        tape, "parts", lambda length, segment: [tape.Part(0, length - length % segment, length // segment)]
    ),
    "what is shared has no derivative": lambda patch: patch.setattr(
        tape._Derivative, "shared", property(lambda self: [], lambda self, places: None), raising=False
    ),
    "a number that is carried stands still": lambda patch: patch.setattr(tape, "is_float", lambda x: x.ndim > 0),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_wrong_tape_is_caught(fault: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a prime length in reverse", "weights used twice", "a number carried"]
    expected = {name: gradient(name) for name in names}
    fault(monkeypatch)
    tx.clear()  # or the program of another fault would be found
    for name in names:
        g = tx.checkpointed_scan(PROGRAMS[name], segments=5)
        try:
            found = jax.jit(jax.grad(g, (0, 1)), compiler_options=UNFUSED)(W, H)
        except Exception:  # noqa: BLE001  # of shapes that do not fit
            return
        if not bits(expected[name], found):
            return
    pytest.fail("no program shows it")
