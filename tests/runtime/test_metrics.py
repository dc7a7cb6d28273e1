"""`MetricBuffer` against a list: what it holds, that nothing is transferred or compiled, its use inside of traces."""

import contextlib
import copy
import math
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.guards.syncs import HostSyncs
from erythroxy_tx.runtime.buffers import ring as rings
from erythroxy_tx.runtime.metrics import MetricBuffer

BLOCK = 8  # a small one compiles in less time


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erythroxy_tx.runtime.buffers.ring._BLOCK", BLOCK)


@jax.jit
def row(i: Any) -> dict[str, Any]:
    return {"loss": i * 0.5, "norm": jnp.stack([i, -i]), "half": i.astype(jnp.bfloat16), "count": i.astype(jnp.int32)}


ROWS = [row(jnp.float32(i)) for i in range(200)]


def filled(size: int | None, count: int, **how: Any) -> MetricBuffer:
    buffer = MetricBuffer(size, **how)
    for each in ROWS[:count]:
        buffer.append(each)
    return buffer


def f32(x: Any) -> jax.Array:
    return jnp.asarray(x, jnp.float32)


# ------------------------------------------------------------------ on the host


@pytest.mark.parametrize("size", [None, 1, 5, 20])
def test_what_is_held(size: int | None) -> None:
    """After each number of appends around a block and a ring, with readings between."""
    buffer = MetricBuffer(size)
    assert (len(buffer), buffer.steps) == (0, 0)
    for count in (1, 2, 7, 8, 9, 17, 63, 64, 65, 128, 200):
        for each in ROWS[buffer.steps : count]:
            buffer.append(each)
        held = np.arange(count)[-(size or count) :]
        found = buffer.numpy()
        assert found["loss"].tolist() == (held * 0.5).tolist()
        assert found["norm"].tolist() == np.stack([held, -held], 1).tolist()
        assert found["half"].dtype == jnp.bfloat16
        assert found["count"].tolist() == held.tolist()
        assert (len(buffer), buffer.steps) == (len(held), count)
        last, mean, low, high = jax.device_get((buffer.last(), buffer.mean(), buffer.min(), buffer.max()))
        assert (last["loss"], low["loss"], high["loss"]) == ((count - 1) * 0.5, held[0] * 0.5, held[-1] * 0.5)
        np.testing.assert_allclose(mean["loss"], held.mean() * 0.5, rtol=1e-6)
        np.testing.assert_allclose(mean["norm"], [held.mean(), -held.mean()], rtol=1e-6)
        assert (low["half"].dtype, low["count"].dtype) == (jnp.bfloat16, np.int32)
        assert (mean["half"].dtype, mean["count"].dtype) == (np.float32, np.float32)


def test_by_name() -> None:
    buffer = MetricBuffer(2)
    for i in range(3):
        buffer.append(loss=f32(i), norm={"a": f32([i, 1]), "b": f32(i)})
    found = buffer.dict()
    assert list(found) == ["loss", "norm['a']", "norm['b']"]
    assert found["loss"] == [1.0, 2.0]
    assert found["norm['a']"].tolist() == [[1, 1], [2, 1]]
    assert repr(buffer) == "tx.MetricBuffer(size=2: loss: f32[], norm['a']: f32[2], norm['b']: f32[])"
    alone = MetricBuffer()
    alone.append(f32(3))
    assert alone.dict() == {"value": [3.0]}


