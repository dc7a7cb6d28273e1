"""Nothing that can reach an array's memory may go unseen: every way to hold an array, with every way to alias it."""

import collections
import concurrent.futures
import ctypes
import functools
import gc
import itertools
import operator
import types
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.core.alone import alone


class Plain:
    def __init__(self, x: Any):
        self.x = x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any):
        self.x = x


class SlottedAndDict(Slotted):
    pass


class Module(eqx.Module):
    x: Any


class SubArray(np.ndarray):
    parent: Any = None


def cell(x: Any) -> Callable[[], Any]:
    return lambda: x


def generator(x: Any) -> Any:
    def body(x: Any) -> Any:
        yield x

    running = body(x)
    next(running)
    return running


def module(x: Any) -> types.ModuleType:
    made = types.ModuleType("made")
    vars(made).update(x=x, y=[])
    return made


# What holds an array and can do nothing to its memory.
HOLDERS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: None,
    "list": lambda x: [x],
    "list, twice": lambda x: [x, x],
    "tuple": lambda x: (x, []),
    "dict": lambda x: {"x": x, "y": []},
    "dict in list in dict": lambda x: {"a": [{"x": x, "y": []}]},
    "attribute": Plain,
    "attributes": lambda x: [Plain(x), Plain(x)],
    "slot": Slotted,
    "slot, with a dict": SlottedAndDict,
    "equinox module": Module,
    "namespace": lambda x: types.SimpleNamespace(x=x, y=[]),
    "cell": cell,
    "default": lambda x: lambda x=x: x,
    "partial": lambda x: functools.partial(print, x, []),
    "generator": generator,
    "module": module,
}
# Certain to hold no view either, but not seen to.
CAUTIOUS: dict[str, Callable[[Any], Any]] = {
    "deque": lambda x: collections.deque([x]),
    "object array": lambda x: np.array([x, None], dtype=object),
    "bound builtin": lambda x: x.sum,
    "dict of an object": lambda x: (made := Plain(x), vars(made)),
}


def sub_array(x: np.ndarray) -> SubArray:
    view = x.view(SubArray)
    view.parent = x
    return view


def with_attribute(value: Any) -> Any:
    value.extra = []  # from now on the garbage collector tracks the dict that holds the array
    return value


def namespace(x: np.ndarray, **more: Any) -> tuple[Any, np.ndarray]:
    lender = types.SimpleNamespace(__array_interface__=x.__array_interface__, **more)
    return lender, np.asarray(lender)


class Lender:
    def __init__(self, keep: Any, interface: Any):
        self.keep, self.interface = keep, interface

    @property
    def __array_interface__(self) -> Any:
        return self.interface


def lent(x: np.ndarray, keep: Any) -> np.ndarray:
    return np.asarray(Lender(keep, x.__array_interface__))


FLOATS = ctypes.POINTER(ctypes.c_float)

ALIASES: dict[str, Callable[[np.ndarray], Any]] = {
    "view": lambda x: x[:],
    "part": lambda x: x[1:2],
    "part of a view": lambda x: x[:][::2][:1],
    "reshape": lambda x: x.reshape(2, 4),
    "transpose": lambda x: x.reshape(2, 4).T,
    "real": lambda x: x.view(np.complex64).real,
    "other dtype": lambda x: x.view(np.uint8),
    "subclass": lambda x: x.view(SubArray),
    "subclass that holds it": sub_array,
    "part of a subclass": lambda x: x.view(SubArray)[1:],
    "record": lambda x: x.view(np.recarray),
    "masked": lambda x: np.ma.masked_array(x, copy=False),
    "memoryview": memoryview,
    "frombuffer": lambda x: np.frombuffer(memoryview(x), np.float32),
    "ndarray over it": lambda x: np.ndarray((2,), np.float32, buffer=x),
    "as_strided": lambda x: np.lib.stride_tricks.as_strided(x, (3, 2), (4, 4)),
    "sliding window": lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, writeable=True),
    "broadcast": lambda x: np.broadcast_to(x, (2, 8)),
    "flat": lambda x: x.flat,
    "nditer": lambda x: np.nditer(x, op_flags=[["readwrite"]]),
    "struct capsule": lambda x: x.__array_struct__,
    "dlpack": np.from_dlpack,
    "ctypes": lambda x: x.ctypes,
    "ctypes pointer": lambda x: x.ctypes.data_as(FLOATS),
    "ctypes pointer with an attribute": lambda x: with_attribute(x.ctypes.data_as(FLOATS)),
    "as_ctypes": np.ctypeslib.as_ctypes,
    "as_ctypes with an attribute": lambda x: with_attribute(np.ctypeslib.as_ctypes(x)),
    "ctypes from_buffer": (ctypes.c_float * 8).from_buffer,
    "lender": lambda x: lent(x, x),
    "lender with a list": lambda x: lent(x, [x]),
    "lender with a dict in a list": lambda x: lent(x, [{"x": x, "y": []}]),
    "lending namespace": lambda x: namespace(x, keep=x),
    "lending namespace with a list": lambda x: namespace(x, keep=[x]),
}


