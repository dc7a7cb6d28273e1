"""Where a decorated function is being called from: the running frames, their variables, and which objects the
caller's stack holds. Not here: what is concluded from them.
"""

import dis
import functools
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

from erythroxy_tx.core.transform import Transform

_PACKAGE = __name__.partition(".")[0]
_LIBRARIES = {_PACKAGE, "jax", "jaxlib", "equinox", "numpy", "contextlib", "functools", "threading"}
_INSTALLED = ("<frozen", *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def frames() -> Iterator[types.FrameType]:
    """The frames that are running in this thread, from the caller's outwards."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


@functools.cache
def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def is_library(frame: types.FrameType) -> bool:
    """Whether a frame is one of this library's, of JAX's, or of what both are built on."""
    return _is_library(str(frame.f_globals.get("__name__", "")))


def user_frame() -> types.FrameType | None:
    """The innermost frame of code that the user wrote: no library's, and rather none that is installed."""
    installed = None
    for frame in frames():
        if not is_library(frame):
            if not frame.f_code.co_filename.startswith(_INSTALLED):
                return frame
            installed = installed or frame
    return installed


def line_of(frame: types.FrameType) -> str:
    """The line that is running in a frame, as `train.py:12 (fit)`."""
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} ({getattr(code, 'co_qualname', code.co_name)})"


def user_line() -> str:
    """The line that is running of code that the user wrote."""
    frame = user_frame()
    return "in a host callback" if frame is None else line_of(frame)


def variables(frame: types.FrameType) -> dict[str, Any]:
    """All variables that a frame sees, in a dict of their own."""
    values = frame.f_locals
    seen = dict(values)
    frame_variable_argument = 3
    copied = isinstance(values, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if copied and sys.getrefcount(values) <= frame_variable_argument:
        values.clear()  # before 3.13 a copy, which would keep every variable alive; a user's `locals()` stays as it is
    return seen


def on_the_stack() -> list[int]:
    """The ids of the arguments of the user's call `f(a, b)`, which its stack holds while the call runs.

    Only where the call is certain to be that of a wrapper: `map`, `reduce` and others hold arguments elsewhere.
    """
    inner = sys._getframe()
    for frame in frames():
        if frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
            inner = frame
            continue
        called = variables(inner)
        args, kwargs = called.get("args", ()), called.get("kwargs", {})
        count = _count_of_wrapper_call(frame)
        return [id(arg) for arg in args] if count == len(args) and not kwargs else []
    return []


def _count_of_wrapper_call(frame: types.FrameType) -> int | None:
    """How many arguments a frame passes by position to a wrapper at this moment, None if it may be another call.

    `dis` tells what is called: behind the instructions that push the arguments is the one that loads the callable.
    """
    code = list(dis.get_instructions(frame.f_code))
    at = next((i for i, instruction in enumerate(code) if instruction.offset == frame.f_lasti), 0)
    if code[at].opname != "CALL":
        return None
    count = missing = code[at].arg or 0
    at -= 2 if code[at - 1].opname == "PRECALL" else 1
    while missing > 0:
        if code[at].is_jump_target or code[at].opcode in dis.hasjrel:
            return None
        missing -= dis.stack_effect(code[at].opcode, code[at].arg)
        at -= 1
    if code[at].opname == "PUSH_NULL":
        at -= 1
    attributes = []
    while code[at].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        attributes.append(code[at].argval)
        at -= 1
    if missing or not code[at].opname.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")):
        return None
    called = {**frame.f_globals, **variables(frame)}.get(code[at].argval)
    for name in reversed(attributes):
        called = inspect.getattr_static(called, name, None)
    return count if isinstance(called, Transform) else None
