"""Functions whose body runs after the call returned, generators and coroutines: a guard around one sees nothing."""

import asyncio
import concurrent.futures
import inspect
from collections.abc import Coroutine
from typing import Any

from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.transform import unwrapped

_LATE = (map, filter, zip, Coroutine, asyncio.Future, concurrent.futures.Future)
_KINDS = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def refuse_late(guard: str, fn: Any) -> None:
    """Refuse to put a guard around such a function."""
    written = inspect.unwrap(unwrapped(fn)) if callable(unwrapped(fn)) else fn
    for each in (written, getattr(type(written), "__call__", None)):  # noqa: B004  # that of an object
        if any(is_late(each) for is_late in _KINDS):
            raise late(name_of(written), guard)


def is_late(result: Any) -> bool:
    """Whether what a call returned has yet to run."""
    return inspect.isgenerator(result) or inspect.isasyncgen(result) or isinstance(result, _LATE)


def late(got: str, guard: str) -> TypeError:
    """The error of a guard that got one."""
    return TypeError(
        f"{guard} got {got}, whose body runs after the call returned. Expected a function. Fix: with {guard}(...): "
        "around the code that consumes it."
    )
