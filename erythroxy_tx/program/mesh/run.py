"""A plan run on the devices of a mesh, each of which has some of the rows: it goes over its own in chunks, and at the
end of a pass they tell each other what was added up. All of it is one compiled program.

No row is computed that is not there. A device whose rows end early runs fewer chunks, and what is left of them in
shorter ones, down to single rows: nothing is masked, and a sum is of what was counted.

Not here: where the rows come from (`drivers/`), nor what a chunk computes (`chunk_run.py`).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import everything
from erythroxy_tx.program.chunk_run import ChunkRun
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.evaluate import read
from erythroxy_tx.program.evaluate import run_small
from erythroxy_tx.program.evaluate import run_whole
from erythroxy_tx.program.inside import inside_of
from erythroxy_tx.program.mesh.carries import Line
from erythroxy_tx.program.mesh.carries import levels
from erythroxy_tx.program.mesh.joins import joined
from erythroxy_tx.program.mesh.joins import started
from erythroxy_tx.program.mesh.layout import Layout
from erythroxy_tx.program.mesh.layout import pieces
from erythroxy_tx.program.mesh.shard import Shard
from erythroxy_tx.program.passes import Carry
from erythroxy_tx.program.passes import Pass
from erythroxy_tx.program.rows import Step
from erythroxy_tx.program.rules.loops import again

Leaves = list[Any]
State = dict[str, Any]
_MANY = 2**20  # chunks: sums are kept as for many, whatever their number


class Device:
    """One device's part of a run, inside of `jax.shard_map`.

    **Arguments:**

    - `layout`: how the rows lie. `leaves`: the inputs, of those with rows this device's own.
    - `numbers`: the known numbers that follow from the number of rows; `sizes`: how many rows each pass has.
    """

    def __init__(self, layout: Layout, leaves: Leaves, numbers: Leaves, sizes: Any):
        self.layout, self.plan, self.sizes = layout, layout.plan, sizes
        self.me = lax.axis_index(layout.axis)
        self._there: dict[Any, Any] = dict(zip(layout.numbers, numbers, strict=True))
        self._rows = dict[Value, Any]()
        for value, leaf in zip(self.plan.program.ins, leaves, strict=True):
            (self._rows if value.rows else self._there)[value] = leaf
        self._starts = dict[Any, Any]()  # where the chunks began of carries that are taken up again
        self._shards = {
            v: Shard(x, v.rows[0], layout.axis, layout.devices, layout.beside[v]) for v, x in self._rows.items()
        }

    def run(self) -> Leaves:
        """The outputs: those without rows whole, the same on each device; of the others its own rows."""
        for index, steps in enumerate(self.plan.before):
            for step in steps:
                self._read(step)
                run_small(step, self._there, run_whole)
            if index < len(self.plan.passes):
                one = self.plan.passes[index]
                if one.loop is None:
                    self._pass(index, one)
                else:
                    self._there.update(zip(one.loop.outs, self._loop(one.loop), strict=True))
        return [self._rows[v] if v in self._rows else read(v, self._there) for v in self.plan.program.outs]

    def _read(self, step: Step) -> None:
        """Fetch the rows that a step between two passes reads."""
        for value, want in pieces(step):
            if value in self._shards and (value, want) not in self._there:
                piece = want[value.rows[0]] or everything(value.at[value.rows[0]])
                start = piece.start.value(None, lambda asked: read(asked, self._there))
                self._there[value, want] = self._shards[value].for_all(start, piece.extent)

    def _loop(self, eqn: Equation) -> Leaves:
        """A loop whose turns go over the rows."""
        of: Equation = eqn.params["of"]

        def inside(layout: Layout, outside: list[Value]) -> Callable[[Leaves], Leaves]:
            first = [self._rows[v] if v.rows else read(v, self._there) for v in outside]

            def run(args: Leaves) -> Leaves:
                late = len(layout.plan.program.ins) - len(first)
                numbers = [v.known for v in layout.numbers]
                return Device(layout, [*first, *args[len(args) - late :]], numbers, layout.sizes).run()

            return run

        ins = [None if v.rows else read(v, self._there) for v in of.ins]
        layouts = zip(self.layout.loops[eqn], inside_of(eqn), strict=True)
        found: Leaves = again(of, ins, [inside(layout, each.outside) for layout, each in layouts])
        return found

    # ------------------------------------------------------------------ one pass

    def _pass(self, index: int, one: Pass) -> None:
        layout = self.layout
        here = {v: layout.varied(x) for v, x in self._there.items() if not isinstance(v, tuple)}
        line = Line(layout, self.me, reverse=bool(one.reverse))
        carries = [task for task in one.tasks if isinstance(task, Carry)]
        starts = dict[Carry, Any]()
        for level in levels(self.plan, one, carries, layout.ranges(one)):
            sweep = _Sweep(self, index, Pass(one.grid, one.reverse, [*starts, *level]), here)
            first = layout.varied(sweep.chunks.begin()["carries"][len(starts) :])
            end = functools.partial(sweep.end, list(starts.values()))
            starts |= zip(level, line.starts(level, first, end), strict=True)
        sweep = _Sweep(self, index, one, here)
        state = sweep.run([starts[task] for task in carries], stores=True)
        kept = state["kept"]
        folds = sweep.chunks.folds
        whole = {
            "folds": joined(folds, sweep.chunks.hows, kept["folds"], layout.axis, layout.devices, sweep.count > 0),
            "carries": line.ends(carries, kept["carries"]),
        }
        ChunkRun(self.plan, one, self._there, _MANY, layout.ranges(one)).end(whole)
        self._rows |= zip((task.value for task in sweep.chunks.stores), state["stores"], strict=True)
        for task, buffers in zip(sweep.chunks.saved, zip(*state["starts"], strict=True), strict=True):
            self._starts[task.eqn] = buffers


class _Sweep:
    """One way of a device over its rows."""

    def __init__(self, device: Device, index: int, one: Pass, here: dict[Any, Any]):
        self.device, self.one, self.layout, self.here = device, one, device.layout, here
        self.ranges = self.layout.ranges(one)
        self.chunks = ChunkRun(device.plan, one, here, _MANY, self.ranges)
        place = self.layout.place
        self.begins = device.me * place
        self.count = jnp.clip(device.sizes[index] - self.begins, 0, place)
        self.whole = one.grid.size == place * self.layout.devices  # every device has as many rows

    def run(self, carries: Leaves, *, stores: bool = False) -> State:
        """What is kept after the last row, with what is stored, and where chunks began."""
        kept = self.chunks.begin()
        folds = [started(t, s, self.device.me) for t, s in zip(self.chunks.folds, kept["folds"], strict=True)]
        state: State = {"kept": {"folds": folds, "carries": carries}, "stores": [], "starts": []}
        if stores:
            state["stores"] = [self.layout.buffer(task.value) for task in self.chunks.stores]
            state["starts"] = [self._saves(times) for _, times in self._most()]
        state = self.layout.varied(state)
        runs = self._loops()
        for which, (rows, begin, times) in reversed(runs) if self.one.reverse else runs:
            state = self._loop(state, which, rows, begin, times)
        return state

    def end(self, known: Leaves, begun: Leaves) -> Leaves:
        """Where carries lead that begin there, beside those whose beginning is known."""
        carries: Leaves = self.run([*known, *begun])["kept"]["carries"]
        return carries[len(known) :]

    def _saves(self, times: int) -> Leaves:
        saved = self.chunks.saved_of(self.chunks.begin())
        return [jax.tree.map(lambda x: jnp.zeros((times, *x.shape), x.dtype), carry) for carry in saved]

    def _most(self) -> list[tuple[Range, int]]:
        """For each length of chunks, the most of them."""
        place, found = self.layout.place, []
        for rows in self.ranges:
            found.append((rows, place // rows.extent))
            place = place % rows.extent if self.whole else min(place, rows.extent - 1)
        return found

    def _loops(self) -> list[tuple[int, tuple[Range, Any, Any]]]:
        """For each length of chunks, where they begin, and how many there are."""
        begin: Any = 0
        count = self.layout.place if self.whole else self.count
        found = []
        for which, rows in enumerate(self.ranges):
            times = (count - begin) // rows.extent
            found.append((which, (rows, begin, times)))
            begin = begin + times * rows.extent
        return found

    def _loop(self, state: State, which: int, rows: Range, begin: Any, times: Any) -> State:
        def body(i: Any, state: State) -> State:
            at = times - 1 - i if self.one.reverse else i
            return self.layout.varied(self._step(state, which, rows, begin + at * rows.extent, at))

        if isinstance(times, int) and times == 0:
            return state
        zero, times = self.layout.varied([jnp.int32(0), jnp.asarray(times, jnp.int32)])
        found: State = lax.fori_loop(zero, times, body, state)
        return found

    def _step(self, state: State, which: int, rows: Range, local: Any, at: Any) -> State:
        device, first = self.device, self.begins + local
        starts = [
            [
                jax.tree.map(lambda buffer, x: lax.dynamic_update_index_in_dim(buffer, x, at, 0), buffers, carry)
                for buffers, carry in zip(saves, self.chunks.saved_of(state["kept"]), strict=True)
            ]
            if i == which
            else saves
            for i, saves in enumerate(state["starts"])
        ]
        begun = {eqn: jax.tree.map(lambda x: x[at], device._starts[eqn][which]) for eqn in self.chunks.taken_up(rows)}
        env = {**self.here}
        for value, want in self.layout.parts(self.chunks, rows):
            piece = want[value.rows[0]]
            assert piece is not None
            start = piece.start.value(first, lambda asked: read(asked, self.here))
            env[value, want] = device._shards[value].part(start, piece.extent)
        chunks = ChunkRun(device.plan, self.one, env, _MANY, self.ranges)
        kept, parts = chunks.step(state["kept"], rows, first, begun)
        stores = state["stores"] and [
            lax.dynamic_update_slice_in_dim(buffer, part, local, task.axis)
            for task, buffer, part in zip(self.chunks.stores, state["stores"], parts, strict=True)
        ]
        return {"kept": kept, "stores": stores, "starts": starts}
