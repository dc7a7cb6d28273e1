"""Blocks of work in which JAX may not run, and the place of a thread in the user's code. Not here: the threads
themselves (`fetching/workers.py`), and how JAX is stopped (`_compat/threads.py`).
"""

import contextlib
import functools
import sys
import threading
import traceback
import types
from collections.abc import Iterable
from collections.abc import Iterator

from erythroxy_tx import _compat
from erythroxy_tx.core import call_site
from erythroxy_tx.errors import ThreadError

_PACKAGE = __name__.partition(".")[0]
_AROUND_ALL = "reraise_with_filtered_traceback"  # of JAX's, around each of its functions
_INSTALLED = ("site-packages", "dist-packages", "<frozen")


@contextlib.contextmanager
def numpy_only(name: str) -> Iterator[None]:
    """Forbid JAX in a block, in the thread that runs it: primitives, calls of jitted and of compiled functions, uploads
    and other transfers. Other threads are not touched, nor are those that the block starts.

    Not stopped: what neither runs nor moves anything (`jax.tree.map`, `jax.eval_shape`, `.lower`), and, on a CPU, the
    read of an array that is there already (`np.asarray`).

    **Arguments:**

    - `name`: who forbids it, for the error: `"tx.prefetch"`.

    **Raises:** `ThreadError` with what was touched, the line, and the fix.

    >>> import numpy as np
    >>> with numpy_only("tx.prefetch"):
    ...     found = np.arange(3).sum()
    """
    try:
        with _compat.without_jax(_forbidding(name)):
            yield
    except RuntimeError as error:
        if (touched := _compat.refused_by_settings(error)) is None:
            raise
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        raise _refusal(name, touched, frames[::-1]) from error


@functools.cache
def _forbidding(name: str) -> _compat.Forbidding:
    return _compat.Forbidding(lambda touched: _refusal(name, touched, call_site.frames()))


def _refusal(name: str, touched: str, frames: Iterable[types.FrameType]) -> ThreadError:
    return ThreadError(
        f"{name} got {touched} in the thread {threading.current_thread().name}, at {user_line(frames)}. Expected numpy "
        "alone there: JAX from several threads runs in an order that nobody chose, and takes device memory that nobody "
        "counted. Fix: move it behind next(), into the loop."
    )


def user_line(frames: Iterable[types.FrameType]) -> str:
    """The innermost line of the user's own code, as `data.py:12 (read)`; of frames from the innermost outwards."""
    others = [frame for frame in frames if not _is_of(frame, {_PACKAGE})]
    installed = [
        frame for frame in others if not _is_of(frame, sys.stdlib_module_names) and frame.f_code.co_name != _AROUND_ALL
    ]
    own = [frame for frame in installed if not any(place in frame.f_code.co_filename for place in _INSTALLED)]
    best = own[:1] or installed[-1:] or others[:1]  # of a library alone, the function that was called
    return call_site.line_of(best[0]) if best else "a line that is unknown"


def line_in(thread: threading.Thread) -> str:
    """The line of the user's own code that a thread runs at this moment."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "its end" if frame is None else user_line(frame for frame, _ in traceback.walk_stack(frame))


def _is_of(frame: types.FrameType, modules: Iterable[str]) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in modules
