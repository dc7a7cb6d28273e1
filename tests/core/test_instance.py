"""What an object written in Python is made of."""

import ctypes
import dataclasses
import enum
import types
from typing import Any

import numpy as np
import pytest

from erythroxy_tx.core.instance import attributes
from erythroxy_tx.core.instance import is_plain
from erythroxy_tx.core.instance import with_attributes


class Plain:
    def __init__(self) -> None:
        self.x = 1


class Slotted:
    __slots__ = ("__private", "x")

    def __init__(self) -> None:
        self.x, self.__private = 1, 2


class SlottedAndDict(Slotted):
    def __init__(self) -> None:
        super().__init__()
        self.y = 3


class Referable:
    __slots__ = ("__weakref__", "x")

    def __init__(self) -> None:
        self.x = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int = 1


class NoInit:
    def __init__(self) -> None:
        self.x = 1

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, name):
            raise AttributeError(name)
        super().__setattr__(name, value)


KINDS = [Plain, Slotted, SlottedAndDict, Referable, Frozen, NoInit]


class OfList(list):
    pass


class OfError(Exception):
    pass


class OfArray(np.ndarray):
    pass


class OfStruct(ctypes.Structure):
    pass


class OfInt(enum.IntEnum):
    A = 1


@pytest.mark.parametrize("kind", [object, *KINDS])
def test_classes_written_in_python_are_plain(kind: type) -> None:
    assert is_plain(kind)


@pytest.mark.parametrize(
    "kind", [OfList, OfError, OfArray, OfStruct, OfInt, int, dict, np.ndarray, types.SimpleNamespace, type, type(len)]
)
def test_what_has_a_state_in_c_is_not(kind: type) -> None:
    assert not is_plain(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_make_the_instance_again(kind: type) -> None:
    instance = kind()
    found = attributes(instance)
    assert found["x"] == 1
    again = with_attributes(kind, {**found, "x": 5})
    assert type(again) is kind
    assert again.x == 5
    assert attributes(again) == {**found, "x": 5}
    assert attributes(instance) == found


def test_every_slot_and_every_entry_is_found() -> None:
    assert attributes(SlottedAndDict()) == {"x": 1, "_Slotted__private": 2, "y": 3}
    empty = Slotted.__new__(Slotted)
    assert attributes(empty) == {}


def test_the_dict_is_a_copy() -> None:
    instance = Plain()
    attributes(instance)["x"] = 2
    assert instance.x == 1
