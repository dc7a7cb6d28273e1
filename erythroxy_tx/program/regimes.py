"""Which numbers of rows share a program: those for which a function asks the same and is answered the same. Most have
one program for all; no row and a single row are often another.

Not here: how a program runs for fewer rows than it has place for (`masks/`).
"""

import dataclasses
import functools
import operator
from collections.abc import Iterator
from typing import Any
from typing import Protocol

import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.alike import same
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.rows import live
from erythroxy_tx.program.rules.loops import programs_of
from erythroxy_tx.program.symbol import Symbol
from erythroxy_tx.program.symbol import shown
from erythroxy_tx.program.trace import Trace

MOST = 8  # programs; a function that does more kinds of things is refused,
TRACED = 48  # as is one that asks so much
Numbers = tuple[int, ...]  # of rows, one for each name
Answers = dict[tuple[str, str], tuple[Any, bool]]  # of a symbol


class Source(Protocol):
    """Gives the program of a function for numbers of rows."""

    label: str
    symbol: Symbol  # of the last unknown

    def unknown(self, rows: Numbers) -> Trace:
        """Traced with symbols that stand for these. **Raises:** `RowMixingError` if it cannot be."""

    def known(self, rows: Numbers) -> Trace:
        """Traced as it is for these. **Raises:** what the function raises."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """Questions of a program, how they were answered, and for how many rows it has place."""

    symbol: Symbol
    answers: Answers
    most: Numbers

    def alike(self, lengths: tuple[Any, ...]) -> Any:
        """Whether these numbers of rows, which are known when it runs, answer alike."""
        found: Any = functools.reduce(operator.and_, [a <= b for a, b in zip(lengths, self.most, strict=True)])
        for (op, _), (dim, answer) in self.answers.items():
            value = self.symbol.at(dim, lengths)
            found = found & ((value >= 0 if op == ">=" else value == 0 if op == "==" else value != 0) == answer)
        return found


@dataclasses.dataclass(frozen=True)
class Only:
    """No question: these are the numbers."""

    rows: Numbers

    def alike(self, lengths: tuple[Any, ...]) -> Any:
        """Whether they are."""
        return functools.reduce(operator.and_, [a == b for a, b in zip(lengths, self.rows, strict=True)])


@dataclasses.dataclass(frozen=True)
class Both:
    """What two others ask."""

    one: Any
    two: Any

    def alike(self, lengths: tuple[Any, ...]) -> Any:
        """Whether these numbers of rows answer both alike."""
        return self.one.alike(lengths) & self.two.alike(lengths)


@dataclasses.dataclass(frozen=True, eq=False)
class Regime:
    """One program, for the numbers of rows in `where`, of which `rows` are the most of each.

    `asked`: what tells these numbers from others, in each of several ways. `seen`: all questions that are answered by
    that. `error`: why there is no program.
    """

    where: np.ndarray
    rows: Numbers
    trace: Trace | None
    asked: tuple[Asked | Only | Both, ...] = ()
    seen: frozenset[tuple[str, str]] = frozenset()
    error: Exception | None = None

    @property
    def single(self) -> bool:
        """Whether `rows` are the only numbers."""
        return int(self.where.sum()) == 1

    @property
    def told(self) -> str:
        """The numbers of rows, for errors."""
        return f"{' and '.join(map(str, self.rows))}{'' if self.single else ' or fewer'}"

    @property
    def program(self) -> Program:
        """The flat program."""
        assert self.trace is not None
        return self.trace.flat

    def holds(self, lengths: tuple[Any, ...]) -> Any:
        """Whether it is that of these numbers of rows, which are known when it runs."""
        return functools.reduce(operator.or_, [asked.alike(lengths) for asked in self.asked])

    def on(self, trace: Trace, label: str) -> "Regime":
        """The regime of a program, for those of these numbers of rows that answer its questions alike."""
        alike = trace.symbol.alike(tuple(size - 1 for size in self.where.shape))
        alike = {key: each for key, each in alike.items() if key not in self.seen}
        where = np.logical_and.reduce([self.where, *alike.values()])
        if not where[self.rows]:
            raise RowMixingError(f"{label} has a derivative that asks for one of {self.told} rows.")
        where, rows = where & _up_to(self.rows, where.shape), self.rows
        single = int(where.sum()) == 1
        trace = dataclasses.replace(trace, rows=rows, up_to=not single)
        if not single:
            _check_growth(trace.flat, where, label)
        asked: Any = Asked(trace.symbol, {key: trace.symbol.answers[key] for key in alike}, rows)
        if single:
            asked = Only(rows)
        elif self.asked:
            asked = Both(self.asked[0], asked)
        return Regime(where, rows, trace, (asked,), self.seen | trace.symbol.answers.keys())

    def with_all_of(self, other: "Regime", label: str) -> "Regime":
        """The regime of its program for the numbers of another one too, for which it does the same."""
        where = self.where | other.where
        assert self.trace is not None
        trace = dataclasses.replace(self.trace, up_to=True)
        _check_growth(trace.flat, where, label)
        return dataclasses.replace(self, where=where, trace=trace, asked=(*self.asked, *other.asked))

    def does_as(self, other: "Regime") -> bool:
        """Whether its program does what another one's does, for the numbers of rows of that."""
        if self.trace is None or other.trace is None or any(map(operator.gt, other.rows, self.rows)):
            return False
        one, two = (each.flat_at(other.rows, up_to=not other.single) for each in (self.trace, other.trace))
        try:
            with np.errstate(all="raise"):
                return same(one, two, np.nonzero(other.where))
        except FloatingPointError:  # a length over another one, which may be none
            return False


