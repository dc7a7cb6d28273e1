"""Loops and branches: a scan over rows ends with the last row that is there, whichever way it runs, and a batch of
loops waits for those alone.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.masks.extents import Extents
from erythroxy_tx.program.masks.rule import Leaves
from erythroxy_tx.program.masks.rule import Mask
from erythroxy_tx.program.masks.rule import Run
from erythroxy_tx.program.rules.loops import programs_of
from erythroxy_tx.program.rules.loops import strong
from erythroxy_tx.program.rules.rule import bound


def scan(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:
    """`carry, y[i] = body(carry, x[i])`, from either end of the rows that are there."""
    consts, carried = _compat.scan_counts(eqn)
    (body,), xs = programs_of(eqn), consts + carried
    length, symbolic = eqn.params["length"], eqn.symbolic["length"]
    state = strong(eqn.ins[consts:xs], ins[consts:xs])

    def step(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        outs = run(body, [*ins[:consts], *carry, *x])
        return strong(eqn.outs[:carried], outs[:carried]), outs[carried:]

    if not _compat.is_symbolic(symbolic):
        options = {"reverse": eqn.params["reverse"], "unroll": eqn.params["unroll"]}
        carry, ys = lax.scan(step, state, ins[xs:], length=length, **options)
        return [*carry, *ys]
    count = extents.size(symbolic)
    ys = [jnp.zeros(v.at, v.dtype) if not v.keys else None for v in eqn.outs[carried:]]
    if length == 0 or any(y is None for y in ys):
        return _frozen(eqn, step, state, ins[xs:], count)

    def turn(i: Any, loop: tuple[Leaves, Leaves]) -> tuple[Leaves, Leaves]:
        carry, ys = loop
        row = count - 1 - i if eqn.params["reverse"] else i
        carry, new = step(carry, [lax.dynamic_index_in_dim(x, row, keepdims=False) for x in ins[xs:]])
        return carry, [lax.dynamic_update_index_in_dim(y, z, row, 0) for y, z in zip(ys, new, strict=True)]

    carry, ys = lax.fori_loop(0, count, turn, (state, ys))
    return [*carry, *ys]


def _frozen(eqn: Equation, step: Any, state: Leaves, xs: Leaves, count: Any) -> Leaves:
    """A scan over all places, whose carry stays as it is where there is no row."""

    def turn(carry: Leaves, place: Any) -> tuple[Leaves, Leaves]:
        i, x = place
        after, y = step(carry, x)
        return [jnp.where(i < count, new, old) for new, old in zip(after, carry, strict=True)], y

    length = eqn.params["length"]
    carry, ys = lax.scan(turn, state, (jnp.arange(length), xs), length=length, reverse=eqn.params["reverse"])
    return [*carry, *ys]


def while_loop(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:
    """Of a batch of loops, those that are not there go on no further."""
    goes_on, body = programs_of(eqn)
    of_cond, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    of_goes_on, of_turn, start = ins[:of_cond], ins[of_cond : of_cond + of_body], ins[of_cond + of_body :]

    def there(state: Any) -> Any:
        return extents.only(run(goes_on, [*of_goes_on, *state])[0], goes_on.outs[0], fill=False)

    def turn(state: Any) -> Any:
        after = strong(eqn.outs, run(body, [*of_turn, *state]))
        if not eqn.predicate_is_batched:
            return after
        on = there(state)
        each = [jnp.reshape(on, on.shape + (1,) * (jnp.ndim(x) - on.ndim)) for x in after]
        return [jnp.where(e, new, old) for e, new, old in zip(each, after, state, strict=True)]

    return list(lax.while_loop(lambda state: jnp.any(there(state)), turn, strong(eqn.outs, start)))


def branches(eqn: Equation, ins: Leaves, extents: Extents, run: Run) -> Leaves:  # noqa: ARG001
    """One of several programs, by a number that has no rows."""

    def branch(program: Any) -> Any:
        return lambda *args: strong(eqn.outs, run(program, list(args)))

    if eqn.ins[0].at:
        return bound(eqn, ins)
    return list(lax.switch(ins[0], [branch(program) for program in programs_of(eqn)], *ins[1:]))


RULES: dict[str, Mask] = {"scan": scan, "while": while_loop, "cond": branches}
