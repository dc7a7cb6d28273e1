"""What a driver of `chunked` is: where the rows of a call come from, and how its chunks run. Not here: any driver."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextlib import nullcontext
from typing import Any

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.drivers.streamed import Kept
from erythroxy_tx.program.row_call import RowCall

Inputs = dict[int, Any]  # where the rows of each traced leaf come from, by its position


class Driver:
    """Runs calls from Python, given what is kept for their function."""

    traceable = False  # whether it works inside a trace

    def announced(self, label: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """In which an error is told to the other processes that take part in a call."""
        return nullcontext()

    def opened(
        self, label: str, names: Any, args: tuple, kwargs: dict[str, Any], in_axes: Prefix
    ) -> tuple[Any, Inputs]:
        """The arguments with types in place of what has rows, and where those come from."""
        raise NotImplementedError

    def run(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> Any:
        """The result of a call, in chunks of so many rows."""
        raise NotImplementedError

    def bytes(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> ProgramBytes:
        """What that takes on a device. Nothing is run."""
        raise NotImplementedError

    def told(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> list[str]:
        """What it does, in words."""
        raise NotImplementedError

    def rows(self, call: RowCall, inputs: Inputs) -> int:  # noqa: ARG002
        """How many rows chunks are cut of."""
        return call.length

    def sizes(self, rows: int) -> Sequence[int]:
        """Every size of a chunk that is worth compiling, the largest first."""
        raise NotImplementedError
