"""A number of rows that a trace does not know, with everything that was assumed of it.

JAX cannot decide `n == 64` or `n % 8 == 0` for an unknown n, and would say no. Here each such question is answered
by what is true for the number of rows at hand and written down: a trace is valid for every number of rows that
would have had the same answers. Answers belong to the symbol and not to a trace, since what is traced inside
`jax.jit` is kept by JAX and asks nothing the second time.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from jax import export

from erythroxy_tx import _compat

_SCOPE = export.SymbolicScope()
_POOL: list["Symbol"] = []


class Symbol:
    """One unknown number of rows: `dim` stands for it in shapes, `answers` holds what was assumed."""

    def __init__(self, name: str):
        self.name = name
        (self.dim,) = export.symbolic_shape(name, scope=_SCOPE)
        self.answers: dict[tuple[str, str], tuple[Any, bool]] = {}
        self.only: int | None = None  # the one number of rows that it stands for, if its text or hash was taken
        self.asked_number = False

    def at(self, dim: Any, rows: int) -> int:
        """What a dimension is for this many rows."""
        return _compat.dim_at(dim, **{self.name: rows})

    def holds(self, rows: int) -> bool:
        """Whether everything that was assumed is true for this many rows."""
        if self.only is not None:
            return rows == self.only
        return all(self._true(op, dim, rows) is answer for (op, _), (dim, answer) in self.answers.items())

    def _true(self, op: str, dim: Any, rows: int) -> bool:
        value = self.at(dim, rows)
        return value >= 0 if op == ">=" else (value == 0) is (op == "==")

    @contextlib.contextmanager
    def standing_for(self, rows: int) -> Iterator[None]:
        """Answer questions about the symbol as they are answered for this many rows."""

        def decide(op: str, dim: Any) -> bool:
            if op == "==" and _compat.names_in(dim) != {self.name}:
                return False  # of another symbol, which something kept from before
            answer = self._true(op, dim, rows)
            self.answers.setdefault((op, repr(dim)), (dim, answer))
            return answer

        def told(how: str, dim: Any) -> str:
            if how == "int":
                self.asked_number = True
            else:
                self.only = rows
            return str(self.at(dim, rows))

        with _compat.deciding(decide, told):
            yield


def shown(text: Any) -> str:
    """A text with every symbol in it as n."""
    return re.sub(r"\bn_\d+\b", "n", str(text))


def symbol_for(rows: int) -> Symbol:
    """A symbol that may stand for this many rows: one that is known, if all that was assumed of it holds."""
    for known in _POOL:
        if not known.asked_number and known.holds(rows):
            return known
    _POOL.append(Symbol(f"n_{len(_POOL)}" if _POOL else "n"))
    return _POOL[-1]
