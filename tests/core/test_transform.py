"""What a decorator is: a pytree, a callable with the function's face, that pickles, traces through and never
mixes up static arguments.
"""

import copy
import dataclasses
import enum
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.errors import StaticArgumentError
from erythroxy_tx.errors import TransformOrderError

X = np.arange(4, dtype=np.float32)


def reference(x: np.ndarray, scale: float = 2.0) -> np.ndarray:
    return x * scale


def plain(x: Any, scale: float = 2.0) -> Any:
    """Scale the rows."""
    return x * scale


def chunked(fn: Any, **options: Any) -> Any:
    return tx.chunked(jax.lax.map, size=2, out="rows", in_axes=0, **options)(fn)


STACKS: dict[str, Callable[[Any], Any]] = {
    "chunked": chunked,
    "resident": tx.vram_resident,
    "resident with a device": lambda fn: tx.vram_resident(fn, device=jax.devices()[0]),
    "relocated": tx.assert_relocation(reference),
    "all": lambda fn: tx.assert_relocation(reference)(tx.vram_resident(chunked(fn))),
}
each_stack = pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)


@chunked
def decorated(x: Any) -> Any:
    return x * 2


@tx.vram_resident
@tx.chunked(jax.lax.map, size=2, out="rows")
def decorated_twice(x: Any) -> Any:
    return x * 2


under_another_name = chunked(plain)


class Holder:
    def __init__(self, k: float = 2.0):
        self.k = k

    @tx.chunked(jax.lax.map, size=2, out="rows")
    @staticmethod
    def static(x: Any) -> Any:
        return x * 2

    @tx.vram_resident
    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * 2

    @tx.vram_resident
    @tx.chunked(jax.lax.map, size=2, out="rows")
    def method(self, x: Any) -> Any:
        return x * self.k


class Net(eqx.Module):
    k: Any = 2.0

    @tx.chunked(jax.lax.map, size=2, out="rows")
    def method(self, x: Any) -> Any:
        return x * self.k


# ---------------------------------------------------------------- the face of the function


@each_stack
def test_it_has_the_face_of_the_function(stack: Callable[[Any], Any]) -> None:
    wrapped = stack(plain)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        assert getattr(wrapped, name) == getattr(plain, name)
    assert inspect.signature(wrapped) == inspect.signature(plain)
    assert inspect.unwrap(wrapped) is plain
    assert wrapped.__wrapped__ is wrapped.fn
    assert "plain" in repr(wrapped)
    assert "tx." in repr(wrapped)


@each_stack
def test_it_is_an_immutable_pytree(stack: Callable[[Any], Any]) -> None:
    wrapped = stack(plain)
    assert isinstance(wrapped, eqx.Module)
    assert isinstance(wrapped, Transform)
    assert callable(wrapped)
    leaves, structure = jax.tree.flatten(wrapped)
    assert leaves == [plain]
    wrapped(X)
    assert jax.tree.structure(wrapped) == structure  # a call leaves no trace in it
    again = jax.tree.unflatten(structure, leaves)
    assert np.array_equal(again(X), X * 2)
    assert again.__name__ == "plain"
    assert again == wrapped
    with pytest.raises(dataclasses.FrozenInstanceError):
        wrapped.fn = len


def test_its_leaves_are_those_of_the_function() -> None:
    module = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    wrapped = chunked(jax.vmap(module))
    assert [leaf.shape for leaf in jax.tree.leaves(eqx.filter(wrapped, eqx.is_array))] == []
    wrapped = tx.chunked(jax.lax.map, size=2, out="rows")(eqx.filter_vmap(module))
    assert [leaf.shape for leaf in jax.tree.leaves(eqx.filter(wrapped, eqx.is_array))] == [(2, 3), (2,)]
    x = jnp.ones((4, 3))
    grads = eqx.filter_grad(lambda f: f(x).sum())(wrapped)
    assert np.allclose(jax.tree.leaves(grads)[0], 4)
    updated = eqx.apply_updates(wrapped, grads)
    assert np.allclose(updated(x), jax.vmap(eqx.apply_updates(module, grads.fn._fun))(x))