def regimes(source: Source, most: Numbers, wanted: Numbers | None) -> list[Regime]:
    """The programs of a function for every number of rows up to `most`, that of the most first: one for each way in
    which its questions, and those of its derivative, are answered.

    **Arguments:** `wanted`: the number of rows at hand, for which it should have a result, where that is known.

    **Raises:** what the function raises for the number of rows at hand; `RowMixingError` if it has no program that
    serves for fewer rows as well, or asks too much.
    """
    left, found = np.ones([size + 1 for size in most], bool), list[Regime]()
    while left.any():
        rows = tuple(int(i) for i in np.argwhere(left)[-1])
        one = _regime(source, rows, left, first=all(each.trace is None for each in found))
        if one.error is not None and not found:
            source.known(wanted or rows)  # raises where there is no result at hand
        found.append(one)
        left &= ~one.where
        if len(found) > TRACED and left.any():
            raise RowMixingError(_too_many(source.label, found))
    return found


def merged(finest: list[Regime], label: str) -> list[Regime]:
    """Regimes with as few programs as do it.

    **Raises:** `RowMixingError` if those are many.
    """
    found: list[Regime] = []
    for one in finest:
        host = next((i for i, each in enumerate(found) if _does_as(each, one)), None)
        if host is None:
            found.append(one)
        else:
            found[host] = found[host].with_all_of(one, label)
    if sum(each.trace is not None for each in found) > MOST:
        raise RowMixingError(_too_many(label, found))
    return found


def _does_as(one: Regime, other: Regime) -> bool:
    try:
        return one.does_as(other)
    except (TypeError, ValueError, ZeroDivisionError):  # one of them has no shapes for so many rows
        return False


def _regime(source: Source, rows: Numbers, left: np.ndarray, *, first: bool) -> Regime:
    try:
        trace = source.unknown(rows)
    except RowMixingError as refusal:
        try:
            known = source.known(rows)
        except RowMixingError:
            raise
        except Exception as error:  # noqa: BLE001  # the function's own, for these numbers
            return _undefined(source, rows, left, error)
        if first:
            raise refusal from None
        only = np.zeros(left.shape, bool)
        only[rows] = True
        return Regime(only, rows, known, (Only(rows),))
    except Exception as error:  # noqa: BLE001  # likewise
        return _undefined(source, rows, left, error)
    found = Regime(left, rows, None).on(trace, source.label)
    if found.single:  # which needs no symbol, that some derivatives cannot have
        return dataclasses.replace(found, trace=source.known(rows), seen=frozenset())
    return found


def _undefined(source: Source, rows: Numbers, left: np.ndarray, error: Exception) -> Regime:
    """The numbers of rows for which a function raises: all that answer what it asked before alike."""
    symbol = source.symbol
    where = np.logical_and.reduce([left, *symbol.alike(tuple(size - 1 for size in left.shape)).values()])
    where[rows] = True
    where &= _up_to(rows, where.shape)
    found = Only(rows) if where.sum() == 1 else Asked(symbol, dict(symbol.answers), rows)
    return Regime(where, rows, None, (found,), error=error)


def _up_to(rows: Numbers, room: tuple[int, ...]) -> np.ndarray:
    """The numbers that are at most these."""
    found = np.zeros(room, bool)
    found[tuple(slice(0, size + 1) for size in rows)] = True
    return found


def _too_many(label: str, found: list[Regime]) -> str:
    ways = [asked.answers for one in found for asked in one.asked if isinstance(asked, Asked)]
    told = dict.fromkeys(shown(f"{dim} {op} 0") for asked in ways for (op, _), (dim, _) in asked.items())
    return (
        f"{label} does something else for more than {len(found) - 1} kinds of length ({', '.join(told)}). "
        "Expected a function that decides little by the number of rows. Fix: a mask or jnp.where in place of "
        "Python's if, or the number of rows as an argument."
    )


def _check_growth(program: Program, where: np.ndarray, label: str) -> None:
    """Refuse shapes that are longer for fewer rows: there would be no place for them."""
    points, seen = np.nonzero(where), set[str]()
    for value, dim in _dims(program):
        if str(dim) in seen:
            continue
        seen.add(str(dim))
        try:
            with np.errstate(all="raise"):
                sizes = np.broadcast_to(program.symbol.at(dim, points), points[0].shape)
        except FloatingPointError:  # a length over another one, which may be none
            sizes = np.array([-1])
        if (sizes < 0).any() or (sizes > program.at(dim)).any():
            made = f"{value.maker.name} at {value.maker.line}" if value.maker else "an argument"
            raise RowMixingError(
                f"{label} got {made}: {value}, which does not grow with the number of rows. Expected shapes that do. "
                "Fix: a mask in place of a length that shrinks."
            )


def _dims(program: Program) -> Iterator[tuple[Value, Any]]:
    """Every unknown dimension, and a value that has it."""
    values = [*program.ins, *(v for eqn in live(program) for v in eqn.outs)]
    yield from ((value, dim) for value in values for dim in value.shape if _compat.is_symbolic(dim))
    for eqn in live(program):
        for inner in programs_of(eqn):
            yield from _dims(inner)
