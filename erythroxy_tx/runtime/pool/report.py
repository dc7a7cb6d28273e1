"""What a pool of segments says of itself. Not here: where the figures come from (`loader.py`)."""

import dataclasses

from erythroxy_tx.units import format_bytes


@dataclasses.dataclass(frozen=True)
class PoolReport:
    """What a pool holds and has done.

    **Attributes:**

    - `held`: bytes of the segments in memory, and of the one that is being loaded. `peak`: the most that it was.
    - `beside`: bytes that a batch and the piece that is being read take beside that, at most.
    - `waited`: seconds that the consumer waited for segments.
    - `loads`: segments loaded. `batches`: batches given since the run began.
    """

    held: int
    peak: int
    beside: int
    waited: float
    loads: int
    batches: int

    def __str__(self) -> str:
        return (
            f"{format_bytes(self.held)} held, at most {format_bytes(self.peak)}, and {format_bytes(self.beside)} for "
            f"batches; {self.loads} segments loaded for {self.batches} batches, {self.waited:.3g} s waited"
        )
