"""Every kind of callable can be decorated, and none is ever stale."""

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.core.callables import OpenedMethod
from erythroxy_tx.core.callables import OpenedPartial
from erythroxy_tx.core.callables import opened
from erythroxy_tx.errors import StaticArgumentError

X = np.arange(4, dtype=np.float32)

chunked: Callable[..., Any] = tx.chunked(jax.lax.map, size=2, out="rows")
relocated: Callable[..., Any] = tx.assert_relocation(lambda x: 2 * x)
TRANSFORMS: dict[str, Callable[..., Any]] = {
    "chunked": chunked,
    "vram_resident": tx.vram_resident,
    "stack": lambda fn: relocated(tx.vram_resident(chunked(fn))),
}
each_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


def double(x: Any) -> Any:
    return x * 2


class Plain:
    def __init__(self, k: Any = 2.0):
        self.k = k

    def method(self, x: Any) -> Any:
        return x * self.k

    def __call__(self, x: Any) -> Any:
        return x * self.k


class Slotted:
    __slots__ = ("__weakref__", "k")

    def __init__(self, k: Any = 2.0):
        self.k = k

    def method(self, x: Any) -> Any:
        return x * self.k

    def __call__(self, x: Any) -> Any:
        return x * self.k


class SlottedAndDict(Slotted):
    def __init__(self, k: Any = 2.0):
        super().__init__(k)
        self.one = 1.0

    def method(self, x: Any) -> Any:
        return x * self.k * self.one


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: Any = 2.0

    def method(self, x: Any) -> Any:
        return x * self.k


class Module(eqx.Module):
    k: Any = 2.0

    def method(self, x: Any) -> Any:
        return x * self.k

    def __call__(self, x: Any) -> Any:
        return x * self.k


class Tuple(NamedTuple):
    k: Any = 2.0

    def method(self, x: Any) -> Any:
        return x * self.k


class Kinds:
    k = 2.0

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.k

    @staticmethod
    def static(x: Any) -> Any:
        return x * 2


def times(k: Any, x: Any) -> Any:
    return x * k


def times_by_name(x: Any, k: Any) -> Any:
    return x * k


def multiplied(k: Any) -> Callable[..., Any]:
    return lambda x: x * k


def with_rule(fn: Callable[..., Any]) -> Callable[..., Any]:
    made = jax.custom_jvp(fn)
    made.defjvps(lambda tangent, result, x: 3 * tangent)
    return made


CALLABLES: dict[str, Callable[[], Any]] = {
    "function": lambda: double,
    "lambda": lambda: lambda x: x * 2,
    "closure": lambda: multiplied(2.0),
    "jitted": lambda: jax.jit(double),
    "vmapped": lambda: jax.vmap(double),
    "custom rule": lambda: with_rule(double),
    "partial": lambda: functools.partial(times, 2.0),
    "partial by name": lambda: functools.partial(times_by_name, k=2.0),
    "partial of a partial": lambda: functools.partial(functools.partial(times, 2.0)),
    "partial with an array": lambda: functools.partial(times, jnp.float32(2)),
    "partial of a method": lambda: functools.partial(Plain().method),
    "partial of a module": lambda: functools.partial(Module(jnp.float32(2))),
    "tree partial": lambda: jax.tree_util.Partial(times, 2.0),
    "method": lambda: Plain().method,
    "method with slots": lambda: Slotted().method,
    "method with slots and dict": lambda: SlottedAndDict().method,
    "method of a frozen dataclass": lambda: Frozen().method,
    "method of a named tuple": lambda: Tuple(jnp.float32(2)).method,
    "method of a module": lambda: Module(jnp.float32(2)).method,
    "object": Plain,
    "object with slots": Slotted,
    "module": lambda: Module(jnp.float32(2)),
    "module with a number": Module,
    "class method": lambda: Kinds.of_class,
    "static method": lambda: Kinds.static,
}


@each_transform
@pytest.mark.parametrize("make", CALLABLES.values(), ids=CALLABLES)
def test_every_callable(transform: Callable[..., Any], make: Callable[[], Any]) -> None:
    fn = make()
    wrapped = transform(fn)
    for _ in range(2):
        assert np.array_equal(wrapped(X), X * 2)


class Decorated:
    def __init__(self, k: float = 2.0):
        self.k = k
        self.nested = {"a": [jnp.float32(1), np.ones(1, np.float32)], "mode": "plain"}

    @tx.vram_resident
    def bare(self, x: Any) -> Any:
        """Doc of bare."""
        return x * self.k

    @tx.chunked(jax.lax.map, size=2, out="rows")
    def rows(self, x: Any) -> Any:
        return x * self.k * self.nested["a"][0] * self.nested["a"][1] * (1 if self.nested["mode"] == "plain" else 10)

    @tx.vram_resident
    @tx.chunked(jax.lax.map, size=2, out="rows")
    def stacked(self, x: Any) -> Any:
        return x * self.k

    @tx.vram_resident
    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * 2

    @classmethod
    @tx.vram_resident
    def of_class_outside(cls, x: Any) -> Any:
        return x * 2

    @tx.chunked(jax.lax.map, size=2, out="rows")
    @staticmethod
    def static(x: Any) -> Any:
        return x * 2

    @staticmethod
    @tx.vram_resident
    def static_outside(x: Any) -> Any:
        return x * 2


