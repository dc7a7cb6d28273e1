"""`hoist_invariants`: work that is the same in all steps leaves the scan. Not here: how (`program/scans/`), or what
pays (`program/worth.py`).
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx

from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.program.scans.looped import Loop
from erythroxy_tx.program.scans.looped import Looped
from erythroxy_tx.program.split import Terms
from erythroxy_tx.units import parse_bytes


def hoist_invariants(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    budget: int | str | None = None,
    branches: bool = False,
    static_argnames: str | tuple[str, ...] = (),
) -> Any:
    """Compute once, before each scan of a function, what does not change from step to step.

    `hoist_invariants(f)(x) = f(x)`. XLA moves such work by itself out of a loop that runs forwards. It does not where a
    gradient is taken with respect to it, where steps are rematerialised, or in a branch of a `cond`: there the work,
    and the cotangents of it, are computed at each step. Here the cotangents are summed over the steps, and taken
    through the work once.

    Moved are products, factorisations, sums, sorts, exponentials and the like, out of the body, of `jit` and
    `jax.checkpoint` in it, of inner scans, and of a branch whose choice does not change either. What is cheap stays, as
    do callbacks, what has effects, and functions with a `custom_vjp`, whose rule may not be linear. If there is nothing
    to move, the program is that of the function. Around one function it acts before `tx.checkpointed_scan` and
    `tx.bf16_carry_scan`, in any order.

    **Arguments:**

    - `fn`: the function.
    - `budget`: how many bytes of values may be kept for a scan, an int or `"1GiB"`. By default what a step would have
        had in memory anyway; with a budget also what is larger than all that it is computed from, such as
        `exp(-abs(x[:, None] - x))`, which the compiler would not have written down.
    - `branches`: whether to compute once what is in a branch that may not run. It then runs once in any case, and its
        gradient, in reverse mode alone, is that of the steps that take it.
    - `static_argnames`: as in `jax.jit`.

    **Returns:** the decorated function.

    >>> import jax, jax.numpy as jnp, erythroxy_tx as tx
    >>> @tx.hoist_invariants
    ... def final(w, h):
    ...     step = jax.checkpoint(lambda h, _: (jnp.tanh(h @ (w @ w.T)), None))
    ...     return jax.lax.scan(step, h, length=10)[0].sum()
    >>> print(tx.explain(final, jnp.eye(4), jnp.ones(4)))  # doctest: +ELLIPSIS
    final, in tx.hoist_invariants
    tx.hoist_invariants: 1 scan
        10 steps at ...: less work in the loop
            computed once, before: f32[4,4], 64 B: dot_general at ...
    ...
    """
    if not isinstance(branches, bool):
        raise TypeError(f"tx.hoist_invariants got branches={branches!r}. Expected True or False.")
    limit = None if budget is None else parse_bytes(budget, "budget")
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    wrap = functools.partial(HoistInvariants.around, budget=limit, branches=branches, static_argnames=names)
    return wrap if fn is None else wrap(fn)


class HoistInvariants(Looped):
    """A function whose scans compute once what does not change. Made by `hoist_invariants`."""

    budget: int | None = eqx.field(static=True, kw_only=True)
    branches: bool = eqx.field(static=True, kw_only=True)

    name = "tx.hoist_invariants"
    usage = "@tx.hoist_invariants, bare or with budget= or branches="

    def _decide(self, loop: Loop) -> None:
        loop.terms = Terms(self.budget, grows=self.budget is not None, branches=self.branches)

    def _promise(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        return self._promised(args, kwargs, AsAccurate(4, gradients=AsAccurate(4)))
