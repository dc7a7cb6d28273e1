"""Reads of device arrays: each kind is seen once, with its name and its line, and JAX is left as it was."""

import asyncio
import concurrent.futures
import contextvars
import functools
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

import erythroxy_tx as tx
from erythroxy_tx import _compat
from erythroxy_tx.guards import look
from erythroxy_tx.guards import reads
from tests.guards.kinds import WAYS
from tests.guards.kinds import fresh


def check(name: str) -> None:
    """Count one way of reading."""
    way, (v, x) = WAYS[name], fresh()
    way.do(*fresh())  # what it compiles may read constants of JAX's own
    with tx.host_syncs() as seen:
        way.do(v, x)
    assert (seen.count, {line.kind for line in seen.lines}) == (way.reads, {way.kind} if way.reads else set())
    assert all("kinds.py" in line.line for line in seen.lines)
    assert bool(seen.bytes) == bool(seen.seconds) == bool(way.reads)


@pytest.mark.parametrize("name", WAYS)
def test_each_way_of_reading_is_counted_once(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", WAYS)
def test_each_way_of_reading_is_refused_and_then_works(name: str) -> None:
    way, (v, x) = WAYS[name], fresh()
    way.do(*fresh())
    if way.reads:
        with pytest.raises(tx.HostSyncError) as raised, tx.no_host_sync():
            way.do(v, x)
        assert raised.value.kind == way.kind
        assert f": {way.kind} of " in str(raised.value)
    with tx.no_host_sync(allow=way.reads):
        found = way.do(v, x)
    assert str(found) == str(way.do(v, x))


# ---------------------------------------------------------------------- planted faults

FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def fault(name: str) -> Callable:
    def add(patch: Callable[[pytest.MonkeyPatch], None]) -> None:
        FAULTS[name] = patch

    return add


def standing_in(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Reads go round the hook where JAX's own is left in its place."""
    right, own = _compat.stand_in_reads, vars(_compat.ArrayImpl)[name]

    def wrong(hook: Any) -> None:
        right(hook)
        setattr(_compat.ArrayImpl, name, own)

    monkeypatch.setattr(_compat, "stand_in_reads", wrong)


@fault("values are not seen")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in(monkeypatch, "_value")


@fault("shared memory is not seen")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in(monkeypatch, "__dlpack__")


@fault("buffers are not seen")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(_compat.ArrayImpl, "__buffer__"):
        standing_in(monkeypatch, "__buffer__")
    else:
        monkeypatch.setattr("erythroxy_tx._compat.reads._put_slot", lambda _: None)


@fault("an array is forgotten when it was read")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_is_known", lambda _: False)


@fault("each array of a device_get counts")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    right = look.look
    monkeypatch.setattr(reads, "look", lambda: (found := right()) and (found[0], False))


@fault("host callbacks count")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "_reader", lambda _: None)


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_count_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)

    def fails(way: str) -> bool:
        try:
            check(way)
        except AssertionError:
            return True
        return False

    some = ("float", "asarray", "from_dlpack", "device_get of many", "twice", "callback")
    assert any(map(fails, some))


# ---------------------------------------------------------------------- whose reads


def test_jax_is_left_as_it_was() -> None:
    names = ("_value", "__dlpack__", "__array__", "__buffer__")
    before = [getattr(_compat.ArrayImpl, name, None) for name in names]
    for _ in range(2):
        with tx.host_syncs(), tx.no_host_sync(allow=1):
            float(jnp.float32(2))
        with pytest.raises(KeyError), tx.no_host_sync():
            raise KeyError
    assert [getattr(_compat.ArrayImpl, name, None) for name in names] == before
    assert not reads._INSTALLED
    assert not reads._KNOWN
    x = jnp.arange(3.0)
    assert memoryview(x).nbytes == np.asarray(x).nbytes == 12