def test_usage_bare_with_arguments_and_as_a_call() -> None:
    for wrapped in (tx.vram_resident(plain), tx.vram_resident()(plain), tx.vram_resident(max_fetch="1MiB")(plain)):
        assert np.array_equal(wrapped(X), X * 2)


@pytest.mark.parametrize(
    ("use", "named"),
    [
        (
            lambda: tx.chunked(plain),
            r"tx\.chunked got driver=plain.*Expected lax\.map or lax\.scan.*Fix: @tx\.chunked\(lax",
        ),
        (
            lambda: tx.assert_relocation(reference)(X),
            r"tx\.assert_relocation got f32\[4\] in place of a function.*numpy_ref",
        ),
        (lambda: tx.vram_resident(3), r"tx\.vram_resident got int in place of a function"),
        (lambda: tx.vram_resident()(None), r"tx\.vram_resident got NoneType in place"),
        (lambda: tx.chunked(jax.lax.map, 2, out="rows")(X), r"tx\.chunked got f32\[4\] in place"),
    ],
)
def test_wrong_usage_is_refused_by_name(use: Callable[[], Any], named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named):
        use()


def test_an_order_that_cannot_work_is_refused() -> None:
    for host in (tx.vram_resident, tx.assert_relocation(reference)):
        with pytest.raises(TransformOrderError, match=r"tx\.chunked is wrapped around tx\..*on the outside.*Fix: swap"):
            chunked(host(plain))
        with pytest.raises(TransformOrderError, match="swap"):
            chunked(chunked(host(plain)))
    assert chunked(chunked(plain))(X)[1] == 2


# ---------------------------------------------------------------- pickles and copies


@pytest.mark.parametrize("wrapped", [decorated, decorated_twice], ids=["one", "two"])
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_a_decorated_function_pickles_by_name(wrapped: Any, protocol: int) -> None:
    assert pickle.loads(pickle.dumps(wrapped, protocol)) is wrapped
    assert copy.copy(wrapped) is wrapped


@pytest.mark.parametrize("wrapped", [Holder.static, Holder.of_class, Holder().method, Net().method, Holder.method])
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_methods_pickle_as_what_they_are(wrapped: Any, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(wrapped, protocol))
    assert [type(one) for one in tx.stack(again)] == [type(one) for one in tx.stack(wrapped)]
    if wrapped.__name__ != "method" or hasattr(tx.unwrap(wrapped), "__self__"):
        assert np.array_equal(again(X), X * 2)


@each_stack
def test_another_name_pickles_by_fields(stack: Callable[[Any], Any]) -> None:
    wrapped = stack(plain)
    wrapped(X)
    if "device" in repr(wrapped):
        with pytest.raises(TypeError, match="Device"):
            pickle.dumps(wrapped)
        return
    again = pickle.loads(pickle.dumps(wrapped))
    assert again == wrapped
    assert np.array_equal(again(X), X * 2)
    assert again.__name__ == "plain"


def test_what_has_no_name_does_not_pickle() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(chunked(lambda x: x))


@each_stack
def test_copies(stack: Callable[[Any], Any]) -> None:
    wrapped = stack(plain)
    wrapped(X)
    for copied in (copy.copy(wrapped), copy.deepcopy(wrapped)):
        assert copied == wrapped
        assert np.array_equal(copied(X), X * 2)
    module = stack(eqx.nn.Lambda(plain))
    assert copy.deepcopy(module).fn is not None


def test_a_deep_copy_has_its_own_function() -> None:
    class Scale:
        def __init__(self) -> None:
            self.k = [2.0]

        def __call__(self, x: Any) -> Any:
            return x * self.k[0]

    scale = Scale()
    wrapped = chunked(scale)
    copied = copy.deepcopy(wrapped)
    scale.k[0] = 3.0
    assert wrapped(X)[1] == 3
    assert copied(X)[1] == 2


# ---------------------------------------------------------------- inside other transformations


