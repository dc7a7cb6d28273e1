"""`generate`: which batches, when they are dispatched, what is transferred and compiled, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.guards.syncs import HostSyncs
from erythroxy_tx.runtime.generate import generate
from erythroxy_tx.runtime.keys import per_step_key

KEY = jax.random.key(0)


@jax.jit
def make(key: jax.Array) -> dict[str, jax.Array]:
    return {"x": jax.random.normal(key, (4,)), "zeros": jnp.zeros(2)}


def values(batches: Any) -> list[list[float]]:
    return [batch["x"].tolist() for batch in batches]


@pytest.mark.parametrize("key", [KEY, jax.random.PRNGKey(0), np.asarray(jax.random.PRNGKey(0))])
def test_law_and_restart(key: Any) -> None:
    expected = values(make(per_step_key(key, step)) for step in range(6))
    batches = generate(make, key, steps=6)
    assert values(next(batches) for _ in range(2)) == expected[:2]
    assert batches.step == 2
    assert values(generate(make, key, steps=6, start=batches.step)) == expected[2:]
    assert values(batches) == expected[2:]
    assert batches.step == 6
    assert values(generate(make, key, steps=6, start=6)) == []


def test_the_last_steps_there_are() -> None:
    last = 2**32 - 2
    batches = generate(make, KEY, start=last)
    assert values(batches) == values(make(per_step_key(KEY, step)) for step in (last, last + 1))


class Recorder:
    """A function with a `lower`, which is called as it is."""

    def __init__(self) -> None:
        self.calls = 0

    def lower(self) -> None: ...

    def __call__(self, key: jax.Array) -> Any:
        self.calls += 1
        return make(key)


def test_one_batch_is_dispatched_ahead_and_none_past_the_end() -> None:
    recorder = Recorder()
    batches = generate(recorder, KEY, steps=3)
    assert recorder.calls == 0
    assert [recorder.calls for _ in batches] == [2, 3, 3]


def test_it_is_traced_once_however_often_it_is_iterated() -> None:
    traces = 0

    def counted(key: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return jax.random.normal(key, (3,))

    first = [batch.tolist() for batch in generate(counted, KEY, steps=2)]
    with tx.no_recompile():
        assert [batch.tolist() for batch in generate(counted, KEY, steps=2)] == first
    assert traces == 1


def test_no_transfer_after_the_first_step() -> None:
    batches = generate(make, KEY)
    next(batches)
    with jax.transfer_guard("disallow"), HostSyncs() as syncs, tx.no_recompile():
        kept = [next(batches) for _ in range(5)]
    assert syncs.count == 0
    assert values(kept) == values(make(per_step_key(KEY, step)) for step in range(1, 6))


def test_methods_and_other_callables() -> None:
    class Maker:
        scale = 2.0

        def make(self, key: jax.Array) -> jax.Array:
            return self.scale * jax.random.normal(key)

    found = [float(batch) for batch in generate(Maker().make, KEY, steps=2)]
    expected = [float(2 * jax.random.normal(per_step_key(KEY, step))) for step in range(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_error_loses_no_batch() -> None:
    class Fails(Recorder):
        def __call__(self, key: jax.Array) -> Any:
            if self.calls == 2:
                self.calls = 10
                raise OSError("once")
            return super().__call__(key)

    batches = generate(Fails(), KEY, steps=4)
    first = next(batches)
    with pytest.raises(OSError, match="once"):
        next(batches)
    assert batches.step == 1
    assert values([first, *batches]) == values(generate(make, KEY, steps=4))


@pytest.mark.parametrize(
    ("fn", "error", "told"),
    [
        (lambda _: np.ones(3), TypeError, r"got batch: ndarray, made on the host"),
        (lambda key: {"a": jax.random.normal(key), "b": 3}, TypeError, r"got batch\['b'\]: int"),
        (lambda _: jnp.asarray(np.ones(3)), ValueError, "does not depend on the key"),
        (jax.jit(lambda _: np.ones(3)), ValueError, "does not depend on the key"),
        (lambda _: None, ValueError, "does not depend on the key"),
    ],
)
def test_work_of_the_host_is_refused(fn: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        next(generate(fn, KEY))


def test_numpy_out_of_a_function_that_is_called_as_it_is() -> None:
    class Host(Recorder):
        def __call__(self, key: jax.Array) -> Any:
            return {"x": np.ones(3)}

    with pytest.raises(TypeError, match=r"got batch\['x'\]: ndarray"):
        next(generate(Host(), KEY))


def test_refused_parameters() -> None:
    for how, error, told in (
        ({"steps": -1}, ValueError, "steps=-1"),
        ({"steps": 2.0}, TypeError, "steps: float"),
        ({"start": 5, "steps": 3}, ValueError, "start=5 and steps=3. Expected start <= steps"),
        ({"start": 2**32 + 1}, ValueError, "start=4294967297"),
    ):
        with pytest.raises(error, match=f"^tx.generate got {told}"):
            generate(make, KEY, **how)
    with pytest.raises(TypeError, match=r"got key: key<fry>\[2\]"):
        generate(make, jax.random.split(KEY))
    with pytest.raises(TypeError, match=r"got fn: f32\[\]"):
        generate(jnp.ones(()), KEY)


def test_inside_of_a_trace_it_is_refused() -> None:
    batches = generate(make, KEY)
    for use in (lambda key: next(generate(make, key)), lambda _: next(batches)):
        with pytest.raises(tx.TransformOrderError, match=r"inside of a trace.*per_step_key\(key, step\)"):
            jax.jit(use)(KEY)
    assert values([next(batches)]) == values([make(per_step_key(KEY, 0))])