def test_another_thread_is_not_watched() -> None:
    values = [jnp.float32(i) + 1 for i in range(4)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool, tx.no_host_sync():
        assert pool.submit(lambda: [float(v) for v in values[:2]]).result() == [1, 2]
        inherited = contextvars.copy_context()
        assert pool.submit(inherited.run, lambda: float(values[2])).result() == 3
    with pytest.raises(tx.HostSyncError), tx.no_host_sync():
        float(values[3])


def test_another_task_is_not_watched() -> None:
    async def guarded(inside: asyncio.Event, done: asyncio.Event) -> int:
        with tx.host_syncs() as seen:
            inside.set()
            await done.wait()
            float(jnp.float32(1) + 1)
        return seen.count

    async def other(inside: asyncio.Event, done: asyncio.Event) -> None:
        await inside.wait()
        float(jnp.float32(1) + 2)
        with tx.no_host_sync(allow=1):
            np.asarray(jnp.float32(1) + 3)
        done.set()

    async def both() -> int:
        events = asyncio.Event(), asyncio.Event()
        return (await asyncio.gather(guarded(*events), other(*events)))[0]

    assert asyncio.run(both()) == 1


def test_blocks_nest_and_each_counts() -> None:
    v = [jnp.float32(i) + 0.5 for i in range(6)]
    with tx.host_syncs() as outer:
        float(v[0])
        with pytest.raises(tx.HostSyncError, match="at most 2 reads"), tx.host_syncs() as inner:
            tx.no_host_sync(allow=2)(lambda: list(map(float, v[1:4])))()
        float(v[4])
    float(v[5])
    assert (outer.count, inner.count) == (4, 2)


def test_a_check_of_the_librarys_own_is_not_counted() -> None:
    f = tx.assert_relocation(lambda x: x * 2)(jax.jit(lambda x: x * 2))
    with tx.no_host_sync():
        f(jnp.arange(3.0))
    assert f.report().compared == 1


def test_a_refusal_that_was_caught_is_raised_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    @tx.no_host_sync
    def careless(fail: bool) -> int:
        try:
            float(jnp.float32(1) + 1)
        except RuntimeError:
            if fail:
                raise KeyError("mine") from None
        return 3

    with pytest.raises(tx.HostSyncError, match="float of"):
        careless(fail=False)
    with pytest.raises(KeyError) as raised:
        careless(fail=True)
    assert "tx.no_host_sync" in raised.value.__notes__[0]
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with pytest.raises(tx.HostSyncError, match="print of"), tx.no_host_sync():
        logging.getLogger("quiet").critical("%s", jnp.float32(1) + 1)


def test_nothing_is_counted_inside_of_a_trace() -> None:
    def f(x):
        with tx.host_syncs():
            return x + 1

    with pytest.raises(tx.TransformOrderError, match="around the call"):
        jax.jit(f)(1.0)


def test_what_a_buffer_of_metrics_reads_says_how_it_is_spared() -> None:
    metrics, losses = tx.MetricBuffer(check_nan=2), [jnp.float32(i) for i in range(3)]
    with pytest.raises(tx.HostSyncError, match=r"tx.MetricBuffer of(.|\n)*check_nan=k is a read"), tx.no_host_sync():
        list(map(metrics.append, losses))


def test_a_read_of_this_library_says_how_it_is_spared() -> None:
    padded = tx.pad_static(8)(lambda x: x * 2)
    with pytest.raises(tx.HostSyncError, match=r"tx.pad_static of f32\[8\](.|\n)*keep_padded=True"), tx.no_host_sync():
        padded(np.ones(5, np.float32))


def test_shards_of_one_array_are_read_together() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    x = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec("d")))
    with tx.host_syncs() as seen:
        assert np.asarray(x).tolist() == list(range(8))
        assert float(x[3]) == 3
    assert (seen.count, seen.bytes) == (2, 36)


def test_a_value_that_the_host_has_already_is_no_read() -> None:
    x = jax.random.key_data(jax.random.key(0))
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    sharded = jax.device_put(np.arange(8.0), NamedSharding(mesh, PartitionSpec("d")))
    _ = np.asarray(sharded)
    with tx.no_host_sync():
        _ = np.asarray(sharded)
    with tx.host_syncs() as seen:
        for _ in range(3):
            _ = np.asarray(x), str(x)
    assert seen.count == 1


