"""`pad_static`: one compiled program for inputs of every length up to a limit, whose result no padding can reach.
Not here: what that means for each equation (`program/masks/`), nor which lengths share one (`program/regimes.py`).
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
from jax.ad_checkpoint import checkpoint_name

from erythroxy_tx.compiling.scope import warming
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close
from erythroxy_tx.core.padded import Padded
from erythroxy_tx.core.padded import as_padded
from erythroxy_tx.core.padded import trimmed
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.errors import LengthError
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.program.bounds import relative_bounds
from erythroxy_tx.program.derivative import differentiable
from erythroxy_tx.program.exact import exact_outputs
from erythroxy_tx.program.given_mask import Growth
from erythroxy_tx.program.given_mask import growth_of
from erythroxy_tx.program.given_mask import sizes_of
from erythroxy_tx.program.likeness import STREAMED
from erythroxy_tx.program.masked import Masked
from erythroxy_tx.program.pad_call import PadCall
from erythroxy_tx.program.padding import masked_call
from erythroxy_tx.program.ragged import Limits
from erythroxy_tx.program.ragged import limits_of
from erythroxy_tx.program.ragged import own_arguments
from erythroxy_tx.program.ragged import ragged_axes
from erythroxy_tx.program.words import masked_told

_LENGTHS = "_lengths"  # the keyword by which a program is given them


def pad_static(
    max_len: int | dict[str, int] | None = None,
    *,
    buckets: Sequence[int] | dict[str, Sequence[int]] | None = None,
    in_axes: Any = 0,
    keep_padded: bool = False,
    mask: str | dict[str, str] | None = None,
    length: str | dict[str, str] | None = None,
    static_argnames: str | Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function once for inputs of every length up to a limit, with the result that it has without padding.

        pad_static(max_len)(f)(x) = f(x)        for every x of at most max_len rows

    Inputs are padded on the host, and their length travels as a number. The function itself is run with masks, which it
    need not know of: it is traced for an unknown number of rows, and each equation that would let padding into a result
    is given what changes nothing there. Sums and products see zeros, extremes the lowest number; a sort puts padding
    last; a scan ends with the last row, a reversed one starts there; `x[-1]`, `x.shape[0]` and `x.mean()` are those of
    the rows that are there. A function for which there is no such form is refused.

    **Arguments:**

    - `max_len`: the limit, in rows; or of several ragged axes a dict, `{"batch": 32, "seq": 512}`.
    - `buckets`: in its place several limits, of which the least is taken that has place: one program for each.
    - `in_axes`: which axis of each positional argument is ragged, as in `jax.vmap`: an int, `None` for what is whole,
        or a pytree prefix. Of several lengths, a dict of axis to name, `{0: "batch", 1: "seq"}`. Keyword arguments are
        whole.
    - `keep_padded`: results with rows stay on the device as `Padded`, instead of coming back in their exact length by
        one trip to the host. A `Padded` is taken as an argument as it is.
    - `mask`, `length`: a function that masks by itself is given, as the keyword argument of this name, which places are
        there (`bool[limit]`), or how many rows are (`i32[]`). Then that padding cannot reach its result is its own
        promise; `testing.prove_no_leak` looks for an input that breaks it.
    - `static_argnames`: as in `jax.jit`.

    **Returns:** a decorator. The decorated function is jitted when it is called outside a trace; nothing else compiles
    for another length. `.pad(*args)` pads arguments as a call does, `.lower(*args)` gives the program. Gradients are
    exact, those of places past the end zero.

    **Raises:** `LengthError` for an input that is longer than the limit, or of a length for which the function itself
    raises; `RowMixingError` for a function that has no exact form with masks, with the equation and its line;
    `ValueError` for a bad parameter, or arguments of different lengths.

    >>> import numpy as np, erythroxy_tx as tx
    >>> @tx.pad_static(128)
    ... def standardise(x):
    ...     return (x - x.mean(0)) / x.std(0), x[-1]
    >>> rows, last = standardise(np.arange(10.0).reshape(5, 2))
    >>> rows.shape, last.tolist()
    ((5, 2), [8.0, 9.0])
    """
    limits = limits_of(max_len, buckets)
    axes = Prefix.of(ragged_axes(in_axes, limits))
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    return functools.partial(
        PadStatic.around,
        limits=limits,
        in_axes=axes,
        keep_padded=bool(keep_padded),
        mask=own_arguments("mask", mask, limits),
        length=own_arguments("length", length, limits),
        static_argnames=names,
    )


