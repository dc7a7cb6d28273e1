"""`assert_relocation`: which differences it tells, which it lets pass, and when it looks.

A port that is wrong is written beside each way in which one could hope to get through.
"""

import collections
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx

X = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)


def held(reference: Callable[..., Any], function: Callable[..., Any], **parameters: Any) -> Any:
    return tx.assert_relocation(reference, **parameters)(function)


def told(call: Callable[[], Any]) -> str:
    """The message of the refusal of a call."""
    with pytest.raises(tx.RelocationError) as caught:
        call()
    assert isinstance(caught.value, tx.ContractError)
    assert isinstance(caught.value, AssertionError)
    return str(caught.value)


def constant(value: Any) -> Callable[[Any], Any]:
    return lambda x: value


# ---------------------------------------------------------------------- the law


@pytest.mark.parametrize(
    ("rtol", "atol", "off", "passes"),
    [
        (1e-4, 0.0, 0.9e-2, True),  # the largest magnitude is 100
        (1e-4, 0.0, 1.1e-2, False),
        (0.0, 1e-2, 0.9e-2, True),
        (0.0, 1e-2, 1.1e-2, False),
        (1e-4, 1e-2, 1.9e-2, True),
        (1e-4, 1e-2, 2.1e-2, False),
        (0.0, 0.0, 0.0, True),
        (0.0, 0.0, 1e-7, False),
    ],
)
def test_the_largest_difference(rtol: float, atol: float, off: float, passes: bool) -> None:
    reference = np.float64([1.0, -100.0, 0.0])
    moved = reference + np.float64([0, 0, off])
    with jax.enable_x64(True):  # noqa: FBT003
        f = held(constant(reference), lambda x: jnp.asarray(moved), rtol=rtol, atol=atol)
        if passes:
            assert f(X).tolist() == moved.tolist()
        else:
            assert "1 of 3 differ, worst at [2]" in told(lambda: f(X))


def test_each_output_has_its_own_scale() -> None:
    f = held(constant((np.float32([1e6]), np.float32([1.0]))), lambda x: (jnp.float32([1e6]), jnp.float32([1.01])))
    assert "[1]: 1 of 1 differ" in told(lambda: f(X))


def test_a_message_says_all() -> None:
    f = held(lambda x, *, scale: {"mean": x.mean(0)}, lambda x, *, scale: {"mean": jnp.mean(x, 0).at[1].add(0.5)})
    text = told(lambda: f(X, scale=2.0))
    for part in (
        "called with x: f32[100,3], scale: ",
        "['mean']: ",
        "of 3 differ",
        "worst at [1]",
        "numpy ",
        "relocated ",
        "difference 0.5",
        "Expected at most atol=0 + rtol=0.0001",
    ):
        assert part in text


