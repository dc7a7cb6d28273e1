"""`prove_relocation`: numbers, dtypes and refusals of a port against those of its numpy original."""

import math
import re
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.testing import arrays
from erythroxy_tx.testing import indices
from erythroxy_tx.testing import prove_relocation
from erythroxy_tx.testing import rows
from erythroxy_tx.testing.relocation import Port

TAME = {"extremes": False, "allow_nan": False, "allow_infinity": False}
BITS = tx.Bitwise()


def caught(fn: Any, numpy_ref: Any, inputs: Any, contract: Any = BITS, **options: Any) -> tx.RelocationError:
    with pytest.raises(tx.RelocationError) as found:
        prove_relocation(fn, numpy_ref, inputs, contract=contract, max_examples=40, **options)
    return found.value


def total(x: Any) -> Any:
    return x.sum(0)


def half_dropped(x: Any) -> Any:
    return x[: len(x) // 2].sum(0)


# ---------------------------------------------------------------------- numbers


@pytest.mark.parametrize("contract", [tx.Close(1e-6), tx.AsAccurate(2)])
def test_a_sum_is_as_good_as_float32_can_be(contract: Any) -> None:
    inputs = rows(st.just(300), 2, min_value=0, max_value=1000, extremes=False)
    proof = prove_relocation(total, total, inputs, contract=contract, max_examples=20)
    assert str(proof) == "no counterexample to total:\n  numpy    20 inputs, values"
    error = caught(half_dropped, total, inputs, contract)
    assert "half_dropped does not compute what the numpy original total computes" in str(error)


def test_the_tolerance_grows_with_the_longest_sum() -> None:
    x = np.ones((100, 2), np.float32)
    port = Port(total, total, tx.Close(1e-6))
    example = port.judge.example((x,))
    program = port.judge.program("reference", "jit", example, gradients=False)
    assert port._scaled(example, program) == tx.Close(1e-6 + 4 * math.sqrt(100) * float(np.finfo(np.float32).eps))
    accurate = Port(total, total, tx.AsAccurate(2))
    assert accurate._scaled(example, program) == tx.AsAccurate(2, units=16 + 40)


def test_bit_for_bit() -> None:
    assert prove_relocation(lambda x: -x, lambda x: -x, arrays(shape=7), contract=BITS, max_examples=20)
    assert "sign of zero differs" in str(caught(lambda x: jnp.where(x == 0, 0, x), lambda x: x, arrays(shape=7)))
    assert "bits must be equal" in str(caught(jnp.tanh, np.tanh, arrays(shape=7, **TAME)))


def test_an_absolute_tolerance_on_top() -> None:
    """A difference of equal means is 0, but for rounding."""
    port = lambda x: jnp.sqrt(jnp.maximum((x * x).mean(0) - x.mean(0) ** 2, 0))  # noqa: E731
    flat = st.floats(1, 9, width=32).map(lambda v: np.full(7, v, np.float32))
    error = caught(port, lambda x: x.std(0), flat, tx.Close(1e-3), atol=1e-5)
    assert "contract=tx.Close(rtol=0.001), atol=1e-05)" in str(error)
    assert prove_relocation(port, lambda x: x.std(0), flat, contract=tx.Close(1e-3), atol=0.01, max_examples=30)


def test_what_overflows_in_the_narrower_dtype_is_told() -> None:
    inputs = arrays("float64", 3, min_value=1, max_value=1e300)
    error = caught(lambda x: x * 2, lambda x: x * 2, inputs, tx.AsAccurate(4))
    assert "NaN or infinity in other places" in str(error)
    assert "port inf" in str(error)


def test_results_are_compared_by_nesting() -> None:
    def decomposed(x: Any) -> Any:
        return jnp.linalg.eigh(x @ x.T + 9 * jnp.eye(3))[0], [x.max()]

    def decomposed_in_numpy(x: Any) -> Any:
        return [np.linalg.eigh(x @ x.T + 9 * np.eye(3, dtype=x.dtype))[0], (x.max(),)]

    inputs = arrays(shape=(3, 3), **TAME)
    assert prove_relocation(decomposed, decomposed_in_numpy, inputs, contract=tx.AsAccurate(8), max_examples=5)


def test_pytrees_static_values_and_decorated_ports() -> None:
    def scaled(batch: Any, mode: str) -> Any:
        return batch["x"] * 2 if mode == "twice" else batch["x"] + batch["y"]

    inputs = st.tuples(
        st.fixed_dictionaries({"x": rows(5, 2), "y": arrays(shape=2)}), st.sampled_from(["twice", "sum"])
    )
    assert prove_relocation(scaled, scaled, inputs, contract=tx.AsAccurate(2), max_examples=10)
    ported = tx.vram_resident(tx.chunked(lax.map, 2, out="sum")(total))
    assert prove_relocation(ported, total, rows(5, 2), contract=tx.AsAccurate(4), max_examples=5)
    dropped = tx.vram_resident(tx.chunked(lax.map, 2, out="mean")(total))
    assert caught(dropped, total, rows(5, 2, **TAME), tx.AsAccurate(4))


# ---------------------------------------------------------------------- dtypes


def test_float64_may_become_float32_unless_bits_count() -> None:
    inputs = arrays("float64", 5, **TAME)
    assert prove_relocation(lambda x: x * 2, lambda x: x * 2, inputs, contract=tx.Close(1e-6), max_examples=10)
    assert "dtype float64 → float32" in str(caught(lambda x: x * 2, lambda x: x * 2, inputs))


@pytest.mark.parametrize("contract", [BITS, tx.Close(1e-6)])
def test_integers_may_not_become_narrower(contract: Any) -> None:
    error = caught(lambda x: x, lambda x: x, arrays("int64", 3, min_value=2**31), contract)
    assert "dtype int64 → int32, and the reference has values from 2147483648" in str(error)


# ---------------------------------------------------------------------- refusals


def test_both_must_refuse() -> None:
    beyond = st.tuples(arrays("int32", 4), indices(4, 2, out_of_range=True))
    error = caught(lambda x, i: x[i], lambda x, i: x[i], beyond)
    assert "the reference raises IndexError: index " in str(error)
    assert error.counterexample[1].max() >= 4 or error.counterexample[1].min() < -4

    def refusing(x: Any) -> Any:
        if not len(x):
            raise ValueError("no rows")
        return x.sum(0)

    some = rows(st.sampled_from([0, 3]), 2, **TAME)
    proof = prove_relocation(refusing, refusing, some, contract=tx.Close(1e-6), max_examples=20)
    assert proof.ways[0].refused > 0
    with pytest.raises(ValueError, match="no rows") as found:
        prove_relocation(refusing, total, some, contract=tx.Close(1e-6), max_examples=20)
    assert "raised by the candidate alone" in "\n".join(found.value.__notes__)


def test_warnings_of_the_original_are_its_own() -> None:
    inputs = rows(st.sampled_from([0, 3]), 2, **TAME)
    assert prove_relocation(lambda x: x.mean(0), lambda x: x.mean(0), inputs, contract=tx.Close(1e-6), max_examples=8)


def test_the_original_gets_copies() -> None:
    def writes(x: Any) -> Any:
        x *= 2
        return x

    x = np.ones(3, np.float32)
    assert prove_relocation(lambda x: x * 2, writes, st.just((x,)), contract=BITS, max_examples=2)
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"contract": tx.Close}, TypeError, "contract=Close. Expected an instance"),
        ({"contract": 1e-6}, TypeError, "contract=1e-06. Expected Bitwise"),
        ({"contract": (BITS, BITS)}, TypeError, "one for every output"),
        ({"contract": BITS, "atol": 1e-3}, TypeError, "atol=0.001 and contract=Bitwise"),
        ({"contract": tx.Close(1e-6), "atol": -1.0}, ValueError, "atol=-1.0. Expected a finite number >= 0"),
        ({"contract": BITS, "max_examples": -1}, ValueError, "max_examples=-1"),
    ],
)
def test_bad_arguments(options: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=re.escape(told)):
        prove_relocation(total, total, rows(5, 2), **options)


