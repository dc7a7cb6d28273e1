"""Which numbers of rows share a program: those for which a function asks the same and is answered the same. Most have
one program for all; no row and a single row are often another.

Not here: how a program runs for fewer rows than it has place for (`masks/`).
"""

import dataclasses
import functools
import operator
from collections.abc import Collection
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
    """Questions of a program, and how they were answered."""

    symbol: Symbol
    answers: Answers

    def alike(self, lengths: tuple[Any, ...]) -> Any:
        """Whether these numbers of rows, which are known when it runs, answer alike."""
        found: Any = True
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

    def on(self, trace: Trace, label: str, idle: Collection[tuple[str, str]] = ()) -> "Regime":
        """The regime of a program, for those of these numbers of rows that answer its questions alike.

        **Arguments:** `idle`: questions that make no difference, as they are shown.
        """
        alike = trace.symbol.alike(tuple(size - 1 for size in self.where.shape))
        alike = {key: each for key, each in alike.items() if (key[0], shown(key[1])) not in idle}
        where = np.logical_and.reduce([self.where, *alike.values()])
        rows = tuple(int(i.max()) for i in np.nonzero(where)) if where.any() else ()
        if not rows or not where[rows]:
            raise RowMixingError(
                f"{label} asks something that only some of {self.told} rows answer alike. Expected questions about "
                "each of several lengths, and the same in its derivative. Fix: one length, or buckets."
            )
        single = int(where.sum()) == 1
        trace = dataclasses.replace(trace, rows=rows, up_to=not single)
        if not single:
            _check_growth(trace.flat, where, label)
        answers = {key: trace.symbol.answers[key] for key in alike}
        asked = Only(rows) if single else Asked(trace.symbol, answers)
        return Regime(where, rows, trace, (asked,), frozenset(trace.symbol.answers))

    def derived(self, trace: Trace, label: str) -> "Regime":
        """The regime of a derivative, for those of these numbers that answer what it asks beyond alike."""
        more = {
            key: each
            for key, each in trace.symbol.alike(tuple(size - 1 for size in self.where.shape)).items()
            if key not in self.seen
        }
        if not more or self.single:
            trace = dataclasses.replace(trace, rows=self.rows, up_to=not self.single)
            if not self.single:
                _check_growth(trace.flat, self.where, label)
            return dataclasses.replace(self, trace=trace)
        where = np.logical_and.reduce([self.where, *more.values()])
        if not where[self.rows]:
            raise RowMixingError(f"{label} has a derivative that asks for one of {self.told} rows.")
        also = Asked(trace.symbol, {key: trace.symbol.answers[key] for key in more})
        trace = dataclasses.replace(trace, rows=self.rows, up_to=True)
        _check_growth(trace.flat, where, label)
        asked = tuple(Both(each, also) for each in self.asked)
        return Regime(where, self.rows, trace, asked, self.seen | also.answers.keys())

    def with_all_of(self, other: "Regime", left: np.ndarray, idle: set[tuple[str, str]], label: str) -> "Regime":
        """The regime of its program for the numbers of another one too, which does the same.

        What JAX asked of itself, and was answered otherwise there, makes no difference: it goes to `idle`.
        """
        first = self.asked[0]
        if isinstance(first, Asked):
            for (op, text), (dim, answer) in first.answers.items():
                changed = first.symbol.answered(op, dim, other.rows) is not answer
                if changed and (op, text) not in first.symbol.firm:
                    idle.add((op, shown(text)))
        where = self.where | other.where
        if self.trace is not None and isinstance(first, Asked):
            again = dataclasses.replace(self, where=left | where).on(self.trace, label, idle)
            where |= again.where
            _check_growth(again.program, where, label)
            return dataclasses.replace(again, where=where, asked=(*again.asked, *self.asked[1:], *other.asked))
        return dataclasses.replace(self, where=where, asked=(*self.asked, *other.asked))

    def does_as(self, other: "Regime") -> bool:
        """Whether its program, and its derivative, is another one's, for the numbers of rows of that."""
        if self.trace is None or other.trace is None or self.single or any(map(operator.gt, other.rows, self.rows)):
            return False
        pairs = [(self.trace, other.trace), (self.trace.derivative, other.trace.derivative)]
        least = tuple(int(i) for i in np.argwhere(other.where)[0])
        for one, two in pairs:
            if one is None or two is None:
                if one is not two:
                    return False
            elif not all(_same_at(one, two, rows) for rows in {other.rows, least}):
                return False
        return True


