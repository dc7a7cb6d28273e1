"""`host_flat`: the host's memory does not grow, or an error says what did. Not here: how it is measured
(`guards/growth.py`).
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import equinox as eqx

from erythroxy_tx import _compat
from erythroxy_tx.core.late import is_late
from erythroxy_tx.core.late import late
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.errors import BudgetError
from erythroxy_tx.guards import growth
from erythroxy_tx.guards.growth import Growth
from erythroxy_tx.guards.guard import Block
from erythroxy_tx.guards.guard import Guard
from erythroxy_tx.guards.guard import kept_across_steps
from erythroxy_tx.guards.guard import order
from erythroxy_tx.units import parse_bytes


def host_flat(max_growth: int | str, *, warmup: int | None = None) -> Any:
    """Raise where the host's memory grows by more than it may, and say what grew.

    A decorator, `@tx.host_flat("100MiB")`, or a block, `with tx.host_flat("100MiB") as growth:`. With R the resident
    memory of the process, Rₖ after call k, and w the calls of the warm-up:

        Rₖ - R_w ≤ max_growth   and   max R within call k - R_w ≤ max_growth,   for each k > w

    So a leak of 1 MB a call is found after 100 calls, and a peak in the call that has it. Of a block both count from
    its beginning. What the process does elsewhere counts as well: there is one memory. What was freed is given back to
    the system first, and results that are on the CPU are waited for; it compiles nothing itself.

    **Arguments:**

    - `max_growth`: bytes, an int or `"100MiB"`. The kernel counts to within some MiB.
    - `warmup`: how many calls may compile and fill caches, which takes tens of MB; 1 by default. A block has none:
        call what is in it once before.

    **Returns:** a decorator that is a block as well. The block gives a `Growth`, with `stayed`, `peak` and kinds.

    **Raises:** `BudgetError` with both figures, what kind of memory it is, the arrays of JAX and of numpy that came,
    the programs that were compiled, with `tracemalloc` the lines, and the fix; of a call, `.result` is what it
    returned. `TransformOrderError` inside of `jit`, `scan` and kin.

    >>> import numpy as np, erythroxy_tx as tx
    >>> kept = []
    >>> with tx.host_flat("10MiB"):
    ...     kept.append(np.ones(5_000_000))
    Traceback (most recent call last):
    erythroxy_tx.errors.BudgetError: with tx.host_flat(): the host's memory grew by ... MiB that stayed, ...
      of what stayed: anonymous memory +... MiB, ...
      numpy arrays: ...
    Fix: ...
    """
    if callable(max_growth):
        raise TypeError(
            f"tx.host_flat got the function {name_of(max_growth)} in place of max_growth. Expected bytes. Fix: "
            '@tx.host_flat("100MiB").'
        )
    if warmup is not None and (not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0):
        raise ValueError(f"tx.host_flat got warmup={warmup!r}. Expected a number of calls ≥ 0.")
    return _Block(HostFlat, max_growth=parse_bytes(max_growth, "tx.host_flat: max_growth"), warmup=warmup)


class _Block(Block):
    """What `host_flat` returns."""

    def __enter__(self) -> Growth:
        if self._parameters["warmup"]:
            raise ValueError(
                f"with tx.host_flat(..., warmup={self._parameters['warmup']}) is a block, which has no calls to count. "
                "Expected none. Fix: call what is in it once before."
            )
        return super().__enter__()


class HostFlat(Guard):
    """A function under which the host's memory does not grow. Made by `host_flat`."""

    max_growth: int = eqx.field(static=True, kw_only=True)
    warmup: int | None = eqx.field(static=True, kw_only=True)

    name = "tx.host_flat"
    usage = '@tx.host_flat("100MiB")'

    @staticmethod
    def watch(title: str, **parameters: Any) -> contextlib.AbstractContextManager[Any]:
        return growth.Block(title, parameters["max_growth"])

    def _calls(self, title: str) -> "_Calls":
        return kept_across_steps(self, "calls", lambda: _Calls(title, self.max_growth, self.warmup))

    def _runner(self) -> Callable[..., Any]:
        inner = self.fn
        fn = inner._run if isinstance(inner, Transform) else inner
        title = f"{self.name}({name_of(unwrapped(self))})"
        calls = self._calls(title)

        def run(*args: Any, **kwargs: Any) -> Any:
            if _compat.current_trace.value is not _compat.eager_trace and _compat.inside_staging():
                raise order(title, self.name)
            watched, result = calls.next(), None
            try:
                with watched or contextlib.nullcontext():
                    result = fn(*args, **kwargs)
                    if is_late(result):
                        raise late(title, self.name)
            except BudgetError as error:
                if watched is not None and watched.error is error:
                    error.result = result
                raise
            if watched is None:
                calls.returned()
            return result

        return run


class _Calls:
    """The calls of one function: those of the warm-up, and where the host's memory was after them."""

    def __init__(self, title: str, limit: int, warmup: int | None) -> None:
        self._title, self._limit = title, limit
        self._warmup = self._left = 1 if warmup is None else warmup
        self._count = 0
        self._base: Growth | None = None
        self._lock = threading.Lock()

    def next(self) -> Growth | None:
        """What watches the next call; None in the warm-up."""
        with self._lock:
            if self._left > 0:
                return None
            base = self._base or self._begin()
            self._count += 1
            return base.of(f"{self._title}, call {self._warmup + self._count}")

    def returned(self) -> None:
        """A call of the warm-up did not raise."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._begin()

    def _begin(self) -> Growth:
        self._base = base = Growth(
            self._title, self._limit, f"call {self._warmup}" if self._warmup else "before call 1"
        )
        base.begin()
        return base
