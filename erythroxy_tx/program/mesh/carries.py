"""Where a carry along rows begins on each device: what the rows of the devices before leave behind. Each goes over its
rows once to tell what they do to a carry, and what those before it do together is its beginning.

Cumulative operations have a neutral beginning, and their ends are joined. Of a scan that is affine in its carry, the
rows of a device do c → A c + b; where A, b or c is not finite, or A grows and its product cancels, so that this is not
what the rows do one by one, they run on one device after the other. Any other scan is refused, or run so always.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from erythroxy_tx import _compat
from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.mesh.affine import is_affine
from erythroxy_tx.program.mesh.affine import is_elementwise
from erythroxy_tx.program.mesh.exchange import of_each
from erythroxy_tx.program.mesh.exchange import of_owner
from erythroxy_tx.program.passes import Carry
from erythroxy_tx.program.passes import Pass
from erythroxy_tx.program.plan import Plan
from erythroxy_tx.program.rules.rule import mixing

Leaves = list[Any]
_MOST = 64  # numbers of a carry, whose A is computed as a matrix
_GROWN, _CANCELLED = 2, 8  # by how much A c and b may be larger than c, and than their sum


def check_carry(task: Carry, *, chain: bool) -> None:
    """Refuse a carry whose beginning on a device takes the one before to have finished, unless that is asked for.

    **Raises:** `RowMixingError`.
    """
    if task.eqn.name == "scan" and not chain and _way(task) == "chain":
        raise mixing(
            task.eqn,
            f"whose step is not affine in the carry, or mixes more than {_MOST} numbers of it, so that a device can "
            "begin only after the one before it",
            "tx.over(…, chain=True), which lets one device run after the other; or tx.chunked(lax.map, …)",
        )


def _way(task: Carry) -> str:
    if task.eqn.name != "scan":
        return "join"
    consts, carried = _compat.scan_counts(task.eqn)
    program = task.eqn.inside(task.eqn.symbolic["jaxpr"])
    numbers = sum(math.prod(v.at) for v in program.ins[consts : consts + carried])
    if not is_affine(program, consts, carried):
        return "chain"
    if not numbers or is_elementwise(program, consts, carried):
        return "each"
    return "matrix" if numbers <= _MOST else "chain"


def levels(plan: Plan, one: Pass, carries: list[Carry], ranges: list[Range]) -> list[list[Carry]]:
    """The carries of a pass in order: those of each list need only those of the lists before."""
    own, found, placed = {task.eqn: task for task in carries}, list[list[Carry]](), dict[Any, int]()
    for task in sorted(carries, key=lambda task: task.eqn.index):
        needs = plan.needs(Pass(one.grid, one.reverse, [task]), ranges[0])
        level = max((placed[eqn] + 1 for eqn in needs.carries if eqn in own and eqn is not task.eqn), default=0)
        placed[task.eqn] = level
        found += [[]] if level == len(found) else []
        found[level].append(task)
    return found


class Line:
    """The devices in the order in which carries run."""

    def __init__(self, layout: Any, me: Any, *, reverse: bool):
        self.axis, self.devices, self.me, self.reverse = layout.axis, layout.devices, me, reverse
        self._varied = layout.varied

    def starts(self, tasks: list[Carry], first: Leaves, end: Callable[[Leaves], Leaves]) -> Leaves:
        """Where each carry begins on this device.

        **Arguments:** `first`: where the first one begins. `end`: where this device's rows lead from a beginning.
        """
        ways = [_way(task) for task in tasks]
        if not jax.tree.leaves(first):
            return first
        if "chain" in ways:
            return self._in_turn(first, end)
        plain = self._begun(tasks, ways, first)
        found, slopes = self._slopes(ways, plain, end)
        leaves, structure = jax.tree.flatten((found, slopes))
        ends, slopes = jax.tree.unflatten(structure, of_each(leaves, self.axis, self.devices))
        each = zip(tasks, ways, first, ends, slopes, strict=True)
        folded, exact = zip(*(self._folded(*one) for one in each), strict=True)
        if set(ways) == {"join"}:
            return list(folded)
        starts: Leaves = lax.cond(
            functools.reduce(jnp.logical_and, exact),
            lambda: self._varied(list(folded)),
            lambda: self._varied(self._in_turn(first, end)),
        )
        return starts

    def _begun(self, tasks: list[Carry], ways: list[str], first: Leaves) -> Leaves:
        return [
            start if way == "join" else jax.tree.map(jnp.zeros_like, start)
            for _, way, start in zip(tasks, ways, first, strict=True)
        ]

    def _slopes(self, ways: list[str], plain: Leaves, end: Callable[[Leaves], Leaves]) -> tuple[Leaves, Leaves]:
        """Where the rows of this device lead from zero, and how that changes with the beginning."""
        if set(ways) == {"join"}:
            return end(plain), [()] * len(ways)
        slopes = list[Any]()
        for i, way in enumerate(ways):
            if way == "join":
                slopes.append(())
                continue

            def of_one(begun: Any, i: int = i) -> Any:
                return end([begun if j == i else other for j, other in enumerate(plain)])[i]

            push = lambda t, i=i, of_one=of_one: jax.jvp(of_one, (plain[i],), (t,))[1]  # noqa: E731
            if way == "each":
                slopes.append(push(jax.tree.map(jnp.ones_like, plain[i])))
            else:
                flat, unravel = ravel_pytree(plain[i])
                columns = [push(unravel(column)) for column in self._varied(list(jnp.eye(flat.size, dtype=flat.dtype)))]
                slopes.append(jnp.stack([ravel_pytree(c)[0] for c in columns], 1))
        return end(plain), slopes

    def _folded(self, task: Carry, way: str, start: Any, stack: Any, slope: Any) -> tuple[Any, Any]:
        """What the devices before this one make of the first beginning, and whether that is as good as in turn."""
        order = list(range(self.devices))[:: -1 if self.reverse else 1]
        now, found, exact = start, start, list[Any]()
        for i, following in itertools.pairwise(order):
            one = jax.tree.map(lambda x, i=i: x[i], stack)
            if task.how.join is not None:
                now = task.how.join(now, one)
            else:
                now, good = _moved(way, slope, i, now, one)
                exact.append(good)
            mine = following == self.me
            found = jax.tree.map(lambda a, b: jnp.where(mine, a, b), now, found)  # noqa: B023
        return found, functools.reduce(jnp.logical_and, exact, jnp.bool_(True))  # noqa: FBT003

    def _in_turn(self, first: Leaves, end: Callable[[Leaves], Leaves]) -> Leaves:
        """One device after the other: each hands its end to the next."""
        step = -1 if self.reverse else 1
        pairs = [(i, i + step) for i in range(self.devices) if 0 <= i + step < self.devices]

        def turn(i: Any, state: tuple[Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            carry, start = state
            at = self.devices - 1 - i if self.reverse else i
            mine = at == self.me
            start = jax.tree.map(lambda a, b: jnp.where(mine, a, b), carry, start)
            carry = lax.cond(mine, lambda c: self._varied(end(c)), lambda c: c, carry)
            got = lax.ppermute(carry, self.axis, pairs)
            carry = jax.tree.map(lambda a, b: jnp.where(at + step == self.me, a, b), got, carry)
            return self._varied((carry, start))

        _, start = lax.fori_loop(0, self.devices, turn, (first, first))
        return start

    def ends(self, tasks: list[Carry], carries: Leaves) -> Leaves:
        """The carries after the last row of all, where any result is made of them."""
        wanted = [any(axis is None for axis in task.how.axes) for task in tasks]
        leaves, structure = jax.tree.flatten([c for c, w in zip(carries, wanted, strict=True) if w])
        last = self.me == (0 if self.reverse else self.devices - 1)
        found = iter(jax.tree.unflatten(structure, of_owner(leaves, [last] * len(leaves), self.axis)))
        return [next(found) if w else own for w, own in zip(wanted, carries, strict=True)]


def _moved(way: str, slope: Any, i: int, carry: Any, end: Any) -> tuple[Any, Any]:
    """A c + b of the rows of device `i`, and whether it is what they would do one by one but for rounding."""
    flat, unravel = ravel_pytree(carry)
    b = ravel_pytree(end)[0]
    if way == "each":
        a = ravel_pytree([x[i] for x in slope])[0]
        moved, grown = a * flat, abs(a) > _GROWN
        size = abs(moved) + abs(b)
        after = moved + b
        total = abs(after)
    else:
        a = slope[i]
        after = jnp.matmul(a, flat, precision=lax.Precision.HIGHEST) + b
        size = jnp.max(jnp.matmul(abs(a), abs(flat)) + abs(b))
        grown, total = abs(a).sum(1).max() > _GROWN, abs(after).max()
    finite = [jnp.isfinite(x).all() for x in (a, flat, b, after)]
    return unravel(after), functools.reduce(jnp.logical_and, finite) & ~(grown & (size > _CANCELLED * total)).any()