@pytest.mark.parametrize(
    "name", ["bare", "rows", "stacked", "of_class", "of_class_outside", "static", "static_outside"]
)
def test_decorated_in_the_class_body(name: str) -> None:
    assert np.array_equal(getattr(Decorated(), name)(X), X * 2)
    if "class" in name or "static" in name:
        assert np.array_equal(getattr(Decorated, name)(X), X * 2)


def test_a_subclass_and_another_instance_have_their_own_attributes() -> None:
    class Sub(Decorated):
        def __init__(self) -> None:
            super().__init__(5.0)

    assert Decorated(3.0).rows(X)[1] == 3
    assert Sub().rows(X)[1] == 5
    assert Decorated(2.0).bare(X)[1] == 2


def test_the_unbound_method_takes_the_object() -> None:
    assert Decorated.bare.__name__ == "bare"
    assert Decorated.bare.__doc__ == "Doc of bare."
    assert Decorated().bare.__doc__ == "Doc of bare."
    with pytest.raises(StaticArgumentError, match=r"Decorated\.rows got a static value of type Decorated"):
        tx.chunked(jax.lax.map, size=2, in_axes=(None, 0), out="rows")(Decorated.rows.fn)(Decorated(), X)


def test_methods_of_modules_in_the_class_body() -> None:
    class Net(eqx.Module):
        w: jax.Array

        @tx.chunked(jax.lax.map, size=2, out="rows")
        def rows(self, x: Any) -> Any:
            return x * self.w

        @tx.chunked(jax.lax.map, size=2, out="rows")
        def __call__(self, x: Any) -> Any:
            return x * self.w

    net = Net(jnp.float32(2))
    assert np.array_equal(net.rows(X), X * 2)
    assert np.array_equal(net(X), X * 2)
    grads = eqx.filter_grad(lambda net: net.rows(jnp.asarray(X)).sum() + net(jnp.asarray(X)).sum())(net)
    assert grads.w == 12


# ---------------------------------------------------------------- never stale


