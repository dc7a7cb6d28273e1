"""The big carries of a program's scans that its compiled form copies in each step, and why. Not here: what a scan
stacks (`outputs.py`), nor any change of it.
"""

import re

import jax

from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.program.scans.flow import BIG
from erythroxy_tx.program.scans.flow import Flow
from erythroxy_tx.program.scans.flow import Looked
from erythroxy_tx.program.scans.flow import Node
from erythroxy_tx.program.scans.flow import bytes_of
from erythroxy_tx.program.scans.listing import CompiledLoop
from erythroxy_tx.program.scans.listing import loops
from erythroxy_tx.units import format_bytes

_WRITES = ("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "dynamic_update_slice")
_BARRIER = "jax.lax.optimization_barrier((carry, value)) between read and write"
# Checked on the CPU: 0.10.2 and 0.11.0 take the barrier out before they place the copies, 0.11.2 and 0.12.0.1 do not.
_FIX = f"put {_BARRIER}" if jax.__version_info__ >= (0, 11, 2) else f"from jax 0.11.2 on, {_BARRIER} spares them"


def has_big_carries(flow: Flow) -> bool:
    """Whether there is anything to look for in the compiled program."""
    return any(bytes_of(carry.aval) >= BIG for scan in flow.scans for carry in scan.carries)


def copied(flow: Flow, text: str) -> list[str]:
    """The carries of 1 MiB or more that a step copies.

    **Arguments:**

    - `flow`: the program. `text`: the compiled one, as `jax.stages.Compiled.as_text()` gives it.

    **Returns:** a line for each scan, and one, indented, for each carry. A loop that is that of none of the scans, or
    cannot be told to be, is left out.
    """
    told: dict[str, dict[str, None]] = {}
    for loop in loops(text):
        for part, count in sorted(loop.copies.items()):
            owners = _owners(flow, loop, part)
            plain = {_line(scan, k, count) for scan, k in owners}
            reasons = {_reason(flow, scan, k) for scan, k in owners}
            if len(plain) == 1:  # several scans at one place may be alike but for the reason
                (head, line), reason = plain.pop(), reasons.pop() if len(reasons) == 1 else ""
                told.setdefault(head, {})[line + reason] = None
    return [line for head, lines in told.items() for line in (head, *lines)]


def _owners(flow: Flow, loop: CompiledLoop, part: int) -> list[tuple[Looked, int]]:
    """The scans that a loop may be, each with the number of the carry that is this part of its state.

    XLA keeps the order of what is carried; what a step leaves as it is may be anywhere, and what it stacks comes after.
    """
    shape, found = loop.shapes[part], []
    changed = [k for k, other in enumerate(loop.shapes) if other == shape and not loop.kept[k]]
    for scan in flow.scans:
        same = [
            k for k, carry in enumerate(scan.carries) if _compiled_shape(carry) == shape and bytes_of(carry.aval) >= BIG
        ]
        if scan.line.startswith(f"{loop.place} ") and len(same) <= len(changed) and part in changed[: len(same)]:
            found.append((scan, same[changed.index(part)]))
    return found


def _line(scan: Looked, k: int, count: int) -> tuple[str, str]:
    aval = scan.carries[k].aval
    copies = f"{count} cop{'y' if count == 1 else 'ies'}"
    every = "each step" if scan.unroll == 1 else f"{scan.unroll} steps"
    return (
        f"scan of {scan.length} steps at {scan.line} copies what it carries",
        f"    carry {scan.carry_names[k] or k}, {shape_of(aval)}, {format_bytes(bytes_of(aval))}: {copies} in {every}",
    )


def _reason(flow: Flow, scan: Looked, k: int) -> str:
    carry, updated = scan.carries[k], scan.updated[k]
    for other, after in enumerate(scan.updated):
        if after is carry and other != k:
            return f", since the step hands it on as carry {scan.carry_names[other] or other}"
    if carry in scan.ys:
        return ", since the step hands it out as it was"
    written = _written(updated, carry, {})
    reads = {user for node in written - {updated} for user in flow.users[node]} - written
    if all(read.op == "final" for read in reads):
        return ""
    is_there = any(node.op == "optimization_barrier" for node in written) and _FIX.startswith("put")
    return f", since the step keeps a value that it read before the write{'' if is_there else f': {_FIX}'}"


def _written(node: Node, carry: Node, seen: dict[Node, set[Node]]) -> set[Node]:
    """The states of a carry on its way through writes in place, up to a node; none where that is not made so."""
    if node is carry:
        return {carry}
    if node not in seen:
        before: list[Node] = []
        if node.op in _WRITES:
            before = node.ins[:1]
        elif node.op == "optimization_barrier":
            before = [node.ins[node.index]]
        elif node.op in ("cond", "select_n"):
            before = [value for value in node.ins if _compiled_shape(value) == _compiled_shape(carry)]
        found = set().union(*(_written(value, carry, seen) for value in before))
        seen[node] = found | {node} if found else set()
    return seen[node]


def _compiled_shape(node: Node) -> str:
    """A shape as the compiled text has it: `s32[8]` for `i32[8]`."""
    return re.sub(r"^i(?=\d)", "s", shape_of(node.aval)).replace("bool[", "pred[").replace("_", "")
