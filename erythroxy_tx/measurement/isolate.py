"""Measures in a process of its own: spawned, with the backend up and the arguments loaded before the
first trace, so that nothing of the caller's process is in the figures. Not here: the measurement itself.
"""

import gc
import io
import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import jax.tree_util as jtu

from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.transform import unwrapped


def in_fresh_process(work: Callable[..., Any], fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run `work(fn, args, kwargs)` in a spawned process.

    **Arguments:**

    - `work`: picklable; called in the child, under the configuration of JAX that holds here.
    - `fn`, `args`, `kwargs`: the measured call. Its arrays lie on the default device, here and there.

    **Returns:** what `work` returns.

    **Raises:** `TypeError` if the call cannot be sent; the child's own exception, with its traceback as
    a note; `ChildProcessError` if the child ended without an answer.
    """
    _check_devices(fn, args, kwargs)
    payload = _pickled(fn, args, kwargs)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # The call goes by a pipe whose other end is closed here: a child that ended early is then told, not waited for.
    child = context.Process(target=_child, args=(theirs, work, dict(jax.config.values)))
    child.start()
    theirs.close()
    try:
        ours.send_bytes(payload)
        answer = ours.recv()
    except (EOFError, ConnectionError):
        child.join()
        raise ChildProcessError(_epitaph(fn, child.exitcode)) from None
    except BaseException:
        child.kill()
        raise
    finally:
        ours.close()
    child.join()
    result, error, text = answer
    if text is None:
        return result
    if error is None:
        raise ChildProcessError(f"measure({name_of(fn)}, isolate=True) failed in its process:\n{text}")
    error.add_note(f"In the process that measured {name_of(fn)}:\n{text}")
    raise error


def _child(parent: Connection, work: Callable[..., Any], config: dict[str, Any]) -> None:
    answer: tuple[Any, Exception | None, str | None]
    try:
        for key, value in config.items():
            if jax.config.values[key] != value:
                jax.config.update(key, value)
        fn, args, kwargs = pickle.loads(parent.recv_bytes())  # noqa: S301 # from the parent
        gc.collect()
        answer = work(fn, args, kwargs), None, None
    except Exception as error:  # noqa: BLE001 # raised again in the parent
        answer = None, _sendable(error), traceback.format_exc()
    parent.send(answer)


class _Pickler(pickle.Pickler):
    """Sends a decorated function by the name that its module has for it: it carries that of the bare one."""

    def reducer_override(self, obj: Any) -> Any:
        module = sys.modules.get(str(getattr(obj, "__module__", None)))
        if hasattr(obj, "__wrapped__") and module is not None:
            for name, value in vars(module).items():
                if value is obj:
                    return name
        return NotImplemented


def _pickled(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> bytes:
    name = f"measure({name_of(fn)}, isolate=True)"
    in_main = getattr(unwrapped(fn), "__module__", None) == "__main__"
    script = getattr(sys.modules["__main__"], "__file__", None)  # which the fresh process imports, if there is one
    if (in_main and script is None) or (script is not None and not Path(script).exists()):
        raise TypeError(
            f"{name} was called from an interactive session or standard input, which a fresh process cannot "
            "import. Expected a function of a module. Fix: move it into a file and import it."
        )
    out = io.BytesIO()
    try:
        _Pickler(out, pickle.HIGHEST_PROTOCOL).dump((fn, args, kwargs))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"{name} cannot send the call to a fresh process: {error}. Expected a function that its "
            "module holds by name, which a lambda or a nested function is not, and arguments that pickle. "
            "Fix: define and decorate it at the top of a module, and pass what it captures as arguments."
        ) from error
    return out.getvalue()


def _check_devices(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> None:
    default = jax.numpy.zeros(()).devices()
    leaves = [("fn", leaf) for leaf in jtu.tree_leaves(fn)] + named_leaves(unwrapped(fn), args, kwargs)
    for name, leaf in leaves:
        if isinstance(leaf, jax.Array) and leaf.devices() != default:
            found, expected = (", ".join(sorted(map(str, where))) for where in (leaf.devices(), default))
            raise ValueError(
                f"measure({name_of(fn)}, isolate=True) got {name} on {found}. Expected arrays on {expected}, "
                "where the fresh process loads them. Fix: leave isolate out, or move the array."
            )


def _sendable(error: Exception) -> Exception | None:
    try:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 # our own bytes
    except Exception:  # noqa: BLE001 # it can fail in any way; the text goes instead
        return None
    return error if type(again) is type(error) else None


def _epitaph(fn: Callable[..., Any], code: int | None) -> str:
    what = f"The process of measure({name_of(fn)}, isolate=True)"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        ask = " Out of memory? The kernel's log tells: `journalctl -k`." if name == "SIGKILL" else ""
        return f"{what} was killed by {name} before it answered.{ask}"
    return (
        f"{what} ended with exit code {code} before it answered; what it printed says why. A script must "
        'call measure under `if __name__ == "__main__":`, since the fresh process imports the script.'
    )
