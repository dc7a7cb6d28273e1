"""Device copies of host arrays: never stale, shared, dropped with the array, within the budget."""

import concurrent.futures
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import erythroxy_tx as tx
import erythroxy_tx.core.residency
from erythroxy_tx.core.residency import Residency


def arange(count: int = 8, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(count).astype(dtype)


def resident(**parameters: Any) -> Any:
    return tx.vram_resident(lambda *args: jax.tree.map(jnp.asarray, args), **parameters)


def names_of(f: Any) -> list[str]:
    return [entry.name for entry in f.resident()]


@pytest.fixture
def place() -> Callable[..., list[Any]]:
    residency = Residency("tx.vram_resident(f)", None, None)
    return lambda *leaves: residency.place(leaves, lambda: [f"x{i}" for i in range(len(leaves))])


def test_one_copy_for_one_array() -> None:
    f, x = resident(), arange()
    f(x)
    (entry,) = f.resident()
    f(x)
    assert f.resident() == [entry]
    assert f.resident()[0].value is entry.value
    assert entry.nbytes == 32
    assert repr(entry) == "args[0]: f32[8], 32 bytes"


def test_a_new_array_with_the_same_content_has_its_own_copy() -> None:
    f, x, y = resident(), arange(), arange()
    f(x, y)
    first, second = f.resident()
    assert first.value is not second.value
    assert names_of(f) == ["args[0]", "args[1]"]


def test_two_functions_share_a_copy() -> None:
    f, g, x = resident(), resident(), arange()
    f(x)
    g(x)
    assert f.resident()[0].value is g.resident()[0].value
    f.evict(x)
    assert f.resident() == []
    assert not x.flags.writeable
    g.evict()
    assert x.flags.writeable


def test_a_freed_array_frees_its_copy() -> None:
    f, x = resident(), arange()
    f(x)
    value, hold = weakref.ref(f.resident()[0].value), weakref.ref(f.resident()[0].hold)
    del x
    assert f.resident() == []
    assert value() is None
    assert hold() is None


def test_arrays_in_a_cycle_are_freed_too() -> None:
    f, box = resident(), [arange()]
    box.append(box)  # type: ignore[arg-type]
    f(box[0])
    value = weakref.ref(f.resident()[0].value)
    del box
    gc.collect()
    assert value() is None
    assert f.resident() == []


def test_an_identity_that_is_used_again_is_never_served_the_old_copy() -> None:
    f = resident()
    for value in range(20):  # arrays of one size get the same address again and again
        x = np.full(1000, value, np.float32)
        assert f(x)[0][0] == value
        del x
    assert f.resident() == []


def test_it_is_writable_again_when_the_wrapper_dies() -> None:
    f, x = resident(), arange()
    f(x)
    assert not x.flags.writeable
    del f
    gc.collect()
    assert x.flags.writeable


def test_uploads_leave_nothing_behind() -> None:
    f, x = resident(), arange()
    for _ in range(3):
        f(x)
        f.evict(x)
    assert x.flags.writeable
    assert weakref.getweakrefcount(x) <= 2  # those of dead holds are dropped


# ---------------------------------------------------------------- stale


def test_a_stale_array_stays_stale_until_it_is_replaced() -> None:
    f, x = resident(), arange()
    alias = x[:]
    f(x)
    alias[0] = 7
    for _ in range(3):
        with pytest.raises(tx.StaleArrayError) as caught:
            f(x)
    message = str(caught.value)
    for part in ("tx.vram_resident", "args[0]: f32[8]", "was changed through a view", "Expected", "Fix: .replace("):
        assert part in message
    alias[0] = 0  # as it was: still not trusted
    with pytest.raises(tx.StaleArrayError):
        f(x)
    alias[0] = 9
    f.replace(x, x)
    assert f(x)[0][0] == 9


def test_a_stale_array_is_copied_again_after_evict() -> None:
    f, g, x = resident(), resident(), arange()
    f(x)
    g(x)
    x.flags.writeable = True
    x[0] = 9
    with pytest.raises(tx.StaleArrayError, match="was made writable"):
        f(x)
    x.flags.writeable = False
    with pytest.raises(tx.StaleArrayError):
        f(x)
    f.evict(x)
    assert f(x)[0][0] == 9  # a copy of its own, though g holds the old one
    with pytest.raises(tx.StaleArrayError):
        g(x)
    g.evict()
    assert g(x)[0][0] == 9


def test_replacing_in_place_makes_a_new_copy_though_another_function_holds_the_old_one() -> None:
    f, g, x = resident(), resident(), arange()
    f(x)
    g(x)
    kept = f.resident()
    x.flags.writeable = True
    x[0] = 9
    x.flags.writeable = False
    f.replace(x, x)
    assert f(x)[0][0] == 9
    with pytest.raises(tx.StaleArrayError, match="copied again"):
        g(x)
    g.replace(x, x)
    assert g(x)[0][0] == 9
    assert f(x)[0][0] == 9
    assert len(kept) == 1


def test_old_entries_do_not_bring_an_old_copy_back() -> None:
    f, x = resident(), arange()
    alias = x[:]
    f(x)
    kept = f.resident()
    f.evict()
    alias[0] = 9
    assert f(x)[0][0] == 9
    assert len(kept) == 1


def test_replace_swaps_a_base() -> None:
    f, old, new = resident(), arange(), arange() + 1
    f(old)
    f.replace(old, new)
    assert old.flags.writeable
    assert names_of(f) == ["args[0]"]
    assert f(new)[0][0] == 1


def test_replace_refuses_what_it_cannot_swap() -> None:
    f, x = resident(), arange()
    with pytest.raises(
        ValueError, match=r"replace got old=f32\[8\], which is not on the device.*nothing is resident.*Fix"
    ):
        f.replace(x, x)
    f(x)
    with pytest.raises(
        ValueError, match=r"replace got new=i32\[8\] for args\[0\]: f32\[8\].*same shape and dtype.*Fix"
    ):
        f.replace(x, arange(dtype=np.int32))
    with pytest.raises(ValueError, match=r"not on the device.*args\[0\]: f32\[8\]"):
        f.replace(arange(), x)
    assert f(x)[0][1] == 1


@pytest.mark.parametrize("held", ["list", "dict", "nested", "star", "keyword"])
def test_arrays_inside_arguments_are_never_stale(held: str) -> None:
    f, x = tx.vram_resident(lambda *args, **kwargs: jax.tree.map(lambda x: x * 1, (args, kwargs))), arange()
    alias = x[1:]
    calls: dict[str, Callable[[], Any]] = {
        "list": lambda: f([x]),
        "dict": lambda: f({"x": x}),
        "nested": lambda: f({"a": [(x, 1)]}),
        "star": lambda: f(*[x]),
        "keyword": lambda: f(x=x),
    }
    for _ in range(3):
        calls[held]()
    alias[0] = 9
    with pytest.raises(tx.StaleArrayError, match=r"f32\[8\], which was changed"):
        calls[held]()


# ---------------------------------------------------------------- threads


def test_threads_share_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, start, copy = [], threading.Barrier(4), erythroxy_tx.core.residency._copy_to_device

    def slowly(array: np.ndarray, device: Any) -> Any:
        copies.append(array.shape)
        threading.Event().wait(0.05)  # time for the other threads to come here too
        return copy(array, device)

    f, x = resident(), arange()
    f(arange(3))
    monkeypatch.setattr(erythroxy_tx.core.residency, "_copy_to_device", slowly)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda _: (start.wait(), f(x)), range(4)))
    assert len(got) == 4
    assert copies == [(8,)]
    assert not x.flags.writeable
    f.evict()
    assert x.flags.writeable