class PadStatic(Transform):
    """A function that is compiled once for inputs of every length up to a limit. Made by `pad_static`."""

    limits: Limits = eqx.field(static=True, kw_only=True)
    in_axes: Prefix = eqx.field(static=True, kw_only=True)
    keep_padded: bool = eqx.field(static=True, kw_only=True)
    mask: tuple[tuple[int, str], ...] = eqx.field(static=True, kw_only=True)
    length: tuple[tuple[int, str], ...] = eqx.field(static=True, kw_only=True)
    static_argnames: tuple[str, ...] = eqx.field(static=True, kw_only=True)

    name = "tx.pad_static"
    usage = "@tx.pad_static(512), then the function"
    compiles = traceable = True

    def __repr__(self) -> str:
        """As it is written."""
        given = {"mask": self.mask, "length": self.length}
        parts = [str(self.limits), f"in_axes={self.in_axes}"] + ["keep_padded=True"] * self.keep_padded
        parts += [f"{name}={[argument for _, argument in own]}" for name, own in given.items() if own]
        parts += [f"static_argnames={self.static_argnames}"] * bool(self.static_argnames)
        inner = repr(self.fn) if isinstance(self.fn, Transform) else name_of(self.fn)
        return f"{self.name}({', '.join(parts)})({inner})"

    def pad(self, *args: Any, fill: float | None = None) -> tuple:
        """Arguments with place for the most rows, as `Padded`: what a call does to them on the host first.

        **Arguments:** `args`: the positional arguments of a call. `fill`: what comes after their rows; by default
        copies of the last one.

        **Returns:** the arguments, those with rows as `Padded`.
        """
        call = self._call(args, {})
        args, _ = call.static.merge(tuple(call.padded_leaves(fill)))
        return args

    def unpadded(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself on arguments as they are; one that masks by itself is given that all rows are there."""
        call = self._call(args, kwargs)
        return self._plain(call)(*call.dynamic, lengths=tuple(call.lengths))

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        call = self._call(args, kwargs)
        leaves: Any = call.types(call.most)
        args, kwargs = call.static.merge(leaves)
        counts = tuple(jax.ShapeDtypeStruct((), jnp.int32) for _ in call.most)
        return super().lower(*args, **kwargs, **{_LENGTHS: counts})

    def _reference(self) -> Callable[..., Any] | None:
        return self.unpadded if self._declared else None

    def _static_names(self) -> tuple[str, ...]:
        return self.static_argnames

    def _runner(self) -> Callable[..., Any]:
        return self._called

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        call = self._call(args, kwargs)
        with warming(self._kept(("warm", call.kinds), set), None if call.unknown else call.most):
            return self._of(call)

    def _of(self, call: PadCall) -> Any:
        if call.unknown and self._declared:
            raise TransformOrderError(
                f"{call.label} masks by itself, inside of a function that is traced for an unknown number of rows. "
                "Expected a known length. Fix: swap the two decorators."
            )
        if call.unknown:  # inside of another one's trace, which treats the rows
            return call.whole()
        masked, captured = (None, []) if self._declared else self._masked(call)
        known = tuple(call.lengths) if all(isinstance(n, int) for n in call.lengths) else None
        if masked is not None and known is not None:
            _check_defined(call, masked, known)
        lengths = tuple(np.int32(n) if isinstance(n, int) else n for n in call.lengths)
        args, kwargs = call.static.merge(tuple(call.placed()))
        run = self._traced if captured else self.program  # what captures tracers is traced here
        found = jax.tree.map(_marked, run(*args, **kwargs, **{_LENGTHS: lengths}))
        return found if self.keep_padded else self._trimmed(found, call, masked, known)

    def _trimmed(self, found: Any, call: PadCall, masked: Masked | None, known: tuple[int, ...] | None) -> Any:
        """Results in their exact length."""
        leaves, treedef = jtu.tree_flatten(found, is_leaf=lambda x: isinstance(x, Padded))
        if not any(isinstance(x, Padded) for x in leaves):
            return found
        if known is None and any(isinstance(n, jax.core.Tracer) for n in call.lengths):
            raise ValueError(
                f"{call.label} got a length that is traced, and has a result with rows. Expected a known length. Fix: "
                "keep_padded=True, and .trim() outside of the traced function."
            )
        for x in jtu.tree_leaves([x for x in leaves if isinstance(x, Padded)]):
            if not isinstance(x, jax.core.Tracer):
                x.copy_to_host_async()  # all on one way
        known = tuple(int(n) for n in jax.device_get(call.lengths)) if known is None else known
        sizes = iter(masked.sizes(known) if masked is not None else sizes_of(self._growth(call), known))
        return jtu.tree_unflatten(treedef, [_trimmed(x, next(sizes)) for x in leaves])

    def _growth(self, call: PadCall) -> Growth:
        return self._kept(("growth", call.key), lambda: growth_of(call, self._plain(call)))

    @property
    def _declared(self) -> bool:
        """Whether the function masks by itself."""
        return bool(self.mask or self.length)

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> PadCall:
        names = unwrapped(self)
        label = f"tx.pad_static({name_of(names)})"
        args, kwargs = declare(names, self.static_argnames, args, kwargs)
        return PadCall(label, names, self.fn, args, kwargs, self.in_axes, self.limits)

    def _masked(self, call: PadCall) -> tuple[Masked, list[Any]]:
        """The program of a call, kept where its function captures no tracer."""
        late: list[Any] = []

        def build() -> Masked:
            found, captured = masked_call(call)
            if captured:
                late.append((found, captured))
                raise _CapturedError
            return found

        try:
            return self._kept(("masked", call.key), build), []
        except _CapturedError:
            return late[0]

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        lengths = kwargs.pop(_LENGTHS)
        call = self._call(args, kwargs)
        if self._declared:
            found = self._plain(call)(*call.dynamic, lengths=lengths)
            return as_padded(found, sizes_of(self._growth(call), lengths))
        masked, captured = self._masked(call)
        leaves = [*lengths, *map(jnp.asarray, call.dynamic), *captured]
        if any(isinstance(n, jax.core.Tracer) for n in lengths):
            leaves = masked.checked(leaves)
        outs = differentiable(masked)(leaves)
        return as_padded(masked.like_result(outs), masked.sizes(tuple(leaves[: len(lengths)])))

    def _plain(self, call: PadCall) -> Callable[..., Any]:
        """The function as it is, given its own mask or length."""

        def run(*dynamic: Any, lengths: tuple[Any, ...]) -> Any:
            args, kwargs = call.static.merge(dynamic)
            places = call.places(dynamic)
            own = {argument: jnp.arange(places[k]) < lengths[k] for k, argument in self.mask}
            own |= {argument: jnp.asarray(lengths[k], jnp.int32) for k, argument in self.length}
            return self.fn(*args, **kwargs, **own)

        return run

    def _told(self, args: tuple, kwargs: dict[str, Any]) -> list[str]:
        call = self._call(args, kwargs)
        limits = " and ".join(
            f"{most}{f' along {name!r}' * (len(call.most) > 1)}"
            for most, name in zip(call.most, call.limits.names, strict=True)
        )
        if self._declared:
            given = ", ".join(argument for _, argument in (*self.mask, *self.length))
            return [f"any length up to {limits}; the function is given {given}, and masks by itself"]
        return [f"any length up to {limits}, in one compile", *masked_told(self._masked(call)[0])]

    def _keyed(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = self._call(args, kwargs)
        whole: Any = call.types(call.most)
        return call.static.merge(whole)

    def _promise(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        call = self._call(args, kwargs)
        if self._declared:
            return AsAccurate(4)
        promises = []
        for (exact, _), (bound, extreme) in zip(exact_outputs(call), relative_bounds(call.concrete), strict=True):
            loose = AsAccurate(4, ties=not extreme)
            tight = Bitwise(gradients=loose) if exact else None if bound is None else Close(bound, gradients=loose)
            promises.append(tight or loose)
        return call.unflatten(promises)


class _CapturedError(Exception):
    """A program that captures tracers is not kept."""


def _check_defined(call: PadCall, masked: Masked, lengths: tuple[int, ...]) -> None:
    one = masked.regime_of(lengths)
    if one.error is not None:
        count = " and ".join(map(str, lengths))
        told = f"{type(one.error).__name__}: {str(one.error).partition(chr(10))[0]}"
        raise LengthError(
            f"{call.label} got {count} rows, for which the function raises {told.rstrip('.')}. "
            "Expected a number of rows for which it has a result."
        ) from one.error


def _marked(x: Any) -> Any:
    """What another transform's trace sees: that this is no program of the function as it is."""
    return checkpoint_name(x, STREAMED) if isinstance(x, jax.core.Tracer) else x


def _trimmed(x: Any, sizes: list[Any]) -> Any:
    return trimmed(x.data, {axis: sizes[axis] for axis in x.axes}) if isinstance(x, Padded) else x
