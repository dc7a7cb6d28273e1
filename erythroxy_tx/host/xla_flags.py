"""XLA_FLAGS as XLA reads it: flags apart by white space, a value in quotes or not, and nothing from the first word on
that does not begin with a dash. A text that does not begin with a dash is the name of a file of flags.

Source: `xla/parse_flags_from_env.cc`.
"""

import re
from pathlib import Path
from typing import Any
from typing import NamedTuple

_FLAG = re.compile(r"""(?P<name>[-\w]*)(?:=(?P<quoted>'[^']*'?|"(?:\\.|[^"\\])*"?)|\S*)\s*""", re.ASCII | re.DOTALL)
_SPACE = " \t\r\n"


class Flag(NamedTuple):
    """One flag: `written` as it stands there, `plain` as XLA gets it, without quotes."""

    written: str
    plain: str

    @property
    def name(self) -> str:
        """Without dashes and value."""
        return self.plain.lstrip("-").partition("=")[0]

    @property
    def value(self) -> str:
        """What it is set to; a flag alone is true."""
        _, equals, value = self.plain.partition("=")
        return value if equals else "true"


def split(text: str) -> tuple[tuple[Flag, ...], str]:
    """The flags that XLA reads, and the rest, which it ignores."""
    found: list[Flag] = []
    at = len(text) - len(text.lstrip(_SPACE))
    while text[at : at + 1] == "-":
        match: Any = _FLAG.match(text, at)  # always: each part of it may be empty
        written, quoted = match[0].rstrip(_SPACE), match["quoted"]
        plain = written if quoted is None else f"{match['name']}={_unquoted(quoted)}"
        found.append(Flag(written, plain))
        at = match.end()
    return tuple(found), text[at:].rstrip(_SPACE)


def file_of(text: str) -> str | None:
    """The name of the file that holds the flags; None where they are written out."""
    return text if text and not text.lstrip(_SPACE).startswith("-") else None


def flags_of(text: str) -> tuple[tuple[Flag, ...], str]:
    """`split` of a value of XLA_FLAGS, or of the file that it names; nothing where that cannot be read."""
    file = file_of(text)
    if file is None:
        return split(text)
    try:
        return split(Path(file).read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError):
        return (), ""


def _unquoted(quoted: str) -> str:
    inside = quoted[1:-1] if len(quoted) > 1 and quoted[-1] == quoted[0] else quoted[1:]
    return re.sub(r"\\(.)", r"\1", inside, flags=re.DOTALL) if quoted[0] == '"' else inside