WRONG: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mean of means": (lambda x: x.mean(), lambda x: (x[:64].mean() + x[64:].mean()) / 2),
    "a row lost": (lambda x: x.sum(0), lambda x: x[:-1].sum(0)),
    "population and sample": (lambda x: x.std(0, ddof=1), lambda x: jnp.std(x, 0)),
    "transposed": (lambda x: x.T @ x[:, :3] + np.float32([0, 1, 2]), lambda x: (x.T @ x + jnp.arange(3.0)).T),
    "zeros": (lambda x: x.sum(0), lambda x: jnp.zeros(3)),
    "broadcast": (lambda x: x.mean(0), lambda x: jnp.mean(x, 0)[:, None]),
    "scalar as a row": (lambda x: x.mean(), lambda x: jnp.mean(x)[None]),
    "empty": (lambda x: x[:0], lambda x: jnp.asarray(x)[:0, :2]),
    "outputs swapped": (lambda x: (x.min(), x.max()), lambda x: (x.max(), x.min())),
    "names swapped": (lambda x: {"a": x.min(), "b": x.max()}, lambda x: {"b": x.min(), "a": x.max()}),
    "an output missing": (lambda x: (x, x), lambda x: (x,)),
    "None for a value": (lambda x: x, lambda x: None),
    "a value for None": (lambda x: (x, None), lambda x: (None, x)),
    "nothing": (lambda x: None, lambda x: ()),
    "truncated division": (lambda x: np.int32([-7]) // 2, lambda x: lax.div(jnp.int32([-7]), jnp.int32([2]))),
    "truncated remainder": (lambda x: np.int32([-7]) % 3, lambda x: lax.rem(jnp.int32([-7]), jnp.int32([3]))),
    "a bool off": (lambda x: x > 0, lambda x: (x > 0).at[0, 0].set(x[0, 0] <= 0) if hasattr(x, "at") else x <= 0),
    "upper median": (lambda x: np.median(x[:, 0]), lambda x: jnp.sort(x[:, 0])[50]),
    "NaN elsewhere": (constant(np.float32([np.nan, 1])), constant(np.float32([1, np.nan]))),
    "NaN for a number": (constant(np.float32([1, 1])), constant(np.float32([1, np.nan]))),
    "a number for NaN": (constant(np.float32([np.nan, 1])), constant(np.float32([0, 1]))),
    "NaN for infinity": (constant(np.float32([np.inf, 1])), constant(np.float32([np.nan, 1]))),
    "the other infinity": (constant(np.float32([np.inf, 1])), constant(np.float32([-np.inf, 1]))),
    "past float32": (constant(np.float64([1e300, 1])), constant(np.float32([np.inf, 1]))),
    "a large integer": (constant(np.int64([2**60])), constant(np.int64([2**60 + 1]))),
    "a key": (constant(np.zeros(2, np.uint32)), constant(jax.random.key(0))),
    "objects": (constant(np.array([1, None])), constant(np.float32([1, 2]))),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_ports(case: str) -> None:
    reference, function = WRONG[case]
    told(lambda: held(reference, function)(X))
    told(lambda: held(reference, function, calls="always", sample=100)(X))


def test_the_other_part_of_a_complex_nan() -> None:
    told(lambda: held(constant(np.complex64([complex(1, np.nan)])), constant(np.complex64([complex(2, np.nan)])))(X))


def test_a_mask_that_is_lost() -> None:
    told(lambda: held(constant(np.ma.masked_array(np.float32([1, 2]), [0, 1])), constant(np.float32([1, 2])))(X))


def test_nan_and_infinities_in_the_same_places_pass() -> None:
    values = np.float32([np.nan, np.inf, -np.inf, 1.0])
    for good in (values, values[:1]):
        assert np.isnan(held(constant(good), lambda x, v=good: jnp.asarray(v))(X)[0])


# ---------------------------------------------------------------------- dtypes and structures


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("float64", "float32", None),
        ("complex128", "complex64", None),
        ("float32", "bfloat16", "dtype float32 → bfloat16"),
        ("float64", "bfloat16", "dtype float64 → bfloat16"),
        ("float16", "float32", "dtype float16 → float32"),
        ("complex64", "float32", "dtype complex64 → float32"),
        ("int64", "int32", "dtype int64 → int32 (every value fits; cast the reference if that is meant)"),
        ("int32", "float32", "dtype int32 → float32"),
        ("float32", "int32", "dtype float32 → int32"),
        ("bool", "int32", "dtype bool → int32"),
        ("uint8", "int8", "dtype uint8 → int8"),
    ],
)
def test_dtypes(before: str, after: str, fault: str | None) -> None:
    """The values are equal: the dtype alone decides, whatever is tolerated."""
    value = np.array([0, 1, 1])
    f = held(constant(value.astype(before)), lambda x: jnp.asarray(value).astype(after), rtol=1.0)
    if fault is None:
        f(X)
        assert f"result: {before} → {after} (allowed)" in str(f.report())
    else:
        assert fault in told(lambda: f(X))


def test_a_dtype_that_wraps_is_told_before_the_numbers() -> None:
    tokens = np.array([2_000_000_000, 1_000_000_000])
    text = told(lambda: held(lambda t: t.sum(), lambda t: jnp.asarray(t).astype("int32").sum())(tokens))
    assert text.index("dtype int64 → int32, and the reference has values from 3000000000") < text.index("differ")
    assert "numpy 3000000000, relocated -1294967296" in text


class Moments(NamedTuple):
    low: Any
    high: Any


@dataclasses.dataclass
class Opaque:
    low: Any
    high: Any


