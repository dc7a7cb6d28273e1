"""The gradient of a program is a program: its vjp is traced with the same unknown number of rows and run as a
stream like any other, so that JAX itself applies every derivative rule and no loop is differentiated.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from erythroxy_tx import _compat
from erythroxy_tx.program.loop import Flags
from erythroxy_tx.program.loop import batched_together
from erythroxy_tx.program.loop import is_zero
from erythroxy_tx.program.loop import put
from erythroxy_tx.program.trace import Trace
from erythroxy_tx.program.trace import check_asked
from erythroxy_tx.program.trace import hoisted
from erythroxy_tx.program.trace import refusal

Leaves = list[Any]
Run = Callable[[Trace, Leaves], Leaves]


def differentiable(trace: Trace, run: Run, label: str) -> Callable[[Leaves], Leaves]:
    """A traced program as a function of flat leaves, whose reverse mode is run like the program itself.

    **Arguments:**

    - `trace`: the program. `run`: runs a program on whole values. `label`: what is called, for errors.

    Forward mode (`jvp`, `jacfwd`, `hessian`) is refused by JAX, as for every `jax.custom_vjp`.
    """

    @jax.custom_vjp
    def streamed(args: Leaves) -> Leaves:
        return batched_together(run(trace, args), args)

    def forward(args: Leaves) -> tuple[Leaves, Any]:
        flags = Flags(tuple(x.perturbed for x in args))
        values = [x.value for x in args]
        return streamed(values), (values, flags)

    def backward(saved: Any, cotangents: Leaves) -> tuple[Leaves]:
        values, flags = saved
        wanted = [i for i, on in enumerate(flags.on) if on]
        live = [i for i, ct in enumerate(cotangents) if not is_zero(ct)]
        if not wanted or not live:
            return ([None] * len(values),)
        found = differentiable(_vjp(trace, wanted, live, label), run, label)([*values, *(cotangents[i] for i in live)])
        found = [
            _compat.convert(x, x.dtype, weak_type=jax.typeof(values[i]).weak_type)
            for x, i in zip(found, wanted, strict=True)
        ]
        return (put([None] * len(values), wanted, found),)

    streamed.defvjp(forward, backward, symbolic_zeros=True)
    return streamed


def _vjp(trace: Trace, wanted: list[int], live: list[int], label: str) -> Trace:
    """The program of (arguments, cotangents of the live outputs) → cotangents of the wanted arguments."""
    count = len(trace.types)
    outs = [v.aval for v in trace.closed.jaxpr.outvars]
    types = [*trace.types, *(jax.ShapeDtypeStruct(outs[i].shape, outs[i].dtype) for i in live)]

    def pull(*leaves: Any) -> Leaves:
        args, cotangents = list(leaves[:count]), list(leaves[count:])

        def of_wanted(*some: Any) -> Leaves:
            values = trace(*put(args, wanted, list(some)))
            return [jnp.asarray(values[i], outs[i].dtype) for i in live]

        _, back = jax.vjp(of_wanted, *(args[i] for i in wanted))
        return list(back(cotangents))

    try:
        with trace.symbol.standing_for(trace.rows):
            closed = jax.make_jaxpr(pull)(*types)
    except Exception as error:
        jax.make_jaxpr(pull)(*(_known(kind, trace) for kind in types))  # an error of the user's own is raised as it is
        raise refusal(f"the derivative of {label}", error) from error
    check_asked(trace.symbol, f"the derivative of {label}")
    return hoisted(closed, trace.symbol, trace.rows)[0]


def _known(kind: Any, trace: Trace) -> Any:
    shape = tuple(trace.symbol.at(size, trace.rows) for size in kind.shape)
    return jax.ShapeDtypeStruct(shape, kind.dtype, weak_type=kind.weak_type)
