"""One graph that runs a function over chunks of its rows: slices in, runs, writes rows in place or adds up.

    rows:  out[c : c + size] = fn(x[c : c + size])          sum:  out = sum over c of fn(x[c : c + size])

In reverse mode each chunk is computed again, so that no residual of more than one chunk lives; the backward
pass is a loop of the same kind, and so is its own derivative. Not here: which outputs are rows (`combine.py`).
"""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.program.chunks import Chunks
from erythroxy_tx.program.folds import SUM
from erythroxy_tx.program.folds import Fold
from erythroxy_tx.program.folds import in_many_steps

Leaves = list[Any]
ChunkFn = Callable[[Leaves, Leaves], Leaves]  # (row leaves of one chunk, shared leaves) -> outputs


@dataclasses.dataclass(frozen=True)
class Rows:
    """A leaf that is cut along `axis`; with `each` it has one entry a chunk instead of one a row."""

    axis: int = 0
    each: bool = False


Out = Rows | Fold


def run(fn: ChunkFn, rows: Leaves, shared: Leaves, ins: Sequence[Rows], outs: Sequence[Out], chunks: Chunks) -> Leaves:
    """Run `fn` over the chunks.

    **Arguments:**

    - `fn`: maps the row leaves of a chunk and the shared leaves to its outputs, all flat lists.
    - `rows`, `shared`: the inputs, whole. `ins`: how each row leaf is cut.
    - `outs`: for each output, how the chunks come together.
    - `chunks`: the plan. It must not overlap unless every output is rows.

    **Returns:** the outputs. A fold whose accumulator is wider than its values is rounded once, at the end.
    """

    def cut(start_row: Any, index: Any, size: int) -> Leaves:
        return [
            lax.dynamic_slice_in_dim(x, index if at.each else start_row, 1 if at.each else size, at.axis)
            for x, at in zip(rows, ins, strict=True)
        ]

    def step(state: Leaves, start_row: Any, index: Any, size: int) -> Leaves:
        values = fn(cut(start_row, index, size), shared)
        return [
            out.step(old, value)
            if isinstance(out, Fold)
            else lax.dynamic_update_slice_in_dim(old, value, index if out.each else start_row, out.axis)
            for out, old, value in zip(outs, state, values, strict=True)
        ]

    first = jax.eval_shape(lambda: fn(cut(0, 0, chunks.size), shared))
    outs = [
        in_many_steps(out, value, chunks.count) if isinstance(out, Fold) else out
        for out, value in zip(outs, first, strict=True)
    ]
    state = [_empty(out, value, chunks) for out, value in zip(outs, first, strict=True)]
    last_start = chunks.rows - chunks.size

    def body(i: Any, state: Leaves) -> Leaves:
        start = jnp.minimum(i * chunks.size, last_start) if chunks.overlaps else i * chunks.size
        return step(state, start, i, chunks.size)

    state = lax.fori_loop(0, chunks.looped, body, state)
    if chunks.remainder:
        state = step(state, chunks.looped * chunks.size, chunks.looped, chunks.remainder)
    return [
        lax.convert_element_type(out.finish(x), like.dtype) if isinstance(out, Fold) else x
        for out, x, like in zip(outs, state, first, strict=True)
    ]


def _empty(out: Out, value: Any, chunks: Chunks) -> Any:
    if isinstance(out, Fold):
        return out.start(value)
    shape = list(value.shape)
    shape[out.axis] = chunks.count if out.each else chunks.rows
    return jnp.zeros(shape, value.dtype)


def run_remat(
    fn: ChunkFn, rows: Leaves, shared: Leaves, ins: Sequence[Rows], outs: Sequence[Out], chunks: Chunks
) -> Leaves:
    """As `run`, for `Rows` and `SUM` outputs, with a reverse mode that computes each chunk again.

    Forward mode (`jvp`, `jacfwd`, `hessian`) is refused by JAX, as for every `jax.custom_vjp`.
    """

    @jax.custom_vjp
    def loop(rows: Leaves, shared: Leaves) -> Leaves:
        return batched_together(run(fn, rows, shared, ins, outs, chunks), rows + shared)

    def forward(rows: Leaves, shared: Leaves) -> tuple[Leaves, Any]:
        perturbed = [[x.perturbed for x in leaves] for leaves in (rows, shared)]
        rows, shared = [x.value for x in rows], [x.value for x in shared]
        return loop(rows, shared), (rows, shared, *(Flags(tuple(flags)) for flags in perturbed))

    def backward(saved: Any, cotangents: Leaves) -> tuple[Leaves, Leaves]:
        rows, shared, rows_flags, shared_flags = saved
        wanted = (
            [i for i, on in enumerate(rows_flags.on) if on],
            [i for i, on in enumerate(shared_flags.on) if on],
        )
        live = [i for i, ct in enumerate(cotangents) if not is_zero(ct)]
        by_row = [i for i in live if isinstance(outs[i], Rows)]
        folded = [i for i in live if not isinstance(outs[i], Rows)]

        row_count, shared_count = len(rows), len(shared)  # `pull` is kept, and must keep no tracer

        def pull(row_leaves: Leaves, shared_leaves: Leaves) -> Leaves:
            chunk, row_cts = row_leaves[:row_count], row_leaves[row_count:]
            whole, fold_cts = shared_leaves[:shared_count], shared_leaves[shared_count:]

            def of_wanted(a: Leaves, b: Leaves) -> Leaves:
                values = fn(put(chunk, wanted[0], a), put(whole, wanted[1], b))
                return [values[i] for i in by_row + folded]

            _, vjp = jax.vjp(of_wanted, [chunk[i] for i in wanted[0]], [whole[i] for i in wanted[1]])
            a, b = vjp(row_cts + fold_cts)
            return a + b

        found = run_remat(
            pull,
            rows + [cotangents[i] for i in by_row],
            shared + [cotangents[i] for i in folded],
            [*ins, *(outs[i] for i in by_row)],  # type: ignore[list-item]
            [*(ins[i] for i in wanted[0]), *(SUM for _ in wanted[1])],
            dataclasses.replace(chunks, overlaps=chunks.overlaps and not wanted[1]),
        )
        primals = [rows[i] for i in wanted[0]] + [shared[i] for i in wanted[1]]
        found = [
            _compat.convert(x, x.dtype, weak_type=jax.typeof(primal).weak_type)
            for x, primal in zip(found, primals, strict=True)
        ]
        of_rows, of_shared = found[: len(wanted[0])], found[len(wanted[0]) :]
        return put([None] * row_count, wanted[0], of_rows), put([None] * shared_count, wanted[1], of_shared)

    loop.defvjp(forward, backward, symbolic_zeros=True)
    return loop(rows, shared)


