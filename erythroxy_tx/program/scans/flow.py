"""What each value of a program is made from, through calls and loops, and every scan in it with what it carries and
stacks. Not here: what is said of them (`outputs.py`, `copies.py`).
"""

import collections
import dataclasses
import math
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from erythroxy_tx import _compat

BIG = 2**20  # bytes: what is smaller is not told

# Of these the program inside takes and gives just what the equation does.
_CALLS = ("jit", "pjit", "closed_call", "checkpoint", "remat", "remat2", "custom_jvp_call", "custom_vjp_call")


@dataclasses.dataclass(eq=False)
class Node:
    """One value: the `index`-th that `made` gives, from `ins`. `made` is an equation, or a word for what has none."""

    number: int
    aval: Any
    made: Any
    ins: list["Node"]
    index: int = 0

    @property
    def op(self) -> str:
        return self.made if isinstance(self.made, str) else self.made.primitive.name

    @property
    def has_effects(self) -> bool:
        return not isinstance(self.made, str) and bool(self.made.effects)


@dataclasses.dataclass(frozen=True, eq=False)
class Looked:
    """A scan at hand.

    `carries` are the carries as a step gets them, `updated` as it leaves them; `ys` is what a step hands out and
    `stacked` the whole of each. `carry_names` and `y_names` are the user's, "" where they are lost. `is_derived` says
    that JAX made it of the user's, for a derivative.
    """

    line: str
    length: Any
    reverse: bool
    unroll: int
    carries: list[Node]
    updated: list[Node]
    elements: list[Node]
    ys: list[Node]
    stacked: list[Node]
    carry_names: list[str]
    y_names: list[str]
    is_derived: bool
    first: int  # the body's own nodes are numbered from here

    def varies(self, node: Node) -> bool:
        """Whether a value of the body may differ from step to step."""
        seen, waiting = set(), [node]
        while waiting:
            node = waiting.pop()
            if node.number < self.first or node in seen:
                continue
            if node.has_effects or node in self.carries or node in self.elements:
                return True
            seen.add(node)
            waiting += node.ins
        return False


