"""Every exception of the library. Each is also the builtin that fits, so that code which knows
nothing of this library catches it as it would catch any other.

A message says what was called, what it got, what it expected, and the fix.
"""


class ErythroxyError(Exception):
    """The base of every error that this library raises on purpose."""


class ContractError(ErythroxyError, AssertionError):
    """A result does not meet the contract that was stated for it."""


class IdentityError(ContractError):
    """A transformed function does not compute what the original computes.

    `counterexample` holds the arguments for which it does not, `way` how it was called, and `examples` how many
    inputs it took to find one.
    """

    counterexample: tuple = ()
    way: str = ""
    examples: int = 0


class RelocationError(IdentityError):
    """A relocated function does not compute what its reference computes."""


class RetraceError(ErythroxyError, AssertionError):
    """A function that was said to be warm was traced or compiled again.

    `changes` holds what differs from an earlier call, each with `kind`, `path`, `before`, `after` and `fix`; `stage`
    what was about to run, `"trace"`, `"lowering"` or `"compile"`; `function` what JAX calls it.
    """

    changes: tuple = ()
    stage: str = ""
    function: str = ""


class RowMixingError(ErythroxyError, ValueError):
    """Rows depend on each other in a way that cannot be run in chunks."""


class LengthError(ErythroxyError, ValueError):
    """An input is longer than the length that was compiled for."""


class BudgetError(ErythroxyError, MemoryError):
    """Something does not fit the bytes that it was given.

    `result`, where the refusal came after the work was done, holds what was computed.
    """

    result: object = None


class HostSyncError(ErythroxyError, RuntimeError):
    """A device array was read on the host where that was forbidden.

    `kind` says how (`"float"`, `"np.asarray"`), `line` where, `nbytes` how many bytes it would have read.
    """

    kind: str = ""
    line: str = ""
    nbytes: int = 0


class DiskIOError(ErythroxyError, RuntimeError):
    """The disk was read or written where that was forbidden.

    `kind` says which, `"read"` or `"write"`, `path` and `line` where, `nbytes` how many bytes. What was only counted
    may have no `path`; what was stopped before a write has no `nbytes`. `result`, where a decorated function had
    returned before this was found, holds what it returned.
    """

    kind: str = ""
    path: str = ""
    line: str = ""
    nbytes: int = 0
    result: object = None


class ThreadError(ErythroxyError, RuntimeError):
    """JAX was used in a thread that must not use it."""


class StallError(ErythroxyError, TimeoutError):
    """What was waited for did not come within the time that was given."""


class StaleArrayError(ErythroxyError, RuntimeError):
    """A host array changed after it was copied to the device, or the rows of a stream between two passes over them."""


class RunSpecError(ErythroxyError, ValueError):
    """A run was started again with other parameters than it has, or its file cannot be relied on.

    `changes` holds each difference, with `path`, `before`, `after` and `kind`.
    """

    changes: tuple = ()


class TransformOrderError(ErythroxyError, TypeError):
    """Transforms are stacked in an order that cannot work."""


class StaticArgumentError(ErythroxyError, TypeError):
    """A static argument cannot be told apart from a changed one."""
