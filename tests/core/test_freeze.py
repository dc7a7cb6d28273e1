"""Arrays that are held as they are: locked, checksummed where something else can write, and given back."""

import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erythroxy_tx.core.freeze import _LARGE
from erythroxy_tx.core.freeze import Freeze
from erythroxy_tx.core.freeze import freeze
from erythroxy_tx.core.freeze import prove


def hold(array: np.ndarray) -> Freeze:
    return freeze([array])[0]


def arange(dtype: object = np.float32) -> np.ndarray:
    return np.arange(8).astype(dtype)


def test_it_is_read_only_while_it_is_held() -> None:
    array = arange()
    first, second = hold(array), hold(array)
    assert first is second
    assert not array.flags.writeable
    del first
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    del second
    assert array.flags.writeable


def test_what_was_read_only_stays_so() -> None:
    array = arange()
    array.flags.writeable = False
    held = hold(array)
    del held
    assert not array.flags.writeable


def test_a_whole_view_locks_its_base_and_gives_both_back() -> None:
    base = arange()
    view = base.reshape(2, 4)
    held = hold(view)
    assert not base.flags.writeable
    assert not view.flags.writeable
    del held
    assert base.flags.writeable
    assert view.flags.writeable


def test_a_temporary_view_gives_the_base_back_when_it_dies() -> None:
    base = arange()
    held = hold(base.reshape(2, 4).T)
    assert not base.flags.writeable
    del held
    assert base.flags.writeable


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_arrays_of_one_memory_are_unlocked_by_the_last(order: tuple[int, int]) -> None:
    base = arange()
    view = base.reshape(2, 4)
    held: list[Freeze | None] = freeze([base, view])
    held[order[0]] = None
    assert not base.flags.writeable
    held[order[1]] = None
    assert base.flags.writeable
    assert view.flags.writeable


def test_it_does_not_keep_the_array() -> None:
    array = arange()
    held, ref = hold(array), weakref.ref(array)
    del array
    assert ref() is None
    assert held.ref() is None


# ---------------------------------------------------------------- faults


def change(array: np.ndarray) -> None:
    array.reshape(-1).view(np.uint8)[0] ^= 1


def through_view(array: np.ndarray) -> Callable[[], None]:
    view = array[:]
    return lambda: change(view)


def through_memoryview(array: np.ndarray) -> Callable[[], None]:
    view = memoryview(array).cast("B")
    return lambda: view.__setitem__(0, view[0] ^ 1)


def through_strides(array: np.ndarray) -> Callable[[], None]:
    view = np.lib.stride_tricks.as_strided(array, (2,), (array.itemsize,))
    return lambda: change(view)


WRITERS = [through_view, through_memoryview, through_strides]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_write_through_an_alias_is_told_and_not_forgotten(writer: Callable[..., Callable[[], None]]) -> None:
    array = arange()
    write = writer(array)
    held = hold(array)
    for _ in range(8):
        assert held.fault(array) is None
        if held.may_be_alone:
            prove([held])
    write()
    assert held.fault(array) == "was changed through a view, its base or another buffer"
    write()  # as it was
    assert held.fault(array) == "was changed through a view, its base or another buffer"
    again = hold(array)
    assert again is not held
    assert again.fault(array) is None


@pytest.mark.parametrize("was_writable", [True, False])
@pytest.mark.parametrize("aliased", [True, False])
def test_made_writable_is_told_and_not_forgotten(was_writable: bool, aliased: bool) -> None:
    array = arange()
    alias = array[:] if aliased else None
    array.flags.writeable = was_writable
    held = hold(array)
    array.flags.writeable = True
    assert held.fault(array) == "was made writable"
    array.flags.writeable = False
    assert held.fault(array) == "was made writable"
    assert alias is None or alias.base is array


def test_what_is_held_again_is_locked_again() -> None:
    array = arange()
    first = hold(array)
    array.flags.writeable = True
    second = hold(array)
    assert second is not first
    assert not array.flags.writeable
    assert second.fault(array) is None
    del first
    assert not array.flags.writeable
    del second
    assert array.flags.writeable


@pytest.mark.parametrize("was_writable", [True, False])
def test_the_base_made_writable_is_told(was_writable: bool) -> None:
    view = arange().reshape(2, 4)
    view.flags.writeable = was_writable
    held = hold(view)
    prove([held])
    assert held.checksum is None
    view.base.flags.writeable = True  # type: ignore[union-attr]
    assert held.fault(view) == "was made writable"


def set_shape(array: np.ndarray) -> None:
    array.shape = (4, 2)


def set_strides(array: np.ndarray) -> None:
    array.strides = (4, 8)


def set_dtype(array: np.ndarray) -> None:
    array.dtype = np.int32  # type: ignore[misc]


