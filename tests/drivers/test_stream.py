"""`tx.stream`: the same as one-shot from arrays, files and other sources, whatever the length, or a clear error."""

import functools
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rows_of import Rows
from rows_of import close
from rows_of import data

import erythroxy_tx as tx
from erythroxy_tx.drivers import loop
from erythroxy_tx.drivers.reader import Reader

RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(8, 16)).astype(np.float32) / 3)


def fit(x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ W)
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-6)
    w = jnp.linalg.solve(h.T @ h + jnp.eye(16), h.T @ y)
    return w, h @ w


@pytest.fixture(scope="module")
def streamed() -> Any:
    return tx.chunked(tx.stream(), size=64)(fit)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 127, 128, 640, 1000])
def test_the_same_for_any_length(streamed: Any, n: int) -> None:
    x, y = data(n, 8)
    close(streamed(x, y), jax.jit(fit)(x, y))


def test_another_length_compiles_nothing() -> None:
    streamed = tx.chunked(tx.stream(), size=64)(functools.partial(fit))
    streamed(*data(200, 8))
    with tx.compiles() as seen:
        for n in (65, 128, 777):
            streamed(*data(n, 8))
    assert not [event for event in seen.events if event.stage == "compile"]


def test_rows_that_were_added_up_stay_on_the_device_and_rows_come_as_numpy(streamed: Any) -> None:
    w, rows = streamed(*data(100, 8))
    assert isinstance(w, jax.Array)
    assert type(rows) is np.ndarray


def test_a_gradient_is_streamed_too() -> None:
    def loss(params: Any, x: Any, y: Any) -> Any:
        h = jnp.tanh(x @ params["w"])
        h = h - h.mean(0)
        return jnp.mean((h @ params["v"] - y) ** 2)

    params = {"w": W, "v": jnp.ones(16) / 16}
    streamed = tx.chunked(tx.stream(), size=64, in_axes=(None, 0, 0))(loss)
    for n in (200, 333):
        close(jax.value_and_grad(streamed)(params, *data(n, 8)), jax.value_and_grad(loss)(params, *data(n, 8)))
    with tx.no_recompile():
        jax.value_and_grad(streamed)(params, *data(200, 8))


@pytest.mark.parametrize("n", [7, 64, 200])
def test_carries_go_both_ways(n: int) -> None:
    def f(x: Any, y: Any) -> Any:
        c, ys = jax.lax.scan(lambda c, r: (0.9 * c + r.sum(), c), 0.0, x)
        back = jax.lax.cumsum(y, reverse=True)
        z = jnp.cumsum(x, 0)
        return c, ys - c, back - back.mean(), (z - z.mean(0)).max(0), x.max(0), jnp.argmin(y), jax.nn.softmax(y)

    close(tx.chunked(tx.stream(), size=16)(f)(*data(n, 8)), jax.jit(f)(*data(n, 8)))


def test_a_gradient_of_rows_has_rows() -> None:
    def loss(x: Any, y: Any) -> Any:
        return jnp.mean((x - x.mean(0)) ** 2) + (y**3).sum()

    x, y = map(jnp.asarray, data(150, 8))
    streamed = tx.chunked(tx.stream(), size=64)(loss)
    close(jax.grad(streamed, (0, 1))(x, y), jax.grad(loss, (0, 1))(x, y))


def test_a_buffer_is_filled_again_only_when_its_chunk_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    running: dict[int, Any] = {}
    original = loop.Loop._landed

    def landed(self: Any, index: int, reader: Any, filled: Any, stored: Any, token: Any) -> Any:
        running[id(filled)] = token
        return original(self, index, reader, filled, stored, token)

    def released(self: Any, filled: Any) -> None:
        assert running.pop(id(filled)).is_ready()
        release(self, filled)

    release = Reader.release
    monkeypatch.setattr(loop.Loop, "_landed", landed)
    monkeypatch.setattr(Reader, "release", released)
    tx.chunked(tx.stream(), size=64)(functools.partial(fit))(*data(1000, 8))
    assert not running


