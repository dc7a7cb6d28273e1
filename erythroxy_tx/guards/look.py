"""How the host reads a device array, and where: the kind of read, the user's line, and the expression in it."""

import ast
import builtins
import functools
import itertools
import linecache
import re
import textwrap
import types
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core.call_site import frames
from erythroxy_tx.core.call_site import is_library
from erythroxy_tx.core.call_site import line_of
from erythroxy_tx.core.call_site import user_frame

# What JAX calls the function that the user called, or that Python called for them.
_KINDS = {
    "__float__": "float",
    "__bool__": "bool",
    "__int__": "int",
    "__index__": "index",
    "__complex__": "complex",
    "__format__": "f-string",
    "__str__": "print",
    "__repr__": "print",
    "__getitem__": "mask",
    "__reduce__": "pickle",
    "item": ".item()",
    "_item": ".item()",
    "tolist": ".tolist()",
    "tobytes": ".tobytes()",
    "device_get": "device_get",
}
_OWN = {
    "erythroxy_tx.core.padded": "tx.pad_static",
    "erythroxy_tx.runtime.windows": "tx.windows",
    "erythroxy_tx.runtime.metrics": "tx.MetricBuffer",
}
_FIXES = {
    "tx.MetricBuffer": "read it once, after the block; check_nan=k is a read at each k-th step: allow= as many, or "
    "check() after the block",
    "tx.pad_static": "keep_padded=True, which leaves results with rows on the device",
    "tx.windows": 'outside="mask", which checks no start on the host',
    "bool": "decide on the device, with jnp.where or jax.lax.cond",
    "mask": "keep the shape: jnp.where(mask, x, 0), or size= of jnp.nonzero",
    "jnp.nonzero": "size= of jnp.nonzero, which keeps the shape",
    "jnp.unique": "size= of jnp.unique, which keeps the shape",
    "jnp.repeat": "total_repeat_length= of jnp.repeat, which keeps the shape",
    "index": "index on the device: jnp.take(table, i)",
    "constant of a jit": "pass the array as an argument, or compile before the block",
    "debug_nans": "jax.config.update('jax_debug_nans', False), which reads every result",
}
_FIX = "keep it on the device, as with tx.MetricBuffer, and read once after the loop"
_LONGEST = 60  # characters of an expression


class Look(NamedTuple):
    """One way and place of reading."""

    kind: str
    line: str
    expression: str  # nothing where the source is not at hand

    @property
    def fix(self) -> str:
        """What to do instead."""
        return _FIXES.get(self.kind, _FIX)


def look() -> tuple[Look, bool] | None:
    """How and where an array is being read, and whether that goes on a `jax.device_get`, which reads many in one go.
    None by a host callback, for which nothing on this thread waits.
    """
    running, user = list(frames()), user_frame()
    inside = list(itertools.takewhile(lambda frame: frame is not user, running))
    if "callback" in map(_reader, running) or "jax.debug.print" in map(_reader, running[len(inside) :]):
        return None
    called = [frame for frame in inside if is_library(frame)]
    goes_on = False
    for frame in called:
        if frame.f_code.co_name == "device_get":
            goes_on |= not frame.f_trace_lines
            frame.f_trace_lines = False  # a mark that goes with the frame; a debugger would miss its lines, no more
    if user is None:
        return Look(_kind(called, ""), "?", ""), goes_on
    expression = _expression(user.f_code, user.f_lasti)
    return Look(_kind(called, expression), line_of(user), expression), goes_on


def _kind(called: list[types.FrameType], expression: str) -> str:
    """The kind of a read, from the frames of the libraries in which it happens, the innermost first."""
    for frame in called:
        if own := _OWN.get(_module(frame)):
            return own
    called = [frame for frame in called if _module(frame).partition(".")[0] != "erythroxy_tx"]
    names = [frame.f_code.co_name for frame in called]
    if reader := next(filter(None, map(_reader, called)), None):
        return reader
    if "check_special" in names:
        return "debug_nans"
    if not names or names[-1] == "__array__":  # C code, which has no frame
        return _callee(expression)
    outermost, known = names[-1], [name for name in names if name in _KINDS]
    if outermost == "__getitem__" and "__index__" in names:
        return "index"
    if outermost in _KINDS:
        return _KINDS[outermost]
    if _module(called[-1]).partition(".")[0] == "numpy":
        return f"np.{outermost}"
    if hasattr(jnp, outermost):
        return f"jnp.{outermost}"
    return _KINDS[known[-1]] if known else outermost


def _callee(expression: str) -> str:
    """The function that an expression calls; numpy's own as `np`, under whatever name it was imported."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError:  # of a part of one, or none
        return "np.asarray"
    if not isinstance(tree, ast.Call):
        return "np.asarray"
    name = ast.unparse(tree.func)
    if not re.fullmatch(r"[\w.]+", name):  # a method of what another call gave
        return f".{name.rpartition('.')[2]}()"
    last = name.rpartition(".")[2]
    return f"np.{last}" if last in vars(np) and last not in vars(builtins) else name


def _reader(frame: types.FrameType) -> str | None:
    return _compat.READERS.get(_module(frame))


def _module(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


@functools.lru_cache(maxsize=4096)
def _expression(code: types.CodeType, at: int) -> str:
    """The source of what runs at an instruction, in a line, as far as Python knows it."""
    positions = list(code.co_positions())[at // 2] if at >= 0 else (None,) * 4
    first, last, begin, end = positions
    if first is None or last is None or begin is None or end is None:
        return ""
    lines = [linecache.getline(code.co_filename, number) for number in range(first, last + 1)]
    if not all(lines):
        return ""
    raw = [line.encode() for line in lines]  # the columns count bytes
    raw[-1] = raw[-1][:end]
    raw[0] = raw[0][begin:]
    return textwrap.shorten(b" ".join(raw).decode(errors="replace"), _LONGEST, placeholder=" …")
