"""`host_flat`: what grows is found and named, and what is given back is not held against anybody."""

import ctypes
import functools
import gc
import sys
import tracemalloc
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from erythroxy_tx.errors import BudgetError
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.guards import growth
from erythroxy_tx.guards import holders
from erythroxy_tx.guards.growth import Level
from erythroxy_tx.transforms.host_flat import host_flat

MIB = 2**20
_MMAP_THRESHOLD = -3  # as glibc calls it
EIGHT = MIB  # float64 that make 8 MiB


@pytest.fixture(autouse=True, scope="module")
def few_objects() -> Iterator[None]:
    """Each look goes over all objects that the collector knows: those of all other tests would take it long. And large
    arrays are mappings of their own, so that none is put where another test has freed memory.
    """
    if sys.platform == "linux" and (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(_MMAP_THRESHOLD, MIB)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def kept() -> Iterator[list[Any]]:
    """What a program forgets to let go of."""
    found: list[Any] = []
    yield found
    found.clear()


def used(count: int) -> np.ndarray:
    """An array that is in memory, and not only promised."""
    return np.ones(count)


# ---------------------------------------------------------------- blocks


def test_what_stays_is_found_and_named(kept: list[Any]) -> None:
    with pytest.raises(BudgetError) as caught, host_flat("24MiB") as found:
        kept.extend(used(EIGHT) for _ in range(8))
    told = str(caught.value)
    assert told.startswith("with tx.host_flat(): the host's memory grew by 6")
    assert "Expected at most 24.0 MiB: what stayed and the peak are over." in told
    assert "\n  numpy arrays: +64.0 MiB: +8 of f64[1048576], 64.0 MiB\n" in told
    assert "Fix: build it on the device from a small base (tx.vram_resident)" in told
    assert 56 * MIB < found.stayed <= found.peak + MIB
    assert found.anonymous > 56 * MIB
    assert "stayed" in str(found)


def test_a_peak_is_told_from_what_stays() -> None:
    with pytest.raises(BudgetError) as caught, host_flat("24MiB") as found:
        used(8 * EIGHT).sum()
    assert "Expected at most 24.0 MiB: the peak is over." in str(caught.value)
    assert "Fix: work in pieces (tx.chunked)" in str(caught.value)
    assert found.stayed < 24 * MIB < 56 * MIB < found.peak


def test_what_is_small_passes() -> None:
    with host_flat("48MiB") as found:
        block = used(EIGHT)
        assert found.stayed > 4 * MIB
        assert found.peak > 4 * MIB
        del block
    assert found.peak > 4 * MIB
    assert found.stayed < 4 * MIB


def leave_a_cycle() -> None:
    cycle: list[Any] = [used(8 * EIGHT)]
    cycle.append(cycle)


def test_garbage_in_a_cycle_does_not_stay() -> None:
    with pytest.raises(BudgetError, match="the peak is over"), host_flat("24MiB") as found:
        leave_a_cycle()
    assert found.stayed < 24 * MIB


def test_what_the_allocator_keeps_does_not_stay() -> None:
    @host_flat("48MiB")
    def objects() -> int:
        return len([bytes(1000) for _ in range(10_000)])

    for _ in range(12):
        assert objects() == 10_000


def test_an_error_of_the_block_comes_through(kept: list[Any]) -> None:
    def fail() -> None:
        kept.append(used(8 * EIGHT))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), host_flat("24MiB") as found:
        fail()
    assert found.stayed > 56 * MIB


