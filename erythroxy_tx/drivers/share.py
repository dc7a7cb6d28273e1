"""Streams on several devices at a time: each process reads rows of its own, and each of its devices runs some of them.
At the end of a pass what the devices added up comes together, in one collective for each kind of reduction.
"""

import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Hashable
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from erythroxy_tx.drivers.agreement import agree
from erythroxy_tx.drivers.agreement import announced
from erythroxy_tx.drivers.agreement import told_by_all
from erythroxy_tx.drivers.loop import Lane
from erythroxy_tx.drivers.loop import Loop
from erythroxy_tx.drivers.source import Opened
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.host_program import Compiled
from erythroxy_tx.program.host_run import Chunk
from erythroxy_tx.program.host_run import HostRun
from erythroxy_tx.program.mesh.joins import joined
from erythroxy_tx.program.mesh.joins import started
from erythroxy_tx.program.mesh.joins import way_of
from erythroxy_tx.program.mesh.shard import beside
from erythroxy_tx.program.passes import Carry
from erythroxy_tx.program.passes import Fold
from erythroxy_tx.program.rules.rule import mixing

Leaves = list[Any]
_PATIENCE = 24 * 3600.0  # seconds that a process waits for the others at the end of a pass over their rows
_FIX = "tx.over(mesh, axis) on rows that fit in the devices, or tx.stream() in one process"