def test_what_is_no_function() -> None:
    for fn, original, told in [(3, np.sort, "fn=3"), (total, None, "numpy_ref=None")]:
        with pytest.raises(TypeError, match=f"got {told}. Expected a function"):
            prove_relocation(fn, original, rows(5, 2), contract=BITS)


# ---------------------------------------------------------------------- what people reported


def test_chunks_of_a_sum_are_not_bitwise(rng: np.random.Generator) -> None:
    """jax issues 31919, 38768 and 27591: other last bits for another batch size. The promise says which."""

    def row_sums(x: Any) -> Any:
        return jnp.sum(jnp.exp(jnp.sin(x)) * x, 1) / jnp.sqrt(1 + jnp.sum(x * x, 1))

    x = jnp.asarray(rng.normal(size=(96, 64)), jnp.float32)
    moved = tx.chunked(lax.map, size=5, out="rows")(lambda x: jnp.sort(x, 1)[:, ::-1])
    summed = tx.chunked(lax.map, size=5, out="rows")(row_sums)
    assert tx.contract(moved, x) == BITS
    assert tx.contract(summed, x) == tx.AsAccurate(4)
    assert tx.testing.prove(moved, st.just(x), under=("jit",), max_examples=1)
    assert tx.testing.prove(summed, st.just(x), under=("jit",), max_examples=1)
    with pytest.raises(tx.IdentityError, match=r"\d+ of 96 differ.*bits must be equal"):
        tx.testing.prove(summed, st.just(x), contract=BITS, under=("jit",), max_examples=1)


