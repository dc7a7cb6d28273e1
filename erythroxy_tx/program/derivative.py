"""The gradient of a program is a program: its vjp is traced with the same unknown number of rows and run as a
stream like any other, so that JAX itself applies every derivative rule and no loop is differentiated.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.loop import Flags
from erythroxy_tx.program.loop import batched_together
from erythroxy_tx.program.loop import is_zero
from erythroxy_tx.program.loop import put
from erythroxy_tx.program.residuals import cut
from erythroxy_tx.program.trace import Trace
from erythroxy_tx.program.trace import check_asked
from erythroxy_tx.program.trace import hoisted
from erythroxy_tx.program.trace import of_unknown
from erythroxy_tx.program.trace import refusal

Leaves = list[Any]
Run = Callable[[Program, Leaves], Leaves]


class RowFunction(Protocol):
    """A function of flat leaves that came from a trace."""

    @property
    def kinds(self) -> list[Any]:
        """The dtypes of its results."""

    def __call__(self, args: Leaves) -> Leaves:
        """Run it."""

    def vjp(self, wanted: list[int], live: list[int]) -> "RowFunction":
        """(arguments, cotangents of the live results) → cotangents of the wanted arguments."""

    def halves(
        self, wanted: list[int], live: list[int]
    ) -> tuple[Callable[[Leaves], Leaves], Callable[[Leaves], Leaves]]:
        """That, cut in two: arguments → (results, kept), and (arguments, cotangents, kept) → cotangents."""


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced program, with a way to run flat ones. `label`: what is called, for errors."""

    trace: Trace
    run: Run
    label: str

    @property
    def kinds(self) -> list[Any]:
        return [v.aval.dtype for v in self.trace.closed.jaxpr.outvars]

    def __call__(self, args: Leaves) -> Leaves:
        return self.run(self.trace.program, args)

    def vjp(self, wanted: list[int], live: list[int]) -> "Traced":
        return Traced(vjp_of(self.trace, wanted, live, self.label), self.run, self.label)

    def halves(
        self, wanted: list[int], live: list[int]
    ) -> tuple[Callable[[Leaves], Leaves], Callable[[Leaves], Leaves]]:
        joint = vjp_of(self.trace, wanted, live, self.label, with_results=True)
        found = cut(joint.program, len(self.trace.types), len(self.kinds))
        return functools.partial(self.run, found.forward), functools.partial(self.run, found.backward)


def differentiable(fn: RowFunction) -> Callable[[Leaves], Leaves]:
    """A function of flat leaves, whose reverse mode is run like itself.

    Where it is differentiated, what its passes added up is kept for the way back. Forward mode (`jvp`, `jacfwd`,
    `hessian`) is refused by JAX, as for every `jax.custom_vjp`.
    """
    smooth = [i for i, kind in enumerate(fn.kinds) if jnp.issubdtype(kind, jnp.inexact)]
    results = len(fn.kinds)
    halves: dict[tuple[int, ...], Any] = {}

    @jax.custom_vjp
    def streamed(args: Leaves) -> Leaves:
        return batched_together(fn(args), args)

    def forward(args: Leaves) -> tuple[Leaves, Any]:
        flags = Flags(tuple(x.perturbed for x in args))
        values, wanted = [x.value for x in args], tuple(i for i, on in enumerate(flags.on) if on)
        if not wanted or not smooth:
            return streamed(values), (values, [], flags)
        if wanted not in halves:
            halves[wanted] = fn.halves(list(wanted), smooth)

        def quickly(values: Leaves, _: Leaves) -> Leaves:
            return batched_together(halves[wanted][0](values), values)

        found = _as_derived(quickly, streamed, values, [])
        return found[:results], (values, found[results:], flags)

    def backward(saved: Any, cotangents: Leaves) -> tuple[Leaves]:
        values, kept, flags = saved
        wanted = [i for i, on in enumerate(flags.on) if on]
        live = [i for i, ct in enumerate(cotangents) if not is_zero(ct)]
        if not wanted or not live:
            return ([None] * len(values),)
        inputs = [*values, *(cotangents[i] for i in live)]

        def quickly(inputs: Leaves, kept: Leaves) -> Leaves:
            return batched_together(halves[tuple(wanted)][1]([*inputs, *kept]), inputs)

        def plainly(inputs: Leaves) -> Leaves:
            return differentiable(fn.vjp(wanted, live))(inputs)

        found = _as_derived(quickly, plainly, inputs, kept) if live == smooth else plainly(inputs)
        found = [
            _compat.convert(x, x.dtype, weak_type=jax.typeof(values[i]).weak_type)
            for x, i in zip(found, wanted, strict=True)
        ]
        return (put([None] * len(values), wanted, found),)

    streamed.defvjp(forward, backward, symbolic_zeros=True)
    return streamed


def _as_derived(
    quickly: Callable[[Leaves, Leaves], Leaves], plainly: Callable[[Leaves], Leaves], inputs: Leaves, kept: Leaves
) -> Leaves:
    """`quickly(inputs, kept)`, whose first results are `plainly(inputs)`, with the derivatives of that.

    What is kept was computed from the inputs, so that its own derivative is part of theirs.
    """

    @jax.custom_vjp
    def both(inputs: Leaves, kept: Leaves) -> Leaves:
        return quickly(inputs, kept)

    def forward(inputs: Leaves, kept: Leaves) -> tuple[Leaves, Any]:
        return both(inputs, kept), (inputs, kept)

    def backward(saved: Any, cotangents: Leaves) -> tuple[Leaves, Leaves]:
        inputs, kept = saved
        found, back = jax.vjp(plainly, inputs)
        (of_inputs,) = back(cotangents[: len(found)])
        return of_inputs, [_nothing(x) for x in kept]

    both.defvjp(forward, backward)
    return both(inputs, kept)


def _nothing(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def vjp_of(trace: Trace, wanted: list[int], live: list[int], label: str, *, with_results: bool = False) -> Trace:
    """The program of (arguments, cotangents of the live outputs) → cotangents of the wanted arguments, the outputs
    before them where that is said.
    """
    count = len(trace.types)
    outs = [v.aval for v in trace.closed.jaxpr.outvars]
    types = [*trace.types, *(jax.ShapeDtypeStruct(outs[i].shape, outs[i].dtype) for i in live)]

    def pull(*leaves: Any) -> Leaves:
        args, cotangents = list(leaves[:count]), list(leaves[count:])

        def of_wanted(*some: Any) -> tuple[Leaves, Leaves]:
            values = trace(*put(args, wanted, list(some)))
            return [jnp.asarray(values[i], outs[i].dtype) for i in live], values

        _, back, values = jax.vjp(of_wanted, *(args[i] for i in wanted), has_aux=True)
        return [*(values if with_results else ()), *back(cotangents)]

    try:
        with trace.symbol.standing_for(trace.rows):
            closed = jax.make_jaxpr(pull)(*types)
    except Exception as error:
        if not of_unknown(error):  # an error of the user's own is raised as it is
            jax.make_jaxpr(pull)(*(_known(kind, trace) for kind in types))
        raise refusal(f"the derivative of {label}", error) from error
    check_asked(closed, trace.symbol, trace.rows, f"the derivative of {label}")
    return hoisted(closed, trace.symbol, trace.rows, up_to=trace.up_to)[0]


def _known(kind: Any, trace: Trace) -> Any:
    shape = tuple(trace.symbol.at(size, trace.rows) for size in kind.shape)
    return jax.ShapeDtypeStruct(shape, kind.dtype, weak_type=kind.weak_type)
