"""Every function of the corpus as a stream: identical under its contract, or refused as `docs/refused.md` says.

A seeded slice of functions, row counts and chunk sizes by default; with `--erythroxy-profile=ci` every third one,
others on each Python; every one on the whole grid with `thorough`.
"""

import pathlib
import random
import re
import sys
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.testing.judge import Judge

from . import ENTRIES
from . import Entry

ROWS = (1, 2, 7, 64, 101, 1000)
SIZES = {1: (1,), 2: (1,), 7: (2, 7), 64: (16, 10), 101: (25, 1), 1000: (250, 300)}
_PAGE = pathlib.Path(__file__).parents[2] / "docs" / "refused.md"
_DROPPED = 800  # rows of five numbers, of which XLA's CPU may drop a NaN in a maximum. 0.10.2, 0.12.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    profile = metafunc.config.getoption("--erythroxy-profile", default=None)
    if "entry" not in metafunc.fixturenames:
        return
    from_host = "from_host" in metafunc.function.__name__
    chance = random.Random(len(ENTRIES) + from_host)  # which of them run, the same in every process
    grid = [(n, size) for n in ROWS for size in SIZES[n]]
    cases: list[tuple[Entry, tuple[int, int]]] = []
    for entry in ENTRIES:
        able = [case for case in grid if case[0] >= entry.at_least]
        cases += [(entry, case) for case in (able if profile == "thorough" else [chance.choice(able)])]
    if from_host and profile != "thorough":
        cases = chance.sample(cases, 60 if profile == "ci" else 20)
    elif profile in (None, "fast"):
        cases = chance.sample(cases, 30)
    elif profile == "ci":
        cases = cases[sys.version_info.minor // 2 % 2 :: 3]  # of 3.11 and 3.13, others
    metafunc.parametrize(
        ("entry", "rows", "size"),
        [pytest.param(entry, n, size, id=f"{entry.name}, {n} in chunks of {size}") for entry, (n, size) in cases],
    )


def refused(by: str = "chunked") -> dict[str, str]:
    """The functions that the page says are refused by a transform, with the reason."""
    section = _PAGE.read_text().partition(f"## By {by}")[2].partition("## ")[0]
    return dict(re.findall(r"^\| `(.*?)` \| (.*?) \|$", section, re.MULTILINE))


def test_streamed(entry: Entry, rows: int, size: int) -> None:
    args = entry.inputs(rows)
    streamed = tx.chunked(lax.map, size=size, in_axes=entry.in_axes)(entry.fn)
    try:
        got = streamed(*args)
    except tx.RowMixingError as error:
        if entry.name not in refused():
            raise AssertionError(f"{entry.name} is refused, and the page does not say so") from error
        return
    if entry.name == "jnp.max with NaN axis=0" and rows >= _DROPPED:
        np.testing.assert_array_equal(got, np.max(args[0], axis=0))
        return
    want = jax.jit(entry.fn)(*args)
    if all(same(a, b) for a, b in pairs_of(want, got)):
        return
    faults = Judge(entry.fn, streamed).findings("jit", args, gradients=False).faults
    assert not faults, "\n".join(faults)


def test_streamed_from_host(entry: Entry, rows: int, size: int) -> None:
    """The same by `tx.stream`; what needs all rows at once is refused there."""
    args = entry.inputs(rows)
    streamed = tx.chunked(tx.stream(), size=size, in_axes=entry.in_axes)(entry.fn)

    def on_device(*args: Any) -> Any:
        return jax.tree.map(jax.numpy.asarray, streamed(*args))

    try:
        got = on_device(*args)
    except tx.RowMixingError as error:
        known = entry.name in refused() or re.search(
            "all rows|computed just before|another program for [12] rows", str(error)
        )
        assert known, error  # noqa: PT017  # or it is as it should be
        return
    if entry.name == "jnp.max with NaN axis=0" and rows >= _DROPPED:
        np.testing.assert_array_equal(got, np.max(args[0], axis=0))
        return
    want = jax.jit(entry.fn)(*args)
    if all(same(a, b) for a, b in pairs_of(want, got, weakly=False)):
        return
    promise = tx.contract(streamed, *args)
    faults = Judge(entry.fn, on_device, promise).findings("eager", args, gradients=False).faults
    assert not faults, "\n".join(faults)


def pairs_of(want: Any, got: Any, *, weakly: bool = True) -> list[tuple[Any, Any]]:
    """The leaves of two results, which are of the same structure and types."""
    assert jax.tree.structure(want) == jax.tree.structure(got)
    pairs = list(zip(map(jax.numpy.asarray, jax.tree.leaves(want)), jax.tree.leaves(got), strict=True))
    for a, b in pairs:
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert not weakly or a.weak_type == b.weak_type
    return pairs


def same(a: Any, b: Any) -> bool:
    """Whether two leaves are the same to the bit."""
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=jax.numpy.issubdtype(a.dtype, np.inexact))


def test_few_are_refused() -> None:
    names = {entry.name for entry in ENTRIES}
    mixing = [name for name, why in refused().items() if "cannot be traced" not in why and name in names]
    untraced = [name for name, why in refused().items() if "cannot be traced" in why and name in names]
    lowered = 1 - len(mixing) / (len(names) - len(untraced))
    assert lowered >= 0.92, f"{lowered:.1%} of {len(names) - len(untraced)} functions that trace are lowered"


def test_the_page_names_functions_of_the_corpus() -> None:
    assert set(refused()) <= {entry.name for entry in ENTRIES}