# ---------------------------------------------------------------------------------------------- sources


def npy(folder: Path, array: np.ndarray) -> np.memmap:
    np.save(folder / "x.npy", array)
    return np.load(folder / "x.npy", mmap_mode="r")


def raw(folder: Path, array: np.ndarray) -> np.memmap:
    array.tofile(folder / "x.raw")
    return np.memmap(folder / "x.raw", array.dtype, "r", shape=array.shape)


SOURCES = {
    "an array": lambda folder, x: x,
    "a file": npy,
    "a raw file": raw,
    "a slice of a file": lambda folder, x: npy(folder, np.concatenate([x[:13], x, x[:5]]))[13:-5],
    "a slice of a slice": lambda folder, x: npy(folder, np.concatenate([x[:13], x, x[:5]]))[3:][10:-5],
    "every second row of a file": lambda folder, x: npy(folder, np.repeat(x, 2, axis=0))[::2],
    "rows from the last to the first": lambda folder, x: npy(folder, x[::-1].copy())[::-1],
    "some columns of a file": lambda folder, x: npy(folder, np.concatenate([x, x], 1))[:, :8],
    "Fortran order": lambda folder, x: npy(folder, np.asfortranarray(x)),
    "big-endian": lambda folder, x: npy(folder, x.astype(">f4")),
    "a source": lambda folder, x: Rows(x),
    "a device array": lambda folder, x: jnp.asarray(x),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_sources(streamed: Any, kind: str, tmp_path: Path) -> None:
    x, y = data(300, 8)
    close(streamed(SOURCES[kind](tmp_path, x), y), jax.jit(fit)(x, y))


def test_64_bits_are_refused_by_name_or_narrowed_when_asked() -> None:
    x, y = data(300, 8)
    with pytest.raises(TypeError, match=r"x of float64, which JAX would make float32.*narrow=True"):
        tx.chunked(tx.stream(), size=64)(fit)(x.astype(np.float64), y)
    close(tx.chunked(tx.stream(narrow=True), size=64)(fit)(x.astype(np.float64), y), jax.jit(fit)(x, y))


def test_integers_that_32_bits_do_not_hold_are_not_narrowed() -> None:
    x = np.arange(300)
    narrowed = tx.chunked(tx.stream(narrow=True), size=64)(lambda x: x.sum())
    assert narrowed(x) == x.sum()
    with pytest.raises(OverflowError, match=r"x: i32.300. in rows 236 to 300"):
        narrowed(np.where(x == 299, 2**40, x))


def test_changes_that_a_file_does_not_have_are_read(streamed: Any, tmp_path: Path) -> None:
    x, y = data(300, 8)
    np.save(tmp_path / "x.npy", x)
    private = np.load(tmp_path / "x.npy", mmap_mode="c")
    private[7] = 3.0
    close(streamed(private, y), jax.jit(fit)(np.asarray(private), y))


def test_a_file_that_another_has_replaced(streamed: Any, tmp_path: Path) -> None:
    x, y = data(300, 8)
    file = npy(tmp_path, x)
    (tmp_path / "x.npy").unlink()
    np.save(tmp_path / "x.npy", x + 1)
    with pytest.raises(tx.StaleArrayError, match="another file of the name"):
        streamed(file, y)


@pytest.mark.parametrize("kind", ["float64 later", "fewer rows", "more rows"])
def test_a_source_that_gives_something_else_later(streamed: Any, kind: str) -> None:
    x, y = data(300, 8)

    class Changing(Rows):
        def read(self, start: int, stop: int) -> np.ndarray:
            found = super().read(start, stop)
            if start < 128:
                return found
            return {"float64 later": found.astype(float), "fewer rows": found[:-1], "more rows": found.repeat(2, 0)}[
                kind
            ]

    with pytest.raises(tx.StaleArrayError, match=r"for rows 128 to 192 from x: f32.300,8."):
        streamed(Changing(x), y)


@pytest.mark.parametrize("n", [0, 1])
def test_no_row_and_one(n: int) -> None:
    x = np.ones((n, 3), np.float32)
    total, rows = tx.chunked(tx.stream(), size=64)(lambda x: (x.sum(0), x * 2))(x)
    assert total.tolist() == [n] * 3
    assert rows.shape == (n, 3)


# ---------------------------------------------------------------------------------------------- results


def test_rows_go_to_a_file(tmp_path: Path) -> None:
    x, y = data(300, 8)
    streamed = tx.chunked(tx.stream(out=(None, tmp_path / "rows.npy")), size=64)(fit)
    _, rows = streamed(x, y)
    assert isinstance(rows, np.memmap)
    assert [p.name for p in tmp_path.iterdir()] == ["rows.npy"]
    close(np.load(tmp_path / "rows.npy"), jax.jit(fit)(x, y)[1])


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("rows.txt", "Expected .npy paths, iter, None"),
        (3, "Expected .npy paths, iter, None"),
        ("rows.npy", "result 0, which has no rows. Expected None"),
        ((None, None, "x.npy"), "out"),
    ],
)
def test_results_without_a_place(out: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=says):
        tx.chunked(tx.stream(out=out), size=64)(fit)(*data(100, 8))
    assert list(tmp_path.iterdir()) == []


