"""`prove`: what it finds, how it tells it, what it refuses to say, and what it leaves as it was."""

import functools
import re
import types
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.testing import Proof
from erythroxy_tx.testing import arrays
from erythroxy_tx.testing import prove
from erythroxy_tx.testing import rows
from erythroxy_tx.testing.ways import WAYS

ONE = rows(4, 2)


def sums(x: Any) -> Any:
    return {"rows": x * 2, "total": x.sum(0)}


def wrong_total(x: Any) -> Any:
    return {"rows": x * 2, "total": x[:-1].sum(0)}


chunked_sums = tx.chunked(lax.map, 2, out={"rows": "rows", "total": "sum"})(sums)
as_accurate = tx.AsAccurate(4)


def caught(fn: Any, inputs: Any = ONE, **options: Any) -> tx.IdentityError:
    with pytest.raises(tx.IdentityError) as found:
        prove(fn, inputs, **{"max_examples": 30, **options})
    return found.value


# ---------------------------------------------------------------------- what it says


def test_a_proof_says_what_was_tried() -> None:
    proof = prove(chunked_sums, ONE, under=("jit", "grad"), max_examples=3)
    assert isinstance(proof, Proof)
    assert proof.examples == 6
    assert str(proof).splitlines()[1:] == ["  jit      3 inputs, values", "  grad     3 inputs, values and gradients"]
    without = prove(chunked_sums, ONE, under=("grad",), max_examples=3, grads=False)
    assert str(without).endswith("grad     3 inputs, values")


def test_no_derivative_is_claimed_where_there_is_none() -> None:
    proof = prove(chunked_sums, rows(4, 2, "int32"), under=("grad",), max_examples=3)
    assert not proof.ways[0].gradients


def test_a_counterexample_is_the_smallest_and_says_where() -> None:
    error = caught((sums, wrong_total), contract=as_accurate)
    message = str(error)
    assert message.startswith("wrong_total does not compute what sums computes, under jit, found with input ")
    assert "the result['total']: 2 of 2 differ, worst at [0]: " in message
    assert "the result['rows']" not in message
    (x,) = error.counterexample
    np.testing.assert_array_equal(x, np.ones((4, 2)))
    assert (error.way, error.examples > 0) == ("jit", True)


def run_again(message: str, **scope: Any) -> None:
    exec(compile(message.partition("# To see it again:\n")[2], "<program>", "exec"), scope)


def test_the_program_in_the_message_finds_it_again() -> None:
    error = caught((sums, wrong_total), contract=as_accurate)
    with pytest.raises(tx.IdentityError, match=re.escape("the result['total']: 2 of 2 differ")) as again:
        run_again(str(error), reference=sums, candidate=wrong_total)
    np.testing.assert_array_equal(again.value.counterexample[0], error.counterexample[0])


def test_the_program_imports_what_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(x: Any) -> Any:
        return x.sum(0)

    wrong = tx.chunked(lax.map, 2, out="mean")(half)
    module = types.ModuleType("a_module_of_wrong_things")
    module.half = wrong
    half.__module__, half.__qualname__ = module.__name__, "half"
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    error = caught(wrong, arrays(shape=(4,), allow_nan=False, allow_infinity=False))
    assert "from a_module_of_wrong_things import half as f\n" in str(error)
    with pytest.raises(tx.IdentityError):
        run_again(str(error))


def test_the_way_is_named() -> None:
    def wrong(x: Any) -> Any:
        return {"rows": x * 2, "total": lax.stop_gradient(x).sum(0)}

    error = caught((sums, wrong), contract=as_accurate, under=("jit", "grad"))
    assert error.way == "grad"
    assert "the gradient with respect to x: " in str(error)
    assert "under=('grad',)" in str(error)


def test_a_fault_of_state_is_told_as_one() -> None:
    calls = []

    def on_host(x: Any) -> Any:
        calls.append(1)
        return x + 1 if len(calls) == 1 else x

    def forgetful(x: Any) -> Any:
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(tx.IdentityError) as found:
        prove((lambda x: x, forgetful), ONE, under=("jit",), max_examples=5)
    assert "keeps state between calls, or is not deterministic" in found.value.__notes__[0]


# ---------------------------------------------------------------------- what it looks at


@pytest.mark.parametrize("way", list(WAYS))
def test_every_way_can_find_something(way: str) -> None:
    wrong = tx.chunked(lax.map, 2, out=("rows", "mean"), remat=False)(lambda x: (x, x.sum(0)))
    tame = rows(4, 2, extremes=False, allow_nan=False, allow_infinity=False)
    if way == "pickle":
        with pytest.raises(Exception, match="pickle"):
            prove(wrong, tame, under=(way,), max_examples=3)
    else:
        assert caught(wrong, tame, under=(way,)).way == way


