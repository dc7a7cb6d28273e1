"""A traced function whose rows lie on a mesh, with its derivatives, which run there like it. Not here: what a device
does (`program/mesh/`).
"""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import Mesh

from erythroxy_tx import _compat
from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.padded import Padded
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.drivers.agreement import agree
from erythroxy_tx.drivers.agreement import announced
from erythroxy_tx.drivers.agreement import digest
from erythroxy_tx.drivers.agreement import digest_of
from erythroxy_tx.drivers.placed import placed
from erythroxy_tx.drivers.placed import shared
from erythroxy_tx.drivers.placed import spec_of
from erythroxy_tx.drivers.streamed import Kept
from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.derivative import vjp_of
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.host_program import Compiled
from erythroxy_tx.program.mesh.layout import Layout
from erythroxy_tx.program.mesh.run import Device
from erythroxy_tx.program.residuals import cut
from erythroxy_tx.program.trace import Trace

Leaves = list[Any]


def place_for(length: int, rows: dict[int, Any], axes: list[int | None], devices: int) -> int:
    """How many rows there is to be place for on each device: what the arrays have, or what they need."""
    pairs = [(rows.get(i), axis) for i, axis in enumerate(axes) if axis is not None]
    most = max([length, *(x.data.shape[axis] for x, axis in pairs if isinstance(x, Padded))])
    return max(1, -(-most // devices))


@dataclasses.dataclass(frozen=True)
class Meshed:
    """A function of leaves, of which those with rows lie along an axis of a mesh; see `derivative.RowFunction`.

    - `place`: for how many rows there is place on each device. `key`: what its programs depend on, None if they cannot
        be kept.
    """

    trace: Trace
    mesh: Mesh
    axis: str
    chain: bool
    place: int
    size: int
    label: str
    kept: Kept
    key: Hashable

    @property
    def kinds(self) -> list[Any]:
        return [v.aval.dtype for v in self.trace.closed.jaxpr.outvars]

    @property
    def outs(self) -> list[Value]:
        """Its results."""
        return self._whole.program.outs

    def __call__(self, args: Leaves) -> Leaves:
        with announced(self.mesh, self.label):
            whole = self._whole
        return whole(args)

    def agree(self, args: Leaves) -> None:
        """Refuse to go on unless every process is about to run this, see `agreement.agree`. Rows are not looked at."""
        with announced(self.mesh, self.label):
            whole = self._whole
        whole.agree(args)

    @property
    def needed(self) -> int:
        """For how many rows there has to be place on each device: a result may have more than the arguments."""

        def most() -> int:
            sizes = [v.at[i] for v in self._flat(self.trace).outs for i in v.rows]
            return max([self.place, *(-(-size // self.mesh.shape[self.axis]) for size in sizes)])

        found: int = self._once(("place", self.key), most)
        return found

    def bytes(self, args: Leaves) -> ProgramBytes:
        """What its program takes on a device."""
        return self._whole.bytes(args)

    def told(self) -> list[str]:
        """What it does, in words."""
        return self._whole.layout.told()

    def vjp(self, wanted: list[int], live: list[int]) -> "Meshed":
        key = "vjp", self.key, tuple(wanted), tuple(live)
        with announced(self.mesh, self.label):
            trace = self._once(key, lambda: vjp_of(self.trace, wanted, live, self.label))
        return dataclasses.replace(self, trace=trace, key=self.key and key)

    def halves(
        self, wanted: list[int], live: list[int]
    ) -> tuple[Callable[[Leaves], Leaves], Callable[[Leaves], Leaves]]:
        def build() -> tuple[MeshProgram, MeshProgram]:
            joint = vjp_of(self.trace, wanted, live, self.label, with_results=True)
            found = cut(self._flat(joint), len(self.trace.types), len(self.kinds))
            return self._program(found.forward, joint), self._program(found.backward, joint)

        with announced(self.mesh, self.label):
            forward, backward = self._once(("halves", self.key, tuple(wanted), tuple(live)), build)
        return forward, backward

    @property
    def _whole(self) -> "MeshProgram":
        return self._once(("run", self.key), lambda: self._program(self._flat(self.trace), self.trace))

    def _once(self, key: Hashable, build: Callable[[], Any]) -> Any:
        return build() if self.key is None else self.kept.once((key, self.place), build)

    def _flat(self, trace: Trace) -> Program:
        """The program in plain sums, which devices can add up."""
        return trace.flat_at(trace.rows, up_to=False)

    def _program(self, program: Program, trace: Trace) -> "MeshProgram":
        try:
            return MeshProgram(self, program, trace)
        except RowMixingError as error:
            raise RowMixingError(f"{self.label} got {error}") from None


class MeshProgram:
    """A flat program, run on a mesh."""

    def __init__(self, fn: Meshed, program: Program, trace: Trace):
        self._fn, self._trace = fn, trace
        devices = fn.mesh.shape[fn.axis]
        self.layout = Layout(program, fn.axis, devices, fn.place, fn.size, chain=fn.chain)
        self.program = self.layout.plan.program
        typed = AxisType.Explicit in fn.mesh.axis_types
        self._compiled = Compiled("over_mesh", self._run, fn.kept.compiled, typed=typed)
        self._numbers = [np.asarray(v.known) for v in self.layout.numbers]

    def __call__(self, leaves: Leaves) -> Leaves:
        self.agree(leaves)
        with announced(self._fn.mesh, self._fn.label):
            leaves = [self._put(v, leaf) for v, leaf in zip(self.program.ins, leaves, strict=True)]
        found: Leaves = self._compiled(leaves, self._numbers, self.layout.sizes)
        return found

    def agree(self, leaves: Leaves) -> None:
        """Refuse to go on unless every process is about to run this, with the same of what has no rows."""

        def told() -> dict[str, str]:
            whole = [leaf for v, leaf in zip(self.program.ins, leaves, strict=True) if not v.rows]
            traced = sum(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
            more = {"number of traced arguments": str(traced), "argument without rows": digest(whole)}
            return self._told_apart | more

        agree(self._fn.mesh, told, self._fn.label)

    def bytes(self, leaves: Leaves) -> ProgramBytes:
        """What it takes on a device, from the types of the leaves. Nothing is run."""
        structs = [self._struct(v, leaf) for v, leaf in zip(self.program.ins, leaves, strict=True)]
        return self._compiled.bytes(structs, self._numbers, self.layout.sizes)

    def _put(self, value: Value, leaf: Any) -> Any:
        fn = self._fn
        if not value.rows:
            return shared(leaf, fn.mesh)
        return placed(leaf, value.rows[0], fn.place * fn.mesh.shape[fn.axis], fn.mesh, fn.axis)

    def _struct(self, value: Value, leaf: Any) -> jax.ShapeDtypeStruct:
        kind, devices = struct_of(leaf), self._fn.mesh.shape[self._fn.axis]
        shape = tuple(self._fn.place * devices if i in value.rows else n for i, n in enumerate(kind.shape))
        sharding = jax.sharding.NamedSharding(self._fn.mesh, self._spec(value))
        return jax.ShapeDtypeStruct(shape, kind.dtype, weak_type=kind.weak_type, sharding=sharding)

    def _spec(self, value: Value) -> jax.sharding.PartitionSpec:
        return spec_of(value.rows[0] if value.rows else None, self._fn.axis)

    def _run(self, leaves: Leaves, numbers: Leaves, sizes: Any) -> Leaves:
        def local(leaves: Leaves, numbers: Leaves, sizes: Any) -> Leaves:
            return Device(self.layout, leaves, numbers, sizes).run()

        specs = [self._spec(v) for v in self.program.ins]
        whole = jax.sharding.PartitionSpec()
        run = jax.shard_map(
            local,
            mesh=self._fn.mesh,
            in_specs=(specs, [whole] * len(numbers), whole),
            out_specs=[self._spec(v) for v in self.program.outs],
            check_vma=True,
        )
        found: Leaves = run(leaves, numbers, sizes)
        return found

    @functools.cached_property
    def _told_apart(self) -> dict[str, str]:
        """What has to be the same in every process, by name."""
        fn, closed = self._fn, self._trace.closed
        part = len(self.program.equations), [(v.at, v.dtype) for v in self.program.outs]  # of halves, which one
        return {
            "function": f"{fn.label} {digest_of(closed, part, fn.chain)}",
            "constant": digest(_compat.all_constants(closed)),
            "number of rows": f"{self._trace.rows}, {fn.size} in a chunk, place for {fn.place} on a device",
            "mesh": f"{fn.axis} of {fn.mesh.shape_tuple}, devices {[d.id for d in fn.mesh.devices.flat]}",
        }