def test_one_file_is_not_for_two_results(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="for two results"):
        tx.chunked(tx.stream(out=tmp_path / "x.npy"), size=64)(lambda x: (x, x * 2))(data(100, 8)[0])


# ---------------------------------------------------------------------------------------------- faults


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tx.stream")]


class Broken(Rows):
    def read(self, start: int, stop: int) -> np.ndarray:
        if start >= 128:
            raise OSError("the disk is gone")
        return super().read(start, stop)


def test_what_a_source_raises_reaches_the_caller(tmp_path: Path) -> None:
    x, y = data(300, 8)
    streamed = tx.chunked(tx.stream(out=(None, tmp_path / "rows.npy")), size=64)(fit)
    with pytest.raises(OSError, match="the disk is gone"):
        streamed(Broken(x), y)
    assert not threads()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_cut_short_is_no_end(streamed: Any, tmp_path: Path) -> None:
    x, y = data(300, 8)
    file = npy(tmp_path, x)
    with (tmp_path / "x.npy").open("r+b") as opened:
        opened.truncate(128 + 200 * 32)
    with pytest.raises(tx.StaleArrayError, match="the end of the file"):
        streamed(file, y)
    assert not threads()


def test_a_file_that_changes_between_two_passes(streamed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(300, 8)
    file = npy(tmp_path, x)
    original = loop.Loop._pass

    def then_changed(self: Any, *args: Any) -> Any:
        found = original(self, *args)
        with (tmp_path / "x.npy").open("r+b") as opened:
            opened.seek(500)
            opened.write(b"changed")
        return found

    monkeypatch.setattr(loop.Loop, "_pass", then_changed)
    with pytest.raises(tx.StaleArrayError, match=r"x: f32.300,8"):
        streamed(file, y)


def test_an_interrupt_leaves_no_thread_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(300, 8)
    monkeypatch.setattr(loop.Loop, "_landed", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tx.chunked(tx.stream(out=(None, tmp_path / "rows.npy")), size=64)(fit)(x, y)
    assert not threads()
    assert list(tmp_path.iterdir()) == []


def test_it_is_called_from_python(streamed: Any) -> None:
    with pytest.raises(tx.TransformOrderError, match=r"inside of jax\.jit"):
        jax.jit(streamed)(*data(100, 8))


def test_what_is_closed_over_is_not_differentiated_past() -> None:
    x, _ = data(200, 8)

    def loss(w: Any) -> Any:
        return tx.chunked(tx.stream(), size=64)(lambda x: (x @ w).sum())(x)

    with pytest.raises(tx.TransformOrderError, match=r"closes over f32\[8,16\].*Fix: pass it"):
        jax.grad(loss)(W)


def test_what_is_kept_goes_with_the_function() -> None:
    def f(x: Any) -> Any:
        return x - x.mean(0)

    streamed = tx.chunked(tx.stream(), size=64)(f)
    for n in range(65, 90):
        streamed(data(n, 8)[0])
    gone = weakref.ref(f)
    del f, streamed
    gc.collect()
    assert gone() is None


def test_what_needs_all_rows_at_once_is_refused() -> None:
    with pytest.raises(tx.RowMixingError, match=r"tx.chunked\(lax.map"):
        tx.chunked(tx.stream(), size=64)(lambda x: jnp.sort(x, 0))(data(200, 8)[0])


def test_a_budget_takes_one_size_for_many_lengths() -> None:
    streamed = tx.chunked(tx.stream(), budget="256KiB")(fit)
    sizes = {streamed.chunks(*data(n, 8)).size for n in (5000, 9000)}
    assert len(sizes) == 1
    close(streamed(*data(5000, 8)), jax.jit(fit)(*data(5000, 8)))


# ------------------------------------------------------------------------------------------------------------- callers


class Model:
    """Its method reads what belongs to it."""

    def __init__(self) -> None:
        self.scale, self.w = 2.0, jnp.ones(8)

    def loss(self, x: Any) -> Any:
        return ((x @ self.w) * self.scale).mean()


def drivers() -> dict[str, Any]:
    mesh = jax.make_mesh((2,), ("data",))
    return {
        "a stream": tx.stream(),
        "a mesh": tx.over(mesh, "data"),
        "both": tx.over(mesh, "data", stream=tx.stream()),
    }


@pytest.mark.parametrize("driver", drivers().values(), ids=drivers())
def test_a_method_sees_what_its_object_has_now(driver: Any) -> None:
    class Decorated(Model):
        loss = tx.chunked(driver, size=64)(Model.loss)

    x, model = data(200, 8)[0], Decorated()
    for change in ({}, {"scale": 5.0}, {"w": jnp.arange(8.0)}):
        vars(model).update(change)
        close(model.loss(x), Model.loss(model, x))

    def of_weights(w: Any, loss: Any) -> Any:
        model.w = w
        return loss(model, x)

    w = jnp.arange(8.0)
    found, want = (jax.grad(of_weights)(w, loss) for loss in (lambda m, x: m.loss(x), Model.loss))
    close(found, want)


@pytest.mark.parametrize("driver", drivers().values(), ids=drivers())
def test_inside_of_the_context_of_a_mesh(driver: Any) -> None:
    x, y = data(64, 8)
    with jax.set_mesh(jax.make_mesh((2,), ("data",))):
        w, _ = tx.chunked(driver, size=16)(fit)(x, y)
    close(w, jax.jit(fit)(x, y)[0], rtol=1e-3)


@pytest.mark.parametrize(
    "fn",
    [
        lambda y: (v := jnp.sin(y), v - v[0]),
        lambda y: (v := jnp.sin(y), v[::-1]),
        lambda y: (v := jnp.sin(y), jnp.diff(v)),
        lambda y: (v := jnp.sin(y), v[jnp.argmax(y)]),
    ],
)
def test_a_result_of_which_single_rows_are_read(fn: Any) -> None:
    y = data(23)[1]
    close(tx.chunked(tx.stream(), size=5)(fn)(y), jax.jit(fn)(y))


def test_what_is_no_rows(tmp_path: Path, streamed: Any) -> None:
    x, y = data(100, 8)
    with pytest.raises(TypeError, match="got x, a masked array"):
        streamed(np.ma.masked_less(x, 0), y)
    with pytest.raises(TypeError, match=r"got x='x\.npy'\. Expected rows\. Fix: np\.load\('x\.npy', mmap_mode='r'\)"):
        streamed("x.npy", y)
    file = npy(tmp_path, x)
    with pytest.raises(ValueError, match=r"of which it reads x: f32\[100,8\]"):
        tx.chunked(tx.stream(out=tmp_path / "x.npy"), size=64)(lambda x: x + 1)(file)
    with pytest.raises(FileNotFoundError, match="Expected a folder that is there"):
        tx.chunked(tx.stream(out=tmp_path / "none" / "x.npy"), size=64)(lambda x: x + 1)(file)
