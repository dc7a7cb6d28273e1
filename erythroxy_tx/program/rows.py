"""What has to be computed for a part of some values: which equations, on which rows, and what they need that is
there already. Not here: when it is computed (`plan.py`), nor how (`evaluate.py`).
"""

import dataclasses
import heapq
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


def needs(
    targets: Iterable[tuple[Value, Want]], kept: Collection[Value], kinds: dict[Equation, Kind], chunk: Range | None
) -> Needs:
    """Go back from the wanted parts to what is kept, to inputs, and to what has no rows.

    **Arguments:**

    - `targets`: values with the part of each that is wanted. `kept`: values of which all rows are there.
    - `kinds`: how each equation that has to do with rows is run. `chunk`: the rows that run, None outside of a pass.
    """
    search = _Search(kept, kinds, chunk)
    for value, part in targets:
        search.want(value, part)
    return search.finish()


class _Search:
    def __init__(self, kept: Collection[Value], kinds: dict[Equation, Kind], chunk: Range | None):
        self.kept, self.kinds, self.chunk = kept, kinds, chunk
        self.found = Needs([], {}, {}, {})
        self.waiting: list[tuple[int, int, Step]] = []  # the latest equation first
        self.seen: set[Step] = set()

    def want(self, value: Value, part: Want) -> None:
        if value.known is not None:
            return
        indices = [piece.start.reads() for piece in part if piece is not None]
        self.found.reads.update(dict.fromkeys(v for v in indices if v is not None))
        maker = value.maker
        if maker is None or value in self.kept or not value.rows or self.kinds[maker] is Kind.WHOLE:
            self.found.reads[value] = None
        elif self.kinds[maker] is Kind.CARRY:
            self._want_carried(value, part, maker)
        elif not rule_of(maker).cheap(maker) and all(piece.long for piece in part if piece is not None):
            self.found.long[value] = self.found.reads[value] = None
        else:
            step = Step(maker, rule_of(maker).request(maker, maker.outs.index(value), part))
            if step not in self.seen:
                self.seen.add(step)
                heapq.heappush(self.waiting, (-maker.index, len(self.seen), step))

    def _want_carried(self, value: Value, part: Want, maker: Equation) -> None:
        """What runs from chunk to chunk gives its own chunk, and nothing else."""
        if self.chunk is None or any(piece != self.chunk for piece in part if piece is not None):
            self.found.long[value] = self.found.reads[value] = None
        elif maker not in self.found.carries:
            self.found.carries[maker] = None
            self._ask(maker, rule_of(maker).carry(maker).wants(self.chunk))

    def _ask(self, eqn: Equation, parts: list[Want | None]) -> None:
        for value, part in zip(eqn.ins, parts, strict=True):
            if part is not None:
                self.want(value, part)

    def finish(self) -> Needs:
        while self.waiting:
            _, _, step = heapq.heappop(self.waiting)
            self.found.steps.append(step)
            self._ask(step.eqn, step.wants())
        self.found.steps.reverse()
        return self.found


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
    wanted = {v.maker for v in program.outs}
    wanted |= {eqn for eqn in program.equations if eqn.effects}
    for eqn in reversed(program.equations):
        if eqn in wanted:
            wanted |= {v.maker for v in eqn.ins}
    return [eqn for eqn in program.equations if eqn in wanted]
