"""The text of a compiled program, read as far as its loops need: which parts of a loop's state are copied in its body,
and where the loop was written. Not here: whose loop that is (`copies.py`).
"""

import collections
import dataclasses
import re
from typing import Any

_HEAD = re.compile(r"(?:ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.+)$")
_OPCODE = re.compile(r"\s*([\w\-]+)(?=\()")
_COMMENT = re.compile(r"/\*.*?\*/")
_SHAPE = re.compile(r"\w+\[[\d,]*\]")
_ATTRIBUTE = re.compile(r"(\w+)=(\{[^{}]*\}|%?[\w.\-]+)")
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_TABLES = {
    "FileNames": re.compile(r'(\d+) "(.*)"$'),
    "FileLocations": re.compile(r"(\d+) \{file_name_id=(\d+) .*?\bline=(\d+) .*?\bcolumn=(\d+)"),
    "StackFrames": re.compile(r"(\d+) \{file_location_id=(\d+)"),
}
_COPY = ("copy", "copy-start")


@dataclasses.dataclass(frozen=True)
class CompiledLoop:
    """A loop: the shapes of its state, as `f32[8,3]`; which of them stay as they are; how often a step copies each; and
    where it was written, as `file.py:12:8`, or "" where that is not said.
    """

    shapes: list[str]
    kept: list[bool]
    copies: dict[int, int]
    place: str


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    shapes: list[str]
    opcode: str
    operands: list[str]
    attributes: dict[str, str]
    frame: str
    is_root: bool

    def runs(self, *keys: str) -> list[str]:
        """The computations that it names under some keys."""
        named = ",".join(self.attributes[key].strip("{}") for key in keys if key in self.attributes)
        return [name.strip().lstrip("%") for name in named.split(",")]


_Body = list[_Instruction]


def loops(text: str) -> list[CompiledLoop]:
    """Every loop of a program's text; one that cannot be read is left out."""
    bodies, places = _computations(text), _places(text)
    found = []
    for loop in [i for body in bodies.values() for i in body if i.opcode == "while"]:
        body = bodies.get(loop.runs("body")[0], [])
        root = next((i for i in body if i.is_root), None)
        if root is None or root.opcode != "tuple" or len(root.operands) != len(loop.shapes):
            continue
        copies: collections.Counter[int] = collections.Counter()
        try:
            origins = _follow(body, [list(range(len(loop.shapes)))], loop.shapes, bodies, copies)
        except (LookupError, ValueError):  # written in another way than is known
            continue
        copies.update(_copied_on_the_way(body, root, origins))
        kept = [origins.get(name) == k for k, name in enumerate(root.operands)]
        found.append(CompiledLoop(loop.shapes, kept, dict(copies), places.get(loop.frame, "")))
    return found


def _follow(
    body: _Body, arguments: list[Any], shapes: list[str], bodies: dict[str, _Body], copies: collections.Counter[int]
) -> dict[str, Any]:
    """Which part of a loop's state each value is, a list for a tuple; and count the copies of whole parts."""
    origins: dict[str, Any] = {}
    for i in body:
        given = [origins.get(name) for name in i.operands]
        found: Any = None
        if i.opcode == "parameter":
            found = arguments[int(i.operands[0])]
        elif i.opcode == "get-tuple-element" and isinstance(given[0], list):
            found = given[0][int(i.attributes["index"])]
        elif i.opcode == "tuple":
            found = given
        elif i.opcode in (*_COPY, "copy-done"):
            found = given[0]
            if i.opcode in _COPY and isinstance(found, int) and i.shapes[0] == shapes[found]:
                copies[found] += 1
        elif i.opcode in ("conditional", "call"):
            is_call = i.opcode == "call"
            names = i.runs("to_apply", "branch_computations", "true_computation", "false_computation")
            ends = []
            for name, passed in zip(names, [given] if is_call else [[a] for a in given[1:]], strict=True):
                inner = bodies[name]
                there = _follow(inner, passed, shapes, bodies, copies)
                ends += [there.get(end.name) for end in inner if end.is_root]
            found = ends[0] if all(end == ends[0] for end in ends) else None
        origins[i.name] = found
    return origins


def _copied_on_the_way(body: _Body, root: _Instruction, origins: dict[str, Any]) -> list[int]:
    """The parts of the state of which a new value is copied, between two writes or to where the next step finds it."""
    made = {i.name: i for i in body}
    becomes = {name: k for k, name in enumerate(root.operands)}
    found = []
    for i in reversed(body):
        if i.name not in becomes or origins[i.name] is not None:
            continue
        found += [becomes[i.name]] if i.opcode in _COPY else []
        same = [name for name in i.operands if name in made and made[name].shapes[:1] == i.shapes[:1]]
        becomes.update(dict.fromkeys(same, becomes[i.name]))
    return found


def _computations(text: str) -> dict[str, _Body]:
    found: dict[str, _Body] = {}
    body: _Body = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            body = found[head[1]] = []
        elif (match := _INSTRUCTION.match(line)) and (instruction := _instruction(*match.groups())):
            body.append(instruction)
    return found


def _instruction(root: str | None, name: str, text: str) -> _Instruction | None:
    text = _COMMENT.sub("", text)
    end = _closing(text, 0) if text.startswith("(") else text.find(" ")
    opcode = _OPCODE.match(text, end)
    if end < 0 or opcode is None:
        return None
    last = _closing(text, opcode.end())
    operands = [part.split()[-1].lstrip("%") for part in text[opcode.end() + 1 : last - 1].split(",") if part.strip()]
    rest = text[last:]
    frame = _FRAME.search(rest)
    attributes = dict(_ATTRIBUTE.findall(rest))
    return _Instruction(
        name, _SHAPE.findall(text[:end]), opcode[1], operands, attributes, frame[1] if frame else "", root is not None
    )


def _closing(text: str, start: int) -> int:
    """Just past the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position + 1
    return len(text)


def _places(text: str) -> dict[str, str]:
    """Where each stack frame of a program's text is, as `file.py:12:8`."""
    rows: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in _TABLES}
    table = ""
    for line in text.splitlines():
        table = line if line in _TABLES else table if line else ""
        if table and (match := _TABLES[table].match(line)):
            key, *values = match.groups()
            rows[table][key] = tuple(values)
    found = {}
    for frame, (location,) in rows["StackFrames"].items():
        file, *position = rows["FileLocations"].get(location, [""])
        if file in rows["FileNames"]:
            found[frame] = ":".join([*rows["FileNames"][file], *position])
    return found
