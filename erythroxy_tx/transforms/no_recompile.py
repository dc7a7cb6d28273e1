"""`no_recompile`: nothing is traced or compiled after the warm-up, or an error says why. Not here: how an event is
seen (`compiling/events.py`), and what is said of it (`compiling/reason.py`).
"""

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any
from typing import overload

import equinox as eqx
import jax

from erythroxy_tx import _compat
from erythroxy_tx.compiling import events
from erythroxy_tx.compiling.calls import guarded_call
from erythroxy_tx.compiling.calls import looked_at
from erythroxy_tx.compiling.loops import remember
from erythroxy_tx.compiling.scope import CALLS
from erythroxy_tx.compiling.scope import STOPPED
from erythroxy_tx.compiling.scope import Scope
from erythroxy_tx.compiling.scope import Watcher
from erythroxy_tx.compiling.scope import enter
from erythroxy_tx.compiling.scope import is_unwatched
from erythroxy_tx.compiling.scope import leave
from erythroxy_tx.compiling.scope import raise_stopped
from erythroxy_tx.core.late import is_late
from erythroxy_tx.core.late import late
from erythroxy_tx.core.late import refuse_late
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.guards.guard import kept_across_steps


@overload
def no_recompile(*, warmup: int = ...) -> Any: ...
@overload
def no_recompile(fn: Callable[..., Any], /, *, warmup: int = ...) -> "NoRecompile": ...


def no_recompile(fn: Callable[..., Any] | None = None, /, *, warmup: int | None = None) -> Any:
    """Raise where something is traced or compiled again, before it is, and say why.

    A decorator, bare or with `warmup`, of a function that is jitted or not, a method, or a whole loop; or a block,
    `with tx.no_recompile():`, in which nothing may compile at all. It sees every trace, lowering and compile of this
    thread, of threads that are started inside, and of host callbacks: those of nested jits, eager operations, and
    transforms too. It compiles nothing itself.

    **Arguments:**

    - `fn`: the function. Not one that is called inside of `jit`, where nothing could be seen.
    - `warmup`: how many calls may compile; 1 by default. A state that starts with Python numbers often needs 2. Calls
        that raise do not count. Each object's method, and each bucket of a `pad_static` inside, warms up on its own.

    **Returns:** the decorated function; without a function, a decorator that is a context manager as well.

    **Raises:** `RetraceError` with every argument that changed, what it was, and the fix; what is compiled stays as it
    is, so the next good call works. `TransformOrderError` inside of `jit`, `scan` and kin. What is compiled again
    since `jax.clear_caches()` is logged, not raised.

    >>> import jax, jax.numpy as jnp, erythroxy_tx as tx
    >>> @tx.no_recompile
    ... @jax.jit
    ... def mean(x):
    ...     return x.mean()
    >>> x, y = jnp.ones(8), jnp.ones(9)
    >>> float(mean(x)), float(mean(x))
    (1.0, 1.0)
    >>> mean(y)
    Traceback (most recent call last):
    erythroxy_tx.errors.RetraceError: tx.no_recompile(mean), call 3: mean ... would be traced and compiled, ...
      x: f32[8] → f32[9], axis 0
    Expected nothing to be traced or compiled after warmup=1. Stopped before it ran; what is compiled stays.
    Fix: x: @tx.pad_static(9), if the length varies, or drop the last part
    """
    if warmup is not None and (not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0):
        raise ValueError(f"tx.no_recompile got warmup={warmup!r}. Expected a number of calls ≥ 0.")
    events.listen()
    if fn is None:
        return _Block(warmup)
    return _around(fn, warmup)


def _around(fn: Callable[..., Any], warmup: int | None) -> "NoRecompile":
    refuse_late(NoRecompile.name, fn)
    return NoRecompile.around(fn, warmup=1 if warmup is None else warmup)  # type: ignore[return-value]


class _Block(Watcher, contextlib.AbstractContextManager):
    """What `no_recompile()` returns: a block in which nothing compiles, or, called with a function, its decorator."""

    armed = True
    expected = "nothing to be traced or compiled in this block"

    def __init__(self, warmup: int | None) -> None:
        self._warmup = warmup

    def __call__(self, fn: Callable[..., Any]) -> "NoRecompile":
        return _around(fn, self._warmup)

    def label(self, call: int) -> str:  # noqa: ARG002
        return "with tx.no_recompile()"

    def __enter__(self) -> None:
        if self._warmup:
            raise ValueError(
                f"with tx.no_recompile(warmup={self._warmup}) is a block, which has no calls to count. Expected "
                "tx.no_recompile(), after the warm-up."
            )
        if _compat.inside_staging():
            raise _order("with tx.no_recompile()")
        events.listen()
        self.generation = _compat.caches_cleared()
        enter(self)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        leave(self, error)


class NoRecompile(Transform):
    """A function that compiles nothing after its warm-up. Made by `no_recompile`."""

    warmup: int = eqx.field(static=True, kw_only=True)

    name = "tx.no_recompile"
    usage = "@tx.no_recompile, bare or with warmup="

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        return self.fn.lower(*args, **kwargs) if hasattr(self.fn, "lower") else super().lower(*args, **kwargs)

    @functools.cached_property
    def _warmth(self) -> "Warmth":
        label = f"{self.name}({name_of(unwrapped(self))})"
        return kept_across_steps(self, "warmth", lambda: Warmth(label, self.warmup))

    def _runner(self) -> Callable[..., Any]:
        warmth, inner = self._warmth, self.fn
        fn = inner._run if isinstance(inner, Transform) else inner
        current, eager, count, stopped = _compat.current_trace, _compat.eager_trace, warmth.count, STOPPED

        def run(*args: Any, **kwargs: Any) -> Any:  # an event finds the guard by this frame: a call costs no more
            if current.value is not eager and _compat.inside_staging():
                raise _order(warmth.title)
            call, armed = next(count), warmth.warm
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                raise_stopped(id(kwargs), error)
                raise
            if stopped:
                raise_stopped(id(kwargs), None)
            if warmth.looking:
                warmth.called(Scope(warmth, id(kwargs), armed, call, inner, args, kwargs), result)
            return result

        CALLS.add(run.__code__)
        return run


class Warmth(Watcher):
    """How far the warm-up of one function is."""

    expected = ""

    def __init__(self, title: str, warmup: int) -> None:
        self.title, self.warmup, self._left = title, warmup, warmup
        self.count = itertools.count(1)
        self.warm = not warmup
        self.looking = True  # until the first call after the warm-up
        self.expected = f"nothing to be traced or compiled after warmup={warmup}"
        self.generation = _compat.caches_cleared()

    @property
    def armed(self) -> bool:
        return self.warm

    def label(self, call: int) -> str:
        return f"{self.title}, call {call}"

    def called(self, scope: Scope, result: Any) -> None:
        """Count a call that returned, and remember those of the warm-up."""
        if scope.was_armed:
            self.looking = False
        if scope.was_armed or is_unwatched():
            return
        if is_late(result):
            raise late(self.title, NoRecompile.name)
        if (seen := looked_at(guarded_call, scope)) is not None:
            events.CALLS.add(scope.fn, seen)
            if self._left == self.warmup:
                remember(scope, seen, lambda: not self.looking)
        self.generation = _compat.caches_cleared()
        self._left -= 1
        self.warm = self._left <= 0


def _order(title: str) -> TransformOrderError:
    return TransformOrderError(
        f"{title} was entered inside of a trace (jit, scan, eval_shape), where it could never see a compile. Expected "
        "it outside. Fix: swap the two, as in tx.no_recompile(jax.jit(f))."
    )
