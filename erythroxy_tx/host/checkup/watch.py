"""Settings that are made after they were read: noted as they are made. JAX reads `JAX_*` when it is imported, and XLA
reads the others when the backend starts; later changes do nothing, and nobody says so.

What sets and deletes environment variables is `os.putenv` and `os.unsetenv`, which `os.environ` looks up on each
use. They are replaced by two that look at the name first. An audit hook would hear the same, but makes every `id()`
of the process 0.2 to 0.4 µs slower; this costs about 1 µs for each variable that is set, and nothing else.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from erythroxy_tx._compat_started import backend_started

PREFIXES = ("JAX_", "XLA_")
NAMES = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
NAMES |= {"GPU_DEVICE_ORDINAL", "TF_FORCE_UNIFIED_MEMORY", "TF_GPU_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH"}


class Late(NamedTuple):
    """A setting that was made too late: `counts` is the value that was read before, `line` where it was made."""

    name: str
    counts: str | None
    line: str


class _Watch:
    """What was seen in this process."""

    def __init__(self) -> None:
        self.late: dict[str, Late] = {}
        self.unseen: dict[str, str] | None = None  # the settings at a time when the backend already ran
        self.is_on = False


_WATCH = _Watch()


def is_setting(name: str) -> bool:
    """Whether a variable is one that JAX, XLA or a driver of a GPU may read."""
    return name.startswith(PREFIXES) or name in NAMES


def watch() -> None:
    """From now on, note settings that come too late and, once JAX is imported, how its compilation cache fares."""
    if "jax" in sys.modules:
        from erythroxy_tx.host.checkup.counts import listen

        listen()
    if _WATCH.is_on:
        return
    _WATCH.is_on = True
    if backend_started():
        _WATCH.unseen = {name: value for name, value in os.environ.items() if is_setting(name)}
    os.putenv = _noting(os.putenv)
    os.unsetenv = _noting(os.unsetenv)


def late_settings() -> tuple[Late, ...]:
    """The settings that now have another value than the one that was read."""
    return tuple(late for late in _WATCH.late.values() if os.environ.get(late.name) != late.counts)


def settings_before_watch() -> dict[str, str] | None:
    """The settings when the watch began, where the backend already ran; None where it did not."""
    return _WATCH.unseen


def _noting(change: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(change)
    def noted(name: Any, *value: Any) -> None:
        _note(os.fsdecode(name))
        change(name, *value)

    return noted


def _note(name: str) -> None:
    """Remember what a setting was, where it has been read already."""
    if not is_setting(name) or name in _WATCH.late or "jax" not in sys.modules:
        return
    if name.startswith("JAX_") or backend_started():
        _WATCH.late[name] = Late(name, os.environ.get(name), _line())


def _line() -> str:
    """The line that sets it, `train.py:12`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in {__name__, "os", "_collections_abc"}:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119  # without an import
