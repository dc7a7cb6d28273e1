"""Writes `docs/refused.md`: which functions of the corpus are refused as a stream or with padding, and why.

    python tests/corpus/write_refused.py

Nothing is compiled: a function is refused before. Not here: whether what is not refused is right (`test_streamed.py`,
`test_padded.py`).
"""

import functools
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

import erythroxy_tx as tx

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from corpus import ENTRIES
from corpus import Entry

_ROWS, _SIZE, _MOST = 23, 5, 64
_PAGE = pathlib.Path(__file__).parents[2] / "docs" / "refused.md"
_HEAD = """# What is refused

Of the functions of `jax.numpy`, `jax.nn`, `jax.scipy` and of the layers, losses and programs that the tests hold, these
are refused: by `chunked` with nothing declared, and by `pad_static`.
"""
_SECTION = """
## By {name}

{lowered} of the {traced} functions that can be traced for an unknown number of rows {what}: {share:.1%}.

| function | why |
|---|---|
{rows}
"""


_BY_STATE = {  # what is refused only after another function ran
    "eqx.RotaryPositionalEmbedding over a sequence": "keeps its table of n rows in a cache of its own",
}


def reason(entry: Entry, transform: Callable[..., Any]) -> str | None:
    """Why an entry is refused, without the names and lines of this file; None if it is not."""
    try:
        jax.eval_shape(transform(in_axes=entry.in_axes)(entry.fn), *entry.inputs(_ROWS))
    except tx.RowMixingError as error:
        text = str(error).partition(". Fix: ")[0]
        if "cannot be traced" in text:
            asked = re.search(r"`: (.*?) Expected", text) or re.search(r"rows: (.*?) Expected", text)
            return f"cannot be traced for an unknown number of rows: {asked[1] if asked else 'it needs a Python int'}"
        if "is another program" in text:
            return "is another program for a known number of rows: a decision on n"
        if "kinds of length" in text:
            return "does something else for too many lengths"
        return re.sub(r"^.*? got (\S+) at .*?: (?=[a-z]+\d*\[|→)", r"\1: ", text)
    return None


def section(name: str, what: str, transform: Callable[..., Any]) -> str:
    """The part of the page about one transform."""
    found = {entry.name: why for entry in ENTRIES if (why := reason(entry, transform)) is not None}
    found = {name: why for name, why in _BY_STATE.items() if any(entry.name == name for entry in ENTRIES)} | found
    traced = len(ENTRIES) - sum("cannot be traced" in why for why in found.values())
    lowered = len(ENTRIES) - len(found)
    rows = "\n".join(f"| `{name}` | {why.replace('|', '/')} |" for name, why in sorted(found.items()))
    sys.stdout.write(f"{lowered} of {traced} {what}, {len(found)} are refused\n")
    return _SECTION.format(name=name, what=what, lowered=lowered, traced=traced, share=lowered / traced, rows=rows)


def main() -> None:
    chunked = section("chunked", "run as a stream", functools.partial(tx.chunked, lax.map, size=_SIZE))
    padded = section("pad_static", "run with padding", functools.partial(tx.pad_static, _MOST))
    _PAGE.write_text(_HEAD + chunked + padded)


if __name__ == "__main__":
    main()
