"""`tx.stream(out=iter)`: results whose rows come chunk by chunk, while they are computed."""

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from rows_of import Rows
from rows_of import close
from rows_of import data

import erythroxy_tx as tx

SIZE = 16
W = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32))


def scaled(x: Any, y: Any) -> Any:
    """Two passes before the one that gives rows."""
    return (x - x.mean(0)) / x.std(0), y.max()


def carried(x: Any, y: Any) -> Any:
    """What runs from the last row to the first is handed out from the first on."""
    return jnp.cumsum(x, 0), lax.cumsum(y, reverse=True), lax.scan(lambda c, r: (c * 0.5 + r, c), 0.0, y)[1]


RESULTS = {
    "scaled": ((iter, None), scaled),
    "all of them": (iter, carried),
    "some of them": ((iter, None, None), carried),
    "one without rows": ((iter, None), lambda x, y: (x * 2, y.var())),
    "an argument": (iter, lambda x, y: (x, y + 1)),
    "one of two that are the same": ((iter, None), lambda x, y: 2 * (jnp.sin(x),)),
    "twice": (iter, lambda x, y: 2 * (jnp.sin(x),)),
    "another's": ((iter, None), lambda x, y: (jnp.sin(x), jnp.sin(x).sum(0) + y.sum())),
    "read again": ((iter, None), lambda x, y: ((z := jnp.cumsum(x, 0)), (z[3:] * z[:-3]).sum(0))),
    "positions": (iter, lambda x, y: (jnp.arange(x.shape[0]), x * jnp.arange(x.shape[0])[:, None])),
    "columns": (iter, lambda x, y: x.T * 2),
    "from a loop": ((None, iter), lambda x, y: ((w := lax.fori_loop(0, 3, lambda i, w: w + x.T @ x, W)), x @ w)),
}


def streamed(out: Any, fn: Any, **options: Any) -> Any:
    return tx.chunked(tx.stream(out=out, **options), size=SIZE)(fn)


def gathered(result: Any, axis: int = 0) -> Any:
    """Rows in one piece, from iterators that are read side by side."""
    leaves, structure = jax.tree.flatten(result)
    live = [i for i, leaf in enumerate(leaves) if not hasattr(leaf, "shape")]
    each = zip(*zip(*(leaves[i] for i in live), strict=True), strict=True)
    for i, blocks in zip(live, each, strict=True):
        leaves[i] = np.concatenate(blocks, axis)
    return jax.tree.unflatten(structure, leaves)


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("n", [5, 33, 100])
def test_the_same_rows(name: str, n: int) -> None:
    out, fn = RESULTS[name]
    got, want = gathered(streamed(out, fn)(*data(n)), int(name == "columns")), jax.jit(fn)(*data(n))
    close(got, want)


def test_beside_a_file(tmp_path: Path) -> None:
    blocks, rows = streamed((iter, tmp_path / "y.npy"), lambda x, y: (x - x.mean(0), y * 2))(*data(100))
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), data(100)[1] * 2)  # before any block is asked for
    np.testing.assert_array_equal(rows, data(100)[1] * 2)
    assert [len(block) for block in blocks] == [16, 16, 16, 16, 16, 16, 4]


def test_another_length_compiles_nothing() -> None:
    fn = streamed((iter, None), scaled)
    gathered(fn(*data(100)))
    with tx.compiles() as seen:
        gathered(fn(*data(90)))
    assert not [event for event in seen.events if event.stage == "compile"]


# ------------------------------------------------------------------------------------------------- what is left behind


def times_open(path: Path) -> int:
    return sum(os.path.realpath(each) == str(path.resolve()) for each in Path("/proc/self/fd").iterdir())


def readers() -> int:
    return sum(thread.name == "tx.stream" for thread in threading.enumerate())


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("end", ["close", "with", "gone"])
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files by /proc")
def test_one_who_stops_early_leaves_nothing(tmp_path: Path, taken: int, end: str) -> None:
    np.save(tmp_path / "x.npy", data(200)[0])
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    fn = streamed(iter, lambda x: (x - x.mean(0), x + 1))
    before = times_open(tmp_path / "x.npy")  # by its mapping
    first, second = fn(x)
    assert times_open(tmp_path / "x.npy") == before + 1  # for the rows that are left
    for _ in range(taken):
        next(zip(first, second, strict=True))
    if end == "with":
        with first, second:
            pass
    elif end == "close":
        first.close()
        second.close()
        with pytest.raises(ValueError, match="for rows that were closed"):
            next(first)
    del first, second
    gc.collect()
    assert (times_open(tmp_path / "x.npy"), readers()) == (before, 0)


class Counted(Rows):
    """Rows that are counted, and fail on demand."""

    blocks, fails = 0, False

    def read(self, start: int, stop: int) -> np.ndarray:
        self.blocks += 1
        if self.fails and start >= 48:
            raise OSError("the disk is gone")
        return super().read(start, stop)


def test_no_more_is_read_than_is_asked_for() -> None:
    rows = Counted(data(800)[0])
    blocks = streamed(iter, lambda x: x + 1)(rows)
    assert rows.blocks <= 1  # to see its type
    before = rows.blocks
    for i in range(3):
        next(blocks)
        assert rows.blocks - before <= i + 1 + 2 + 1  # of a depth of two


