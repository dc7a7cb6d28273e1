"""What a look at the machine gives back: an object with fields, that prints as plain text and goes to JSON. Not here:
colours (`cli/show.py`).
"""

import dataclasses
import enum
import json
import math
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple


class Line(NamedTuple):
    """One line of a report. `style` is `""`, `"title"`, `"good"`, `"warn"`, `"bad"` or `"dim"`, for a terminal."""

    text: str
    style: str = ""


class Report:
    """The base of all reports of `erythroxy_tx.host`. A subclass is a frozen dataclass that gives its `lines`."""

    def lines(self) -> Iterator[Line]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(line.text for line in self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain Python values, ready for JSON."""
        return plain(self)

    def to_json(self) -> str:
        """The same as one JSON object, in ASCII, since a name of a file need not be valid text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """`value` in dicts, lists, strings and finite numbers alone; what is none of them is a string."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item) for item in value]
    is_plain = value is None or (isinstance(value, str | int | float) and not isinstance(value, enum.Enum))
    return value if is_plain and not (isinstance(value, float) and not math.isfinite(value)) else str(value)