@dataclasses.dataclass(frozen=True)
class Share:
    """The rows that this process streams, `first` to `first + rows` of `total`, and the devices that run them, of
    `devices` along `axis` of the mesh. `least`: the fewest rows of any device.
    """

    mesh: Mesh
    axis: str
    first: int
    rows: int
    total: int
    least: int

    @property
    def own(self) -> list[tuple[int, jax.Device]]:
        """The devices of this process, with their places along the axis."""
        me = jax.process_index()
        return [(i, device) for i, device in enumerate(self.mesh.devices.flat) if device.process_index == me]

    def spans(self) -> list[tuple[int, int]]:
        """The first row of each of those devices, and how many it has."""
        count = len(self.own)
        cuts = [self.first + self.rows * i // count for i in range(count + 1)]
        return [(a, b - a) for a, b in itertools.pairwise(cuts)]


def share_of(mesh: Mesh, axis: str, rows: int, label: str) -> Share:
    """The share of a process that has so many rows; every process is asked.

    **Raises:** `ValueError` for a mesh whose other axes have devices, or of which a process has places in between.
    """
    processes = [device.process_index for device in mesh.devices.flat]
    order = list(dict.fromkeys(processes))
    if mesh.size != mesh.shape[axis] or processes != sorted(processes, key=order.index):
        raise ValueError(
            f"{label} got a mesh {dict(mesh.shape)} whose devices are of processes {processes}. Expected one "
            "axis, with the devices of each process side by side. Fix: jax.make_mesh((jax.device_count(),), ('data',))."
        )
    with announced(mesh, label):
        words = told_by_all(mesh, {"rows of a process": str(rows)}, label)
    counts = [int(words[process]["rows of a process"]) for process in order]
    place = order.index(jax.process_index())
    least = min(count // processes.count(process) for count, process in zip(counts, order, strict=True))
    if not least:
        raise ValueError(
            f"{label} got {', '.join(map(str, counts))} rows in its processes, on {len(processes)} devices. Expected a "
            "row for each device. Fix: a smaller mesh."
        )
    return Share(mesh, axis, sum(counts[:place]), rows, sum(counts), least)


def check_shared(host: HostRun) -> None:
    """Refuse what needs rows of other processes on the way.

    **Raises:** `RowMixingError`.
    """
    for eqn in host.read_again:
        assert eqn.maker is not None
        raise mixing(eqn.maker, "of which other chunks need rows", _FIX)
    for index, one in enumerate(host.passes):
        for task in one.tasks:
            if isinstance(task, Carry):
                raise mixing(task.eqn, "which is carried along the rows of all processes", _FIX)
            if one.grid.size != host.program.rows:
                raise mixing(task.eqn, f"with {one.grid.size} rows, of {host.program.rows}", _FIX)
            if isinstance(task, Fold):
                way_of(task)
            if not one.grid.overlaps:
                raise mixing(task.eqn, "of which chunks cannot have rows in common", _FIX)
        for value, want in host.parts(one, one.grid.chunk) if one.tasks else ():
            piece = want[value.rows[0]]
            if piece is None or beside(piece, one.grid.chunk, abs(value.at[value.rows[0]] - one.grid.size)) != 0:
                raise mixing(one.tasks[0].eqn, f"which reads rows of {value} beside a chunk", _FIX)
        for value, _ in host.small_parts(index):
            reader = next(step.eqn for step in host.plan.before[index] if value in step.eqn.ins)
            raise mixing(reader, f"which reads single rows of {value}", _FIX)
    for loop in host.loops.values():
        for each in loop.hosts:
            check_shared(each)


class SharedLoop(Loop):
    """A run on rows of this process, beside those of others. **Arguments:** `share`: which they are."""

    def __init__(self, share: Share, compiled: dict[Hashable, Any], *args: Any):
        super().__init__(*args)
        self._share, self._compiled = share, compiled

    def _inside(self, host: HostRun, there: dict[Value, Any]) -> Loop:
        return SharedLoop(self._share, self._compiled, host, {}, there, {}, self.depth, self.label)

    def _pass(self, index: int, opened: dict[Value, Opened], kept: Any, say: Any) -> Any:
        with announced(self._share.mesh, self.label):
            return super()._pass(index, opened, kept, say)

    def _lanes(self, index: int, kept: Any) -> dict[Lane, list[Chunk]]:
        share, found = self._share, dict[Lane, list[Chunk]]()
        folds, _ = self.host.folds(index)
        for (place, device), chunks in zip(share.own, self._dealt(index), strict=True):
            first = [started(task, state, place) for task, state in zip(folds, kept["folds"], strict=True)]
            there = dict(zip(self._there, jax.device_put(list(self._there.values()), device), strict=True))
            own = jax.device_put(kept | {"folds": first}, device)
            found[Lane(device, there, own)] = [self._local(chunk) for chunk in chunks]
        return found

    def _dealt(self, index: int) -> list[list[Chunk]]:
        """The chunks of each device: its own rows, or every so many chunks where rows are handed out in order."""
        share, one, there = self._share, self.host.passes[index], self._there
        if self.host.plan.yielded and index == len(self.host.passes) - 1:
            chunks = list(self.host.chunks_of(one, there, share.first, share.rows))
            return [chunks[i :: len(share.own)] for i in range(len(share.own))]
        return [list(self.host.chunks_of(one, there, begin, count)) for begin, count in share.spans()]

    def _local(self, chunk: Chunk) -> Chunk:
        """A chunk whose rows are read from those of this process."""
        return dataclasses.replace(chunk, starts=tuple(start - self._share.first for start in chunk.starts))

    def _written(self, chunk: Chunk) -> int:
        return super()._written(chunk) - self._share.first

    def _joined(self, index: int, lanes: list[Lane]) -> Any:
        share = self._share
        agree(share.mesh, lambda: {"pass over its rows": str(index)}, self.label, _PATIENCE)
        if not lanes[0].kept["folds"]:
            return lanes[0].kept
        leaves = [jax.tree.flatten(lane.kept["folds"]) for lane in lanes]
        spread = NamedSharding(share.mesh, PartitionSpec(share.axis))
        stacked = [
            jax.make_array_from_single_device_arrays((share.mesh.size, *each[0].shape), spread, [x[None] for x in each])
            for each in zip(*(flat for flat, _ in leaves), strict=True)
        ]
        folds = Compiled(f"pass{index}_join", self._join(index), self._compiled)(
            jax.tree.unflatten(leaves[0][1], stacked)
        )
        return {"carries": [], "folds": jax.tree.map(lambda x: x.addressable_data(0), folds)}

    def _join(self, index: int) -> Callable[[Leaves], Leaves]:
        share, (folds, hows) = self._share, self.host.folds(index)

        def local(stacked: Leaves) -> Leaves:
            own = jax.tree.map(lambda x: x[0], stacked)
            return joined(folds, hows, own, share.axis, share.mesh.size, has_rows=True)

        spread, whole = PartitionSpec(share.axis), PartitionSpec()
        found: Callable[[Leaves], Leaves] = jax.shard_map(
            local, mesh=share.mesh, in_specs=spread, out_specs=whole, check_vma=True
        )
        return found
