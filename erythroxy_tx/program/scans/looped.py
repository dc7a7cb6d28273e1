"""A decorator that puts something else in the place of each scan of a function. Several of them around one function
act on each scan together. Not here: what each does (`transforms/`).
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu

from erythroxy_tx import _compat
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close
from erythroxy_tx.core.contract import Contract
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.static import split
from erythroxy_tx.core.static import undeclare
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.program.exact import exact_results
from erythroxy_tx.program.scans.half import Half
from erythroxy_tx.program.scans.invariants import hoisted
from erythroxy_tx.program.scans.rewrite import Unreached
from erythroxy_tx.program.scans.rewrite import rewritten
from erythroxy_tx.program.scans.scan import Leaves
from erythroxy_tx.program.scans.scan import Scan
from erythroxy_tx.program.scans.scan import is_float
from erythroxy_tx.program.scans.tape import parts
from erythroxy_tx.program.scans.tape import run
from erythroxy_tx.program.split import Moved
from erythroxy_tx.program.split import Terms


@dataclasses.dataclass
class Loop:
    """What is decided about one scan: how many `segments` it has, None where it is whole, which carries are halved,
    on which `terms` work leaves the loop, and in words what becomes of each carry.
    """

    scan: Scan
    half: Half
    segments: int | str | None = None
    terms: Terms | None = None
    moved: list[Moved] = dataclasses.field(default_factory=list)
    over_budget: list[Moved] = dataclasses.field(default_factory=list)
    fates: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_kept(self) -> bool:
        """Whether it is left as it is: a step with effects would repeat them, a short one has no tape, and one over an
        unknown number of rows is run in chunks by who traces it.
        """
        return self._cannot() or (self.segments is None and not any(self.half.which))

    def _cannot(self) -> bool:
        floats = any(map(is_float, [*self.scan.init, *self.scan.xs, *self.scan.consts]))
        length = self.scan.length
        return bool(self.scan.effects or not floats or _compat.is_symbolic(length) or length < 2)

    @property
    def segment(self) -> int:
        """How many steps a segment has: as many as keep the starts of the segments and the tape of one smallest."""
        length = self.scan.length
        if self.segments is None:
            return 1
        if self.segments != "sqrt":
            return max(1, round(length / min(int(self.segments), length)))
        sizes = [dim for leaf in (*self.scan.init, *self.scan.xs) for dim in struct_of(leaf).shape]
        if any(map(_compat.is_symbolic, sizes)):
            return max(1, math.isqrt(length))
        starts = taped = 0.0  # bytes of a carry at the start of a segment, and of a step while it is run again
        for leaf, half in zip(map(struct_of, self.scan.init), self.half.which, strict=True):
            size = leaf.size * leaf.dtype.itemsize
            taped += size / 2 if half else size
            starts += size / 2 if half and self.half.between else size
        taped += sum(leaf.size * leaf.dtype.itemsize for leaf in map(struct_of, self.scan.xs)) / length
        return max(1, round(math.sqrt(length * starts / taped))) if starts else 1

    def run(self) -> Leaves:
        """Run it so."""
        if self.terms is not None:
            self.scan, self.moved, self.over_budget = hoisted(self.scan, self.terms)
        found = self.scan.plain() if self.is_kept else run(self.scan, self.segment, self.half)
        self.scan = self.scan.bare()
        return found

    def __str__(self) -> str:
        lines = [*self.fates * (not self._cannot()), *(f"    computed once, before: {each}" for each in self.moved)]
        lines += [f"    left in the loop, as it is over the budget: {each}" for each in self.over_budget]
        where = f" at {self.scan.line}" if self.scan.line else ""
        return "\n".join([f"{self.scan.length} steps{where}: {self._form()}", *lines])

    def _form(self) -> str:
        if self.scan.is_derived and not self.moved:
            return (
                "made by JAX for a derivative that is taken inside. Fix: decorate the function that is differentiated"
            )
        if self.scan.effects and (self.segments or any(self.half.which)):
            return "left as it is, as a step that is run again would repeat its effects"
        if self.is_kept:
            return "less work in the loop" if self.moved else "left as it is"
        if self.segments is None:
            return "a tape of each step"
        pieces = parts(self.scan.length, self.segment)
        return " and ".join(f"{_many(p.segments, 'segment')} of {_many(p.steps, 'step')}" for p in pieces)


class Looped(Transform):
    """A function whose scans are rewritten."""

    static_argnames: tuple[str, ...] = eqx.field(static=True, kw_only=True, default=())

    compiles = traceable = True

    @classmethod
    def around(cls, fn: Callable[..., Any], /, **parameters: Any) -> "Looped":
        """Wrap a callable, once: of two of them, which act on each scan together, one would be lost."""
        inner = fn
        while isinstance(inner, Looped):
            if type(inner) is cls:
                raise TransformOrderError(
                    f"{cls.name} got {name_of(fn)}, which it is around already. Expected it once, as it acts on each "
                    "scan together with what is right inside of it. Fix: one of them, with the parameters of both."
                )
            inner = inner.fn
        return super().around(fn, **parameters)  # type: ignore[return-value]

    @abstractmethod
    def _decide(self, loop: Loop) -> None:
        """Say what becomes of one scan."""

    def _settle(self, loops: list[Loop]) -> None:
        """Refuse what fits none of all scans."""

    def _static_names(self) -> tuple[str, ...]:
        return self.static_argnames

    def _runner(self) -> Callable[..., Any]:
        return self.program

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        found, _, _ = self._rewritten(args, kwargs)
        return found

    def _rewritten(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, list[Loop], list[Unreached]]:
        """The result with every scan rewritten, what was decided of each, and those that are out of reach."""
        around, inner = self._around()
        static, dynamic = split(declare(unwrapped(self), self._all_names(), args, kwargs), name_of(unwrapped(self)))
        loops: dict[int, Loop] = {}  # of a scan that is traced again, the latest

        def flat(*leaves: Any) -> Any:
            args, kwargs = static.merge(leaves)
            return inner(*args, **kwargs)

        def rule(scan: Scan) -> Leaves:
            loop = Loop(scan, Half((False,) * len(scan.init)))
            for transform in around:
                transform._decide(loop)
            loops[scan.place] = loop
            return loop.run()

        closed, result = jax.make_jaxpr(flat, return_shape=True)(*dynamic)
        leaves, unreached = rewritten(closed, rule, [_strong(x) for x in dynamic])
        for transform in around:
            transform._settle(list(loops.values()))
        return jtu.tree_unflatten(jtu.tree_structure(result), leaves), list(loops.values()), unreached

    def _around(self) -> "tuple[list[Looped], Callable[..., Any]]":
        """This one and those right inside of it, which act together, and what is inside of them."""
        around, inner = [], self
        while isinstance(inner, Looped):
            around.append(inner)
            inner = inner.fn  # type: ignore[assignment]
        return around, inner

    def _all_names(self) -> tuple[str, ...]:
        return tuple(name for transform in self._around()[0] for name in transform.static_argnames)

    def _promised(self, args: tuple, kwargs: dict[str, Any], promise: Contract) -> Any:
        """A contract like the result: `promise`, and that every bit is the same where no rounding can differ."""
        if isinstance(self.fn, Looped) and promise.gradients is not None:  # which act together, and round once
            coarse = promise.gradients if isinstance(promise.gradients, Close) else Bitwise()
            promise = Bitwise(gradients=coarse)
        static, dynamic = split(declare(unwrapped(self), self._all_names(), args, kwargs), name_of(unwrapped(self)))

        def flat(*leaves: Any) -> Any:
            args, kwargs = static.merge(leaves)
            return self.fn(*args, **kwargs)

        closed, result = jax.make_jaxpr(flat, return_shape=True)(*dynamic)
        exact = [Bitwise(gradients=promise.gradients) if same else promise for same in exact_results(closed)]
        return jtu.tree_unflatten(jtu.tree_structure(result), exact)

    def _decided(self, args: tuple, kwargs: dict[str, Any]) -> tuple[list[Loop], list[Unreached]]:
        """What is decided of each scan for these arguments, and the scans that are out of reach."""
        found: list[Any] = []
        label = name_of(unwrapped(self))
        static, dynamic = split(declare(unwrapped(self), self._all_names(), args, kwargs), label)

        def flat(*leaves: Any) -> Any:
            args, kwargs = undeclare(*static.merge(leaves))
            result, *told = self._rewritten(args, kwargs)
            found.extend(told)
            return result

        jax.eval_shape(flat, *dynamic)
        return found[0], found[1]

    def _told(self, args: tuple, kwargs: dict[str, Any]) -> list[str]:
        loops, unreached = self._decided(args, kwargs)
        told = [line for loop in loops for line in str(loop).splitlines()]
        return [_many(len(loops), "scan"), *told, *map(str, unreached)]


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _strong(x: Any) -> Any:
    """A leaf as the program takes it: an array."""
    return x if isinstance(x, jax.Array) else jax.numpy.asarray(x)