def test_the_report_is_by_line() -> None:
    values = [jnp.float32(i) + 0.5 for i in range(5)]
    with tx.host_syncs() as seen:
        for v in values[:4]:
            float(v)
        np.asarray(values[4])
    first, second = seen.lines
    assert (first.kind, first.expression, first.count, first.bytes) == ("float", "float(v)", 4, 16)
    assert (second.kind, second.expression, second.count) == ("np.asarray", "np.asarray(values[4])", 1)
    assert "test_reads.py" in first.line
    told = str(seen)
    assert told.splitlines()[1].startswith("4      float")
    assert "5 reads of the device, 20 B; the host stood still" in told
    assert "tx.MetricBuffer" in told
    assert 0 < seen.seconds <= seen.elapsed
    with tx.host_syncs() as nothing:
        pass
    assert str(nothing).startswith("0 reads")


def test_a_version_in_which_reads_are_not_seen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erythroxy_tx._compat.reads.stand_in_reads", lambda _: None)
    monkeypatch.setattr(_compat, "check_stand_in", _compat.check_stand_in.__wrapped__)
    with pytest.raises(RuntimeError, match="cannot watch reads"), tx.no_host_sync():
        pass


def test_the_line_is_the_users_where_a_library_reads() -> None:
    formatted = functools.partial("{:.2f}".format)
    with tx.host_syncs() as seen:
        formatted(jnp.float32(2) + 1)
        asyncio.run(_formatted(jnp.float32(2) + 2))
    assert all("test_reads.py" in line.line for line in seen.lines)


async def _formatted(v: Any) -> str:
    return str(v)


def test_a_block_that_is_left_watches_nothing() -> None:
    async def read() -> float:
        await asyncio.sleep(0)
        return float(jnp.float32(1) + 1)

    async def main() -> int:
        with tx.no_host_sync():
            task = asyncio.create_task(read())
        with tx.host_syncs() as seen:
            float(jnp.float32(1) + 2)
            await task
        return seen.count

    assert asyncio.run(main()) == 1
    with tx.host_syncs() as seen:
        inside = contextvars.copy_context()
    inside.run(lambda: float(jnp.float32(1) + 3))
    assert seen.count == 0


def test_blocks_may_close_in_another_order() -> None:
    level = jax.config.jax_transfer_guard_device_to_host
    first, second = tx.no_host_sync(), tx.no_host_sync(allow=1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    float(jnp.float32(1) + 1)
    second.__exit__(None, None, None)
    assert jax.config.jax_transfer_guard_device_to_host == level
    assert not reads._INSTALLED


def test_a_report_is_open_once() -> None:
    with tx.host_syncs() as seen:
        with pytest.raises(RuntimeError, match="open already"):
            seen.__enter__()
        float(jnp.float32(1) + 1)
    assert seen.count == 1
    with seen:
        pass
    assert seen.count == 0


FIRST = """
import sys, threading
import jax, jax.numpy as jnp, numpy as np
import erythroxy_tx as tx
from erythroxy_tx import _compat
names = ("_value", "__dlpack__", "__buffer__")
before = [vars(_compat.ArrayImpl).get(name) for name in names[:2]]
sys.setswitchinterval(1e-6)
start, wrong = threading.Barrier(6), []
def work(i):
    values = [jnp.float32(3 * i + k) for k in range(3)]
    start.wait()
    with tx.host_syncs() as seen:
        float(values[0]), np.asarray(values[1]), values[2].item()
    if seen.count != 3:
        wrong.append(seen.count)
threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not wrong, wrong
assert [vars(_compat.ArrayImpl).get(name) for name in names[:2]] == before
assert memoryview(jnp.arange(3.0)).nbytes == 12
"""


def test_threads_that_watch_first_at_once() -> None:
    found = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=False)
    assert not found.stderr
    assert found.returncode == 0
