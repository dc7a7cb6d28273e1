"""The same program in float64: near the float32 result, equal to what JAX computes with 64 bits, and with the same
random bits, integers and branches.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

from erythroxy_tx.program.float64 import in_float64
from erythroxy_tx.program.float64 import widened

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
TABLE = np.random.default_rng(1).normal(size=3).astype(np.float32)
AT = np.array([0, 2, 2, 9], np.int32)  # twice the same, and one beyond

Fn = Callable[..., Any]


@pytest.fixture(autouse=True, scope="module")
def _quick_compiles() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)  # noqa: FBT003
    yield
    jax.config.update("jax_disable_most_optimizations", False)  # noqa: FBT003


def wide(fn: Fn, *args: Any) -> Any:
    """The result in float64, as numpy arrays."""
    return jax.tree.map(np.asarray, in_float64(fn)(args, widened(args)))


@jax.custom_vjp
def straight_through(x: Any) -> Any:
    return jnp.floor(x) / 3


straight_through.defvjp(lambda x: (straight_through(x), x), lambda x, ct: (ct * jnp.cos(x) / 3,))


@jax.custom_jvp
def with_own_derivative(x: Any) -> Any:
    return jnp.abs(x) / 3


@with_own_derivative.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    return with_own_derivative(*primals), tangents[0] * jnp.sin(primals[0])


def positive(x: Any) -> Any:
    return x.T @ x + jnp.eye(3, dtype=x.dtype)


SMOOTH: dict[str, Fn] = {
    "matmul": lambda x: jnp.tanh(x @ x.T) @ x,
    "standardise": lambda x: (x - x.mean(0)) / x.std(0),
    "softmax": lambda x: jax.nn.softmax(x) + jax.nn.relu(x) + jax.nn.logsumexp(x, 0),
    "running": lambda x: jnp.cumsum(x, 0) + lax.cumlogsumexp(x),
    "scan": lambda x: lax.scan(lambda c, r: (c + r / 3, c * r), x[0], x)[1],
    "backwards": lambda x: lax.scan(lambda c, r: ((c[0] + 1, r / 3), c[1]), (0, x[0]), x, reverse=True)[1],
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, c: c * x / (i + 3), x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x) + lax.switch(2, [jnp.sin, jnp.cos, jnp.tan], x),
    "cond under vmap": jax.vmap(lambda r: lax.cond(r[0] > 0, jnp.sin, jnp.cos, r)),
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(jnp.sin(x / 3))),
    "nested jit": jax.jit(jax.jit(lambda x: jnp.sin(x) / 3)),
    "custom_vjp": straight_through,
    "custom_jvp": with_own_derivative,
    "solve": lambda x: jnp.linalg.solve(positive(x), x[0]),
    "triangular": lambda x: jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(positive(x)), x.T),
    "conjugate gradients": lambda x: jax.scipy.sparse.linalg.cg(lambda v: positive(x) @ v, x[0])[0],
    "scatter": lambda x: x.at[AT].add(x[0] / 3).at[AT, 0].set(2).at[AT].max(x[2]),
    "gather": lambda x: x[AT] + x.at[AT].get(mode="fill", fill_value=0.5),
    "sort": lambda x: jnp.sort(x, 0) + lax.top_k(x, 3)[0],
    "pooling": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID"),
    "convolution": lambda x: jnp.convolve(x[:, 0], x[:, 1]),
    "fft": lambda x: jnp.abs(jnp.fft.fft(x, axis=0)) + jnp.fft.irfft(x, 8, axis=0)[:5],
    "captured": lambda x: x + x[0] * TABLE + jnp.asarray(TABLE)[0],
}
BY_VALUE: dict[str, Fn] = {
    "special": lambda x: (jax.scipy.special.gammaln(jnp.abs(x)), jax.scipy.special.erf(x)),
    "while": lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] / 3), (0, x))[1],
    "own reducer": lambda x: lax.reduce(x, x[0, 0] * 0, lambda a, b: a + b / 2, (0,)),
    "of a window": lambda x: lax.reduce_window(x, x[0, 0] * 0, lambda a, b: a + b * 3, (2, 2), (1, 1), "SAME"),
    "order": lambda x: (jnp.argsort(x), jnp.argmax(x, 0), lax.top_k(x, 2), jnp.searchsorted(jnp.sort(x[0]), x[1])),
    "comparisons": lambda x: (x > 0, jnp.isnan(x), (x * 100).astype(jnp.int32), (x > 0).sum(0)),
    "singular values": lambda x: (jnp.linalg.svd(x, full_matrices=False)[1], jnp.linalg.det(positive(x))),
    "complex": lambda x: (lax.complex(x, x) * (1 + 2j), lax.complex(x, x) / 3, jnp.fft.fft(x)),
    "constants": lambda x: {"a": 3, "b": (True, 0.5), "c": np.float32(0.25), "d": None},
}


def differentiated(fn: Fn) -> Fn:
    """The value, and the gradient of a sum of cubes."""

    def both(x: Any) -> tuple[Any, Any]:
        def loss(x: Any) -> tuple[Any, Any]:
            value = fn(x)
            return (value * value * value).sum(), value

        gradient, value = jax.grad(loss, has_aux=True)(x)
        return value, gradient

    return both


def assert_in_float64(fn: Fn) -> None:
    """What JAX computes with 64 bits, in the structure and with the integers of 32."""
    jitted = jax.jit(fn)
    found, narrow = wide(jitted, X), jax.eval_shape(jitted, X)
    with jax.enable_x64(True):  # noqa: FBT003
        truth = jitted(widened(X))
    assert jax.tree.structure(found) == jax.tree.structure(narrow)
    for value, true, struct in zip(*map(jax.tree.leaves, (found, truth, narrow)), strict=True):
        assert value.dtype == {"float32": "float64", "complex64": "complex128"}.get(struct.dtype.name, struct.dtype)
        assert value.shape == struct.shape
        np.testing.assert_allclose(value, true, rtol=0, atol=1e-13 * np.abs(true).max())


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("fn", SMOOTH.values(), ids=SMOOTH)
def test_values_and_gradients(fn: Fn) -> None:
    assert_in_float64(differentiated(fn))


@pytest.mark.parametrize("fn", BY_VALUE.values(), ids=BY_VALUE)
def test_values(fn: Fn) -> None:
    assert_in_float64(fn)


def test_near_float32_and_equal_to_numpy() -> None:
    def fn(x: Any, xp: Any = jnp) -> Any:
        h = (x - x.mean(0)) / x.std(0)
        return xp.linalg.solve(h.T @ h + xp.eye(3, dtype=x.dtype), xp.cumsum(h, 0).sum(0)) / 3

    narrow, found, truth = np.asarray(jax.jit(fn)(X)), wide(fn, X), fn(X.astype(np.float64), np)
    np.testing.assert_allclose(found, truth, rtol=1e-12)
    np.testing.assert_allclose(found, narrow, rtol=1e-4)
    assert (np.abs(found - narrow) > 0).all()


def test_explicit_casts_do_not_round() -> None:
    def fn(x: Any) -> Any:
        y = (x / 3).astype(jnp.bfloat16) @ (x.T / 3).astype(jnp.bfloat16)
        z = lax.reduce_precision(x * 1e6, 5, 10).astype(jnp.float16)  # which overflows there
        return (
            y.astype(jnp.float32),
            z,
            jnp.dot(x, x.T, preferred_element_type=jnp.float32),
            jnp.mean(x, dtype="float16"),
        )

    x = X.astype(np.float64)
    for found, truth in zip(wide(fn, X), ((x / 3) @ (x.T / 3), x * 1e6, x @ x.T, x.mean()), strict=True):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, truth, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "complex64"])
def test_inputs_of_every_width_are_taken_as_they_are(dtype: str) -> None:
    x = np.array([0.1, 3]).astype(jnp.dtype(dtype))
    found = wide(lambda x: x / 3, x)
    truth = x.astype(found.dtype) / 3
    assert found.dtype == (np.complex128 if dtype == "complex64" else np.float64)
    np.testing.assert_allclose(found, truth, rtol=1e-15)


def drawn(key: Any, x: Any) -> Any:
    keys = jax.random.split(key, 3)
    exact = jax.random.bits(key, (3,)), jax.random.key_data(keys), jax.random.categorical(keys[0], x)
    return exact, jax.random.normal(keys[1], (3,)) * x[0], jax.random.gamma(keys[2], 2.0)


def test_random_bits_are_those_of_float32() -> None:
    key, jitted = jax.random.key(0), jax.jit(drawn)
    narrow = jax.tree.map(np.asarray, jitted(key, X))
    for a, b in zip(*map(jax.tree.leaves, (narrow, wide(jitted, key, X))), strict=True):
        assert b.dtype == (np.float64 if a.dtype == np.float32 else a.dtype)
        np.testing.assert_allclose(b, a, rtol=1e-6)


def test_bits_of_floats_are_those_of_their_own_width() -> None:
    jitted = jax.jit(lambda x: (lax.bitcast_convert_type(x * 3, jnp.int32), jnp.nextafter(x, 9.0) - x, jnp.frexp(x)[1]))
    for a, b in zip(jitted(X), wide(jitted, X), strict=True):
        np.testing.assert_array_equal(b, a)


INTEGERS: dict[str, tuple[Fn, Any]] = {
    "int32": (lambda k: (k * k, k + 2**30, k.sum()), np.array([2**30, 2**31 - 1, 7], np.int32)),
    "int8 and uint8": (lambda k: (k + k, k.astype(jnp.uint8) * 3, jnp.cumsum(k)), np.array([127, -128, 100], np.int8)),
    "uint32": (lambda k: (k << 3, k - 5, ~k), np.array([2**32 - 1, 3], np.uint32)),
    "int64 on the host": (lambda k: k * k, np.array([2**20])),
    "an int of Python": (lambda k: k * k, 2**20),
    "an index on the host": (lambda k: jnp.asarray(TABLE)[k], np.arange(3)),
}


@pytest.mark.parametrize(("fn", "k"), INTEGERS.values(), ids=INTEGERS)
def test_integers_keep_their_width(fn: Fn, k: Any) -> None:
    narrow = jax.tree.map(np.asarray, jax.jit(fn)(k))
    for a, b in zip(*map(jax.tree.leaves, (narrow, wide(fn, k))), strict=True):
        assert b.dtype in {a.dtype, np.dtype(np.float64)}
        np.testing.assert_array_equal(b, a)


def test_a_loop_that_ends_for_each_row_on_its_own() -> None:
    fn = jax.vmap(lambda r: lax.while_loop(lambda c: jnp.abs(c).sum() < 9, lambda c: c * 1.5, r))
    np.testing.assert_allclose(wide(fn, X), fn(X), rtol=1e-5)


def test_an_algorithm_that_rounds_is_left_out() -> None:
    found = wide(lambda x: lax.dot(x, x.T, precision=lax.DotAlgorithmPreset.BF16_BF16_F32), X)
    np.testing.assert_allclose(found, X.astype(np.float64) @ X.T.astype(np.float64), rtol=1e-12)


narrow_only = Primitive("narrow_only")


@narrow_only.def_abstract_eval
def _(x: Any) -> Any:
    if x.dtype != np.float32:
        raise TypeError(f"narrow_only takes float32, not {x.dtype}")
    return x


def refused(x: Any) -> Any:
    return narrow_only.bind(x * 2)  # the line of the message


def with_reference(x: Any) -> Any:
    ref = jax.new_ref(x)
    ref[0] = ref[0] * 2
    return ref[...]


def with_callback(x: Any) -> Any:
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_a_refusal_names_the_line() -> None:
    line = refused.__code__.co_firstlineno + 1
    where = rf"narrow_only, at \S*test_float64.py:{line}\S* \(refused\), cannot run in float64"
    told = rf"{where} \(.*not float64.*\)\. Expected .* Fix: state contract=Close\(rtol\)"
    with pytest.raises(NotImplementedError, match=told):
        wide(refused, X)
    with pytest.raises(NotImplementedError, match=where):
        wide(lambda x: lax.scan(lambda c, r: (c, jax.jit(refused)(r)), 0, x)[1], X)


@pytest.mark.parametrize("fn", [with_reference, with_callback])
def test_what_cannot_be_made_wider_is_refused(fn: Fn) -> None:
    with pytest.raises(NotImplementedError, match="cannot run in float64"):
        wide(fn, X)


def test_a_function_is_traced_once_for_each_kind_of_arguments() -> None:
    traced = []

    def fn(tree: Any) -> Any:
        traced.append(tree["x"].shape)
        return tree["x"] * TABLE

    again = in_float64(fn)
    for x in (X, X + 1, X[:2]):
        found = again(({"x": x},), widened(({"x": x},)))
        np.testing.assert_array_equal(found, x.astype(np.float64) * TABLE)
    assert traced == [(5, 3), (2, 3)]
    assert jnp.zeros(1).dtype == np.float32  # here nothing has changed


def test_widened() -> None:
    tree = {"x": X, "b": jnp.ones(2, jnp.bfloat16) / 3, "z": np.complex64(1j), "f": 0.1}
    rest = {"k": AT, "flag": np.array([True]), "n": 3, "key": jax.random.key(0)}
    found = widened({**tree, **rest})
    assert all(found[name] is value for name, value in rest.items())
    assert {name: found[name].dtype.name for name in tree} == dict.fromkeys(tree, "float64") | {"z": "complex128"}
    for name, value in tree.items():
        assert isinstance(found[name], np.ndarray | np.generic)
        np.testing.assert_array_equal(found[name], np.asarray(value))
