"""`prefetch` under each fault of a loader: order, errors, hangs, early ends, reused memory, what is left behind."""

import array
import collections
import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from erythroxy_tx.errors import StallError
from erythroxy_tx.errors import ThreadError
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.runtime import prefetch as module
from erythroxy_tx.runtime.fetching.batches import HostBatch
from erythroxy_tx.runtime.fetching.report import PrefetchReport
from erythroxy_tx.runtime.phase import phase
from erythroxy_tx.runtime.prefetch import Prefetch
from erythroxy_tx.runtime.prefetch import prefetch

LONG = 30.0  # seconds, which nothing here takes
ROW = np.zeros(3, np.float32)


def arrays(count: int) -> list[np.ndarray]:
    return [ROW + i for i in range(count)]


def values(batches: Any) -> list[float]:
    return [float(np.asarray(batch)[0]) for batch in batches]


def threads_of(loader: Prefetch) -> list[threading.Thread]:
    return loader._workers._threads


def all_end(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(LONG)
    return not any(thread.is_alive() for thread in threads)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    left = [thread for thread in threading.enumerate() if thread.name.startswith("tx.prefetch")]
    if left:
        gc.collect()  # a caught error's traceback holds the loader
    assert all_end(left)


class Dataset:
    """As torch and grain have it: a length, and items in any order."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Loader:
    """As a DataLoader has it: iterated alone."""

    def __init__(self, items: list[Any], length: int | None = None) -> None:
        self.items, self.length = items, length

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError
        return self.length

    def __iter__(self) -> Iterator[Any]:
        yield from self.items


class Token:
    """A leaf that stays as it is, and can be watched."""


class OldSequence:
    def __getitem__(self, index: int) -> Any:
        return arrays(4)[index]


SOURCES: dict[str, Callable[[], Any]] = {
    "list": lambda: arrays(4),
    "array": lambda: np.stack(arrays(4)),
    "dataset": lambda: Dataset(arrays(4)),
    "iterator": lambda: iter(arrays(4)),
    "generator": lambda: (x for x in arrays(4)),
    "loader": lambda: Loader(arrays(4)),
    "old sequence": OldSequence,
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("source", SOURCES)
def test_the_law(source: str, workers: int) -> None:
    made = prefetch(SOURCES[source](), workers=workers)
    found = list(made)
    assert not any(thread.is_alive() for thread in threads_of(made))
    assert values(found) == [0.0, 1.0, 2.0, 3.0]
    assert all(isinstance(x, jax.Array) and x.dtype == jnp.float32 for x in found)
    assert next(made, None) is None
    prepared = prefetch(SOURCES[source](), workers=workers, prepare=lambda x: {"y": 2 * x})
    assert values(batch["y"] for batch in prepared) == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.parametrize("made", [Dataset, lambda items: (x for x in items)], ids=["any order", "in turn"])
def test_many_tiny_batches_keep_their_order(made: Callable[[list[Any]], Any]) -> None:
    count = 10_000 if made is Dataset else 1000
    loader = prefetch(made(list(range(count))), workers=4, prepare=lambda i: (i, -i))
    assert list(loader) == [(i, -i) for i in range(count)]


def test_batches_that_finish_late_keep_their_place() -> None:
    later = threading.Event()

    def prepare(i: int) -> int:
        if i == 0:
            later.wait(LONG)
        if i == 1:
            later.set()
        return i

    assert list(prefetch(range(6), workers=2, prepare=prepare)) == list(range(6))


def test_leaves() -> None:
    text = np.str_("text")
    batch = {"x": ROW, "n": np.float64(2), "wide": np.arange(3), "s": "a", "t": text, "i": 7, "none": None, "b": [b"b"]}
    (found,) = prefetch([batch])
    assert {key: str(value.dtype) for key, value in found.items() if isinstance(value, jax.Array)} == {
        "x": "float32",
        "n": "float32",
        "wide": "int32",
    }
    assert (found["s"], found["i"], found["none"], found["b"]) == ("a", 7, None, [b"b"])
    assert found["t"] is text
    assert not found["n"].aval.weak_type


def test_devices_and_shardings() -> None:
    second = jax.devices()[1]
    (found,) = prefetch([ROW], device=second)
    assert found.devices() == {second}
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), "x")
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    (found,) = prefetch([np.zeros((4, 3), np.float32)], device=spread)
    assert found.sharding == spread
    with pytest.raises(ValueError, match="evenly divide") as caught:
        list(prefetch([ROW], device=spread))
    assert caught.value.__notes__ == ["In batch 0 of tx.prefetch."]


# ---------------------------------------------------------------------- reused memory


def test_what_is_prepared_late_is_what_was_read() -> None:
    buffer, again = np.zeros(3, np.float32), threading.Event()

    def source() -> Iterator[np.ndarray]:
        yield buffer
        buffer[:] = 1
        again.set()
        yield buffer

    def prepare(x: np.ndarray) -> np.ndarray:
        again.wait(LONG)
        return x

    assert values(prefetch(source(), workers=2, prepare=prepare)) == [0.0, 1.0]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("prepare", [None, lambda x: x[:]], ids=["as it is", "a view"])
def test_a_reused_buffer_reaches_no_batch(workers: int, prepare: Any) -> None:
    def source() -> Iterator[np.ndarray]:
        buffer = np.zeros((16, 2), np.float32)  # aligned as the device wants it, so that it could be taken as it is
        for i in range(50):
            buffer[:] = i
            yield buffer.T

    found = list(prefetch(source(), size=4, workers=workers, prepare=prepare))
    assert [np.unique(x).tolist() for x in found] == [[float(i)] for i in range(50)]


def test_buffers_that_are_no_arrays_are_copied_too() -> None:
    class Tensor:
        """As another library has it."""

        def __init__(self) -> None:
            self.value = np.zeros(2)

        def __array__(self) -> np.ndarray:
            return self.value

    def source() -> Iterator[Any]:
        text, tensor = bytearray(1), Tensor()
        for i in range(20):
            text[0] = i
            tensor.value[:] = i
            yield {"z": text, "a": [(tensor, None)]}

    def look(item: Any) -> list[Any]:
        return [list(item), item["z"][0], item["a"][0][0].value[1], item["a"][0][1]]

    expected = [[["z", "a"], i, float(i), None] for i in range(20)]
    assert list(prefetch(source(), size=4, workers=3, prepare=look)) == expected
    assert [look(item)[1:3] for item in prefetch(source(), size=4)] == [[i, float(i)] for i in range(20)]


def test_a_reused_buffer_of_prepare_reaches_no_batch() -> None:
    out = np.zeros(16, np.float32)
    found = list(prefetch(range(20), prepare=lambda i: np.copyto(out, i) or out))
    assert values(found) == [float(i) for i in range(20)]


# ---------------------------------------------------------------------- errors


def broken(error: BaseException) -> Iterator[np.ndarray]:
    yield from arrays(3)
    raise error


def test_a_dead_source_raises_in_its_place() -> None:
    mine = ValueError("bad sample 3")
    loader = prefetch(broken(mine))
    assert values([next(loader), next(loader), next(loader)]) == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="bad sample 3") as caught:
        next(loader)
    assert caught.value is mine
    assert mine.__notes__ == ["In batch 3 of tx.prefetch."]
    assert "broken" in [frame.name for frame in traceback.extract_tb(mine.__traceback__)]
    assert next(loader, None) is None


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(2), GeneratorExit(), MemoryError("mine")], ids=str)
def test_errors_of_prepare_arrive_in_order(error: BaseException, in_turn: bool) -> None:
    def prepare(i: int) -> int:
        if i >= 2:
            raise error
        return i

    loader = prefetch(iter(range(9)) if in_turn else range(9), workers=3, prepare=prepare)
    assert [next(loader), next(loader)] == [0, 1]
    with pytest.raises(type(error)) as caught:
        next(loader)
    assert caught.value is error
    assert next(loader, None) is None


def test_an_error_does_not_wait_for_others() -> None:
    hang = threading.Event()

    def prepare(i: int) -> int:
        if i:
            hang.wait(LONG)
        raise ValueError(f"item {i}")

    loader = prefetch(range(9), workers=2, prepare=prepare)
    with pytest.raises(ValueError, match="item 0"):
        next(loader)
    assert not hang.is_set()
    hang.set()


def test_stop_iteration_does_not_end_the_loop() -> None:
    def prepare(i: int) -> int:
        return next(iter(())) if i == 2 else i

    loader = prefetch(range(9), prepare=prepare)
    assert [next(loader), next(loader)] == [0, 1]
    with pytest.raises(RuntimeError, match="prepare raised StopIteration") as caught:
        next(loader)
    assert isinstance(caught.value.__cause__, StopIteration)


def test_a_dataset_that_is_shorter_than_its_length_raises() -> None:
    class Short(Dataset):
        def __len__(self) -> int:
            return 9

    loader = prefetch(Short(arrays(3)), workers=2)
    assert values([next(loader), next(loader), next(loader)]) == [0.0, 1.0, 2.0]
    with pytest.raises(IndexError) as caught:
        next(loader)
    assert caught.value.__notes__ == ["In batch 3 of tx.prefetch."]


def test_a_loader_that_is_shorter_than_its_length_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert values(prefetch(Loader(arrays(3), 9))) == [0.0, 1.0, 2.0]
        assert values(prefetch(Loader(arrays(3), 2))) == [0.0, 1.0, 2.0]
    assert [record.getMessage() for record in caplog.records] == [
        "tx.prefetch: the source ended after 3 batches; its len() is 9"
    ]


@pytest.mark.parametrize(
    ("leaf", "error", "told"),
    [
        (np.array([2**40]), OverflowError, r"batch 1\['a'\]\[0\]: i64\[1\] with values from 1099511627776"),
        (np.int64(2**40), OverflowError, r"batch 1\['a'\]\[0\]: i64\[\] with values"),
        (np.ma.masked_array([1.0], [True]), TypeError, r"batch 1\['a'\]\[0\]: MaskedArray"),
        (np.array([None]), TypeError, r"batch 1\['a'\]\[0\]: ndarray of dtype object"),
        (np.datetime64("2020-01-01"), TypeError, r"batch 1\['a'\]\[0\]: ndarray of dtype datetime64"),
        (np.ones(3, ">f4"), TypeError, "not a valid JAX array type"),
    ],
)
def test_what_would_change_on_the_way_is_refused(leaf: Any, error: type, told: str) -> None:
    loader = prefetch([{"a": [ROW]}, {"a": [leaf]}])
    next(loader)
    with pytest.raises(error, match=told) as caught:
        next(loader)
    assert caught.value.__notes__ == ["In batch 1 of tx.prefetch."]


def test_another_width_is_refused() -> None:
    loader = prefetch([ROW])
    with jax.enable_x64(True):  # noqa: FBT003
        with pytest.raises(RuntimeError, match="made with jax_enable_x64=False, and read with True"):
            next(loader)
        (found,) = prefetch([np.array([2**40])])
    assert (found.dtype, np.asarray(found).tolist()) == (jnp.int64, [2**40])


# ---------------------------------------------------------------------- JAX in a thread


def test_jax_in_a_thread_is_refused_in_its_place() -> None:
    double = jax.jit(lambda x: x * 2)
    double(ROW)

    def inner(x: np.ndarray) -> Any:
        return double(x)

    def prepare(x: np.ndarray) -> Any:
        return inner(x) if x[0] else x

    loader = prefetch(arrays(4), workers=2, prepare=prepare)
    next(loader)
    with pytest.raises(ThreadError, match=r"test_prefetch\.py:\d+ \(.*inner\)") as caught:
        next(loader)
    assert caught.value.__notes__ == ["In batch 1 of tx.prefetch."]
    cause = caught.value.__cause__
    assert isinstance(cause, ThreadError)
    assert "prepare" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
    assert next(loader, None) is None


def test_jax_in_the_source_and_in_prepare_alone() -> None:
    with pytest.raises(ThreadError, match="an upload of float32"):
        next(prefetch(jnp.asarray(x) for x in arrays(1)))
    with pytest.raises(ThreadError, match=r"array_constructors\.py:\d+ \(asarray\)"):
        next(prefetch(arrays(1), prepare=jnp.asarray))


def test_an_array_on_the_device_is_refused() -> None:
    with pytest.raises(ThreadError, match=r"got batch 0\['x'\]: f32\[3\], which is on the device"):
        next(prefetch([{"x": jnp.asarray(ROW)}]))


# ---------------------------------------------------------------------- hangs


def test_a_slow_disk_stalls_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = threading.Event()
    shown = []
    monkeypatch.setattr(module, "_SIGNALS", 0.005)
    monkeypatch.setattr(module, "progress", lambda text: contextlib.nullcontext(shown.append(text)))

    def read_slowly() -> Iterator[np.ndarray]:
        yield ROW
        disk.wait(LONG)
        yield from arrays(3)

    loader = prefetch(read_slowly(), timeout=0.02)
    next(loader)
    for _ in range(2):
        with pytest.raises(
            StallError, match=r"waited for batch 1 for timeout=0\.02 s\. tx\.prefetch-0 has been in next"
        ):
            next(loader)
    with pytest.raises(TimeoutError, match=r"test_prefetch\.py:\d+ \(.*read_slowly\)\. Expected a batch in time"):
        next(loader)
    assert shown == ["tx.prefetch waits for batch 1"] * 3
    disk.set()
    monkeypatch.setattr(loader, "_timeout", LONG)
    assert values(loader) == [0.0, 1.0, 2.0]


def test_a_stall_tells_of_all_that_work() -> None:
    disk, all_in = threading.Event(), threading.Barrier(3)

    def prepare(i: int) -> int:
        all_in.wait(LONG)
        disk.wait(LONG)
        return i

    loader = prefetch(range(2), workers=2, prepare=prepare, timeout=0.01)
    all_in.wait(LONG)
    with pytest.raises(
        StallError, match=r"in prepare of batch 0 for .*; tx\.prefetch-\d has been in prepare of batch 1"
    ):
        next(loader)
    disk.set()


def test_close_leaves_behind_what_hangs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "_CLOSING", 0.01)
    inside, hang = threading.Event(), threading.Event()
    made = []

    def hangs(_: int) -> Token:
        inside.set()
        hang.wait(LONG)
        token = Token()
        made.append(weakref.ref(token))
        return token

    loader = prefetch(range(2), prepare=hangs)
    inside.wait(LONG)
    with caplog.at_level(logging.WARNING):
        loader.close()
        loader.close()
    (record,) = caplog.records
    assert "the thread tx.prefetch-0 at " in record.getMessage()
    assert "hangs" in record.getMessage()
    assert next(loader, None) is None
    hang.set()
    assert all_end(threads_of(loader))
    assert made[0]() is None


def test_a_source_that_hangs_is_closed_by_the_thread_in_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_CLOSING", 0.01)
    inside, hang = threading.Event(), threading.Event()
    threads = []

    def source() -> Iterator[int]:
        try:
            threads.append(threading.current_thread())
            inside.set()
            hang.wait(LONG)
            yield 1
        finally:
            threads.append(threading.current_thread())

    loader = prefetch(source(), workers=2)
    inside.wait(LONG)
    loader.close()
    hang.set()
    assert all_end(threads_of(loader))
    assert len(threads) == 2
    assert threads[0] is threads[1]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_interrupt_reaches_the_user_and_loses_nothing() -> None:
    handed, disk = threading.Event(), threading.Event()
    main = threading.get_ident()

    def source() -> Iterator[np.ndarray]:
        yield ROW
        handed.wait(LONG)
        while not loader._workers._arrived._waiters:  # until the consumer waits
            disk.wait(0.001)
        signal.pthread_kill(main, signal.SIGINT)
        disk.wait(LONG)
        yield ROW + 1

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        loader = prefetch(source())
        next(loader)
        handed.set()
        with pytest.raises(KeyboardInterrupt):
            next(loader)
    finally:
        signal.signal(signal.SIGINT, before)
    disk.set()
    assert values([next(loader)]) == [1.0]
    loader.close()


def test_an_interrupt_in_the_middle_of_next_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = prefetch(range(5))
    advance, interrupts = loader._workers.advance, iter([True, False, True, True, False])

    def interrupted() -> None:
        if next(interrupts, False):
            raise KeyboardInterrupt
        advance()

    monkeypatch.setattr(loader._workers, "advance", interrupted)
    found = []
    while len(found) < 5:
        with contextlib.suppress(KeyboardInterrupt):
            found.append(next(loader))
    assert found == [0, 1, 2, 3, 4]
    assert next(loader, None) is None


def test_threads_that_died_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(module.Workers, "_finish", lambda *_: 1 / 0)
    with pytest.raises(RuntimeError, match="no thread left, and no batch 0"):
        next(prefetch(range(3)))


# ---------------------------------------------------------------------- early ends


@pytest.mark.parametrize("how", ["break", "close", "with", "error in with", "end", "error", "unused"])
@pytest.mark.parametrize("workers", [1, 3])
def test_nothing_is_left(how: str, workers: int) -> None:
    tokens: list[weakref.ref] = []
    closed_by = []

    def source() -> Iterator[Token]:
        try:
            for _ in range(4 if how == "end" else 1000):
                token = Token()
                tokens.append(weakref.ref(token))
                yield token
            del token
        finally:
            closed_by.append(threading.current_thread())

    def prepare(token: Token) -> Token:
        if how == "error" and len(tokens) > 4:
            raise ValueError
        return token

    def use() -> tuple[weakref.ref, list[threading.Thread]]:
        loader = prefetch(source(), workers=workers, prepare=prepare)
        found = weakref.ref(loader), threads_of(loader)
        if how == "unused":
            return found
        with contextlib.suppress(ValueError), loader if "with" in how else contextlib.nullcontext():
            for step, _ in enumerate(loader):
                if step == 2 and how == "error in with":
                    raise ValueError
                if step == 2 and how not in ("end", "error"):
                    break
        if how == "close":
            loader.close()
        return found

    collected, threads = use()
    assert collected() is None
    assert all_end(threads)
    assert not [ref for ref in tokens if ref() is not None]
    if tokens:
        (by,) = closed_by
        assert by in threads


def test_a_loader_holds_nothing_once_it_is_closed() -> None:
    tokens: list[weakref.ref] = []

    def prepare(_: int) -> Token:
        token = Token()
        tokens.append(weakref.ref(token))
        return token

    source = Dataset(list(range(100)))
    held = weakref.ref(source)
    loader = prefetch(source, prepare=prepare)
    del source
    next(loader)
    loader.close()
    assert held() is None
    assert tokens
    assert not [ref for ref in tokens if ref() is not None]
    assert next(loader, None) is None


def test_iterators_that_were_given_stay_open() -> None:
    class File:
        closed = False

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            return 1

        def close(self) -> None:
            self.closed = True

    file, other = File(), File()
    with prefetch(file) as loader:
        assert next(loader) == 1
    assert not file.closed

    class Opens:
        def __iter__(self) -> Iterator[int]:
            return other

    with prefetch(Opens()) as loader:
        assert next(loader) == 1
    assert other.closed


@pytest.mark.parametrize(
    ("end", "told"), [(lambda: {}["gone"], "KeyError: 'gone'"), (lambda: jnp.zeros(3), "ThreadError")]
)
def test_a_source_that_cannot_be_closed_is_told(
    end: Callable[[], Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    def source() -> Iterator[int]:
        try:
            yield from range(9)
        finally:
            end()

    with caplog.at_level(logging.ERROR), prefetch(source()) as loader:
        next(loader)
    assert "the source could not be closed" in caplog.text
    assert told in caplog.text


def test_the_interpreter_ends() -> None:
    code = """if True:
        import threading
        from erythroxy_tx.runtime import prefetch as module
        module._EXITING = 0.1
        def source():
            try:
                yield from range(100)
            finally:
                print("closed", flush=True)
        waiting = module.prefetch(source())
        inside = threading.Event()
        def hangs(i):
            inside.set()
            threading.Event().wait()
        hanging = module.prefetch(range(9), prepare=hangs)
        inside.wait()
        print(next(waiting), flush=True)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\nclosed\n", "")


# ---------------------------------------------------------------------- how far ahead


@pytest.mark.parametrize(("size", "workers"), [(1, 1), (3, 2)])
def test_no_more_is_made_than_fits(size: int, workers: int) -> None:
    begun = 0
    lock = threading.Lock()

    def prepare(i: int) -> int:
        nonlocal begun
        with lock:
            begun += 1
        return i

    loader = prefetch(range(100), size, workers, prepare=prepare)
    for taken in range(5):
        held = loader._workers
        while held._doing or held._begun - held._taken < size + workers:  # until every worker waits for room
            threading.Event().wait(0.001)
        assert begun == held._taken + size + workers
        assert next(loader) == taken
        assert held._taken <= taken + 2  # the one that was handed out, and one ahead


def test_the_next_batch_is_up_before_it_is_asked_for() -> None:
    both = threading.Event()

    def source() -> Iterator[np.ndarray]:
        yield ROW
        yield ROW + 1
        both.set()
        yield ROW + 2

    loader = prefetch(source(), size=3)
    both.wait(LONG)
    next(loader)
    (ahead,) = loader._up
    assert isinstance(ahead.batch, jax.Array)
    assert next(loader) is ahead.batch


def test_two_consumers_share_the_batches() -> None:
    loader = prefetch(range(2000), size=8, workers=2)
    found: list[list[int]] = [[], []]
    consumers = [threading.Thread(target=mine.extend, args=(loader,)) for mine in found]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(LONG)
    assert sorted(found[0] + found[1]) == list(range(2000))
    assert found[0] == sorted(found[0])


def test_one_consumer_at_a_time_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = threading.Lock()

    def upload(self: HostBatch, device: Any) -> Any:
        assert inside.acquire(blocking=False)
        threading.Event().wait(0.001)
        inside.release()
        return self.leaves[0]

    monkeypatch.setattr(HostBatch, "upload", upload)
    loader = prefetch(range(20))
    found: list[int] = []
    consumers = [threading.Thread(target=found.extend, args=(loader,)) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(LONG)
    assert sorted(found) == list(range(20))


def test_one_thread_at_a_time_reads_an_iterator() -> None:
    class Watched:
        inside = threading.Lock()
        count = 0

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            assert self.inside.acquire(blocking=False)
            self.count += 1
            threading.Event().wait(0.001)
            self.inside.release()
            if self.count > 20:
                raise StopIteration
            return self.count

    assert list(prefetch(Watched(), workers=4)) == list(range(1, 21))


# ---------------------------------------------------------------------- where it is used


def test_a_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = prefetch(range(3))
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: -1)
        with pytest.raises(RuntimeError, match="its threads are not in this fork"):
            next(loader)
        with loader._workers._lock:
            loader.close()
            loader._workers.stop()
        assert not loader._workers.closed
    assert list(loader) == [0, 1, 2]


def test_next_inside_of_a_trace_is_refused() -> None:
    loader = prefetch(arrays(2))
    with pytest.raises(TransformOrderError, match="would become a constant"):
        jax.jit(lambda: next(loader))()
    assert values(loader) == [0.0, 1.0]


def test_the_upload_is_allowed_under_a_guard() -> None:
    with jax.transfer_guard("disallow_explicit"):
        (found,) = prefetch([ROW])
    assert values([found]) == [0.0]


@pytest.mark.parametrize(
    ("source", "how", "error", "told"),
    [
        ({"x": ROW}, {}, TypeError, r"got source: dict\. Expected an iterable .* Fix: source\.values\(\)"),
        ("name.npz", {}, TypeError, "got source: str"),
        (ROW.tolist, {}, TypeError, "Fix: call it, if it is a generator function"),
        ([], {"size": 0}, ValueError, "got size=0"),
        ([], {"workers": 1.5}, ValueError, r"got workers=1\.5"),
        ([], {"workers": True}, ValueError, "got workers=True"),
        ([], {"prepare": 3}, TypeError, "got prepare=int"),
        ([], {"device": "cpu"}, TypeError, r"got device='cpu'.* Fix: jax\.devices\(\)\[0\]"),
        ([], {"timeout": 0}, ValueError, "got timeout=0"),
        ([], {"timeout": float("nan")}, ValueError, "got timeout=nan"),
    ],
)
def test_bad_parameters(source: Any, how: dict[str, Any], error: type, told: str) -> None:
    with pytest.raises(error, match=told):
        prefetch(source, **how)


def test_an_array_of_jax_is_no_source() -> None:
    with pytest.raises(TypeError, match=r"got source: f32\[3\]"):
        prefetch(jnp.asarray(ROW))


# ---------------------------------------------------------------------- grain


class MapDataset(Dataset):
    """What is left out by a filter of grain's is None, and its own iterator leaves it out."""


MapDataset.__module__ = "grain._src.python.dataset.dataset"


@pytest.mark.parametrize("workers", [1, 3])
def test_what_grain_filters_is_left_out(workers: int) -> None:
    source = MapDataset([i if i % 3 == 2 else None for i in range(100)])
    assert list(prefetch(source, size=1, workers=workers)) == list(range(2, 100, 3))
    assert list(prefetch(Dataset([None, 1]))) == [None, 1]


@pytest.mark.parametrize("workers", [1, 3])
def test_grain(workers: int) -> None:
    grain = pytest.importorskip("grain")
    source = grain.MapDataset.source(arrays(12)).filter(lambda x: x[0] % 2 == 0)
    assert values(prefetch(source, workers=workers)) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    batches = source.to_iter_dataset().batch(2)
    assert [np.asarray(x)[:, 0].tolist() for x in prefetch(batches, workers=workers)] == [[0, 2], [4, 6], [8, 10]]


# ---------------------------------------------------------------------- the report


def test_the_report_counts() -> None:
    now = 0.0

    def source() -> Iterator[np.ndarray]:
        nonlocal now
        for x in arrays(5):
            now += 1.0
            yield x

    def prepare(x: np.ndarray) -> np.ndarray:
        nonlocal now
        now += 0.5
        return x

    loader = Prefetch(source(), 8, 1, prepare=prepare, clock=lambda: now)
    assert loader.report().advice == "No batch was consumed."
    threads_of(loader)[0].join(LONG)
    list(loader)
    report = loader.report()
    assert (report.batches, report.nbytes) == (5, 60)
    assert report.seconds == {"next": 5.0, "prepare": 2.5, "copy": 0.0, "upload": 0.0}
    assert (report.each("next"), report.starved, report.full) == (1.0, 0.0, 0.0)
    assert "Nothing to do." in str(report)


def report(**of: Any) -> PrefetchReport:
    seconds = {"next": 1.0, "prepare": 1.0, "copy": 0.0, "upload": 0.0} | of.pop("seconds", {})
    given = {"batches": 10, "elapsed": 10.0, "nbytes": 1024, "starved": 5.0, "full": 0.0, "workers": 2, "in_turn": True}
    return PrefetchReport(**given | of, seconds=seconds)


def test_the_report_advises() -> None:
    assert report(starved=0.1).advice.startswith("The consumer is the bottleneck")
    assert report(starved=0.1, seconds={"upload": 6.0}).advice.startswith("The upload is the bottleneck")
    assert report(seconds={"next": 8.0}).advice.startswith("The source is the bottleneck")
    assert "workers=4" in report(seconds={"prepare": 8.0}).advice
    assert "workers=4" in report(seconds={"next": 8.0}, in_turn=False).advice
    assert str(report()).splitlines()[:3] == [
        "tx.prefetch: 10 batches, 1.0 KiB up, 10.000 s",
        "  consumer waited for a batch        5.000 s  50% of its time",
        "  workers waited for room            0.000 s  2 together",
    ]
    assert f"  {'next':<28}{'100.000 ms':>14}  a batch" in str(report())


def test_nothing_is_read_after_an_error() -> None:
    class Source:
        reads = 0

        def __iter__(self) -> "Source":
            return self

        def __next__(self) -> np.float32:
            self.reads += 1
            if self.reads == 4:
                raise OSError("once")
            if self.reads == 10:
                raise StopIteration
            return np.float32(self.reads)

    source, found = Source(), []
    for _ in range(2):
        with contextlib.suppress(OSError), prefetch(source, size=4, workers=2) as loader:
            for batch in loader:
                found.append(float(batch))  # noqa: PERF401  # what came before the error stays
    assert found == [1, 2, 3, 5, 6, 7, 8, 9]


def test_a_second_loop_over_what_has_ended_is_refused() -> None:
    loader = prefetch([np.zeros(1)])
    assert len(list(loader)) == 1
    with pytest.raises(RuntimeError, match="would give nothing"):
        list(loader)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["array", "deque", "namespace"])