# ---------------------------------------------------------------- what is refused


REFUSED: dict[str, np.ndarray] = {
    "object": np.array([None]),
    "string": np.array(["a"]),
    "bytes": np.array([b"a"]),
    "date": np.array(["2020"], "M8[D]"),
    "structured": np.zeros(2, [("a", "f4")]),
    "record": np.rec.array([(1.0,)], dtype=[("a", "f4")]),
    "void": np.zeros(2, "V4"),
    "masked": np.ma.masked_array([1.0, 2.0], [True, False]),
    "unmasked": np.ma.masked_array([1.0, 2.0]),
}


@pytest.mark.parametrize("array", REFUSED.values(), ids=REFUSED)
def test_what_has_no_device_form_is_refused_by_name(place: Callable[..., Any], array: np.ndarray) -> None:
    with pytest.raises(TypeError, match=r"tx.vram_resident\(f\) got x0: .*no device form.*Expected.*Fix"):
        place(array)
    assert array.flags.writeable


def test_a_refused_call_locks_nothing(place: Callable[..., Any]) -> None:
    x = arange()
    with pytest.raises(TypeError, match="x1"):
        place(x, np.array([None]))
    assert x.flags.writeable


@pytest.mark.parametrize("wrong", [np.array([2**31]), np.int64(2**31), np.array([-(2**31) - 1]), np.uint64([2**32])])
def test_integers_that_do_not_fit_are_refused(place: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(OverflowError, match=r"got x0: .*do not fit u?int32.*would wrap.*Fix"):
        place(wrong)


@pytest.mark.parametrize("fits", [np.array([2**31 - 1, -(2**31)]), np.uint64([2**32 - 1]), np.int64(5), np.int64([])])
def test_integers_that_fit_go_up(place: Callable[..., Any], fits: Any) -> None:
    (value,) = place(fits)
    assert (np.asarray(value) == fits).all()


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "int4", "float16", "complex64", "bool", "uint8", "int16"]
)
@pytest.mark.parametrize(
    "form", [lambda x: x, np.asfortranarray, lambda x: x[::-1, ::2], lambda x: x[:0], lambda x: x[1, 1:2].reshape(())]
)
def test_every_dtype_and_form_goes_up_as_it_is(
    place: Callable[..., Any], dtype: str, form: Callable[[Any], Any]
) -> None:
    x = form(np.arange(6).reshape(3, 2).astype(jnp.dtype(dtype)))
    (value,) = place(x)
    assert value.dtype == x.dtype
    assert value.shape == x.shape
    assert np.asarray(value).tobytes() == x.tobytes()


