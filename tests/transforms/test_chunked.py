"""`chunked`: values, the ways rows and outputs are named, the plan, and what is compiled.

Not here: dtypes, contracts, derivatives, budgets, refusals (`test_chunked_*.py`).
"""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close

KINDS = ("rows", "sum", "mean", "max", "min", "prod", "all", "any")


def of_every_kind(x: jax.Array) -> tuple[jax.Array, ...]:
    """One output of each kind, in the order of `KINDS`. Row i matters to each of them."""
    h = jnp.sin(x)
    near = 1 + h / 8
    return h[:, ::-1], h.sum(0), h.mean(0), h.max(0), h.min(0), near.prod(0), (h < 0.9).all(0), (h > 0.9).any(0)


def rows_of(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def assert_same(reference: Any, candidate: Any, contract: Any = None) -> None:
    found = compare(reference, candidate, contract if contract is not None else Bitwise())
    assert found.ok, str(found)


def equations(fn: Callable[..., Any], *args: Any) -> str:
    return str(jax.make_jaxpr(fn)(*args))


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 1), (1, 5), (2, 1), (7, 3), (12, 4), (12, 50), (13, 1), (13, 4), (13, 12), (13, 13)]
)
def test_every_kind_is_the_one_shot_result(rows: int, size: int, rng: np.random.Generator) -> None:
    x = rows_of(rng, rows, 3)
    f = tx.chunked(lax.map, size=size, out=KINDS)(of_every_kind)
    assert_same(jax.jit(of_every_kind)(x), f(x), Close(1e-6))


@pytest.mark.parametrize("driver", [lax.map, lax.scan])
@pytest.mark.parametrize(("n", "count"), [(1, 1), (2, 2), (5, 5), (12, 7), (13, 13), (100, 13)])
def test_n_is_the_number_of_chunks(driver: Any, n: int, count: int) -> None:
    x = jnp.arange(13.0)
    f = tx.chunked(driver, n, out=("rows", "sum"))(lambda x: (-x, x.sum()))
    plan = f.chunks(x)
    assert plan.count == count  # 13 rows cannot be cut into 12 chunks of one size with rows in each
    assert (plan.count - 1) * plan.size < 13 <= plan.count * plan.size
    assert_same((-x, x.sum()), f(x))


def test_no_rows() -> None:
    x = jnp.zeros((0, 3))
    for how in ({"n": 4}, {"size": 4}, {"budget": "1MiB"}):
        f = tx.chunked(lax.map, out=("rows", "sum", "prod", "all"), **how)(
            lambda x: (x * 2, x.sum(0), x.prod(0), (x > 0).all())
        )
        doubled, total, product, positive = f(x)
        assert doubled.shape == (0, 3)
        assert total.tolist() == [0, 0, 0]
        assert product.tolist() == [1, 1, 1]
        assert positive
        assert f.chunks(x).rows == 0


def test_a_reduction_that_needs_a_row_refuses_as_one_shot() -> None:
    f = tx.chunked(lax.map, 4, out="max")(lambda x: x.max(0))
    with pytest.raises(ValueError, match="zero-size array to reduction operation max"):
        f(jnp.zeros((0, 3)))


# ---------------------------------------------------------------------- which arguments are rows

X, W = np.arange(14, dtype=np.float32).reshape(7, 2), np.float32([3, 5])
AXES = {
    "int": (0, (X, X * 2), lambda a, b: a - b),
    "shared": ((0, None), (X, W), lambda a, w: a * w),
    "shared first": ((None, 0), (W, X), lambda w, a: a * w),
    "list": ([0, None], (X, W), lambda a, w: a * w),
    "axis 1": (1, (X.T,), lambda a: a.T),
    "negative": (-1, (X.T,), lambda a: a.T),
    "negative of three": (-2, (np.arange(42.0, dtype=np.float32).reshape(3, 7, 2),), lambda a: a.swapaxes(0, 1)),
    "two axes": ((0, 1), (X, X.T), lambda a, b: a - b.T),
    "dict": (({"a": None, "b": 0},), ({"a": W, "b": X},), lambda d: d["a"] * d["b"]),
    "nested": (((0, {"w": None, "y": 1}), None), ((X, {"w": W, "y": X.T}), W), lambda t, v: t[0] * v + t[1]["y"].T),
    "prefix": (((0, None),), ((X, [W, W]),), lambda t: t[0] * t[1][0] + t[1][1]),
    "prefix of rows": ((0, None), ({"a": X, "b": [X, X]}, W), lambda d, w: d["a"] * w + d["b"][1]),
    "scalar": ((0, None), (X, 3.0), lambda a, s: a * s),
    "one argument": (0, ((X, X),), lambda t: t[0] + t[1]),
}