def test_a_wrong_dtype_shape_weak_type_and_structure() -> None:
    for wrong, told in [
        (lambda x: x.astype("bfloat16"), "dtype float32 → bfloat16"),
        (lambda x: x[:, None], "shape differs: reference f32[4,2], candidate f32[4,1,2]"),
        (lambda x: (x,), "structure differs"),
        (lambda x: x.at[0, 0].add(1), "1 of 8 differ"),
    ]:
        for under in ("jit", "grad"):
            assert told in str(caught((lambda x: x, wrong), under=(under,)))
    assert "weak type True → False" in str(caught((lambda s: s * 2, lambda s: jnp.float32(s * 2)), st.just(1.5)))


def test_arguments_of_every_kind() -> None:
    """Pytrees, keys, Python numbers, static values and no arguments at all."""

    @tx.chunked(lax.map, 2, in_axes=(0, None, None, None), out="rows", static_argnames="mode")
    def f(batch: Any, key: Any, scale: float, mode: str) -> Any:
        noise = jax.random.normal(key, batch["x"].shape[1:])
        return batch["x"] * scale + noise if mode == "noisy" else batch["x"] + batch["y"][:, None]

    batches = st.fixed_dictionaries({"x": rows(4, 2), "y": rows(4, ())})
    keys = st.integers(0, 3).map(jax.random.key)
    inputs = st.tuples(batches, keys, st.just(2.0), st.sampled_from(["noisy", "plain"]))
    assert prove(f, inputs, max_examples=3).examples == 18
    assert prove((lambda: jnp.ones(3), lambda: jnp.ones(3)), st.just(()), under=("jit",), max_examples=2).examples
    assert "counterexample" in str(prove((lambda x: x["x"], lambda x: x["x"]), batches, under=("jit",), max_examples=2))


def test_what_works_on_the_host_alone_is_proved_around_what_can_be_traced() -> None:
    whole = prove(tx.vram_resident(chunked_sums), ONE, max_examples=2)
    assert [way.examples for way in whole.ways] == [2] * 6
    bare = prove(tx.vram_resident(sums), ONE, max_examples=2)
    assert {way.way: way.examples for way in bare.ways} == {
        "jit": 2,
        "method": 2,
        "vmap": 0,
        "grad": 0,
        "scan": 0,
        "remat": 0,
    }
    assert "vmap     nothing to hold: tx.vram_resident works outside a trace" in str(bare)
    inside = tx.vram_resident(tx.chunked(lax.map, 2, out=("rows", "mean"))(lambda x: (x, x.sum(0))))
    assert caught(inside, under=("grad",)).way == "grad"


def test_a_contract_of_ones_own() -> None:
    def near(x: Any) -> Any:
        return x * jnp.float32(1 + 1e-5)

    tame = arrays(shape=(4,), allow_nan=False, allow_infinity=False, extremes=False)
    pair = (lambda x: x, near)
    assert prove(pair, tame, contract=tx.Close(1e-4), max_examples=10)
    assert "contract=tx.Close(rtol=1e-06)" in str(caught(pair, tame, contract=tx.Close(1e-6)))
    assert "bits must be equal" in str(caught(pair, tame))


# ---------------------------------------------------------------------- refusals


def test_what_the_reference_refuses_the_candidate_must_refuse() -> None:
    def refusing(x: Any) -> Any:
        if len(x) == 1:
            raise ValueError("one row is no sample")
        return x * 2

    some = rows(st.sampled_from([1, 3]), 2)
    proof = prove((refusing, functools.partial(refusing)), some, under=("jit",), max_examples=10, seed=0)
    assert 0 < proof.ways[0].refused < 10
    assert f"{proof.ways[0].refused} refused by both" in str(proof)
    error = caught((refusing, lambda x: x * 2), some, under=("jit",))
    assert "the reference raises ValueError: one row is no sample; the candidate returns a value" in str(error)
    assert error.counterexample[0].shape == (1, 2)


def test_what_the_candidate_refuses_alone_is_raised_with_its_input() -> None:
    def refusing(x: Any) -> Any:
        if len(x) == 1:
            raise ValueError("one row is no sample")
        return x * 2

    with pytest.raises(ValueError, match="one row is no sample") as found:
        prove((lambda x: x * 2, refusing), rows(st.sampled_from([3, 1]), 2), max_examples=20)
    told = "\n".join(found.value.__notes__)
    assert "under jit: raised by the candidate alone" in told
    assert "args = (np.full((1, 2), 0.0, 'float32'),)" in told


