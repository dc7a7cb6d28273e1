"""Arguments: names, types as told, and which are traced. Static values that differ never share a key."""

import collections
import dataclasses
import enum
import functools
import gc
import inspect
import itertools
import logging
import math
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from typing import NamedTuple

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.signature import positional_names
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import signature_of
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.core.static import Declared
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.static import has_static
from erythroxy_tx.core.static import split
from erythroxy_tx.core.static import undeclare
from erythroxy_tx.errors import StaticArgumentError


class Mode(enum.Enum):
    A = "a"
    B = "b"


@dataclasses.dataclass(frozen=True)
class Config:
    scale: Any
    name: str = "x"


class Pair(NamedTuple):
    a: Any
    b: Any


class Mutable:
    def __init__(self) -> None:
        self.k = 1

    def method(self, x: Any) -> Any:
        return x * self.k


class Slotted:
    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 1

    def method(self, x: Any) -> Any:
        return x * self.k


class CallableObject(Mutable):
    def __call__(self, x: Any) -> Any:
        return x * self.k


class Empty:
    pass


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros((8, 131), np.float32), "f32[8,131]"),
        (np.zeros(3, np.int64), "i64[3]"),
        (np.uint8(1), "u8[]"),
        (jnp.zeros((2, 0), jnp.bfloat16), "bf16[2,0]"),
        (np.zeros(1, np.complex64), "c64[1]"),
        (np.zeros(1, bool), "bool[1]"),
        (jax.ShapeDtypeStruct((2,), jnp.float16), "f16[2]"),
        (jax.random.key(0), "key<fry>[]"),
        (1.5, "float"),
        ("a", "str"),
        (None, "NoneType"),
    ],
)
def test_types_are_told_as_jax_tells_them(value: Any, told: str) -> None:
    assert shape_of(value) == told


@pytest.mark.parametrize("leaf", [1, 1.0, True, 1j, np.float64(1), np.zeros(3), jnp.zeros(3), jnp.asarray(1.0)])
def test_structs_have_the_type_that_jit_sees(leaf: Any) -> None:
    struct, expected = struct_of(leaf), jax.jit(lambda x: x).eval_shape(leaf)
    assert (struct.shape, struct.dtype, struct.weak_type) == (expected.shape, expected.dtype, expected.weak_type)
    assert struct_of(struct) is struct


def test_positional_names() -> None:
    def f(x: Any, /, y: Any = 1, *rest: Any, z: Any = 2, **more: Any) -> None: ...

    assert positional_names(f, 0) == []
    assert positional_names(f, 2) == ["x", "y"]
    assert positional_names(f, 4) == ["x", "y", "rest[0]", "rest[1]"]
    assert positional_names(lambda a: a, 3) == ["a", "args[1]", "args[2]"]
    assert positional_names(min, 2) == ["args[0]", "args[1]"]
    assert positional_names(Mutable().method, 1) == ["x"]


def test_leaves_have_the_users_names_in_the_order_of_jax() -> None:
    def f(params: Any, x: Any, **more: Any) -> None: ...

    args, kwargs = ([{"w": 1}], (2, None)), {"z": 3, "b": {"t": 4}}
    found = named_leaves(f, args, kwargs)
    assert found == [("params[0]['w']", 1), ("x[0]", 2), ("b['t']", 4), ("z", 3)]
    assert [leaf for _, leaf in found] == jax.tree.leaves((args, kwargs))


def test_names_in_messages() -> None:
    assert name_of(Mutable.method) == "Mutable.method"
    assert name_of(functools.partial(Mutable.method, 1)) == "Mutable.method"
    assert name_of(Empty()) == "Empty"
    assert signature_of(min) is None
    assert signature_of(Mutable.method) == inspect.signature(Mutable.method)


