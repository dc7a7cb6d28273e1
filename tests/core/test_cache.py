"""State: one home for each object, kept weakly, shared by equal wrappers, and cleared."""

import concurrent.futures
import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.core import cache

X = np.arange(4, dtype=np.float32)


class Owner:
    pass


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


@pytest.mark.parametrize("kind", [Owner, Unhashable])
def test_one_home_for_each_object(kind: type) -> None:
    one, two = kind(), kind()
    assert cache.keep(one, "a", lambda: [1]) is cache.keep(one, "a", lambda: [2])
    assert cache.keep(one, "b", lambda: 3) == 3
    assert cache.keep(two, "a", lambda: 4) == 4
    assert cache.home(one) == {"a": [1], "b": 3}


def test_what_is_kept_dies_with_its_owner() -> None:
    owner = Owner()
    ref = weakref.ref(cache.keep(owner, "a", Owner))
    assert ref() is not None
    del owner
    assert ref() is None


def test_an_identity_that_is_used_again_has_a_new_home() -> None:
    for value in range(50):
        owner = Owner()
        assert cache.keep(owner, "a", lambda value=value: value) == value
        del owner


def test_a_failed_build_keeps_nothing() -> None:
    owner = Owner()
    with pytest.raises(ZeroDivisionError):
        cache.keep(owner, "a", lambda: 1 / 0)
    assert cache.keep(owner, "a", lambda: 1) == 1


def test_threads_find_one_state() -> None:
    owner, start = Owner(), threading.Barrier(8)

    def slow() -> Owner:
        threading.Event().wait(0.01)
        return Owner()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: (start.wait(), cache.keep(owner, "a", slow))[1], range(8)))
    assert len(set(found)) == 1


def test_what_cannot_be_referenced_weakly_is_refused() -> None:
    with pytest.raises(TypeError, match="weak"):
        cache.home(3)
    with pytest.raises(TypeError, match=r"ufunc.*weak.*Fix: .*lambda"):
        tx.vram_resident(np.sin)(X)


# ---------------------------------------------------------------- no retraces


def chunked(fn: Callable[..., Any]) -> Any:
    return tx.chunked(jax.lax.map, size=2, out="rows")(fn)


def reference(x: Any) -> Any:
    return x * 2


STACKS: dict[str, Callable[[Any], Any]] = {
    "chunked": chunked,
    "resident": tx.vram_resident,
    "resident, options": lambda fn: tx.vram_resident(fn, max_fetch="1MiB", budget="1MiB"),
    "resident chunked": lambda fn: tx.vram_resident(chunked(fn)),
    "chunked twice": lambda fn: chunked(chunked(fn)),
    "all": lambda fn: tx.assert_relocation(reference)(tx.vram_resident(chunked(fn))),
    "budget": tx.chunked(jax.lax.map, budget="1MiB", out="rows"),
}
each_stack = pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)


class Counter:
    def __init__(self) -> None:
        self.traces = 0

    def function(self) -> Callable[..., Any]:
        def counted(x: Any) -> Any:
            self.traces += 1
            return x * 2

        return counted


@each_stack
def test_wrapping_again_never_traces_again(stack: Callable[[Any], Any]) -> None:
    counter = Counter()
    function = counter.function()
    stack(function)(X)
    before = counter.traces
    wrapped = stack(function)
    for _ in range(3):
        wrapped(X)
        wrapped(X + 1)
        stack(function)(X)
        jax.tree.unflatten(jax.tree.structure(wrapped), [function])(X)
    assert counter.traces == before
    wrapped(X[:3])
    assert counter.traces > before


@each_stack
def test_other_functions_and_parameters_have_their_own_programs(stack: Callable[[Any], Any]) -> None:
    counter, other = Counter(), Counter()
    stack(counter.function())(X)
    stack(other.function())(X)
    assert counter.traces == other.traces > 0


def test_parameters_do_not_collide() -> None:
    def f(x: Any) -> Any:
        return x, x.sum(0)

    x = jnp.ones((4, 4))
    plans = [
        tx.chunked(jax.lax.map, 2, in_axes=axes, out=("rows", "sum"))(f).chunks(x[:2]) for axes in (0, (0,), 1, (1,))
    ]
    assert [str(plan).split()[0] for plan in plans] == ["2", "2", "4", "4"]
    for wrap in (
        [tx.chunked(jax.lax.map, size=size, out=("rows", "sum")) for size in (1, 2, 3)],
        [tx.chunked(jax.lax.map, n, out=("rows", "sum")) for n in (1, 2, 4)],
        [tx.chunked(jax.lax.map, 2, out=("rows", out)) for out in ("sum", "mean", "max")],
    ):
        texts = {one(f).lower(x).as_text() for one in wrap}
        assert len(texts) == 3
    mean, total = (tx.chunked(jax.lax.map, 2, out=("rows", out))(f)(x)[1][0] for out in ("mean", "sum"))
    assert (mean, total) == (2, 4)


def test_equal_wrappers_share_residency_and_reports() -> None:
    def f(x: Any) -> Any:
        return x * 2

    one, two, other = tx.vram_resident(f), tx.vram_resident(f), tx.vram_resident(f, budget="1MiB")
    one(X)
    assert [entry.name for entry in two.resident()] == ["x"]
    assert other.resident() == []
    two.evict()
    assert one.resident() == []
    held = [tx.assert_relocation(reference)(f) for _ in range(2)]
    held[0](X)
    assert held[1].report().compared == 1
    assert tx.assert_relocation(reference, rtol=1e-3)(f).report().compared == 0