@pytest.mark.parametrize("form", [set_shape, set_strides, set_dtype])
def test_another_shape_or_dtype_in_place_is_told(form: Callable[[np.ndarray], None]) -> None:
    array = arange().reshape(2, 4).copy()
    held = hold(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy deprecates it; it still can be done
        form(array)
    assert held.fault(array) == "was given another shape or dtype"


def test_a_state_set_in_place_is_told() -> None:
    array = arange()
    held = hold(array)
    array.__setstate__((1, (8,), array.dtype, False, bytes(32)))
    assert held.fault(array) is not None


# ---------------------------------------------------------------- what is checksummed


def test_an_array_of_its_own_needs_no_checksum() -> None:
    array, view = arange(), arange().reshape(2, 4)
    holds = freeze([array, view])
    assert all(held.may_be_alone for held in holds)
    prove(holds)
    assert [held.checksum for held in holds] == [None, None]


def test_a_large_array_is_never_checksummed_where_that_can_be_told() -> None:
    array = np.empty(_LARGE, np.uint8)
    assert hold(array).checksum is None
    view = array[:]
    assert hold(view).checksum is not None


def test_it_is_proven_when_the_view_has_gone() -> None:
    array = arange()
    view = array[:]
    held = hold(array)
    prove([held])
    assert held.checksum is not None
    assert view.base is array
    del view
    prove([held])
    assert held.checksum is None


def test_proof_is_tried_a_few_times_only() -> None:
    array = arange()
    view = array[:]
    held = hold(array)
    for _ in range(20):
        if held.may_be_alone:
            prove([held])
    del view
    assert not held.may_be_alone
    assert held.fault(array) is None
    assert held.checksum is not None


def test_a_part_is_checksummed_and_not_locked() -> None:
    base = arange()
    part = base[2:]
    held = hold(part)
    assert held.checksum is not None
    assert not held.may_be_alone
    assert base.flags.writeable
    base[0] = 100
    assert held.fault(part) is None
    base[2] = 100
    assert held.fault(part) is not None


def memory_map(path: Path, mode: str) -> np.memmap:
    return np.memmap(path, np.float32, mode, shape=(8,))  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_memory_maps_are_checksummed(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "x"
    arange().tofile(path)
    array = memory_map(path, mode)
    held = hold(array)
    assert held.checksum is not None
    assert held.fault(array) is None
    other = array[:] if mode == "c" else memory_map(path, "r+")
    change(other)
    assert held.fault(array) is not None


def test_a_bytearray_is_checksummed_and_bytes_are_not() -> None:
    buffer = bytearray(arange().tobytes())
    array = np.frombuffer(buffer, np.float32)
    held = hold(array)
    buffer[0] ^= 1
    assert held.fault(array) is not None
    constant = np.frombuffer(bytes(buffer), np.float32)
    held = hold(constant)
    assert held.checksum is None
    assert held.fault(constant) is None


FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": lambda x: x,
    "F": np.asfortranarray,
    "strided": lambda x: x[::2, 1:],
    "reversed": lambda x: x[::-1],
    "transposed": lambda x: x.T,
    "0-d": lambda x: x[0, 0, ...],
    "empty": lambda x: x[:0],
    "broadcast": lambda x: np.broadcast_to(x, (2, *x.shape)),
    "subclass": lambda x: x.view(np.recarray),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, np.complex128, np.bool_, np.uint64])
def test_every_form_is_seen_to_change(form: Callable[[np.ndarray], np.ndarray], dtype: object) -> None:
    base = np.arange(12).reshape(3, 4).astype(dtype)
    array = form(base)
    writable = array if array.flags.writeable else base
    alias = writable[...]
    held = hold(array)
    assert held.fault(array) is None
    if not array.size:
        return
    alias[(-1,) * alias.ndim] = 1 - alias[(-1,) * alias.ndim].astype(bool)
    assert held.fault(array) is not None
    assert gc.isenabled()


@hypothesis.settings(max_examples=100)
@given(st.binary(min_size=1, max_size=200), st.data())
def test_every_bit_counts(content: bytes, data: st.DataObject) -> None:
    buffer = bytearray(content)
    array = np.frombuffer(buffer, np.uint8)
    held = hold(array)
    at = data.draw(st.integers(0, len(content) * 8 - 1))
    buffer[at // 8] ^= 1 << at % 8
    assert held.fault(array) is not None


def test_an_identity_that_is_used_again_is_another_array() -> None:
    array = arange()
    held, address = hold(array), id(array)
    del array
    for _ in range(1000):
        array = arange()
        if id(array) == address:
            break
    other = hold(array)
    assert other is not held
    assert other.ref() is array
