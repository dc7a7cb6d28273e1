"""`assert_relocation`: the numpy original stays the reference of the function that replaces it.
Not here: how two results are compared (`core/relocation.py`).
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core.compare import Comparison
from erythroxy_tx.core.compare import host_array
from erythroxy_tx.core.own_work import own_work
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.core.relocation import compare_relocated
from erythroxy_tx.core.relocation import narrowed
from erythroxy_tx.core.relocation import ties
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import signature_of
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import in_small_chunks
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.errors import RelocationError
from erythroxy_tx.program.ragged import Ragged

_SEED = 0  # of the sampled rows


def assert_relocation(
    numpy_ref: Callable[..., Any],
    *,
    rtol: float = 1e-4,
    atol: float = 0.0,
    sample: int | None = None,
    calls: str | int = "first",
) -> Callable[[Callable[..., Any]], Any]:
    """Hold a function against the numpy function that it replaces, on the arguments that it is called with.

    For each output: `max |f(x) - numpy_ref(x)| <= atol + rtol * max |numpy_ref(x)|`; integers, bools, shapes and the
    places of NaN and infinities are equal. float64 → float32 is allowed and named; another change of dtype is an error.

    **Arguments:**

    - `numpy_ref`: called with the same arguments before the function is, arrays as read-only numpy.
    - `rtol`, `atol`: finite numbers ≥ 0.
    - `sample`: compare on this many rows, chosen by a fixed seed: both functions are called on those rows. Rows are
        those of the `chunked` inside, or else axis 0 of every positional array; keyword arguments are whole. What is
        chunked inside runs in two chunks or more, so that its declaration is compared as well.
    - `calls`: `"first"`, `"always"`, or an int k for every k-th call, the first included.

    **Returns:** a decorator. The decorated function returns what the function returns; `.report()` tells what was
    compared. Inside a trace nothing is compared, which is said once.

    **Raises:** `RelocationError` with the worst element, its path and both values; also where the reference raises and
    the function returns a value.

    >>> import numpy as np, jax.numpy as jnp, erythroxy_tx as tx
    >>> @tx.assert_relocation(lambda x: x.cumsum() / (1 + np.arange(len(x))))
    ... def running_mean(x):
    ...     return jnp.cumsum(x) / (1 + jnp.arange(len(x)))
    >>> running_mean(np.float64([1, 2, 6])).tolist()
    [1.0, 1.5, 3.0]
    >>> print(running_mean.report())
    running_mean: 1 of 1 calls compared, largest difference 0 × the largest; result: float64 → float32 (allowed)
    """
    if not callable(numpy_ref):
        raise TypeError(f"tx.assert_relocation got numpy_ref={numpy_ref!r}. Expected the numpy function.")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise ValueError(f"tx.assert_relocation got {name}={value!r}. Expected a finite number ≥ 0.")
    if sample is not None and (not isinstance(sample, int) or isinstance(sample, bool) or sample < 1):
        raise ValueError(f"tx.assert_relocation got sample={sample!r}. Expected a number of rows ≥ 1, or None for all.")
    is_count = isinstance(calls, int) and not isinstance(calls, bool) and calls >= 1
    if calls not in ("first", "always") and not is_count:
        raise ValueError(f"tx.assert_relocation got calls={calls!r}. Expected 'first', 'always' or an int ≥ 1.")
    return functools.partial(
        AssertRelocation.around,
        numpy_ref=numpy_ref,
        rtol=float(rtol),
        atol=float(atol),
        sample=sample,
        calls=calls,
    )


@dataclasses.dataclass
class Report:
    """What `assert_relocation` has compared so far for one function."""

    name: str
    calls: int = 0
    compared: int = 0
    largest: float = 0.0
    narrowed: tuple[str, ...] = ()
    rows: str = ""
    told: bool = False

    def __str__(self) -> str:
        if not self.compared:
            return f"{self.name}: nothing compared in {self.calls} calls"
        changes = "".join(f"; {change} (allowed)" for change in self.narrowed)
        return (
            f"{self.name}: {self.compared} of {self.calls} calls compared{self.rows}, largest difference "
            f"{self.largest:.3g} × the largest{changes}"
        )


class AssertRelocation(Transform):
    """A function that is held against its numpy reference. Made by `assert_relocation`."""

    numpy_ref: Callable[..., Any] = eqx.field(static=True, kw_only=True)
    rtol: float = eqx.field(static=True, kw_only=True)
    atol: float = eqx.field(static=True, kw_only=True)
    sample: int | None = eqx.field(static=True, kw_only=True)
    calls: str | int = eqx.field(static=True, kw_only=True)

    name = "tx.assert_relocation"
    usage = "@tx.assert_relocation(numpy_ref), then the function"

    def report(self) -> Report:
        """What was compared so far: the calls, the largest difference, the changes of dtype that were allowed."""
        return self._report

    @functools.cached_property
    def _report(self) -> Report:
        return self._kept("report", lambda: Report(name_of(unwrapped(self))))

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        return self.fn.lower(*args, **kwargs) if hasattr(self.fn, "lower") else super().lower(*args, **kwargs)

    @property
    def _every(self) -> int:
        """Each how many calls are compared, the first one in any case; 0 for that one alone."""
        return self.calls if isinstance(self.calls, int) else {"first": 0, "always": 1}[self.calls]

    def _runner(self) -> Callable[..., Any]:
        fn, report, every = self.fn, self._report, self._every

        def run(*args: Any, **kwargs: Any) -> Any:
            report.calls += 1
            if report.compared and (every == 0 or (report.calls - 1) % every):
                return fn(*args, **kwargs)
            if not _compat.outside_trace():
                self._tell_once()
                return fn(*args, **kwargs)
            return self._checked(args, kwargs)

        return run

    def _tell_once(self) -> None:
        if not self._report.told:
            self._report.told = True
            warnings.warn(
                f"tx.assert_relocation({self._report.name}) was called inside a trace, where it compares nothing. "
                "Put it outside jit, grad, vmap and scan.",
                stacklevel=3,
            )

    def _checked(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The function's result, after it was compared.

        The reference runs first, on arrays that it cannot write to: neither sees what the other does to an argument.
        """
        report = self._report
        _check_signature(report.name, self.numpy_ref, args, kwargs)
        with own_work():
            sampled = self._sampled(args) if self.sample is not None else None
            rows, told = sampled or (args, "")
            try:
                reference, raised = self.numpy_ref(*_host(rows), **_host(kwargs)), None
            except Exception as error:  # noqa: BLE001  # told below, unless the function raises too
                reference, raised = None, error
        result = self.fn(*args, **kwargs)
        with own_work():
            compared = in_small_chunks(self.fn)(*rows, **kwargs) if sampled else result
        report.rows = told
        if raised is not None:
            raise RelocationError(
                f"tx.assert_relocation({report.name}): the reference {name_of(self.numpy_ref)} raised "
                f"{type(raised).__name__}: {raised}; the function returned a value ({_told(result)}). Expected both to "
                "refuse. Fix: check indices and values before the call, which JAX does not; if the reference writes to "
                "its argument, let it copy first."
            ) from raised
        with own_work():
            self._check(reference, compared, named_leaves(unwrapped(self), rows, kwargs))
        report.compared += 1
        return result

    def _check(self, reference: Any, result: Any, inputs: list[tuple[str, Any]]) -> None:
        report = self._report
        found = compare_relocated(reference, result, self.rtol, self.atol)
        if not found.ok:
            raise RelocationError(self._message(found, reference, result, inputs))
        report.largest = max(report.largest, found.largest)
        report.narrowed = tuple(narrowed(reference, result))

    def _message(self, found: Comparison, reference: Any, result: Any, inputs: list[tuple[str, Any]]) -> str:
        got = ", ".join(f"{name}: {shape_of(leaf)}" for name, leaf in inputs)
        lines = [
            f"tx.assert_relocation({self._report.name}) called with {got}{self._report.rows}",
            str(found),
        ]
        structures: list[Any] = [jtu.tree_structure(reference), jtu.tree_structure(result)]
        if structures[0] == structures[1]:
            lines += [f"{change} (allowed)" for change in narrowed(reference, result)]
            kept = [(name, leaf) for name, leaf in inputs if is_traced(leaf) and not _is_donated(leaf)]
            tied = ties(reference, result, kept)
            lines += [
                f'{line}. Fix: kind="stable" in the reference, or compare the values that are picked' for line in tied
            ]
        lines.append(
            f"Expected at most atol={self.atol:g} + rtol={self.rtol:g} × the largest magnitude, for each output."
        )
        return "\n".join(lines)

    def _sampled(self, args: tuple) -> tuple[tuple, str] | None:
        """The arguments on seeded rows, and how to tell it; None if there are no more rows than that."""
        label = f"tx.assert_relocation({self._report.name})"
        spread = getattr(self.fn, "in_axes", Prefix.of(0)).spread(args, label, "in_axes", "the positional arguments")
        axes = [axis.axes[0][0] if isinstance(axis, Ragged) else axis for axis in spread]
        leaves, structure = jtu.tree_flatten(args)
        rows = [(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True) if axis is not None and np.ndim(leaf)]
        lengths = {leaf.shape[axis] for leaf, axis in rows if is_traced(leaf)}
        if len(lengths) != 1:
            got = ", ".join(f"{name}: {shape_of(leaf)}" for name, leaf in named_leaves(unwrapped(self), args, {}))
            raise ValueError(
                f"{label} got sample={self.sample} and {got}. Expected one number of rows along axis 0 of every "
                "positional array. Fix: pass what has no rows by keyword, or sample=None."
            )
        length = lengths.pop()
        if length <= (self.sample or 0):
            return None
        picked = np.sort(np.random.default_rng(_SEED).choice(length, self.sample, replace=False))
        take = lambda leaf, axis: leaf.take(picked, axis=axis) if axis is not None and np.ndim(leaf) else leaf  # noqa: E731
        sampled = jtu.tree_unflatten(structure, [take(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)])
        return sampled, f" on {self.sample} of {length} rows"


def _check_signature(name: str, numpy_ref: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> None:
    if (signature := signature_of(numpy_ref)) is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"tx.assert_relocation({name}): the reference {name_of(numpy_ref)}{signature} cannot be called as the "
            f"function was: {error}. Expected it to take the same arguments."
        ) from error


def _host(tree: Any) -> Any:
    """Arrays as numpy that cannot be written to, the rest as it is."""

    def on_host(leaf: Any) -> Any:
        if not isinstance(leaf, (jax.Array, np.ndarray)):
            return leaf
        array = (host_array(leaf) if isinstance(leaf, jax.Array) else leaf).view()
        array.flags.writeable = False
        return array

    return jtu.tree_map(on_host, tree)


def _is_donated(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _told(result: Any) -> str:
    return ", ".join(map(shape_of, jtu.tree_leaves(result))) or "nothing"
