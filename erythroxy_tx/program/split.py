"""A program in two: what depends on some of its inputs alone, which can run once, and the rest, which takes the
values of the first. Not here: what of it pays (`worth.py`), or how the parts are run (`in_two.py`).

Nothing is moved that has effects or could raise. Functions with a custom_jvp are moved whole or not at all, those with
a custom_vjp only where no derivative is taken through them. Of the branches of a `cond` only those are cut that are
sure to run: where the choice is known, too.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.program.worth import bytes_of
from erythroxy_tx.program.worth import is_dear
from erythroxy_tx.program.worth import is_fused
from erythroxy_tx.program.worth import is_pure
from erythroxy_tx.units import format_bytes

Leaves = list[Any]


@dataclasses.dataclass(frozen=True)
class Terms:
    """What may be moved: up to `budget` bytes; what `grows`, taking more bytes than what it is computed from; work of
    `branches` that may not run; functions with derivative rules of their own (`own_rules`), which may
    not be linear.
    """

    budget: int | None = None
    grows: bool = False
    branches: bool = False
    own_rules: bool = False


@dataclasses.dataclass(frozen=True)
class Moved:
    """A value that is computed once."""

    value: str
    bytes: int
    operation: str
    line: str
    fused: bool  # whether the compiler may have computed it inside of what reads it

    def __str__(self) -> str:
        return f"{self.value}, {format_bytes(self.bytes)}: {self.operation} at {self.line}"


class Split:
    """A closed program cut in two, for inputs of which some are known: which values cross from the first part to the
    rest, and the same for the programs that are inside of some equations.
    """

    def __init__(self, closed: Any, known: Sequence[bool], terms: Terms) -> None:
        self.closed, self.terms = closed, terms
        self.eqns = closed.jaxpr.eqns
        self._known = {v for v, is_known in zip(closed.jaxpr.invars, known, strict=True) if is_known}
        self._known |= set(closed.jaxpr.constvars)
        self._makers: dict[Any, int] = {}
        self.inside: dict[int, list[Split | None]] = {}
        for place, eqn in enumerate(self.eqns):
            self._visit(place, eqn)
        self.crossing = self._frontier()
        self.over_budget: list[Moved] = []
        self._keep_to_budget()

    # ------------------------------------------------------------------ what is known, and what of it crosses

    def _visit(self, place: int, eqn: Any) -> None:
        if all(map(self._is_known, eqn.invars)) and is_pure(eqn, own_rules=self.terms.own_rules):
            for var in eqn.outvars:
                self._known.add(var)
                self._makers[var] = place
        elif inside := self._entered(eqn):
            self.inside[place] = inside

    def _is_known(self, var: Any) -> bool:
        return isinstance(var, _compat.Literal) or var in self._known

    def _entered(self, eqn: Any) -> "list[Split | None]":
        """The splits of the programs inside of an equation, if one of them has something to move."""
        name, known = eqn.primitive.name, list(map(self._is_known, eqn.invars))
        if name in ("jit", "pjit"):
            programs = [] if _compat.is_placed(eqn) else [eqn.params["jaxpr"]]
        elif name in ("checkpoint", "remat2", "remat"):
            programs = [eqn.params["jaxpr"]]
        elif name == "cond" and (known[0] or self.terms.branches):
            programs, known = list(eqn.params["branches"]), known[1:]
        elif name == "scan" and not _compat.is_symbolic(eqn.params["length"]) and eqn.params["length"]:
            programs, shared = [eqn.params["jaxpr"]], _compat.scan_counts(eqn)[0]
            known = [*known[:shared], *[False] * (len(known) - shared)]
        else:
            programs = []
        inside = [Split(_compat.closed(program), known, self.terms) for program in programs]
        return [split if split.moved else None for split in inside] if any(split.moved for split in inside) else []

    def _frontier(self) -> set[Any]:
        """The known values that the rest reads, and that pay to be kept; the rest computes the others again."""
        wanted = self.made(self.closed.jaxpr.outvars)
        for place, eqn in enumerate(self.eqns):
            if not self.is_first(place):
                wanted |= self.made(eqn.invars)
        crossing: set[Any] = set()
        for place in reversed(range(len(self.eqns))):
            outs = [v for v in self.eqns[place].outvars if v in wanted]
            if not outs:
                continue
            if self._pays(place):
                crossing |= set(outs)
            else:
                wanted |= self.made(self.eqns[place].invars)
        return crossing

    def made(self, read: Sequence[Any]) -> set[Any]:
        """Those that an equation of the first part makes."""
        return {v for v in read if not isinstance(v, _compat.Literal) and v in self._makers}

    def is_first(self, place: int) -> bool:
        return any(self._makers.get(v) == place for v in self.eqns[place].outvars)

    def _pays(self, place: int) -> bool:
        eqn = self.eqns[place]
        narrow = {v.aval.dtype for v in eqn.outvars if self.width(v.aval.dtype) != v.aval.dtype}
        if narrow and (not is_dear(eqn) or narrow != {jnp.dtype(jnp.bfloat16)}):
            return False  # the sum of the cotangents of all steps would have to fit in its bits
        takes, sources = sum(map(bytes_of, eqn.outvars)), self._sources(place)
        if is_dear(eqn):
            return self.terms.grows or not is_fused(eqn) or takes <= sum(map(bytes_of, sources))
        behind = [self._makers[v] for v in sources if v in self._makers]
        shrinks = takes < sum(map(bytes_of, sources))
        return bool(behind) and shrinks and all(is_dear(self.eqns[at]) for at in behind)

    def _sources(self, place: int) -> set[Any]:
        """What an equation is computed from that would be in memory: inputs, and results that nothing is fused with."""
        found, seen, todo = set(), set(), [place]
        while todo:
            for var in self.eqns[todo.pop()].invars:
                if isinstance(var, _compat.Literal) or var in seen:
                    continue
                seen.add(var)
                if var in self._makers and is_fused(self.eqns[self._makers[var]]):
                    todo.append(self._makers[var])
                else:
                    found.add(var)
        return found

    def _keep_to_budget(self) -> None:
        """Leave the largest where it is until the rest fits."""
        budget = self.terms.budget
        while budget is not None and self.moved and sum(each.bytes for each in self.moved) > budget:
            self.over_budget.append(max(self.moved, key=lambda each: each.bytes))
            self._leave(self.over_budget[-1])

    def _leave(self, largest: Moved) -> None:
        for var in self.crossing:
            if self._as_moved(var) == largest:
                self.crossing = {v for v in self.crossing if self._makers[v] != self._makers[var]}
                return
        for split in itertools.chain(*self.inside.values()):
            if split is not None and largest in split.moved:
                split._leave(largest)
                return

    @property
    def moved(self) -> list[Moved]:
        """What crosses, in the order in which it is computed."""
        found = []
        for place, eqn in enumerate(self.eqns):
            found += [self._as_moved(var) for var in eqn.outvars if var in self.crossing]
            found += [each for split in self.inside.get(place, ()) if split is not None for each in split.moved]
        return found

    def _as_moved(self, var: Any) -> Moved:
        eqn = self.eqns[self._makers[var]]
        name = eqn.params.get("name", eqn.primitive.name)
        return Moved(shape_of(var.aval), bytes_of(var), str(name), _compat.source_line(eqn), is_fused(eqn))

    def width(self, dtype: Any) -> Any:
        """The dtype in which a value crosses: where cotangents of all steps are summed for it, not one of few bits."""
        is_narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
        return jnp.dtype(jnp.float32) if is_narrow and not self.terms.own_rules else dtype

    # ------------------------------------------------------------------ what each part computes

    def needed_first(self) -> set[int]:
        """Where what crosses is computed, and what that needs."""
        needed: set[Any] = set(self.crossing)
        for place in self.inside:
            needed |= self.made(self.eqns[place].invars)
        places = set()
        for place in reversed(range(len(self.eqns))):
            if self.is_first(place) and not needed.isdisjoint(self.eqns[place].outvars):
                places.add(place)
                needed |= self.made(self.eqns[place].invars)
        return places

    def needed_in_rest(self) -> set[Any]:
        """What the rest reads, be it computed there or handed to it."""
        needed = {v for v in self.closed.jaxpr.outvars if not isinstance(v, _compat.Literal)}
        for place in reversed(range(len(self.eqns))):
            eqn = self.eqns[place]
            outs = {v for v in eqn.outvars if v in needed and v not in self.crossing}
            if outs or not self.is_first(place):
                needed |= {v for v in eqn.invars if not isinstance(v, _compat.Literal)}
        return needed

    def kinds(self) -> Iterator[jax.ShapeDtypeStruct]:
        """The types in which values cross, in order."""
        for place, eqn in enumerate(self.eqns):
            for var in eqn.outvars:
                if var in self.crossing:
                    yield jax.ShapeDtypeStruct(var.aval.shape, self.width(var.aval.dtype))
            for split in self.inside.get(place, ()):
                if split is not None:
                    yield from split.kinds()
