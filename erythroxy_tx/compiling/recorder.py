"""`compiles`: what JAX traced, lowered and compiled, counted and listed."""

import contextlib
from collections.abc import Iterator
from typing import Self

from erythroxy_tx.compiling import events
from erythroxy_tx.compiling.events import Event
from erythroxy_tx.compiling.scope import around
from erythroxy_tx.compiling.scope import warm_up

_LONGEST = 40  # characters of a name in the table


class Compiles:
    """A recorder of everything that is traced, lowered or compiled in the process, in every thread. Made by `compiles`.

    - `events`: one for each stage: its `stage`, `name`, `seconds`, `thread` and `line`.
    - `traces`, `lowerings`, `backend_compiles`, `cache_hits`: how many. A compile that the persistent cache spared is
      a cache hit.
    - `seconds`: of all of them together, those of a trace inside another one once.
    - `warmup`: the events inside of `warm()`, which do not count.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.warmup: list[Event] = []
        self._warming = 0
        self.start()

    def start(self) -> None:
        """Record, again after `stop`."""
        events.listen()
        events.LISTENERS.add(self)

    def stop(self) -> None:
        """Record no more; what was recorded stays."""
        events.LISTENERS.discard(self)

    def clear(self) -> None:
        """Forget what was recorded."""
        self.events, self.warmup = [], []

    @contextlib.contextmanager
    def warm(self) -> Iterator[None]:
        """A warm-up: what compiles inside is expected, is not counted, and no `no_recompile` around it minds."""
        self._warming += 1
        try:
            with warm_up():
                yield
        finally:
            self._warming -= 1
        for scope in around()[0]:
            scope.watcher.after_warm()

    def heard(self, event: Event) -> None:
        """Take an event."""
        (self.warmup if self._warming else self.events).append(event)

    @property
    def traces(self) -> int:
        return self._count("trace")

    @property
    def lowerings(self) -> int:
        return self._count("lowering")

    @property
    def backend_compiles(self) -> int:
        return self._count("compile")

    @property
    def cache_hits(self) -> int:
        return self._count("cache hit")

    @property
    def seconds(self) -> float:
        return sum(event.seconds for event in self.events)

    def _count(self, stage: str) -> int:
        return sum(event.stage == stage for event in self.events)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def total(self) -> str:
        """The counts in a line."""
        return (
            f"{self.traces} traced, {self.lowerings} lowered, {self.backend_compiles} compiled, {self.cache_hits} "
            f"found on disk, in {self.seconds:.2f} s"
        )

    def __repr__(self) -> str:
        """A line for each event, and the counts."""
        rows = [(e.stage, e.name[:_LONGEST], f"{e.seconds:.3f} s", e.line) for e in self.events]
        widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, self.total])

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        import html

        cells = [(e.stage, e.name, f"{e.seconds:.3f} s", e.line) for e in self.events]
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in cells)
        return f"<table>{body}</table><p>{html.escape(self.total)}</p>"


def compiles() -> Compiles:
    """Record what JAX traces, lowers and compiles, from now on.

    Of the whole process, eager operations, other threads and the work of this library included.

    **Returns:** a `Compiles`, which records until `.stop()`, the end of its `with` block, or its own end. Its counts
    are `traces`, `lowerings`, `backend_compiles` and `cache_hits`; `seconds` is their time; `events` holds one entry
    for each; printed, it is a table.

    >>> import jax, jax.numpy as jnp, erythroxy_tx as tx
    >>> double = jax.jit(lambda x: 2 * x)
    >>> x = jnp.arange(3.0)
    >>> with tx.compiles() as seen:
    ...     y = double(x)
    >>> seen.traces, seen.backend_compiles
    (1, 1)
    >>> with tx.compiles() as seen:
    ...     y = double(x)
    >>> seen.traces, seen.backend_compiles
    (0, 0)
    """
    return Compiles()
