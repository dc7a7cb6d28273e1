"""Functions of the corpus over two devices: identical under their contract, or refused. A seeded slice by default, a
larger one with `--erythroxy-profile=ci`, another on each Python, and every function with `thorough`.
"""

import random
import re
import sys
from typing import Any

import jax
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.testing.judge import Judge

from . import ENTRIES
from . import Entry
from .test_streamed import SIZES
from .test_streamed import pairs_of
from .test_streamed import refused
from .test_streamed import same

ROWS = (1, 2, 7, 64, 101)
_REASONS = (
    "needs all rows|rows of .* of any device|rows beside those of a device|not those of the input one by one"
    "|two axes of rows|write over each other|not affine in the carry|another program for [12] rows|computed just before"
    "|there is place for|larger or equal than the padding length"
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    profile = metafunc.config.getoption("--erythroxy-profile", default=None) or "fast"
    chance = random.Random(len(ENTRIES))  # the same in every process
    grid = [(n, size) for n in ROWS for size in SIZES[n]]
    cases = [(entry, chance.choice([case for case in grid if case[0] >= entry.at_least])) for entry in ENTRIES]
    chance.shuffle(cases)
    if profile != "thorough":
        slices = {"fast": slice(15), "ci": slice(60) if sys.version_info.minor % 4 == 1 else slice(60, 120)}
        cases = cases[slices[profile]]
    metafunc.parametrize(
        ("entry", "rows", "size"),
        [pytest.param(entry, n, size, id=f"{entry.name}, {n} in chunks of {size}") for entry, (n, size) in cases],
    )


def test_over_a_mesh(entry: Entry, rows: int, size: int) -> None:
    args = entry.inputs(rows)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    meshed = tx.chunked(tx.over(mesh, "data"), size=size, in_axes=entry.in_axes)(entry.fn)

    def on_one_device(*args: Any) -> Any:
        found = meshed(*args)
        plain = jax.tree.map(lambda x: x.trim() if _is_padded(x) else x, found, is_leaf=_is_padded)
        return jax.device_put(plain, jax.devices()[0])

    try:
        got = on_one_device(*args)
    except tx.RowMixingError as error:
        assert entry.name in refused() or re.search(_REASONS, str(error)), error  # noqa: PT017  # or it is right
        return
    want = jax.jit(entry.fn)(*args)
    if all(same(a, b) for a, b in pairs_of(want, got, weakly=False)):
        return
    faults = Judge(entry.fn, on_one_device, tx.contract(meshed, *args)).findings("eager", args, gradients=False).faults
    assert not faults, "\n".join(faults)


def _is_padded(x: Any) -> bool:
    return isinstance(x, tx.Padded)
