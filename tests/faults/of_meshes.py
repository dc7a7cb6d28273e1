"""Faults of rows on a mesh: what devices tell each other is wrong, or not told, or a device has other rows than it is
said to have.
"""

import contextlib
from unittest import mock

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from of_streams import replaced
from planted import Case
from planted import planted

import erythroxy_tx as tx
from erythroxy_tx.drivers.share import SharedLoop
from erythroxy_tx.program.mesh import joins
from erythroxy_tx.program.mesh import run
from erythroxy_tx.program.mesh.carries import Line
from erythroxy_tx.program.mesh.run import Device
from erythroxy_tx.program.mesh.shard import Shard
from erythroxy_tx.testing import rows

STREAM = tx.stream()
FLOATS = rows(st.sampled_from([7, 10, 12]), 2, extremes=False, allow_nan=False, allow_infinity=False)


def on_mesh(patch=contextlib.nullcontext, stream=None):
    """Run a function over two devices, three rows a chunk, while something is patched."""

    def how(f, *args):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
        with patch():
            found = tx.chunked(tx.over(mesh, "data", stream=stream), size=3)(f)(*map(np.asarray, args))
        plain = jax.tree.map(
            lambda x: x.trim() if isinstance(x, tx.Padded) else x, found, is_leaf=lambda x: isinstance(x, tx.Padded)
        )
        return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), plain)

    return how


def twice(original):
    return lambda values, axis: [x + x for x in original(values, axis)]


def not_told(original):
    return lambda values, axis: list(values)


@contextlib.contextmanager
def untold_and_unchecked():
    """No sum over the devices; nor is it checked that what is the same on each of them is made so."""
    shard_map = jax.shard_map

    def unchecked(*args, **options):
        return shard_map(*args, **options | {"check_vma": False})

    with replaced(joins, "summed", not_told)(), mock.patch.object(jax, "shard_map", unchecked):
        yield


def at_the_first(original):
    """Every device begins where the first one does."""
    return lambda self, tasks, first, end: first


def end_of_the_first(original):
    def ends(self, tasks, carries):
        self.me = self.devices - 1 - self.me
        return original(self, tasks, carries)

    return ends


def one_row_fewer(original):
    def made(self, layout, leaves, numbers, sizes):
        original(self, layout, leaves, numbers, jnp.maximum(sizes - 1, 0))

    return made


def none_beside(original):
    def made(self, rows, dim, axis, devices, beside):
        original(self, rows, dim, axis, devices, beside)
        if beside:
            self._before, self._after = (jnp.zeros_like(x) for x in (self._before, self._after))

    return made


def started_on_each(original):
    return lambda task, state, me: state


def smooth(x):
    return lax.scan(lambda c, r: (c / 2 + r, c), jnp.ones(2), x)[1]


def binned(x):
    return jnp.ones(3).at[(x[:, 0] > 0).astype(int)].add(x[:, 1])


def of_the_first(original):
    """What the other devices added up is left out."""
    return lambda self, index, lanes: lanes[0].kept


def to_the_next(original):
    """A device has the rows of the one beside it."""
    return lambda self, index: original(self, index)[:1] * 2


def fault(name, patch, fn, stream=None):
    return Case(name, planted(on_mesh(patch, stream), fn, on_host=True), FLOATS)


FAULTS = [
    fault("a sum over devices is doubled", replaced(joins, "summed", twice), lambda x: x.sum(0)),
    fault("a sum is not told to the other devices", untold_and_unchecked, lambda x: x.sum(0)),
    fault("every device begins at the start of a running sum", replaced(Line, "starts", at_the_first), lax.cumsum),
    fault("every device begins at the start of a scan", replaced(Line, "starts", at_the_first), smooth),
    fault(
        "a scan ends where the first device did",
        replaced(Line, "ends", end_of_the_first),
        lambda x: lax.scan(lambda c, r: (c / 2 + r, None), jnp.ones(2), x)[0],
    ),
    fault("the last row on the devices is dropped", replaced(Device, "__init__", one_row_fewer), lambda x: x.sum(0)),
    fault("neighbours have no rows", replaced(Shard, "__init__", none_beside), lambda x: jnp.diff(x, axis=0)),
    fault("what a sum starts from counts once for each device", replaced(run, "started", started_on_each), binned),
    fault("one device of a stream counts", replaced(SharedLoop, "_joined", of_the_first), lambda x: x.sum(0), STREAM),
    fault("two devices stream the same rows", replaced(SharedLoop, "_dealt", to_the_next), lambda x: x.max(0), STREAM),
]
