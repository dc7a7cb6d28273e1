"""Derivatives of `chunked` functions: which are the one-shot's, which are refused, and what they cost.

The reference is the jitted one-shot; differences are relative to the largest magnitude of each leaf.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.contract import Close

KINDS = ("rows", "sum", "mean", "max", "min", "prod", "sum", "any", "all")
REMAT = pytest.mark.parametrize("remat", [True, False], ids=["remat", "residuals"])

Fn = Callable[..., Any]


def bend(h: jax.Array) -> jax.Array:
    """Something curved that compiles faster than tanh."""
    return h / (1 + h * h)


def of_every_kind(x: jax.Array, w: jax.Array, i: jax.Array) -> tuple[jax.Array, ...]:
    h = bend(x @ w)
    counts = i.sum(), (h > 0.49).any(), (h < 2).all()
    return h, (h**2).sum(0), h.mean(0), h.max(0), h.min(0), (1 + h / 8).prod(0), *counts


def loss(fn: Fn, i: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
    """A number that depends on every float output in another way."""
    outs = fn(x, w, i)
    return sum(((1 + k) * out**3).sum() for k, out in enumerate(outs[:6]))


@pytest.fixture
def data(rng: np.random.Generator) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, w = rng.normal(size=(11, 4)), rng.normal(size=(4, 3))
    return jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32), jnp.asarray(rng.integers(0, 9, 11))


def chunked(fn: Fn, out: Any, size: int = 4, in_axes: Any = 0, remat: bool = True) -> Any:
    return tx.chunked(lax.scan, size=size, out=out, in_axes=in_axes, remat=remat)(fn)


def assert_close(reference: Any, candidate: Any, rtol: float = 2e-5) -> None:
    found = compare(reference, candidate, Close(rtol))
    assert found.ok, str(found)


def assert_same_under(transform: Callable[[Fn], Fn], fn: Fn, candidate: Fn, *args: Any) -> None:
    """A transform of the two functions gives the same, each compiled."""
    assert_close(jax.jit(transform(fn))(*args), jax.jit(transform(candidate))(*args))


# ---------------------------------------------------------------------- first and higher order


@pytest.mark.parametrize(("size", "remat"), [(1, True), (4, True), (4, False)])
def test_gradients_of_every_kind(size: int, remat: bool, data: tuple) -> None:
    x, w, i = data
    f = chunked(of_every_kind, KINDS, size, (0, None, 0), remat)
    grad = lambda f: jax.value_and_grad(functools.partial(loss, f, i), (0, 1))  # noqa: E731
    assert_same_under(grad, of_every_kind, f, x, w)


@pytest.mark.parametrize(("size", "remat"), [(4, True), (10, True), (4, False)])
def test_rows_alone(size: int, remat: bool, data: tuple) -> None:
    """Chunks of rows overlap at the end: no row's cotangent may count twice, nor be lost."""
    x, w, _ = data
    fn = lambda x, w: (bend(x @ w), bend(x))  # noqa: E731
    f = chunked(fn, "rows", size, (0, None), remat)
    cubes = lambda f: lambda x, w: sum((out**3).sum() for out in f(x, w))  # noqa: E731
    for argnums in (0, 1, (0, 1)):
        assert_same_under(lambda f, n=argnums: jax.grad(cubes(f), n), fn, f, x, w)
    only_first = lambda f: jax.grad(lambda x, w: f(x, w)[0].sum(), (0, 1))  # noqa: E731
    assert_same_under(only_first, fn, f, x, w)


@pytest.mark.parametrize(("kind", "remat"), [("all kinds", True), ("all kinds", False), ("rows", True)])
def test_second_order(kind: str, remat: bool, data: tuple) -> None:
    x, w, i = data
    fn, out = (of_every_kind, KINDS) if kind == "all kinds" else (lambda x, w, i: [bend(x @ w)] * 6, ["rows"] * 6)
    f = chunked(fn, out, 4, (0, None, 0), remat)

    def twice(f: Fn) -> Fn:
        first = jax.grad(functools.partial(loss, f, i), (0, 1))
        return jax.grad(lambda x, w: sum((g**2).sum() for g in first(x, w)), (0, 1))

    assert_same_under(twice, fn, f, x, w)


def test_third_order_and_reverse_over_reverse(data: tuple) -> None:
    x, w, _ = data
    fn = lambda x, w: (bend(x @ w) ** 2).sum()  # noqa: E731
    f = chunked(fn, "sum", in_axes=(0, None))

    def thrice(f: Fn) -> Fn:
        one = jax.grad(f, 1)
        two = jax.grad(lambda x, w: (one(x, w) ** 2).sum(), 1)
        return jax.grad(lambda x, w: (two(x, w) ** 2).sum(), (0, 1))

    assert_same_under(thrice, fn, f, x, w)
    assert_same_under(lambda f: jax.jacrev(jax.jacrev(f, 1), 1), fn, f, x, w)


