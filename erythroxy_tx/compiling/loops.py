"""Functions that a loop makes anew, decorates, and calls once: each is in its warm-up, and each compiles. They are
told from a function that is made again for another use: the call is the same one, in a loop, and the function before
is gone, was called no more than this one, and had the same arguments.
"""

import dataclasses
import dis
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

from erythroxy_tx.compiling.calls import guarded_call
from erythroxy_tx.compiling.calls import looked_at
from erythroxy_tx.compiling.changes import changes
from erythroxy_tx.compiling.history import key_of
from erythroxy_tx.compiling.scope import Scope
from erythroxy_tx.compiling.scope import frame_of
from erythroxy_tx.compiling.seen import Seen
from erythroxy_tx.core.transform import unwrapped

_MOST = 256


@dataclasses.dataclass(frozen=True)
class _Made:
    function: Callable[[], Any]  # a weak reference
    was_used: Callable[[], bool]
    seen: Seen
    site: tuple[Any, int]
    captured: list[Any]


_MADE: dict[Any, _Made] = {}  # by the place where it was defined, the last function


def is_made_anew(scope: Scope) -> bool:
    """Whether the function of a guarded call in its warm-up is one of many that a loop makes."""
    before = _MADE.get(key_of(scope.fn)) if scope.fn is not None else None
    if before is None or before.function() is not None or before.was_used() or before.site != _site(scope):
        return False
    if before.captured != _captured(scope.fn) or not _is_in_loop(*before.site):
        return False
    now = looked_at(guarded_call, scope)
    return now is not None and all(change.kind == "function" for change in changes(before.seen, now))


def remember(scope: Scope, seen: Seen, was_used: Callable[[], bool]) -> None:
    """Take notice of the first call of a guarded function."""
    function, site = unwrapped(scope.fn), _site(scope)
    if site is None or not type(function).__weakrefoffset__:
        return
    _MADE.pop(key_of(function), None)
    _MADE[key_of(function)] = _Made(weakref.ref(function), was_used, seen, site, _captured(function))
    while len(_MADE) > _MOST:
        _MADE.pop(next(iter(_MADE)))


def _captured(fn: Any) -> list[Any]:
    """What tells functions of one line apart: what they close over, their defaults, and the globals that they read;
    numbers and text by value, all else by identity.
    """
    fn, found = unwrapped(fn), []
    while True:
        if isinstance(fn, functools.partial):
            found += [*fn.args, *fn.keywords.items()]
            fn = fn.func
        elif (inner := getattr(fn, "__wrapped__", None)) is not None:
            fn = inner
        else:
            break
    if isinstance(fn, types.FunctionType):
        found += [cell.cell_contents for cell in fn.__closure__ or () if cell != types.CellType()]
        found += [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).items()]
        found += [fn.__globals__.get(name) for name in fn.__code__.co_names]
    plain = (int, float, complex, str, bytes, bool, type(None))
    return [(type(x), x) if isinstance(x, plain) else id(x) for x in found]


def _site(scope: Scope) -> tuple[Any, int] | None:
    """Where a guarded function is called from: the code, and the instruction in it."""
    frame = frame_of(scope)
    return None if frame is None or frame.f_back is None else (frame.f_back.f_code, frame.f_back.f_lasti)


def _is_in_loop(code: Any, at: int) -> bool:
    return any(
        instruction.opname.startswith("JUMP_BACKWARD") and instruction.argval <= at <= instruction.offset
        for instruction in dis.get_instructions(code)
    )
