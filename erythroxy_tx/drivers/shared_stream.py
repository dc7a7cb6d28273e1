"""`tx.over(mesh, axis, stream=tx.stream(…))`: each process streams rows of its own, on its devices of a mesh."""

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextlib import nullcontext
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jax.sharding import AxisType
from jax.sharding import Mesh

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.drivers.agreement import agree
from erythroxy_tx.drivers.agreement import announced
from erythroxy_tx.drivers.agreement import digest
from erythroxy_tx.drivers.driver import Driver
from erythroxy_tx.drivers.driver import Inputs
from erythroxy_tx.drivers.share import Share
from erythroxy_tx.drivers.share import share_of
from erythroxy_tx.drivers.source import Source
from erythroxy_tx.drivers.stream import Stream
from erythroxy_tx.drivers.stream import run_streamed
from erythroxy_tx.drivers.stream import streamed_bytes
from erythroxy_tx.drivers.stream import told_streamed
from erythroxy_tx.drivers.stream import words_of
from erythroxy_tx.drivers.streamed import Kept
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.program.chunks import powers
from erythroxy_tx.program.row_call import RowCall

_NO_MESH = Mesh(np.empty((), object), ())


@dataclasses.dataclass(frozen=True)
class SharedStream(Driver):
    """A driver of `chunked`, made by `over` with a stream."""

    mesh: Mesh
    axis: str
    stream: Stream

    def opened(
        self, label: str, names: Any, args: tuple, kwargs: dict[str, Any], in_axes: Prefix
    ) -> tuple[Any, Inputs]:
        """With as many rows as all processes have, of which this one knows where its own come from."""
        with self.announced(label):
            axes = in_axes.spread(args, label, "in_axes", "the positional arguments")
            pairs = zip(jtu.tree_leaves(args), axes, strict=True)
            if any(axis is not None and isinstance(leaf, jax.core.Tracer) for leaf, axis in pairs):
                raise TransformOrderError(
                    f"{label} is called inside of jax.jit or another trace, or differentiated by its rows. Expected "
                    "rows that are read on the host. Fix: tx.over(mesh, axis) on rows that fit in the devices."
                )
            found, sources = self.stream.opened(label, names, args, kwargs, in_axes)
            rows = max((source.shape[source.axis] for source in sources.values()), default=0)
        share = share_of(self._plain, self.axis, rows, label)
        leaves, structure = jtu.tree_flatten(found)
        position = 0
        for i, leaf in enumerate(leaves):
            if position in sources and is_traced(leaf):
                leaves[i] = _with_all(leaf, sources[position], share.total - share.rows)
            position += is_traced(leaf)
        return jtu.tree_unflatten(structure, leaves), {i: (source, share) for i, source in sources.items()}

    @property
    def _plain(self) -> Mesh:
        return Mesh(self.mesh.devices, self.mesh.axis_names, axis_types=(AxisType.Auto,) * self.mesh.devices.ndim)

    def announced(self, label: str) -> AbstractContextManager[None]:
        return announced(self.mesh, label)

    def run(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> Any:
        share, size = _share(inputs), min(size, _share(inputs).least)
        sources = {i: source for i, (source, _) in inputs.items()}
        with self.announced(call.label), _on_one_device():
            words = words_of(self.stream, call, size, kept, share)
        free = [leaf for i, leaf in enumerate(call.dynamic) if i not in sources]
        agree(self.mesh, lambda: {**words, "argument without rows": digest(free)}, call.label)
        with _on_one_device():
            return run_streamed(self.stream, call, size, sources, kept, share)

    def bytes(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> ProgramBytes:
        share = _share(inputs)
        with _on_one_device():
            return streamed_bytes(self.stream, call, min(size, share.least), kept, share)

    def told(self, call: RowCall, size: int, inputs: Inputs, kept: Kept) -> list[str]:
        share = _share(inputs)
        where = f"rows {share.first} to {share.first + share.rows} of {share.total} are read here"
        devices = f"and run on {len(share.own)} of {self.mesh.size} devices, one collective a kind and pass"
        with _on_one_device():
            return [f"{where}, {devices}", *told_streamed(self.stream, call, min(size, share.least), kept, share)]

    def rows(self, call: RowCall, inputs: Inputs) -> int:  # noqa: ARG002
        return _share(inputs).least

    def sizes(self, rows: int) -> Sequence[int]:
        return powers(rows)


def _on_one_device() -> AbstractContextManager[Any]:
    """Each chunk runs on one device, whatever mesh there is around the call."""
    return nullcontext() if jax.sharding.get_abstract_mesh().empty else jax.set_mesh(_NO_MESH)


def _share(inputs: Inputs) -> Share:
    found: Share = next(share for _, share in inputs.values())
    return found


def _with_all(kind: Any, source: Source, more: int) -> jax.ShapeDtypeStruct:
    """The type of the rows of all processes."""
    shape = tuple(size + more if i == source.axis else size for i, size in enumerate(kind.shape))
    return jax.ShapeDtypeStruct(shape, kind.dtype)
