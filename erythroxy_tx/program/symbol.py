"""Numbers of rows that a trace does not know, with everything that was assumed of them.

JAX cannot decide `n == 64` or `n % 8 == 0` for an unknown n, and would say no. Here each such question is answered
by what is true for the number of rows at hand and written down: a trace is valid for every number of rows that
would have had the same answers. Answers belong to the symbol and not to a trace, since what is traced inside
`jax.jit` is kept by JAX and asks nothing the second time.
"""

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from jax import export

from erythroxy_tx import _compat

_SCOPE = export.SymbolicScope()
_POOL: list["Symbol"] = []
_NUMBERS = itertools.count()

Rows = int | tuple[int, ...]  # a number for each of the names of a symbol


class Symbol:
    """One unknown number of rows, or several with a name each: `dims` stand for them in shapes, `answers` holds what
    was assumed.
    """

    def __init__(self, *names: str):
        number = next(_NUMBERS)
        self.names = tuple(f"{name}__{number}" if number else name for name in names)
        self.dims: tuple[Any, ...] = tuple(export.symbolic_shape(",".join(self.names), scope=_SCOPE))
        self.answers: dict[tuple[str, str], tuple[Any, bool]] = {}
        self.only: Rows | None = None  # the one number of rows that it stands for, if its text or hash was taken
        self.asked_number = False

    @property
    def dim(self) -> Any:
        """What stands for the number of rows, where there is one."""
        (dim,) = self.dims
        return dim

    def at(self, dim: Any, rows: Any) -> Any:
        """What a dimension is for this many rows, which may be numbers, arrays, or tracers."""
        values = rows if isinstance(rows, tuple) else (rows,)
        return _compat.dim_at(dim, dict(zip(self.names, values, strict=True)))

    def holds(self, rows: Rows) -> bool:
        """Whether everything that was assumed is true for this many rows."""
        if self.only is not None:
            return rows == self.only
        return all(self.answered(op, dim, rows) is answer for (op, _), (dim, answer) in self.answers.items())

    def ask(self, op: str, dim: Any, rows: Rows) -> bool:
        """Answer a question as for this many rows, and write it down."""
        answer = bool(self.answered(op, dim, rows))
        self.answers.setdefault((op, repr(dim)), (dim, answer))
        return answer

    def answered(self, op: str, dim: Any, rows: Rows) -> bool | None:
        """The answer to a question for this many rows; None where it divides by none."""
        try:
            value = self.at(dim, rows)
        except ZeroDivisionError:
            return None
        return bool(value >= 0 if op == ">=" else (value == 0) is (op == "=="))

    def alike(self, most: tuple[int, ...]) -> dict[tuple[str, str], np.ndarray]:
        """For each question, for which numbers of rows, from none to `most` of each name, the answer is as it was; only
        for those that have two.
        """
        room, found = tuple(size + 1 for size in most), dict[tuple[str, str], np.ndarray]()
        for (op, text), (dim, answer) in self.answers.items():
            axes = [i for i, name in enumerate(self.names) if name in _compat.names_in(dim)]
            each = np.ones([size if i in axes else 1 for i, size in enumerate(room)], bool)
            for rows in np.ndindex(*each.shape):
                each[rows] = self.answered(op, dim, rows) is answer
            if not each.all():
                found[op, text] = np.broadcast_to(each, room)
        return found

    @contextlib.contextmanager
    def standing_for(self, rows: Rows) -> Iterator[None]:
        """Answer questions about the symbol as they are answered for this many rows."""

        def decide(op: str, dim: Any) -> bool:
            if op == "==" and not _compat.names_in(dim) <= set(self.names):
                return False  # of another symbol, which something kept from before
            return self.ask(op, dim, rows)

        def told(how: str, dim: Any) -> str:
            if how == "int":
                self.asked_number = True
            else:
                self.only = rows
            return str(self.at(dim, rows))

        with _compat.deciding(decide, told):
            yield


def shown(text: Any) -> str:
    """A text with every unknown number in it by its own name."""
    return re.sub(r"\b([A-Za-z]\w*?)__\d+\b", r"\1", str(text))


def symbol_for(rows: Rows) -> Symbol:
    """A symbol that may stand for this many rows: one that is known, if all that was assumed of it holds."""
    for known in _POOL:
        if not known.asked_number and known.holds(rows):
            return known
    _POOL.append(Symbol("n"))
    return _POOL[-1]