TRACED = [1, 1.0, True, 1j, np.float32(1), np.zeros(2), jnp.zeros(2), jax.random.key(0), jax.ShapeDtypeStruct((), int)]
# Told apart by value, or things whose identity is what they mean.
STATIC: dict[str, Any] = {
    "string": "a",
    "bytes": b"a",
    "enum": Mode.A,
    "frozen dataclass": Config(1),
    "function": len,
    "lambda": lambda x: x,
    "jitted": jax.jit(jnp.sin),
    "custom rule": jax.nn.relu,
    "numpy ufunc": np.sin,
    "jax ufunc": jnp.add,
    "class": Mutable,
    "module": math,
    "dtype": np.dtype("int8"),
    "scalar type": jnp.float16,
    "sentinel": object(),
    "empty object": Empty(),
    "ellipsis": ...,
    "device": jax.devices()[0],
    "mesh": jax.sharding.Mesh(jax.devices()[:1], ("a",)),
    "path": Path(),
    "frozenset": frozenset({1}),
    "range": range(3),
    "method of a class": dict.fromkeys,
    "cached": functools.lru_cache(len),
    "partial": functools.partial(len),
    "partial of device arrays": functools.partial(len, jnp.zeros(2), k="a"),
    "tree structure": jax.tree.structure((1, 2)),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "set": ({1}, "cannot be hashed"),
    "bytearray": (bytearray(1), "cannot be hashed"),
    "deque": (collections.deque([1]), "cannot be hashed"),
    "mutable dataclass": (dataclasses.make_dataclass("D", ["a"])(1), "cannot be hashed"),
    "object": (Mutable(), "served stale"),
    "object with slots": (Slotted(), "served stale"),
    "callable object": (CallableObject(), "served stale"),
    "method": (Mutable().method, "served stale"),
    "method with slots": (Slotted().method, "served stale"),
    "partial of a method": (functools.partial(Mutable().method, 1), "served stale"),
    "partial of an object": (functools.partial(len, Mutable()), "served stale"),
    "partial of a list": (functools.partial(len, [1]), "cannot be hashed"),
    "partial of a numpy array": (functools.partial(len, k=np.zeros(2)), "numpy array"),
    "logger": (logging.getLogger("erythroxy"), "served stale"),
    "random numbers": (np.random.default_rng(0), "served stale"),
    "method of random numbers": (np.random.default_rng(0).random, "served stale"),
    "lock": (threading.Lock(), "served stale"),
}


@pytest.mark.parametrize("leaf", TRACED, ids=lambda leaf: type(leaf).__name__)
def test_arrays_and_numbers_are_traced(leaf: Any) -> None:
    assert is_traced(leaf)
    assert not has_static((leaf, {"a": [leaf, None]}), {"b": leaf})
    static, dynamic = split((leaf, None), "f")
    assert dynamic[0] is leaf
    assert static.values == ()


@pytest.mark.parametrize("leaf", STATIC.values(), ids=STATIC)
def test_everything_else_is_static(leaf: Any) -> None:
    assert not is_traced(leaf)
    assert has_static((1, {"a": leaf}), {})
    static, dynamic = split((1, {"a": leaf}), "f")
    assert dynamic == [1]
    assert static.merge((2,)) == (2, {"a": leaf})
    assert static.merge((2,))[1]["a"] is leaf
    again, _ = split((3, {"a": leaf}), "f")
    assert again == static
    assert hash(again) == hash(static)


@pytest.mark.parametrize(("leaf", "why"), REFUSED.values(), ids=REFUSED)
def test_what_could_change_unseen_is_refused(leaf: Any, why: str) -> None:
    with pytest.raises(StaticArgumentError) as caught:
        split((1, {"a": leaf}), "model.fit")
    message = str(caught.value)
    assert f"model.fit got a static value of type {type(leaf).__name__} at [1]['a']" in message
    assert why in message
    assert "Expected arrays and numbers" in message
    assert "Fix: register the class as a pytree" in message


def test_an_object_that_gets_its_first_attribute_later_is_refused_then() -> None:
    leaf: Any = Empty()
    split(leaf, "f")
    leaf.k = 1
    with pytest.raises(StaticArgumentError):
        split(leaf, "f")


@hypothesis.settings(max_examples=100)
@given(
    st.recursive(
        st.sampled_from([1, 1.5, True, "a", None, Mode.B, Config(2), len]),
        lambda inner: (
            st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner)
        ),
    )
)
def test_split_and_merge_are_inverse(tree: Any) -> None:
    static, dynamic = split(tree, "f")
    assert static.merge(tuple(dynamic)) == tree
    assert [type(leaf) for leaf in dynamic if not is_traced(leaf)] == []