class Flow:
    """A closed program as nodes: its `results`, its `scans`, what can be seen from outside (`shown`: results, and what
    effects take), and the `users` of each node on the way to that.

    What is inside of jit, remat and functions with derivative rules of their own is part of the whole, and so is each
    branch of a cond. Of a primitive that is not known each result is made from all that goes in.
    """

    def __init__(self, closed: Any):
        self.scans: list[Looked] = []
        self._count = 0
        self._effects: list[Node] = []
        self.results = self._visit(closed.jaxpr, self._fresh(closed.jaxpr.invars, "input"))
        self.shown = {*self.results, *self._effects}
        self.users: dict[Node, list[Node]] = collections.defaultdict(list)
        for node in reached([*self.results, *self._effects]):
            for value in dict.fromkeys(node.ins):
                self.users[value].append(node)

    def _node(self, aval: Any, made: Any, ins: list[Node], index: int = 0) -> Node:
        self._count += 1
        return Node(self._count, aval, made, ins, index)

    def _fresh(self, variables: Iterable[Any], made: str, ins: Iterable[Node] | None = None) -> list[Node]:
        """A node for each variable: made from one of `ins` each."""
        variables = list(variables)
        each = [[] for _ in variables] if ins is None else [[node] for node in ins]
        return [self._node(v.aval, made, list(node)) for v, node in zip(variables, each, strict=True)]

    def _visit(self, jaxpr: Any, ins: list[Node]) -> list[Node]:
        there = dict(zip(jaxpr.invars, ins, strict=True))
        there.update(zip(jaxpr.constvars, self._fresh(jaxpr.constvars, "constant"), strict=True))

        def read(v: Any) -> Node:
            return self._node(v.aval, "literal", []) if isinstance(v, _compat.Literal) else there[v]

        for eqn in jaxpr.eqns:
            there.update(zip(eqn.outvars, self._equation(eqn, [read(v) for v in eqn.invars]), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, eqn: Any, ins: list[Node]) -> list[Node]:
        name, bodies = eqn.primitive.name, list(_compat.sub_jaxprs(eqn))
        if name == "scan":
            return self._scan(eqn, bodies[0], ins)
        if name == "while":
            return self._while(eqn, ins)
        if name in _CALLS and len(bodies) == 1 and len(bodies[0].invars) == len(ins):
            return self._visit(bodies[0], ins)
        if name == "cond":
            self._effects += ins[:1] if eqn.effects else ()
            branches = [self._visit(body, ins[1:]) for body in bodies]
            return [self._node(v.aval, eqn, [*outs, ins[0]]) for v, *outs in zip(eqn.outvars, *branches, strict=True)]
        self._effects += ins if eqn.effects else ()
        inside = [out for body in bodies for out in self._visit(body, self._unknown(body.invars, ins))]
        return [self._node(v.aval, eqn, [*ins, *inside], i) for i, v in enumerate(eqn.outvars)]

    def _unknown(self, variables: Iterable[Any], ins: list[Node]) -> list[Node]:
        return [self._node(v.aval, "argument", list(ins)) for v in variables]

    def _scan(self, eqn: Any, body: Any, ins: list[Node]) -> list[Node]:
        n_consts, n_carry = _compat.scan_counts(eqn)
        end, first = n_consts + n_carry, self._count + 1
        carries = self._fresh(body.invars[n_consts:end], "carry", ins[n_consts:end])
        elements = self._fresh(body.invars[end:], "element", ins[end:])
        outs = self._visit(body, [*ins[:n_consts], *carries, *elements])
        updated, ys = outs[:n_carry], outs[n_carry:]
        for carry, after in zip(carries, updated, strict=True):
            carry.ins.append(after)
        final = self._fresh(eqn.outvars[:n_carry], "final", carries)
        stacked = self._fresh(eqn.outvars[n_carry:], "stacked", ys)
        arguments = _names(body.debug_info.arg_names, len(body.invars))
        given = _names(body.debug_info.result_paths, len(body.outvars))
        params = eqn.params
        self.scans.append(
            Looked(
                _compat.source_line(eqn),
                params["length"],
                params["reverse"],
                params["unroll"],
                carries,
                updated,
                elements,
                ys,
                stacked,
                arguments[n_consts:end],
                [f"y{path.removeprefix('result[1]')}" if path[:9] == "result[1]" else "" for path in given[n_carry:]],
                body.debug_info.arg_names is None,
                first,
            )
        )
        return [*final, *stacked]

    def _while(self, eqn: Any, ins: list[Node]) -> list[Node]:
        go_on, step = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
        n, m = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carries = self._fresh(step.invars[m:], "carry", ins[n + m :])
        (more,) = self._visit(go_on, [*ins[:n], *carries])
        for carry, after in zip(carries, self._visit(step, [*ins[n : n + m], *carries]), strict=True):
            carry.ins.append(after)
        self._effects += [more] if eqn.effects else ()
        return [self._node(v.aval, "final", [carry, more]) for v, carry in zip(eqn.outvars, carries, strict=True)]


def reached(nodes: Iterable[Node]) -> Iterator[Node]:
    """All that some nodes are made from, and they."""
    seen, waiting = set(), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.ins
            yield node


def bytes_of(aval: Any) -> int:
    """Its bytes; 0 where that is not known, or it is no array."""
    shape = getattr(aval, "shape", (None,))
    return math.prod(shape) * aval.dtype.itemsize if all(isinstance(n, int) for n in shape) else 0


def _names(names: Any, count: int) -> list[str]:
    """Names of the right number, or none: what JAX makes of a body may have lost them."""
    return list(names) if names is not None and len(names) == count else [""] * count
