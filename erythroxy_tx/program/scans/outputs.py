"""The big outputs that the scans of a program stack, step by step, and which of them need not be. Not here: what a
scan carries (`copies.py`), nor any change of it.
"""

from collections.abc import Callable
from collections.abc import Iterator

from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.program.scans.flow import BIG
from erythroxy_tx.program.scans.flow import Flow
from erythroxy_tx.program.scans.flow import Looked
from erythroxy_tx.program.scans.flow import Node
from erythroxy_tx.program.scans.flow import bytes_of
from erythroxy_tx.units import format_bytes

_RUNNING = {"reduce_sum": "sum", "reduce_max": "maximum", "reduce_min": "minimum", "reduce_prod": "product"}
_SAME_ELEMENTS = ("squeeze", "reshape", "expand_dims")


def stacks(flow: Flow, paths: list[str]) -> list[str]:
    """What the scans of a program stack, where that is 1 MiB or more, and what could be handed out in its place.

    **Arguments:**

    - `flow`: the program. `paths`: a name for each of its results.

    **Returns:** a line for each scan, and one, indented, for each output of 1 MiB or more.
    """
    told: dict[tuple[str, ...], None] = {}  # a function that is called twice has its scans twice
    for scan in flow.scans:
        sizes = [bytes_of(node.aval) for node in scan.stacked]
        if sum(sizes) >= BIG:
            head = f"scan of {scan.length} steps at {scan.line} stacks {format_bytes(sum(sizes))}"
            lines = [_line(flow, scan, i, paths) for i, size in enumerate(sizes) if size >= BIG]
            told[head, *lines] = None
    return [line for lines in told for line in lines]


def _line(flow: Flow, scan: Looked, i: int, paths: list[str]) -> str:
    node = scan.stacked[i]
    names = [path for path, result in zip(paths, flow.results, strict=True) if result is node]
    what = [*(names or [scan.y_names[i]])[:1], shape_of(node.aval), format_bytes(bytes_of(node.aval))]
    asked: tuple[Callable[[], str | None], ...] = (
        lambda: None if any(_readers(flow, node)) else "never read: do not hand it out (jit leaves it out by itself)",
        lambda: _known(scan, i),
        lambda: _rebuilt(scan, i),
        lambda: _reduced(flow, scan, i),
    )
    found = None if scan.is_derived else next((said for ask in asked if (said := ask())), None)
    return f"    {', '.join(filter(None, what))}" + (f": {found}" if found else "")


def _known(scan: Looked, i: int) -> str | None:
    """Whether an output is there already: what goes in, or another one."""
    y = scan.ys[i]
    if not scan.varies(y):
        return "the same in every step: hand it out once, or use it where it is read"
    if y in scan.elements:
        return "an input of the scan, unchanged: use that"
    if y in scan.ys[:i]:
        return f"the same as {_called(scan, scan.ys.index(y))}: hand out one of them"
    if y not in scan.carries:
        return None
    after = scan.updated[scan.carries.index(y)]
    if after in scan.ys:
        return f"the carry before the step, {_called(scan, scan.ys.index(after))} one step late: hand out one of them"
    return "the carry before the step"


def _called(scan: Looked, i: int) -> str:
    return scan.y_names[i] or f"output {i}"


def _rebuilt(scan: Looked, i: int) -> str | None:
    """Whether an output is cut from what does not change, at a start that is much smaller."""
    node = scan.ys[i]
    while node.op in _SAME_ELEMENTS:
        node = node.ins[0]
    if node.op not in ("dynamic_slice", "gather") or scan.varies(node.ins[0]):
        return None
    operand, sizes = node.ins[0].aval, node.made.params["slice_sizes"]
    starts = sum(bytes_of(start.aval) for start in node.ins[1:] if scan.varies(start)) * scan.length
    if starts * 8 > bytes_of(scan.stacked[i].aval):
        return None
    cut = [axis for axis, size in enumerate(sizes) if size < operand.shape[axis]]
    again = "slice again where it is read"
    if cut == [0]:
        again = "x[starts] rebuilds it" if sizes[0] == 1 else f"tx.windows(x, starts, {sizes[0]}) rebuilds it"
    what = "rows" if cut == [0] and sizes[0] == 1 else "a window"
    return (
        f"{what} of x, {shape_of(operand)}, which does not change: hand out the starts, {format_bytes(starts)}; {again}"
    )


def _reduced(flow: Flow, scan: Looked, i: int) -> str | None:
    """Whether only a sum over the steps, or only the last one, is read."""
    last = "the final carry is that" if scan.ys[i] in scan.updated else "carry it"
    advice: dict[str, str] = {}
    for reader in _readers(flow, scan.stacked[i]):
        kind = _RUNNING.get(reader.op)
        if kind and 0 in reader.made.params["axes"]:
            advice[f"its {kind}{' (or mean)' * (kind == 'sum')} over the steps"] = f"carry a running {kind}"
        elif _is_last(scan, reader):
            advice["its last element"] = last
        else:
            return None
    what, instead = zip(*sorted(advice.items()), strict=True) if advice else ((), ())
    return f"only {' and '.join(what)} {'is' if len(what) == 1 else 'are'} read: {'; '.join(instead)}" if what else None


def _readers(flow: Flow, node: Node) -> Iterator[Node]:
    """What uses a value, through what changes no number; the value itself where it can be seen from outside."""
    if node in flow.shown:
        yield node
    for user in flow.users.get(node, ()):
        if user.op in ("convert_element_type", "batch_first"):
            yield from _readers(flow, user)
        else:
            yield user


def _is_last(scan: Looked, user: Node) -> bool:
    """Whether it takes the step that ran last, and no other."""
    if user.op != "slice":
        return False
    step = 0 if scan.reverse else scan.length - 1
    return user.made.params["start_indices"][0] == step and user.made.params["limit_indices"][0] == step + 1
