"""What has to be computed for a part of some values: which equations, on which rows, and what they need that is
there already. Not here: when it is computed (`plan.py`), nor how (`evaluate.py`).
"""

import dataclasses
import heapq
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from typing import Any

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.rules import rule_of
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import mixing


@dataclasses.dataclass(frozen=True)
class Step:
    """An equation on the rows that a request of its rule stands for."""

    eqn: Equation
    request: Any

    def wants(self) -> list[Want | None]:
        return rule_of(self.eqn).wants(self.eqn, self.request)

    def given(self) -> list[Want]:
        return rule_of(self.eqn).given(self.eqn, self.request)


@dataclasses.dataclass
class Needs:
    """What a part of some values needs: `steps` in order, `reads` that are there, `carries` that run beside it,
    and `long`: values of which every chunk needs all rows.
    """

    steps: list[Step]
    reads: dict[Value, None]
    carries: dict[Equation, None]
    long: dict[Value, None]


@dataclasses.dataclass(frozen=True)
class Reach:
    """What a part of some values goes back to, without the way: the last pass before which it is not there, the
    carries and the stored values that it reads, and values of which every chunk needs all rows.
    """

    ready: int = 0
    carries: frozenset[Equation] = frozenset()
    stored: frozenset[Value] = frozenset()
    long: frozenset[Value] = frozenset()

    def joined(self, other: "Reach") -> "Reach":
        if other.ready <= self.ready and not (other.carries or other.stored or other.long):
            return self
        return Reach(
            max(self.ready, other.ready),
            self.carries | other.carries,
            self.stored | other.stored,
            self.long | other.long,
        )


class Search:
    """The way back from parts of values to what is kept, to inputs, and to what has no rows.

    **Arguments:**

    - `kept`: values of which all rows are there. `kinds`: how each equation that has to do with rows is run.
    - `chunk`: the rows that run, None outside of a pass. `beside`: which carries run over the same chunks.
    """

    def __init__(
        self,
        kept: Collection[Value],
        kinds: dict[Equation, Kind],
        chunk: Range | None,
        beside: Callable[[Equation], bool] = lambda eqn: False,  # noqa: ARG005
    ):
        self.kept, self.kinds, self.chunk, self.beside = kept, kinds, chunk, beside
        self._before: dict[Step | Equation, list[tuple[Any, bool]]] = {}
        self._reaches: dict[Step | Equation, Reach] = {}

    def needs(self, targets: Iterable[tuple[Value, Want]]) -> Needs:
        """What these parts need."""
        found, seen = Needs([], {}, {}, {}), set()
        waiting: list[tuple[int, int, Step | Equation]] = []

        def add(sources: list[tuple[Any, bool]]) -> None:
            for source, long in sources:
                if isinstance(source, Value):
                    found.reads[source] = None
                    if long:
                        found.long[source] = None
                elif source not in seen:
                    seen.add(source)
                    eqn = source if isinstance(source, Equation) else source.eqn
                    heapq.heappush(waiting, (-eqn.index, len(seen), source))

        add([source for value, part in targets for source in self._sources(value, part)])
        while waiting:
            _, _, source = heapq.heappop(waiting)
            if isinstance(source, Equation):
                found.carries[source] = None
            else:
                found.steps.append(source)
            add(self._direct(source))
        found.steps.reverse()
        return found

    def reach(self, targets: Iterable[tuple[Value, Want]], ready: dict[Value, int]) -> Reach:
        """What these parts go back to; `ready` tells after how many passes a value is there."""
        found, waiting = Reach(), [source for value, part in targets for source in self._sources(value, part)]
        for source, long in waiting:
            found = found.joined(self._reach(source, long, ready))
        return found

    def _reach(self, source: Any, long: bool, ready: dict[Value, int]) -> Reach:
        if isinstance(source, Value):
            stored = frozenset([source]) if source.rows and source in self.kept else frozenset()
            return Reach(ready.get(source, 0), frozenset(), stored, frozenset([source]) if long else frozenset())
        stack = [] if source in self._reaches else [source]
        while stack:
            last = stack[-1]
            if last in self._reaches:
                stack.pop()
                continue
            direct = self._direct(last)
            open_ones = [s for s, _ in direct if not isinstance(s, Value) and s not in self._reaches]
            if open_ones:
                stack += open_ones
                continue
            found = Reach(0, frozenset([last])) if isinstance(last, Equation) else Reach()
            for inner, its_long in direct:
                reach = (
                    self._reaches.get(inner) if not isinstance(inner, Value) else self._reach(inner, its_long, ready)
                )
                found = found.joined(reach or Reach())
            self._reaches[last] = found
            stack.pop()
        return self._reaches[source]

    def _direct(self, source: Step | Equation) -> list[tuple[Any, bool]]:
        """What a step needs itself, or what a carry along rows does."""
        if source not in self._before:
            eqn = source if isinstance(source, Equation) else source.eqn
            if isinstance(source, Equation):
                assert self.chunk is not None
                wants = rule_of(eqn).carry(eqn).wants(self.chunk)
            else:
                wants = source.wants()
            pairs = [(v, part) for v, part in zip(eqn.ins, wants, strict=True) if part is not None]
            self._before[source] = [source for value, part in pairs for source in self._sources(value, part)]
        return self._before[source]

    def _sources(self, value: Value, part: Want) -> list[tuple[Any, bool]]:
        """Where a part of a value comes from: a step, a carry, or values that are there, all of whose rows may be
        needed by every chunk.
        """
        if value.known is not None:
            return []
        indices = [piece.start.reads() for piece in part if piece is not None]
        found: list[tuple[Any, bool]] = [(index, False) for index in indices if index is not None]
        maker = value.maker
        if maker is None or value in self.kept or not value.rows or self.kinds[maker] is Kind.WHOLE:
            return [*found, (value, False)]
        if self.kinds[maker] is Kind.CARRY:
            own = all(piece in (None, self.chunk) for piece in part)
            return [*found, (maker, False) if own and self.beside(maker) else (value, True)]
        if not rule_of(maker).cheap(maker) and all(piece.long for piece in part if piece is not None):
            return [*found, (value, True)]
        return [*found, (Step(maker, rule_of(maker).request(maker, maker.outs.index(value), part)), False)]


def kinds_of(equations: Iterable[Equation]) -> dict[Equation, Kind]:
    """How each equation that has to do with rows is run.

    **Raises:** `RowMixingError` for one that cannot be.
    """
    found = {}
    for eqn in equations:
        if not eqn.rows:
            continue
        if eqn.effects:
            raise mixing(eqn, "which would happen once for each chunk and pass", "take it out of the function")
        found[eqn] = rule_of(eqn).kind(eqn)
        if found[eqn] in (Kind.FOLD, Kind.CARRY) and any(0 in v.at for v in eqn.ins):
            found[eqn] = Kind.WHOLE  # there is no chunk
        if found[eqn] is Kind.WHOLE and (large := next((v for v in (*eqn.ins, *eqn.outs) if len(v.rows) > 1), None)):
            raise mixing(eqn, f"which needs all of {large} at once", "reduce it along one of the two axes of rows")
    return found


def live(program: Program) -> list[Equation]:
    """The equations that lead to a result, or have an effect, in order."""
    given = set(program.ins)  # among them what another program computed
    wanted = {v.maker for v in program.outs if v not in given}
    wanted |= {eqn for eqn in program.equations if eqn.effects}
    for eqn in reversed(program.equations):
        if eqn in wanted:
            wanted |= {v.maker for v in eqn.ins if v not in given}
    return [eqn for eqn in program.equations if eqn in wanted]
