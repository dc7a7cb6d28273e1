"""Functions that a loop makes anew, decorates, and calls once: each is in its warm-up, and each compiles. They are
told from a function that is made again for another use: the call is the same one, in a loop, and the function before
is gone, was called no more than this one, and had the same arguments.
"""

import dataclasses
import dis
import weakref
from collections.abc import Callable
from typing import Any

from erythroxy_tx.compiling.changes import changes
from erythroxy_tx.compiling.history import key_of
from erythroxy_tx.compiling.scope import CALLS
from erythroxy_tx.compiling.scope import Scope
from erythroxy_tx.compiling.seen import Seen
from erythroxy_tx.core.call_site import frames
from erythroxy_tx.core.call_site import variables
from erythroxy_tx.core.transform import unwrapped

_MOST = 256


@dataclasses.dataclass(frozen=True)
class _Made:
    function: Callable[[], Any]  # a weak reference
    was_used: Callable[[], bool]
    seen: Seen
    site: tuple[Any, int]


_MADE: dict[Any, _Made] = {}  # by the place where it was defined, the last function


def is_made_anew(scope: Scope, now: Seen) -> bool:
    """Whether the function of a guarded call in its warm-up is one of many that a loop makes."""
    site = _site(scope)
    before = _MADE.get(key_of(scope.fn))
    if site is None or before is None or before.site != site or before.function() is not None or before.was_used():
        return False
    return _is_in_loop(*site) and all(change.kind == "function" for change in changes(before.seen, now))


def remember(scope: Scope, seen: Seen, was_used: Callable[[], bool]) -> None:
    """Take notice of the first call of a guarded function."""
    function, site = unwrapped(scope.fn), _site(scope)
    if site is None or not type(function).__weakrefoffset__:
        return
    _MADE.pop(key_of(function), None)
    _MADE[key_of(function)] = _Made(weakref.ref(function), was_used, seen, site)
    while len(_MADE) > _MOST:
        _MADE.pop(next(iter(_MADE)))


def _site(scope: Scope) -> tuple[Any, int] | None:
    """Where a guarded function is called from: the code, and the instruction in it."""
    for frame in frames():
        if frame.f_code in CALLS and frame.f_back is not None and variables(frame)["kwargs"] is scope.kwargs:
            return frame.f_back.f_code, frame.f_back.f_lasti
    return None


def _is_in_loop(code: Any, at: int) -> bool:
    return any(
        instruction.opname.startswith("JUMP_BACKWARD") and instruction.argval <= at <= instruction.offset
        for instruction in dis.get_instructions(code)
    )
