"""What `chunked` refuses, each with the parameter, the value and the fix."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx

X = jnp.arange(20.0).reshape(10, 2)


def identity(x: Any, *rest: Any) -> Any:
    return x


def pieces(error: BaseException, *parts: str) -> None:
    missing = [part for part in parts if part not in str(error)]
    assert not missing, f"{missing} not in: {error}"


@pytest.mark.parametrize("name", ["n", "size"])
@pytest.mark.parametrize("value", [0, -1, -8, True, False, 2.0, "3", np.int64(3), (2,)])
def test_counts(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"tx\.chunked") as caught:
        tx.chunked(lax.map, **{name: value}, out="rows")
    pieces(caught.value, f"{name}={value!r}", "Expected an int ≥ 1")


@pytest.mark.parametrize("value", [0, -5, True, 1.5, "lots", "2 parsecs", "0GiB"])
def test_budgets(value: Any) -> None:
    with pytest.raises(ValueError, match="budget") as caught:
        tx.chunked(lax.map, budget=value, out="rows")
    pieces(caught.value, f"budget={value!r}", "512MiB")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "none of n, size and budget"),
        ({"n": 2, "size": 3}, "n=2, size=3"),
        ({"size": 3, "budget": "1MiB"}, "size=3, budget='1MiB'"),
        ({"n": 2, "size": 3, "budget": 9}, "n=2, size=3, budget=9"),
    ],
)
def test_exactly_one_way_to_cut(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match="Expected exactly one") as caught:
        tx.chunked(lax.map, **given, out="rows")
    pieces(caught.value, told)


@pytest.mark.parametrize("driver", [map, jax.vmap, lax.fori_loop, "map", None, 4, identity])
def test_drivers(driver: Any) -> None:
    with pytest.raises(ValueError, match=r"Expected lax\.map or lax\.scan") as caught:
        tx.chunked(driver, 2, out="rows")
    pieces(caught.value, "driver=", "Fix: @tx.chunked(lax.map, n)")


def test_bare_use() -> None:
    with pytest.raises(ValueError, match="it takes arguments; the function comes after them"):
        tx.chunked(identity)
    with pytest.raises(TypeError, match=r"tx\.chunked got int in place of a function\. Expected @tx\.chunked"):
        tx.chunked(lax.map, 2, out="rows")(3)


@pytest.mark.parametrize("out", ["total", "Sum", "", None, 0, ("rows", "total"), {"a": "row"}, ["sum", None]])
def test_undeclared_outputs(out: Any) -> None:
    with pytest.raises(ValueError, match=r"'rows'|out=\"rows\""):
        tx.chunked(lax.map, 2, out=out)


@pytest.mark.parametrize("in_axes", [True, 1.0, "0", (0, "a"), {"a": 0.5}, (None, True), np.int64(0)])
def test_axes_that_are_none(in_axes: Any) -> None:
    with pytest.raises(ValueError, match=r"in_axes=.*Expected ints and None"):
        tx.chunked(lax.map, 2, out="rows", in_axes=in_axes)


# ---------------------------------------------------------------------- at the call

CALLS: dict[str, tuple[dict[str, Any], tuple, list[str]]] = {
    "lengths": ({}, (X, X[:9]), ["rows of different lengths: x has 10, rest[0] has 9", "None in in_axes="]),
    "lengths on axes": ({"in_axes": (0, 1)}, (X, X), ["x has 10, rest[0] has 2"]),
    "scalar": ({}, (X, 1.5), ["rest[0]: ", "a scalar where rows are expected"]),
    "scalar array": ({}, (X, jnp.float32(1)), ["rest[0]: f32[], a scalar"]),
    "no such axis": ({"in_axes": 2}, (X,), ["x: f32[10,2], no axis 2"]),
    "no such negative axis": ({"in_axes": -3}, (X,), ["no axis -3"]),
    "no rows": ({"in_axes": None}, (X,), ["got no rows: 1 positional arguments, in_axes=None"]),
    "nothing": ({}, (), ["got no rows"]),
    "only strings": ({}, ("x",), ["got no rows"]),
    "too many axes": (
        {"in_axes": (0, 0)},
        (X,),
        ["in_axes=(0, 0), which has 2 entries", "the positional arguments"],
    ),
    "other tree": ({"in_axes": ({"a": 0},)}, ({"b": X},), ["in_axes=({'a': 0},)"]),
    "scalars in a list": ({}, ([1.0, 2.0],), ["x[0]: ", "a scalar"]),
}


@pytest.mark.parametrize("case", CALLS)
def test_arguments(case: str) -> None:
    parameters, args, told = CALLS[case]
    f = tx.chunked(lax.map, 2, out="rows", **parameters)(identity)
    for call in (f, f.chunks, f.lower):
        with pytest.raises(ValueError, match=r"tx\.chunked\(identity\)") as caught:
            call(*args)
        pieces(caught.value, *told, "Expected")


RESULTS: dict[str, tuple[Any, Callable[..., Any], list[str]]] = {
    "fewer declared": (("rows",), lambda x: (x, x), ["out=('rows',), which has 1 entries", "the result"]),
    "more declared": (("rows", "sum"), lambda x: x, ["out=('rows', 'sum')"]),
    "other tree": ({"a": "rows"}, lambda x: {"b": x}, ["out={'a': 'rows'}"]),
    "reduced": (
        "rows",
        lambda x: x.sum(0),
        ["declared 'rows': f32[2] from all 10 rows and f32[2] from 4", "Fix: declare"],
    ),
    "scalar": ("rows", lambda x: x.sum(), ["f32[] from all 10 rows"]),
    "rows behind": (
        "rows",
        lambda x: x.T,
        ["f32[2,10] from all 10 rows and f32[2,4]", "move the row axis to the front"],
    ),
    "halved": ("rows", lambda x: x[::2], ["f32[5,2] from all 10 rows and f32[2,2] from 4"]),
    "gram of rows": ("rows", lambda x: x @ x.T, ["f32[10,10] from all 10 rows and f32[4,4] from 4"]),
    "rows as a sum": ("sum", lambda x: x, ["declared 'sum': f32[10,2] from all 10 rows", 'Fix: declare "rows"']),
    "rows as a max": ("max", lambda x: x[:, 0], ["declared 'max'"]),
    "mean of integers": ("mean", lambda x: x.astype(int).sum(), ["i32[]", "a mean of rounded means is not the mean"]),
    "mean of bools": ("mean", lambda x: (x > 0).any(), ["Expected a number"]),
    "sum of bools": ("sum", lambda x: (x > 0).any(0), ["bool[2]", 'Fix: declare "all" or "any"']),
    "product of bools": ("prod", lambda x: (x > 0).any(0), ["bool[2]"]),
    "all of floats": ("all", lambda x: x.sum(0), ["f32[2]", 'a bool. Fix: declare "min" or "max"']),
    "any of integers": ("any", lambda x: x.astype(int).max(), ["i32[]", "a bool"]),
    "max of complex": ("max", lambda x: (1j * x).sum(), ["c64[]", "values that have an order"]),
    "sum of keys": ("sum", lambda x: jax.random.key(0), ["key<fry>[]"]),
    "named": (("rows", {"a": "all"}), lambda x: (x, {"a": x.sum()}), ["result[1]['a'] declared 'all'"]),
    "a string": ("rows", lambda x: "x", ["result of type str", "Expected arrays and numbers"]),
    "a function": ("rows", lambda x: (x, len), ["result[1] of type builtin_function_or_method"]),
}


@pytest.mark.parametrize("case", RESULTS)
def test_results(case: str) -> None:
    out, fn, told = RESULTS[case]
    f = tx.chunked(lax.map, size=4, out=out)(fn)
    for call in (f, jax.jit(f), lambda x: jax.vmap(f)(x[None])):
        with pytest.raises(ValueError, match=r"tx\.chunked\(.*lambda>\)") as caught:
            call(X)
        pieces(caught.value, *told)


LAST = {
    "a row is lost": (
        lambda x: (x[:1] if len(x) == 2 else x, x.sum()),
        ["f32[10,2] from all 10 rows and f32[1,2] from 2"],
    ),
    "an axis is lost": (lambda x: (x, x[:, 0].sum(keepdims=len(x) == 2)), ["f32[] from all 10 rows and f32[1] from 2"]),
    "another dtype": (
        lambda x: (x.astype("bfloat16" if len(x) == 2 else "float32"), x.sum()),
        ["bf16[2,2] from 2", "one dtype"],
    ),
    "another structure": (lambda x: (x, x.sum()) if len(x) == 2 else {"a": x, "b": x.sum()}, ["one structure"]),
}


@pytest.mark.parametrize("case", LAST)
@pytest.mark.parametrize("differentiated", [False, True])
def test_the_last_chunk_is_looked_at_too(case: str, differentiated: bool) -> None:
    """Functions that treat the two rows that are left over in another way: nothing may be lost in silence."""
    fn, told = LAST[case]
    out = {"a": "rows", "b": "sum"} if case == "another structure" else ("rows", "sum")
    f = tx.chunked(lax.map, size=4, out=out)(fn)
    call = jax.grad(lambda x: jax.tree.leaves(f(x))[0].sum()) if differentiated else f
    with pytest.raises(ValueError, match=r"tx\.chunked\(.*lambda>\)") as caught:
        call(X)
    pieces(caught.value, *told)


@pytest.mark.parametrize("rows", [9, 10])
def test_the_length_that_only_derivatives_see(rows: int) -> None:
    """Rows overlap, so the short length runs in the backward pass alone; it is refused before that."""
    f = tx.chunked(lax.map, size=3, out="rows")(lambda x: x.squeeze() if x.shape[0] == 1 else x[:, 0])
    x = jnp.ones((rows, 1))
    if rows == 9:
        assert f(x).shape == (9,)
    else:
        with pytest.raises(ValueError, match=r"f32\[10\] from all 10 rows and f32\[\] from 1"):
            f(x)


def test_errors_of_the_function_are_its_own() -> None:
    def broken(x: jax.Array) -> jax.Array:
        raise LookupError("mine")

    f = tx.chunked(lax.map, 2, out="rows")(broken)
    for call in (f, f.chunks, f.lower):
        with pytest.raises(LookupError, match="mine"):
            call(X)
