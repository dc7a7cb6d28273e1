"""Whether what a row does to a carry is affine in the carry, c → A c + b, so that the rows of a device as a whole do
that too. Read off from the equations: each one that the carry goes through has to be linear in it.
"""

import jax.numpy as jnp

from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value

_KEEP = {  # linear in their first input, whatever else they take
    "broadcast_in_dim", "copy", "expand_dims", "neg", "reduce_sum", "reshape", "rev", "slice", "squeeze", "transpose",
}  # fmt: skip
_ADD = {"add", "sub", "add_any", "concatenate"}
_TIMES = {"mul", "dot_general"}
_ELEMENTWISE = {"add", "add_any", "broadcast_in_dim", "convert_element_type", "copy", "div", "mul", "neg", "sub"}


def is_affine(program: Program, consts: int, carried: int) -> bool:
    """Whether the next carries of a scan's program are affine in its carries."""
    return _through(program, consts, carried) is not None


def is_elementwise(program: Program, consts: int, carried: int) -> bool:
    """Whether each number of the one carry that there is depends on itself alone of it."""
    found = _through(program, consts, carried)
    shape = program.ins[consts].at if carried == 1 else None
    return (
        found is not None
        and all(eqn.name in _ELEMENTWISE and all(v.at == shape for v in eqn.outs) for eqn in found)
        and carried == 1
    )


def _through(program: Program, consts: int, carried: int) -> list[Equation] | None:
    """The equations on the way from the carries to the next ones, if each is linear in what it takes of them."""
    carries = program.ins[consts : consts + carried]
    of_carry, way = set[Value](carries), list[Equation]()
    if not all(jnp.issubdtype(v.dtype, jnp.floating) and v.dtype.itemsize >= 4 for v in carries):
        return None
    reached = set[Value](program.outs[:carried])
    for eqn in reversed(program.equations):
        if not reached.isdisjoint(eqn.outs):
            reached |= set(eqn.ins)
    for eqn in program.equations:
        taken = [v in of_carry for v in eqn.ins]
        if not any(taken):
            continue
        of_carry |= set(eqn.outs)
        if reached.isdisjoint(eqn.outs):
            continue
        if not _is_linear(eqn, taken):
            return None
        way.append(eqn)
    return way


def _is_linear(eqn: Equation, taken: list[bool]) -> bool:
    name = eqn.name
    if any(v.dtype != eqn.outs[0].dtype for v, is_taken in zip(eqn.ins, taken, strict=True) if is_taken):
        return False  # rounded on the way
    if name in _ADD:
        return True
    if name in _TIMES:
        return sum(taken) == 1
    if name == "select_n":
        return not taken[0]
    if name == "convert_element_type":
        return True  # to the same dtype
    return taken[0] and not any(taken[1:]) and (name in _KEEP or name == "div")