def arange() -> np.ndarray:
    return np.arange(8, dtype=np.float32).copy()


def holding(holder: Callable[[Any], Any], alias: Callable[[Any], Any] | None = None) -> tuple[np.ndarray, Any]:
    array = arange()
    return array, (holder(array), alias(array) if alias else None)


@pytest.mark.parametrize("collected", [False, True])
def test_an_array_with_an_alias_is_never_alone(collected: bool) -> None:
    names = list(itertools.product({**HOLDERS, **CAUTIOUS}, ALIASES))
    made = [holding({**HOLDERS, **CAUTIOUS}[holder], ALIASES[alias]) for holder, alias in names]
    kept = [keep for _, keep in made]
    arrays = [made.pop(0)[0] for _ in names]
    if collected:
        gc.collect()  # stops tracking tuples and dicts of arrays
    found = alone(arrays)
    assert not [name for name, is_alone in zip(names, found, strict=True) if is_alone]
    assert kept


def test_a_whole_view_is_alone_only_if_nothing_else_has_its_base() -> None:
    def view_of(base: np.ndarray, alias: Callable[[Any], Any] | None) -> tuple[np.ndarray, Any]:
        return base.reshape(4, 2), alias(base) if alias else None

    made = [view_of(arange(), alias) for alias in (None, *ALIASES.values())]
    kept = [keep for _, keep in made]
    arrays = [made.pop(0)[0] for _ in kept]
    assert alone(arrays) == [True] + [False] * len(ALIASES)


def test_a_part_of_an_array_is_never_alone() -> None:
    arrays = [arange()[1:], np.frombuffer(bytearray(8), np.uint8), np.broadcast_to(np.float32(1), (2,))]
    assert alone(arrays) == [False, False, False]


def test_plain_holders_are_seen_through() -> None:
    made = [holding(holder) for holder in HOLDERS.values()]
    kept = [keep for _, keep in made]
    arrays = [made.pop(0)[0] for _ in kept]
    assert [name for name, is_alone in zip(HOLDERS, alone(arrays), strict=True) if not is_alone] == []


def test_variables_are_seen_through() -> None:
    one, two = arange(), arange()
    three = two
    assert alone([one, two]) == [True, True]

    def inner(four: np.ndarray) -> list[bool]:
        return alone([four, one])

    assert inner(two) == [True, True]
    assert three is two


def test_no_arrays() -> None:
    assert alone([]) == []


def test_it_leaves_the_collector_and_locals_as_they_were() -> None:
    array = arange()
    mine = locals()  # before Python 3.13 the very dict that the search sees
    alone([array])
    assert mine["array"] is array
    assert gc.isenabled()
    gc.disable()
    try:
        alone([array])
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_leaves_nothing_behind() -> None:
    array = arange()
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_referrers(array))
        for _ in range(3):
            alone([array])
        assert len(gc.get_referrers(array)) == before
    finally:
        gc.enable()


# ---------------------------------------------------------------- how the decorated function is called


@tx.vram_resident
def total(*arrays: np.ndarray, **named: np.ndarray) -> Any:
    return sum(x.sum() for x in jax.tree.leaves([arrays, named]))


@pytest.fixture(autouse=True)
def evicted() -> Iterator[None]:
    yield
    total.evict()


class Caller:
    total = total

    def __init__(self) -> None:
        self.own = total