@REMAT
def test_many_chunks(remat: bool, rng: np.random.Generator) -> None:
    """Long sums are kept in two parts; the derivative is that of their sum."""
    x, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((70, 2), (2, 2)))
    fn = lambda x, w: ((bend(x @ w) ** 2).sum(0), bend(x @ w).mean())  # noqa: E731
    f = chunked(fn, ("sum", "mean"), 1, (0, None), remat)
    number = lambda f: lambda x, w: (f(x, w)[0] ** 2).sum() * f(x, w)[1]  # noqa: E731
    assert_same_under(lambda f: jax.grad(number(f), (0, 1)), fn, f, x, w)
    again = jax.jacrev if remat else jax.jacfwd
    assert_same_under(lambda f: again(jax.grad(number(f), 1), 1), fn, f, x, w)


def test_forward_mode_needs_remat_off(data: tuple) -> None:
    x, w, _ = data
    fn = lambda x, w: (bend(x @ w), (x @ w).max(0), (bend(x @ w) ** 2).sum(0))  # noqa: E731
    f, kept = (chunked(fn, ("rows", "max", "sum"), 4, (0, None), remat) for remat in (True, False))
    number = lambda f: lambda x, w: sum((out**2).sum() for out in f(x, w))  # noqa: E731
    transforms: list[Callable[[Fn], Fn]] = [
        lambda f: lambda x, w: jax.jvp(number(f), (x, w), (bend(x), bend(w))),
        lambda f: lambda x, w: jax.linearize(number(f), x, w)[1](x, w),
        lambda f: jax.hessian(number(f), 1),
    ]
    for transform in transforms:
        assert_same_under(transform, fn, kept, x, w)
        with pytest.raises(TypeError, match="forward-mode autodiff"):
            transform(f)(x, w)


# ---------------------------------------------------------------------- what may stand between


def test_other_arguments(data: tuple) -> None:
    """Integers, bools and keys get no derivative, and do not disturb the others'."""
    x, _, i = data
    keys = jax.random.split(jax.random.key(0), 11)

    def fn(x: jax.Array, i: jax.Array, keep: jax.Array, keys: jax.Array) -> tuple[jax.Array, ...]:
        noise = jax.random.key_data(keys)[:, :1] / 2.0**32
        return jnp.where(keep[:, None], x * noise, x**2 * i[:, None]), (x * noise).max(0), i * 2, keys

    f = chunked(fn, ("rows", "max", "rows", "rows"))
    args = x, i, i % 2 == 0, keys
    number = lambda f: lambda *args: f(*args)[0].sum() + f(*args)[1].sum()  # noqa: E731
    assert_same_under(lambda f: jax.grad(number(f)), fn, f, *args)
    grads = jax.grad(number(f), (0, 1, 2), allow_int=True)(*args)
    assert [g.dtype for g in grads] == [jnp.float32, jax.dtypes.float0, jax.dtypes.float0]
    _, pull = jax.vjp(lambda x, keys: f(x, *args[1:3], keys)[:2], x, keys)
    to_x, to_keys = pull((x, x[0]))
    assert_close(jax.vjp(lambda x: fn(x, *args[1:])[:2], x)[1]((x, x[0]))[0], to_x)
    assert to_keys.dtype == jax.dtypes.float0


@REMAT
def test_cotangents_of_integer_outputs(remat: bool, data: tuple) -> None:
    fn = lambda x, w, i: (bend(x @ w), i * 2, (x @ w).max(0), (x > 0).any())  # noqa: E731
    f = chunked(fn, ("rows", "rows", "max", "any"), 4, (0, None, 0), remat)

    def pulled(f: Fn) -> Any:
        outs, pull = jax.vjp(f, *data)
        cts = [bend(o) if o.dtype == jnp.float32 else np.zeros(o.shape, jax.dtypes.float0) for o in outs]
        return pull(tuple(cts))[:2]

    assert_close(pulled(fn), pulled(f))


SHIFTED: dict[str, Callable[[Fn], Fn]] = {
    "vmap in grad": lambda by: jax.grad(lambda w, b: jax.vmap(functools.partial(by, w))(b).sum(), (0, 1)),
    "grad in vmap": lambda by: jax.vmap(jax.grad(by, (0, 1)), (None, 0)),
    "grad in grad": lambda by: jax.grad(lambda w, b: (jax.grad(by)(w, b[0]) ** 2).sum(), (0, 1)),
    "scan in grad": lambda by: jax.grad(
        lambda w, b: lax.scan(lambda w, b: (w - by(w, b) / 9, None), w, b)[0].sum(), (0, 1)
    ),
}


