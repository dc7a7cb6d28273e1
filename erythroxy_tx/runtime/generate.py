"""`generate`: batches that a function makes on the device, each dispatched one step ahead. Not here: batches that
come from the host.
"""

import inspect
import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core import cache
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.runtime.keys import MOST
from erythroxy_tx.runtime.keys import check_key
from erythroxy_tx.runtime.keys import checked_step
from erythroxy_tx.runtime.keys import per_step_key

_KEYS = MOST + 1


def generate(
    fn: Callable[[jax.Array], Any], key: jax.Array, *, steps: int | None = None, start: int = 0
) -> "Generated":
    """Iterate over batches that are made where they are used, on the device::

        batch[k] = fn(per_step_key(key, k))   for k in range(start, steps)

    The batch of step k + 1 is dispatched before that of step k is handed out, so that the device makes it while the
    host is busy with step k. All of it happens in the thread that iterates: no worker, no disk, and after the first
    step no transfer in either direction. Two batches are in memory at a time.

    **Arguments:**

    - `fn`: makes a batch, a pytree of arrays, of a key alone. It is jitted once, however often it is iterated; what has
        a `lower`, a function that is jitted or decorated, is called as it is.
    - `key`: one random key, typed or raw.
    - `steps`: the step to end before, as in `range`; None for as many as there are keys, 2**32.
    - `start`: the first step. A run that ended with `batches.step` goes on with `start=` that number, and the same
        `steps`.

    **Returns:** an iterator of batches. Its `step` is that of the batch that comes next.

    **Raises:** `TypeError` for a `fn` that returns numpy arrays or Python numbers, made on the host and, once compiled,
    the same in every batch; `ValueError` for one whose batch does not depend on the key, and for a bad step. An error
    of `fn` comes out of the `next` before its own; a second `next` tries again.

    >>> import jax, erythroxy_tx as tx
    >>> key = jax.random.key(0)
    >>> batches = tx.generate(lambda key: jax.random.normal(key, (4,)), key, steps=3)
    >>> [batch.shape for batch in batches], batches.step
    ([(4,), (4,), (4,)], 3)
    """
    if not callable(fn):
        raise TypeError(f"tx.generate got fn: {shape_of(fn)}. Expected a function of a key, as in generate(make, key).")
    check_key("tx.generate", key)
    start = checked_step("tx.generate", "start", start, _KEYS)
    end = _KEYS if steps is None else checked_step("tx.generate", "steps", steps, _KEYS)
    if start > end:
        raise ValueError(
            f"tx.generate got start={start} and steps={steps}. Expected start <= steps, which is where it ends and "
            "not how many steps come from start on."
        )
    _refuse_trace()
    return Generated(fn, key, start, end)


class Generated(Iterator[Any]):
    """Batches, of which one is made ahead. Made by `generate`."""

    def __init__(self, fn: Callable[[jax.Array], Any], key: jax.Array, start: int, end: int) -> None:
        self.step = start
        self._fn, self._name, self._key, self._end = fn, name_of(fn), jax.device_put(key), end
        self._make = _program(fn, self._name)
        self._next_step = jax.device_put(np.uint32(start % _KEYS))
        self._ahead: list[Any] = []  # the batch of `step`, once it is dispatched
        self._is_new = True
        self._one_at_a_time = threading.Lock()

    def __repr__(self) -> str:
        return f"tx.generate({self._name}, step={self.step}, steps={self._end})"

    def __next__(self) -> Any:
        _refuse_trace()
        with self._one_at_a_time:
            if self.step == self._end:
                raise StopIteration
            self._ahead = self._ahead or [self._dispatch()]
            following = [self._dispatch()] if self.step + 1 < self._end else []
            (batch,), self._ahead = self._ahead, following
            self.step += 1
            return batch

    def _dispatch(self) -> Any:
        key, following = _next_key(self._key, self._next_step)
        if self._is_new:
            self._refuse_constant(key)
        batch = _of_device(self._name, self._make(key))
        self._next_step, self._is_new = following, False
        return batch

    def _refuse_constant(self, key: jax.Array) -> None:
        trace = getattr(self._make, "trace", None)
        if trace is not None and not _depends_on_input(trace(key).jaxpr.jaxpr):
            raise ValueError(
                f"tx.generate({self._name}) got a batch that does not depend on the key: every one would be the same. "
                "Expected random numbers of jax.random and this key, not of numpy."
            )


def _program(fn: Callable[[jax.Array], Any], name: str) -> Callable[[jax.Array], Any]:
    """Compiled once for a function, not for each iterator over its batches."""
    if hasattr(fn, "lower"):
        return fn
    if not inspect.isfunction(fn):
        return jax.jit(lambda key: _of_device(name, fn(key)))
    weak = weakref.ref(fn)
    return cache.keep(fn, "tx.generate", lambda: jax.jit(lambda key: _of_device(name, weak()(key))))  # type: ignore[misc]


def _of_device(name: str, batch: Any) -> Any:
    if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(batch)):
        named = ((jtu.keystr(path), leaf) for path, leaf in jtu.tree_flatten_with_path(batch)[0])
        path, leaf = next((path, leaf) for path, leaf in named if not isinstance(leaf, jax.Array))
        raise TypeError(
            f"tx.generate({name}) got batch{path}: {type(leaf).__name__}, made on the host, which once compiled is the "
            "same in every batch. Expected arrays of JAX. Fix: jax.random with the key; what the host has to make "
            "comes by tx.prefetch."
        )
    return batch


@jax.jit
def _next_key(key: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    return per_step_key(key, step), step + 1


def _depends_on_input(jaxpr: Any) -> bool:
    reached = set(jaxpr.invars)
    is_reached = lambda var: not isinstance(var, _compat.Literal) and var in reached  # noqa: E731
    for eqn in jaxpr.eqns:
        if any(map(is_reached, eqn.invars)):
            reached.update(eqn.outvars)
    return any(map(is_reached, jaxpr.outvars))


def _refuse_trace() -> None:
    if not _compat.outside_trace():
        raise TransformOrderError(
            "tx.generate was used inside of a trace (jit, scan, vmap, grad), where a step is no step of the host. "
            "Expected it around the compiled step. Fix: inside, make(tx.per_step_key(key, step))."
        )
