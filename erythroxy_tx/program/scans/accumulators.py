"""Which carries of a scan must not be rounded: those that add up (a running sum, an average over time, weights that
are moved a little at each step), and levels, of which differences and ratios are taken. Found by dataflow. Not here:
what is done about it (`transforms/`).

A value is a factor that does not depend on the state (`Factor`), a gate between 0 and 1 (`Gate`), or it holds shares of
the carries and of what comes with each step: each times a gain, and perhaps with something added. A carry adds up if it
comes back to its place, in one step or by way of others in more, with something added on the way. A copy of one (the
sum before, the highest so far) is taken for one: it is compared with it.

In a product with what differs from step to step no share is left, as if that were a gate. Where a carry is to be
rounded at each step that is not enough: then all but what is a gate, or has bounds, leaves a share (`strict`).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from erythroxy_tx import _compat


@dataclasses.dataclass(frozen=True)
class Factor:
    """One number for all steps, whatever its shape, a mask, or a count: its size, where known."""

    size: float | None = None


@dataclasses.dataclass(frozen=True)
class Gate:
    """A number between 0 and 1 for each step: a sigmoid."""


@dataclasses.dataclass(frozen=True)
class Share:
    """What a value has of a carry: how much, and the line where something was added to it, "" where that is unknown."""

    gain: float
    line: str | None = None


Form = Factor | Gate | dict[int, Share]

_MOVES = frozenset(["broadcast_in_dim", "concatenate", "copy", "expand_dims", "pad", "reshape", "rev", "sort", "tile"])
_CUTS = frozenset(["dynamic_slice", "gather", "slice", "split", "squeeze", "top_k", "transpose", "unstack"])
_MARKS = frozenset(["all_gather", "name", "optimization_barrier", "sharding_constraint", "stop_gradient"])
_NEAR = frozenset(["abs", "ceil", "convert_element_type", "floor", "neg", "reduce_precision", "rem", "round"])
_LIMITS = frozenset(["clamp", "cummax", "cummin", "max", "min", "reduce_max", "reduce_min"])
_KEEPS = _MOVES | _CUTS | _MARKS | _NEAR | _LIMITS
_WRITES = {"dynamic_update_slice": 1} | dict.fromkeys(["scatter", "scatter-max", "scatter-min", "scatter-mul"], 2)
_OF_MANY = frozenset(["psum", "reduce_sum"])
_ADDS = frozenset(["add", "add_any", "cumlogsumexp", "cumsum", "scatter-add", "scatter-sub", "sub"]) | _OF_MANY
_BOUNDED = frozenset(["atan", "atan2", "cos", "erf", "erfc", "is_finite", "logistic", "sign", "sin", "tanh"])
_COMPARES = frozenset(["div", "eq", "ge", "gt", "le", "lt", "max", "min", "ne", "rem", "sub"])
_LOGARITHMS = frozenset(["log", "log1p", "log2"])
_EACH = -1  # the share of what comes with each step
_LEAST_GAIN = 0.5  # of a carry that comes back: below, it forgets at once what rounding took
_UNKNOWN = 0.99


def unrounded(jaxpr: Any, n_consts: int, n_carry: int, *, strict: bool) -> list[str | None]:
    """For each carry of the body of a scan, why it must not be rounded, with the line; or None."""
    ins: list[Form] = [Factor() if set(v.aval.shape) <= {1} else {} for v in jaxpr.invars[:n_consts]]
    ins += [{i: Share(1.0)} for i in range(n_carry)]
    ins += [{_EACH: Share(1.0)}] * (len(jaxpr.invars) - len(ins))
    flow = _Flow(strict=strict)
    _, out = flow.looped(jaxpr, ins, n_consts, n_carry)
    held = [{i: share for i, share in _shares(form).items() if share.gain >= _LEAST_GAIN} for form in out[:n_carry]]
    sums = {i: shares[i].line for i, shares in enumerate(held) if i in shares and shares[i].line is not None}
    found: list[str | None] = []
    for i in range(n_carry):
        line = sums[i] if i in sums else next((sums[j] for j in held[i] if j in sums), None)
        why = "added to" if line is not None else "compared with others"
        line = flow.compared.get(i) if line is None else line
        found.append(None if line is None else f"it is {why} at {line or 'a line inside of JAX'}")
    return found


class _Flow:
    """The forms of values through a program, and at which line each carry is compared with others."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.compared: dict[int, str] = {}

    def forms(self, jaxpr: Any, ins: list[Form]) -> list[Form]:
        """The forms of what a program hands out, for those of what it takes."""
        forms: dict[Any, Form] = dict(zip(jaxpr.invars, ins, strict=True))

        def read(v: Any) -> Form:
            if isinstance(v, _compat.Literal):
                return Factor(float(np.nan_to_num(np.abs(np.asarray(v.val))).max(initial=0)))
            return forms.get(v, {}) if jnp.issubdtype(v.aval.dtype, np.inexact) else Factor()

        for eqn in jaxpr.eqns:
            given = list(map(read, eqn.invars))
            self._compare(eqn, given)
            forms.update((v, _lined(form, eqn)) for v, form in zip(eqn.outvars, self._step(eqn, given), strict=True))
        return list(map(read, jaxpr.outvars))

    def _compare(self, eqn: Any, given: list[Form]) -> None:
        """Note the carries of which a difference, a ratio or a logarithm is taken as they are, or that decide."""
        name, shares = eqn.primitive.name, list(map(_shares, given))
        if name in _LOGARITHMS or (name in _COMPARES and all(shares)):
            for i in {i for share in shares for i in share if i != _EACH}:
                self.compared.setdefault(i, _compat.source_line(eqn))

    def _step(self, eqn: Any, given: list[Form]) -> list[Form]:
        """The forms of the results of an equation."""
        name, inner = eqn.primitive.name, list(_compat.sub_jaxprs(eqn))
        if name == "cond":
            return [_either(forms) for forms in zip(*(self.forms(branch, given[1:]) for branch in inner), strict=True)]
        if name in ("scan", "while"):
            skipped, n = eqn.params.get("cond_nconsts", 0), eqn.params.get("body_nconsts", 0)
            n_consts, n_carry = _compat.scan_counts(eqn) if name == "scan" else (n, len(given) - skipped - n)
            carry, out = self.looped(inner[-1], given[skipped:], n_consts, n_carry)
            return [*carry, *out[n_carry:]]
        if inner and len(inner[0].invars) == len(given):
            return self.forms(inner[0], given)
        return [self._of_one(name, given)] * len(eqn.outvars)

    def _of_one(self, name: str, given: list[Form]) -> Form:
        if name in _WRITES:
            return _either([given[0], given[_WRITES[name]]])
        if name == "select_n":
            return _either(given[1:])
        if name in _KEEPS:
            return _either(given)
        if all(isinstance(form, Factor) for form in given):
            return Factor() if given and name != "bitcast_convert_type" else {}  # as random bits become numbers
        if name == "logistic" or (name == "sub" and given == [Factor(1.0), Gate()]):
            return Gate()
        if name in _ADDS:
            return _times(_merged(given, sum), math.inf if name in _OF_MANY else 1.0)
        return self._scaled(name, given)

    def _scaled(self, name: str, given: list[Form]) -> Form:
        """What is left of shares in a product, a quotient, or what is not known. What divides is no gate."""
        if name == "mul" and isinstance(given[0], Factor | Gate):
            given = [given[1], given[0]]
        if name == "div" or (name == "mul" and isinstance(given[1], Factor)):
            size = given[1].size if isinstance(given[1], Factor) else None
            if size == 1:
                return given[0]
            return _times(given[0], _UNKNOWN if size is None else 1 / size if name == "div" and size else size)
        if name == "mul" and isinstance(given[1], Gate):
            return given[1] if isinstance(given[0], Gate) else {}
        return _times(_merged(given, max), _UNKNOWN) if self.strict and name not in _BOUNDED else {}

    def looped(
        self, body: Any, given: list[Form], n_consts: int, n_carry: int
    ) -> tuple[list[Form], list[Form]]:  # fmt: skip
        """The carries of a loop, once more rounds change nothing (what grows is endless), and what a step makes of
        them.
        """
        consts, loose = given[:n_consts], [_shares(form) for form in given[n_consts:]]
        carry, xs = loose[:n_carry], loose[n_carry:]
        while True:
            out = self.forms(body, [*consts, *carry, *xs])
            after = [_merged(pair, max) for pair in zip(carry, out[:n_carry], strict=True)]
            for old, new in zip(carry, after, strict=True):
                new |= {i: Share(math.inf, new[i].line) for i, share in old.items() if new[i].gain > share.gain}
            if after == carry:
                return [*after], out
            carry = after


