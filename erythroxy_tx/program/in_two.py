"""The two parts of a program that was cut (`split.py`), run: the first gives the values that cross, from what is known
alone; the rest takes them and gives the results. Not here: what crosses.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.loop import put
from erythroxy_tx.program.split import Leaves
from erythroxy_tx.program.split import Split


def first(split: Split, args: Leaves) -> Leaves:
    """The values that cross, from inputs of which those that are not known may be None."""
    values: Leaves = []
    needed = split.needed_first()

    def each(place: int, eqn: Any, ins: Leaves) -> Leaves:
        if place in needed:
            outs = _compat.bind(eqn.primitive, ins, eqn.params)
            crossing = [x for v, x in zip(eqn.outvars, outs, strict=True) if v in split.crossing]
            values.extend(_as(x, split.width(x.dtype)) for x in crossing)
            return outs
        if place in split.inside:
            values.extend(_first_inside(split.inside[place], eqn, ins))
        return [None] * len(eqn.outvars)

    _evaluate(split, args, each)
    return values


def rest(split: Split, args: Leaves, values: Leaves) -> Leaves:
    """The results of the program."""
    given = iter(values)
    needed = split.needed_in_rest()

    def each(place: int, eqn: Any, ins: Leaves) -> Leaves:
        if split.is_first(place):
            crossing = [_as(next(given), v.aval.dtype) if v in split.crossing else None for v in eqn.outvars]
            if any(v in needed and v not in split.crossing for v in eqn.outvars):
                again = _compat.bind(eqn.primitive, ins, eqn.params)
                return [old if new is None else new for new, old in zip(crossing, again, strict=True)]
            return crossing
        if place in split.inside:
            return _rest_inside(split.inside[place], eqn, ins, given)
        return _compat.bind(eqn.primitive, ins, eqn.params)

    return _evaluate(split, args, each)


def _evaluate(split: Split, args: Leaves, each: Callable[[int, Any, Leaves], Leaves]) -> Leaves:
    places = {id(eqn): place for place, eqn in enumerate(split.eqns)}
    return _compat.evaluate(split.closed, args, lambda eqn, ins: each(places[id(eqn)], eqn, ins))


def _first_inside(inside: list[Split | None], eqn: Any, ins: Leaves) -> Leaves:
    """The values that cross out of the programs inside of an equation; zeros for those of branches that do not run."""
    if eqn.primitive.name != "cond":
        return [value for split in inside if split is not None for value in first(split, ins)]
    index, *operands = ins
    if index is None:
        return [value for split in inside if split is not None for value in _of_branch(split, operands)]
    known = [x for x in operands if x is not None]

    def branch(at: int) -> Callable[..., Leaves]:
        def run(*known: Any) -> Leaves:
            given = iter(known)
            whole = [x if x is None else next(given) for x in operands]
            return [
                value
                for other, split in enumerate(inside)
                if split is not None
                for value in (first(split, whole) if other == at else map(_zeros, split.kinds()))
            ]

        return run

    return list(lax.switch(index, [branch(at) for at in range(len(inside))], *known))


def _of_branch(split: Split, operands: Leaves) -> Leaves:
    """The values of a branch that may not run. If no step takes it, its cotangents are zero, and stay so: it may hold
    the logarithm of a zero, whose derivative is infinite.
    """
    floats = [i for i, x in enumerate(operands) if x is not None and jnp.issubdtype(x.dtype, jnp.inexact)]
    others = [None if i in floats else x for i, x in enumerate(operands)]

    def values(floats_: Leaves, others: Leaves) -> Leaves:
        return first(split, put(others, floats, floats_))

    @jax.custom_vjp
    def guarded(floats_: Leaves, others: Leaves) -> Leaves:
        return values(floats_, others)

    def forward(floats_: Leaves, others: Leaves) -> tuple[Leaves, Any]:
        found, pull = jax.vjp(lambda floats_: values(floats_, others), floats_)
        return found, (pull, floats_, others)

    def backward(kept: Any, cotangents: Leaves) -> tuple[Leaves, Leaves]:
        pull, floats_, others = kept
        smooth = [c for c in cotangents if c.dtype != jax.dtypes.float0]
        is_taken = jnp.any(jnp.array([(c != 0).any() for c in smooth]))
        found = lax.cond(is_taken, lambda: pull(cotangents)[0], lambda: list(map(jnp.zeros_like, floats_)))
        still = [None if x is None else np.zeros(x.shape, jax.dtypes.float0) for x in others]
        return found, still

    guarded.defvjp(forward, backward)
    return guarded([operands[i] for i in floats], others)


def _rest_inside(inside: list[Split | None], eqn: Any, ins: Leaves, given: Iterator[Any]) -> Leaves:
    """An equation whose programs take the values that crossed out of them."""
    programs = _compat.sub_programs(eqn)
    taken = [[next(given) for _ in split.moved] if split else [] for split in inside]
    runs = [_rest_of(split, program) for split, program in zip(inside, programs, strict=True)]
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


def _rest_of(split: Split | None, program: Any) -> Callable[[Leaves, Leaves], Leaves]:
    if split is None:
        return lambda args, _: _compat.eval_closed(program, program.consts, args)
    return lambda args, values: rest(split, args, values)


def _as(value: Any, dtype: Any) -> Any:
    return value if value.dtype == dtype else value.astype(dtype)


def _zeros(kind: jax.ShapeDtypeStruct) -> Any:
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0, impl=_compat.key_impl(kind.dtype)), kind.shape)
    return jnp.zeros(kind.shape, kind.dtype)
