"""`chunked`: run a function over chunks of its rows, in one graph, so that only one chunk's intermediates live.
Not here: what that means for each equation, the passes, and the loop (`program/`).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from erythroxy_tx.core.called import among_arguments
from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.drivers.driver import Driver
from erythroxy_tx.drivers.driver import Inputs
from erythroxy_tx.drivers.streamed import Kept
from erythroxy_tx.host.memory import return_freed
from erythroxy_tx.program.auto import plan_call
from erythroxy_tx.program.auto import run_auto
from erythroxy_tx.program.bounds import relative_bounds
from erythroxy_tx.program.chunks import Chunks
from erythroxy_tx.program.chunks import sizes
from erythroxy_tx.program.combine import KINDS
from erythroxy_tx.program.combine import check_one_chunk
from erythroxy_tx.program.combine import run_declared
from erythroxy_tx.program.cost import largest_fitting
from erythroxy_tx.program.exact import exact_outputs
from erythroxy_tx.program.likeness import STREAMED
from erythroxy_tx.program.row_call import RowCall
from erythroxy_tx.program.words import told
from erythroxy_tx.units import format_bytes
from erythroxy_tx.units import parse_bytes

_DRIVERS = (lax.map, lax.scan)


def chunked(
    driver: Callable[..., Any] | Driver,
    n: int | None = None,
    *,
    size: int | None = None,
    budget: int | str | None = None,
    in_axes: Any = 0,
    out: Any = "auto",
    remat: bool = True,
    static_argnames: str | Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Any]:
    """Run a function over chunks of its rows, so that the intermediates of one chunk live at a time.

        chunked(f)(x) = f(x)

    The function is written for all rows at once. It is traced for an unknown number of rows, and what it does to them
    decides how it runs: in passes over the chunks that add up, carry on and write down. What mixes rows in a way that
    cannot run in chunks is refused. With `out` declared, and c running over the chunks of x, it is instead called with
    chunks, whose results come together as declared (⊕), and that this is f(x) is the caller's promise:

        chunked(f)(x) = ⊕ over c of f(c)

    **Arguments:**

    - `driver`: where the chunks run. `lax.map` and `lax.scan` both name a loop in one compiled graph; `tx.stream(…)`
        runs them from the host, `tx.over(mesh, axis)` on the devices of a mesh, where n and size are of one device.
    - `n`: the number of chunks; or `size`: rows in a chunk; or `budget`: bytes (int or `"2GiB"`), then the largest
        chunk is taken whose compiled program (arguments, results and temporaries) fits. Exactly one of the three.
    - `in_axes`: which axis of each positional argument is rows, as in `jax.vmap`: an int, `None` for an argument that
        every chunk gets whole, or a pytree prefix. Keyword arguments are always whole.
    - `out`: `"auto"`, or how each output comes together, a pytree prefix of `"rows"` (along axis 0), `"sum"`,
        `"mean"`, `"max"`, `"min"`, `"prod"`, `"all"`, `"any"`. Float sums are kept in float32 at least, rounded once.
    - `remat`: of declared outputs, in reverse mode compute each chunk again, instead of keeping the residuals of all.
        Forward mode (`jax.jvp`) needs declared outputs and `remat=False`.
    - `static_argnames`: as in `jax.jit`.

    **Returns:** a decorator. The decorated function is jitted when it is called outside a trace;
    `.chunks(*args)` tells the plan, `.lower(*args)` the program, and `tx.explain` all of it in words.

    **Raises:** `RowMixingError` for a function that cannot run in chunks, with the equation and its line; `ValueError`
    for a bad parameter, rows of different lengths, or an output that cannot be what it is declared to be; `BudgetError`
    if one row does not fit, or if most would be computed again in each of many passes.

    >>> import jax, jax.numpy as jnp, erythroxy_tx as tx
    >>> @tx.chunked(jax.lax.map, size=4, in_axes=(0, None))
    ... def features(x, w):
    ...     h = jnp.tanh(x @ w)
    ...     h = (h - h.mean(0)) / h.std(0)
    ...     return h.max(1), h.T @ h
    >>> top, gram = features(jnp.arange(30.0).reshape(10, 3), jnp.ones((3, 5)))
    >>> top.shape, gram.shape
    ((10,), (5, 5))
    >>> print(features.chunks(jnp.ones((10, 3)), jnp.ones((3, 5))))
    10 rows in 3 chunks of 4, the last of 2
    """
    if driver not in _DRIVERS and not isinstance(driver, Driver):
        raise ValueError(
            f"tx.chunked got driver={name_of(driver)}. Expected lax.map or lax.scan, tx.stream(…) or tx.over(…). Fix: "
            "@tx.chunked(lax.map, n) (it takes arguments; the function comes after them)."
        )
    given = {"n": n, "size": size, "budget": budget}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise ValueError(
            f"tx.chunked got {', '.join(f'{k}={given[k]!r}' for k in chosen) or 'none of n, size and budget'}. "
            "Expected exactly one of n= (chunks), size= (rows in a chunk) and budget= (bytes)."
        )
    for name in ("n", "size"):
        value = given[name]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
            raise ValueError(f"tx.chunked got {name}={value!r}. Expected an int ≥ 1.")
    axes = Prefix.of(in_axes)
    if bad := [a for a in axes.leaves if a is not None and (not isinstance(a, int) or isinstance(a, bool))]:
        raise ValueError(f"tx.chunked got in_axes={in_axes!r} with {bad[0]!r} in it. Expected ints and None.")
    kinds = Prefix.of("rows" if isinstance(out, str) and out == "auto" else out)
    if bad := [kind for kind in kinds.leaves if kind not in KINDS]:
        raise ValueError(f"tx.chunked got out={out!r} with {bad[0]!r} in it. Expected {', '.join(map(repr, KINDS))}.")
    if isinstance(driver, Driver) and not (isinstance(out, str) and out == "auto"):
        raise ValueError(
            f"tx.chunked got out={out!r} with driver={driver!r}, which reads it off the function. Expected no out=. "
            "Fix: lax.map for declared outputs."
        )
    if not remat and isinstance(out, str) and out == "auto":
        raise ValueError(
            'tx.chunked got remat=False and no out=. Expected declared outputs: out="rows", …, for remat=.'
        )
    limit = parse_bytes(budget, "tx.chunked got budget") if budget is not None else None
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    return functools.partial(
        Chunked.around,
        driver=driver,
        n=n,
        size=size,
        budget=limit,
        in_axes=axes,
        out=None if isinstance(out, str) and out == "auto" else kinds,
        remat=bool(remat),
        static_argnames=names,
    )


class Chunked(Transform):
    """A function that runs over chunks of its rows. Made by `chunked`."""

    driver: Callable[..., Any] | Driver = eqx.field(static=True, kw_only=True)
    n: int | None = eqx.field(static=True, kw_only=True)
    size: int | None = eqx.field(static=True, kw_only=True)
    budget: int | None = eqx.field(static=True, kw_only=True)
    in_axes: Prefix = eqx.field(static=True, kw_only=True)
    out: Prefix | None = eqx.field(static=True, kw_only=True)
    remat: bool = eqx.field(static=True, kw_only=True)
    static_argnames: tuple[str, ...] = eqx.field(static=True, kw_only=True)

    name = "tx.chunked"
    usage = "@tx.chunked(lax.map, n), then the function"

    @property
    def compiles(self) -> bool:  # type: ignore[override]
        """Whether a call is one program of this wrapper: other drivers run from the host."""
        return not isinstance(self.driver, Driver)

    @property
    def traceable(self) -> bool:  # type: ignore[override]
        """Whether it works inside a trace: a stream reads on the host."""
        return not isinstance(self.driver, Driver) or self.driver.traceable

    def chunks(self, *args: Any, **kwargs: Any) -> Chunks:
        """The plan for these arguments, or for `jax.ShapeDtypeStruct`s in their place. Nothing is run; with a
        budget, programs are compiled, once for each set of shapes.

        **Arguments:** as the function's.

        **Returns:** the number of rows, of chunks, and of rows in a chunk; it prints as a sentence. The same
        figure as `size=` gives the same program.
        """
        return self._plan(*self._opened(args, kwargs))

    def _in_small_chunks(self) -> dict[str, Any]:
        return self._parameters() | {"n": 2, "size": None, "budget": None}

    def _runner(self) -> Callable[..., Any]:
        return self._driven if isinstance(self.driver, Driver) else self.program

    def _driven(self, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(self.driver, Driver)
        kept = self._kept("driven", Kept)
        with self.driver.announced(self._label):
            call, inputs = self._opened(args, kwargs)
            if not call.unknown:
                size = self._plan(call, inputs).size
                call.result = kept.once(("result", call.key), lambda: call.result)
        return call.whole() if call.unknown else self.driver.run(call, size, inputs, kept)

    @property
    def _label(self) -> str:
        return f"tx.chunked({name_of(unwrapped(self))})"

    def _static_names(self) -> tuple[str, ...]:
        return self.static_argnames

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        call = self._call(args, kwargs)
        if call.unknown:  # inside of another one's trace, which cuts the rows
            return call.whole()
        plan = self._plan(call)
        if plan.one:
            return self._run_call(call, plan)
        return jax.tree.map(functools.partial(checkpoint_name, name=STREAMED), self._run_call(call, plan))

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> RowCall:
        return self._opened(args, kwargs)[0]

    def _opened(self, args: tuple, kwargs: dict[str, Any]) -> tuple[RowCall, Inputs]:
        names, label, inputs = unwrapped(self), self._label, Inputs()
        args, kwargs = declare(names, self.static_argnames, args, kwargs)
        fn: Callable[..., Any] = self.fn
        if isinstance(self.driver, Driver):
            fn, kwargs = among_arguments(fn, kwargs)
            (args, kwargs), inputs = self.driver.opened(label, names, args, kwargs, self.in_axes)
        return RowCall(label, names, fn, args, kwargs, self.in_axes), inputs

    def _run_call(self, call: RowCall, plan: Chunks) -> Any:
        if self.out is None:
            return call.whole() if plan.one else run_auto(call, plan.size, self._allowed(call))
        kinds = self._kinds(call)
        if plan.one:
            check_one_chunk(call, kinds)
            return call.whole()
        return run_declared(call, kinds, plan, self.remat)

    def _allowed(self, call: RowCall) -> int | None:
        """Bytes that a budget leaves for values that are written down: half of what is no argument and no result."""
        if self.budget is None:
            return None
        whole = sum(math.prod(x.shape) * x.dtype.itemsize for x in map(struct_of, [*call.dynamic, *call.result_leaves]))
        return max(0, self.budget - whole) // 2

    def _told(self, args: tuple, kwargs: dict[str, Any]) -> list[str]:
        call, inputs = self._opened(args, kwargs)
        plan = self._plan(call, inputs)
        if isinstance(self.driver, Driver):
            return [str(plan), *self.driver.told(call, plan.size, inputs, self._kept("driven", Kept))]
        passes = [] if self.out is not None or plan.one else told(plan_call(call, plan.size, self._allowed(call)))
        return [str(plan), *passes, *([] if plan.one else self._compared(call, plan))]

    def _compared(self, call: RowCall, plan: Chunks) -> list[str]:
        """The bytes of one piece beside those of chunks."""
        chunks, piece = self._bytes(call, plan.size), self._bytes(call, call.length)
        lines = [f"in one piece it takes {format_bytes(piece.total)}, in chunks {format_bytes(chunks.total)}"]
        more = ["warning: chunks save nothing here"] if chunks.total >= piece.total else []
        return lines + more

    def _kinds(self, call: RowCall) -> list[str]:
        assert self.out is not None
        result = tuple(call.result) if type(call.result) is list else call.result  # a list in `out` became a tuple
        return self.out.spread(result, call.label, "out", "the result")

    def _plan(self, call: RowCall, inputs: Inputs | None = None) -> Chunks:
        rows = self.driver.rows(call, inputs or {}) if isinstance(self.driver, Driver) else call.length
        if self.budget is not None:
            return self._kept(("budget", call.key, rows), lambda: self._largest(call, inputs or {}, rows))
        return self._cut(call, self.size if self.size is not None else max(1, math.ceil(rows / (self.n or 1))), rows)

    def _cut(self, call: RowCall, size: int, rows: int, total_bytes: int | None = None) -> Chunks:
        if self.out is None and rows > size and not isinstance(self.driver, Driver):
            size = -(-rows // -(-rows // size))  # equally long
        only_rows = self.out is not None and rows > size and set(self._kinds(call)) == {"rows"}
        return Chunks(rows, size, overlaps=only_rows, total_bytes=total_bytes)

    def _largest(self, call: RowCall, inputs: Inputs, rows: int) -> Chunks:
        """The plan of the largest chunk that fits, found by compiling on abstract shapes."""

        def bytes_of(size: int) -> ProgramBytes:
            if isinstance(self.driver, Driver):
                return self.driver.bytes(call, size, inputs, self._kept("driven", Kept))
            return self._bytes(call, size)

        able = self.driver.sizes(rows) if isinstance(self.driver, Driver) else sizes(rows)
        size, total = largest_fitting(able, bytes_of, self.budget or 0, call.label)
        return self._cut(call, size, rows, total)

    def _bytes(self, call: RowCall, size: int) -> ProgramBytes:
        """What the program of a chunk size takes."""

        def program(*dynamic: Any) -> Any:
            again = call.on(dynamic)
            return self._run_call(again, self._cut(again, size, again.length))

        found = ProgramBytes.of(jax.jit(program).lower(*map(struct_of, call.dynamic)).compile())
        return_freed()  # by the compiler, which the next compile would add to
        return found

    def _promise(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        call, loose = self._call(args, kwargs), AsAccurate(4)
        promises = []
        if self.out is None:
            for (exact, _), (bound, extreme) in zip(exact_outputs(call), relative_bounds(call.concrete), strict=True):
                loose = AsAccurate(4, ties=not extreme)
                tight = Bitwise(gradients=loose) if exact else None if bound is None else Close(bound, gradients=loose)
                promises.append(tight or loose)
            return call.unflatten(promises)
        for kind, (exact, integral) in zip(self._kinds(call), exact_outputs(call), strict=True):
            gradients = AsAccurate(4, ties=False) if kind in ("max", "min") else loose
            values = Bitwise() if exact and (kind == "rows" or integral) else loose
            promises.append(dataclasses.replace(values, gradients=gradients))
        return call.unflatten(promises)