def _times(form: Form, gain: float) -> Form:
    """Shares with something added, at a line that is not known here."""
    return {i: Share(s.gain * gain, s.line or "") for i, s in _shares(form).items() if gain}


def _lined(form: Form, eqn: Any) -> Form:
    """Shares with this line where it is not known, as it is not inside of functions of JAX."""
    if any(share.line == "" for share in _shares(form).values()):
        return {i: Share(s.gain, s.line or _compat.source_line(eqn)) for i, s in _shares(form).items()}
    return form


def _shares(form: Form) -> dict[int, Share]:
    return form if isinstance(form, dict) else {}


def _either(forms: Iterable[Form]) -> Form:
    """Of several that a value may be, the largest share of each carry, and where it is added to in any."""
    forms = list(forms)
    if all(form == Gate() for form in forms):
        return Gate()
    if all(isinstance(form, Factor) for form in forms):
        return forms[0] if len(set(forms)) == 1 else Factor()
    return _merged(forms, max)


def _merged(forms: Iterable[Form], join: Callable[[list[float]], float]) -> dict[int, Share]:
    found: dict[int, list[Share]] = {}
    for i, share in itertools.chain.from_iterable(_shares(form).items() for form in forms):
        found.setdefault(i, []).append(share)
    return {
        i: Share(join([s.gain for s in of]), max((s.line for s in of if s.line is not None), default=None))
        for i, of in found.items()
    }