@pytest.mark.parametrize("case", AXES)
def test_in_axes_as_in_vmap(case: str) -> None:
    in_axes, args, fn = AXES[case]
    f = tx.chunked(lax.map, size=3, in_axes=in_axes, out="rows")(fn)
    assert f.chunks(*args).rows == 7
    assert_same(jax.jit(fn)(*args), f(*args))


@pytest.mark.parametrize(
    ("in_axes", "args"),
    [
        (0, (None, X)),
        ((None, 0), (None, X)),
        ((0, 0), (None, X)),
        (0, ({"mask": None}, X)),
        (({"mask": 0}, 0), ({"mask": None}, X)),
        ((0, None), (X, None)),
    ],
)
def test_none_among_the_arguments_shifts_no_axis(in_axes: Any, args: tuple) -> None:
    """A None is no leaf: the axes of the others stay theirs, and so does the keyword that follows them."""
    f = tx.chunked(lax.map, size=3, in_axes=in_axes, out="rows")(
        lambda a, b, *, w: (b if b is not None else a) * w.sum()
    )
    w = np.arange(14, dtype=np.float32).reshape(7, 2)
    assert_same(jnp.asarray(X * w.sum()), f(*args, w=w))


def test_keywords_are_whole() -> None:
    f = tx.chunked(lax.map, size=2, out="rows")(lambda x, *, base, scale: x * scale + base.sum())
    assert_same(jnp.asarray(X * 2 + X.sum()), f(X, base=X, scale=2.0))
    g = tx.chunked(lax.map, size=2, out="rows")(lambda x, base: x + base.sum())
    assert_same(jnp.asarray(X + X.sum()), g(X, base=X))


def test_static_arguments() -> None:
    f = tx.chunked(lax.map, size=3, out="rows")(lambda x, mode: x * {"twice": 2, "thrice": 3}[mode])
    assert_same(jnp.asarray(X * 3), f(X, "thrice"))
    assert_same(jnp.asarray(X * 2), f(X, mode="twice"))
    g = tx.chunked(lax.map, size=3, out="rows", static_argnames="times")(lambda x, times: jnp.tile(x, (1, times)))
    assert g(X, 3).shape == (7, 6)
    assert g(X, times=2).shape == (7, 4)


# ---------------------------------------------------------------------- how outputs are named


class Pair(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    ("out", "fn"),
    [
        ("rows", lambda x: {"a": x, "b": (x, -x)}),
        ({"a": "rows", "b": "sum"}, lambda x: {"a": x, "b": x.sum(0)}),
        ({"a": "rows", "b": "sum"}, lambda x: {"a": (x, x), "b": {"c": x.sum(0), "d": x.sum()}}),
        (("rows", "sum"), lambda x: (x, x.sum(0))),
        (["rows", "sum"], lambda x: (x, x.sum(0))),
        (["rows", "sum"], lambda x: [x, x.sum(0)]),
        (Pair("rows", "sum"), lambda x: Pair(x, x.sum(0))),
        ("sum", lambda x: Pair(x.sum(0), [x.sum()])),
        (("rows", "sum"), lambda x: (x, None)),
        ("rows", lambda x: (x, None, {"a": x, "none": None})),
        ("sum", lambda x: ()),
        ("rows", lambda x: None),
    ],
)
def test_out_is_a_prefix_of_the_result(out: Any, fn: Any) -> None:
    f = tx.chunked(lax.map, size=3, out=out)(fn)
    x = jnp.asarray(X)  # small integers: sums are exact
    assert_same(jax.jit(fn)(x), f(x))


def test_results_that_are_arguments_or_constants() -> None:
    f = tx.chunked(lax.map, size=3, in_axes=(0, None), out=("rows", "max", "min", "max"))
    fn = lambda x, w: (x, w, 1.5, np.float32(2))  # noqa: E731
    assert_same(jax.jit(fn)(X, W), f(fn)(X, W))


# ---------------------------------------------------------------------- the plan


@pytest.mark.parametrize("how", [{"n": 4}, {"size": 5}, {"budget": "120KiB"}])
@pytest.mark.parametrize("rows", [12, 13, 64])
def test_chunks_tells_what_runs(how: dict[str, Any], rows: int, rng: np.random.Generator) -> None:
    def wide(x: jax.Array) -> jax.Array:
        return jnp.sort(x[:, :, None] * x[:, None, :], axis=1).sum((1, 2))

    args = (rows_of(rng, rows, 32),)
    f = tx.chunked(lax.map, out="rows", **how)(wide)
    plan = f.chunks(*args)
    again = tx.chunked(lax.map, size=plan.size, out="rows")(wide)
    assert f.lower(*args).as_text() == again.lower(*args).as_text()
    assert dataclass_without_bytes(plan) == dataclass_without_bytes(again.chunks(*args))
    assert plan == f.chunks(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args))
    if plan.count > 1:
        other = tx.chunked(lax.map, size=plan.size - 1 or 2, out="rows")(wide)
        assert f.lower(*args).as_text() != other.lower(*args).as_text()


