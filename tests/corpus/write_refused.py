"""Writes `docs/refused.md`: which functions of the corpus are refused as a stream, and why.

    python tests/corpus/write_refused.py

Nothing is compiled: a function is refused before. Not here: whether what is not refused is right (`test_streamed.py`).
"""

import pathlib
import re
import sys

import jax
from jax import lax

import erythroxy_tx as tx

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from corpus import ENTRIES
from corpus import Entry

_ROWS, _SIZE = 23, 5
_PAGE = pathlib.Path(__file__).parents[2] / "docs" / "refused.md"
_HEAD = """# What is refused

Of the functions of `jax.numpy`, `jax.nn`, `jax.scipy` and of the layers, losses and programs that the tests hold, these
are refused by `chunked` with nothing declared. {lowered} of the {traced} functions that can be traced for an unknown
number of rows run as a stream: {share:.1%}.

| function | why |
|---|---|
{rows}
"""


_BY_STATE = {  # what is refused only after another function ran
    "eqx.RotaryPositionalEmbedding over a sequence": "keeps its table of n rows in a cache of its own",
}


def reason(entry: Entry) -> str | None:
    """Why an entry is refused, without the names and lines of this file; None if it is not."""
    streamed = tx.chunked(lax.map, size=_SIZE, in_axes=entry.in_axes)(entry.fn)
    try:
        jax.eval_shape(streamed, *entry.inputs(_ROWS))
    except tx.RowMixingError as error:
        text = str(error).partition(". Fix: ")[0]
        if "cannot be traced" in text:
            asked = re.search(r"`: (.*?) Expected", text) or re.search(r"rows: (.*?) Expected", text)
            return f"cannot be traced for an unknown number of rows: {asked[1] if asked else 'it needs a Python int'}"
        if "is another program" in text:
            return "is another program for a known number of rows: a decision on n"
        return re.sub(r"^.*? got (\S+) at .*?: (?=[a-z]+\d*\[|→)", r"\1: ", text)
    return None


def main() -> None:
    found = {entry.name: why for entry in ENTRIES if (why := reason(entry)) is not None}
    found = {name: why for name, why in _BY_STATE.items() if any(entry.name == name for entry in ENTRIES)} | found
    traced = len(ENTRIES) - sum("cannot be traced" in why for why in found.values())
    lowered = len(ENTRIES) - len(found)
    rows = "\n".join(f"| `{name}` | {why.replace('|', '/')} |" for name, why in sorted(found.items()))
    _PAGE.write_text(_HEAD.format(lowered=lowered, traced=traced, share=lowered / traced, rows=rows))
    sys.stdout.write(f"{lowered} of {traced} run as a stream, {len(found)} are refused\n")


if __name__ == "__main__":
    main()
