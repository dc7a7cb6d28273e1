"""`tx.over`: chunks run on the devices of a mesh, each of which has some of the rows."""

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jax.sharding import AxisType
from jax.sharding import Mesh

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.padded import Padded
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.drivers.agreement import announced
from erythroxy_tx.drivers.driver import Driver
from erythroxy_tx.drivers.driver import Inputs
from erythroxy_tx.drivers.meshed import Meshed
from erythroxy_tx.drivers.meshed import place_for
from erythroxy_tx.drivers.placed import placed
from erythroxy_tx.drivers.placed import shared
from erythroxy_tx.drivers.shared_stream import SharedStream
from erythroxy_tx.drivers.stream import Stream
from erythroxy_tx.drivers.streamed import Kept
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.host.memory import return_freed
from erythroxy_tx.program.auto import traced_call
from erythroxy_tx.program.call import like
from erythroxy_tx.program.chunks import sizes
from erythroxy_tx.program.derivative import differentiable
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.row_call import RowCall
from erythroxy_tx.program.trace import Trace


@dataclasses.dataclass(frozen=True)
class Over(Driver):
    """A driver of `chunked`, made by `over`."""

    mesh: Mesh
    axis: str
    chain: bool

    traceable = True

    @property
    def devices(self) -> int:
        """How many devices the rows lie on."""
        return int(self.mesh.shape[self.axis])

    def at(self, leaves: Sequence[Any]) -> Mesh:
        """The mesh for a call on some leaves: its axes have types where `jax.set_mesh` or a traced leaf says so."""
        traced = [jax.typeof(x).sharding.mesh for x in leaves if isinstance(x, jax.core.Tracer)]
        if self.mesh.abstract_mesh in (jax.sharding.get_abstract_mesh(), *traced):
            return self.mesh
        return Mesh(self.mesh.devices, self.mesh.axis_names, axis_types=(AxisType.Auto,) * self.mesh.devices.ndim)

    def opened(
        self, label: str, names: Any, args: tuple, kwargs: dict[str, Any], in_axes: Prefix
    ) -> tuple[Any, Inputs]:
        return with_structs(label, names, args, kwargs, in_axes)

    def announced(self, label: str) -> AbstractContextManager[None]:
        return announced(self.mesh, label)

    def run(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> Any:
        with self.announced(call.label):
            fn, captured = _meshed(self, call, size, inputs, kept)
        fn.agree([*call.dynamic, *captured])
        with self.announced(call.label):
            place = fn.place * self.devices
            leaves = [
                shared(leaf, fn.mesh) if axis is None else placed(inputs[i], axis, place, fn.mesh, self.axis)
                for i, (leaf, axis) in enumerate(zip(call.dynamic, call.axes, strict=True))
            ]
        outs = differentiable(fn)([*leaves, *captured])
        found = [_exact(like(x, leaf), value) for x, leaf, value in zip(outs, call.result_leaves, fn.outs, strict=True)]
        return call.unflatten(found)

    def bytes(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> ProgramBytes:
        fn, captured = _meshed(self, call, size, inputs, kept)
        found = fn.bytes([*call.dynamic, *captured])
        return_freed()  # by the compiler, which the next compile would add to
        return found

    def told(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> list[str]:
        fn, captured = _meshed(self, call, size, inputs, kept)
        return [
            f"over {self.devices} devices along {self.axis!r} of the mesh, with place for {fn.place} rows on each",
            *fn.told(),
            f"on each device the compiled program takes {fn.bytes([*call.dynamic, *captured])}",
        ]

    def rows(self, call: RowCall, inputs: Inputs) -> int:
        return place_for(call.length, inputs, call.axes, self.devices)

    def sizes(self, rows: int) -> Sequence[int]:
        return sizes(rows)


def over(mesh: Mesh, axis: str, *, chain: bool = False, stream: Stream | None = None) -> Driver:
    """Run chunks on the devices of a mesh: each goes over its own rows, and a pass ends with one collective for each
    kind of reduction.

        chunked(over(mesh, axis))(f)(x) = f(x), with the rows of x along `axis` of the mesh

    Given to `tx.chunked` in place of `lax.map`; `n=`, `size=` and `budget=` are then of one device. Rows are placed
    where they are to be, those that do not divide with place for a few more; arrays that lie there already, as from
    `jax.make_array_from_process_local_data`, stay. A result with rows stays on the devices, as an array or, where its
    rows do not divide, as a `tx.Padded`; one without rows is whole on each.

    **Arguments:**

    - `mesh`: as of `jax.make_mesh`. `axis`: the name of the axis of it along which rows lie.
    - `chain`: let the devices run one after the other through a scan over rows whose step is not affine in its carry;
        otherwise such a scan is refused. One that is affine does so by itself where numbers are not finite or cancel.
    - `stream`: a `tx.stream(…)`, by which each process reads rows of its own, such as from its files; results with
        rows are then of this process. What runs along rows from process to process is refused.

    **Returns:** a driver.

    **Raises:** `ValueError` for an axis that the mesh does not have.

    >>> import jax, jax.numpy as jnp, erythroxy_tx as tx
    >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    >>> @tx.chunked(tx.over(mesh, "data"), size=4)
    ... def standardise(x):
    ...     return (x - x.mean(0)) / x.std(0), x.sum()
    >>> rows, total = standardise(jnp.arange(64.0).reshape(32, 2))
    >>> rows.shape, float(total)
    ((32, 2), 2016.0)
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"tx.over got mesh={mesh!r}. Expected a jax.sharding.Mesh. Fix: jax.make_mesh((8,), ('x',)).")
    if axis not in mesh.axis_names:
        raise ValueError(f"tx.over got axis={axis!r}, of a mesh with {mesh.axis_names}. Expected one of them.")
    if stream is None:
        return Over(mesh, axis, bool(chain))
    if not isinstance(stream, Stream) or chain:
        raise ValueError(f"tx.over got stream={stream!r} and chain={chain!r}. Expected tx.stream(…), and no chain.")
    return SharedStream(mesh, axis, stream)


def with_structs(label: str, names: Any, args: tuple, kwargs: dict[str, Any], in_axes: Prefix) -> tuple[Any, Inputs]:
    """The arguments with structs of the true number of rows in place of what has rows, and those, by position."""
    plain = jtu.tree_map(lambda x: x.data if isinstance(x, Padded) else x, (args, kwargs), is_leaf=_is_padded)
    axes = in_axes.spread(plain[0], label, "in_axes", "the positional arguments")
    given, structure = jtu.tree_flatten((args, kwargs), is_leaf=_is_padded)
    named = named_leaves(names, *plain)
    axes += [None] * (len(named) - len(axes))
    found, rows, position = list[Any](), dict[int, Any](), 0
    for leaf, (name, _), axis in zip(given, named, axes, strict=True):
        if _is_padded(leaf) and axis is None:
            raise ValueError(f"{label} got {name}: a tx.Padded that in_axes= says has no rows. Expected rows.")
        has_rows = axis is not None and (_is_padded(leaf) or hasattr(leaf, "shape"))
        if has_rows:
            rows[position] = leaf
        found.append(_struct(label, name, leaf, axis) if has_rows else leaf)
        position += is_traced(found[-1])
    return jtu.tree_unflatten(structure, found), rows


def _struct(label: str, name: Any, leaf: Any, axis: int) -> jax.ShapeDtypeStruct:
    """The type of an array with rows, with the true number of them."""
    if not _is_padded(leaf):
        return struct_of(leaf)
    leaf.check_single(label)
    dim, kind = axis % leaf.data.ndim, struct_of(leaf.data)
    if leaf.axes != (dim,):
        raise ValueError(f"{label} got {name}: a tx.Padded along {leaf.axes}. Expected one along ({dim},).")
    if isinstance(leaf.lengths[0], jax.core.Tracer):
        raise TransformOrderError(
            f"{label} got {name}: a tx.Padded whose length is traced. Expected one that is known, on which the program "
            "depends. Fix: call it outside of jax.jit."
        )
    shape = tuple(int(leaf.lengths[0]) if i == dim else size for i, size in enumerate(kind.shape))
    return jax.ShapeDtypeStruct(shape, kind.dtype, weak_type=kind.weak_type)


def _is_padded(x: Any) -> bool:
    return isinstance(x, Padded)


def _exact(x: Any, value: Value) -> Any:
    """A result, with its number of rows where there is place for more."""
    if not value.rows or x.shape[value.rows[0]] == value.at[value.rows[0]]:
        return x
    return Padded.made(x, (np.int32(value.at[value.rows[0]]),), value.rows)


def _meshed(driver: Over, call: RowCall, size: int, rows: Inputs, kept: Kept) -> tuple[Meshed, list[Any]]:
    if not call.length:
        raise ValueError(f"{call.label} got no rows. Expected some, for the devices. Fix: tx.chunked(lax.map, …).")
    (trace, captured) = _traced(call, kept)
    here = driver.at([*rows.values(), *call.dynamic, *captured])
    place = driver.rows(call, rows)
    key = None if captured else (call.key, size, place, here)
    fn = Meshed(trace, here, driver.axis, driver.chain, place, size, call.label, kept, key)
    return dataclasses.replace(fn, place=fn.needed), captured


def _traced(call: RowCall, kept: Kept) -> tuple[Trace, list[Any]]:
    """The program of a call, and the tracers that its function closes over, which are others in each call."""
    found = list[Any]()

    def build() -> Trace:
        found.extend(traced_call(call))
        return found[0]

    trace = kept.once(("trace", call.key), build)
    if not trace.captured:
        return trace, []
    trace, captured = found or traced_call(call)
    return trace, captured
