"""`phase`: what adds up to what, on a clock of the test's own, and what is said of the device."""

import asyncio
import contextvars
import gc
import itertools
import os
import signal
import threading
import weakref
import xml.etree.ElementTree as ET
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.runtime.phase import phase
from erythroxy_tx.runtime.phases import busy
from erythroxy_tx.runtime.phases import record
from erythroxy_tx.runtime.phases.table import windows
from erythroxy_tx.runtime.phases.timeline import Timeline


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


class Device:
    """Work that is ready when the test says so, in place of arrays."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.done = clock, 0

    def work(self) -> threading.Event:
        return threading.Event()

    def finish(self, record: Any, work: threading.Event) -> None:
        self.done += 1
        device = record._root._device
        work.set()
        with device._changed:
            assert device._changed.wait_for(lambda: device.tracked - len(device._waiting) >= self.done, timeout=10)
            assert device._changed.wait_for(
                lambda: device._since is None or device._since == self.clock.now, timeout=10
            )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def device(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(record, "kept", lambda values: [values])
    monkeypatch.setattr(busy, "wait", lambda works: works.pop().wait(10))
    return Device(clock)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == "tx.phase":
            thread.join(10)
            assert not thread.is_alive()


def run(clock: Clock, name: str, seconds: float) -> None:
    with phase(name):
        clock.pass_(seconds)


# ---------------------------------------------------------------- the host


def test_phases_inside_are_parts_and_add_up(clock: Clock) -> None:
    with phase("epoch", clock=clock) as epoch:
        for seconds in (1, 2, 6):
            run(clock, "prepare", seconds)
            with phase("step") as step:
                run(clock, "upload", 0.5)
                clock.pass_(1.5)
        clock.pass_(3)
    assert (epoch.seconds, epoch.rest, epoch.times) == (18, 3, 1)
    assert (epoch["prepare"].seconds, epoch["prepare"].times, epoch["prepare"].median) == (9, 3, 2)
    assert step is epoch["step"]
    assert (step.seconds, step.rest, step["upload"].times) == (6, 4.5, 3)
    clock.pass_(100)
    assert epoch.seconds == 18
    rows = [line.split("  ") for line in str(epoch).splitlines()]
    assert [cell.strip() for cell in rows[3] if cell] == ["prepare", "3", "9 s", "50 %", "2 s", "6 s", "unknown"]
    assert any(row[1:2] == ["(rest)"] and "17 %" in row for row in rows)


def test_what_is_open_counts_until_now(clock: Clock) -> None:
    with phase("epoch", clock=clock) as epoch:
        run(clock, "prepare", 3)
        with phase("step") as step:
            clock.pass_(1)
            assert (epoch.seconds, step.seconds, step.times) == (4, 1, 0)
            assert "step" in str(epoch)
    assert (epoch.seconds, step.times) == (4, 1)


def test_each_outermost_phase_is_its_own(clock: Clock) -> None:
    with phase("epoch", clock=clock) as first:
        run(clock, "prepare", 1)
    with phase("epoch", clock=clock) as second:
        run(clock, "prepare", 2)
    assert (first["prepare"].seconds, second["prepare"].seconds) == (1, 2)


def test_the_same_block_adds_up(clock: Clock) -> None:
    epoch = phase("epoch", clock=clock)
    assert str(epoch) == "epoch: not entered yet"
    for seconds in (1, 2):
        with epoch:
            run(clock, "prepare", seconds)
        clock.pass_(100)
    assert (epoch.seconds, epoch.times, epoch["prepare"].times) == (3, 2, 2)
    assert "prepare" in str(epoch)
    with pytest.raises(AttributeError):
        _ = epoch.nothing


def test_around_a_function(clock: Clock) -> None:
    class Model:
        @phase("encode", clock=clock)
        def encode(self, x: int) -> int:
            """Encodes."""
            clock.pass_(x)
            return x + 1

    assert Model().encode(1) == 2
    assert Model.encode.__doc__ == "Encodes."
    with phase("epoch", clock=clock) as epoch:
        assert Model().encode(x=2) == 3
    assert epoch["encode"].seconds == 2
    assert Model.encode.phase.times == 1  # that it was entered last
    assert epoch["encode"].times == 1


def test_what_calls_itself_is_counted_once(clock: Clock) -> None:
    @phase("walk", clock=clock)
    def walk(depth: int) -> None:
        clock.pass_(1)
        if depth:
            walk(depth - 1)

    with phase("epoch", clock=clock) as epoch:
        walk(3)
    assert (epoch["walk"].seconds, epoch["walk"].times, epoch["walk"].parts) == (4, 4, {})


def test_an_error_closes_it(clock: Clock) -> None:
    def fail() -> None:
        with phase("epoch", clock=clock) as epoch, phase("step"):
            seen.append(epoch)
            clock.pass_(2)
            raise KeyError("mine")

    seen: list[Any] = []
    with pytest.raises(KeyError, match="mine"):
        fail()
    assert (seen[0].seconds, seen[0]["step"].times) == (2, 1)
    with phase("alone", clock=clock) as alone:
        pass
    assert alone not in seen[0].parts.values()


def test_alone_it_keeps_its_own_seconds_and_no_more(clock: Clock) -> None:
    upload = phase("upload", clock=clock)
    for _ in range(5000):
        with upload as record:
            clock.pass_(1)
    assert (record.seconds, record.times, record._timeline, record._device) == (5000, 5000, None, None)
    assert len(record._kept) == 1024


def test_threads_have_phases_of_their_own(clock: Clock) -> None:
    with phase("epoch", clock=clock) as epoch:
        thread = threading.Thread(target=run, args=(clock, "prepare", 1))
        thread.start()
        thread.join()
    assert epoch.parts == {}


def test_many_threads_in_one_phase_lose_nothing() -> None:
    def work() -> None:
        for _ in range(300):
            with phase("step"):
                pass

    with phase("epoch") as epoch:
        contexts = [contextvars.copy_context() for _ in range(4)]
        threads = [threading.Thread(target=context.run, args=(work,)) for context in contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert epoch["step"].times == 1200


def test_tasks_nest_each_in_its_own(clock: Clock) -> None:
    async def task(name: str) -> None:
        with phase(name):
            await asyncio.sleep(0)
            clock.pass_(1)
            with phase("inner"):
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(task("a"), task("b"))

    with phase("epoch", clock=clock) as epoch:
        asyncio.run(both())
    assert {name: list(part.parts) for name, part in epoch.parts.items()} == {"a": ["inner"], "b": ["inner"]}


def test_generators_may_be_closed_in_any_order(clock: Clock) -> None:
    def generator(name: str) -> Iterator[int]:
        with phase(name):
            yield 1
            clock.pass_(1)

    with phase("epoch", clock=clock) as epoch:
        first, second = generator("first"), generator("second")
        next(first)
        next(second)
        assert list(first) == []
        run(clock, "inside", 1)
        assert list(second) == []
        run(clock, "after", 1)
    assert list(epoch.parts) == ["first", "second", "inside", "after"]
    assert not any(part.parts for part in epoch.parts.values())
    with phase("alone", clock=clock) as alone:
        pass
    assert alone.parts == {}


def test_one_that_is_closed_in_another_context_is_closed(clock: Clock) -> None:
    def generator() -> Iterator[int]:
        with phase("generator", clock=clock):
            yield 1

    running = generator()
    next(running)
    contextvars.Context().run(running.close)
    with phase("alone", clock=clock) as alone:
        pass
    assert alone.times == 1


def test_one_that_is_alone_is_no_cycle() -> None:
    gc.collect()
    gc.disable()
    try:
        with phase("upload"):
            pass
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_long_run_stays_small(clock: Clock) -> None:
    with phase("epoch", clock=clock) as epoch:
        for number in range(3000):
            run(clock, "step", 1 + number % 3)
            with phase(f"name {number}"):
                run(clock, f"deep {number}", 0.5)
    assert epoch["step"].times == 3000
    assert len(epoch["step"]._kept) == 1024
    assert epoch["step"].median == 2
    assert len(epoch.parts) <= 201
    assert epoch["(others)"].seconds + epoch["name 7"].seconds > 0
    assert epoch.seconds == pytest.approx(sum(part.seconds for part in epoch.parts.values()))
    assert len(epoch._timeline._lanes) <= 401
    assert len(str(epoch).splitlines()) < 150
    assert len(epoch.svg()) < 300_000


@pytest.mark.parametrize(("seconds", "spiky"), [([1] * 4, None), ([1] * 20, False), ([1] * 9 + [2.1], True)])
def test_flat_or_spiky(clock: Clock, seconds: list[float], spiky: bool | None) -> None:
    with phase("epoch", clock=clock) as epoch:
        for each in seconds:
            run(clock, "step", each)
    assert epoch["step"].is_spiky is spiky


# ---------------------------------------------------------------- the device


def test_busy_is_from_handing_over_to_ready(clock: Clock, device: Device) -> None:
    with phase("epoch", clock=clock) as epoch:
        run(clock, "prepare", 2)
        with phase("step") as step:
            clock.pass_(0.5)  # of which nobody knows when the device began
            first = step.track(device.work())
        with phase("prepare"):
            clock.pass_(3)
            device.finish(epoch, first)  # busy for 3.5
            clock.pass_(1)
        with phase("step"):
            second, third = step.track(device.work()), step.track(device.work())
            clock.pass_(1)
            device.finish(epoch, second)  # 1
            clock.pass_(1)
        clock.pass_(0.5)
    device.clock.pass_(1)
    device.finish(epoch, third)  # 1.5 of it inside of the epoch
    assert epoch.seconds == 9
    assert epoch.busy == pytest.approx(6 / 9)
    assert epoch["prepare"].busy == pytest.approx(3 / 6)
    assert step.busy == 1
    assert "device busy 67 % (upper bound, by 3 tracked values), waiting 33 %" in str(epoch)
    assert epoch._timeline.windows("device", 1) == [pytest.approx(7)]


def test_without_tracked_values_the_device_is_unknown(clock: Clock) -> None:
    with phase("epoch", clock=clock) as epoch:
        run(clock, "step", 1)
        assert epoch.track({"loss": 1.0, "none": None}) == {"loss": 1.0, "none": None}
    assert epoch.busy is epoch["step"].busy is None
    assert "device busy: unknown" in str(epoch)
    assert "unknown. Fix: state, loss = step.track(" in str(epoch)
    assert "busy unknown" in epoch.svg()


def test_what_is_open_knows_the_device_so_far(clock: Clock, device: Device) -> None:
    with phase("epoch", clock=clock) as epoch:
        clock.pass_(1)
        work = epoch.track(device.work())
        clock.pass_(2)
        device.finish(epoch, work)
        clock.pass_(1)
        assert epoch.busy == pytest.approx(3 / 4)


def loop(clock: Clock, device: Device, prepare: float, step: float, between: float = 0, upload: float = 0) -> Any:
    """Ten steps, in each of which the device works for one second."""
    with phase("epoch", clock=clock) as epoch:
        for _ in range(10):
            run(clock, "prepare", prepare)
            if upload:
                run(clock, "upload", upload)
            with phase("step") as record:
                work = record.track(device.work())
                clock.pass_(1)
                device.finish(record, work)
                clock.pass_(step)
            clock.pass_(between)
    return epoch


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (
            {"prepare": 3, "step": 0.5},
            "Most of epoch: prepare, 67 %. The device waits most in prepare, 67 %: host-bound; tx.prefetch",
        ),
        ({"prepare": 0.5, "step": 3}, "Most of epoch: step, 89 %. The device waits most in step, 67 %: the host reads"),
        ({"prepare": 0.5, "step": 0, "between": 3}, "The device waits most in outside of its parts, 67 %: name what"),
        ({"prepare": 0.01, "step": 0.01}, "The device is not waiting"),
        ({"prepare": 1, "step": 1, "upload": 0.003}, "upload 0.1 %: not worth optimising."),
        ({"prepare": 1, "step": 1, "upload": 3}, "upload 50 %: tx.vram_resident"),
    ],
)
def test_what_to_do(clock: Clock, device: Device, seconds: dict[str, float], told: str) -> None:
    assert told in str(loop(clock, device, **seconds))


def test_a_spiky_device_is_told_from_a_flat_one(clock: Clock, device: Device) -> None:
    """Half busy, in two ways: in turns of a fraction of a window, and for long stretches."""

    def busy_in(pieces: int) -> Any:
        with phase("epoch", clock=clock) as epoch:
            for _ in range(pieces):
                run(clock, "generate", 32 / pieces)
                work = epoch.track(device.work())
                clock.pass_(32 / pieces)
                device.finish(epoch, work)
                device.done = device.done
        device.done = 0
        return epoch

    flat, spiky = busy_in(128), busy_in(4)
    assert flat.busy == pytest.approx(0.5)
    assert spiky.busy == pytest.approx(0.5)
    assert "waiting 50 %; flat, 50 % to 50 %" in str(flat)
    assert "waiting 50 %; spiky, 0 % to 100 %" in str(spiky)
    shares, length = windows(spiky)
    assert length == pytest.approx(2)
    assert set(shares) == {0.0, 1.0}


def test_tracking_real_arrays() -> None:
    f = jax.jit(lambda x: (x * 2, x.sum()))
    with phase("epoch") as epoch:
        tree = {"pair": f(jnp.ones(3)), "n": 1}
        assert epoch.track(tree) is tree
    assert 0 < epoch.busy <= 1
    assert (epoch.tracked, epoch._device.lost) == (1, 0)
    assert epoch._device._thread is None  # it does not linger when the outermost phase is over


def test_donated_and_deleted_arrays_are_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    free, real = threading.Event(), busy.wait

    def slow(arrays: list[Any]) -> bool:
        return bool(free.wait(10)) and real(arrays)

    monkeypatch.setattr(busy, "wait", slow)
    with phase("epoch") as epoch:
        state = epoch.track(jnp.ones(3) + 1)
        deleted = epoch.track(jnp.ones(3) + 2)
        jax.jit(lambda x: x + 1, donate_argnums=0)(state)
        deleted.delete()
        last = epoch.track(jnp.ones(3) + 3)
        free.set()
    assert 0 < epoch.busy <= 1
    assert (epoch._device.tracked, epoch._device.lost) == (3, 2)
    assert "3 tracked values, 2 of which were donated before anybody waited" in str(epoch)
    assert not last.is_deleted()
    epoch.track(deleted)
    assert epoch.busy is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore")  # of JAX, that the child may hang
def test_a_child_process_has_the_lock_and_no_thread(device: Device, clock: Clock) -> None:
    with phase("epoch", clock=clock) as epoch:
        work = epoch.track(device.work())
        clock.pass_(1)
        child = os.fork()
        if not child:
            signal.alarm(10)  # or it would hang with all that waits for it
            os._exit(0 if epoch.busy == epoch.seconds == 1 else 1)
        device.finish(epoch, work)
    assert os.waitpid(child, 0)[1] == 0


def test_a_failed_program_ends_the_wait() -> None:
    class Failed:
        def block_until_ready(self) -> None:
            raise RuntimeError("INTERNAL: the program failed")

    assert busy.wait([Failed()])


def test_no_large_array_is_held() -> None:
    large, small, loss = jnp.ones(100_000), jnp.ones(3), jnp.float32(1)
    assert [array is loss for array in busy.kept((large, small, loss))] == [True, False]
    assert [array.size for array in busy.kept([large])] == [100_000]
    assert busy.kept((jnp.float32(0), loss))[0] is loss
    assert len(busy.kept([jnp.float32(i) for i in range(20)])) == 8
    assert busy.kept([1.0, None]) is None
    gone = weakref.ref(small)
    with phase("epoch") as epoch:
        epoch.track(small)
        del small
        assert epoch.busy is not None
        assert gone() is None


# ---------------------------------------------------------------- pictures


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]


def test_the_picture(clock: Clock, device: Device, tmp_path: Path) -> None:
    epoch = loop(clock, device, prepare=1, step=1)
    found = texts(epoch.svg())
    assert found[0] == "epoch: 30 s"
    assert {"prepare", "step", "device, busy at most 33 %"} <= set(found)
    bars = [each for each in ET.fromstring(epoch.svg()).iter() if each.get("class") in ("host", "device")]
    assert len({(each.get("class"), each.get("y")) for each in bars}) == 3
    assert all(float(each.get("x")) + float(each.get("width")) <= 844.1 for each in bars)
    epoch.save(tmp_path / "epoch.svg")
    assert (tmp_path / "epoch.svg").read_text(encoding="utf-8") == epoch.svg()
    with pytest.raises(ValueError, match=r"Expected a name that ends in \.svg"):
        epoch.save(tmp_path / "epoch.png")
    assert epoch._repr_html_().startswith("<svg")
    assert epoch.svg().isprintable() or "\n" in epoch.svg()


def test_any_name_is_valid_xml(clock: Clock) -> None:
    with phase("<a & b>", clock=clock) as epoch:
        run(clock, '"c' + "d" * 100, 1)
    assert texts(epoch.svg())[0] == "<a & b>: 1 s"
    assert "&lt;a" in epoch._repr_html_()


def test_the_timeline_in_plain_characters(clock: Clock) -> None:
    with phase("epoch", clock=clock) as epoch:
        run(clock, "prepare", 30)
        run(clock, "log", 0.01)
        run(clock, "step", 30)
    lines = str(epoch).splitlines()
    bars = {line.partition("|")[0].strip(): line.partition("|")[2] for line in lines if "|" in line}
    assert bars["prepare"].startswith("#" * 29)
    assert bars["step"].endswith("#" * 29 + "|")
    assert bars["log"].strip(" |") == "."
    assert "\x1b" not in str(epoch)


def test_lanes_keep_their_seconds_when_the_axis_grows() -> None:
    timeline = Timeline(10.0)
    total = 0.0
    for number in range(1000):
        begin = 10.0 + number * number / 7
        timeline.add("a", begin, begin + 0.3)
        total += 0.3
    assert sum(timeline.windows("a", 7)) == pytest.approx(total)
    assert sum(timeline.lengths(7)) == pytest.approx(timeline.end)
    assert timeline.windows("b", 3) == [0, 0, 0]


# ---------------------------------------------------------------- refusals


def test_inside_of_a_trace_it_is_refused() -> None:
    @phase("encode")
    def encode(x: Any) -> Any:
        return x + 1

    with pytest.raises(TransformOrderError, match=r"tx.phase\('encode'\) was entered inside of a trace"):
        jax.jit(encode)(1.0)
    assert encode.phase.times == 0
    record = encode.phase._record()
    with pytest.raises(TypeError, match="track got values that are traced"):
        jax.jit(record.track)(1.0)


def late(kind: str) -> Callable[..., Any]:
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None: ...

    return {"generator": generator, "coroutine": coroutine}[kind]


@pytest.mark.parametrize("kind", ["generator", "coroutine"])
def test_what_runs_later_is_refused(kind: str) -> None:
    with pytest.raises(TypeError, match="whose body runs after the call returned"):
        phase("a")(late(kind))
    returned = phase("a")(lambda: itertools.chain() if kind == "coroutine" else late("generator")())
    if kind == "generator":
        with pytest.raises(TypeError, match="whose body runs after the call returned"):
            returned()


@pytest.mark.parametrize("name", [None, "", "a\nb", "\udcff", 3, len])
def test_a_name_is_needed(name: Any) -> None:
    with pytest.raises(TypeError, match="in place of a name"):
        phase(name)


def test_a_phase_of_a_generator_is_not_around_its_consumer(clock: Clock) -> None:
    def reader() -> Iterator[int]:
        for i in range(50):
            with phase("read"):
                clock.pass_(1)
                yield i

    batches = reader()
    with phase("epoch", clock=clock) as epoch:
        for _ in range(50):
            with phase("step"):
                next(batches)
                clock.pass_(2)
        batches.close()
    assert list(epoch.parts) == ["step"]
    assert (epoch["step"].times, epoch["step"].seconds) == (50, 150)
    assert epoch["step"]["read"].times == 50


def test_tasks_that_wait_are_not_around_each_other(clock: Clock) -> None:
    async def io() -> None:
        with phase("io"):
            await asyncio.sleep(0)
            clock.pass_(1)

    async def main() -> None:
        with phase("inner"):
            await asyncio.gather(*(io() for _ in range(3)))

    with phase("epoch", clock=clock) as epoch:
        asyncio.run(main())
    assert "io" not in epoch["inner"].parts
