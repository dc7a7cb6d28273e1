"""What a guard of running code is: a function each of whose calls runs inside of a block, or the block itself. Not
here: what any guard watches.
"""

import contextlib
import types
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from erythroxy_tx import _compat
from erythroxy_tx.core import cache
from erythroxy_tx.core.late import is_late
from erythroxy_tx.core.late import late
from erythroxy_tx.core.late import refuse_late
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.errors import DiskIOError
from erythroxy_tx.errors import TransformOrderError

_NONE = object()


class Guard(Transform):
    """A function each of whose calls runs inside of what `watch` returns. It compiles nothing itself."""

    @staticmethod
    @abstractmethod
    def watch(title: str, **parameters: Any) -> contextlib.AbstractContextManager[Any]:
        """What stands around a call or a block. Messages call it `title`."""

    @classmethod
    def on(cls, fn: Callable[..., Any], **parameters: Any) -> "Guard":
        """Put it on a function, unless that runs after its call returned."""
        refuse_late(cls.name, fn)
        return cls.around(fn, **parameters)  # type: ignore[return-value]

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn.lower(*args, **kwargs) if hasattr(self.fn, "lower") else super().lower(*args, **kwargs)

    def _runner(self) -> Callable[..., Any]:
        inner, guard, watch, parameters = self.fn, self.name, self.watch, self._parameters()
        fn = inner._run if isinstance(inner, Transform) else inner
        title = f"{guard}({name_of(unwrapped(self))})"
        current, eager = _compat.current_trace, _compat.eager_trace

        def run(*args: Any, **kwargs: Any) -> Any:
            if current.value is not eager and _compat.inside_staging():
                raise order(title, guard)
            result = _NONE
            try:
                with watch(title, **parameters):
                    result = fn(*args, **kwargs)
            except DiskIOError as error:
                if result is not _NONE:  # it was found at the end, and the work is done
                    error.result = result
                raise
            if is_late(result):
                raise late(title, guard)
            return result

        return run


def kept_across_steps(wrapper: Transform, what: str, build: Callable[[], Any]) -> Any:
    """State of a guard. A module is a value, and another object after each step: what tells it is its structure."""
    bound = unwrapped(wrapper)
    instance = getattr(bound, "__self__", None) or next(iter(getattr(bound, "args", ())), None)
    function = getattr(bound, "__func__", None) or getattr(bound, "func", None)
    if function is None or not isinstance(instance, eqx.Module):
        return wrapper._kept(what, build)
    wrapper._kept("bound", lambda: None)
    given = tuple(sorted(wrapper._parameters().items()))
    return cache.keep(function, (what, given, jtu.tree_structure(instance)), build)


class Block(contextlib.AbstractContextManager):
    """What a guard is without a function: a block, or, called with a function, its decorator."""

    def __init__(self, guard: type[Guard], **parameters: Any) -> None:
        self._guard, self._parameters = guard, parameters
        self._open: contextlib.AbstractContextManager[Any] | None = None

    def __call__(self, fn: Callable[..., Any]) -> Guard:
        return self._guard.on(fn, **self._parameters)

    def __enter__(self) -> Any:
        title = f"with {self._guard.name}()"
        if self._open is not None:
            raise RuntimeError(f"{title} is open already. Expected a block of its own. Fix: make another one.")
        if _compat.inside_staging():
            raise order(title, self._guard.name)
        watched = self._guard.watch(title, **self._parameters)
        found = watched.__enter__()
        self._open = watched
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> bool | None:
        watched, self._open = self._open, None
        return watched.__exit__(kind, error, traceback) if watched is not None else None


def order(title: str, guard: str) -> TransformOrderError:
    """The error of a guard inside of a trace."""
    return TransformOrderError(
        f"{title} was entered inside of a trace (jit, scan, eval_shape), where nothing runs yet that it could see. "
        f"Expected it outside. Fix: swap the two, as in {guard}(jax.jit(f))."
    )