def batched_together(outputs: Leaves, inputs: Leaves) -> Leaves:
    """The outputs as they are, each of which depends on every input.

    Under vmap the cotangent of an input that is shared is summed over the batch. That of an output that is shared
    while others are not would be counted once for each element: jax 0.10.2 does so silently, 0.12.0 refuses. The
    choice between equal values costs nothing: XLA removes it. Outside of any trace there is no batch.
    """
    if not any(isinstance(x, jax.core.Tracer) for x in (*outputs, *inputs)):
        return outputs
    data = [jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in inputs]
    either = functools.reduce(jnp.logical_or, [_any(x) for x in data if x.size], jnp.bool_(False))  # noqa: FBT003
    return [lax.select_n(either, out, out) for out in outputs]


def _any(x: Any) -> Any:
    """Something about an array: about its first number, or where it is part of its type how it lies on a mesh, all."""
    if all(part is None for part in jax.typeof(x).sharding.spec):
        x = x[(0,) * x.ndim]
    return jnp.any(x != x)  # noqa: PLR0124


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Flags:
    """Which leaves are differentiated, carried from the forward rule to the backward one."""

    on: tuple[bool, ...]


def is_zero(cotangent: Any) -> bool:
    """Whether a cotangent is known to be zero, or that of an integer."""
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero) or cotangent.dtype == jax.dtypes.float0


def put(leaves: Leaves, positions: list[int], values: Leaves) -> Leaves:
    """The leaves with other values at these positions."""
    result = list(leaves)
    for i, value in zip(positions, values, strict=True):
        result[i] = value
    return result


def hoisted(fn: ChunkFn, cuts: Sequence[Leaves], shared: Leaves) -> tuple[ChunkFn, list[Leaves], Leaves]:
    """Turn a function into one that closes over no tracer: a `custom_vjp` must not close over values that are
    differentiated outside it.

    **Arguments:**

    - `cuts`: the types of the row leaves for each length of chunk; the function is traced once for each.
    - `shared`: the types of the shared leaves.

    **Returns:** the function of (row leaves, shared leaves + hoisted), its output types for each cut, and the
    hoisted tracers.
    """
    programs: dict[tuple, tuple[Any, list[int | None]]] = {}
    tracers: Leaves = []
    types: list[Leaves] = []
    for cut in cuts:
        closed, outputs = jax.make_jaxpr(fn, return_shape=True)(cut, shared)
        types.append(outputs)
        slots = [_slot(constant, tracers) for constant in closed.consts]
        kept = [constant if slot is None else None for constant, slot in zip(closed.consts, slots, strict=True)]
        programs[_shapes(cut)] = closed.replace(consts=kept), slots

    def call(row_leaves: Leaves, shared_leaves: Leaves) -> Leaves:
        closed, slots = programs[_shapes(row_leaves)]
        own, extra = shared_leaves[: len(shared)], shared_leaves[len(shared) :]
        consts = [c if slot is None else extra[slot] for c, slot in zip(closed.consts, slots, strict=True)]
        values = _compat.eval_closed(closed, consts, [*row_leaves, *own])
        # What the function returns as it stands in its source, such as 1.0, comes back as a number.
        return [
            x if isinstance(x, jax.Array) else jnp.asarray(x, t.dtype) for x, t in zip(values, types[0], strict=True)
        ]

    return call, types, tracers


def _slot(constant: Any, tracers: Leaves) -> int | None:
    """Where a captured tracer stands among the hoisted ones, put there if it is new; None for a plain constant."""
    if not isinstance(constant, jax.core.Tracer):
        return None
    for i, known in enumerate(tracers):
        if known is constant:
            return i
    tracers.append(constant)
    return len(tracers) - 1


def _shapes(leaves: Leaves) -> tuple:
    return tuple(x.shape for x in leaves)
