"""Work of the library's own, which no guard of the user's minds: a check, a comparison with a reference."""

import contextlib
import contextvars
from collections.abc import Iterator

_DEPTH: contextvars.ContextVar[int] = contextvars.ContextVar("own work", default=0)


@contextlib.contextmanager
def own_work() -> Iterator[None]:
    """Compile, and read from the device, without being watched."""
    _DEPTH.set(_DEPTH.get() + 1)
    try:
        yield
    finally:
        _DEPTH.set(max(0, _DEPTH.get() - 1))


def is_own_work() -> bool:
    """Whether what runs now is not watched."""
    return _DEPTH.get() > 0