TRACED: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: jax.jit(f)(X),
    "vmap": lambda f: jax.vmap(f)(np.stack([X, X]))[1],
    "grad": lambda f: jax.grad(lambda x: (f(x) ** 2).sum())(jnp.asarray(X)) / 4,
    "value_and_grad of jit": lambda f: jax.value_and_grad(jax.jit(lambda x: (f(x) ** 2).sum()))(jnp.asarray(X))[1] / 4,
    "checkpoint": lambda f: jax.grad(lambda x: (jax.checkpoint(f)(x) ** 2).sum())(jnp.asarray(X)) / 4,
    "scan": lambda f: jax.lax.scan(lambda c, _: (f(c), None), X, length=1)[0],
    "cond": lambda f: jax.lax.cond(True, f, lambda x: x, X),  # noqa: FBT003
    "while": lambda f: jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, X))[1],
    "map": lambda f: jax.lax.map(f, np.stack([X, X]))[1],
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda x: (f(x) ** 2).sum()))(np.stack([X, X]))[1] / 4,
    "eval_shape": lambda f: jnp.asarray(X) * 2 if jax.eval_shape(f, X).shape == (4,) else None,
    "make_jaxpr": lambda f: jax.core.eval_jaxpr(*_parts(jax.make_jaxpr(f)(X)))[0],
    "itself": lambda f: chunked(f)(X),
}


def _parts(closed: Any) -> tuple[Any, ...]:
    return closed.jaxpr, closed.consts, X


@pytest.mark.parametrize("use", TRACED.values(), ids=TRACED)
def test_it_traces_through(use: Callable[[Any], Any]) -> None:
    assert np.array_equal(use(chunked(plain)), X * 2)


@pytest.mark.parametrize("use", ["jit", "grad", "vmap", "scan", "eval_shape"])
def test_what_works_on_the_host_refuses_a_trace(use: str) -> None:
    with pytest.raises(
        TransformOrderError, match=r"tx\.vram_resident\(plain\) was called inside a trace.*Expected.*Fix"
    ):
        TRACED[use](tx.vram_resident(plain))
    with pytest.warns(UserWarning, match="compares nothing"):
        TRACED[use](tx.assert_relocation(lambda x: x)(lambda x: x * 2))


def test_a_wrapper_is_an_argument_of_jit() -> None:
    module = tx.chunked(jax.lax.map, size=2, out="rows")(eqx.nn.Lambda(jnp.sin))
    assert np.allclose(eqx.filter_jit(lambda f, x: f(x))(module, X), np.sin(X))


# ---------------------------------------------------------------- programs


@each_stack
def test_lower_is_the_program_that_a_call_runs(stack: Callable[[Any], Any]) -> None:
    traces = []

    def counted(x: Any) -> Any:
        traces.append(1)
        return x * 2

    wrapped = stack(counted)
    wrapped(X)
    first = len(traces)
    if wrapped.name != "tx.assert_relocation" or hasattr(wrapped.fn, "lower"):
        assert wrapped.lower(X).compile().memory_analysis().argument_size_in_bytes == 16
        assert len(traces) == first
    assert wrapped.lower(jax.ShapeDtypeStruct((6,), jnp.float32)).out_info.shape == (6,)


def test_an_error_of_the_user_is_told_once_and_as_it_is() -> None:
    calls = []

    def fails(x: Any, mode: str) -> Any:
        calls.append(1)
        raise TypeError("mine")

    for options in ({}, {"static_argnames": "mode"}):
        calls.clear()
        wrapped = tx.chunked(jax.lax.map, size=2, in_axes=(0, None), out="rows", **options)(fails)
        with pytest.raises(TypeError, match=r"^mine") as caught:
            wrapped(X, "a")
        assert len(calls) == 1
        assert not isinstance(caught.value, StaticArgumentError)
    with pytest.raises(TypeError, match="missing"):
        tx.vram_resident(plain)()


class Mode(enum.Enum):
    A = 1
    B = 2


@dataclasses.dataclass(frozen=True)
class Config:
    scale: Any