def dataclass_without_bytes(plan: Any) -> tuple[int, int, bool]:
    return plan.rows, plan.size, plan.overlaps


def test_the_loop_runs_what_the_plan_tells() -> None:
    seen: list[int] = []

    def noted(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda rows: seen.append(len(rows)), x, ordered=False)
        return x.sum(0)

    f = tx.chunked(lax.map, size=4, out="sum", remat=False)(noted)
    jax.block_until_ready(f(jnp.ones((14, 2))))
    jax.effects_barrier()
    assert sorted(seen) == [2, 4, 4, 4]
    assert (f.chunks(jnp.ones((14, 2))).looped, f.chunks(jnp.ones((14, 2))).remainder) == (3, 2)


def test_one_chunk_calls_the_function_directly(rng: np.random.Generator) -> None:
    x, w = rows_of(rng, 12, 5), rows_of(rng, 5, 4)

    def f(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.nn.softmax(x @ w), (x @ w).var(0)

    for how in ({"n": 1}, {"size": 12}, {"size": 400}, {"budget": "1GiB"}):
        g = tx.chunked(lax.map, in_axes=(0, None), out=("rows", "mean"), **how)(f)
        text = equations(g, x, w)
        assert "scan" not in text
        assert "while" not in text
        assert "custom_vjp" not in text
        assert_same(jax.jit(f)(x, w), g(x, w))  # bits, also where the declaration is not true: var is no mean of vars
        assert jax.tree.leaves(tx.contract(g, x, w)) == [AsAccurate(4), AsAccurate(4)]  # of another program


# ---------------------------------------------------------------------- what is compiled


@pytest.mark.parametrize(("rows", "out", "bodies"), [(64, "rows", 1), (67, "rows", 1), (64, "sum", 1), (67, "sum", 2)])
def test_remainder_without_a_copy(rows: int, out: str, bodies: int) -> None:
    """Rows need no second body for a remainder and no concatenation; sums need the body again."""
    fn = lambda x, w: jnp.tanh(x @ w) if out == "rows" else jnp.tanh(x @ w).sum(0)  # noqa: E731
    f = tx.chunked(lax.map, size=8, in_axes=(0, None), out=out)(fn)
    args = jnp.ones((rows, 16)), jnp.ones((16, 16))
    lowered = f.lower(*args)
    assert equations(f, *args).count("dot_general") == bodies
    assert lowered.as_text().count("stablehlo.dot_general") == bodies
    compiled = lowered.compile()
    for text in (lowered.as_text(), compiled.as_text()):
        assert "concatenate" not in text
    grad = jax.jit(jax.grad(lambda x, w: f(x, w).sum(), (0, 1))).lower(*args)
    assert "concatenate" not in grad.as_text() + grad.compile().as_text()


@pytest.mark.parametrize("rows", [512, 509])
def test_temporaries_do_not_grow_with_the_rows(rows: int) -> None:
    def wide(x: jax.Array) -> jax.Array:
        return jnp.sort(x[:, :, None] * x[:, None, :], axis=1).max((1, 2))

    def temp(fn: Any, rows: int) -> int:
        return jax.jit(fn).lower(jnp.ones((rows, 32))).compile().memory_analysis().temp_size_in_bytes

    f = tx.chunked(lax.map, size=8, out="rows")(wide)
    assert temp(f, rows) <= temp(f, 64) + 4096
    assert temp(f, rows) < temp(wide, rows) / 8
    several = jax.vmap(f)
    assert jax.jit(several).lower(jnp.ones((2, rows, 32))).compile().memory_analysis().temp_size_in_bytes < 3 * temp(
        f, 64
    )


def test_compiles_once_for_each_shape(rng: np.random.Generator) -> None:
    traced: list[tuple[int, ...]] = []

    def noted(x: jax.Array) -> jax.Array:
        traced.append(x.shape)
        return x * 2

    f = tx.chunked(lax.map, size=4, out="rows")(noted)
    f(rows_of(rng, 10, 2))
    first = len(traced)
    f(rows_of(rng, 10, 2))
    tx.chunked(lax.map, size=4, out="rows")(noted)(rows_of(rng, 10, 2))  # the same parameters find the same program
    assert len(traced) == first
    assert set(traced) == {(10, 2), (4, 2), (2, 2)}  # all rows for the types, a chunk, and what is left for derivatives
    f(rows_of(rng, 11, 2))
    assert len(traced) > first


# ---------------------------------------------------------------------- where it is used


class Affine(eqx.Module):
    weight: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.weight


class Scaler:
    """An ordinary object, whose attributes may change."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @tx.chunked(lax.map, size=3, out="rows")
    def scaled(self, x: jax.Array) -> jax.Array:
        return x * self.factor

    def plain(self, x: jax.Array) -> jax.Array:
        return x * self.factor


def test_methods_modules_and_partials() -> None:
    x = jnp.asarray(X)
    scaler = Scaler(2.0)
    assert_same(x * 2, scaler.scaled(x))
    kept = tx.chunked(lax.map, size=3, out="rows")(scaler.plain)
    assert_same(x * 2, kept(x))
    scaler.factor = 3.0
    assert_same(x * 3, scaler.scaled(x))
    assert_same(x * 3, kept(x))
    assert scaler.scaled.chunks(x).count == 3
    module = Affine(jnp.eye(2) * 4)
    assert_same(x * 4, tx.chunked(lax.map, size=3, out="rows")(module)(x))
    partial = functools.partial(lambda w, x: x * w, jnp.asarray(W))
    assert_same(x * W, tx.chunked(lax.map, size=3, out="rows")(partial)(x))
    assert_same(x * 2, tx.chunked(lax.map, size=3, out="rows")(jax.jit(lambda x: x * 2))(x))


def test_nested_chunks() -> None:
    inner = tx.chunked(lax.map, size=2, out="sum")(lambda x: x.sum(0))
    outer = tx.chunked(lax.scan, size=5, out="sum")(inner)
    assert_same(jnp.asarray(X.sum(0)), outer(jnp.asarray(X)))


def test_inside_other_transforms() -> None:
    x, fn = jnp.asarray(X), lambda x: (x * 2, x.sum(0), x.max(0))
    f = tx.chunked(lax.map, size=3, out=("rows", "sum", "max"))(fn)
    stacked = jnp.stack([x, -x, x + 1])
    assert_same(fn(x), jax.jit(f)(x))
    assert_same(jax.vmap(fn)(stacked), jax.vmap(f)(stacked))
    moved = jnp.moveaxis(stacked, 0, 2)
    assert_same(jax.vmap(fn, 2, 1)(moved), jax.vmap(f, 2, 1)(moved))
    assert_same(jax.vmap(jax.vmap(fn))(stacked[None]), jax.jit(jax.vmap(jax.vmap(f)))(stacked[None]))
    in_turn = lambda f: lax.scan(lambda c, x: (c + f(x)[1], f(x)[2]), jnp.zeros(2), stacked)  # noqa: E731
    assert_same(in_turn(fn), in_turn(f))
    either = lambda f: jax.jit(lambda on, x: lax.cond(on, f, lambda x: (x, x[0], x[1]), x))  # noqa: E731
    assert_same(either(fn)(x[0, 0] == 0, x), either(f)(x[0, 0] == 0, x))
    assert_same(fn(x), jax.checkpoint(f)(x))
    assert jax.eval_shape(f, x)[0].shape == (7, 2)


def test_values_from_outside_are_seen_as_they_are() -> None:
    """A function may close over tracers of the transforms around it."""
    x = jnp.asarray(X)

    def shifted(by: jax.Array) -> jax.Array:
        return tx.chunked(lax.map, size=3, out="rows")(lambda x: x + by)(x)

    shifts = jnp.arange(3.0)
    assert_same(jnp.stack([x, x + 1, x + 2]), jax.vmap(shifted)(shifts))
    assert_same(jnp.stack([x, x + 1, x + 2]), jax.jit(jax.vmap(shifted))(shifts))
    assert_same(jnp.stack([x, x + 1, x + 2]), lax.map(shifted, shifts))


def test_donation_through_an_outer_jit() -> None:
    f = tx.chunked(lax.map, size=3, out="rows")(lambda x: x * 2)
    donating = jax.jit(f, donate_argnums=0)
    x = jnp.asarray(X) + 0
    assert_same(jnp.asarray(X * 2), donating(x))
    assert x.is_deleted()
    assert donating.lower(x).compile().memory_analysis().alias_size_in_bytes == X.nbytes


@pytest.mark.usefixtures("strict_jax")
def test_promotes_nothing_silently(rng: np.random.Generator) -> None:
    x = rows_of(rng, 7, 3)
    f = tx.chunked(lax.map, size=3, out=KINDS)(of_every_kind)
    assert_same(jax.jit(of_every_kind)(x), f(x), Close(1e-6))
    jax.grad(lambda x: sum(out.sum() for out in f(x)[:6]))(x)
