"""A loop or a branch that is run from the host: which of its programs comes next, and on what. Not here: how one of
them runs, which is over the rows (`host_run.py`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.evaluate import read
from erythroxy_tx.program.inside import inside_of
from erythroxy_tx.program.rules.loops import strong
from erythroxy_tx.program.rules.rule import empty

Leaves = list[Any]
Runs = list[Callable[[Leaves], Leaves]]


@dataclasses.dataclass(frozen=True)
class HostLoop:
    """A loop or a branch, with the `HostRun` of each program inside."""

    eqn: Equation
    hosts: list[Any]

    def run(self, there: dict[Any, Any], run: Callable[[Any, dict[Value, Value], dict[Value, Any]], Any]) -> Any:
        """Its outputs.

        **Arguments:** `run(host, rows, there)`: what is there after a program has run, given what each of its inputs
        with rows is outside, and those without.
        """

        def inside(host: Any, outside: list[Value]) -> Callable[[Leaves], Leaves]:
            pairs = list(zip(host.program.ins, outside, strict=False))
            free = {v: read(outer, there) for v, outer in pairs if not v.rows}
            rows = {v: outer for v, outer in pairs if v.rows}
            late = host.program.ins[len(outside) :]

            def once(values: Leaves) -> Leaves:
                found = run(host, rows, free | dict(zip(late, values, strict=True)))
                return [jnp.asarray(read(v, found)) for v in host.program.outs]

            return once

        of: Equation = self.eqn.params["of"]
        ins = [None if v.rows else read(v, there) for v in of.ins]
        runs = [inside(host, each.outside) for host, each in zip(self.hosts, inside_of(self.eqn), strict=True)]
        return dict(zip(self.eqn.outs, _TURNS[of.name](of, ins, runs), strict=True))

    def most_bytes(self) -> list[ProgramBytes]:
        """What each program inside takes. Nothing is run."""
        return [host.most_bytes({v: type_of(v) for v in host.program.ins if not v.rows}) for host in self.hosts]

    def chunk_bytes(self) -> int:
        """The rows of a chunk, of the pass that reads most."""
        return max(host.chunk_bytes() for host in self.hosts)


def type_of(value: Value) -> jax.ShapeDtypeStruct:
    """The type of a value, all of it."""
    return jax.ShapeDtypeStruct(value.at, value.dtype)


def _scan(eqn: Equation, ins: Leaves, runs: Runs) -> Leaves:
    consts, carried = _compat.scan_counts(eqn)
    carry, xs = strong(eqn.outs[:carried], ins[consts : consts + carried]), ins[consts + carried :]
    length, stacks = int(eqn.params["length"]), list[Leaves]()
    order = range(length)
    for i in reversed(order) if eqn.params["reverse"] else order:
        outs = runs[0]([*carry, *_at(xs, np.int32(i))])
        carry = strong(eqn.outs[:carried], outs[:carried])
        stacks.append(outs[carried:])
    if eqn.params["reverse"]:
        stacks.reverse()
    values = eqn.outs[carried:]
    if not length:
        return [*carry, *(empty(v.at, v.dtype) for v in values)]
    return [*carry, *strong(values, [jnp.stack([each[k] for each in stacks]) for k in range(len(values))])]


@jax.jit
def _at(xs: Leaves, i: Any) -> Leaves:
    return [lax.dynamic_index_in_dim(x, i, 0, keepdims=False) for x in xs]


def _while(eqn: Equation, ins: Leaves, runs: Runs) -> Leaves:
    """A batch of loops goes on while any of them does, and each stops for itself."""
    goes_on, body = runs
    state = strong(eqn.outs, ins[eqn.params["cond_nconsts"] + eqn.params["body_nconsts"] :])
    while np.any(on := np.asarray(goes_on(state)[0])):
        after = strong(eqn.outs, body(state))
        each = [on.reshape(on.shape + (1,) * (new.ndim - on.ndim)) for new in after]
        state = [jnp.where(e, new, old) for e, new, old in zip(each, after, state, strict=True)] if on.ndim else after
    return state


def _cond(eqn: Equation, ins: Leaves, runs: Runs) -> Leaves:
    index = min(max(int(ins[0]), 0), len(runs) - 1)
    return strong(eqn.outs, runs[index]([]))


_TURNS: dict[str, Callable[[Equation, Leaves, Runs], Leaves]] = {"scan": _scan, "while": _while, "cond": _cond}
