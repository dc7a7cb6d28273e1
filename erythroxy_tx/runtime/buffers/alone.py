"""One thread at a time in the buffers of metrics: one that logs may read while another appends."""

import functools
import threading
from collections.abc import Callable
from typing import Any
from typing import TypeVar
from typing import cast

T = TypeVar("T", bound=Callable[..., Any])
_LOCK = threading.RLock()  # of all buffers: a buffer is copied and pickled, which a lock is not


def alone(method: T) -> T:
    """A method that waits for those of other threads."""

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _LOCK:
            return method(*args, **kwargs)

    return cast("T", run)