def test_a_proof_of_nothing_is_none() -> None:
    def never(x: Any) -> Any:
        raise ValueError("never")

    with pytest.raises(
        tx.ContractError, match=r"compared nothing: .* raised on each of 3 inputs \(ValueError: never\)"
    ):
        prove((never, never), ONE, under=("jit",), max_examples=3)
    with pytest.raises(tx.ContractError, match=r"decided nothing about the result: .*tamer inputs=, or contract=Close"):
        prove(  # a hash of the input's bits
            (lambda x: jnp.sin(x * 1e9), lambda x: jnp.sin(x * 1e9)),
            arrays(shape=(4,), min_value=1, max_value=1000),
            contract=as_accurate,
            under=("jit",),
            max_examples=10,
        )


def test_results_without_numbers_prove_nothing() -> None:
    for nothing in (lambda x: None, lambda x: (), lambda x: x[:0]):
        with pytest.raises(tx.ContractError, match="compared nothing: the results of 3 inputs hold no number"):
            prove((nothing, lambda x, f=nothing: f(x)), ONE, under=("jit",), max_examples=3)


def test_an_overflow_that_the_reference_avoids_is_no_excuse() -> None:
    def naive(x: Any) -> Any:
        return jnp.exp(x) / jnp.exp(x).sum()

    error = caught((jax.nn.softmax, naive), st.just(np.full(3, 200, np.float32)), contract=as_accurate, under=("jit",))
    assert "NaN or infinity in other places" in str(error)
    reversed_sum = (lambda x: x.sum(), lambda x: lax.fori_loop(0, 4, lambda i, c: c + x[3 - i], jnp.float32(0)))
    order = np.float32([-3e38, 3e38, 3e38, -3e38])
    assert prove(reversed_sum, st.just(order), contract=as_accurate, under=("jit",), max_examples=1)


def test_the_tangent_is_called_by_its_name() -> None:
    @jax.custom_jvp
    def square(x: Any) -> Any:
        return x * x

    square.defjvp(lambda p, t: (p[0] * p[0], p[0] * t[0]))
    error = caught((lambda x: x * x, square), ONE, contract=tx.Close(1e-5), under=("jvp",))
    assert "the tangent of the result: " in str(error)


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (
            lambda: prove(sums, ONE),
            TypeError,
            "got sums, which no transform is around",
        ),
        (lambda: prove((sums, sums, sums), ONE), TypeError, "Expected a decorated function or a pair"),
        (lambda: prove(chunked_sums, np.ones((4, 2))), TypeError, "inputs=ndarray. Expected a Hypothesis strategy"),
        (lambda: prove(chunked_sums, ONE, contract=tx.Bitwise), TypeError, "contract=Bitwise. Expected an instance"),
        (lambda: prove(chunked_sums, ONE, contract="Bitwise"), TypeError, "contract='Bitwise'. Expected Bitwise"),
        (lambda: prove(chunked_sums, ONE, seed=1.5), TypeError, "seed=1.5. Expected an int"),
        (lambda: prove(chunked_sums, ONE, under="jit"), ValueError, "under='jit'. Expected a tuple of some of 'jit'"),
        (lambda: prove(chunked_sums, ONE, under=()), ValueError, r"under=\(\)"),
        (lambda: prove(chunked_sums, ONE, under=("jit", "pmap")), ValueError, "'pmap' in under="),
        (lambda: prove(chunked_sums, ONE, max_examples=0), ValueError, "max_examples=0. Expected an int >= 1"),
    ],
)
def test_bad_arguments(call: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        call()


# ---------------------------------------------------------------------- what it leaves as it was


def test_nothing_comes_from_the_compilation_cache(tmp_path: Path) -> None:
    options = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    cache = jax.experimental.compilation_cache.compilation_cache
    try:
        for name, value in options.items():
            jax.config.update(name, value)
        cache.reset_cache()
        jax.jit(lambda x: x * 3)(jnp.ones(3))
        kept = len(list(tmp_path.iterdir()))
        assert kept
        prove(chunked_sums, ONE, under=("jit",), max_examples=2)
        assert len(list(tmp_path.iterdir())) == kept
        jax.jit(lambda x: x * 5)(jnp.ones(3))
        assert len(list(tmp_path.iterdir())) > kept
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        cache.reset_cache()


def test_the_drawn_arrays_are_not_changed() -> None:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    prove(tx.vram_resident(chunked_sums), st.just((x,)), max_examples=2)
    assert x.flags.writeable
    np.testing.assert_array_equal(x, np.arange(8).reshape(4, 2))


def test_seeds() -> None:
    def drawn(seed: int | None) -> list[bytes]:
        seen: list[bytes] = []

        def spy(x: Any) -> Any:
            jax.debug.callback(lambda value: seen.append(np.asarray(value).tobytes()), x)
            return x

        prove((lambda x: x, spy), ONE, under=("jit",), max_examples=4, seed=seed)
        jax.effects_barrier()
        return seen

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(None) == drawn(None)  # as the profile says
