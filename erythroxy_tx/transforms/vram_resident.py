"""`vram_resident`: host arrays go to the device once, and results stay there.
Not here: the copies themselves (`core/residency.py`).
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core.callables import is_leaf
from erythroxy_tx.core.callables import opened
from erythroxy_tx.core.captured import captured_arrays
from erythroxy_tx.core.residency import Residency
from erythroxy_tx.core.residency import Resident
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.static import split
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.core.transform import with_innermost
from erythroxy_tx.errors import BudgetError
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.units import format_bytes
from erythroxy_tx.units import parse_bytes

_LARGEST_CAPTURE = 2**20  # bytes


def vram_resident(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    device: Any = None,
    max_fetch: int | str | None = None,
    budget: int | str | None = None,
    static_argnames: str | Sequence[str] = (),
) -> Any:
    """Keep a function's inputs on the device from call to call, and its results there.

        vram_resident(f)(x) = f(x), bit for bit

    A numpy argument is copied to the device once and found again by identity, for as long as the host array lives.
    While it is resident it is read-only; where something else could still write to it (a view, a writable base), it is
    checksummed at each call, at memory speed, and a change raises. Numbers are copied once too. The body is one jit
    in which implicit transfers from the host raise.

    **Arguments:**

    - `fn`: the function.
    - `device`: a `jax.Device` or sharding; the default device otherwise.
    - `max_fetch`: bytes (int or `"64MiB"`). Results then come back as numpy arrays, in one transfer, and larger ones
        are refused. By default results stay on the device.
    - `budget`: bytes on the device for copies of host arrays; the least recently used is dropped for a new one.
    - `static_argnames`: as in `jax.jit`.

    **Returns:** the decorated function. `.resident()` lists what is on the device, `.evict(*arrays)` drops it,
    `.replace(old, new)` swaps a base without holding both, `.lower(*args)` gives the program.

    **Raises:** `StaleArrayError` if a resident array changed on the host; `BudgetError` if a call or a result is too
    large; `TransformOrderError` inside a trace, where nothing can be resident; `ValueError` for a captured numpy array
    above 1 MiB; `OverflowError` for an int64 value that does not fit the device's int32.

    >>> import numpy as np, jax.numpy as jnp, erythroxy_tx as tx
    >>> @tx.vram_resident
    ... def mean_of(base, rows):
    ...     return base[rows].mean(0)
    >>> base = np.ones((1000, 4), np.float32)
    >>> mean_of(base, np.arange(10)).shape
    (4,)
    >>> sum(entry.nbytes for entry in mean_of.resident() if entry.name == "base")
    16000
    >>> base[0] = 2.0
    Traceback (most recent call last):
    ValueError: assignment destination is read-only
    """
    limits = {
        name: parse_bytes(value, f"tx.vram_resident got {name}") if value is not None else None
        for name, value in (("max_fetch", max_fetch), ("budget", budget))
    }
    if device is not None and not isinstance(device, (jax.Device, jax.sharding.Sharding)):
        raise TypeError(f"tx.vram_resident got device={device!r}. Expected a jax.Device, a sharding or None.")
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    wrap = functools.partial(VramResident.around, device=device, static_argnames=names, **limits)
    return wrap if fn is None else wrap(fn)


class VramResident(Transform):
    """A function whose inputs stay on the device. Made by `vram_resident`."""

    device: Any = eqx.field(static=True, kw_only=True)
    max_fetch: int | None = eqx.field(static=True, kw_only=True)
    budget: int | None = eqx.field(static=True, kw_only=True)
    static_argnames: tuple[str, ...] = eqx.field(static=True, kw_only=True)

    name = "tx.vram_resident"
    usage = "@tx.vram_resident, bare or with keyword arguments"
    compiles = True

    def resident(self) -> list[Resident]:
        """What is on the device for this function.

        **Returns:** a list of entries with `name`, `value` (the device array), `nbytes` and `checked`, the least
        recently used first.
        """
        return self._residency.entries()

    def evict(self, *arrays: np.ndarray) -> None:
        """Drop the copies of these host arrays, or of all. An array is writable again when no function holds it."""
        self._residency.evict(arrays)

    def replace(self, old: np.ndarray, new: np.ndarray) -> None:
        """Swap the base `old` for `new`, of the same shape and dtype, without holding both on the device.

        With `new is old` an array that was changed in place is copied again.

        **Raises:** `ValueError` if `old` is not resident, or `new` has another shape or dtype.
        """
        self._residency.replace(old, new)

    @functools.cached_property
    def _residency(self) -> Residency:
        label = f"tx.vram_resident({name_of(unwrapped(self))})"
        return self._kept("residency", lambda: Residency(label, self.device, self.budget))

    def _static_names(self) -> tuple[str, ...]:
        return self.static_argnames

    def _runner(self) -> Callable[..., Any]:
        program, residency, device = self.program, self._residency, self.device
        max_fetch, function, static_names = self.max_fetch, unwrapped(self), self.static_argnames
        has_own_leaves = not is_leaf(opened(function))
        current, eager, array_type = _compat.current_trace, _compat.eager_trace, _compat.ArrayImpl

        def placed(args: tuple, kwargs: dict[str, Any]) -> Any:
            if not _compat.outside_trace():
                raise TransformOrderError(
                    f"{residency.label} was called inside a trace (jit, grad, vmap, scan), where nothing can be "
                    "resident. Expected it outermost. Fix: put it outside, as in tx.vram_resident(jax.grad(f))."
                )
            residency.check_captured()
            marked = declare(function, static_names, args, kwargs)
            leaves, structure = jtu.tree_flatten((opened(function), marked))
            names = lambda: _names(function, *marked)  # noqa: E731
            if device is not None:
                _check_device(residency.label, leaves, names(), device)
            form, (args, kwargs) = jtu.tree_unflatten(structure, residency.place(leaves, names))
            call = with_innermost(self, form).program if has_own_leaves else program
            try:
                return call(*args, **kwargs)
            except BaseException:
                residency.take_back()  # a call that failed keeps nothing of the caller's
                raise

        def run(*args: Any, **kwargs: Any) -> Any:
            if kwargs or has_own_leaves or device is not None or residency.captured or current.value is not eager:
                return placed(args, kwargs)
            for arg in args:
                if type(arg) is not array_type:
                    return placed(args, kwargs)
            return program(*args)

        if max_fetch is None:
            return run
        return lambda *args, **kwargs: _fetch(residency.label, run(*args, **kwargs), max_fetch)

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        label = self._residency.label
        static, dynamic = split(declare(unwrapped(self), self.static_argnames, args, kwargs), label)

        def flat(*leaves: Any) -> Any:
            args, kwargs = static.merge(leaves)
            return self.fn(*args, **kwargs)

        with jax.transfer_guard_host_to_device("disallow"):
            closed, result = jax.make_jaxpr(flat, return_shape=True)(*dynamic)
        for name, array, held in captured_arrays(closed, unwrapped(self)):
            if array.nbytes > _LARGEST_CAPTURE:
                raise ValueError(
                    f"{label} captures {name}: {shape_of(array)} ({format_bytes(array.nbytes)}), which would be "
                    f"compiled into the program. Expected at most {format_bytes(_LARGEST_CAPTURE)}. Fix: pass it as an "
                    "argument, where it is copied once."
                )
            if held is not None:
                self._residency.capture(name, held)
        return jtu.tree_unflatten(jtu.tree_structure(result), _compat.eval_closed(closed, closed.consts, dynamic))


def _names(function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> list[str]:
    """What to call each leaf of the function itself, such as a method's attributes, and of its arguments."""
    own = [name_of(function) + jtu.keystr(path) for path, _ in jtu.tree_flatten_with_path(opened(function))[0]]
    return own + [name for name, _ in named_leaves(function, args, kwargs)]


