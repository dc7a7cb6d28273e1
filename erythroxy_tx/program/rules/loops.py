"""Loops and branches. A scan over rows carries from chunk to chunk; what treats each row for itself runs on any
part of the rows; what reduces over rows inside is run on all rows, its body as a stream of its own.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.blocks import Chunk
from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Carrying
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import empty
from erythroxy_tx.program.rules.rule import everything_of
from erythroxy_tx.program.rules.rule import without_rows

Leaves = list[Any]
Run = Callable[[Program, Leaves], Leaves]


class _Nested(Rule):
    """A program inside, whose rows are either independent of each other or wanted as a whole."""

    def programs(self, eqn: Equation) -> list[Program]:
        raise NotImplementedError

    def again(self, eqn: Equation, ins: Leaves, runs: list[Callable[[Leaves], Leaves]]) -> Leaves:
        """The loop or branch on other values, with a way to run each of its programs."""
        raise NotImplementedError

    def kind(self, eqn: Equation) -> Kind:
        used = any(v.used and not v.rows for v in eqn.outs)
        rows = any(v.rows for v in eqn.outs)
        return Kind.BLOCK if rows and not used and _independent(eqn, self.programs(eqn)) else Kind.WHOLE

    def request(self, eqn: Equation, out: int, want: Want) -> Any:  # noqa: ARG002
        return next(part for part in want if part is not None)

    def given(self, eqn: Equation, request: Any) -> list[Want]:
        return [_at_rows(v, request) for v in eqn.outs]

    def wants(self, eqn: Equation, request: Any) -> list[Want | None]:
        if request is None:
            return everything_of(eqn)
        return [_at_rows(v, request) for v in eqn.ins]

    def block(self, eqn: Equation, request: Any, ins: Leaves, at: At) -> Leaves:
        def on_part(program: Program) -> Callable[[Leaves], Leaves]:
            return lambda args: _run_part(program, args, request, at)

        return self.again(eqn, ins, [on_part(p) for p in self.programs(eqn)])

    def whole(self, eqn: Equation, ins: Leaves, run: Run) -> Leaves:
        def on_all(program: Program) -> Callable[[Leaves], Leaves]:
            return lambda args: run(program, args)

        return self.again(eqn, ins, [on_all(p) for p in self.programs(eqn)])


class Scan(_Nested):
    """Over rows it hands its carry from chunk to chunk; over anything else it is a loop."""

    def programs(self, eqn: Equation) -> list[Program]:
        return [eqn.inside(eqn.symbolic["jaxpr"])]

    def kind(self, eqn: Equation) -> Kind:
        if not _compat.is_symbolic(eqn.symbolic["length"]):
            return super().kind(eqn)
        consts, carried = _compat.scan_counts(eqn)
        program = self.programs(eqn)[0]
        return (
            Kind.CARRY if without_rows(program) and not any(v.rows for v in eqn.ins[: consts + carried]) else Kind.WHOLE
        )

    def carry(self, eqn: Equation) -> Carrying:
        consts, carried = _compat.scan_counts(eqn)
        xs, program = consts + carried, self.programs(eqn)[0]

        def wants(part: Range) -> list[Want | None]:
            rows: list[Want | None] = [(part, *[None] * (len(v.at) - 1)) for v in eqn.ins[xs:]]
            return [*[None] * xs, *rows]

        def step(carry: Any, ins: Leaves, rows: int, own: Any) -> tuple[Any, Leaves]:
            def scanned(carry: Any, own: Any = None) -> tuple[Leaves, Leaves]:
                return _scan(eqn, ins[:consts], carry, ins[xs:], rows, lambda args: run_whole(program, args), own)

            if own is None:
                return scanned(carry)
            found: tuple[Leaves, Leaves] = lax.cond(own.all(), scanned, lambda carry: scanned(carry, own), carry)
            return found

        return Carrying(
            eqn.params["length"],
            eqn.symbolic["length"],
            eqn.params["reverse"],
            wants,
            lambda ins: strong(
                eqn.ins[consts:xs], [_given(v, x) for v, x in zip(eqn.ins, ins, strict=True)][consts:xs]
            ),
            step,
            [None] * carried + [0] * (len(eqn.outs) - carried),
            lambda carry: carry,
        )

    def again(self, eqn: Equation, ins: Leaves, runs: list[Callable[[Leaves], Leaves]]) -> Leaves:
        consts, carried = _compat.scan_counts(eqn)
        xs = consts + carried
        start = strong(eqn.ins[consts:xs], ins[consts:xs], _telling(eqn, ins))
        carry, ys = _scan(eqn, ins[:consts], start, ins[xs:], eqn.params["length"], runs[0])
        return [*carry, *ys]


def _given(value: Value, x: Any) -> Any:
    return value.known if x is None else x


def _scan(
    eqn: Equation,
    consts: Leaves,
    start: Leaves,
    xs: Leaves,
    length: Any,
    run: Callable[[Leaves], Leaves],
    own: Any = None,
) -> tuple[Leaves, Leaves]:
    """The scan of some rows; `own` tells those that count, None that all do."""
    carried = len(start)

    def turn(carry: Leaves, row: Leaves) -> tuple[Leaves, Leaves]:
        outs = run([*consts, *carry, *row])
        return strong(eqn.outs[:carried], outs[:carried], carry), outs[carried:]

    def passed(carry: Leaves, row: Leaves) -> tuple[Leaves, Leaves]:
        return carry, [empty(x.shape, x.dtype) for x in jax.eval_shape(turn, carry, row)[1]]

    def body(carry: Leaves, x: tuple[Leaves, Any]) -> tuple[Leaves, Leaves]:
        row, counts = x
        if counts is None:
            return turn(carry, row)
        found: tuple[Leaves, Leaves] = lax.cond(counts, turn, passed, carry, row)  # a select writes down a large carry
        return found

    return lax.scan(body, start, (xs, own), length=length, reverse=eqn.params["reverse"], unroll=eqn.params["unroll"])


def _telling(eqn: Equation, ins: Leaves) -> Leaves:
    """The inputs that tell whether what a loop carries differs between devices: if it has no rows, they have none."""
    keeps = any(v.rows for v in eqn.outs)
    return [x for v, x in zip(eqn.ins, ins, strict=True) if x is not None and (keeps or not v.rows)]


def strong(values: list[Value], leaves: Leaves, like: Sequence[Any] = ()) -> Leaves:
    """Leaves as a loop carries them: of the dtype that they have, and not weakly; differing between the devices of a
    mesh where any of `like` does.
    """
    pairs = zip(values, leaves, strict=True)
    return _compat.varied([x if v.keys else _compat.convert(x, v.dtype, weak_type=False) for v, x in pairs], like)


class While(_Nested):
    """A batch of loops goes on while any of them does, and each stops for itself."""

    def programs(self, eqn: Equation) -> list[Program]:
        return [eqn.inside(eqn.symbolic[name]) for name in ("cond_jaxpr", "body_jaxpr")]

    def again(self, eqn: Equation, ins: Leaves, runs: list[Callable[[Leaves], Leaves]]) -> Leaves:
        of_cond, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        cond_consts, body_consts, start = ins[:of_cond], ins[of_cond : of_cond + of_body], ins[of_cond + of_body :]

        def goes_on(state: Any) -> Any:
            return runs[0]([*cond_consts, *state])[0]

        def body(state: Any) -> Any:
            after = strong(eqn.outs, runs[1]([*body_consts, *state]), state)
            on = goes_on(state) if eqn.predicate_is_batched else jnp.ones((), bool)
            if not jnp.ndim(on):
                return after
            each = [jnp.reshape(on, on.shape + (1,) * (jnp.ndim(x) - on.ndim)) for x in after]
            return [jnp.where(e, new, old) for e, new, old in zip(each, after, state, strict=True)]

        return list(lax.while_loop(lambda s: jnp.any(goes_on(s)), body, strong(eqn.outs, start, _telling(eqn, ins))))


class Cond(_Nested):
    """One of several branches, by a number that has no rows."""

    def programs(self, eqn: Equation) -> list[Program]:
        return [eqn.inside(branch) for branch in eqn.symbolic["branches"]]

    def again(self, eqn: Equation, ins: Leaves, runs: list[Callable[[Leaves], Leaves]]) -> Leaves:
        def branch(run: Callable[[Leaves], Leaves]) -> Callable[..., Leaves]:
            return lambda *args: strong(eqn.outs, run(list(args)), _telling(eqn, ins))

        return list(lax.switch(ins[0], [branch(run) for run in runs], *ins[1:]))


def _at_rows(value: Value, part: Range) -> Want:
    return tuple(part if i in value.rows else None for i in range(len(value.at)))


def _independent(eqn: Equation, programs: list[Program]) -> bool:
    """Whether the programs inside compute any part of their rows from the same part of their inputs'."""
    values = [v for v in (*eqn.ins, *eqn.outs) if v.rows]
    dims = {str(v.shape[i]) for v in values for i in v.rows}
    if len(dims) != 1 or any(len(v.rows) != 1 for v in values):
        return False
    size = values[0].at[values[0].rows[0]]
    part = Range(Start(0, 1, Chunk(max(size - 1, 0), 1)), 1)
    return all(_part_of(program, part) is not None for program in programs)


