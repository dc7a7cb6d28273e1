"""A program with something else in the place of each of its scans, wherever they are: inside of jit, cond, while,
remat, other scans, and functions with derivative rules of their own. Not here: what is put there.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.program.scans.scan import Leaves
from erythroxy_tx.program.scans.scan import Scan

Rule = Callable[[Scan], Leaves]


@dataclasses.dataclass(frozen=True)
class Unreached:
    """A scan that was left as it is: inside of what, and where that was written."""

    inside: str
    line: str

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        return f"a scan inside of {self.inside}{where} is left as it is"


_OWN_RULES = {
    "custom_vjp_call": "a function with a custom_vjp, whose forward and backward are its own",
    "custom_jvp_call": "a function with a custom_jvp, whose derivative is its own",
}


def rewritten(closed: Any, rule: Rule, args: Leaves) -> tuple[Leaves, list[Unreached]]:
    """Evaluate a closed program with `rule(scan)` in the place of each scan, the inner ones first.

    **Returns:** its results, and the scans that no rule can reach.
    """
    unreached: list[Unreached] = []
    return _evaluate(closed, rule, args, unreached), list(dict.fromkeys(unreached))


def _evaluate(closed: Any, rule: Rule, args: Leaves, unreached: list[Unreached]) -> Leaves:
    def inner(program: Any) -> Callable[..., Leaves]:
        return lambda *args: _evaluate(_compat.closed(program), rule, list(args), unreached)

    def each(eqn: Any, ins: Leaves) -> Leaves:
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            return rule(_scan(eqn, ins, inner))
        if not any(map(has_scan, _compat.sub_jaxprs(eqn))):
            return _compat.bind(eqn.primitive, ins, params)
        if name in ("jit", "pjit"):
            traced = jax.make_jaxpr(inner(params["jaxpr"]))(*map(struct_of, ins))
            return _compat.bind(eqn.primitive, ins, {**params, "jaxpr": traced})
        if name == "cond":
            return list(lax.switch(ins[0], [inner(branch) for branch in params["branches"]], *ins[1:]))
        if name == "while":
            return _while(params, ins, inner)
        if name in ("checkpoint", "remat2", "remat"):
            return _compat.rematerialised(eqn, inner(params["jaxpr"]), ins)
        unreached.append(Unreached(_OWN_RULES.get(name, name), _compat.source_line(eqn)))
        return _compat.bind(eqn.primitive, ins, params)

    return _compat.evaluate(closed, args, each)


def _scan(eqn: Any, ins: Leaves, inner: Callable[[Any], Callable[..., Leaves]]) -> Scan:
    params = eqn.params
    n_consts, n_carry = _compat.scan_counts(eqn)
    jaxpr = _compat.closed(params["jaxpr"]).jaxpr
    run = inner(params["jaxpr"])

    def body(consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        found = run(*consts, *carry, *x)
        return found[:n_carry], found[n_carry:]

    return Scan(
        ins[:n_consts],
        ins[n_consts : n_consts + n_carry],
        ins[n_consts + n_carry :],
        params["length"],
        params["reverse"],
        params["unroll"],
        body,
        jaxpr,
        _compat.source_line(eqn),
        id(eqn),
        bool(jaxpr.effects),
    )


def _while(params: dict[str, Any], ins: Leaves, inner: Callable[[Any], Callable[..., Leaves]]) -> Leaves:
    n, m = params["cond_nconsts"], params["body_nconsts"]
    go_on, step = inner(params["cond_jaxpr"]), inner(params["body_jaxpr"])
    found = lax.while_loop(
        lambda state: go_on(*ins[:n], *state)[0], lambda state: step(*ins[n : n + m], *state), ins[n + m :]
    )
    return list(found)


def has_scan(jaxpr: Any) -> bool:
    """Whether there is a scan in a program, at any depth."""
    return any(eqn.primitive.name == "scan" or any(map(has_scan, _compat.sub_jaxprs(eqn))) for eqn in jaxpr.eqns)