def in_generator(x: np.ndarray) -> Any:
    yield total(x)


def in_thread(x: np.ndarray) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(total, x).result()


def rebound(x: np.ndarray) -> None:
    total = globals()["total"]._run
    total(x)


def conditional(x: np.ndarray) -> None:
    total(x if x is not None else None)


def with_object(x: np.ndarray) -> None:
    holder = Plain(x)
    attributes = vars(holder)
    total(attributes["x"])


def in_closure(x: np.ndarray) -> None:
    later = lambda: x  # noqa: E731  # x is a parameter and a cell
    total(x)
    assert later() is x


def in_comprehension(x: np.ndarray) -> None:
    assert [total(y) for y in [x]]
    assert list(total(y) for y in (x,))  # noqa: C400  # the generator is what is tried
    assert {id(y): total(y) for y in [x]}


# The call itself is what is tried, so it is spelt out.
CALLS: dict[str, Callable[[np.ndarray], Any]] = {
    "plain": lambda x: total(x),  # noqa: PLW0108
    "by name": lambda x: total(x=x),
    "star": lambda x: total(*[x]),
    "two stars": lambda x: total(x=x),
    "mixed": lambda x: total(x, y=x),
    "twice": lambda x: total(x, x),
    "expression": lambda x: total((x, x)[0]),
    "walrus": lambda x: total(y := x) + total(y),
    "conditional": conditional,
    "container": lambda x: total({"a": [x, (x,)]}),
    "__call__": lambda x: total.__call__(x),  # noqa: PLW0108
    "run": lambda x: total._run(x),  # noqa: PLW0108
    "rebound": rebound,
    "attribute of a class": lambda x: Caller.total(x),  # noqa: PLW0108
    "attribute of an object": lambda x: Caller().own(x),
    "map": lambda x: list(map(total, [x])),
    "starmap": lambda x: list(itertools.starmap(total, [(x,)])),
    "reduce": lambda x: functools.reduce(total, [x, x]),
    "filter": lambda x: list(filter(total, [x])),
    "takewhile": lambda x: list(itertools.takewhile(total, [x])),
    "key": lambda x: sorted([x], key=total),
    "max": lambda x: max([x], key=total),
    "frompyfunc": lambda x: np.frompyfunc(total, 1, 1)(np.array([x, None], object)[:1]),
    "partial": lambda x: functools.partial(total, x)(),
    "partial with another": lambda x: functools.partial(total, x)(x),
    "operator.call": lambda x: operator.call(total, x),
    "methodcaller": lambda x: operator.methodcaller("own", x)(Caller()),
    "apply": lambda x: eval("total(x)", {"total": total, "x": x}),
    "generator": lambda x: list(in_generator(x)),
    "thread": in_thread,
    "closure": in_closure,
    "comprehension": in_comprehension,
    "attributes": with_object,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_however_it_is_called_a_view_is_seen(call: Callable[[np.ndarray], Any]) -> None:
    array = arange()
    view = array[:4]
    for _ in range(2):
        call(array)
    assert [entry.checked for entry in total.resident()] == [True]
    view[0] = 100
    with pytest.raises(tx.StaleArrayError, match="was changed"):
        call(array)


GLOBAL = arange()


def proven(call: Callable[[], Any]) -> bool:
    for _ in range(3):
        call()
    found = [entry.checked for entry in total.resident()]
    total.evict()
    return found == [False] * len(found)


def test_plain_calls_are_not_checksummed() -> None:
    local, other = arange(), arange()
    batch = {"x": local, "inner": [other]}
    caller = Caller()
    assert proven(lambda: total(local))
    assert proven(lambda: total(local, other))
    assert proven(lambda: total(GLOBAL))
    assert proven(lambda: total(batch))
    assert proven(lambda: caller.own(local))
    assert proven(lambda: total(batch["x"]))
    for _ in range(3):
        total(local)
    assert [entry.checked for entry in total.resident()] == [False]


@pytest.mark.parametrize("call", ["plain", "container", "attribute of a class", "closure", "comprehension"])
def test_without_a_view_it_is_proven(call: str) -> None:
    array = arange()
    assert proven(lambda: CALLS[call](array))
