"""Who waited for whom in a prefetch, and for how long."""

import dataclasses

from erythroxy_tx.units import format_bytes

STAGES = ("next", "prepare", "copy")  # of a worker; the consumer uploads
_STARVED = 0.05  # of the time: less is noise


@dataclasses.dataclass
class Tally:
    """What was counted, in seconds of all threads together."""

    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys((*STAGES, "upload"), 0.0))
    full: float = 0.0  # workers waited for room
    starved: float = 0.0  # the consumer waited for a batch
    batches: int = 0
    nbytes: int = 0
    began: float | None = None
    ended: float = 0.0


@dataclasses.dataclass(frozen=True)
class PrefetchReport:
    """How a prefetch went. `str` of it is a table, and a sentence that says what to do.

    `batches` were consumed in `elapsed` seconds, from the first `next()` to the return of the latest, and `nbytes` went
    up. `starved` is how long the consumer waited for batches, `full` how long workers waited for room. `seconds` holds
    those in `"next"`, `"prepare"`, `"copy"` and `"upload"`. Times of workers are those of all of them together, and of
    all batches, those that wait to be consumed included.
    """

    batches: int
    elapsed: float
    nbytes: int
    starved: float
    full: float
    seconds: dict[str, float]
    workers: int
    in_turn: bool

    @classmethod
    def of(cls, tally: Tally, workers: int, *, in_turn: bool) -> "PrefetchReport":
        elapsed = 0.0 if tally.began is None else tally.ended - tally.began
        told = (tally.batches, elapsed, tally.nbytes, tally.starved, tally.full)
        return cls(*told, dict(tally.seconds), workers, in_turn)

    def each(self, stage: str) -> float:
        """Seconds a batch in one stage."""
        return self.seconds[stage] / self.batches if self.batches else 0.0

    @property
    def advice(self) -> str:
        """Which side is the bottleneck, and what to do."""
        if not self.batches:
            return "No batch was consumed."
        if self.starved <= _STARVED * self.elapsed:
            if self.seconds["upload"] > self.elapsed / 2:
                return "The upload is the bottleneck. Fix: fewer bytes a batch: uint8 or float16, cast on the device."
            return "The consumer is the bottleneck: its batches are there in time. Nothing to do."
        alone = self.each("next") if self.in_turn else 0.0
        shared = sum(map(self.each, STAGES)) - alone
        if alone >= shared / self.workers:
            return (
                "The source is the bottleneck: one thread at a time is in next(source), so that more workers do not "
                "help. Fix: move work from it to prepare=, or a source with __getitem__ and __len__, which all workers "
                "read."
            )
        return (
            f"The workers are the bottleneck. Fix: more of them, workers={2 * self.workers}, as far as there are cores."
        )

    def __str__(self) -> str:
        share = self.starved / self.elapsed if self.elapsed else 0.0
        rows = [
            ("consumer waited for a batch", f"{self.starved:.3f} s", f"{share:.0%} of its time"),
            ("workers waited for room", f"{self.full:.3f} s", f"{self.workers} together"),
            *((stage, f"{1e3 * self.each(stage):.3f} ms", "a batch") for stage in self.seconds),
        ]
        head = f"tx.prefetch: {self.batches} batches, {format_bytes(self.nbytes)} up, {self.elapsed:.3f} s"
        table = [f"  {what:<28}{figure:>14}  {of}" for what, figure, of in rows]
        return "\n".join([head, *table, self.advice])