def test_items_that_hide_a_buffer_are_copied(workers: int, kind: str) -> None:
    def source() -> Iterator[Any]:
        buffer = array.array("f", [0, 0])
        made = {"array": buffer, "deque": collections.deque([buffer]), "namespace": types.SimpleNamespace(x=buffer)}
        for i in range(6):
            buffer[0] = i
            yield made[kind]

    def first(item: Any) -> np.float32:
        held = {"array": lambda: item, "deque": lambda: item[0], "namespace": lambda: item.x}[kind]()
        return np.float32(held[0])

    with prefetch(source(), 4, workers, prepare=first) as loader:
        assert [float(each) for each in loader] == list(range(6))


def test_a_view_of_memory_in_a_batch_is_refused() -> None:
    with pytest.raises(TypeError, match="which cannot be copied"):
        next(prefetch([{"x": np.ones(1), "raw": memoryview(bytearray(3))}]))


def test_mappings_keep_their_order() -> None:
    def source() -> Iterator[Any]:
        found = collections.defaultdict(list)
        found["b"], found["a"] = np.ones(2, np.float32), -np.ones(2, np.float32)
        yield found

    for workers in (1, 2):
        (made,) = prefetch(source(), workers=workers, prepare=lambda item: np.concatenate(list(item.values())))
        assert made.tolist() == [1, 1, -1, -1]


def test_uploads_are_a_phase() -> None:
    with phase("epoch") as epoch:
        assert len(list(prefetch([np.zeros(1)] * 3))) == 3
    assert epoch["upload"].times == 3