def counted_in_numpy(x: Any, i: Any) -> Any:
    x = x.copy()
    x[i] += 1
    return x


def counted_at(x: Any, i: Any) -> Any:
    x = x.copy()
    np.add.at(x, i, 1)
    return x


def test_a_repeated_index() -> None:
    """jax issue 9344, QDax issue 2: five random indices into a thousand do not repeat, those of the strategy do."""
    inputs = st.tuples(arrays("int32", 1000), indices(1000, 5))
    error = caught(lambda x, i: x.at[i].add(1), counted_in_numpy, inputs)
    assert len(np.unique(error.counterexample[1])) < 5
    assert re.search(r"1 of 1000 differ, worst at \[\d+\]: numpy \d+, port \d+", str(error))
    assert prove_relocation(lambda x, i: x.at[i].add(1), counted_at, inputs, contract=BITS, max_examples=10)


def test_an_argsort_with_ties() -> None:
    """numpy issues 27725 and 24064, jax pull 8237: both are right, and the message says so."""

    def last_first(x: Any) -> Any:
        return np.lexsort((-np.arange(x.size), x)).astype(np.int32)

    inputs = arrays(shape=7, allow_nan=False)
    error = caught(jnp.argsort, last_first, inputs)
    assert "is equal up to ties: both pick the same values of a" in str(error)
    assert 'Fix: kind="stable" in the original' in str(error)
    stable = lambda x: np.argsort(x, kind="stable").astype(np.int32)  # noqa: E731
    assert prove_relocation(jnp.argsort, stable, inputs, contract=BITS, max_examples=20)


def test_a_counter_that_wraps() -> None:
    """jax issue 3840, pulls 18379 and 23236."""
    inputs = arrays("int64", 2, min_value=0)
    assert "dtype int64 → int32" in str(caught(jax.jit(total), total, inputs))
    narrow = lambda x: np.minimum(x.sum(), 2**31 - 1).astype(np.int32)  # noqa: E731  # its author chose a dtype
    error = caught(jax.jit(total), narrow, arrays("int32", 2, min_value=0))
    assert "differ, worst at []: numpy 2147483647, port -" in str(error)
