"""Equations that need all of some axes at once: sort, top_k, FFT, matrix factorizations. On each row where those
axes are no rows; along rows a sort runs on all of them, and what truly mixes rows is refused.
"""

from collections.abc import Callable
from typing import Any

from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import cut
from erythroxy_tx.program.blocks import everything
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import everything_of
from erythroxy_tx.program.rules.rule import mixing

_FIX = "apply it to something without rows, such as a covariance or a Gram matrix, or outside of the function"


class Along(Rule):
    """All outputs have the shape of the first input, but maybe along axes of its own, which it needs whole."""

    def __init__(self, axes: Callable[[Equation], tuple[int, ...]], *, on_all_rows: bool = False):
        self.axes, self.on_all_rows = axes, on_all_rows

    def kind(self, eqn: Equation) -> Kind:
        axes, rows = self.axes(eqn), eqn.ins[0].rows
        if not set(axes) & set(rows):
            return Kind.BLOCK
        if not self.on_all_rows:
            raise mixing(eqn, "which mixes all rows", _FIX)
        return Kind.WHOLE if len(rows) == 1 else Kind.BLOCK

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        axes = self.axes(eqn)
        return [
            tuple((everything(v.at[i]) if i in v.rows else None) if i in axes else p for i, p in enumerate(request))
            for v in eqn.ins
        ]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:
        own = tuple(part if i in self.axes(eqn) else None for i, part in enumerate(request))
        return [cut(found, own, at) for found in bound(eqn, ins)]


class Batched(Rule):
    """A factorization or a solve of the matrices in the last axes, for each of what comes before them."""

    def __init__(self, last: int = 2):
        self.last = last

    def kind(self, eqn: Equation) -> Kind:
        for value in eqn.ins:
            if any(i >= len(value.at) - self.last for i in value.rows) and value is eqn.ins[0]:
                raise mixing(eqn, "which mixes all rows", _FIX)
        return Kind.BLOCK

    def request(self, eqn: Equation, out: int, want: Want) -> Any:  # noqa: ARG002
        return want[: len(eqn.ins[0].at) - self.last]

    def given(self, eqn: Equation, request: Any) -> list[Want]:
        return [self._want(v, request) for v in eqn.outs]

    def _want(self, value: Value, request: Any) -> Want:
        return tuple(request[i] if i < len(request) else None for i in range(len(value.at)))

    def wants(self, eqn: Equation, request: Any) -> list[Want | None]:
        return [self._want(v, request) for v in eqn.ins]


class TriangularSolve(Rule):
    """Right-hand sides are independent of each other, and so are the systems of a batch."""

    def kind(self, eqn: Equation) -> Kind:
        solved = len(eqn.outs[0].at) - (2 if eqn.params["left_side"] else 1)
        if solved in eqn.ins[1].rows or any(i >= len(eqn.ins[0].at) - 2 for i in eqn.ins[0].rows):
            raise mixing(eqn, "a system with as many unknowns as there are rows", "solve for what has no rows")
        return Kind.BLOCK

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:  # noqa: ARG002
        return [(*request[:-2], None, None), request]


class Whole(Rule):
    """An equation that is run once, on all rows."""

    def kind(self, eqn: Equation) -> Kind:  # noqa: ARG002
        return Kind.WHOLE

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:  # noqa: ARG002
        return everything_of(eqn)


def _sorted(eqn: Equation) -> tuple[int, ...]:
    return (eqn.params["dimension"],)


def _top(eqn: Equation) -> tuple[int, ...]:
    return (eqn.params.get("axis", len(eqn.ins[0].at) - 1) % len(eqn.ins[0].at),)


def _transformed(eqn: Equation) -> tuple[int, ...]:
    ndim = len(eqn.ins[0].at)
    return tuple(range(ndim - len(eqn.params["fft_lengths"]), ndim))


FACTORIZATIONS = [
    "cholesky",
    "eig",
    "eigh",
    "geqrf",
    "hessenberg",
    "householder_product",
    "lu",
    "qr",
    "schur",
    "svd",
    "symmetric_product",
    "tridiagonal",
]
RULES: dict[str, Rule] = {
    "sort": Along(_sorted, on_all_rows=True),
    "top_k": Along(_top, on_all_rows=True),
    "fft": Along(_transformed),
    **dict.fromkeys(FACTORIZATIONS, Batched()),
    "lu_pivots_to_permutation": Batched(1),
    "triangular_solve": TriangularSolve(),
    **dict.fromkeys(["random_gamma", "threefry2x32", "iota_2x32_shape"], Whole()),
}
