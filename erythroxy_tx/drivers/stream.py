"""`tx.stream`: chunks run from the host, on rows that are read as they are needed."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.drivers.agreement import digest
from erythroxy_tx.drivers.agreement import digest_of
from erythroxy_tx.drivers.driver import Driver
from erythroxy_tx.drivers.driver import Inputs
from erythroxy_tx.drivers.row_blocks import RowBlocks
from erythroxy_tx.drivers.share import Share
from erythroxy_tx.drivers.sink import FileSink
from erythroxy_tx.drivers.sink import Sink
from erythroxy_tx.drivers.source import Source
from erythroxy_tx.drivers.source import is_source
from erythroxy_tx.drivers.streamed import Kept
from erythroxy_tx.drivers.streamed import Streamed
from erythroxy_tx.drivers.streamed import in_memory
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.host.memory import return_freed
from erythroxy_tx.program.auto import traced_call
from erythroxy_tx.program.call import like
from erythroxy_tx.program.chunks import powers
from erythroxy_tx.program.derivative import differentiable
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.host_run import HostRun
from erythroxy_tx.program.row_call import RowCall
from erythroxy_tx.program.trace import Trace
from erythroxy_tx.units import format_bytes

_MOST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Stream(Driver):
    """A driver of `chunked`, made by `stream`."""

    depth: int
    out: Prefix | None
    narrow: bool

    def opened(
        self, label: str, names: Any, args: tuple, kwargs: dict[str, Any], in_axes: Prefix
    ) -> tuple[Any, Inputs]:
        return with_sources(self, label, names, args, kwargs, in_axes)

    def run(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> Any:
        return run_streamed(self, call, size, inputs, kept)

    def bytes(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> ProgramBytes:  # noqa: ARG002
        return streamed_bytes(self, call, size, kept)

    def told(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> list[str]:  # noqa: ARG002
        return told_streamed(self, call, size, kept)

    def sizes(self, rows: int) -> Sequence[int]:
        return powers(rows)


def stream(depth: int = 2, *, out: Any = None, narrow: bool = False) -> Stream:
    """Run chunks from the host, on rows that are read from arrays, files or other sources as they are needed.

    Given to `tx.chunked` in place of `lax.map`. Inputs and results with rows may be larger than the memory of the
    device, and of the host: no more than `depth + 1` chunks of them are held. What was added up stays on the device.

    **Arguments:**

    - `depth`: how many chunks are read or run at a time.
    - `out`: where results with rows go: None for numpy arrays, the path of a `.npy` file, which is there once it is
        whole, or `iter` for an iterator of their blocks; a pytree prefix of the result.
    - `narrow`: read 64-bit rows as 32-bit ones; otherwise they are refused where JAX would narrow them.

    **Returns:** a driver.

    **Raises:** `ValueError` for a depth below 1.

    >>> import numpy as np, erythroxy_tx as tx
    >>> @tx.chunked(tx.stream(), size=4)
    ... def standardise(x):
    ...     return (x - x.mean(0)) / x.std(0)
    >>> standardise(np.arange(20, dtype=np.float32).reshape(10, 2)).shape
    (10, 2)
    """
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise ValueError(f"tx.stream got depth={depth!r}. Expected an int ≥ 1: chunks that are read or run at a time.")
    paths = None if out is None else Prefix.of(out)
    given = [path for path in (paths.leaves if paths else ()) if path not in (None, iter)]
    if bad := [path for path in given if not isinstance(path, str | Path) or Path(path).suffix != ".npy"]:
        raise ValueError(f"tx.stream got out={out!r} with {bad[0]!r} in it. Expected .npy paths, iter, None.")
    return Stream(depth, paths, bool(narrow))


def run_streamed(
    driver: Stream, call: RowCall, size: int, sources: dict[int, Source], kept: Kept, share: Share | None = None
) -> Any:
    """Call a function whose rows are streamed; `sources` are those of its arguments, by position."""

    if call.length > _MOST:
        raise ValueError(f"{call.label} got {call.length} rows. Expected at most {_MOST}, which an int32 counts.")
    paths = _paths(driver, call)

    def sinks(value: Value, index: int) -> Sink:
        path = paths[index]
        return in_memory(value, index) if path in (None, iter) else FileSink(path, value.at, value.dtype)

    fn = _streamed(driver, call, size, kept, sources, sinks, share)
    rows = [_has_rows(v) for v in fn.trace.closed.jaxpr.outvars]
    alone = [
        call.length == 1 and 1 in leaf.shape for leaf in call.result_leaves
    ]  # one row is not told from a size of 1
    _check_paths(paths, [a or b for a, b in zip(rows, alone, strict=True)], call.label)
    _check_files(paths, sources, call.label)
    free = [leaf for i, leaf in enumerate(call.dynamic) if i not in sources]
    if _differentiated(free) and fn.yielded:
        raise TransformOrderError(
            f"{call.label} is called inside of a trace or differentiated, with out=iter for result {fn.yielded[0]}. "
            "Expected a call from Python, or rows that are there as a whole. Fix: out=None for an array, or a file."
        )
    outs = differentiable(fn)(list(map(jnp.asarray, free))) if _differentiated(free) else fn(free)
    for i, path in enumerate(paths):
        if isinstance(path, str | Path) and not rows[i]:
            sink = FileSink(path, outs[i].shape, outs[i].dtype)
            sink.write(0, np.asarray(outs[i]), 0)
            outs[i] = sink.finish()
    types = zip(outs, call.result_leaves, strict=True)
    return call.unflatten(
        [x if isinstance(x, np.ndarray | RowBlocks) else like(jnp.asarray(x), leaf) for x, leaf in types]
    )


def _paths(driver: Stream, call: RowCall) -> list[Any]:
    """Where each result goes: None, a path, or `iter`."""
    count = len(call.result_leaves)
    return driver.out.spread(call.result, call.label, "out", "the result") if driver.out else [None] * count


def _has_rows(var: Any) -> bool:
    return any(_compat.is_symbolic(size) for size in var.aval.shape)


def _check_paths(paths: list[Any], rows: list[bool], label: str) -> None:
    """One file for each result that has rows."""
    for i, path in enumerate(paths):
        if path is not None and not rows[i]:
            raise ValueError(f"{label} got out={path!r} for result {i}, which has no rows. Expected None for it.")
        if path not in (None, iter) and path in paths[:i]:
            raise ValueError(f"{label} got out={path!r} for two results. Expected a file for each, as a tuple.")


def _check_files(paths: list[Any], sources: dict[int, Source], label: str) -> None:
    """The folder of each file is there, and none is one that is read."""
    read = {Path(file).resolve(): source for source in sources.values() if (file := source.file) is not None}
    for path in (Path(each) for each in paths if isinstance(each, str | Path)):
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{label} got out={str(path)!r}. Expected a folder that is there. Fix: make it.")
        if path.resolve() in read:
            raise ValueError(
                f"{label} got out={str(path)!r}, of which it reads {read[path.resolve()]}. Expected another file, as "
                "the result would take its place. Fix: another name."
            )


def streamed_bytes(driver: Stream, call: RowCall, size: int, kept: Kept, share: Share | None = None) -> ProgramBytes:
    """What the program of a chunk takes, with the rows of the chunks that wait or are read beside it."""
    rows = {i: None for i, axis in enumerate(call.axes) if axis is not None}
    host = _streamed(driver, call, size, kept, rows, in_memory, share).host
    there = {v: leaf for v, leaf in zip(host.program.ins, call.dynamic, strict=False) if not v.rows}
    found = host.most_bytes(there)
    return_freed()  # by the compiler, which the next compile would add to
    return dataclasses.replace(found, temp=found.temp + driver.depth * host.chunk_bytes())


def words_of(driver: Stream, call: RowCall, size: int, kept: Kept, share: Share) -> dict[str, str]:
    """What has to be the same in every process that streams, by name."""
    rows = {i: None for i, axis in enumerate(call.axes) if axis is not None}
    fn = _streamed(driver, call, size, kept, rows, in_memory, share)
    closed = fn.trace.closed
    return {
        "function": f"{call.label} {digest_of(closed)}",
        "constant": digest(_compat.all_constants(closed)),
        "number of rows": f"{call.length}, {size} in a chunk",
        "way over the rows": digest_of(*fn.host.told()),
        "mesh": f"{share.axis} of {share.mesh.shape_tuple}",
    }


def told_streamed(driver: Stream, call: RowCall, size: int, kept: Kept, share: Share | None = None) -> list[str]:
    """What a stream does, in words."""
    rows = {i: None for i, axis in enumerate(call.axes) if axis is not None}
    host = _streamed(driver, call, size, kept, rows, in_memory, share).host
    reads = sum(math.prod(x.shape) * x.dtype.itemsize for x in map(struct_of, call.rows))
    times, loops = (sum(bool(p.tasks) for p in host.passes), len(host.loops)) if isinstance(host, HostRun) else (1, 0)
    read = f"rows are read {times} time{'s' * (times != 1)}, {format_bytes(times * reads)} in all"
    read += ", and again in each turn of a loop" if loops else ""
    return [
        f"from the host: {read}, {driver.depth} chunks at a time",
        *host.told(),
        f"a chunk takes {streamed_bytes(driver, call, size, kept, share)}",
    ]


def _streamed(
    driver: Stream, call: RowCall, size: int, kept: Kept, sources: Any, sinks: Any, share: Share | None = None
) -> Streamed:
    yielded = tuple(i for i, path in enumerate(_paths(driver, call)) if path is iter)
    key = call.key, size, share is None, yielded

    def build() -> Trace:
        trace, captured = traced_call(call)
        if captured:
            raise TransformOrderError(
                f"{call.label} closes over {', '.join(map(shape_of, captured))}, which is differentiated or traced. "
                "Expected it among the arguments. Fix: pass it, with None in in_axes=."
            )
        return trace

    trace = kept.once(("trace", call.key), build)
    return Streamed(trace, sources, size, driver.depth, call.label, kept, key, sinks, share, yielded)


def _differentiated(leaves: list[Any]) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def with_sources(
    driver: Stream, label: str, names: Any, args: tuple, kwargs: dict[str, Any], in_axes: Prefix
) -> tuple[Any, dict[int, Source]]:
    """The arguments with structs in place of what has rows, and where those come from, by position."""
    axes = in_axes.spread(args, label, "in_axes", "the positional arguments")
    leaves = named_leaves(names, args, kwargs)
    axes += [None] * (len(leaves) - len(axes))
    found, sources, position = list[Any](), dict[int, Source](), 0
    for (name, leaf), axis in zip(leaves, axes, strict=True):
        rows: Any = leaf
        if axis is not None and isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
                raise TypeError(f"{label} got {name}: random keys. Expected numbers. Fix: fold_in the row.")
            rows = np.asarray(leaf)
        if axis is not None and isinstance(leaf, np.ma.MaskedArray):
            raise TypeError(
                f"{label} got {name}, a masked array. Expected rows that count. Fix: fill it, or drop them."
            )
        if axis is not None and isinstance(leaf, str | Path):
            raise TypeError(
                f"{label} got {name}={str(leaf)!r}. Expected rows. Fix: np.load({str(leaf)!r}, mmap_mode='r')."
            )
        dims = getattr(rows, "ndim", axis is not None and axis + 1)
        if axis is not None and is_source(rows) and -dims <= axis < dims:
            sources[position] = Source(rows, axis % dims, name, narrow=driver.narrow)
            found.append(sources[position].struct)
        else:
            found.append(leaf)  # what is no rows, or is refused for it
        position += is_traced(found[-1])
    return jtu.tree_unflatten(jtu.tree_structure((args, kwargs)), found), sources