def test_an_error_is_raised_where_the_rows_are_asked_for_and_is_no_end() -> None:
    rows = Counted(data(200)[0])
    first, second = streamed(iter, lambda x: (x - x.mean(0), x + 1))(rows)
    rows.fails = True
    with pytest.raises(OSError, match="the disk is gone"):
        list(zip(first, second, strict=True))
    for each in (first, second):
        with pytest.raises(OSError, match="the disk is gone"):
            list(each)
    assert readers() == 0


def test_rows_that_change_after_the_passes_before_are_seen() -> None:
    x = data(200)[0]
    blocks = streamed(iter, lambda x: x - x.mean(0))(x)
    next(blocks)
    x[150] = 0
    with pytest.raises(tx.StaleArrayError, match="other rows 144 to 160"):
        list(blocks)


def test_one_cannot_run_far_ahead_of_another() -> None:
    first, second = streamed(iter, lambda x: (x + 1, x + 2))(data(200)[0])
    next(first), next(first)
    with pytest.raises(ValueError, match=r"2 chunks of another that nobody took.*Fix: zip, or close\(\) one of them"):
        next(first)
    rows = [next(second), next(second)]  # nothing is lost
    rows += [b for _, b in zip(first, second, strict=True)]
    np.testing.assert_array_equal(np.concatenate(rows), data(200)[0] + 2)
    first, second = streamed(iter, lambda x: (x + 1, x + 2))(data(200)[0])
    second.close()
    np.testing.assert_array_equal(np.concatenate(list(first)), data(200)[0] + 1)


def test_one_that_is_let_go_is_not_waited_for() -> None:
    fn = streamed(iter, lambda x: (x + 1, x + 2))
    np.testing.assert_array_equal(np.concatenate(list(fn(data(200)[0])[1])), data(200)[0] + 2)
    with pytest.raises(TypeError, match=r"Fix: np\.concatenate\(list\(blocks\)\)"):
        np.asarray(fn(data(200)[0])[0])


def test_threads_take_every_block_once() -> None:
    blocks = streamed(iter, lambda x: x + 1)(data(1600)[0])
    with ThreadPoolExecutor(4) as pool:
        found = [block for each in pool.map(lambda _: list(blocks), range(4)) for block in each]
    got, want = np.concatenate(found), data(1600)[0] + 1
    np.testing.assert_array_equal(got[np.lexsort(got.T)], want[np.lexsort(want.T)])


def test_a_process_ends_with_an_iterator_that_is_open() -> None:
    script = """
import numpy as np, erythroxy_tx as tx
blocks = tx.chunked(tx.stream(out=iter), size=4)(lambda x: x - x.mean(0))(np.ones((103, 3), "f4"))
next(blocks)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_blocks_belong_to_the_caller() -> None:
    x = data(100)[0]
    first, second = streamed(iter, lambda x: (x, x * 1))(x)
    for a, b in zip(first, second, strict=True):
        a[:], b[:] = 0, 0
    np.testing.assert_array_equal(x, data(100)[0])


# ---------------------------------------------------------------------------------------------------- what is refused


def test_what_is_refused() -> None:
    x = data(100)[0]
    with pytest.raises(ValueError, match="out=<built-in function iter> for result 1, which has no rows"):
        streamed(iter, lambda x: (x, x.sum()))(x)
    with pytest.raises(tx.RowMixingError, match="whose 99 rows cannot be handed out beside the 100 of another"):
        streamed(iter, lambda x: (jnp.diff(x, axis=0), x + 1))(x)
    w = jnp.ones(3)
    fn = tx.chunked(tx.stream(out=(None, iter)), size=SIZE, in_axes=(None, 0))(lambda w, x: ((x @ w).sum(), x + 1))
    with pytest.raises(tx.TransformOrderError, match="or differentiated, with out=iter for result 1"):
        jax.grad(lambda w: fn(w, x)[0])(w)
    with pytest.raises(ValueError, match=r"Expected \.npy paths, iter, None"):
        tx.stream(out=list)


@pytest.mark.parametrize("fn", [lambda x: x - x.max(0), lambda x: jnp.cumsum(x, 0), lambda x: x.T - x[0][:, None]])
def test_one_row(fn: Any, tmp_path: Path) -> None:
    """Where the axis of rows is not told from another of size one."""
    x = data(1)[0]
    (block,) = streamed(iter, fn)(x)
    close(block, jax.jit(fn)(x))
    close(streamed(tmp_path / "rows.npy", fn)(x), jax.jit(fn)(x))
    close(np.load(tmp_path / "rows.npy"), jax.jit(fn)(x))


def test_it_is_told() -> None:
    told = str(tx.explain(streamed((iter, None), scaled), *data(100)))
    assert "hands out the rows of f32[n,3]" in told


def test_on_the_devices_of_a_mesh() -> None:
    mesh = jax.make_mesh((2,), ("data",))
    fn = tx.chunked(tx.over(mesh, "data", stream=tx.stream(out=(iter, None))), size=SIZE)(scaled)
    got, want = gathered(fn(*data(200))), jax.jit(scaled)(*data(200))
    close(got, want)
