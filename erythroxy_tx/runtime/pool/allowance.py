"""How many bytes a pool of segments may hold, and whether that can be kept at all. Not here: who keeps to it
(`loader.py`).
"""

import dataclasses

from erythroxy_tx.errors import BudgetError
from erythroxy_tx.runtime.pool.catalogue import Catalogue
from erythroxy_tx.units import format_bytes

_MIXING = 64  # bytes for each row of a batch, to find from which segment it comes


@dataclasses.dataclass(frozen=True)
class Allowance:
    """A budget for segments, the one that is loaded, and a batch."""

    catalogue: Catalogue
    budget: int | None
    active: int
    batch: int
    copies: int  # of a batch, while it is made

    @property
    def beside(self) -> int:
        """Bytes that a batch and a piece on its way take, beside the segments."""
        return self.batch * (self.copies * (self.catalogue.row_bytes or 0) + _MIXING) + self.catalogue.piece

    @property
    def room(self) -> int | None:
        """Bytes that segments may take, or None for any number."""
        return None if self.budget is None else self.budget - self.beside

    def check(self) -> None:
        """Refuse a budget that the largest segments cannot share: in some epoch they meet."""
        if self.budget is None:
            return
        sizes = [self.catalogue.nbytes(i) for i in range(len(self.catalogue))]
        if None in sizes:
            raise ValueError(
                "tx.SegmentPool got budget= and load= without nbytes=. Expected the bytes of what load gives, which "
                "nobody knows before: one number for all, one for each, or a function of the source."
            )
        largest = sorted((size for size in sizes if size is not None), reverse=True)[: self.active]
        if self.beside + sum(largest) <= self.budget:
            return
        fits = next(n for n in range(len(largest) + 1) if self.beside + sum(largest[: n + 1]) > self.budget)
        fix = f"active={fits}" if fits else "a larger budget=, a smaller batch=, or smaller segments"
        raise BudgetError(
            f"tx.SegmentPool got active={self.active} and batch={self.batch}: the {len(largest)} largest of "
            f"{len(self.catalogue)} segments take {format_bytes(sum(largest))}, the first {format_bytes(largest[0])}, "
            f"and a batch {format_bytes(self.beside)} beside them. Expected at most budget={self.budget}, "
            f"{format_bytes(self.budget)}. Fix: {fix}."
        )