@pytest.mark.parametrize("container", [list, tuple, lambda pair: Moments(*pair)])
@pytest.mark.parametrize("other", [list, tuple, lambda pair: Moments(*pair)])
def test_sequences_are_held_by_order(container: Any, other: Any) -> None:
    low_high = lambda x: container([x.min(), {"all": [x.max()]}])  # noqa: E731
    found = held(low_high, lambda x: other([jnp.min(x), {"all": (jnp.max(x),)}]))(X)
    assert type(found) is type(other([0, 0]))
    told(lambda: held(low_high, lambda x: other([jnp.max(x), {"all": (jnp.min(x),)}]))(X))


def test_other_structures_differ() -> None:
    for value in (Opaque(X, X), {"low": X, "high": X}, X, [X, X, X], [[X, X]]):
        assert "structure differs" in told(lambda v=value: held(constant([X, X]), constant(v))(X))
    assert held(lambda x: float(x.sum()), jnp.sum, rtol=1e-3)(X).shape == ()
    assert held(lambda x: collections.OrderedDict(b=x, a=x), lambda x: {"a": x, "b": x})(X)["a"] is X


# ---------------------------------------------------------------------- ties

TIED = np.random.default_rng(0).integers(0, 50, 1000).astype(np.float32)
TIES: dict[str, tuple[Callable[..., Any], Callable[..., Any], np.ndarray]] = {
    "argsort": (lambda a: np.lexsort((-np.arange(len(a)), a)).astype("int32"), jnp.argsort, TIED),
    "argsort of rows": (
        lambda a: np.argsort(a[:, ::-1], 1, kind="stable").astype("int32")[:, :] * -1 + a.shape[1] - 1,
        lambda a: jnp.argsort(a, 1),
        TIED.reshape(20, 50),
    ),
    "argmax": (lambda a: np.int32(len(a) - 1 - np.argmax(a[::-1])), jnp.argmax, TIED),
    "argmin of columns": (
        lambda a: (len(a) - 1 - np.argmin(a[::-1], 0)).astype("int32"),
        lambda a: jnp.argmin(a, 0),
        TIED.reshape(100, 10),
    ),
    "top-k": (lambda a: np.lexsort((-np.arange(len(a)), -a)).astype("int32")[:5], lambda a: lax.top_k(a, 5)[1], TIED),
}


@pytest.mark.parametrize("case", TIES)
def test_ties_are_told_as_ties_and_do_not_pass(case: str) -> None:
    reference, function, values = TIES[case]
    text = told(lambda: held(reference, function)(values))
    assert "result is equal up to ties: both pick the same values of a" in text
    assert 'Fix: kind="stable"' in text


def test_other_indices_are_no_ties() -> None:
    for wrong in (
        lambda a: jnp.argsort(-a),
        lambda a: jnp.argsort(a).at[1].set(jnp.argsort(a)[0]),  # one picked twice
        lambda a: jnp.argsort(a) - 1000,
    ):
        text = told(lambda f=wrong: held(lambda a: np.argsort(a, kind="stable").astype("int32"), f)(TIED))
        assert "equal up to ties" not in text
    stable = held(lambda a: np.argsort(a, kind="stable").astype("int32"), jnp.argsort)
    assert sorted(stable(TIED).tolist()) == list(range(1000))


# ---------------------------------------------------------------------- who raises, who writes


def test_the_reference_refuses_and_the_function_does_not() -> None:
    f = held(lambda x, i: x[i], lambda x, i: jnp.asarray(x)[i])
    text = told(lambda: f(X, 200))
    assert "raised IndexError: index 200 is out of bounds" in text
    assert "the function returned a value (f32[3])" in text
    assert f(X, 99).shape == (3,)