def test_parts_of_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a size a ring that is full is kept, and the next begins."""
    monkeypatch.setattr("erythroxy_tx.runtime.buffers.ring._BYTES", BLOCK * 3 * 4)
    buffer = MetricBuffer()
    values = [f32(i) for i in range(10)]
    for i in range(200):
        buffer.append(values[i % 10])
        if i in (3, 22, 23, 24, 150):
            assert len(buffer.numpy()) == i + 1
    assert len(buffer._full) == 200 // 24
    assert buffer.numpy().tolist() == [i % 10 for i in range(200)]
    assert (float(buffer.mean()), float(buffer.min()), float(buffer.max())) == (4.5, 0, 9)
    copy = jax.tree.map(lambda leaf: leaf, buffer)
    for _ in range(30):
        copy.append(values[1])
    assert (len(copy), len(buffer)) == (230, 200)
    assert copy.numpy()[-31:].tolist() == [9.0] + [1.0] * 30


@pytest.mark.parametrize("size", [None, 5])
def test_no_transfer_and_no_compile_after_the_first_append(size: int | None) -> None:
    filled(size, 1).mean()
    with jax.transfer_guard("disallow"), HostSyncs() as syncs, tx.no_recompile():
        buffer = filled(size, 200)
        assert syncs.count == 0
        buffer.mean()
        assert syncs.count == 0
        assert (len(buffer), buffer.steps) == (min(200, size or 200), 200)
        assert syncs.count == 0
    calls = []
    fetch = jax.device_get
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "device_get", lambda tree: (calls.append(1), fetch(tree))[1])
        buffer.numpy()
    assert len(calls) == 1


def test_weak_types_and_committed_arrays_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # blocks as they are
    kinds = [jnp.asarray(1.0), f32(1), jax.device_put(f32(1), jax.devices()[0]), jax.jit(lambda x: x)(1.0)]
    assert {(each.weak_type, each.committed) for each in kinds} == {(True, False), (False, False), (False, True)}
    buffer = MetricBuffer(70)
    buffer.append(kinds[0])
    with tx.no_recompile():
        for i in range(300):
            buffer.append(kinds[i % 4])
    assert buffer.numpy().tolist() == [1.0] * 70


@pytest.mark.parametrize("place", ["other", "mesh"])
@pytest.mark.parametrize("size", [None, 5])
def test_metrics_of_other_devices(place: str, size: int | None) -> None:
    whole = jax.sharding.NamedSharding(jax.make_mesh((2,), ("x",)), jax.sharding.PartitionSpec())
    values = [jax.device_put(f32(i), jax.devices()[1] if place == "other" else whole) for i in range(10)]
    buffer = MetricBuffer(size)
    with jax.transfer_guard("disallow"):
        for value in values:
            buffer.append(value)
        mean = buffer.mean()
    assert mean.sharding.device_set == values[0].sharding.device_set
    assert buffer.numpy()[-5:].tolist() == [5, 6, 7, 8, 9]


def test_not_a_number_in_what_is_reduced() -> None:
    for size, first, expected in (
        (None, math.nan, "nan, nan, nan"),
        (2, math.nan, "inf, 1.0, inf"),
        (None, 2.0, "inf, 1.0, inf"),
    ):
        buffer = MetricBuffer(size)
        for value in (first, 1.0, math.inf):
            buffer.append(f32(value))
            buffer.mean()
        found = [float(each) for each in (buffer.mean(), buffer.min(), buffer.max())]
        assert str(found) == f"[{expected}]"


def test_means_do_not_wrap_or_stall() -> None:
    values = {"a": jnp.int32(2**31 - 1), "b": jnp.bfloat16(1), "c": jnp.bool_(1), "d": jnp.uint8(200)}
    for size in (None, 300):
        buffer = MetricBuffer(size)
        for _ in range(300):
            buffer.append(values)
        mean = jax.device_get(buffer.mean())
        assert [float(mean[name]) for name in "abcd"] == [np.float32(2**31 - 1), 1, 1, 200]
        assert buffer.max()["c"].dtype == bool


def test_a_form_that_is_given_holds_nothing() -> None:
    buffer = MetricBuffer(3, like={"a": jax.ShapeDtypeStruct((2,), jnp.float32), "b": 0, "c": 0.0})
    assert buffer.numpy()["a"].shape == (0, 2)
    assert np.isnan(buffer.mean()["b"])
    assert np.isnan(buffer.last()["c"])
    assert np.isnan(buffer.max()["c"])
    with pytest.raises(TypeError, match=r"got a: f32\[3\]. Expected what the first append had, a: f32\[2\], b: i32"):
        buffer.append(a=jnp.ones(3), b=jnp.int32(1), c=f32(1))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_copies_share_nothing(copied: Callable[..., Any]) -> None:
    buffer = MetricBuffer(5)
    buffer.append(a=f32(1))
    other = copied(buffer)
    other.append(a=f32(2))
    assert (buffer.dict(), other.dict()) == ({"a": [1.0]}, {"a": [1.0, 2.0]})


def test_an_interrupt_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = rings.Writer.write, []

    def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*args)

    monkeypatch.setattr(rings.Writer, "write", interrupted)
    buffer = MetricBuffer()
    for i in range(30):
        with contextlib.suppress(KeyboardInterrupt):
            buffer.append(f32(i))
    assert buffer.numpy().tolist() == list(range(30))


def test_without_jit() -> None:
    with jax.disable_jit():
        buffer = MetricBuffer(3)
        for i in range(10):
            buffer.append(f32(i))
        assert log(MetricBuffer(2, like=LIKE), f32(1)).dict()["loss"] == [1.0]
        assert (buffer.dict(), float(buffer.mean())) == ({"value": [7.0, 8.0, 9.0]}, 8)


# ------------------------------------------------------------------ NaN


@pytest.mark.parametrize(("k", "size"), [(50, None), (150, 10), (1, 5)])
def test_not_a_number_is_found_within_k_steps(k: int, size: int | None) -> None:
    buffer = MetricBuffer(size, check_nan=k)
    bad, raised, expected = {73: "loss", 160: "norm"}, [], []
    since: list[str] = []
    for i in range(200):
        since += [f"{bad[i]} at step {i}"] if i in bad else []
        if (i + 1) % k == 0 and since:
            expected.append((i, f"tx.MetricBuffer got {', '.join(since)}"))
            since = []
        try:
            buffer.append(
                loss=f32(math.nan if i == 73 else i), norm=f32([0, math.inf if i == 160 else 1]), n=jnp.int32(i)
            )
        except FloatingPointError as error:
            raised.append((i, str(error).partition(":")[0]))
    assert raised == expected
    if since:
        with pytest.raises(FloatingPointError, match="got norm at step 160: NaN or infinite"):
            buffer.dict()
    assert len(buffer.dict()["loss"]) == min(200, size or 200)


def test_a_check_is_one_sync() -> None:
    buffer = MetricBuffer(check_nan=10)
    with HostSyncs() as syncs:
        for _ in range(100):
            buffer.append(f32(1))
    assert syncs.count == 10
    with pytest.raises(ValueError, match="check needs check_nan="):
        MetricBuffer().check()


# ------------------------------------------------------------------ inside of traces

LIKE = {"loss": 0.0, "norm": {"a": jax.ShapeDtypeStruct((2,), jnp.float32)}}


def log(buffer: MetricBuffer, x: Any) -> MetricBuffer:
    buffer.append(loss=x, norm={"a": jnp.stack([x, x])})
    return buffer


def scan(buffer: MetricBuffer) -> MetricBuffer:
    return lax.scan(lambda b, i: (log(b, i), None), buffer, jnp.arange(10.0))[0]


def fori(buffer: MetricBuffer) -> MetricBuffer:
    return lax.fori_loop(0, 10, lambda i, b: log(b, i.astype(jnp.float32)), buffer)


def while_loop(buffer: MetricBuffer) -> MetricBuffer:
    return lax.while_loop(lambda b: b.steps < 10, lambda b: log(b, b.steps.astype(jnp.float32)), buffer)


def cond(buffer: MetricBuffer) -> MetricBuffer:
    def step(buffer: MetricBuffer, i: jax.Array) -> tuple[MetricBuffer, None]:
        return lax.cond(i < 10, log, lambda b, _: b, buffer, i), None

    return lax.scan(step, buffer, jnp.arange(12.0))[0]


@pytest.mark.parametrize("loop", [scan, fori, while_loop, cond, jax.checkpoint(scan)])
def test_it_is_carried(loop: Callable[..., Any]) -> None:
    given = MetricBuffer(4, like=LIKE)
    found = jax.jit(loop)(given)
    assert found.dict()["loss"] == [6.0, 7.0, 8.0, 9.0]
    assert (found.steps, len(found), given.steps) == (10, 4, 0)
    assert found.numpy()["norm"]["a"].tolist() == [[i, i] for i in (6, 7, 8, 9)]
    assert float(found.mean()["loss"]) == 7.5


def test_a_step_that_takes_and_returns_it_compiles_once() -> None:
    step = jax.jit(log)
    buffer = MetricBuffer(3)  # without like= the first append says what a row is
    for i in range(2):
        buffer = step(buffer, f32(i))
    with tx.no_recompile(), jax.transfer_guard("disallow"):
        for value in ROWS[2:4]:
            buffer = step(buffer, value["loss"])
    buffer.append(loss=f32(9), norm={"a": f32([9, 9])})
    assert buffer.dict()["loss"] == [1.0, 1.5, 9.0]
    assert buffer.steps == 5


def test_what_is_reduced_inside() -> None:
    @jax.jit
    def smoothed(buffer: MetricBuffer, x: Any) -> Any:
        log(buffer, x)
        return buffer.mean()["loss"], buffer.last()["loss"], buffer.min()["loss"], buffer.steps, buffer

    mean, last, low, steps, buffer = smoothed(scan(MetricBuffer(4, like=LIKE)), 1.0)
    assert (float(mean), float(last), float(low), int(steps)) == (6.25, 1, 1, 11)
    assert float(jax.jit(lambda b: b.mean()["loss"])(buffer)) == 6.25


def test_one_that_is_made_inside() -> None:
    @jax.jit
    def run(x: Any) -> MetricBuffer:
        buffer = MetricBuffer(3)
        for i in range(4):
            buffer.append(x=x + i)
        return buffer

    with jax.checking_leaks():
        assert run(1.0).dict() == {"x": [2.0, 3.0, 4.0]}


def test_a_batch_of_buffers() -> None:
    found = jax.vmap(log, (None, 0))(MetricBuffer(2, like=LIKE), jnp.arange(3.0))
    found = jax.vmap(log)(found, jnp.arange(3.0) + 10)
    for use in (found.numpy, found.mean, lambda: found.steps, lambda: log(found, f32(1))):
        with pytest.raises(ValueError, match=r"holds a batch of \(3,\) buffers.*leaf\[0\]"):
            use()
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], found).dict()["loss"] for i in range(3)]
    assert each == [[i, i + 10] for i in range(3)]


def test_not_a_number_of_inside_is_found_when_it_is_read() -> None:
    step = jax.jit(log)
    buffer = MetricBuffer(4, like=LIKE, check_nan=100)
    for value in (1.0, math.nan, 2.0):
        buffer = step(buffer, value)
    for read in (buffer.check, jax.tree.map(lambda leaf: leaf, buffer).dict):
        with pytest.raises(FloatingPointError, match=r"got loss at step 1, norm\['a'\] at step 1: NaN"):
            read()
    buffer.check()
    assert str(buffer.dict()["loss"]) == "[1.0, nan, 2.0]"
    with pytest.raises(FloatingPointError, match="loss at step 3"):
        step(buffer, math.inf).check()


@pytest.mark.parametrize(
    "around",
    [
        lambda b: jax.jit(lambda x: log(b, x))(1.0),
        lambda b: jax.vmap(lambda x: log(b, x).steps)(jnp.ones(2)),
        lambda b: jax.grad(lambda x, b: log(b, x).mean()["loss"])(1.0, b),
        jax.jit(lambda b: lax.scan(lambda c, x: (c, log(b, x).steps), 0, jnp.ones(2))),
        jax.jit(lambda b: lax.cond(b.steps > 0, lambda: log(b, 1.0).steps, lambda: b.steps)),
    ],
    ids=["jit", "vmap", "grad", "scan", "cond"],
)
def test_a_buffer_of_outside_is_refused(around: Callable[..., Any]) -> None:
    buffer = scan(MetricBuffer(4, like=LIKE))
    with pytest.raises(tx.TransformOrderError, match=r"a buffer from outside.*leak.*return state, metrics"):
        around(buffer)
    assert buffer.dict()["loss"] == [6.0, 7.0, 8.0, 9.0]


def test_refusals_inside_of_a_trace() -> None:
    with pytest.raises(tx.TransformOrderError, match=r"a buffer that grows.*tx.MetricBuffer\(size="):
        jax.jit(log)(MetricBuffer(), 1.0)
    given = MetricBuffer(4, like=LIKE)
    for read in (given.mean, given.last, given.numpy, given.check, lambda: given.steps, lambda: len(given)):
        with pytest.raises(
            (tx.TransformOrderError, ValueError), match=r"from outside: .* compiled in|needs check_nan="
        ):
            jax.jit(read)()
    with pytest.raises(tx.TransformOrderError, match="was read inside of a trace"):
        jax.jit(lambda b: b.numpy())(given)
    with pytest.raises(tx.TransformOrderError, match=r"was read inside .* and \.steps work inside"):
        jax.jit(len)(given)
    with pytest.raises(TypeError, match=r"got loss: i32\[\], .*Expected what the first append had, loss: f32"):
        jax.jit(log)(given, 1)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("rows", "error", "told"),
    [
        ([1.0], TypeError, "got value: float of the host, .* Expected arrays of JAX"),
        ([{"a": np.float32(1)}], TypeError, r"got a: f32\[\] of the host"),
        ([{"a": "x"}], TypeError, "got a: str"),
        ([{"a": jax.random.key(0)}], TypeError, r"got a: key<fry>\[\]. Expected real numbers"),
        ([jnp.complex64(1)], TypeError, r"got value: c64\[\]. Expected real numbers"),
        ([{}], ValueError, "got no arrays"),
        ([{"a['b']": f32(1), "a": {"b": f32(2)}}], ValueError, "Expected metrics of different names"),
        ([f32(1), f32([1])], TypeError, r"got value: f32\[1\]. Expected what the first append had, value: f32\[\]"),
        ([{"a": f32(1)}, {"b": f32(1)}], TypeError, r"got b: f32\[\]. Expected .*, a: f32\[\]"),
        ([{"a": f32(1), "b": f32(1)}, {"a": f32(1)}], TypeError, r"got a: f32\[\]. .*, a: f32\[\], b: f32\[\]"),
        ([{"a": f32(1)}, {"a": jnp.int32(1)}], TypeError, r"got a: i32\[\]. .*, a: f32\[\]"),
    ],
)
def test_refused_rows(rows: list, error: type[Exception], told: str) -> None:
    buffer = MetricBuffer()
    for each in rows[:-1]:
        buffer.append(each)
    with pytest.raises(error, match=told):
        buffer.append(rows[-1])
    assert buffer.steps == len(rows) - 1


def test_a_metric_of_which_each_device_has_a_part() -> None:
    parts = jax.sharding.NamedSharding(jax.make_mesh((2,), ("x",)), jax.sharding.PartitionSpec("x"))
    with pytest.raises(ValueError, match="of which each device has a part"):
        MetricBuffer().append(jax.device_put(jnp.ones(4), parts))


def test_what_was_donated_is_named() -> None:
    buffer, x = MetricBuffer(), jnp.ones(3)
    buffer.append(norm=x)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    with pytest.raises(RuntimeError, match="got norm, which was deleted after it was appended"):
        buffer.numpy()


def test_refusals() -> None:
    for make in (lambda: MetricBuffer(0), lambda: MetricBuffer(True), lambda: MetricBuffer(check_nan=0.5)):  # noqa: FBT003
        with pytest.raises(ValueError, match="Expected None or a number of steps"):
            make()
    for use in (MetricBuffer().append, lambda: MetricBuffer().append(f32(1), a=f32(1))):
        with pytest.raises(TypeError, match=r"append got (both|nothing)"):
            use()
    for use in (MetricBuffer().numpy, MetricBuffer().mean, MetricBuffer().last):
        with pytest.raises(ValueError, match="nothing was appended"):
            use()


def test_a_thread_may_append_and_another_read() -> None:
    values, metrics = [jnp.float32(i) for i in range(1500)], MetricBuffer()
    metrics.append(loss=values[0])
    done, found = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            found.append(metrics.dict()["loss"])

    reader = threading.Thread(target=read)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reader.start()
        for value in values[1:]:
            metrics.append(loss=value)
    finally:
        done.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert metrics.dict()["loss"] == list(range(1500))
    assert all(each == list(range(len(each))) for each in found)


def test_a_row_in_another_place_leaves_the_others_readable() -> None:
    metrics = MetricBuffer()
    for i in range(3):
        metrics.append(loss=jax.device_put(jnp.float32(i), jax.devices()[0]))
    metrics.append(loss=jax.device_put(jnp.float32(3), jax.devices()[1]))
    with pytest.raises(RuntimeError, match="in one place"):
        metrics.dict()
    assert metrics.dict() == {"loss": [0, 1, 2]}


def test_a_buffer_that_was_fetched_goes_on() -> None:
    metrics = MetricBuffer(4, like={"loss": jnp.float32(0)})
    metrics = jax.device_get(jax.jit(lambda m: m.append(loss=jnp.float32(1)) or m)(metrics))
    metrics.append(loss=jnp.float32(2))
    assert metrics.dict() == {"loss": [1, 2]}
