"""`bf16_carry_scan`: carries of scans in half their bytes, except for those that add up. Not here: how
(`program/scans/`).
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from erythroxy_tx import _compat
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Close
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.program.scans.accumulators import unrounded
from erythroxy_tx.program.scans.half import Half
from erythroxy_tx.program.scans.looped import Loop
from erythroxy_tx.program.scans.looped import Looped

Keep = str | tuple[str, ...] | Callable[[str, jax.ShapeDtypeStruct], bool]

_ROUNDS = {"tape": "bf16 on the tape", "carry": "bf16 between the steps"}
_CLOSE = 2e-2  # eight bits of a carry, through steps that do not amplify it


def bf16_carry_scan(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    keep: Any = "auto",
    round: str = "tape",  # noqa: A002
    static_argnames: str | tuple[str, ...] = (),
) -> Any:
    """Keep the f32 carries of every scan of a function in bf16 for its gradient, except for those that add up.

    `bf16_carry_scan(f)(x) = f(x)`, by the same operations; its gradients are taken at carries that are rounded to bf16,
    by f32 cotangents, and are close to 2 % where the steps do not amplify that: `tx.testing.prove` looks for an input
    of yours where they do. The tape holds two bytes a number and step in place of all residuals of the step: each step
    is run again on the way back, which is most of what is saved. `tx.checkpointed_scan` saves more and is exact, but
    takes more time; around one function they act together.

    A carry that is added to at each step (a running sum, a count, moments, weights under small updates) stays f32, as
    336 additions in bf16 may be off by half of the sum and more; and so does one that is compared with others, as is a
    price by its difference to the next. They are found by dataflow, through `jit`, `cond`, inner scans, selects and
    products with a number: `tx.explain` shows what becomes of each carry, and why.

    It reaches the scans that `tx.checkpointed_scan` does. Second derivatives work, except on CPUs with jax before 0.11,
    where they are refused.

    **Arguments:**

    - `fn`: the function.
    - `keep`: which carries stay f32. `"auto"`: those that add up or are compared. Or names as the body of the scan has
        them, `"total"` or `"state['pnl']"` (a name stands for all that is in it): those, and no others. Or a function
        of a name and a `jax.ShapeDtypeStruct` that says whether a carry stays.
    - `round`: where the others are rounded. `"tape"`: for the gradient alone. `"carry"`: between the steps too, which
        are f32 inside; values are then those of a model whose state is bf16. A carry that builds up by products stays
        f32 as well.
    - `static_argnames`: as in `jax.jit`.

    **Returns:** the decorated function.

    **Raises:** `ValueError` where `keep` names what no scan carries.

    >>> import jax, jax.numpy as jnp, erythroxy_tx as tx
    >>> @tx.bf16_carry_scan
    ... def trade(w, xs):
    ...     def step(state, x):
    ...         h = jnp.tanh(w * state["h"] + x)
    ...         return {"h": h, "pnl": state["pnl"] + h * x}, None
    ...     return jax.lax.scan(step, {"h": jnp.zeros(8), "pnl": jnp.zeros(8)}, xs)[0]["pnl"].sum()
    >>> print(tx.explain(trade, 0.5, jnp.ones((336, 8))))  # doctest: +ELLIPSIS
    trade, in tx.bf16_carry_scan
    tx.bf16_carry_scan: 1 scan
        336 steps at ...: a tape of each step
            state['h'], f32[8]: bf16 on the tape
            state['pnl'], f32[8]: stays f32, as it is added to at ...
    ...
    """
    if round not in _ROUNDS:
        raise ValueError(f"tx.bf16_carry_scan got round={round!r}. Expected 'tape' or 'carry'.")
    if isinstance(keep, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in keep):
        keep = tuple(keep)
    elif isinstance(keep, str):
        keep = keep if keep == "auto" else (keep,)
    elif not callable(keep):
        raise ValueError(
            f"tx.bf16_carry_scan got keep={keep!r}. Expected 'auto', names of carries such as \"state['pnl']\", or a "
            "function of a name and a jax.ShapeDtypeStruct."
        )
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    wrap = functools.partial(Bf16CarryScan.around, keep=keep, round=round, static_argnames=names)
    return wrap if fn is None else wrap(fn)


class Bf16CarryScan(Looped):
    """A function whose scans keep carries in bf16. Made by `bf16_carry_scan`."""

    keep: Keep = eqx.field(static=True, kw_only=True)
    round: str = eqx.field(static=True, kw_only=True)

    name = "tx.bf16_carry_scan"
    usage = "@tx.bf16_carry_scan, bare or with keep= or round="

    def _decide(self, loop: Loop) -> None:
        scan = loop.scan
        if _compat.is_symbolic(scan.length) or scan.is_derived:
            return
        reasons = unrounded(scan.jaxpr, scan.n_consts, len(scan.init), strict=self.round == "carry")
        which = []
        for name, leaf, reason in zip(scan.names(), map(jax.typeof, scan.init), reasons, strict=True):
            stays = self._why(name, leaf, reason)
            which.append(stays is None)
            loop.fates.append(f"    {name}, {shape_of(leaf)}: {_ROUNDS[self.round] if stays is None else stays}")
        loop.half = Half(tuple(which), between=self.round == "carry")

    def _why(self, name: str, leaf: Any, reason: str | None) -> str | None:
        """Why a carry stays as it is, None where it does not."""
        if leaf.dtype != jnp.float32:
            return "stays as it is, not being f32"
        if self.keep == "auto":
            return None if reason is None else f"stays f32, as {reason}"
        if isinstance(self.keep, tuple):
            named = any(_is_in(name, each) for each in self.keep)
        else:
            assert callable(self.keep)
            named = self.keep(name, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
        return "stays f32, as keep says" if named else None

    def _settle(self, loops: list[Loop]) -> None:
        names = sorted({name for loop in loops for name in loop.scan.names()})
        for each in self.keep if isinstance(self.keep, tuple) else ():
            if not any(_is_in(name, each) for name in names):
                raise ValueError(
                    f"tx.bf16_carry_scan got keep={each!r}, which no scan of {name_of(self)} carries. Expected of "
                    f"{', '.join(map(repr, names)) or 'none, as it has no scan within reach'}. Fix: a name as the body "
                    "of the scan has it, or keep='auto'."
                )

    def _promise(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        close = Close(_CLOSE)
        return self._promised(args, kwargs, close if self.round == "carry" else AsAccurate(4, gradients=close))


def _is_in(name: str, whole: str) -> bool:
    """Whether a carry is one, or a part of it."""
    return name == whole or name.startswith((f"{whole}[", f"{whole}."))