def test_what_the_function_raises_is_its_own() -> None:
    def broken(x: Any) -> Any:
        raise LookupError("mine")

    for reference in (lambda x: x, broken):
        with pytest.raises(LookupError, match="mine"):
            held(reference, broken)(X)

    def interrupted(x: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        held(interrupted, lambda x: x)(X)


def test_a_reference_that_writes_to_its_argument() -> None:
    """It must neither change the caller's array nor the function's."""

    def centred(x: np.ndarray) -> np.ndarray:
        x -= x.mean(0)
        return x

    for x in (X.copy(), jnp.asarray(X)):
        before = np.array(x)
        assert "read-only" in told(lambda x=x: held(centred, lambda x: x)(x))
        assert np.array_equal(before, x)
    x = X.copy()
    held(lambda x: centred(x.copy()), lambda x: x - x.mean(0), atol=1e-5)(x)
    assert np.array_equal(x, X)


def test_a_function_that_writes_to_its_argument() -> None:
    """The reference sees the argument as it was."""

    def doubled(x: np.ndarray) -> jax.Array:
        x *= 2
        return jnp.asarray(x).sum(0)

    told(lambda: held(lambda x: x.sum(0), doubled)(X.copy()))


def test_a_function_that_takes_its_argument() -> None:
    """Donated arrays are gone after the call; the reference has seen them by then."""
    donating = jax.jit(lambda x: x * 2, donate_argnums=0)
    x = jnp.asarray(X) + 0
    assert np.array_equal(held(lambda x: x * 2, donating)(x), X * 2)
    for dtype in ("float32", "int32"):  # integers are looked through for ties
        taken = jnp.ones(5, dtype)
        assert "5 of 5 differ" in told(lambda taken=taken: held(lambda x: x * 3, donating)(taken))


def test_masked_arguments_stay_masked() -> None:
    masked = np.ma.masked_array(X, X > 0)
    f = held(lambda m: np.float32(m.count()), lambda m: jnp.float32((X <= 0).sum()))
    assert f(masked) == (X <= 0).sum()


# ---------------------------------------------------------------------- which calls


@pytest.mark.parametrize(("calls", "compared"), [("first", [0]), ("always", range(7)), (1, range(7)), (3, [0, 3, 6])])
def test_calls(calls: Any, compared: Any) -> None:
    seen: list[int] = []
    f = held(lambda x: (seen.append(int(x[0])), x)[1], jnp.asarray, calls=calls)
    for k in range(7):
        f(np.float32([k]))
    assert seen == list(compared)
    assert f"{len(seen)} of 7 calls compared" in str(f.report())


def test_a_port_that_goes_wrong_later() -> None:
    def until(calls: Any) -> int | None:
        count = iter(range(100))
        f = held(lambda x: x * 2, lambda x: jnp.asarray(x) * (2 if next(count) < 3 else 3), calls=calls)
        for k in range(8):
            try:
                f(X)
            except tx.RelocationError:
                return k
        return None

    assert [until(calls) for calls in ("always", 2, 4, "first")] == [3, 4, 4, None]


def test_a_failed_comparison_is_made_again() -> None:
    f = held(lambda x: x * 2, lambda x: x * 3)
    for k in (1, 2):
        told(lambda: f(X))
        assert str(f.report()).endswith(f"nothing compared in {k} calls")
    assert f.report().compared == 0


def test_report_keeps_the_largest() -> None:
    offsets = iter([1e-6, 5e-5, 2e-6])
    f = held(lambda x: np.float64([1.0]), lambda x: jnp.float32([1 + next(offsets)]), calls="always")
    for _ in range(3):
        f(X)
    assert abs(f.report().largest - 5e-5) < 1e-6
    assert "3 of 3 calls compared" in str(f.report())
    assert "float64 → float32 (allowed)" in str(f.report())


# ---------------------------------------------------------------------- a sample of the rows


def test_sample_is_seeded_and_seen_by_both() -> None:
    theirs, ours = [], []
    f = held(
        lambda x, *, w: (theirs.append(np.array(x)), x * w)[1],
        lambda x, *, w: (ours.append(np.array(x)), jnp.asarray(x) * w)[1],
        sample=5,
        calls="always",
    )
    assert f(X, w=np.ones(3, np.float32)).shape == (100, 3)
    f(X, w=np.ones(3, np.float32))
    assert [len(x) for x in theirs] == [5, 5]
    assert [len(x) for x in ours] == [100, 5, 100, 5]
    assert all(np.array_equal(theirs[0], x) for x in (theirs[1], ours[1], ours[3]))
    positions = [int(np.flatnonzero((row == X).all(1))[0]) for row in theirs[0]]
    assert positions == sorted(set(positions))
    assert "compared on 5 of 100 rows" in str(f.report())


def test_sample_finds_what_differs_in_every_row() -> None:
    text = told(lambda: held(lambda x: x * 2, lambda x: x * 2.01, sample=5)(X))
    assert "called with x: f32[5,3] on 5 of 100 rows" in text
    assert held(lambda x: x * 2, lambda x: x * 2, sample=100)(X).shape == (100, 3)


def test_sample_takes_the_rows_of_the_chunks_inside() -> None:
    seen: list[tuple[int, ...]] = []
    f = tx.chunked(lax.map, size=2, in_axes=(1, None), out="rows")(lambda xt, w: xt.T @ w)
    reference = lambda xt, w: (seen.append(xt.shape), xt.T @ w)[1]  # noqa: E731
    held(reference, tx.vram_resident(f), sample=7)(np.ascontiguousarray(X.T), np.ones(3, np.float32))
    assert seen == [(3, 7)]


@pytest.mark.parametrize("args", [(X, None), (X, 2.0), (None, X), ({"a": X, "none": None}, X)])
def test_sample_of_arguments_without_rows(args: tuple) -> None:
    rows = lambda a, b: next(v for v in (*(a.values() if isinstance(a, dict) else [a]), b) if isinstance(v, np.ndarray))  # noqa: E731
    assert held(lambda *args: rows(*args) * 2, lambda *args: rows(*args) * 2, sample=5)(*args).shape == (100, 3)


def test_sample_needs_one_number_of_rows() -> None:
    with pytest.raises(ValueError, match=r"sample=5 and x: f32") as caught:
        held(lambda x, w: x, lambda x, w: x, sample=5)(X, np.ones(7))
    assert "w: f64[7]" in str(caught.value)
    assert "Fix: pass what has no rows by keyword" in str(caught.value)


# ---------------------------------------------------------------------- where it stands


def test_it_says_once_that_a_trace_is_no_place() -> None:
    f = held(lambda x: x * 2, lambda x: x * 3)
    with pytest.warns(UserWarning, match="called inside a trace, where it compares nothing"):
        jax.jit(f)(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(lambda x: f(x) + 1)(X)
        jax.vmap(f)(X)
    assert "nothing compared" in str(f.report())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told(lambda: f(X))


def test_the_whole_stack() -> None:
    def port(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    def stacked(fn: Any) -> Any:
        chunks = tx.chunked(lax.map, size=7, in_axes=(0, None), out="rows")(fn)
        return held(lambda x, w: np.tanh(x @ w), tx.vram_resident(chunks), calls="always")

    w = np.ones((3, 2), np.float32)
    f = stacked(port)
    assert f(X, w).shape == (100, 2)
    assert [t.name for t in tx.stack(f)] == ["tx.assert_relocation", "tx.vram_resident", "tx.chunked"]
    assert tx.unwrap(f) is port
    assert f.lower(X, w).as_text() == f.fn.lower(X, w).as_text()
    mixing = stacked(lambda x, w: port(x - x.mean(0), w))  # what no declaration sees
    told(lambda: mixing(X, w))


def test_methods_and_keywords() -> None:
    class Model:
        factor = 2.0

        @tx.assert_relocation(lambda x, *, by: x * 2 * by, calls="always")
        def scaled(self, x: Any, *, by: float) -> Any:
            return x * self.factor * by

    model = Model()
    assert model.scaled(X, by=2.0).shape == (100, 3)
    model.factor = 3.0
    told(lambda: model.scaled(X, by=1.0))


@pytest.mark.parametrize(
    "parameters",
    [
        {"rtol": -1e-4},
        {"rtol": float("nan")},
        {"rtol": float("inf")},
        {"rtol": "tight"},
        {"rtol": True},
        {"atol": -1},
        {"atol": None},
        {"sample": 0},
        {"sample": True},
        {"sample": 2.5},
        {"calls": 0},
        {"calls": True},
        {"calls": "sometimes"},
        {"calls": 1.5},
    ],
)
def test_parameters(parameters: dict[str, Any]) -> None:
    name, value = next(iter(parameters.items()))
    with pytest.raises(ValueError, match=r"tx\.assert_relocation got") as caught:
        tx.assert_relocation(constant(1), **parameters)
    assert f"{name}={value!r}" in str(caught.value)


def test_what_is_no_function() -> None:
    with pytest.raises(TypeError, match="numpy_ref=3"):
        tx.assert_relocation(3)
    with pytest.raises(TypeError, match="got int in place of a function"):
        tx.assert_relocation(constant(1))(3)
