"""A program in two: what depends on some of its inputs alone, which can run once, and the rest, which takes the
values of the first. Not here: what of it pays (`worth.py`), or where the first part runs.

Nothing is moved that has effects or could raise. Functions with a custom_jvp are moved whole or not at all, those with
a custom_vjp only where no derivative is taken through them. Of the branches of a `cond` only those are cut that are
sure to run: where the choice is known, too.
"""

import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.units import format_bytes
from erythroxy_tx.program.worth import bytes_of
from erythroxy_tx.program.worth import is_dear
from erythroxy_tx.program.worth import is_fused
from erythroxy_tx.program.worth import is_pure

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
    """A closed program cut in two, for inputs of which some are known.

    `first(known inputs) = values`, and `rest(inputs, values)` is what the program gives.
    """

    def __init__(self, closed: Any, known: Sequence[bool], terms: Terms) -> None:
        self.closed, self.terms = closed, terms
        self._eqns = closed.jaxpr.eqns
        self._known = {v for v, is_known in zip(closed.jaxpr.invars, known, strict=True) if is_known}
        self._given = self._known | set(closed.jaxpr.constvars)
        self._known |= self._given
        self._makers: dict[Any, int] = {}
        self._inside: dict[int, list[Split | None]] = {}
        for place, eqn in enumerate(self._eqns):
            self._visit(place, eqn)
        self._crossing = self._frontier()
        self.over_budget: list[Moved] = []
        self._keep_to_budget()

    # ------------------------------------------------------------------ what is known, and what of it crosses

    def _visit(self, place: int, eqn: Any) -> None:
        if all(map(self._is_known, eqn.invars)) and is_pure(eqn, own_rules=self.terms.own_rules):
            for var in eqn.outvars:
                self._known.add(var)
                self._makers[var] = place
        elif inside := self._entered(eqn):
            self._inside[place] = inside

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
        wanted = self._made(self.closed.jaxpr.outvars)
        for place, eqn in enumerate(self._eqns):
            if not self._is_first(place):
                wanted |= self._made(eqn.invars)
        crossing: set[Any] = set()
        for place in reversed(range(len(self._eqns))):
            outs = [v for v in self._eqns[place].outvars if v in wanted]
            if not outs:
                continue
            if self._pays(place):
                crossing |= set(outs)
            else:
                wanted |= self._made(self._eqns[place].invars)
        return crossing

    def _made(self, read: Sequence[Any]) -> set[Any]:
        """Those that an equation of the first part makes."""
        return {v for v in read if not isinstance(v, _compat.Literal) and v in self._makers}

    def _is_first(self, place: int) -> bool:
        return any(self._makers.get(v) == place for v in self._eqns[place].outvars)

    def _pays(self, place: int) -> bool:
        eqn = self._eqns[place]
        if any(self._width(v.aval.dtype) != v.aval.dtype for v in eqn.outvars):
            # The sum of the cotangents of all steps has to fit in its bits, and is rounded once more.
            if not is_dear(eqn) or any(v.aval.dtype.itemsize < 4 and v.aval.dtype != jnp.bfloat16 for v in eqn.outvars):
                return False
        takes, sources = sum(map(bytes_of, eqn.outvars)), self._sources(place)
        if is_dear(eqn):
            return self.terms.grows or not is_fused(eqn) or takes <= sum(map(bytes_of, sources))
        behind = [self._makers[v] for v in sources if v in self._makers]
        shrinks = takes < sum(map(bytes_of, sources))
        return bool(behind) and shrinks and all(is_dear(self._eqns[at]) for at in behind)

    def _sources(self, place: int) -> set[Any]:
        """What an equation is computed from that would be in memory: inputs, and results that nothing is fused with."""
        found, seen, todo = set(), set(), [place]
        while todo:
            for var in self._eqns[todo.pop()].invars:
                if isinstance(var, _compat.Literal) or var in seen:
                    continue
                seen.add(var)
                if var in self._makers and is_fused(self._eqns[self._makers[var]]):
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
        for var in self._crossing:
            if self._as_moved(var) == largest:
                self._crossing = {v for v in self._crossing if self._makers[v] != self._makers[var]}
                return
        for split in itertools.chain(*self._inside.values()):
            if split is not None and largest in split.moved:
                split._leave(largest)
                return

    @property
    def moved(self) -> list[Moved]:
        """What crosses, in the order in which it is computed."""
        found = []
        for place, eqn in enumerate(self._eqns):
            found += [self._as_moved(var) for var in eqn.outvars if var in self._crossing]
            found += [each for split in self._inside.get(place, ()) if split is not None for each in split.moved]
        return found

    def _as_moved(self, var: Any) -> Moved:
        eqn = self._eqns[self._makers[var]]
        name = eqn.params.get("name", eqn.primitive.name)
        return Moved(shape_of(var.aval), bytes_of(var), str(name), _compat.source_line(eqn), is_fused(eqn))

    # ------------------------------------------------------------------ running it

    def first(self, args: Leaves) -> Leaves:
        """The values that cross, from inputs of which those that are not known may be None."""
        values: Leaves = []
        needed = self._needed_first()

        def each(place: int, eqn: Any, ins: Leaves) -> Leaves:
            if place in needed:
                outs = _compat.bind(eqn.primitive, ins, eqn.params)
                values.extend(self._wide(x) for v, x in zip(eqn.outvars, outs, strict=True) if v in self._crossing)
                return outs
            if place in self._inside:
                values.extend(self._first_inside(place, eqn, ins))
            return [None] * len(eqn.outvars)

        self._evaluate(args, each)
        return values

    def rest(self, args: Leaves, values: Leaves) -> Leaves:
        """The results of the program."""
        given = iter(values)
        needed = self._needed()

        def each(place: int, eqn: Any, ins: Leaves) -> Leaves:
            if self._is_first(place):
                crossing = [_as(next(given), v.aval.dtype) if v in self._crossing else None for v in eqn.outvars]
                if any(v in needed and v not in self._crossing for v in eqn.outvars):
                    again = _compat.bind(eqn.primitive, ins, eqn.params)
                    return [old if new is None else new for new, old in zip(crossing, again, strict=True)]
                return crossing
            if place in self._inside:
                return self._rest_inside(place, eqn, ins, given)
            return _compat.bind(eqn.primitive, ins, eqn.params)

        return self._evaluate(args, each)

    def _width(self, dtype: Any) -> Any:
        """The dtype in which a value crosses: where cotangents of all steps are summed for it, not one of few bits."""
        is_narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
        return jnp.dtype(jnp.float32) if is_narrow and not self.terms.own_rules else dtype

    def _wide(self, value: Any) -> Any:
        return _as(value, self._width(value.dtype))

    def _needed_first(self) -> set[int]:
        """Where what crosses is computed, and what that needs."""
        needed: set[Any] = set(self._crossing)
        for place, inside in self._inside.items():
            if any(split is not None for split in inside):
                needed |= self._made(self._eqns[place].invars)
        places = set()
        for place in reversed(range(len(self._eqns))):
            if self._is_first(place) and not needed.isdisjoint(self._eqns[place].outvars):
                places.add(place)
                needed |= self._made(self._eqns[place].invars)
        return places

    def _needed(self) -> set[Any]:
        """What the rest reads, be it computed there or handed to it."""
        needed = {v for v in self.closed.jaxpr.outvars if not isinstance(v, _compat.Literal)}
        for place in reversed(range(len(self._eqns))):
            eqn = self._eqns[place]
            outs = {v for v in eqn.outvars if v in needed and v not in self._crossing}
            if outs or not self._is_first(place):
                needed |= {v for v in eqn.invars if not isinstance(v, _compat.Literal)}
        return needed

    def _evaluate(self, args: Leaves, each: Callable[[int, Any, Leaves], Leaves]) -> Leaves:
        places = {id(eqn): place for place, eqn in enumerate(self._eqns)}
        return _compat.evaluate(self.closed, args, lambda eqn, ins: each(places[id(eqn)], eqn, ins))

    def _first_inside(self, place: int, eqn: Any, ins: Leaves) -> Leaves:
        inside = self._inside[place]
        if eqn.primitive.name != "cond":
            return [value for split in inside if split is not None for value in split.first(ins)]
        index, *operands = ins
        if index is None:
            return [value for split in inside if split is not None for value in split.first(operands)]
        known = [x for x in operands if x is not None]
        kinds = [[jax.ShapeDtypeStruct(*kind) for kind in split._kinds()] if split else [] for split in inside]

        def branch(at: int) -> Callable[..., Leaves]:
            def run(*known: Any) -> Leaves:
                given = iter(known)
                whole = [x if x is None else next(given) for x in operands]
                return [
                    value
                    for other, (split, kind) in enumerate(zip(inside, kinds, strict=True))
                    if split is not None
                    for value in (split.first(whole) if other == at else map(_zeros, kind))
                ]

            return run

        return list(lax.switch(index, [branch(at) for at in range(len(inside))], *known))

    def _kinds(self) -> Iterator[tuple[Any, Any]]:
        """The shapes and types of what crosses, in order."""
        for place, eqn in enumerate(self._eqns):
            yield from ((v.aval.shape, self._width(v.aval.dtype)) for v in eqn.outvars if v in self._crossing)
            for split in self._inside.get(place, ()):
                if split is not None:
                    yield from split._kinds()

    def _rest_inside(self, place: int, eqn: Any, ins: Leaves, given: Iterator[Any]) -> Leaves:
        inside, programs = self._inside[place], _compat.sub_programs(eqn)
        taken = [[next(given) for _ in split.moved] if split else [] for split in inside]
        runs = [split.rest if split else _whole(program) for split, program in zip(inside, programs, strict=True)]
        if eqn.primitive.name == "cond":
            index, *operands = ins
            branches = [lambda args, taken, at=at: runs[at](args, taken[at]) for at in range(len(runs))]
            return list(lax.switch(index, branches, operands, taken))
        params, run, values = eqn.params, runs[0], taken[0]
        if eqn.primitive.name == "scan":
            n, m = _compat.scan_counts(eqn)

            def step(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
                found = run([*ins[:n], *carry, *x], values)
                return found[:m], found[m:]

            how = {name: params[name] for name in ("length", "reverse", "unroll")}
            carry, ys = lax.scan(step, ins[n : n + m], ins[n + m :], **how)
            return [*carry, *ys]
        if eqn.primitive.name in ("jit", "pjit"):
            return run(ins, values)
        n = len(ins)
        return _compat.rematerialised(eqn, lambda *leaves: run(list(leaves[:n]), list(leaves[n:])), [*ins, *values])


def _as(value: Any, dtype: Any) -> Any:
    return value if value.dtype == dtype else value.astype(dtype)


def _whole(program: Any) -> Callable[[Leaves, Leaves], Leaves]:
    return lambda args, _: _compat.eval_closed(program, program.consts, args)


def _zeros(kind: jax.ShapeDtypeStruct) -> Any:
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0, impl=_compat.key_impl(kind.dtype)), kind.shape)
    return jnp.zeros(kind.shape, kind.dtype)