STATICS: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "string": ("1", "2", float),
    "enum": (Mode.A, Mode.B, lambda m: m.value),
    "function": (lambda: 1, lambda: 2, lambda f: f()),
    "frozen dataclass": (Config("1"), Config("2"), lambda c: float(c.scale)),
    "tree": (("1", {"a": None}), ("2", {"a": None}), lambda t: float(t[0])),
    "none": (None, "2", lambda s: 1 if s is None else float(s)),
}


@pytest.mark.parametrize("stack", [tx.chunked(jax.lax.map, size=2, in_axes=(0, None), out="rows"), tx.vram_resident])
@pytest.mark.parametrize(("one", "two", "value"), STATICS.values(), ids=STATICS)
def test_static_values_are_told_apart_and_do_not_trace_again(
    stack: Callable[[Any], Any], one: Any, two: Any, value: Callable[[Any], Any]
) -> None:
    traces = []

    def f(x: Any, mode: Any) -> Any:
        traces.append(1)
        return x * value(mode)

    wrapped = stack(f)
    assert [wrapped(X, mode)[1] for mode in (one, two, one, two)] == [1, 2, 1, 2]
    first = len(traces)
    assert stack(f)(X, one)[1] == 1
    assert wrapped.lower(X, two) is not None
    assert len(traces) == first


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("names", ["k", ("k",), ["k"]])
def test_named_static_arguments(by_name: bool, names: Any) -> None:
    seen = []

    def f(x: Any, k: Any = 1) -> Any:
        seen.append(k)
        return x.astype(jnp.int32) * (k.scale if isinstance(k, Config) else k[0] if isinstance(k, tuple) else k)

    wrapped = tx.chunked(jax.lax.map, size=2, in_axes=0 if by_name else (0, None), out="rows", static_argnames=names)(f)
    call = (lambda k: wrapped(X, k=k)) if by_name else (lambda k: wrapped(X, k))
    values = [1, 1.0, True, (1,), (1.0,), Config(1), Config(1.0), 2]
    dtypes = [call(k).dtype.name for k in values]
    assert dtypes == ["int32", "float32", "int32", "int32", "float32", "int32", "float32", "int32"]
    first = len(seen)
    assert [call(k).dtype.name for k in values] == dtypes
    assert len(seen) == first
    assert all(isinstance(k, (bool, int, float, tuple, Config)) for k in seen)


def test_the_sign_of_a_static_zero_counts() -> None:
    wrapped = tx.chunked(jax.lax.map, size=2, out="rows", static_argnames="k")(
        lambda x, k: x * float(np.copysign(1, k))
    )
    assert [wrapped(X, k=k)[1] for k in (0.0, -0.0)] == [1, -1]


def test_a_static_shape() -> None:
    wrapped = tx.vram_resident(lambda x, n: x.reshape(n, -1), static_argnames="n")
    assert wrapped(X, 2).shape == (2, 2)
    assert wrapped(X, n=4).shape == (4, 1)


@pytest.mark.parametrize("stack", [lambda **o: chunked(plain, **o), lambda **o: tx.vram_resident(plain, **o)])
def test_a_static_argument_that_cannot_be_hashed_is_refused_by_name(stack: Callable[..., Any]) -> None:
    with pytest.raises(
        StaticArgumentError, match=r"plain got scale: list, which static_argnames= names.*Expected.*Fix"
    ):
        stack(static_argnames="scale")(X, scale=[1.0])


def test_an_object_that_can_change_is_refused_as_an_argument() -> None:
    class Settings:
        def __init__(self) -> None:
            self.k = 2.0

    def f(x: Any, settings: Any) -> Any:
        return x * settings.k

    wrapped = tx.chunked(jax.lax.map, size=2, in_axes=(0, None), out="rows")(f)
    with pytest.raises(
        StaticArgumentError, match=r"\.f got a static value of type Settings at \[0\]\[1\].*served stale"
    ):
        wrapped(X, Settings())
    declared = tx.chunked(jax.lax.map, size=2, in_axes=(0, None), out="rows", static_argnames="settings")(f)
    assert declared(X, Settings())[1] == 2