@pytest.mark.parametrize("how", SHIFTED)
@pytest.mark.parametrize("out", ["sum", "max", "rows"])
def test_values_from_outside_are_differentiated(how: str, out: str, data: tuple) -> None:
    """What the function closes over may be tracers of several transforms around it."""
    x, w, _ = data
    reduce = {"sum": lambda h: h.sum(), "max": lambda h: h.max(), "rows": lambda h: h}[out]

    def by(wrap: Fn) -> Fn:
        return lambda w, b: wrap(lambda x: reduce(bend(x @ w + b) ** 2))(x).sum()

    shifts = jnp.stack([w[0], w[1]])
    wrap = functools.partial(chunked, out=out, remat=out != "rows")
    assert_same_under(lambda wrap: SHIFTED[how](by(wrap)), lambda fn: fn, wrap, w, shifts)


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize("out", ["rows", "max"])
def test_no_tracer_is_kept(out: str, data: tuple) -> None:
    """Derivative rules outlive the trace that made them: they must hold none of its values."""
    x, w, _ = data

    def number(x: jax.Array, w: jax.Array) -> jax.Array:
        f = chunked(lambda x: bend(x @ w) if out == "rows" else bend(x @ w).max(0), out)
        return f(x).sum()

    with jax.checking_leaks():
        jax.jit(jax.grad(number, (0, 1)))(x, w)
        jax.grad(lambda w: jax.grad(number)(x, w).sum())(w)


@REMAT
def test_custom_rules_survive(remat: bool, data: tuple) -> None:
    """Rules that are wrong on purpose: only they can give these gradients."""
    x = data[0]

    @jax.custom_vjp
    def seven(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    seven.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (7 * x * ct,))

    @jax.custom_jvp
    def five(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    five.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 5 * tangents[0]))

    for fn, expected in ((seven, 7 * x), (five, 5 * jnp.ones_like(x)), (jax.nn.relu, (x > 0).astype(x.dtype))):
        rows = chunked(fn, "rows", remat=remat)
        assert_close(expected, jax.grad(lambda x, rows=rows: rows(x).sum())(x))
        total = chunked(lambda x, fn=fn: fn(x).sum(), "sum", remat=remat)
        assert_close(expected, jax.jit(jax.grad(total))(x))


@REMAT
def test_stop_gradient(remat: bool, data: tuple) -> None:
    x = data[0]
    f = chunked(lambda x: lax.stop_gradient(x) * x, "rows", remat=remat)
    assert_close(x, jax.grad(lambda x: f(x).sum())(x))


def test_weights_of_a_module(data: tuple) -> None:
    x = data[0]
    model = eqx.nn.Linear(4, 2, key=jax.random.key(0))
    forward = lambda model, x: jax.vmap(model)(x)  # noqa: E731

    class Batched(eqx.Module):
        inner: eqx.nn.Linear

        def __call__(self, x: jax.Array) -> jax.Array:
            return jax.vmap(self.inner)(x)

    square = lambda f: lambda *args: (f(*args) ** 2).sum()  # noqa: E731
    expected = eqx.filter_grad(square(lambda model: forward(model, x)))(model)
    as_argument = chunked(forward, "rows", in_axes=(None, 0))
    as_function = chunked(Batched(model), "rows")
    found = [
        eqx.filter_grad(square(lambda model: as_argument(model, x)))(model),
        eqx.filter_grad(square(lambda model: chunked(lambda x: forward(model, x), "rows")(x)))(model),
        eqx.filter_grad(lambda f: (f(x) ** 2).sum())(as_function).fn.inner,
    ]
    for one in found:
        assert_close(eqx.filter(expected, eqx.is_array), eqx.filter(one, eqx.is_array))


@pytest.mark.parametrize(("zeros", "remat"), [(1, True), (2, True), (1, False)])
def test_products_with_zeros(zeros: int, remat: bool, data: tuple) -> None:
    x = data[0].at[3 : 3 + zeros, 1].set(0.0)
    fn = lambda x: x.prod(0)  # noqa: E731
    assert_same_under(lambda f: jax.grad(lambda x: f(x).sum()), fn, chunked(fn, "prod", remat=remat), x)


def test_complex_numbers(data: tuple) -> None:
    x = data[0]
    fn = lambda x: jnp.exp(1j * x).sum(0)  # noqa: E731
    f = chunked(fn, "sum")
    assert_same_under(lambda f: jax.grad(lambda x: jnp.abs(f(x)).sum()), fn, f, x)
    holomorphic = lambda f: jax.grad(lambda z: f(z).sum(), holomorphic=True)  # noqa: E731
    assert_same_under(holomorphic, lambda z: jnp.exp(z).sum(0), chunked(lambda z: jnp.exp(z).sum(0), "sum"), x + 1j)


