"""`tx.over(mesh, axis, stream=…)` in one process with two devices: each runs half of what is read. Several processes
are in `test_two_processes.py`.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rows_of import close
from rows_of import data

import erythroxy_tx as tx

W = jnp.asarray(np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32) / 3)
MESH = jax.make_mesh((2,), ("data",))


def fit(x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ W)
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-6)
    w = jnp.linalg.solve(h.T @ h + jnp.eye(16), h.T @ y)
    return w, h @ w


def loss(w: Any, x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ w)
    return (((h - h.mean(0)).sum(1) - y) ** 2).mean()


REDUCED = {
    "extremes": lambda x, y: (x.max(0), y.min(), jnp.argmax(x, 0), jnp.argmin(jnp.round(y))),
    "products": lambda x, y: (jnp.prod(1 + x * 0.01, 0), jnp.any(y > 2), jnp.all(x < 9), (x > 0).sum()),
    "positions": lambda x, y: (x * jnp.arange(x.shape[0])[:, None], y.sum() / x.shape[0]),
    "a start": lambda x, y: jnp.ones(8).at[jnp.clip((y * 2 + 4).astype(int), 0, 7)].add(x[:, 0]),
    "turns": lambda x, y: jax.lax.fori_loop(0, 3, lambda i, w: w - 0.1 * x.T @ (x @ w - y) / y.shape[0], jnp.zeros(8)),
    "arguments": lambda x, y: (x, y.sum()),
}
REFUSED = {
    "carried along": lambda x, y: jnp.cumsum(x, 0),
    "199 rows, of 200": lambda x, y: jnp.diff(x, axis=0),
    "single rows": lambda x, y: x - x[0],
    "all rows at once": lambda x, y: jnp.sort(x, 0),
}


def over(fn: Any, size: int = 16, **options: Any) -> Any:
    return tx.chunked(tx.over(MESH, "data", stream=tx.stream(**options)), size=size)(fn)


@pytest.mark.parametrize("n", [2, 5, 33, 64, 129, 200])
def test_the_same_as_in_one_piece(n: int) -> None:
    close(over(fit)(*data(n, 8)), jax.jit(fit)(*data(n, 8)))


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("n", [37, 200])
def test_every_reduction(name: str, n: int) -> None:
    close(over(REDUCED[name])(*data(n, 8)), jax.jit(REDUCED[name])(*data(n, 8)))


@pytest.mark.parametrize("says", REFUSED)
def test_what_needs_the_rows_of_others_is_refused(says: str) -> None:
    with pytest.raises(tx.RowMixingError, match=says):
        over(REFUSED[says])(*data(200, 8))


def test_gradients() -> None:
    found = tx.chunked(tx.over(MESH, "data", stream=tx.stream()), size=16, in_axes=(None, 0, 0))(loss)
    close(jax.value_and_grad(found)(W, *data(100, 8)), jax.value_and_grad(loss)(W, *data(100, 8)))


def test_from_files_to_a_file(tmp_path: Path) -> None:
    x, y = data(100, 8)
    np.save(tmp_path / "x.npy", x)
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    _, forecasts = over(fit, out=(None, tmp_path / "forecasts.npy"))(rows, y)
    close(forecasts, jax.jit(fit)(x, y)[1])


def test_another_length_compiles_nothing() -> None:
    found = tx.chunked(tx.over(MESH, "data", stream=tx.stream()), size=16, in_axes=(None, 0, 0))(loss)
    for call in (over(fit), partial(jax.value_and_grad(found), W)):
        call(*data(200, 8))
        with tx.compiles() as seen:
            call(*data(170, 8))
        assert not [event for event in seen.events if event.stage == "compile"]


def test_it_is_told() -> None:
    told = str(tx.explain(over(fit), *data(200, 8)))
    assert "rows 0 to 200 of 200 are read here, and run on 2 of 2 devices" in told


def test_few_rows_and_other_meshes() -> None:
    with pytest.raises(ValueError, match=r"got 1 rows in its processes, on 2 devices"):
        over(fit)(*data(1, 8))
    square = tx.over(jax.make_mesh((1, 2), ("a", "data")), "a", stream=tx.stream())
    with pytest.raises(ValueError, match="Expected one axis"):
        tx.chunked(square, size=4)(fit)(*data(8, 8))
    with pytest.raises(ValueError, match=r"Expected tx\.stream"):
        tx.over(MESH, "data", stream=2)