def test_work_that_is_under_way_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is only handed over has its peak before the block ends."""
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: jnp.tanh(y @ y), x))
    slow(jnp.ones((300, 300))).delete()
    result = slow(jnp.ones((300, 300)))
    growth.settle()
    assert result.is_ready()
    monkeypatch.setattr(growth, "settle", lambda: used(8 * EIGHT).sum())
    with pytest.raises(BudgetError, match="the peak is over"), host_flat("24MiB"):
        pass


def test_blocks_inside_of_each_other(kept: list[Any]) -> None:
    with host_flat("200MiB") as outer:
        used(8 * EIGHT).sum()
        with host_flat("200MiB") as inner:
            kept.append(used(2 * EIGHT))
    assert outer.peak > 56 * MIB > inner.peak
    assert outer.stayed > 12 * MIB
    assert inner.stayed > 12 * MIB


# ---------------------------------------------------------------- calls


def test_a_leak_is_found_by_its_sum(kept: list[Any]) -> None:
    @host_flat("24MiB")
    def step(number: int) -> int:
        kept.append(used(EIGHT // 4).reshape(2, -1))  # 2 MiB, by a view of it
        return number

    def loop() -> None:
        for number in range(100):
            step(number)

    with pytest.raises(BudgetError) as caught:
        loop()
    told, number = str(caught.value), caught.value.result
    assert isinstance(number, int)
    assert 4 <= number <= 60  # of 2 MiB; the process itself gives and takes
    assert told.startswith(f"tx.host_flat(test_a_leak_is_found_by_its_sum.<locals>.step), call {number + 1}: ")
    assert ", since call 1. Expected" in told
    assert f"+{number} of f64[262144], " in told
    with pytest.raises(BudgetError):  # it stays so, give or take what the process itself let go of
        loop()
    kept.clear()
    assert step(7) == 7


def test_the_first_call_may_fill_caches(kept: list[Any]) -> None:
    def step() -> None:
        if len(kept) < 2:
            kept.append(used(4 * EIGHT))

    step()
    flat = host_flat("16MiB")(step)
    flat()
    flat()
    kept.clear()
    with pytest.raises(BudgetError, match=r"step\), call 1: .*, since before call 1\."):
        host_flat("16MiB", warmup=0)(step)()
    kept.clear()
    twice = host_flat("16MiB", warmup=2)(step)
    for _ in range(3):
        twice()


def test_calls_that_raise_are_no_warmup(kept: list[Any]) -> None:
    @host_flat("24MiB")
    def step(error: Exception | None) -> None:
        if error is not None:
            raise error
        kept.append(used(5 * EIGHT))

    with pytest.raises(KeyError):
        step(KeyError())
    step(None)
    with pytest.raises(KeyError):
        step(KeyError())
    with pytest.raises(BudgetError, match=r"call 3: .* since call 1"):
        step(None)


def test_a_peak_of_one_call(kept: list[Any]) -> None:
    @host_flat("24MiB")
    def total(count: int) -> float:
        return float(used(count).sum())

    assert total(EIGHT) == total(EIGHT) == EIGHT
    with pytest.raises(BudgetError, match="the peak is over") as caught:
        total(8 * EIGHT)
    assert caught.value.result == 8 * EIGHT
    assert total(EIGHT) == EIGHT


def test_an_error_of_another_guard_is_not_its_own() -> None:
    def fails() -> None:
        raise error

    error = BudgetError("mine")
    error.result = 3
    with pytest.raises(BudgetError, match="mine") as caught:
        host_flat("1MiB", warmup=0)(fails)()
    assert caught.value is error
    assert error.result == 3


def test_arrays_of_jax_are_named(kept: list[Any]) -> None:
    grow = jax.jit(lambda x: x + 1)

    @host_flat("16MiB")
    def step(x: jax.Array) -> jax.Array:
        kept.append(grow(x))
        return kept[-1]

    def loop(x: jax.Array) -> None:
        for _ in range(60):
            x = step(x)

    with pytest.raises(BudgetError, match=r"jax arrays on the CPU: .* of f32\[1048576\], ") as caught:
        loop(jnp.zeros(MIB))
    assert "Fix: let go of arrays that a list or a closure keeps" in str(caught.value)
    assert caught.value.result is kept[-1]
    assert 3 <= len(kept) <= 40  # of 4 MiB; the process itself gives and takes


class Model:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    @host_flat("20MiB")
    def step(self) -> None:
        self.kept.append(used(EIGHT))


def test_each_object_has_its_own_warmup() -> None:
    first, second = Model(), Model()
    first.step()
    second.step()
    first.step()
    with pytest.raises(BudgetError, match=r"Model\.step\), call 3: "):
        first.step()


class Net(eqx.Module):
    w: jax.Array

    @host_flat("24MiB")
    def step(self, kept: list[Any]) -> "Net":
        kept.append(used(EIGHT))
        return Net(self.w + 1)


def test_a_module_that_each_step_replaces_is_one(kept: list[Any]) -> None:
    def loop(net: Net) -> None:
        for _ in range(20):
            net = net.step(kept)

    with pytest.raises(BudgetError, match=r"Net\.step\), call \d+: "):
        loop(Net(jnp.zeros(2)))


# ---------------------------------------------------------------- what is said


def test_lines_are_named_if_python_traces_them(kept: list[Any]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BudgetError) as caught, host_flat("12MiB"):
            kept.append([bytes(1000) for _ in range(100_000)])
    finally:
        tracemalloc.stop()
    assert "allocated at " in str(caught.value)
    assert "test_host_flat.py:" in str(caught.value)


NOTHING = holders.Came(0, 0, 0, [])


@pytest.mark.parametrize(
    ("now", "who", "peak", "fix"),
    [
        ((90, 10, 70, 10), NOTHING, 80, "close mapped files"),
        ((90, 10, 0, 80), NOTHING, 80, "release shared memory"),
        ((90, 90, 0, 0), NOTHING, 80, "tracemalloc.start()"),
        ((90, 90, 0, 0), NOTHING._replace(jax=60), 80, "let go of arrays"),
        ((90, 90, 0, 0), NOTHING._replace(jax=60, numpy=61), 80, "build it on the device"),
        ((90, 90, 0, 0), NOTHING._replace(programs=2, jax=1), 80, "warm up, by a call before"),
        ((90, 90, 0, 0), NOTHING._replace(programs=2, jax=60), 80, "let go of arrays"),
        ((10, 10, 0, 0), NOTHING, 80, "work in pieces"),
        ((10, 10, 0, 0), NOTHING._replace(programs=2), 80, "warm up, by a call before"),
    ],
)
def test_the_fix_is_for_the_largest(now: tuple[int, ...], who: holders.Came, peak: int, fix: str) -> None:
    found = growth.Growth("f", 50, "call 1")
    found._base, found._end, found._peak = (
        Level(10, 10, 0, 0),
        Level(*(10 + n if i < 2 else n for i, n in enumerate(now))),
        peak,
    )
    assert f"\nFix: {fix}" in found._told(who)


def test_where_the_system_tells_less(kept: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(growth, "_STATUS", tmp_path / "none")
    monkeypatch.setattr("erythroxy_tx.host.memory._reset_mark", lambda: False)
    with pytest.raises(BudgetError) as caught, host_flat("24MiB") as found:
        kept.append(used(8 * EIGHT))
    assert "at its peak (sampled every 5 ms)" in str(caught.value)
    assert "the system does not tell of which kind" in str(caught.value)
    assert found.how == "sampled"


def test_a_search_that_takes_too_long_says_so(kept: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "_PATIENCE", -1)
    with pytest.raises(BudgetError, match="numpy arrays: not counted"), host_flat("24MiB"):
        kept.append(used(8 * EIGHT))


def test_programs_are_counted() -> None:
    before = holders.holders()
    jax.jit(lambda x: x * 3 + 1)(2.0)
    assert holders.came(before, holders.holders()).programs >= 1


def test_sharded_arrays_count_each_copy() -> None:
    mesh = jax.make_mesh((2,), ("a",))
    x = jnp.zeros((4, 1000))
    for spec, copies in ((jax.sharding.PartitionSpec("a"), 1), (jax.sharding.PartitionSpec(), 2)):
        assert holders._nbytes(jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))) == copies * x.nbytes


# ---------------------------------------------------------------- refusals


def test_bare_use_is_refused() -> None:
    with pytest.raises(TypeError, match=r'got the function .*f in place of max_growth.*@tx\.host_flat\("100MiB"\)'):

        @host_flat
        def f() -> None: ...


@pytest.mark.parametrize("limit", [0, -1, "much", None, 1.5, True])
def test_a_limit_is_bytes(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"tx\.host_flat: max_growth=.* is not a byte count"):
        host_flat(limit)


@pytest.mark.parametrize("warmup", [-1, 1.0, True, "1"])
def test_a_warmup_is_a_number_of_calls(warmup: Any) -> None:
    with pytest.raises(ValueError, match=r"tx\.host_flat got warmup="):
        host_flat(1, warmup=warmup)


def test_a_block_has_no_warmup() -> None:
    with pytest.raises(ValueError, match="has no calls to count"), host_flat("1MiB", warmup=1):
        pass


def test_inside_of_a_trace_it_is_refused() -> None:
    with pytest.raises(TransformOrderError, match="inside of a trace"):
        jax.jit(host_flat("1MiB")(lambda x: x + 1))(1.0)

    def block(x: Any) -> Any:
        with host_flat("1MiB"):
            return x

    with pytest.raises(TransformOrderError, match="inside of a trace"):
        jax.jit(block)(1.0)


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("fn", [generator, functools.partial(next, iter([generator()]))])
def test_what_runs_later_is_refused(fn: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="whose body runs after the call returned"):
        host_flat("100MiB", warmup=0)(fn)()
    gc.collect()
