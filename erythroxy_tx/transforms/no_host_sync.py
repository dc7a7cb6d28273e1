"""`no_host_sync`: the host reads nothing from the device, or an error names the line. Not here: how a read is seen
(`guards/reads.py`).
"""

import asyncio
import contextlib
import threading
import types
from collections.abc import Callable
from typing import Any
from typing import Self
from typing import overload

import equinox as eqx
import jax

from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import HostSyncError
from erythroxy_tx.guards.guard import Block
from erythroxy_tx.guards.guard import Guard
from erythroxy_tx.guards.look import Look
from erythroxy_tx.guards.reads import Read
from erythroxy_tx.guards.reads import Watch


@overload
def no_host_sync(*, allow: int = ...) -> Any: ...
@overload
def no_host_sync(fn: Callable[..., Any], /, *, allow: int = ...) -> "NoHostSync": ...


def no_host_sync(fn: Callable[..., Any] | None = None, /, *, allow: int = 0) -> Any:
    """Raise where the host reads a device array, before it waits for it, and name the line.

    A decorator, bare or with `allow`, of a function or a whole loop; or a block, `with tx.no_host_sync():`. It sees
    `float`, `int`, `bool` (an `if`), `.item()`, `.tolist()`, `np.asarray` and every numpy function, `print`, f-strings,
    masks, `jax.device_get` (of many arrays one read), pickling and `np.from_dlpack`, on the CPU as on a GPU.
    `jax.block_until_ready` is no read; nor is a second read of the same array, which copies nothing; nor what a host
    callback reads. It watches the thread and the context that it is entered in, and compiles nothing itself.

    **Arguments:**

    - `fn`: the function. Not one that is called inside of `jit`, where nothing is read.
    - `allow`: how many reads one call, or the block, may do; 0 by default.

    **Returns:** the decorated function; without a function, a decorator that is a block as well.

    **Raises:** `HostSyncError` with the line, the kind of read, the array and its bytes (`.line`, `.kind`, `.nbytes`),
    and what to do instead; the array is not touched. One that was caught in between, by a logger for example, is raised
    at the end. `TransformOrderError` inside of `jit`, `scan` and kin.
    `RuntimeError` on a JAX or a Python in which reads cannot be seen. On Python 3.11, `memoryview(array)` is a
    `TypeError` while any block is open.

    >>> import jax.numpy as jnp, erythroxy_tx as tx
    >>> loss = jnp.float32(1.5)
    >>> with tx.no_host_sync():
    ...     print(f"loss {loss:.2f}")
    Traceback (most recent call last):
    erythroxy_tx.errors.HostSyncError: with tx.no_host_sync(): f-string of f32[], 4 bytes, at ...
    Expected no read of the device. Stopped before it waited.
    Fix: keep it on the device, as with tx.MetricBuffer, and read once after the loop.
    """
    if not isinstance(allow, int) or isinstance(allow, bool) or allow < 0:
        raise ValueError(f"tx.no_host_sync got allow={allow!r}. Expected a number of reads ≥ 0.")
    return Block(NoHostSync, allow=allow) if fn is None else NoHostSync.on(fn, allow=allow)


class NoHostSync(Guard):
    """A function that reads nothing from the device. Made by `no_host_sync`."""

    allow: int = eqx.field(static=True, kw_only=True)

    name = "tx.no_host_sync"
    usage = "@tx.no_host_sync, bare or with allow="

    @staticmethod
    def watch(title: str, **parameters: Any) -> contextlib.AbstractContextManager[Any]:
        return _NoReads(title, **parameters)


class _Thread(threading.local):
    """JAX's own guard, in for as long as any block of a thread is open, in whatever order they close."""

    count = 0
    before: str | None = None

    def open(self) -> None:
        if not self.count:
            self.before = jax.config.jax_transfer_guard_device_to_host  # type: ignore[attr-defined]
            self._guard = jax.transfer_guard_device_to_host("disallow")
            self._guard.__enter__()
        self.count += 1

    def close(self) -> None:
        self.count -= 1
        if not self.count:
            self._guard.__exit__(None, None, None)


_THREAD = _Thread()


class _NoReads(Watch):
    """Refuses every read after the first few."""

    def __init__(self, title: str, allow: int) -> None:
        self._title, self._allow, self._done = title, allow, 0
        self._refused: HostSyncError | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        # What JAX itself would refuse, a copy that comes to pass in no way that is watched, a CPU never reports. Its
        # guard is of the thread; it would not leave with a coroutine that waits.
        self._is_guarded = asyncio._get_running_loop() is None
        if self._is_guarded:
            _THREAD.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        if self._is_guarded and self.is_here():
            _THREAD.close()
        super().__exit__(kind, error, traceback)
        if isinstance(error, HostSyncError):
            return
        if self._refused is not None:
            # Caught by the program; or numpy made another error of it, where it fills an array.
            if error is None or (type(error) in (TypeError, ValueError) and error.__cause__ is self._refused):
                raise self._refused
            error.add_note(str(self._refused))
        if "Disallowed device-to-host transfer" in str(error):
            fix = Look("", "", "").fix
            raise HostSyncError(
                f"{self._title}: JAX copied an array to the host. Expected {self._expected}. Fix: {fix}."
            ) from error

    def before(self, look: Look, array: Any) -> None:
        if self._done < self._allow:
            return
        told = f" ({look.expression})" if look.expression else ""
        error = HostSyncError(
            f"{self._title}: {look.kind} of {shape_of(array)}, {array.nbytes} bytes, at {look.line}{told}.\n"
            f"Expected {self._expected}. Stopped before it waited.\nFix: {look.fix}."
        )
        error.kind, error.line, error.nbytes = look.kind, look.line, int(array.nbytes)
        self._refused = error
        raise error

    def after(self, read: Read) -> None:
        self._done += not read.goes_on

    def reading(self) -> contextlib.AbstractContextManager[Any]:
        return jax.transfer_guard_device_to_host(_THREAD.before or "allow")

    @property
    def _expected(self) -> str:
        return f"at most {self._allow} reads of the device" if self._allow else "no read of the device"