class Model:
    @tx.vram_resident
    def rows(self, x: Any) -> Any:
        return x * 2

    @tx.vram_resident
    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * 2


class Net(eqx.Module):
    w: Any

    @tx.vram_resident
    def rows(self, x: Any) -> Any:
        return x * self.w


def test_each_object_has_its_own_residency() -> None:
    one, two, net = Model(), Model(), Net(jnp.ones(()))
    for instance in (one, net):
        instance.rows(X)  # each access makes a new bound method
        assert "x" in [entry.name for entry in instance.rows.resident()]
    assert two.rows.resident() == []
    Model.of_class(X)
    assert [entry.name for entry in Model.of_class.resident()] == ["x"]
    Model.of_class.evict()
    one.rows.evict()
    net.rows.evict()


def test_each_class_has_its_own_residency() -> None:
    class Sub(Model):
        pass

    Model.of_class(X)
    assert Sub.of_class.resident() == []
    Model.of_class.evict()


def test_programs_are_kept_with_the_function_inside() -> None:
    function = Counter().function()
    chunked(functools.partial(function))(X)
    assert [key[0] for key in cache.home(function)] == ["program"]


def test_new_modules_of_one_structure_share_a_program() -> None:
    traces = []

    class Counted(eqx.Module):
        w: Any

        def __call__(self, x: Any) -> Any:
            traces.append(1)
            return x * self.w

    for w in (1.0, 2.0, 3.0):
        assert chunked(Counted(jnp.float32(w)))(X)[1] == w
    first = len(traces)
    chunked(Counted(jnp.float32(4)))(X)
    assert len(traces) == first


# ---------------------------------------------------------------- freed


def gone(make: Callable[[], Any]) -> bool:
    ref = weakref.ref(make())
    gc.collect()
    return ref() is None


@each_stack
def test_functions_are_freed(stack: Callable[[Any], Any]) -> None:
    def use() -> Any:
        function = Counter().function()
        wrapped = stack(function)
        wrapped(X)
        wrapped(X)
        wrapped.lower(X)
        tx.contract(wrapped, X)
        return function

    assert gone(use)


@pytest.mark.parametrize("stack", [chunked, STACKS["budget"]])
def test_what_is_traced_through_is_freed(stack: Callable[[Any], Any]) -> None:
    def use() -> Any:
        function = Counter().function()
        jax.jit(stack(function))(X)
        jax.grad(lambda x: stack(function)(x).sum())(jnp.asarray(X))
        return function

    assert gone(use)


FORMS: dict[str, Callable[[Any], Any]] = {
    "partial": functools.partial,
    "jitted": jax.jit,
    "vmapped": jax.vmap,
    "partial of jitted": lambda fn: functools.partial(jax.jit(fn)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("stack", ["chunked", "resident chunked", "all"])
def test_functions_inside_other_callables_are_freed(form: Callable[[Any], Any], stack: str) -> None:
    def use() -> Any:
        function = Counter().function()
        STACKS[stack](form(function))(X)
        return function

    assert gone(use)


def test_objects_and_their_classes_are_freed() -> None:
    def use(of_class: bool) -> Any:
        class Local:
            k = 2.0

            def __init__(self) -> None:
                self.w = jnp.ones(())

            @tx.chunked(jax.lax.map, size=2, out="rows")
            def rows(self, x: Any) -> Any:
                return x * self.w

            @tx.vram_resident
            def resident(self, x: Any) -> Any:
                return x * self.w

        instance = Local()
        instance.rows(X)
        instance.resident(X)
        return Local if of_class else instance

    assert gone(lambda: use(of_class=True))
    assert gone(lambda: use(of_class=False))


def test_static_arguments_are_freed_with_the_function() -> None:
    def use() -> Any:
        function = Counter().function()
        wrapped = tx.chunked(jax.lax.map, size=2, in_axes=(0, None), out="rows")(lambda x, f: f(x))
        wrapped(X, function)
        return function

    assert gone(use)


# ---------------------------------------------------------------- clear


@each_stack
def test_after_clear_everything_is_made_again(stack: Callable[[Any], Any]) -> None:
    counter = Counter()
    wrapped = stack(counter.function())
    wrapped(X)
    first = counter.traces
    tx.clear()
    assert np.array_equal(wrapped(X), X * 2)
    assert counter.traces == 2 * first
    wrapped(X)
    assert counter.traces == 2 * first


def test_clear_drops_what_is_resident() -> None:
    wrapped, x = tx.vram_resident(reference), X.copy()
    wrapped(x)
    assert not x.flags.writeable
    tx.clear()
    gc.collect()
    assert x.flags.writeable
    assert wrapped.resident() == []
    x[0] = 5
    assert wrapped(x)[0] == 10


def test_clear_starts_reports_anew() -> None:
    held = tx.assert_relocation(reference)(reference)
    held(X)
    tx.clear()
    assert held.report().calls == 0
    held(X)
    assert held.report().compared == 1


def test_clear_reaches_wrappers_that_were_only_asked() -> None:
    counter = Counter()
    function = counter.function()
    lowered, told, held = chunked(function), tx.assert_relocation(reference)(function), tx.vram_resident(function)
    lowered.lower(X)
    first = counter.traces
    assert told.report().calls == 0
    assert held.resident() == []
    tx.clear()
    lowered.lower(X)
    assert counter.traces == 2 * first
    told(X)
    held(X)
    assert tx.assert_relocation(reference)(function).report().compared == 1
    assert len(tx.vram_resident(function).resident()) == 1
