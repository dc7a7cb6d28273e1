"""Tests that are marked with the name of a guard. Marked `no_recompile`, a body runs for the warm-up, and again with
nothing allowed to compile; marked with any other, inside of its block.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from erythroxy_tx import _compat
from erythroxy_tx.compiling import events
from erythroxy_tx.compiling.scope import Watcher
from erythroxy_tx.compiling.scope import enter
from erythroxy_tx.compiling.scope import leave
from erythroxy_tx.errors import RetraceError


class Marked(Watcher):
    """The mark of one test. Its warm-up is some calls of the body, or what ran in `with compiles.warm():`."""

    def __init__(self, name: str, warmup: int) -> None:
        self.name, self.warmup = name, warmup
        self.calls = 0
        self.warmed_inside = False
        events.listen()

    @property
    def armed(self) -> bool:
        return self.warmed_inside or self.calls > self.warmup

    @property
    def expected(self) -> str:
        after = "with compiles.warm()" if self.warmed_inside else f"warmup={self.warmup}"
        return f"nothing to be traced or compiled after {after}"

    def label(self, call: int) -> str:  # noqa: ARG002
        return f"{self.name}, marked no_recompile, run {self.calls}"

    def after_warm(self) -> None:
        self.warmed_inside = True
        self.generation = _compat.caches_cleared()

    def once(self, body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the body once."""
        self.calls += 1
        self.generation = _compat.caches_cleared()
        enter(self)
        error: BaseException | None = None
        try:
            return body(*args, **kwargs)
        except BaseException as raised:
            error = raised
            if self.calls > 1 and not isinstance(raised, RetraceError):
                raised.add_note(f"in run {self.calls} of the body, which is marked no_recompile")
            raise
        finally:
            leave(self, error)


def repeated(body: Callable[..., Any], name: str, warmup: int, before_each: Callable[[], None]) -> Callable[..., Any]:
    """The body of a marked test as pytest runs it: once for each call of the warm-up, then once more.

    Where Hypothesis runs the body many times, those are the calls. `before_each` runs before each of them.
    """
    refuse_asynchronous(body, name, "no_recompile")
    mark = Marked(name, warmup)
    if hasattr(body, "hypothesis"):
        return around_each(body, mark.once)

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        while not mark.armed:
            before_each()
            result = mark.once(body, *args, **kwargs)
        return result

    return run


def inside(
    body: Callable[..., Any], name: str, mark: str, block: Callable[[], Any], warmup: int = 0
) -> Callable[..., Any]:
    """The body of a test that is marked with another guard: each run of it is inside of a block, but for the first
    few.
    """
    refuse_asynchronous(body, name, mark)
    left = [warmup]

    def once(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        while left[0]:
            left[0] -= 1
            inner(*args, **kwargs)
        with block():
            return inner(*args, **kwargs)

    return around_each(body, once)


def around_each(body: Callable[..., Any], once: Callable[..., Any]) -> Callable[..., Any]:
    """A test that runs `once(body, …)`, for each of its examples where Hypothesis makes them."""
    hypothesis = getattr(body, "hypothesis", None)

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        if hypothesis is None:
            return once(body, *args, **kwargs)
        inner = hypothesis.inner_test

        @functools.wraps(inner)
        def example(*args: Any, **kwargs: Any) -> Any:
            return once(inner, *args, **kwargs)

        hypothesis.inner_test = example
        try:
            return body(*args, **kwargs)
        finally:
            hypothesis.inner_test = inner

    return run


def refuse_asynchronous(body: Callable[..., Any], name: str, mark: str) -> None:
    """Refuse a test whose body runs after its call returned."""
    if inspect.iscoroutinefunction(body):
        raise TypeError(f"{name} is marked {mark} and is asynchronous. Fix: with tx.{mark}(...): inside of it.")