# ---------------------------------------------------------------- scalars


@pytest.mark.parametrize(
    "number", [1, 1.0, True, 1j, -0.0, float("nan"), np.float32(1), np.float64(1), np.int8(1), np.bool_(1)]
)
def test_scalars_are_what_jit_makes_of_them(place: Callable[..., Any], number: Any) -> None:
    (value,), expected = place(number), jax.jit(lambda x: x)(number)
    assert (value.dtype, value.weak_type) == (expected.dtype, expected.weak_type)
    assert np.asarray(value).tobytes() == np.asarray(expected).tobytes()
    assert place(number)[0] is value


def test_equal_scalars_of_other_types_are_kept_apart(place: Callable[..., Any]) -> None:
    numbers = [1, 1.0, True, np.float32(1), np.int32(1), ml_dtypes.bfloat16(1), ml_dtypes.int4(1), 0.0, -0.0]
    got = place(*numbers)
    assert len({id(value) for value in got}) == len(numbers)
    assert [np.signbit(np.asarray(value, np.float32)).item() for value in got[-2:]] == [False, True]


def test_scalars_do_not_pile_up() -> None:
    residency = Residency("f", None, None)
    for number in range(1000):
        residency.place([number], lambda: ["x"])
    assert len(residency._scalars) <= 256
    assert residency.place([999], lambda: ["x"])[0] == 999


def test_what_is_on_the_device_or_static_stays(place: Callable[..., Any]) -> None:
    on_device = jnp.ones(3)
    assert place(on_device, "a", print)[0] is on_device
    assert place(on_device, "a", print)[1:] == ["a", print]


# ---------------------------------------------------------------- precision, devices


def test_copies_do_not_outlive_the_precision_they_were_made_in() -> None:
    f, x = resident(), np.float64([1 / 3])
    assert f(x, 1 / 3)[0].dtype == np.float32
    with jax.enable_x64(True):  # noqa: FBT003
        array, number = f(x, 1 / 3)
        assert array[0] == 1 / 3
        assert number == 1 / 3
        assert f(np.array([2**40]))[0][0] == 2**40
    assert f(x, 1 / 3)[0].dtype == np.float32


def test_each_device_has_its_own_copy() -> None:
    one, two = (resident(device=device) for device in jax.devices()[:2])
    x = arange()
    one(x)
    two(x)
    assert [f.resident()[0].value.devices() for f in (one, two)] == [{device} for device in jax.devices()[:2]]


def aligned(count: int) -> np.ndarray:
    """JAX takes over a buffer on the CPU where its address suits it."""
    memory = np.zeros(count + 64, np.float32)
    start = -memory.ctypes.data % 64 // 4
    return memory[start : start + count]


@pytest.mark.parametrize("spec", [None, "rows"])
def test_nothing_shares_memory_with_the_host(spec: str | None) -> None:
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("rows",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(spec))
    for device in (None, jax.devices()[0], sharding):
        f, x = resident(device=device), aligned(2**14)
        (result,) = f(x)
        value = f.resident()[0].value
        f.evict()
        x[:] = 7
        assert (result.sum(), value.sum()) == (0, 0)


# ---------------------------------------------------------------- budget


def test_the_least_recently_used_is_dropped() -> None:
    f = resident(budget="100B")
    x, y, z, w = (np.full(8, i, np.float32) for i in range(4))
    for array in (x, y, z, x):
        f(array)
    assert [entry.value[0] for entry in f.resident()] == [1, 2, 0]
    f(w)
    assert [entry.value[0] for entry in f.resident()] == [2, 0, 3]
    assert y.flags.writeable
    assert f(y)[0][0] == 1


def test_a_call_keeps_its_own_arrays() -> None:
    f = resident(budget="64B")
    x, y, z = (arange() + i for i in range(3))
    f(x, y)
    f(z, x)
    assert [entry.value[0] for entry in f.resident()] == [2, 0] or [entry.value[0] for entry in f.resident()] == [0, 2]
    f(x, x, z)
    assert len(f.resident()) == 2


def test_a_call_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    f = resident(budget="64B")
    x, y = arange(), arange(100)
    f(x)
    with pytest.raises(tx.BudgetError, match=r"budget=64 B; one call needs 432 B.*args\[0\]: f32\[8\].*Expected.*Fix"):
        f(x, y)
    assert y.flags.writeable
    assert names_of(f) == ["args[0]"]


def test_the_budget_counts_device_bytes() -> None:
    f = resident(budget="32B")
    x = np.zeros(8, np.float64)
    f(x)
    assert sum(entry.nbytes for entry in f.resident()) == 32