CHANGES: dict[str, tuple[Callable[[Any], None], float]] = {
    "number": (lambda o: setattr(o, "k", 3.0), 3),
    "number to array": (lambda o: setattr(o, "k", jnp.float32(3)), 3),
    "nested device array": (lambda o: o.nested["a"].__setitem__(0, jnp.float32(3)), 6),
    "nested numpy array": (lambda o: o.nested["a"].__setitem__(1, np.full(1, 3, np.float32)), 6),
    "numpy array in place": (lambda o: o.nested["a"][1].__setitem__(0, 3), 6),
    "string": (lambda o: o.nested.__setitem__("mode", "other"), 20),
    "new attribute": (lambda o: setattr(o, "other", 1), 2),
    "two": (lambda o: (setattr(o, "k", 3.0), o.nested.update(mode="other")), 30),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("bound_once", [True, False])
def test_a_method_sees_a_changed_attribute(change: Callable[[Any], None], expected: float, bound_once: bool) -> None:
    instance = Decorated()
    bound = instance.rows
    assert bound(X)[1] == 2
    change(instance)
    assert (bound if bound_once else instance.rows)(X)[1] == expected


KEPT: dict[str, Callable[[Any], Any]] = {
    "method": lambda o: o.method,
    "object": lambda o: o,
    "partial": lambda o: functools.partial(o.method),
    "partial of a partial": lambda o: functools.partial(functools.partial(o.method)),
    "tree partial": lambda o: jax.tree_util.Partial(o.method),
}


@each_transform
@pytest.mark.parametrize("kind", [Plain, Slotted])
@pytest.mark.parametrize("of", KEPT.values(), ids=KEPT)
def test_a_kept_wrapper_sees_a_changed_attribute(
    transform: Callable[..., Any], kind: Any, of: Callable[[Any], Any]
) -> None:
    instance = kind()
    wrapped = transform(of(instance))
    assert wrapped(X)[1] == 2
    instance.k = 3.0
    assert wrapped(X)[1] == 3


@pytest.mark.parametrize("of", KEPT.values(), ids=KEPT)
def test_a_kept_wrapper_sees_a_changed_type(of: Callable[[Any], Any]) -> None:
    instance = Plain(2)
    wrapped = chunked(of(instance))
    whole = np.arange(4, dtype=np.int32)
    assert wrapped(whole).dtype == np.int32
    instance.k = 2.5
    assert wrapped(whole)[1] == 2.5


def test_attributes_are_not_traced_again_when_only_their_values_change() -> None:
    traces = []

    class Counted(Plain):
        def method(self, x: Any) -> Any:
            traces.append(1)
            return x * self.k

    instance = Counted()
    wrapped = chunked(instance.method)
    wrapped(X)
    before = len(traces)
    for k in (3.0, 4.0):
        instance.k = k
        assert wrapped(X)[1] == k
        assert chunked(instance.method)(X)[1] == k
        assert chunked(Counted(k).method)(X)[1] == k
    assert len(traces) == before
    instance.k = 5  # another type
    assert wrapped(X)[1] == 5
    assert len(traces) > before


# ---------------------------------------------------------------- refusals


class Assigning:
    def __init__(self) -> None:
        self.k, self.items, self.table = 2.0, [1.0], {"a": {"b": 1.0}}

    def assigns(self, x: Any) -> Any:
        self.k = x.sum()
        return x

    def assigns_new(self, x: Any) -> Any:
        self.new = 1
        return x

    def assigns_equal(self, x: Any) -> Any:
        self.k = self.k * 1
        return x

    def deletes(self, x: Any) -> Any:
        del self.k
        return x

    def appends(self, x: Any) -> Any:
        self.items.append(x.sum())
        return x

    def sets_item(self, x: Any) -> Any:
        self.table["a"]["b"] = x.sum()
        return x

    def adds_item(self, x: Any) -> Any:
        self.table["a"]["c"] = 1
        return x


@pytest.mark.parametrize(
    ("method", "attribute"),
    [
        ("assigns", "k"),
        ("assigns_new", "new"),
        ("assigns_equal", "k"),
        ("deletes", "k"),
        ("appends", "items"),
        ("sets_item", "table"),
        ("adds_item", "table"),
    ],
)
@pytest.mark.parametrize("transform", [chunked, tx.vram_resident])
def test_a_method_that_sets_an_attribute_is_refused(transform: Callable[..., Any], method: str, attribute: str) -> None:
    instance = Assigning()
    with pytest.raises(StaticArgumentError) as caught:
        transform(getattr(instance, method))(X)
    message = str(caught.value)
    assert f"Assigning.{method} sets self.{attribute} while it is traced" in message
    assert "Expected a method that only reads self. Fix: return the new value." in message
    assert (instance.k, instance.items, instance.table) == (2.0, [1.0], {"a": {"b": 1.0}})


class Logging:
    def __init__(self) -> None:
        self.k, self.log = 2.0, logging.getLogger("erythroxy")

    def method(self, x: Any) -> Any:
        self.log.info("called")
        return x * self.k


@pytest.mark.parametrize("transform", [chunked, tx.vram_resident])
def test_an_attribute_that_could_change_unseen_is_refused_by_name(transform: Callable[..., Any]) -> None:
    with pytest.raises(StaticArgumentError) as caught:
        transform(Logging().method)(X)
    for part in ("Logging.method", "type Logger", "fields['log']", "hashed by identity", "Expected", "Fix"):
        assert part in str(caught.value)


class OfList(list):
    def method(self, x: Any) -> Any:
        return x * self[0]


def test_a_method_of_what_is_not_written_in_python_is_refused() -> None:
    with pytest.raises(StaticArgumentError, match=r"OfList.* cannot be hashed"):
        chunked(OfList([2.0]).method)(X)


# ---------------------------------------------------------------- the opened form


def test_what_is_opened() -> None:
    assert opened(double) is double
    assert opened(jax.jit(double)) is not None
    module = Module()
    assert opened(module) is module
    form = opened(Plain(3.0).method)
    assert isinstance(form, OpenedMethod)
    assert form.fields == {"k": 3.0}
    assert form(2) == 6
    partial = opened(functools.partial(Plain(3.0).method, 5))
    assert isinstance(partial, OpenedPartial)
    assert isinstance(partial.func, OpenedMethod)
    assert partial() == 15


@pytest.mark.parametrize("static_argnames", ["mode", ("mode",)])
def test_static_arguments_of_methods_and_partials(static_argnames: Any) -> None:
    class Scaled(Plain):
        def method(self, x: Any, mode: str = "once") -> Any:
            return x * self.k * (1 if mode == "once" else 10)

    wrap = tx.chunked(jax.lax.map, size=2, in_axes=0, out="rows", static_argnames=static_argnames)
    method = wrap(Scaled().method)
    assert method(X)[1] == 2
    assert method(X, mode="more")[1] == 20
    assert wrap(functools.partial(Scaled().method, mode="more"))(X)[1] == 20
    positional = tx.chunked(jax.lax.map, size=2, in_axes=(0, None), out="rows", static_argnames=static_argnames)
    assert positional(Scaled().method)(X, "more")[1] == 20