def _part_of(program: Program, part: Range) -> Any:
    """The steps for a part of the rows of a program's outputs, or None if they need more of the inputs' than that."""
    from erythroxy_tx.program.rows import Search
    from erythroxy_tx.program.rows import kinds_of  # which need the rules
    from erythroxy_tx.program.rows import live

    used = live(program)
    kinds = kinds_of(used)
    if any(kind is not Kind.BLOCK or not any(v.rows for v in eqn.outs) for eqn, kind in kinds.items()):
        return None
    inputs = set(program.ins)
    targets = [(v, _at_rows(v, part)) for v in program.outs if v.rows]
    found = Search(inputs, kinds, None).needs(targets)
    parts = [*targets, *((v, w) for s in found.steps for v, w in zip(s.eqn.ins, s.wants(), strict=True) if w)]
    for value, want in parts:
        if (value in inputs or len(value.rows) > 1) and value.rows and want != _at_rows(value, part):
            return None
    if found.long or any(v.rows and v not in inputs for v in found.reads):
        return None
    return found, [eqn for eqn in used if eqn not in kinds]


def _run_part(program: Program, args: Leaves, part: Range, at: At) -> Leaves:
    from erythroxy_tx.program.evaluate import Blocks  # which needs the rules

    found, free = _part_of(program, part)
    blocks = Blocks({}, None, at)
    for value, arg in zip(program.ins, args, strict=True):
        (blocks.parts if value.rows else blocks.there)[(value, _at_rows(value, part)) if value.rows else value] = arg
    order = sorted([*found.steps, *free], key=lambda x: x.eqn.index if hasattr(x, "eqn") else x.index)
    for item in order:
        blocks.run_item(item)
    return [blocks.part(v, _at_rows(v, part)) for v in program.outs]


def run_whole(program: Program, args: Leaves) -> Leaves:
    """A program on all of its rows at once."""
    from erythroxy_tx.program.evaluate import run_whole as run  # which needs the rules

    return run(program, args)


def programs_of(eqn: Equation) -> list[Program]:
    """The programs inside of a loop or a branch; none of any other equation."""
    rule = RULES.get(eqn.name)
    return rule.programs(eqn) if isinstance(rule, _Nested) else []


def again(eqn: Equation, ins: Leaves, runs: list[Callable[[Leaves], Leaves]]) -> Leaves:
    """A loop or a branch on other values, with a way to run each of its programs."""
    rule = RULES[eqn.name]
    assert isinstance(rule, _Nested)
    return rule.again(eqn, ins, runs)


RULES: dict[str, Rule] = {"scan": Scan(), "while": While(), "cond": Cond()}