# ---------------------------------------------------------------------- inside other transforms


def number(f: Fn) -> Fn:
    return lambda x, w: (f(x, w)[1] ** 2).sum() + f(x, w)[0]


def step(f: Fn, w: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
    return w - f(x, w)[1] / 9, None


TRANSFORMS: dict[str, Callable[[Fn], Fn]] = {
    "vmap of grad": lambda f: jax.vmap(jax.grad(number(f), (0, 1))),
    "vmap of grad, x shared": lambda f: lambda x, w: jax.vmap(jax.grad(number(f), (0, 1)), (None, 0))(x[0], w),
    "grad of vmap": lambda f: jax.grad(lambda x, w: jax.vmap(number(f))(x, w).sum(), (0, 1)),
    "scan of grad": lambda f: lambda x, w: lax.scan(lambda w, x: (w - jax.grad(number(f), 1)(x, w), None), w[0], x)[0],
    "grad of scan": lambda f: jax.grad(lambda x, w: lax.scan(functools.partial(step, f), w[0], x)[0].sum(), (0, 1)),
    "remat": lambda f: lambda x, w: jax.grad(jax.checkpoint(number(f)), (0, 1))(x[0], w[0]),
    "with aux": lambda f: lambda x, w: jax.value_and_grad(lambda *a: (number(f)(*a), f(*a)), has_aux=True)(x[0], w[0]),
}


@pytest.mark.parametrize("how", TRANSFORMS)
def test_inside_other_transforms(how: str, data: tuple) -> None:
    x, w, _ = data
    fn = lambda x, w: ((bend(x @ w) ** 2).sum(), bend(x @ w).max(0))  # noqa: E731
    f = chunked(fn, ("sum", "max"), 4, (0, None), remat=how != "vmap of grad, x shared")
    assert_same_under(TRANSFORMS[how], fn, f, jnp.stack([x, 2 * x]), jnp.stack([w, 2 * w]))


@pytest.mark.parametrize("kind", ["sum", "prod", "max"])
def test_a_shared_output_of_a_batch(kind: str, rng: np.random.Generator) -> None:
    """Its cotangent is not counted once for each element of the batch."""

    def fn(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        of_shared = {"sum": y.sum(), "prod": (1 + y / 64).prod(), "max": y.max()}
        return (x * y).sum(), of_shared[kind]

    f = tx.chunked(lax.map, size=4, out=("sum", kind))(fn)
    x, y = rng.normal(size=(3, 10)).astype(np.float32), rng.normal(size=10).astype(np.float32)

    def gradients(g: Any) -> Any:
        def loss(x: jax.Array, y: jax.Array) -> jax.Array:
            batched, shared = jax.vmap(g, (0, None))(x, y)
            return batched.sum() + 5 * shared.sum()

        return jax.jit(jax.grad(loss, (0, 1)))(x, y)

    for a, b in zip(gradients(fn), gradients(f), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_python_number_is_weak(data: tuple) -> None:
    f = tx.chunked(lax.map, size=4, in_axes=(0, None), out="sum")(lambda x, scale: (x * scale).sum())
    assert jax.jit(jax.grad(f, 1))(data[0], 2.0).weak_type


def test_gradient_outside_jit_is_the_same(data: tuple) -> None:
    x, w, _ = data
    f = chunked(lambda x, w: (bend(x @ w) ** 2).sum(), "sum", 4, (0, None))
    assert_close(jax.jit(jax.grad(f, (0, 1)))(x, w), jax.grad(f, (0, 1))(x, w))


def test_donation_through_an_outer_step(data: tuple) -> None:
    x, w, _ = data
    f = chunked(lambda x, w: (bend(x @ w) ** 2).sum(), "sum", in_axes=(0, None))
    step = lambda w: w - jax.grad(f, 1)(x, w)  # noqa: E731
    expected, mine = jax.jit(step)(w), w + 0
    assert_close(expected, jax.jit(step, donate_argnums=0)(mine))
    assert mine.is_deleted()


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize("out", ["sum", "max"])
def test_residuals_do_not_grow_with_the_rows(out: str) -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        h = x
        for _ in range(4):
            h = bend(h @ w)
        return getattr(1 + h.mean(1) / 8, out)()

    def temp(remat: bool, rows: int) -> int:
        f = chunked(fn, out, 8, (0, None), remat)
        lowered = jax.jit(jax.value_and_grad(f, 1)).lower(jnp.ones((rows, 32)), jnp.ones((32, 32)))
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temp(remat=True, rows=4030) <= temp(remat=True, rows=1030) + 4096
    if out == "sum":
        assert temp(remat=False, rows=2070) > 4 * temp(remat=True, rows=2070)  # what it would be
