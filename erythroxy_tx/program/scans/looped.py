"""A decorator that puts something else in the place of each scan of a function. Several of them around one function
act on each scan together. Not here: what each does (`transforms/`).
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu

from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.static import split
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.program.scans.rewrite import Unreached
from erythroxy_tx.program.scans.rewrite import rewritten
from erythroxy_tx.program.scans.scan import Leaves
from erythroxy_tx.program.scans.scan import Scan
from erythroxy_tx.program.scans.scan import is_float
from erythroxy_tx.program.scans.tape import parts
from erythroxy_tx.program.scans.tape import run


@dataclasses.dataclass
class Loop:
    """What is decided about one scan: of how many steps a segment is, None where it is left as it is."""

    scan: Scan
    segment: int | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it is left as it is: a step with effects would repeat them, a short one has no tape, and one over an
        unknown number of rows is run in chunks by who traces it.
        """
        floats = any(map(is_float, [*self.scan.init, *self.scan.xs, *self.scan.consts]))
        return self.segment is None or self.scan.effects or not floats or self.scan.length < 2

    def run(self) -> Leaves:
        """Run it so."""
        return self.scan.plain() if self.is_kept or self.segment is None else run(self.scan, self.segment)

    def __str__(self) -> str:
        what = f"{self.scan.length} steps at {self.scan.line}"
        if self.scan.effects:
            return f"{what}: left as it is, as a step that is run again would repeat its effects"
        if self.is_kept or self.segment is None:
            return f"{what}: left as it is"
        pieces = parts(self.scan.length, self.segment)
        lengths = (f"{part.segments} segment{'s' * (part.segments != 1)} of {part.steps} steps" for part in pieces)
        return f"{what}: {' and '.join(lengths)}"


class Looped(Transform):
    """A function whose scans are rewritten."""

    static_argnames: tuple[str, ...] = eqx.field(static=True, kw_only=True, default=())

    compiles = traceable = True

    @abstractmethod
    def _decide(self, loop: Loop) -> None:
        """Say what becomes of one scan."""

    def _static_names(self) -> tuple[str, ...]:
        return self.static_argnames

    def _runner(self) -> Callable[..., Any]:
        return self.program

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        found, _, _ = self._rewritten(args, kwargs)
        return found

    def _rewritten(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, list[Loop], list[Unreached]]:
        """The result with every scan rewritten, what was decided of each, and those that are out of reach."""
        around, inner = [], self
        while isinstance(inner, Looped):
            around.append(inner)
            inner = inner.fn  # type: ignore[assignment]
        static, dynamic = split(declare(unwrapped(self), self._names(around), args, kwargs), name_of(unwrapped(self)))
        loops: list[Loop] = []

        def flat(*leaves: Any) -> Any:
            args, kwargs = static.merge(leaves)
            return inner(*args, **kwargs)

        def rule(scan: Scan) -> Leaves:
            loop = Loop(scan)
            for transform in around:
                transform._decide(loop)
            loops.append(loop)
            return loop.run()

        closed, result = jax.make_jaxpr(flat, return_shape=True)(*dynamic)
        leaves, unreached = rewritten(closed, rule, [_strong(x) for x in dynamic])
        return jtu.tree_unflatten(jtu.tree_structure(result), leaves), loops, unreached

    @staticmethod
    def _names(around: "list[Looped]") -> tuple[str, ...]:
        return tuple(name for transform in around for name in transform.static_argnames)

    def _told(self, args: tuple, kwargs: dict[str, Any]) -> list[str]:
        loops: list[Loop] = []
        unreached: list[Unreached] = []

        def look(*args: Any, **kwargs: Any) -> Any:
            found, seen, left = self._rewritten(args, kwargs)
            loops.extend(seen)
            unreached.extend(left)
            return found

        static, dynamic = split((args, kwargs), name_of(unwrapped(self)))

        def flat(*leaves: Any) -> Any:
            args, kwargs = static.merge(leaves)
            return look(*args, **kwargs)

        jax.eval_shape(flat, *dynamic)
        return [f"{len(loops)} scan{'s' * (len(loops) != 1)}", *map(str, loops), *map(str, unreached)]


def _strong(x: Any) -> Any:
    """A leaf as the program takes it: an array."""
    return x if isinstance(x, jax.Array) else jax.numpy.asarray(x)
