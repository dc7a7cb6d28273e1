"""A status line for work that takes longer than two seconds: on a terminal only, nothing when piped."""

import contextlib
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator

_PATIENCE = 2.0  # seconds


@contextlib.contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show `text` on stderr while the block runs, once it has run for two seconds.

    **Returns:** a function that replaces the text.

    >>> with progress("searching") as update:
    ...     update("searching: 2 of 3")
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # 13 MB: only where it is shown

    status = Console(stderr=True).status(text)
    timer = threading.Timer(_PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield status.update
    finally:
        timer.cancel()
        timer.join()  # or it may start the status after it was stopped
        status.stop()