def _check_device(label: str, leaves: list[Any], names: list[str], device: Any) -> None:
    wanted = device.device_set if isinstance(device, jax.sharding.Sharding) else {device}
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, jax.Array) and leaf.sharding.device_set != wanted:
            raise ValueError(
                f"{label} got {name}: {shape_of(leaf)} on {leaf.sharding.device_set}. Expected {wanted}. "
                "Fix: jax.device_put it there once, before the loop."
            )


def _fetch(label: str, result: Any, limit: int) -> Any:
    """The result as numpy, in one transfer; PRNG keys stay as they are."""
    leaves, structure = jtu.tree_flatten(result)
    arrays = {i: leaf for i, leaf in enumerate(leaves) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)}
    total = sum(leaf.nbytes for leaf in arrays.values())
    if total > limit:
        error = BudgetError(
            f"{label} got a result of {format_bytes(total)} ({', '.join(map(shape_of, leaves))}). Expected at most "
            f"max_fetch={format_bytes(limit)}. Fix: return less, or a larger max_fetch. The result is on the device, "
            "in this error's `result`."
        )
        error.result = result
        raise error
    fetched = jax.device_get(arrays)
    return jtu.tree_unflatten(structure, [fetched.get(i, leaf) for i, leaf in enumerate(leaves)])
