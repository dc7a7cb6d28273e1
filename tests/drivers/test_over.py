"""`tx.over`: the same as one-shot over the devices of a mesh, for any number of rows, or a clear error. Not here: what
each device starts a carry from (`test_over_carries.py`), and eight devices (`test_over_eight.py`).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

import erythroxy_tx as tx
from erythroxy_tx.program.mesh import joins

RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(3, 5)).astype(np.float32) / 2)


def mesh_of(*shape: int, axes: tuple[str, ...] = ("data",)) -> Mesh:
    return Mesh(np.array(jax.devices()[:2]).reshape(shape or (2,)), axes)


def data(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)


def over(fn: Any, mesh: Mesh | None = None, *, size: int = 4, chain: bool = False, **options: Any) -> Any:
    return tx.chunked(tx.over(mesh or mesh_of(), "data", chain=chain), size=size, **options)(fn)


def padded(x: Any, place: int, fill: float = 0) -> tx.Padded:
    more = np.full((place - len(x), *x.shape[1:]), fill, x.dtype)
    return tx.Padded(jnp.concatenate([x, more]), len(x))


def rows_of(x: Any) -> Any:
    return x.trim() if isinstance(x, tx.Padded) else x


def close(got: Any, want: Any, rtol: float = 2e-5) -> None:
    got = jax.tree.map(rows_of, got, is_leaf=lambda x: isinstance(x, tx.Padded))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if not jnp.issubdtype(b.dtype, jnp.inexact):
            np.testing.assert_array_equal(a, b)
            continue
        kind = np.complex64 if jnp.issubdtype(b.dtype, jnp.complexfloating) else np.float32
        np.testing.assert_allclose(np.asarray(a, kind), np.asarray(b, kind), rtol=rtol, atol=rtol)


# ---------------------------------------------------------------------------------------------- values


def bins(x: Any) -> Any:
    return jnp.clip((x[:, 0] * 2 + 4).astype(int), 0, 7)


def standardised(x: Any) -> Any:
    h = jnp.tanh(x @ W)
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-3)
    return h, h.T @ x, jax.nn.softmax(x[:, 0]), jax.nn.logsumexp(x, 0)


def extremes(x: Any) -> Any:
    some = jnp.where(x > 1, jnp.nan, x)
    far = jnp.where(x > 1, jnp.inf, jnp.where(x < -1, -jnp.inf, x))
    ties = jnp.round(x)
    arg = jnp.argmax(ties, 0), jnp.argmin(ties, 0), jnp.argmax(some, 0), jnp.argmin(some, 0)
    return some.max(0), some.min(0), far.max(0), far.min(0), arg


def products(x: Any) -> Any:
    return jnp.prod(1 + x / 100, 0), jnp.any(x > 1, 0), jnp.all(x < 1, 0), (x > 0).sum(0), jnp.any(x > 1)


def kinds(x: Any) -> Any:
    whole = (x * 40).astype(jnp.int8)
    half, turned = x.astype(jnp.bfloat16), x * (1 + 2j)
    return whole.sum(0), whole.max(0), lax.reduce_xor(whole, (0,)), half * 2, half.max(0), turned.sum(0), turned


def scattered(x: Any) -> Any:
    at = bins(x)
    added = jnp.arange(8.0).at[at].add(x[:, 1]), jnp.arange(8).at[at].add(1)
    return added, jnp.ones(8).at[at].min(x[:, 1]), jax.ops.segment_sum(x, at, 8)


def neighbours(x: Any) -> Any:
    window = lax.reduce_window(x, 0.0, lax.add, (3, 1), (1, 1), ((2, 0), (0, 0)))
    return jnp.diff(x, axis=0), window, (x[1:] * x[:-1]).mean(0), x[3:] - x[:-3]


def single_rows(x: Any) -> Any:
    return x - x[0] + x[-1], x[jnp.argmax(x[:, 0])]


def loops(x: Any) -> Any:
    def descended(i: Any, w: Any) -> Any:
        return w - 0.1 * (x.T @ (x @ w)) / x.shape[0]

    far = lax.while_loop(lambda s: abs(s[0]).sum() > 1, lambda s: (s[0] * 0.7 + x.mean(0) / 9, s[1] + 1), (W[:, 0], 0))
    each = jax.vmap(lambda v: lax.while_loop(lambda a: (a**2).sum() > 0.5, lambda a: a * 0.5, v))(x)
    return lax.fori_loop(0, 3, descended, jnp.ones(3)), far, each


def given(x: Any) -> Any:
    return jnp.ones(3), x.shape[0] * 1.0, x, jnp.ones((x.shape[0], 2)), jnp.arange(x.shape[0])[:, None] * x


FUNCTIONS = [standardised, extremes, products, kinds, scattered, neighbours, single_rows, loops, given]


@pytest.mark.sampled(0.15)
@pytest.mark.parametrize("n", [24, 23, 13, 12])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_the_same_as_one_shot(fn: Any, n: int) -> None:
    x = data(n)
    close(over(fn)(x), jax.jit(fn)(x))


@pytest.mark.sampled(0.4)
@pytest.mark.parametrize("n", [1, 2])
def test_fewer_rows_than_devices(n: int) -> None:
    def fn(x: Any) -> Any:
        return products(x), x - x.mean(0), x.max(0), jnp.argmin(x, 0), lax.cumsum(x), scattered(x)

    close(over(fn)(data(n)), jax.jit(fn)(data(n)))


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got no rows. Expected some.*Fix: "):
        over(lambda x: x.sum(0))(data(0))


def centred(w: Any, x: Any) -> Any:
    h = jnp.tanh(x @ w)
    return jnp.mean((h - h.mean(0)) ** 2)


def rough(w: Any, x: Any) -> Any:
    return (jnp.diff(x, axis=0) ** 2).sum() * w.sum() + x.max()


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("n", [24, 23])
@pytest.mark.parametrize("loss", [centred, rough], ids=lambda fn: fn.__name__)
def test_gradients(loss: Any, n: int) -> None:
    got = jax.value_and_grad(over(loss, in_axes=(None, 0)), (0, 1))(W, jnp.asarray(data(n)))
    close(got, jax.value_and_grad(loss, (0, 1))(W, jnp.asarray(data(n))))


def test_a_gradient_through_what_is_closed_over() -> None:
    x = data(23)

    def loss(w: Any, run: Any) -> Any:
        return run(lambda x: jnp.tanh(x @ w).mean())(x)

    close(jax.grad(loss)(W, over), jax.grad(loss)(W, lambda fn: fn))


def test_inside_of_jit_and_with_keywords() -> None:
    def fn(x: Any, *, scale: Any, flag: bool) -> Any:
        return (x * scale).sum(0) if flag else x

    run = jax.jit(functools.partial(over(fn, static_argnames=("flag",)), flag=True))
    close(run(data(24), scale=2.0), fn(data(24), scale=2.0, flag=True))


def test_rows_along_another_axis() -> None:
    def fn(x: Any, y: Any, c: Any) -> Any:
        return (x * c).sum(1), y @ x.T

    x, y = data(23).T.copy(), data(23)[:, 0]
    close(over(fn, in_axes=(1, 0, None))(x, y, 2.0), jax.jit(fn)(x, y, 2.0))


# ---------------------------------------------------------------------------------------------- where rows lie


def test_rows_that_lie_there_stay_and_results_lie_there() -> None:
    x = jax.device_put(data(24), NamedSharding(mesh_of(), PartitionSpec("data")))
    rows, total = over(lambda x: (x - x.mean(0), x.sum(0)))(x)
    assert rows.sharding.spec == PartitionSpec("data")
    assert total.sharding.is_fully_replicated
    close(total, x.sum(0))


def test_rows_that_do_not_divide_come_as_padded_and_go_in_again() -> None:
    def fn(x: Any) -> Any:
        return x - x.mean(0), x.sum(0), lax.cumsum(x)

    x = data(23)
    rows, _, _ = over(fn)(x)
    assert isinstance(rows, tx.Padded)
    assert rows.data.shape == (24, 3)
    close(over(fn)(rows), jax.jit(fn)(x - x.mean(0)))


@pytest.mark.sampled(0.4)
@pytest.mark.parametrize("fill", [np.nan, 1e30])
def test_what_is_past_the_rows_of_a_padded_is_anything(fill: float) -> None:
    def fn(x: Any) -> Any:
        return standardised(x), lax.cumsum(x, reverse=True), x.max(0), jnp.argmax(x, 0), jnp.diff(x, axis=0)

    x = data(9)
    close(over(fn)(padded(x, 24, fill)), jax.jit(fn)(x))


@pytest.mark.sampled(0.4)
@pytest.mark.parametrize("is_set", [False, True])
def test_a_mesh_whose_axes_are_types(is_set: bool) -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))

    def fn(x: Any) -> Any:
        return x - x.mean(0), x.T @ x

    run, x = over(fn, mesh), data(24)
    if is_set:
        with jax.set_mesh(mesh):
            close(run(x), jax.jit(fn)(x))
    else:
        close(run(x), jax.jit(fn)(x))


@pytest.mark.sampled(0.4)
@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
def test_a_mesh_of_two_axes(shape: tuple[int, int]) -> None:
    close(over(given, mesh_of(*shape, axes=("data", "model")))(data(23)), jax.jit(given)(data(23)))


# ---------------------------------------------------------------------------------------------- sizes and programs


def test_another_length_with_the_same_place_compiles_nothing() -> None:
    def fn(x: Any) -> Any:
        return x - x.mean(0), x.max(0), lax.cumsum(x), jnp.argmin(x, 0)

    run = over(fn)
    run(data(23))
    with tx.compiles() as seen:
        run(data(23) + 1)
    assert not [event for event in seen.events if event.stage == "compile"]
    run(padded(data(22), 24))  # JAX compiles how an array on one device is laid out
    x = padded(data(21), 24)
    with tx.compiles() as seen:
        found = run(x)
    assert not [event for event in seen.events if event.stage == "compile"]
    close(found, jax.jit(fn)(data(21)))


@pytest.mark.sampled(0.4)
@pytest.mark.parametrize("options", [{"n": 3}, {"size": 5}, {"size": 100}, {"budget": "64KiB"}])
def test_chunks(options: dict[str, Any]) -> None:
    run = tx.chunked(tx.over(mesh_of(), "data"), **options)(standardised)
    close(run(data(41)), jax.jit(standardised)(data(41)))


def test_a_budget_is_of_one_device() -> None:
    run = tx.chunked(tx.over(mesh_of(), "data"), budget="256KiB")(lambda x: (x @ wide).T @ (x @ wide))
    x, wide = data(2000), jnp.ones((3, 128))
    assert run.chunks(x).size < 200
    assert "over 2 devices along 'data' of the mesh, with place for 1000 rows on each" in str(tx.explain(run, x))


# ---------------------------------------------------------------------------------------------- errors


def test_a_mesh_and_an_axis_that_are_none() -> None:
    with pytest.raises(TypeError, match=r"tx.over got mesh=3. Expected a jax.sharding.Mesh. Fix: "):
        tx.over(3, "data")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"tx.over got axis='rows', of a mesh with \('data',\). Expected one of them"):
        tx.over(mesh_of(), "rows")


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x: jnp.sort(x, 0), "needs all rows"),
        (lambda x: x[::-1] * x, "needs rows of f32.n,3. of any device"),
        (lambda x: x[::2], "whose rows are not those of the input one by one"),
        (lambda x: (x @ x.T).sum(1), "two axes of rows"),
        (lambda x: x[15:] - x[:-15], "reads .* rows beside those of a device, and one has 12"),
        (lambda x: jnp.zeros(8).at[bins(x)].set(x[:, 1]), "whose rows write over each other"),
        (lambda x: lax.scan(lambda c, v: (jnp.tanh(c + v), c), x[0], x), "not affine in the carry.*chain=True"),
    ],
)
def test_what_needs_rows_of_other_devices_is_refused(fn: Any, says: str) -> None:
    with pytest.raises(tx.RowMixingError, match=rf"tx\.chunked\(.*{says}"):
        over(fn)(data(24))


def test_a_sum_that_is_not_told_to_the_other_devices_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "summed", lambda values, axis: list(values))
    with pytest.raises(ValueError, match="out_specs"):
        over(lambda x: x.sum(0))(data(24))


def test_a_length_that_is_traced_is_refused() -> None:
    x = padded(data(9), 24)
    with pytest.raises(
        tx.TransformOrderError, match=r"got x: a tx.Padded whose length is traced.*Fix: call it outside of jax\.jit"
    ):
        jax.jit(over(lambda x: x.sum(0)))(x)
