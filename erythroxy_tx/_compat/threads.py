"""What stops JAX in one thread. Not here: what is said to the user (`runtime/threads.py`)."""

import contextlib
import functools
import logging
import re
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import core as _core

_LOG = logging.getLogger(__name__.partition(".")[0])
_REFUSALS = {  # what JAX says of its own. 0.10.2, 0.12.0.
    re.compile(r"tried to execute function (.+), but the no_execution"): "the compiled {}",
    re.compile(r"Disallowed (\S+ transfer)"): "a {}",
}


class Forbidding(_core.Trace):
    """A trace that takes no primitive. It is part of the key of a compiled program, so that no warm call gets round it:
    0.10.2, 0.12.0. Make few: `jax.jit` remembers each that it met.

    `refuse` makes the error from what was touched.
    """

    def __init__(self, refuse: Callable[[str], Exception]) -> None:
        super().__init__()
        self.refuse = refuse

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:  # noqa: ARG002  # as JAX calls it
        name = params.get("name") if primitive.name in ("jit", "pjit") else None
        raise self.refuse(f"the JAX call `{name or primitive.name}`")

    def process_call(self, primitive: Any, f: Any, tracers: Any, params: Any, /) -> Any:  # noqa: ARG002
        raise self.refuse(f"the JAX call `{primitive.name}`")

    def stage_value(self, val: Any) -> Any:
        raise self.refuse(f"an upload of {jax.typeof(val)}")

    def process_custom_jvp_call(self, *_: Any, **__: Any) -> Any:
        raise self.refuse("a call of a `jax.custom_jvp` function")

    def process_custom_vjp_call(self, *_: Any, **__: Any) -> Any:
        raise self.refuse("a call of a `jax.custom_vjp` function")


@contextlib.contextmanager
def without_jax(trace: Forbidding) -> Iterator[None]:
    """Stop JAX in this thread: primitives by the trace, before they are traced or compiled; what gets past it by public
    settings, which stop every run of a compiled program and every transfer that is no read.
    """
    with jax.transfer_guard("disallow_explicit"), jax.no_execution(True):  # noqa: FBT003
        if not trace_works():
            yield
            return
        with _core.set_current_trace(trace):
            yield


def refused_by_settings(error: RuntimeError) -> str | None:
    """What the public settings under `without_jax` stopped, None for any other error."""
    for pattern, told in _REFUSALS.items():
        if (match := pattern.search(str(error))) is not None:
            return told.format(match[1])
    return None


class _ProbeError(Exception):
    """Raised by the probe alone."""


@functools.cache
def trace_works() -> bool:
    """Whether this JAX asks the trace of the thread before it runs anything: tried once, and told where it does not."""
    number, reached = np.float32(1), 0
    calls: list[Callable[[], Any]] = [lambda: jax.lax.neg_p.bind(number), lambda: jax.device_put(number)]
    try:
        with _core.set_current_trace(Forbidding(lambda _: _ProbeError())):
            for call in calls:
                with contextlib.suppress(_ProbeError):
                    call()
                    continue
                reached += 1
    except Exception as error:  # noqa: BLE001  # whatever another JAX raises, it is told below
        _LOG.warning("jax %s traces in another way than was known: %r", jax.__version__, error)
    if reached < len(calls):
        _LOG.warning(
            "JAX in worker threads is stopped by public settings alone with jax %s: it is still refused before it runs "
            "or uploads, but after it was traced and compiled there. Fix: a newer erythroxy_tx.",
            jax.__version__,
        )
    return reached == len(calls)
