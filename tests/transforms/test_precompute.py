"""`precompute`: what is kept, when it is computed anew, and that it is never stale."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.core import kept

PLACES = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
STATE = jnp.linspace(-1, 1, 20)


def step(state: Any, places: Any, rate: Any = 0.1) -> Any:
    kernel = jnp.exp(-((places[:, None] - places) ** 2).sum(-1))
    return state + rate * jnp.tanh(kernel @ state)


def looped(state: Any, places: Any) -> Any:
    def body(state, x):
        weights = jax.checkpoint(lambda p: jax.nn.softmax(p @ p.T, -1))(places)
        return jax.jit(jnp.tanh)(weights @ state + x * jnp.linalg.norm(places)), state.sum()

    state, sums = lax.scan(body, state, jnp.arange(4.0))
    return lax.cond(places[0, 0] > 9, lambda: state, lambda: jnp.linalg.inv(places.T @ places)[0, 0] * state) + sums[0]


def runs(f: Any) -> list[int]:
    """Count the runs of the first parts of a decorated function."""
    count: list[int] = []
    for cut in cuts(f):
        cut.first = lambda given, first=cut.first: count.append(1) or first(given)
    return count


def cuts(f: Any) -> list[Any]:
    return list({id(cut): cut for cut in f._kept("cuts", dict).values()}.values())


@pytest.mark.parametrize("fn", [step, looped])
def test_it_is_the_function(fn: Any) -> None:
    f = tx.precompute("places")(fn)
    for places in (PLACES, jnp.asarray(PLACES), -2 * PLACES):
        np.testing.assert_allclose(f(STATE, places), jax.jit(fn)(STATE, places), rtol=1e-6, atol=1e-6)
    value, gradient = jax.value_and_grad(lambda state: f(state, PLACES).sum())(STATE)
    expected = jax.value_and_grad(lambda state: fn(state, PLACES).sum())(STATE)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    batch = jnp.stack([STATE, -STATE])
    found = jax.vmap(lambda state: f(state, PLACES))(batch)
    np.testing.assert_allclose(found, jax.vmap(lambda state: fn(state, PLACES))(batch), rtol=1e-5, atol=1e-6)
    tangents = jax.jvp(lambda state: f(state, PLACES), (STATE,), (STATE,))[1]
    np.testing.assert_allclose(tangents, jax.jvp(lambda s: fn(s, PLACES), (STATE,), (STATE,))[1], rtol=1e-5, atol=1e-6)


def test_it_runs_once_for_each_array() -> None:
    f = tx.precompute("places")(step)
    places = jnp.asarray(PLACES)
    calls = [
        lambda places: f(STATE, places),
        lambda places: f(STATE, places=places),
        lambda places: f(STATE[:, None] * jnp.ones(2), places),
    ]
    for call in calls:
        call(jnp.asarray(PLACES))
    count = runs(f)
    for call in [*calls, *calls]:
        call(places)
    assert len(cuts(f)) == 3
    assert len(count) == 1
    f(STATE, 2 * places)
    assert len(count) == 2
    f(STATE, places)
    assert len(count) == 3  # the last one is kept, not all


def test_an_array_of_numpy_is_never_stale() -> None:
    f = tx.precompute("places")(step)
    places = PLACES.copy()
    view = places[:]  # taken before: it stays writable
    f(STATE, places)
    with pytest.raises(ValueError, match="read-only"):
        places[0] = 7
    view[0] = 7
    np.testing.assert_allclose(f(STATE, places), jax.jit(step)(STATE, places), rtol=1e-6)
    assert len(runs(f)) == 0
    f(STATE, PLACES)
    places[0] = 8  # no longer held
    np.testing.assert_allclose(f(STATE, places), jax.jit(step)(STATE, places), rtol=1e-6)


def test_a_captured_array_that_changes_is_refused() -> None:
    places = PLACES.copy()
    view = places[:]
    f = tx.precompute("rate")(lambda state, rate: step(state, jnp.asarray(places), rate))
    f(STATE, 0.1)
    view[0] = 3
    with pytest.raises(tx.StaleArrayError, match=r"captures places: f32\[20,3\], which was changed through a view"):
        f(STATE, 0.1)


def test_numbers_are_told_apart_by_value_and_type() -> None:
    def powers(x: Any, p: Any) -> Any:
        return x + jnp.exp(jnp.arange(5) * p).sum()

    f = tx.precompute("p")(powers)
    for p in (1, 1.0, 2, True, -0.0, 0.0, np.float32(1), np.int32(1)):
        found, expected = f(1.0, p), jax.jit(powers)(1.0, p)
        assert (found.dtype, found.weak_type) == (expected.dtype, expected.weak_type)
        np.testing.assert_array_equal(found, expected)


def test_an_array_that_is_freed_does_not_stand_for_the_next() -> None:
    f = tx.precompute("places")(step)
    for scale in range(1, 6):
        places = jnp.asarray(scale * PLACES)
        np.testing.assert_allclose(f(STATE, places), jax.jit(step)(STATE, places), rtol=1e-6)
        last = weakref.ref(places)
        del places
        gc.collect()
        assert last() is None


def test_settings_are_part_of_what_is_kept() -> None:
    def product(x: Any, g: Any) -> Any:
        return x + (g @ g).sum()

    f = tx.precompute("g")(product)
    g = jnp.ones((4, 4))
    f(1.0, g)
    with jax.default_matmul_precision("highest"):
        assert "HIGHEST" in str(jax.make_jaxpr(product)(1.0, g)) or "highest" in str(jax.make_jaxpr(product)(1.0, g))
        f(1.0, g)
    assert len(cuts(f)) == 2


def test_what_is_not_in_the_text_of_a_program_counts() -> None:
    drawn = lambda x, key: x + jnp.sort(jax.random.uniform(key, (5,)))[0]  # noqa: E731
    f, key = tx.precompute("key")(drawn), jax.random.key(0)
    f(0.0, key)
    with jax.threefry_partitionable(False):  # noqa: FBT003
        np.testing.assert_array_equal(f(0.0, key), jax.jit(drawn)(0.0, key))
    tables = [jnp.eye(3), 2 * jnp.eye(3)]
    inner = lambda x, g: x.sum() + jax.jit(lambda g: g @ tables[x.ndim])(g).sum()  # noqa: E731
    f, g = tx.precompute("g")(inner), jnp.ones((3, 3))
    f(jnp.zeros(()), g)
    assert f(jnp.zeros(2), g) == 18


def test_an_attribute_that_changes_is_seen() -> None:
    class Step:
        mode = "sin"

        @tx.precompute("g")
        def step(self, x: Any, g: Any) -> Any:
            return x + getattr(jnp, self.mode)(g @ g).sum()

    one, g = Step(), jnp.eye(3)
    for mode in ("sin", "cos", "sin"):
        one.mode = mode
        np.testing.assert_allclose(one.step(0.0, g), getattr(jnp, mode)(g @ g).sum(), rtol=1e-6)


def test_what_is_given_away_is_not_served() -> None:
    f, g = tx.precompute("g")(lambda x, g: x + jnp.exp(g).sum()), jnp.ones(4)
    f(0.0, g)
    g.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        f(0.0, g)


def test_arrays_of_jax_are_not_held() -> None:
    f, g = tx.precompute("g")(lambda x, g: x + jnp.exp(g).sum()), jnp.ones(4)
    f(0.0, g)
    last = weakref.ref(g)
    del g
    gc.collect()
    assert last() is None


def test_names_of_many_arguments() -> None:
    f = tx.precompute("gs")(lambda x, *gs: x + sum(jnp.exp(g).sum() for g in gs))
    assert "computed once for each gs" in str(tx.explain(f, 0.0, jnp.ones(3), jnp.ones(2)))
    with pytest.raises(ValueError, match="'kw', which is no parameter"):
        tx.precompute("kw")(lambda x, **kw: x)
    named = tx.precompute("g")(lambda x, **kw: x + jnp.exp(kw["g"]).sum())
    np.testing.assert_allclose(named(0.0, g=jnp.zeros(3)), 3.0)


def test_a_budget_leaves_the_largest() -> None:
    told = str(tx.explain(tx.precompute("places")(step), STATE, PLACES))
    assert "computed once for each places: 1.6 KiB" in told
    assert "f32[20,20], 1.6 KiB: exp at" in told
    little = tx.precompute("places", budget=1000)(step)
    told = str(tx.explain(little, STATE, PLACES))
    assert "nothing that is worth it fits the budget of 1000 B" in told
    assert "over the budget, computed at each call: f32[20,20], 1.6 KiB: exp at" in told
    nothing = tx.precompute("places")(lambda state, places: state + places.sum(-1))
    assert "nothing that is worth it depends on places alone" in str(tx.explain(nothing, STATE, PLACES))
    np.testing.assert_allclose(little(STATE, PLACES), jax.jit(step)(STATE, PLACES), rtol=1e-6)
    some = tx.precompute("places", budget="1KB")(looped)
    assert 0 < sum(each.bytes for each in some._cut((STATE, PLACES), {})[0].moved) <= 1000
    np.testing.assert_allclose(some(STATE, PLACES), jax.jit(looped)(STATE, PLACES), rtol=1e-6, atol=1e-6)


def test_a_jitted_step_keeps_its_donation() -> None:
    donating = jax.jit(step, donate_argnums=0)
    f = tx.precompute("places")(donating)
    state = STATE + 1
    expected = jax.jit(step)(state, PLACES)
    np.testing.assert_allclose(f(state, PLACES), expected, rtol=1e-6)
    assert state.is_deleted()
    assert "f32[20,20], 1.6 KiB: exp at" in str(tx.explain(f, STATE, PLACES))
    named = tx.precompute("state")(donating)  # what is kept is not given away
    state = STATE + 2
    named(state, PLACES)
    assert not state.is_deleted()


def test_what_each_call_runs_is_the_rest() -> None:
    f = tx.precompute("places")(step)
    assert "exponential" not in f.lower(STATE, PLACES).as_text()
    assert "exponential" in jax.jit(step).lower(STATE, PLACES).as_text()


def test_the_contract() -> None:
    f = tx.precompute("g")(lambda x, g: {"sum": x + (g @ g).sum(), "moved": g.T})
    assert tx.contract(f, 1.0, jnp.ones((4, 4))) == {"sum": tx.AsAccurate(4), "moved": tx.Bitwise()}


def test_what_is_refused() -> None:
    f = tx.precompute("places")(step)
    with pytest.raises(
        tx.TransformOrderError, match=r"was called inside of a compiled function.*Expected it outermost"
    ):
        jax.jit(f)(STATE, PLACES)
    with pytest.raises(tx.TransformOrderError, match=r"got places: f32\[20,3\], which is differentiated or batched"):
        jax.grad(lambda places: f(STATE, places).sum())(jnp.asarray(PLACES))
    with pytest.raises(
        ValueError, match=r"'place', which is no parameter of step\(.*Expected one of state, places, rate"
    ):
        tx.precompute("place")(step)
    with pytest.raises(TypeError, match=r"got function. Expected the names"):
        tx.precompute(step)
    with pytest.raises(TypeError, match="got no names"):
        tx.precompute()
    with pytest.raises(tx.TransformOrderError, match=r"wrapped around tx\.precompute"):
        tx.chunked(lax.map, 2)(f)


def test_around_other_transforms_and_modules() -> None:
    def rows(x: Any, g: Any) -> Any:
        return jnp.tanh(x @ (g @ g.T))

    f = tx.precompute("g")(tx.chunked(lax.map, size=4, in_axes=(0, None))(rows))
    x, g = jnp.ones((10, 3)), jnp.eye(3) + 0.1
    np.testing.assert_allclose(f(x, g), rows(x, g), rtol=1e-6)

    class Model(eqx.Module):
        w: jax.Array

        def __call__(self, x: Any, g: Any) -> Any:
            return x @ self.w + jnp.linalg.inv(g)[0]

    for scale in (1.0, 2.0):
        model = Model(jnp.eye(3) * scale)
        np.testing.assert_allclose(tx.precompute("g")(model)(x, g), model(x, g), rtol=1e-5)
    guarded = tx.no_recompile(tx.precompute("g")(rows))
    for i in range(3):
        guarded(x + i, g)


def test_static_arguments_and_threads() -> None:
    @tx.precompute("g", static_argnames="power")
    def f(x: Any, g: Any, power: int) -> Any:
        return x + jnp.linalg.matrix_power(g, power).sum()

    g = jnp.eye(3) * 1.5
    for power in (2, 3, 2):
        np.testing.assert_allclose(f(1.0, g, power), 1 + 3 * 1.5**power, rtol=1e-6)
    wrong: list[Any] = []

    def call(scale: float) -> None:
        mine = jnp.eye(3) * scale
        wrong.extend(1 for _ in range(50) if abs(float(f(0.0, mine, 2)) - 3 * scale**2) > 1e-3)

    threads = [threading.Thread(target=call, args=(scale,)) for scale in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---------------------------------------------------------------------- wrong on purpose

FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "another array counts as the same": lambda patch: patch.setattr(kept.Seen, "is_same", lambda self, leaf: True),
    "arrays of numpy are not looked at": lambda patch: patch.setattr(
        kept.Seen,
        "is_same",
        lambda self, leaf, right=kept.Seen.is_same: (
            self.what.ref() is leaf if isinstance(leaf, np.ndarray) else right(self, leaf)
        ),
    ),
    "numbers are equal where Python says so": lambda patch: patch.setattr(
        kept.Seen,
        "is_same",
        lambda self, leaf, right=kept.Seen.is_same: True if isinstance(leaf, float) else right(self, leaf),
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_is_stale_is_caught(fault: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    f = tx.precompute("places", "rate")(lambda state, places, rate: step(state, places, jnp.exp(rate)))
    places = PLACES.copy()
    view, last = places[:], jnp.asarray(-PLACES)
    found, expected = [], []
    for array, rate in ((places, 0.1), (places, 0.1), (jnp.asarray(PLACES), 0.1), (last, 0.1), (last, 0.2)):
        view[0] += 1
        found.append(f(STATE, array, rate))
        expected.append(jax.jit(step)(STATE, array, jnp.exp(rate)))
    tx.clear()
    assert any(not np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(found, expected, strict=True))
