"""`checkpointed_scan`: the gradient of a scan from a few of its carries. Not here: how (`program/scans/`)."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx

from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.program.scans.looped import Loop
from erythroxy_tx.program.scans.looped import Looped


def checkpointed_scan(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    segments: str | int = "sqrt",
    static_argnames: str | tuple[str, ...] = (),
) -> Any:
    """Differentiate every scan of a function from the carries at the starts of a few segments of it.

    `checkpointed_scan(f)(x) = f(x)`, and its gradients are those of `f`, by the same operations in the same order, from
    a tape of `segments + T / segments` carries in place of the residuals of `T` steps. Each step runs twice more on
    the way back. What the compiler fuses it may round otherwise, in the last bits.

    It reaches every `lax.scan`, `lax.map` and `fori_loop` of fixed length, in `jit`, `cond`, `while_loop`, remat and
    other scans, forwards and in reverse. Forward mode, `vmap` and second derivatives work. A scan inside of a function
    with a derivative rule of its own, and one whose steps have effects, are left as they are, which `tx.explain` says.

    **Arguments:**

    - `fn`: the function.
    - `segments`: how many, or `"sqrt"`: as many as keep least, about the square root of the steps. A length that they
        do not divide is met by a shorter last one, or by a divisor that is near.
    - `static_argnames`: as in `jax.jit`.

    **Returns:** the decorated function.

    >>> import jax, jax.numpy as jnp, erythroxy_tx as tx
    >>> def final(w, xs):
    ...     return jax.lax.scan(lambda h, x: (jnp.tanh(w * h + x), None), 0.0, xs)[0]
    >>> xs = jnp.linspace(-1, 1, 100)
    >>> gradient = jax.jit(jax.grad(final))(0.5, xs)
    >>> bool(jax.jit(jax.grad(tx.checkpointed_scan(final)))(0.5, xs) == gradient)
    True
    """
    if segments != "sqrt" and (not isinstance(segments, int) or isinstance(segments, bool) or segments < 1):
        raise ValueError(f"tx.checkpointed_scan got segments={segments!r}. Expected 'sqrt' or a number ≥ 1.")
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    wrap = functools.partial(CheckpointedScan.around, segments=segments, static_argnames=names)
    return wrap if fn is None else wrap(fn)


class CheckpointedScan(Looped):
    """A function whose scans keep few carries for their gradients. Made by `checkpointed_scan`."""

    segments: str | int = eqx.field(static=True, kw_only=True)

    name = "tx.checkpointed_scan"
    usage = "@tx.checkpointed_scan, bare or with segments="

    def _decide(self, loop: Loop) -> None:
        loop.segments = self.segments

    def _promise(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        return self._promised(args, kwargs, AsAccurate(4, gradients=AsAccurate(4)))
