"""How rows are cut: a plan of equal chunks, and what is left over. Not here: what runs on a chunk."""

import dataclasses

from erythroxy_tx.units import format_bytes


@dataclasses.dataclass(frozen=True)
class Chunks:
    """The cut of `rows` rows into chunks of `size` rows.

    `overlaps` says how a remainder is run: the last full-size chunk starts early, so that no second program is
    needed (possible where every output is rows), or it is a shorter chunk of its own. `total_bytes` is what the
    compiled program takes where a budget chose the size: arguments, results and temporaries less aliases.
    """

    rows: int
    size: int
    overlaps: bool = False
    total_bytes: int | None = None

    @property
    def count(self) -> int:
        """How many chunks run, a shorter last one included."""
        return max(1, -(-self.rows // self.size))

    @property
    def looped(self) -> int:
        """How many chunks of full size run in the loop."""
        return self.count if self.overlaps else self.rows // self.size

    @property
    def remainder(self) -> int:
        """Rows of the shorter last chunk, 0 where there is none."""
        return 0 if self.overlaps or self.one else self.rows % self.size

    @property
    def one(self) -> bool:
        """Whether one chunk holds every row: the function is then called directly."""
        return self.rows <= self.size

    def __str__(self) -> str:
        tail = f", the last of {self.remainder}" if self.remainder else ""
        tail = (
            f", the last overlapping by {self.count * self.size - self.rows}"
            if self.overlaps and self.rows % self.size
            else tail
        )
        total = f"; the compiled program takes {format_bytes(self.total_bytes)}" if self.total_bytes is not None else ""
        return f"{self.rows} rows in {self.count} chunks of {min(self.size, self.rows)}{tail}{total}"


def sizes(rows: int) -> list[int]:
    """Every chunk size that is worth compiling, from one chunk down to one row.

    For each number of chunks the smallest size that gives it: a larger one takes more bytes and saves nothing.
    """
    found, size = [], max(rows, 1)
    while size > 1:
        found.append(size)
        count = -(-rows // size)
        size = -(-rows // (count + 1)) if -(-rows // (count + 1)) < size else size - 1
    return [*found, 1]


def powers(rows: int) -> list[int]:
    """The chunk sizes of a stream, powers of two from the first that holds all rows: other rows take the same one."""
    return [2**k for k in range(max(rows - 1, 0).bit_length(), -1, -1)]
