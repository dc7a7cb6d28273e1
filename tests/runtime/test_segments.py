"""Batches from a pool of segments: their order against a reference, bytes, restarts, failures, and the thread."""

import gc
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erythroxy_tx.errors import BudgetError
from erythroxy_tx.errors import LengthError
from erythroxy_tx.errors import ThreadError
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.runtime.pool import sources as sources_module
from erythroxy_tx.runtime.pool.rotation import Rotation
from erythroxy_tx.runtime.pool.rotation import shuffled
from erythroxy_tx.runtime.prefetch import prefetch
from erythroxy_tx.runtime.segments import SegmentPool

LONG = 30  # seconds after which a test that hangs fails


def segments(*counts: int) -> list[np.ndarray]:
    """Segments whose rows say where they are from: 100 · source + row."""
    return [100 * i + np.arange(n) for i, n in enumerate(counts)]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tx.SegmentPool"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threads():
        thread.join(LONG)
    assert not threads()


def lists(pool: Any, count: int | None = None) -> list[list[int]]:
    return [batch.tolist() for batch in itertools.islice(pool, count)]


# ------------------------------------------------------------------ the law


def stages(order: list[int], counts: list[int], active: int, rotate: str) -> Iterator[list[range]]:
    """Which rows are read of which sources in each stage, as the docstring says it."""
    rows = [range(100 * s, 100 * s + counts[s]) for s in order]
    if rotate == "subset" or len(order) <= active:
        yield from (rows[k : k + active] for k in range(0, len(order), active))
        return
    in_stages = [[k for k in range(len(order)) if k <= at < k + active] for at in range(len(order))]
    for k in range(len(order)):
        now = []
        for at, read in enumerate(rows):
            if k in in_stages[at]:
                i, parts = in_stages[at].index(k), len(in_stages[at])
                now.append(read[len(read) * i // parts : len(read) * (i + 1) // parts])
        yield now


def reference(order: list[int], counts: list[int], active: int, rotate: str) -> list[int]:
    """The rows of an epoch."""
    found = []
    for stage in stages(order, counts, active, rotate):
        stand = [
            (Fraction(2 * i + 1, 2 * len(part)), at, row) for at, part in enumerate(stage) for i, row in enumerate(part)
        ]
        found += [row for _, _, row in sorted(stand)]
    return found


def cut(epochs: list[list[int]], batch: int, last: str) -> list[list[int]]:
    if last == "carry":
        epochs = [list(itertools.chain(*epochs))]
    found = [rows[i : i + batch] for rows in epochs for i in range(0, len(rows), batch)]
    return [rows for rows in found if len(rows) == batch or last != "drop"]


POOLS = st.fixed_dictionaries(
    {
        "counts": st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
        "active": st.integers(1, 4),
        "batch": st.integers(1, 12),
        "rotate": st.sampled_from(["segment", "subset"]),
        "shuffle": st.sampled_from(["segments", "rows", None]),
        "last": st.sampled_from(["carry", "short", "drop"]),
        "epochs": st.integers(1, 3),
        "seed": st.integers(0, 5),
    }
)


def hold_against_the_law(how: dict[str, Any], **more: Any) -> None:
    how = dict(how)
    counts = how.pop("counts")
    if how["last"] == "drop":
        how["batch"] = min(how["batch"], sum(counts))
    with SegmentPool(segments(*counts), **how, **more) as pool:
        found = lists(pool)
    rotation = Rotation(len(counts), how["active"], how["rotate"], how["shuffle"], how["seed"])
    epochs = [reference(rotation.order(e), counts, how["active"], how["rotate"]) for e in range(how["epochs"])]
    assert all(sorted(rows) == sorted(itertools.chain(*segments(*counts))) for rows in epochs)
    if how["shuffle"] == "rows":  # the same rows from the same sources; which of each comes when is shuffled
        expected = cut([[row // 100 for row in rows] for rows in epochs], how["batch"], how["last"])
        assert [[row // 100 for row in rows] for rows in found] == expected
        if how["last"] != "drop":
            total, flat = sum(counts), list(itertools.chain(*found))
            assert all(sorted(flat[e * total : (e + 1) * total]) == sorted(epochs[0]) for e in range(how["epochs"]))
        assert all(count <= how["epochs"] for count in Counter(itertools.chain(*found)).values())
    else:
        assert found == cut(epochs, how["batch"], how["last"])


@given(POOLS)
def test_every_row_comes_as_the_law_says(how: dict[str, Any]) -> None:
    hold_against_the_law(how)


@pytest.mark.parametrize("last", ["carry", "short", "drop"])
@pytest.mark.parametrize("shuffle", ["segments", "rows", None])
@pytest.mark.parametrize("rotate", ["segment", "subset"])
def test_every_way_keeps_the_law(rotate: str, shuffle: str | None, last: str) -> None:
    how = {"rotate": rotate, "shuffle": shuffle, "last": last, "epochs": 3, "seed": 1}
    hold_against_the_law({"counts": [4, 0, 5, 9, 2, 6], "active": 3, "batch": 4, **how})


@given(POOLS)
def test_and_so_it_does_when_rows_are_not_known(how: dict[str, Any]) -> None:
    hold_against_the_law(how, load=lambda source: source.copy(), nbytes=80, budget=20_000)


@given(POOLS, st.data())
def test_a_restart_goes_on_with_the_same_batches(how: dict[str, Any], data: st.DataObject) -> None:
    how = dict(how)
    counts = how.pop("counts")
    how["batch"] = min(how["batch"], sum(counts))
    more: dict[str, Any] = data.draw(st.sampled_from([{}, {"load": lambda source: source}]))
    with SegmentPool(segments(*counts), **how, **more) as pool:
        states, batches = [pool.state()], []
        for batch in pool:
            batches.append(batch.tolist())
            states.append(json.loads(json.dumps(pool.state())))
        for k, state in enumerate(states):  # rows that were not known then may be known now
            assert {**state, "reading": None} == {**pool.state(after=k), "reading": None}
        pool.restore(states[len(batches) // 2])
        assert lists(pool) == batches[len(batches) // 2 :]
    for k, state in enumerate(states):
        with SegmentPool(segments(*counts), **how, **more, state=state) as pool:
            assert pool.batches == k
            assert lists(pool) == batches[k:]
            assert pool.state()["row"] == 0 or how["last"] == "drop"  # of which the state is that of the last batch
            assert pool.state()["batches"] == len(batches)


def test_shuffling_is_the_same_in_every_version() -> None:
    assert shuffled(np.arange(10), 10, 0, 0).tolist() == [9, 2, 8, 0, 4, 7, 6, 5, 3, 1]
    counts = Counter(tuple(shuffled(np.arange(4), 4, seed, 1).tolist()) for seed in range(2400))
    assert len(counts) == 24
    assert sum((n - 100) ** 2 / 100 for n in counts.values()) < 50  # χ² of 23: 50 is passed once in a thousand


def test_epochs_differ_and_are_reproducible() -> None:
    def run(seed: int, shuffle: str) -> list[list[int]]:
        with SegmentPool(segments(8, 8, 8, 8), 2, batch=32, epochs=2, seed=seed, shuffle=shuffle) as pool:
            return lists(pool)

    for shuffle in ("segments", "rows"):
        first, second = run(3, shuffle)
        assert first != second
        assert sorted(first) == sorted(second)
        assert [first, second] == run(3, shuffle)
        assert first != run(4, shuffle)[0]
    with SegmentPool([np.arange(30)] * 2, 1, batch=30, epochs=2, shuffle="rows") as pool:
        assert len(set(map(tuple, lists(pool)))) == 4  # of each source, in each epoch


def test_a_source_is_read_once_in_an_epoch_and_not_at_all_while_it_stays() -> None:
    read: list[int] = []

    def load(i: int) -> np.ndarray:
        read.append(i)
        return segments(*[6] * 9)[i]

    for how in ({}, {"budget": 48 * 3 + 5 * 72, "nbytes": 48}, {"rotate": "subset"}):
        read.clear()
        with SegmentPool(range(9), 3, batch=5, load=load, epochs=4, last="short", **how) as pool:
            for epoch in range(4):
                assert len(lists(pool, 11)) == 11
                assert all(n <= epoch + 2 for n in Counter(read).values())  # one is ahead at most
        assert set(Counter(read).values()) <= {1, 2, 3, 4}
    read.clear()
    with SegmentPool(range(9), 9, batch=5, load=load, epochs=4) as pool:
        lists(pool)
    assert sorted(read) == list(range(9))


# ------------------------------------------------------------------ sources


def files(folder: Path, *counts: int) -> list[Path]:
    paths = [folder / f"{i:03}.npy" for i in range(len(counts))]
    for path, rows in zip(paths, segments(*counts), strict=True):
        np.save(path, rows)
    return paths


class Dataset:
    """What h5py gives: shape, dtype, and slices that are read."""

    def __init__(self, rows: np.ndarray):
        self.shape, self.dtype, self._rows = rows.shape, rows.dtype, rows
        self.reads: list[slice] = []

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.reads.append(rows)
        return self._rows[rows].copy()


@pytest.mark.parametrize("mapped", [0, 2**40])
def test_sources_of_every_kind(mapped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "_PIECE", 16)
    monkeypatch.setattr(sources_module, "_MAPPED", mapped)
    rows = segments(5, 7, 6, 3)
    paths = files(tmp_path, 5, 7, 6, 3)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}
    datasets = [Dataset(each) for each in rows]
    kinds = {
        "arrays": rows,
        "paths": paths,
        "strings": [str(path) for path in paths],
        "memmap": [np.load(path, mmap_mode="r") for path in paths],
        "sliced": datasets,
        "mixed": [paths[0], rows[1], datasets[2], str(paths[3])],
    }
    expected = lists(SegmentPool(rows, 2, batch=4, seed=1))
    for kind, sources in kinds.items():
        with SegmentPool(sources, 2, batch=4, seed=1) as pool:
            assert lists(pool) == expected, kind
    assert datasets[0].reads == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths} == before
    loaded = SegmentPool(paths, 2, batch=4, seed=1, load=np.load)
    assert lists(loaded) == expected
    mapped = SegmentPool(paths, 2, batch=4, seed=1, load=lambda path: np.load(path, mmap_mode="r"))
    assert lists(mapped) == expected


@pytest.mark.parametrize("mapped", [1, 2**40])
def test_trees_of_sources(mapped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "_MAPPED", mapped)
    tall = np.arange(60, dtype=np.float32).reshape(12, 5)
    np.save(tmp_path / "x.npy", np.asfortranarray(tall))
    np.save(tmp_path / "none.npy", tall[:0])
    sources = [
        {"x": tmp_path / "x.npy", "y": (np.arange(12), None)},
        {"x": str(tmp_path / "none.npy"), "y": (np.arange(0), None)},
    ]
    with SegmentPool(sources, batch=12) as pool:
        (batch,) = pool
    assert jax.tree.structure(batch) == jax.tree.structure(sources[0])
    np.testing.assert_array_equal(batch["x"], tall, strict=True)
    assert batch["y"][0].tolist() == list(range(12))


def test_batches_and_sources_share_no_memory() -> None:
    rows = segments(4, 4)
    with SegmentPool(rows, 1, batch=4, shuffle=None) as pool:
        first = next(pool)
        first[:] = -1
        for thread in threads():
            thread.join(LONG)
        rows[1][:] = 7
        second = next(pool)
        assert second.tolist() == [100, 101, 102, 103]
        assert rows[0].tolist() == [0, 1, 2, 3]
        second[:] = -2
    assert first.tolist() == [-1] * 4
    assert rows[1].tolist() == [7] * 4


# ------------------------------------------------------------------ bytes


class Weighed:
    """A load function that counts the bytes of what it gave and is still alive."""

    def __init__(self, *counts: int, width: int = 8):
        self.counts, self.width = counts, width
        self.lock, self.alive, self.most = threading.RLock(), 0, 0

    def nbytes(self, i: int) -> int:
        return self.counts[i] * self.width * 8

    def __call__(self, i: int) -> np.ndarray:
        self.count(self.nbytes(i))
        found = np.full((self.counts[i], self.width), i, np.float64)
        weakref.finalize(found, self.count, -found.nbytes)
        return found

    def count(self, nbytes: int) -> None:
        with self.lock:
            self.alive += nbytes
            self.most = max(self.most, self.alive)


@pytest.mark.parametrize("rotate", ["segment", "subset"])
@pytest.mark.parametrize("room", [3, 4, 5, 7])
def test_no_more_is_held_than_the_budget(rotate: str, room: int) -> None:
    load = Weighed(*[30, 20, 30, 10, 25, 30, 5, 30])
    beside = 7 * (64 + 64)
    budget = room * 30 * 64 + beside
    pool = SegmentPool(range(8), 3, rotate, batch=7, load=load, nbytes=load.nbytes, budget=budget, epochs=5)
    with pool:
        for _ in pool:
            report = pool.report()
            assert load.alive <= budget - beside
            assert report.held <= report.peak <= budget - report.beside
        assert pool.report().held == load.alive == 0
    assert load.most <= budget - beside


def test_memory_that_is_allocated_stays_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "_MAPPED", 2**40)  # tracemalloc sees no mappings
    rows = [np.zeros((2000, 100)) for _ in range(10)]
    paths = [tmp_path / f"{i}.npy" for i in range(10)]
    for path, each in zip(paths, rows, strict=True):
        np.save(path, each)
    for sources, shuffle in ((paths, "segments"), (paths, "rows"), ([Dataset(each) for each in rows], "segments")):
        batch = 150
        pool = SegmentPool(sources, 2, batch=batch, shuffle=shuffle, epochs=2)
        budget = 3 * 1_600_000 + pool.report().beside
        pool = SegmentPool(sources, 2, batch=batch, shuffle=shuffle, epochs=2, budget=budget)
        next(pool)
        gc.collect()
        tracemalloc.start()
        try:
            for _ in pool:
                held = pool.report()
            allocated = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        pool.close()
        assert held.peak == 3 * 1_600_000
        assert allocated <= budget + batch * 800 + 200_000  # the batch of the consumer, and objects of Python


def test_a_segment_waits_until_there_is_room() -> None:
    began: list[int] = []

    def load(i: int) -> np.ndarray:
        began.append(i)
        return segments(4, 4, 4)[i]

    how: dict[str, Any] = {"batch": 2, "load": load, "nbytes": 32, "shuffle": None}
    with SegmentPool(range(3), 2, budget=64 + 2 * 72, **how) as pool:
        assert lists(pool, 3) == [[0, 100], [1, 2], [101, 3]]
        assert began == [0, 1]  # the third would be one too many
        assert lists(pool) == [[102, 200], [103, 201], [202, 203]]
        assert began == [0, 1, 2]
        assert pool.report().peak == 64


def test_what_cannot_fit_is_refused() -> None:
    rows = [np.zeros((10, 8)) for _ in range(4)]
    with pytest.raises(BudgetError, match=r"active=3 and batch=2: the 3 largest of 4 segments take 1.9 KiB") as caught:
        SegmentPool(rows, 3, batch=2, budget=1600)
    assert caught.match(
        r"first 640 B, and a batch 256 B beside them. Expected at most budget=1600, 1.6 KiB. Fix: active=2."
    )
    with pytest.raises(BudgetError, match="Fix: a larger budget=, a smaller batch=, or smaller segments"):
        SegmentPool(rows, 3, batch=2, budget=640)
    SegmentPool(rows, 3, batch=2, budget=3 * 640 + 256)
    with pytest.raises(BudgetError):
        SegmentPool(rows, 3, batch=2, budget=3 * 640 + 255)


def test_bytes_of_a_batch_that_are_known_late() -> None:
    """Nothing is known of the rows before the first is loaded; then the batch does not fit."""
    load = Weighed(10, 10, 10)
    with SegmentPool(range(3), 1, batch=10, load=load, nbytes=640, budget=640 + 10 * 64) as pool:
        for _ in range(2):
            with pytest.raises(BudgetError, match=r"batch 1\.2 KiB beside") as caught:
                next(pool)
            caught.value.with_traceback(None)
            assert load.alive == pool.report().held == 0


@pytest.mark.parametrize("hides", [False, True])
def test_a_segment_that_is_larger_than_was_said(hides: bool) -> None:
    load = Weighed(10, 10, 11)

    def loads(i: int) -> np.ndarray:
        return load(i)[:10] if hides else load(i)

    with SegmentPool(range(3), 1, batch=10, load=loads, nbytes=640, shuffle=None) as pool:
        assert len(next(pool)) == 10
        for _ in range(2):
            with pytest.raises(
                BudgetError, match=r"got 704 bytes, 704 B, from load for sources\[2\] \('2'\). .*nbytes=640"
            ):
                lists(pool)
            assert load.alive <= 640
        assert pool.batches == 2


# ------------------------------------------------------------------ the background


class Gated:
    """A load function that says what it began, and waits until it may go on."""

    def __init__(self, *counts: int):
        self.rows = segments(*counts)
        self.began = [threading.Event() for _ in counts]
        self.may = [threading.Event() for _ in counts]

    def __call__(self, i: int) -> np.ndarray:
        self.began[i].set()
        assert self.may[i].wait(LONG)
        return self.rows[i]

    def let(self, *which: int) -> None:
        for i in which:
            self.may[i].set()


def test_batches_are_made_while_the_next_segment_is_loaded() -> None:
    load = Gated(4, 4, 4, 4)
    with SegmentPool(range(4), 2, batch=2, load=load, shuffle=None) as pool:
        load.let(0, 1)
        assert lists(pool, 1) == [[0, 100]]
        assert load.began[2].wait(LONG)  # and it does not go on
        assert lists(pool, 2) == [[1, 2], [101, 3]]
        assert not load.began[3].is_set()
        load.let(2)
        assert lists(pool, 2) == [[102, 200], [103, 201]]
        assert load.began[3].wait(LONG)
        load.let(3)
        assert lists(pool) == [[202, 300], [203, 301], [302, 303]]


def test_seconds_that_were_waited() -> None:
    load = Gated(4)

    def open_late() -> None:
        while pool._loader._bell is None:
            time.sleep(0.001)
        load.let(0)

    with SegmentPool(range(1), batch=2, load=load) as pool:
        opens = threading.Thread(target=open_late)
        opens.start()
        next(pool)
        opens.join(LONG)
        waited = pool.report().waited
        assert waited > 0
        next(pool)
        assert pool.report().waited == waited


def test_the_next_epoch_is_loaded_while_this_one_ends() -> None:
    read, again = [], threading.Event()

    def load(i: int) -> np.ndarray:
        read.append(i)
        if read.count(0) == 2:
            again.set()
        return segments(4, 4, 4, 4)[i]

    with SegmentPool(range(4), 2, batch=4, load=load, shuffle=None, epochs=2) as pool:
        assert lists(pool, 4)[-1] == [203, 301, 302, 303]
        assert again.wait(LONG)


@pytest.mark.parametrize("rotate", ["segment", "subset"])
def test_a_slow_disk_changes_no_batch(rotate: str) -> None:
    counts = (3, 5, 2, 4, 6)
    expected = lists(SegmentPool(segments(*counts), 2, rotate, batch=3, epochs=2))
    load, found = Gated(*counts), []
    with SegmentPool(range(5), 2, rotate, batch=3, epochs=2, load=load) as pool:
        consumer = threading.Thread(target=lambda: found.extend(lists(pool)))
        consumer.start()
        while consumer.is_alive():  # each as late as can be: only when it is what everybody waits for
            for i in range(5):
                if load.began[i].wait(0.001):
                    load.let(i)
            consumer.join(0.001)
    assert found == expected


def test_jax_in_the_background_is_refused() -> None:
    with (
        SegmentPool([0], batch=2, load=lambda _: np.asarray(jnp.arange(4))) as pool,
        pytest.raises(ThreadError, match=r"tx\.SegmentPool got"),
    ):
        next(pool)


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize("batch", [2, 5])
@pytest.mark.parametrize("bad", [0, 2, 3])
def test_a_load_that_fails_and_then_does_not(batch: int, bad: int) -> None:
    counts = (4, 3, 4, 4)
    expected = lists(SegmentPool(segments(*counts), 2, batch=batch, shuffle=None))
    left = [OSError("the disk"), OSError("the cable")]

    def load(i: int) -> np.ndarray:
        if i == bad and left:
            raise left.pop(0)
        return segments(*counts)[i]

    found, errors = [], []
    with SegmentPool(range(4), 2, batch=batch, load=load, shuffle=None) as pool:
        while len(found) < len(expected):
            before = pool.batches, pool.state()["row"]
            try:
                found.append(next(pool).tolist())
            except OSError as error:
                errors.append(error)
                assert (pool.batches, pool.state()["row"]) == before
        assert not lists(pool)
        assert pool.report().loads == 4
    assert found == expected
    assert [str(error) for error in errors] == ["the disk", "the cable"]
    assert f"loading sources[{bad}] ('{bad}')" in errors[0].__notes__[0]


def test_a_failure_comes_at_once() -> None:
    failed = threading.Event()

    def load(i: int) -> np.ndarray:
        if i == 1:
            failed.set()
            raise OSError("the disk")
        return segments(100, 100)[i]

    with SegmentPool(range(2), 1, batch=1, load=load, shuffle=None) as pool:
        next(pool)
        assert failed.wait(LONG)
        for thread in threads():
            thread.join(LONG)
        with pytest.raises(OSError, match="the disk"):
            next(pool)
        assert next(pool).tolist() == [1]


@pytest.mark.parametrize(
    ("load", "error", "told"),
    [
        (lambda _: next(iter(())), RuntimeError, r"called load for sources\[0\] \('7'\), which raised StopIteration"),
        (
            lambda _: [1.0, 2.0],
            TypeError,
            r"value\[0\]: float, a float, from load for sources\[0\] \('7'\). Expected numpy",
        ),
        (lambda _: np.ma.masked_array([1, 2]), TypeError, "a MaskedArray"),
        (lambda _: {"a": np.zeros(3), "b": np.zeros(2)}, ValueError, r"\['b'\] of shape \(2,\); \['a'\] is of \(3,\)"),
        (lambda _: np.float64(3), TypeError, "a float64"),
        (lambda _: np.array(3.0), ValueError, r"of shape \(\)"),
        (lambda _: np.array([None]), TypeError, "dtype object"),
        (lambda _: None, ValueError, "without arrays"),
        (lambda _: np.zeros((0, 3)), LengthError, "got 0 rows in 1 sources, and batch=2: no batch"),
        (lambda _: sys.exit(3), SystemExit, "3"),
    ],
)
def test_what_load_may_not_give(load: Any, error: type[BaseException], told: str) -> None:
    with SegmentPool([7], batch=2, load=load, epochs=None) as pool:
        for _ in range(2):
            with pytest.raises(error, match=told):
                next(pool)


def test_segments_that_do_not_agree() -> None:
    load = {0: np.zeros((3, 2)), 1: np.zeros((3, 2), np.float32)}.get
    with (
        SegmentPool([0, 1], batch=2, load=load, shuffle=None) as pool,
        pytest.raises(
            ValueError,
            match=r"sources\[1\] \(.1.\) with rows of float32\(2,\); sources\[0\] .* has rows of float64\(2,\)",
        ),
    ):
        next(pool)


def test_sources_that_change(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 5)
    with SegmentPool([path], batch=2) as pool:
        np.save(path, np.arange(6))
        with pytest.raises(ValueError, match=r"000.npy'\) of int64\(6,\), which was int64\(5,\)"):
            next(pool)
        np.save(path, np.arange(5))
        assert next(pool).tolist() == [0, 1]
    grows = iter(range(3, 9))
    pool = SegmentPool(range(3), 1, batch=3, load=lambda _: np.zeros(next(grows)), epochs=2)
    with pool, pytest.raises(ValueError, match="rows, which had"):
        lists(pool)


def test_a_file_that_is_cut(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 50)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"sources\[0\] \('.*000.npy'\), which is no whole .npy file"):
        SegmentPool([path], batch=2)
    with pytest.raises(FileNotFoundError):
        SegmentPool([tmp_path / "none.npy"], batch=2)


# ------------------------------------------------------------------ the end


@pytest.mark.parametrize("steps", range(5))
def test_close_at_any_step(steps: int) -> None:
    load = Weighed(4, 4, 4, 4)
    pool = SegmentPool(range(4), 2, batch=4, load=load, shuffle=None)
    with pool:
        lists(pool, steps)
        state = pool.state()
    assert not threads()
    assert load.alive == pool.report().held == 0
    with pytest.raises(RuntimeError, match="is closed"):
        next(pool)
    pool.close()
    assert pool.state() == state
    assert len(lists(SegmentPool(range(4), 2, batch=4, load=load, shuffle=None, state=state))) == 4 - steps


def test_close_while_somebody_waits() -> None:
    load, told = Gated(4, 4), []

    def consume() -> None:
        with pytest.raises(RuntimeError, match="is closed"):
            next(pool)
        told.append(pool.state()["batches"])

    pool = SegmentPool(range(2), 2, batch=4, load=load, shuffle=None)
    consumer = threading.Thread(target=consume)
    consumer.start()
    assert load.began[0].wait(LONG)
    assert pool.state()["batches"] == 0  # though a batch is waited for
    closer = threading.Thread(target=pool.close)
    closer.start()
    consumer.join(LONG)
    assert told == [0]
    load.let(0)
    closer.join(LONG)
    assert not threads()
    assert pool.report().held == 0
    assert not load.began[1].is_set()


def test_close_ends_a_long_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "_PIECE", 8)
    pool, reads = None, 0

    class Slow(Dataset):
        def __getitem__(self, rows: slice) -> np.ndarray:
            nonlocal reads
            reads += 1
            pool._loader.stop.set()
            return super().__getitem__(rows)

    pool = SegmentPool([Slow(np.arange(100))], batch=4)
    with pool, pytest.raises(RuntimeError, match="is closed"):
        next(pool)
    assert reads == 1


def test_a_pool_that_nobody_uses_is_collected() -> None:
    class Owner:
        def __init__(self) -> None:
            self.weighed = Weighed(4, 4, 4)
            self.pool = SegmentPool(range(3), 2, batch=2, load=self.load, epochs=None)

        def load(self, i: int) -> np.ndarray:
            return self.weighed(i)

    owner = Owner()
    next(owner.pool)
    weighed, pool = owner.weighed, weakref.ref(owner.pool)
    stop = owner.pool._loader.stop
    for thread in threads():
        thread.join(LONG)
    del owner
    gc.collect()
    assert pool() is None
    assert stop.is_set()
    assert weighed.alive == 0


def test_the_interpreter_ends() -> None:
    code = """if True:
        import threading, numpy as np
        from erythroxy_tx.runtime.pool import loader
        from erythroxy_tx.runtime.segments import SegmentPool
        loader._EXITING = 0.05
        def load(i):
            began.set() if i else None
            return np.zeros(4) if not i else threading.Event().wait()
        began = threading.Event()
        pool = SegmentPool(range(3), 1, batch=2, load=load, shuffle=None)
        next(pool)
        assert began.wait(30)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ------------------------------------------------------------------ states


def test_a_state_under_prefetch() -> None:
    def make(**how: Any) -> SegmentPool:
        return SegmentPool(segments(9, 9, 9, 9), 2, batch=3, **how)

    expected = lists(make())
    with make() as pool, prefetch(pool, size=3) as loader:
        assert lists(loader, 4) == expected[:4]
        state = pool.state(after=4)
    with make(state=state) as pool:
        with prefetch(pool, size=2) as loader:
            assert lists(loader, 3) == expected[4:7]
        state = pool.state(after=7)  # counted from the beginning of the run
        pool.restore(state)  # what was made ahead comes again
        assert lists(pool) == expected[7:]


def test_a_state_of_what_was_not_given() -> None:
    with SegmentPool(segments(9), batch=1, epochs=None) as pool:
        lists(pool, 1030)
        for after in (5, 1031, -1, True, 2.5, "1"):
            with pytest.raises(ValueError, match=r"after=.* from 6 to 1030, the last that it gave"):
                pool.state(after=after)
        assert pool.state(after=6)["row"] == 6
        assert len(json.dumps(pool.state())) < 500


def test_a_data_set_may_move(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = files(tmp_path / "old", 4, 5), files(tmp_path / "new", 4, 5)
    with SegmentPool(old, batch=2) as pool:
        next(pool)
        state = pool.state()
    SegmentPool(new, batch=2, state=state)
    with pytest.raises(ValueError, match=r"another pool; names: '.*' there, '.*' here. Expected"):
        SegmentPool([new[0], new[1].rename(tmp_path / "new" / "else.npy")], batch=2, state=state)


@pytest.mark.parametrize(
    ("how", "differs"),
    [
        ({"batch": 4}, "batch: 3 there, 4 here"),
        ({"active": 1}, "active: 2 there, 1 here"),
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"shuffle": "rows"}, "shuffle: 'segments' there, 'rows' here"),
        ({"rotate": "subset"}, "rotate: 'segment' there, 'subset' here"),
        ({"last": "short"}, "last: 'carry' there, 'short' here"),
        ({"sources": segments(4, 4, 4, 4)}, "sources: 3 there, 4 here"),
        ({"sources": segments(4, 5, 4)}, "rows: "),
    ],
)
def test_a_state_of_another_pool(how: dict[str, Any], differs: str) -> None:
    same = {"sources": segments(4, 4, 4), "active": 2, "batch": 3}
    with SegmentPool(**same) as pool:
        lists(pool, 2)
        state = pool.state()
    SegmentPool(**same, epochs=5, budget="1MB", state=state)
    with pytest.raises(ValueError, match=differs):
        SegmentPool(**{**same, **how}, state=state)


@pytest.mark.parametrize(
    "change",
    [
        {"row": 100},
        {"row": -1},
        {"row": 2.0},
        {"stage": 3},
        {"stage": True},
        {"epoch": "0"},
        {"batches": None},
        {"reading": [[0, 4, 1]]},
        {"reading": [[9, 4, 1]]},
        {"reading": None},
        {"version": 2},
        {"more": 1},
    ],
)
def test_a_state_that_is_none(change: dict[str, Any]) -> None:
    with SegmentPool(segments(4, 4, 4), 2, batch=3) as pool:
        lists(pool, 2)
        state = pool.state()
        with pytest.raises(ValueError, match=r"tx.SegmentPool got (a )?state"):
            pool.restore({**state, **change})
        for bad, kind in ((None, TypeError), ([], TypeError), ({}, ValueError)):
            with pytest.raises(kind, match=r"tx\.SegmentPool got (a )?state"):
                pool.restore(bad)
        assert pool.state() == state


def test_a_state_of_before_anything_was_known() -> None:
    with SegmentPool(range(3), 1, batch=3, load=lambda i: segments(4, 4, 4)[i]) as pool:
        state = pool.state()
        found = lists(pool)
        pool.restore(state)
        assert lists(pool) == found


def test_rows_of_a_state_are_held_against_what_is_loaded() -> None:
    with SegmentPool(range(2), 1, batch=3, load=lambda _: np.arange(4)) as pool:
        next(pool)
        state = pool.state()
    pool = SegmentPool(range(2), 1, batch=3, load=lambda _: np.arange(5), state=state)
    with pool, pytest.raises(ValueError, match="with 5 rows, which had 4"):
        next(pool)


# ------------------------------------------------------------------ what is refused


X = np.zeros((4, 2))


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ({"rotate": "row"}, ValueError, "rotate='row'. Expected 'segment' or 'subset'"),
        ({"shuffle": True}, ValueError, "shuffle=True. Expected 'segments', 'rows' or None"),
        ({"last": "pad"}, ValueError, "last='pad'"),
        ({"batch": 0}, ValueError, "batch=0. Expected an int from 1 on"),
        ({"batch": 2.0}, ValueError, "batch=2.0"),
        ({"active": True}, ValueError, "active=True"),
        ({"seed": -1}, ValueError, "seed=-1. Expected an int from 0 on"),
        ({"epochs": 0}, ValueError, "epochs=0"),
        ({"budget": "lots"}, ValueError, "budget='lots'"),
        ({"nbytes": 5}, ValueError, "nbytes= without load="),
        ({"load": len, "budget": 10**6}, ValueError, "budget= and load= without nbytes="),
        ({"load": len, "nbytes": [1, 2]}, ValueError, "nbytes= with 2 numbers for 1 sources"),
        ({"load": len, "nbytes": -1}, ValueError, r"nbytes of sources\[0\]=-1"),
        ({"sources": []}, ValueError, "sources without any"),
        ({"sources": X}, TypeError, r"sources: f64\[4,2\], which is one source"),
        ({"sources": "x.npy"}, TypeError, "sources: str, which is one source"),
        ({"sources": {"a": X}}, TypeError, "sources: dict, which is one source"),
        ({"sources": [3.0]}, TypeError, r"sources\[0\] \('3.0'\): float. Expected the path .* Fix: load="),
        ({"sources": [np.float64(3)]}, TypeError, r"sources\[0\].*: float64. Expected the path"),
        ({"sources": [jnp.zeros(3)]}, TypeError, r"sources\[0\]: f32\[3\] of JAX"),
        ({"sources": [np.ma.masked_array(X)]}, TypeError, "with a mask"),
        ({"sources": [np.array([None])]}, TypeError, "dtype object"),
        ({"sources": [None]}, ValueError, "without arrays"),
        ({"sources": [(X, X[:3])]}, ValueError, r"sources\[0\]\[1\] of shape \(3, 2\); \[0\] is of \(4, 2\)"),
        (
            {"sources": [X, X.T]},
            ValueError,
            r"sources\[1\] with rows of float64\(4,\); sources\[0\] has rows of .*\(2,\)",
        ),
        ({"sources": [X, (X,)]}, ValueError, r"sources\[1\] with rows of \[0\] float64\(2,\)"),
        ({"sources": [X[:0]]}, LengthError, "got 0 rows in 1 sources"),
        ({"batch": 5, "last": "drop"}, LengthError, "got 4 rows in 1 sources, and batch=5: no batch"),
        ({"batch": 3, "last": "error"}, LengthError, "batch=3, 1 rows more than whole batches"),
    ],
)
def test_refusals(how: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=r"tx\.SegmentPool(:| got )") as caught:
        SegmentPool(**{"sources": [X], "batch": 2, **how})
    assert caught.match(told)


def test_rows_that_are_too_many_when_all_are_known() -> None:
    with SegmentPool([0], batch=3, load=lambda _: np.arange(7), last="error", epochs=2) as pool:
        assert lists(pool, 2) == [[0, 1, 2], [3, 4, 5]]
        for _ in range(2):
            with pytest.raises(LengthError, match="batch=3, 1 rows more"):
                next(pool)


def test_not_inside_of_a_trace() -> None:
    with SegmentPool([X], batch=2) as pool:
        with pytest.raises(TransformOrderError, match="one batch would become a constant"):
            jax.make_jaxpr(lambda: next(pool))()
        assert len(list(pool)) == 2


def test_not_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    with SegmentPool([X], batch=2) as pool:
        next(pool)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 0)
            with pytest.raises(RuntimeError, match="made in another process"):
                next(pool)
            pool.close()  # which is for the other process to do
        assert len(list(pool)) == 1


def test_a_state_of_other_arrays_is_refused() -> None:
    segments = [np.arange(i, i + 4) for i in range(3)]
    with SegmentPool(segments, 2, batch=2) as pool:
        next(pool)
        state = pool.state()
    with pytest.raises(ValueError, match="names"):
        SegmentPool(segments[::-1], 2, batch=2, state=state)
    with pytest.raises(ValueError, match="sources: 3 there, 2 here"):
        SegmentPool(segments[:2], 2, batch=2, state=state)
    with pytest.raises(TypeError, match=r"json\.loads"):
        SegmentPool(segments, 2, batch=2, state=json.dumps(state))


def test_a_second_loop_over_what_has_ended_is_refused() -> None:
    with SegmentPool([np.arange(4)], batch=2) as pool:
        assert len(list(pool)) == 2
        with pytest.raises(RuntimeError, match="epochs="):
            list(pool)


def test_a_load_that_uses_its_memory_again_is_refused() -> None:
    buffer = np.zeros(4, int)

    def load(i: int) -> np.ndarray:
        buffer[:] = np.arange(4) + 10 * i
        return buffer

    with SegmentPool(range(4), 1, batch=2, load=load, shuffle=None) as pool, pytest.raises(ValueError, match="its own"):
        list(pool)


def test_a_state_of_other_numbers_of_numpy_is_refused() -> None:
    sources = [np.int64(i) for i in range(3)]
    how: Any = {"batch": 2, "load": lambda i: np.arange(4) + 10 * int(i)}
    with SegmentPool(sources, 2, **how) as pool:
        next(pool)
        state = pool.state()
    with pytest.raises(ValueError, match="names"):
        SegmentPool(sources[::-1], 2, **how, state=state)


def test_the_state_of_the_end_where_rows_were_dropped() -> None:
    with SegmentPool(segments(3), batch=2, last="drop") as pool:
        assert len(lists(pool)) == 1
        state = pool.state()
    with SegmentPool(segments(3), batch=2, last="drop", state=state) as pool:
        assert lists(pool) == []
