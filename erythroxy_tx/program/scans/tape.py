"""A scan whose derivative keeps little: the carries at the starts of segments, from which the steps are run again, or
carries in half their bytes, or both.
The rule of its derivative is a tangent loop in plain JAX, so that forward mode, `vmap`, and derivatives of the
derivative follow from it. Not here: how many segments (`transforms/`).

The tangents of what every step shares run through the loop as a carry. Its transpose then adds the cotangents of
all steps to one accumulator, in the order in which that of `lax.scan` does: the gradient is the same, bit for bit.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.loop import is_zero
from erythroxy_tx.program.loop import put
from erythroxy_tx.program.scans.half import Half
from erythroxy_tx.program.scans.scan import Leaves
from erythroxy_tx.program.scans.scan import Scan
from erythroxy_tx.program.scans.scan import is_float


@dataclasses.dataclass(frozen=True)
class Part:
    """Steps `start` to `stop`, as `segments` of equal length."""

    start: int
    stop: int
    segments: int

    @property
    def steps(self) -> int:
        return (self.stop - self.start) // self.segments


def parts(length: int, segment: int) -> list[Part]:
    """Segments of about that many steps: of a divisor of the length where one is near, or with a shorter last one."""
    near = [n for n in range(max(1, -(-2 * segment // 3)), 3 * segment // 2 + 1) if length % n == 0]
    if near:
        return [Part(0, length, length // min(near, key=lambda n: abs(math.log(n / segment))))]
    whole = length - length % segment
    return [Part(0, whole, whole // segment)] * bool(whole) + [Part(whole, length, 1)]


def run(scan: Scan, segment: int, half: Half) -> Leaves:
    """Run a scan whose derivative keeps a carry for each `segment` steps, and of those steps, while they are run again,
    each carry, in half its bytes where `half` says so.
    """

    bare = scan.bare()

    @jax.custom_jvp
    def looped(consts: Leaves, init: Leaves, xs: Leaves) -> Leaves:
        body = half.around(bare.body)
        found = dataclasses.replace(bare, body=body, consts=consts, init=half.carried(init), xs=xs).plain()
        return _in_front([*half.read(found[: len(init)]), *found[len(init) :]])

    @functools.partial(looped.defjvp, symbolic_zeros=True)
    def _(primals: tuple, tangents: tuple) -> tuple[Leaves, Leaves]:
        return _Derivative(bare, segment, half, *primals, *tangents).both()

    return looped(scan.consts, scan.init, scan.xs)


class _Derivative:
    """The results of a scan and their tangents, for one set of primals and tangents."""

    def __init__(
        self, scan: Scan, segment: int, half: Half, consts: Leaves, init: Leaves, xs: Leaves, *tangents: Leaves
    ) -> None:  # fmt: skip
        self.scan, self.segment, self.half = scan, segment, half
        self.step = half.around(scan.body)
        self.consts, self.init, self.xs = consts, init, xs
        moving = [[i for i, d in enumerate(group) if not is_zero(d)] for group in tangents]
        self.shared, _, self.each = moving  # which of the shared, and of what comes with each step, have a tangent
        self.floats = [i for i, c in enumerate(init) if is_float(c)]
        d_consts, d_init, d_xs = tangents
        self.d_consts = [d_consts[i] for i in self.shared]
        self.d_init = [_materialised(d_init[i], init[i]) for i in self.floats]
        self.d_xs = [d_xs[i] for i in self.each]
        self._loop: Any = functools.partial(lax.scan, reverse=scan.reverse)

    def both(self) -> tuple[Leaves, Leaves]:
        carry: Any = self.half.carried(self.init)
        moved = self.d_init, self.d_consts
        ys, d_ys = [], []
        order = parts(self.scan.length, self.segment)
        for part in reversed(order) if self.scan.reverse else order:
            cut = lambda leaves, part=part: [leaf[part.start : part.stop] for leaf in leaves]  # noqa: E731
            step = self._of_steps if part.steps == 1 else self._of_segments
            carry, moved, y, d_y = step(part, carry, moved, cut(self.xs), cut(self.d_xs))
            ys.append(y)
            d_ys.append(d_y)
        if self.scan.reverse:
            ys, d_ys = ys[::-1], d_ys[::-1]
        y, d_y, carry = _joined(ys), _joined(d_ys), self.half.read(carry)
        return _in_front([*carry, *y]), _in_front([*self._like(carry, moved[0]), *self._like(y, d_y)])

    def _of_steps(self, part: Part, carry: Leaves, moved: Any, xs: Leaves, d_xs: Leaves) -> tuple:
        """A tape of the carry of each step."""

        def forward(carry: Leaves, x: Leaves) -> tuple:
            new, y = self.step(self.consts, carry, x)
            return new, (y, self.half.taped(carry))

        length = part.stop - part.start
        carry, (ys, kept) = self._loop(forward, carry, xs, length=length, unroll=self.scan.unroll)
        moved, d_ys = self._tangents(length, self.consts, moved, kept, xs, d_xs)
        return carry, moved, ys, d_ys

    def _of_segments(self, part: Part, carry: Leaves, moved: Any, xs: Leaves, d_xs: Leaves) -> tuple:
        """A tape of the carries at the start of each segment, which is run again from there."""
        n, m = part.segments, part.steps
        split = lambda leaves: [leaf.reshape(n, m, *leaf.shape[1:]) for leaf in leaves]  # noqa: E731
        whole = lambda leaves: [leaf.reshape(n * m, *leaf.shape[2:]) for leaf in leaves]  # noqa: E731
        step = functools.partial(self.step, self.consts)

        def forward(carry: Leaves, x: Leaves) -> tuple:
            new, y = self._loop(step, carry, x, length=m, unroll=min(self.scan.unroll, m))
            return new, (y, self.half.stacked(carry))

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def again(consts: Leaves, moved: Any, start: Leaves, x: Leaves, d_x: Leaves) -> tuple:
            run = lambda carry, x: (self.step(consts, carry, x)[0], self.half.taped(carry))  # noqa: E731
            _, kept = self._loop(run, self.half.carried(self.half.read(start)), x, length=m)
            return self._tangents(m, consts, moved, kept, x, d_x)

        carry, (ys, starts) = self._loop(forward, carry, split(xs), length=n)
        moved, d_ys = self._loop(
            lambda moved, at: again(self.consts, moved, *at), moved, (starts, split(xs), split(d_xs)), length=n
        )
        return carry, moved, whole(ys), whole(d_ys)

    def _tangents(self, length: int, consts: Leaves, moved: Any, kept: Leaves, xs: Leaves, d_xs: Leaves) -> tuple:
        """The tangent loop over some steps, from the carries that are kept of them."""

        # What is shared passes through unchanged. From outside of a checkpoint JAX would see that, and share it again.
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def moves(consts: Leaves, kept: Leaves, x: Leaves, d_carry: Leaves, d_consts: Leaves, d_x: Leaves) -> tuple:
            def step(shared: Leaves, floats: Leaves, each: Leaves) -> tuple[Leaves, Leaves]:
                new, y = self.scan.body(
                    put(consts, self.shared, shared), put(carry, self.floats, floats), put(x, self.each, each)
                )
                return [new[i] for i in self.floats], [leaf for leaf in y if is_float(leaf)]

            carry = self.half.read(kept)
            at = [consts[i] for i in self.shared], [carry[i] for i in self.floats], [x[i] for i in self.each]
            d_carry, d_y = jax.jvp(step, at, (d_consts, d_carry, d_x))[1]
            return (d_carry, d_consts), d_y

        def advance(moved: Any, at: tuple) -> tuple:
            d_carry, d_consts = moved
            kept, x, d_x = at
            return moves(consts, kept, x, d_carry, d_consts, d_x)

        return self._loop(advance, moved, (kept, xs, d_xs), length=length)

    def _like(self, primals: Leaves, moved: Leaves) -> Leaves:
        """Tangents for all results: those that have none stand still."""
        found = iter(moved)
        return [next(found) if is_float(p) else np.zeros(p.shape, jax.dtypes.float0) for p in primals]


def _in_front(leaves: Leaves) -> Leaves:
    return [leaf if leaf.dtype == jax.dtypes.float0 else _compat.batch_first(leaf) for leaf in leaves]


def _materialised(tangent: Any, primal: Any) -> Any:
    return jnp.zeros_like(primal) if is_zero(tangent) else tangent


def _joined(pieces: list[Leaves]) -> Leaves:
    return pieces[0] if len(pieces) == 1 else [jnp.concatenate(each) for each in zip(*pieces, strict=True)]
