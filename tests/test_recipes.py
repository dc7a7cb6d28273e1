"""The code of `docs/recipes.md`, as it stands there: it runs, and does what the page says."""

import doctest
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

PAGE = Path(__file__).parent.parent / "docs" / "recipes.md"


@pytest.fixture(scope="module")
def recipes() -> dict[str, Any]:
    """The names of the page, after all of it ran."""
    names: dict[str, Any] = {"__name__": "recipes"}
    for block in re.findall(r"^```py(?:thon)?\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        if block.startswith(">>>"):
            example = doctest.DocTestParser().get_doctest(block, names, PAGE.name, str(PAGE), 0)
            assert not doctest.DocTestRunner().run(example, clear_globs=False).failed
            names |= example.globs
        else:
            exec(compile(block, str(PAGE), "exec"), names)
    return names


def state_of(nu: Any, count: int = 5) -> Any:
    moments = optax.ScaleByAdamState(count=jnp.int32(count), mu=jax.tree.map(jnp.zeros_like, nu), nu=nu)
    return (optax.EmptyState(), {"inner": [moments, optax.ScaleByScheduleState(jnp.int32(9))]})


A, B = {"w": jnp.array([1.0, 2.0]), "n": jnp.float32(4)}, {"w": jnp.array([3.0, 6.0]), "n": jnp.float32(8)}
ONES = {"w": jnp.ones(2), "n": jnp.float32(1)}


def test_equal_weights_are_the_mean(recipes: dict[str, Any]) -> None:
    for nu in (ONES, jax.tree.map(lambda x: 1e-20 * x, ONES), jax.tree.map(jnp.zeros_like, ONES)):
        merged = recipes["merge"]([(A, state_of(nu)), (B, state_of(nu))])
        np.testing.assert_allclose(merged["w"], [2, 4], rtol=1e-7)
        assert merged["n"] == 6
        assert merged["w"].dtype == np.float32


def test_weights_are_second_moments(recipes: dict[str, Any]) -> None:
    sure = {"w": jnp.array([3.0, 0.0]), "n": jnp.float32(1e-12)}
    unsure = {"w": jnp.array([1.0, 1.0]), "n": jnp.float32(3e-12)}
    merged = recipes["merge"]([(A, state_of(sure)), (B, state_of(unsure))])
    np.testing.assert_allclose(merged["w"], [(3 * 1 + 3) / 4, 6], rtol=1e-6)
    np.testing.assert_allclose(merged["n"], (4 + 3 * 8) / 4, rtol=1e-6)


def test_branches_of_different_age_are_comparable(recipes: dict[str, Any]) -> None:
    """The moments of a young branch are small since they started at zero, not since it is unsure."""
    young, old = (jax.tree.map(lambda x, n=n: (1 - 0.999**n) * x, ONES) for n in (1, 1000))
    merged = recipes["merge"]([(A, state_of(young, 1)), (B, state_of(old, 1000))])
    np.testing.assert_allclose(merged["w"], [2, 4], rtol=1e-5)


def test_one_transfer_a_branch(recipes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    transfers: list[Any] = []
    real = jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda tree: transfers.append(tree) or real(tree))
    recipes["merge"]((params, state_of(ONES)) for params in (A, B, A))
    assert len(transfers) == 3


def test_a_chain_of_optax(recipes: dict[str, Any]) -> None:
    branches = [recipes["trained"](seed) for seed in range(3)]
    merged = recipes["merged"]
    low, high = (
        jax.tree.map(lambda *x, f=f: f(np.stack(x), axis=0), *(p for p, _ in branches)) for f in (np.min, np.max)
    )
    assert (low["w"] <= merged["w"]).all()
    assert (merged["w"] <= high["w"]).all()
    assert not np.allclose(merged["w"], np.mean([params["w"] for params, _ in branches], axis=0))
    np.testing.assert_allclose(merged["b"], np.mean([params["b"] for params, _ in branches], axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("branches", "told"),
    [
        ([(A, state_of(ONES)), ({"w": A["w"]}, state_of({"w": ONES["w"]}))], "different structures or shapes"),
        ([(A, state_of(ONES)), (A | {"w": jnp.ones((2, 1))}, state_of(ONES))], "different structures or shapes"),
        ([(A, state_of(ONES)), (A | {"n": jnp.ones(2)}, state_of(ONES | {"n": jnp.ones(2)}))], "different structures"),
        ([(A, state_of(ONES, count=0))], "without a step"),
        ([(A, (optax.EmptyState(),))], "with 0 states of Adam"),
        ([(A, (state_of(ONES), state_of(ONES)))], "with 2 states of Adam"),
        ([(A | {"n": jnp.float32(np.nan)}, state_of(ONES))], "not finite"),
        ([], "no branches"),
    ],
)
def test_what_cannot_be_merged_is_refused(recipes: dict[str, Any], branches: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        recipes["merge"](branches)


def test_staggered_branches_never_do_the_same(recipes: dict[str, Any]) -> None:
    """On a clock of halves: what each branch does in each, and that the device has its work before the host begins."""
    log: list[str] = []
    for halves in range(1, 9):
        log.clear()
        recipes["staggered"]([recipes["branch"](name, log) for name in "AB"], halves)
        times: dict[int, list[str]] = {0: log[:1]} | {half: log[2 * half - 1 :][:2] for half in range(1, halves)}
        for half, did in times.items():
            assert [line.split()[1] for line in did] == (["trains", "generates"] if half else ["generates"])


def test_half_a_cycle_halves_the_peak(recipes: dict[str, Any]) -> None:
    peaks = [recipes["at_once"](delay) for delay in range(31)]
    assert [delay for delay, peak in enumerate(peaks) if peak == 1] == [15]
