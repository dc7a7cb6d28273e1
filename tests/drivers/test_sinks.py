"""Where rows of results go: along any axis, before their buffers are read into again, and no part of a file is left."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.drivers import loop
from erythroxy_tx.drivers.reader import Reader
from erythroxy_tx.drivers.sink import FileSink
from erythroxy_tx.drivers.sink import Sink


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64"])
def test_rows_along_any_axis(axis: int, dtype: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 6, 7)).astype(dtype)
    sink = FileSink(tmp_path / "x.npy", rows.shape, rows.dtype)
    for first in (0, 4, 2):  # the last chunk overlaps, and chunks may come from the last to the first
        sink.write(first, np.take(rows, range(first, min(first + 4, rows.shape[axis])), axis), axis)
    found = sink.finish()
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, rows)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_rows_in_columns(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    found = tx.chunked(tx.stream(out=tmp_path / "x.npy"), size=64)(lambda x: jnp.tanh(x).T)(x)
    np.testing.assert_allclose(found, np.tanh(x).T, rtol=1e-5, atol=1e-6)


class Full:
    """A file on a disk on which no more than some bytes fit."""

    def __init__(self, file: Any, left: int):
        self.file, self.left = file, left

    def write(self, rows: Any) -> int:
        if not self.left:
            raise OSError(28, "No space left on device")
        count: int = self.file.write(rows[: self.left])
        self.left -= count
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FileSink.__init__

    def made(self: Any, *args: Any) -> None:
        original(self, *args)
        self._file = Full(self._file, 5000)

    monkeypatch.setattr(FileSink, "__init__", made)
    with pytest.raises(OSError, match="No space left"):
        tx.chunked(tx.stream(out=tmp_path / "x.npy"), size=64)(lambda x: x * 2)(np.ones((300, 8), np.float32))
    assert list(tmp_path.iterdir()) == []


def test_rows_are_written_before_their_buffers_are_read_into_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    write, release = Sink.write, Reader.release
    monkeypatch.setattr(Sink, "write", lambda self, *args: (seen.append("written"), write(self, *args))[1])
    monkeypatch.setattr(Reader, "release", lambda self, filled: (seen.append("released"), release(self, filled))[1])
    tx.chunked(tx.stream(), size=64)(lambda x: x * 2)(np.ones((300, 8), np.float32))
    assert seen == ["written", "released"] * 5


def test_what_is_told_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    original = loop.Loop._told
    monkeypatch.setattr(loop.Loop, "_told", lambda *args: told.append(original(*args)) or told[-1])
    tx.chunked(tx.stream(), size=64)(lambda x: x - x.mean(0))(np.ones((300, 8), np.float32))
    assert len(told) == 10
    assert "pass 1 of 2, 64% of 300 rows; waits for " in told[2]
    assert "pass 2 of 2, 100% of 300 rows" in told[-1]