def _same_at(one: Trace, two: Trace, rows: Numbers) -> bool:
    try:
        return same(one.flat_at(rows), two.flat_at(rows))
    except (TypeError, ValueError, ZeroDivisionError):  # one of them has no shapes for so many
        return False


def regimes(source: Source, most: Numbers, wanted: Numbers | None) -> list[Regime]:
    """The programs of a function for every number of rows up to `most`, that of the most first.

    **Arguments:** `wanted`: the number of rows at hand, for which it should have a result, where that is known.

    **Raises:** what the function raises for the number of rows at hand; `RowMixingError` if it has no program that
    serves for fewer rows as well, or asks too much.
    """
    left, found, traced = np.ones([size + 1 for size in most], bool), list[Regime](), 0
    idle = set[tuple[str, str]]()  # questions that make no difference
    while left.any():
        rows, traced = tuple(int(i) for i in np.argwhere(left)[-1]), traced + 1
        one = _regime(source, rows, left, idle, first=all(each.trace is None for each in found))
        if one.error is not None and not found:
            source.known(wanted or rows)  # raises where there is no result at hand
        left &= ~one.where
        host = next((i for i, each in enumerate(found) if each.does_as(one)), None)
        if host is None:  # a single number of rows needs no symbol, which some derivatives cannot have
            found.append(dataclasses.replace(one, trace=source.known(one.rows)) if one.trace and one.single else one)
        else:
            found[host] = found[host].with_all_of(one, left, idle, source.label)
            left &= ~found[host].where
        if (sum(each.trace is not None for each in found) > MOST or traced > TRACED) and left.any():
            raise RowMixingError(_too_many(source, found))
    return found


def _regime(source: Source, rows: Numbers, left: np.ndarray, idle: set[tuple[str, str]], *, first: bool) -> Regime:
    try:
        trace = source.unknown(rows)
    except RowMixingError as refusal:
        try:
            known = source.known(rows)
        except Exception as error:  # noqa: BLE001  # the function's own, for these numbers
            return _undefined(source, rows, left, error)
        if first:
            raise refusal from None
        only = np.zeros(left.shape, bool)
        only[rows] = True
        return Regime(only, rows, known, (Only(rows),))
    except Exception as error:  # noqa: BLE001  # likewise
        return _undefined(source, rows, left, error)
    return Regime(left, rows, None).on(trace, source.label, idle)


def _undefined(source: Source, rows: Numbers, left: np.ndarray, error: Exception) -> Regime:
    """The numbers of rows for which a function raises: all that answer what it asked before alike."""
    symbol = source.symbol
    where = np.logical_and.reduce([left, *symbol.alike(tuple(size - 1 for size in left.shape)).values()])
    where[rows] = True
    found = Only(rows) if where.sum() == 1 else Asked(symbol, dict(symbol.answers))
    return Regime(where, rows, None, (found,), error=error)


def _too_many(source: Source, found: list[Regime]) -> str:
    ways = [asked.answers for one in found for asked in one.asked if isinstance(asked, Asked)]
    told = dict.fromkeys(shown(f"{dim} {op} 0") for asked in ways for (op, _), (dim, _) in asked.items())
    return (
        f"{source.label} does something else for more than {len(found) - 1} kinds of length ({', '.join(told)}). "
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
