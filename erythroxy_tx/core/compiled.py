"""What a compiled program takes, in bytes. Not here: what it takes outside XLA's own account."""

import dataclasses
from typing import Any

from erythroxy_tx.units import format_bytes


@dataclasses.dataclass(frozen=True)
class ProgramBytes:
    """The buffers of one compiled program, in bytes, by XLA's buffer assignment.

    `total` is argument + output + temp - alias: XLA's own peak leaves temporaries out on the CPU.
    """

    argument: int
    output: int
    temp: int
    alias: int

    @classmethod
    def of(cls, compiled: Any) -> "ProgramBytes":
        """Read a `jax.stages.Compiled`."""
        found = compiled.memory_analysis()
        return cls(
            found.argument_size_in_bytes,
            found.output_size_in_bytes,
            found.temp_size_in_bytes,
            found.alias_size_in_bytes,
        )

    @property
    def total(self) -> int:
        """Bytes while the program runs."""
        return self.argument + self.output + self.temp - self.alias

    def __str__(self) -> str:
        parts = (f"{format_bytes(getattr(self, name))} {name}" for name in ("argument", "output", "temp", "alias"))
        return f"{format_bytes(self.total)} ({', '.join(parts)})"
