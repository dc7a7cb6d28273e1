"""A source that is not the same when it is read again is an error, whatever it is and whoever changed it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows_of import Rows

import erythroxy_tx as tx
from erythroxy_tx.drivers import loop
from erythroxy_tx.drivers.source import checksum

ROWS = 300


@pytest.fixture(scope="module")
def streamed() -> Any:
    return tx.chunked(tx.stream(), size=64)(lambda x: x - x.mean(0))


def data() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)


def after_each_pass(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    original = loop.Loop._pass

    def then_changed(self: Any, *args: Any) -> Any:
        found = original(self, *args)
        change()
        return found

    monkeypatch.setattr(loop.Loop, "_pass", then_changed)


def in_memory(folder: Path) -> tuple[Any, np.ndarray]:
    x = data()
    return x, x


def a_source(folder: Path) -> tuple[Any, np.ndarray]:
    x = data()
    return Rows(x), x


def file_of(folder: Path) -> tuple[Any, np.ndarray]:
    np.save(folder / "x.npy", data())
    return np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "x.npy", mmap_mode="r+")


def half_of_a_file(folder: Path) -> tuple[Any, np.ndarray]:
    mapped, other = file_of(folder)
    return mapped[::2], other


CHANGES: dict[str, Callable[[np.ndarray], None]] = {
    "one value": lambda x: x.__setitem__((200, 3), 0.5),
    "one bit": lambda x: x.__setitem__((200, 3), np.nextafter(x[200, 3], np.float32(9))),
    "signs": lambda x: np.negative(x, out=x),
    "signs of a column": lambda x: np.negative(x[:, 1], out=x[:, 1]),
    "the order of rows": lambda x: x.__setitem__(slice(None), x[::-1].copy()),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [in_memory, a_source, file_of, half_of_a_file])
def test_a_change_between_two_passes(
    streamed: Any, kind: Any, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, other = kind(tmp_path)
    path = tmp_path / "x.npy"
    when = path.stat() if path.exists() else None

    def changed() -> None:
        CHANGES[change](other)
        if when is not None:  # writing through a mapping need not show in the time of change
            os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))

    after_each_pass(monkeypatch, changed)
    with pytest.raises(
        tx.StaleArrayError, match=r"other rows \d+ to \d+ than before from x: f32.*Fix: stop its writer"
    ):
        streamed(x)


def test_a_source_that_gives_other_rows_each_time(streamed: Any) -> None:
    class Shuffled(Rows):
        def read(self, start: int, stop: int) -> np.ndarray:
            self.array = np.roll(self.array, 1, 0)
            return super().read(start, stop)

    with pytest.raises(tx.StaleArrayError, match="other rows 0 to 64"):
        streamed(Shuffled(data()))


def test_a_change_before_the_gradient_is_taken() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.mean((x @ w - x[:, 0]) ** 2)

    x = data()
    _, pull = jax.vjp(lambda w: tx.chunked(tx.stream(), size=64, in_axes=(None, 0))(loss)(w, x), jnp.ones(8))
    x[100] = 0
    with pytest.raises(tx.StaleArrayError, match="other rows 64 to 128"):
        pull(jnp.float32(1))


def test_a_change_between_two_calls_is_no_error(streamed: Any) -> None:
    x = data()
    streamed(x)
    x[100] = 0
    np.testing.assert_allclose(streamed(x), x - x.mean(0), rtol=1e-4, atol=1e-6)


@given(st.data())
def test_a_checksum_tells_rows_from_others(drawn: Any) -> None:
    dtype = drawn.draw(st.sampled_from(["f4", "f8", "i2", "u1", "c8"]))
    shape = drawn.draw(st.sampled_from([(1, 1), (7, 3), (64, 8), (1000, 1), (8192, 2), (600, 7)]))
    rows = np.random.default_rng(drawn.draw(st.integers(0, 9))).integers(1, 99, shape).astype(dtype)
    other = rows.copy()
    place = tuple(drawn.draw(st.integers(0, size - 1)) for size in shape)
    how = drawn.draw(st.sampled_from(["a value", "all signs", "a row", "a column"]))
    if how == "a value":
        other[place] += 1
    else:
        part = {"all signs": slice(None), "a row": place[0], "a column": (slice(None), place[1])}[how]
        other[part] = -other[part]
    assert checksum(other) != checksum(rows)
    assert checksum(rows.copy()) == checksum(rows)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="resident pages of a mapping are told on Linux")
def test_pages_of_a_file_that_was_read_do_not_stay(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2**17, 16), np.float32))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    for rows in (x, x[::2]):
        tx.chunked(tx.stream(), size=2**12)(lambda x: x.sum(0))(rows)
        assert resident(tmp_path / "x.npy") < x.nbytes / 4


def resident(path: Path) -> int:
    """Bytes of a mapped file that count as the process's."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return sum(
        int(next(line for line in lines if line.startswith("Rss:")).split()[1]) * 1024
        for line in lines
        if line.endswith(str(path))
    )
