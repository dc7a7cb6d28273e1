"""What an object is made of whose class is written in Python: its attributes, in its dict and in its slots.
Not here: what is done with them.
"""

import types
from collections.abc import Iterator
from typing import Any


def is_plain(kind: type) -> bool:
    """Whether there is nothing in an instance but its attributes: no base of the class is written in C."""
    pointers = len(list(_slots(kind))) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return kind.__basicsize__ == object.__basicsize__ + pointers * tuple.__itemsize__


def attributes(instance: Any) -> dict[str, Any]:
    """The attributes of a plain instance by name."""
    found = {name: getattr(instance, name) for name, _ in _slots(type(instance)) if hasattr(instance, name)}
    return {**found, **getattr(instance, "__dict__", {})}


def with_attributes(kind: type, fields: dict[str, Any]) -> Any:
    """A new instance with these attributes. Its class is not asked: `__init__` and `__setattr__` are passed over."""
    instance: Any = object.__new__(kind)
    slots = dict(_slots(kind))
    for name, value in fields.items():
        if name in slots:
            slots[name].__set__(instance, value)
        else:
            vars(instance)[name] = value
    return instance


def _slots(kind: type) -> Iterator[tuple[str, types.MemberDescriptorType]]:
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, types.MemberDescriptorType):
                yield name, value