# Values that are equal to Python, and some that are not; no two may share a program.
DISTINCT: list[Any] = [
    *(1, 1.0, True, 1 + 0j, np.int32(1), np.int64(1), np.float32(1), np.float64(1), np.bool_(1)),
    *(0, 0.0, -0.0, False, np.float32(0), np.float32(-0.0), complex(0.0, -0.0), 0j),
    *("1", b"1", "a", "b", "", Mode.A, Mode.B),
    *((1,), (1.0,), (True,), (0.0,), (-0.0,), ((1,),), ((1.0,),), (1, 2), (2, 1), ()),
    *(frozenset({1}), frozenset({1.0}), frozenset({True}), frozenset()),
    *map(Config, (1, 1.0, True, 0.0, -0.0, (1,), (1.0,), "1")),
    *(Config(Config(1)), Config(Config(1.0)), Config(1, "y")),
    *(Pair(1, 2), Pair(1.0, 2)),
]


def test_different_static_values_never_share_a_key() -> None:
    for (i, a), (j, b) in itertools.product(enumerate(DISTINCT), enumerate(DISTINCT)):
        assert (Declared(a) == Declared(b)) == (i == j), (a, b)
        if i == j:
            assert hash(Declared(a)) == hash(Declared(b))


def test_different_static_leaves_never_share_a_key() -> None:
    leaves = [value for value in DISTINCT if not is_traced(value) and not isinstance(value, (tuple, Pair))]
    keys = [split({"a": leaf}, "f")[0] for leaf in leaves]
    assert len(set(keys)) == len(keys)
    assert len({split(tree, "f")[0] for tree in ((1, "a"), ("a", 1), [1, "a"], {"a": "a"}, (1, ("a",)))}) == 5


def test_nan_is_one_static_value() -> None:
    assert Declared(math.nan) == Declared(float("nan"))
    assert Declared((math.nan,)) == Declared((float("nan"),))


def test_arguments_are_declared_by_position_or_by_name() -> None:
    def f(x: Any, mode: Any, *, k: Any = 1) -> None: ...

    args, kwargs = declare(f, ("mode", "k"), (1, "a"), {"k": 2})
    assert [type(a) for a in args] == [int, Declared]
    assert kwargs["k"] == Declared(2)
    assert not has_static(args, kwargs)
    assert declare(f, ("mode", "k"), args, kwargs) == (args, kwargs)
    assert undeclare(args, kwargs) == ((1, "a"), {"k": 2})
    static, dynamic = split((args, kwargs), "f")
    assert dynamic == [1]
    assert static.merge((5,)) == ((5, "a"), {"k": 2})
    assert declare(f, (), (1,), {}) == ((1,), {})


@pytest.mark.parametrize("value", [[1], {"a": 1}, np.zeros(2), {1}, jnp.zeros(2), (1, [2]), Config([1])])
def test_a_declared_value_that_cannot_be_hashed_is_refused_by_name(value: Any) -> None:
    def f(x: Any, mode: Any) -> None: ...

    for args, kwargs in (((1, value), {}), ((1,), {"mode": value})):
        with pytest.raises(
            StaticArgumentError, match=r"\.f got mode: .*static_argnames=.*unhashable.*Expected.*Fix: a tuple"
        ):
            declare(f, ("mode",), args, kwargs)


def test_functions_and_classes_are_held_weakly() -> None:
    def scope() -> tuple[Any, weakref.ref, weakref.ref]:
        function: Callable[..., Any] = lambda x: x  # noqa: E731
        kind = type("Local", (), {})
        static, _ = split((function, kind), "f")
        assert static.merge(()) == (function, kind)
        return static, weakref.ref(function), weakref.ref(kind)

    static, function, kind = scope()
    gc.collect()
    assert function() is None
    assert kind() is None
    assert static == static  # noqa: PLR0124  # it still is a key
    assert static != scope()[0]
