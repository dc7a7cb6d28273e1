"""What one of two processes does in `test_two_processes.py`: the checks one after the other, in both of them.
`python in_two_processes.py PROCESS PORT` writes what failed, as JSON.
"""

import json
import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

import erythroxy_tx as tx
from erythroxy_tx import _compat
from erythroxy_tx.drivers import agreement

ME = int(sys.argv[1])
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 2, ME)
MESH = jax.make_mesh((4,), ("data",))
LENGTHS = 16, 13  # on four devices, with place for four rows on each
W = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))
agreement._WAIT = 60.0


def over(fn: Any, size: int = 2, **options: Any) -> Any:
    return tx.chunked(tx.over(MESH, "data"), size=size, **options)(fn)


def data(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, 4)).astype(np.float32), rng.normal(size=n).astype(np.float32)


def of_all(rows: np.ndarray) -> Any:
    """All rows on the devices of both processes, from those of this one."""
    n, half = len(rows), -(-len(rows) // 4) * 2
    own = rows[ME * half : (ME + 1) * half]
    own = np.pad(own, [(0, half - len(own)), *[(0, 0)] * (rows.ndim - 1)], constant_values=np.nan)
    found = jax.make_array_from_process_local_data(NamedSharding(MESH, PartitionSpec("data")), own)
    return found if len(found) == n else tx.Padded(found, n)


def close(got: Any, want: Any) -> None:
    """Compare what this process has of each result."""
    got = jax.tree.leaves(got, is_leaf=lambda x: isinstance(x, tx.Padded))
    for a, b in zip(got, map(np.asarray, jax.tree.leaves(want)), strict=True):
        array, length = (a.data, int(a.length)) if isinstance(a, tx.Padded) else (a, len(b) if b.ndim else None)
        assert (array.shape[1:], length) == (b.shape[1:], len(b) if b.ndim else None)
        assert len(array.addressable_shards) == 2
        for shard in array.addressable_shards:
            part = b[shard.index]
            there = np.asarray(shard.data)[tuple(map(slice, part.shape))]
            np.testing.assert_allclose(there, part, rtol=2e-4, atol=2e-5 * float(np.abs(b).max()))


def refused(kind: type[Exception], says: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=re.escape(says)):
        call()


# ---------------------------------------------------------------------------------------------- what they compute


def fit(x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ W)
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-6)
    w = jnp.linalg.solve(h.T @ h + jnp.eye(3), h.T @ y)
    return w, h @ w


def carried(x: Any, y: Any) -> Any:
    smooth = lax.scan(lambda c, row: (0.9 * c + row, c), jnp.zeros(()), y)
    return jnp.cumsum(x, 0), smooth


def loss(w: Any, x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ w)
    return (((h - h.mean(0)).sum(1) - y) ** 2).mean()


meshed_fit = over(fit)


def values(fn: Any, meshed: Any, *lengths: int) -> None:
    for n in lengths:
        x, y = data(n)
        want = jax.jit(fn)(x, y)
        close(meshed(of_all(x), of_all(y)), want)
        close(meshed(x, y), want)  # each gives the rows of its own devices
        close(meshed(jnp.asarray(x), jnp.asarray(y)), want)
        with tx.compiles() as seen:
            meshed(x, y)
        assert not [event for event in seen.events if event.stage == "compile"]


def gradients() -> None:
    meshed = over(loss, in_axes=(None, 0, 0))
    x, y = data(13)
    wanted = (0, 2)  # of what has no rows, and of rows that are the same in both
    close(jax.value_and_grad(meshed, wanted)(W, of_all(x), y), jax.value_and_grad(loss, wanted)(W, x, y))


def streams() -> None:
    """Each process has rows of its own, not as many as the other; a source that fails in one is refused in both."""
    stream = tx.over(MESH, "data", stream=tx.stream())
    streamed = tx.chunked(stream, size=4)(fit)
    for n, cut in ((40, 23), (31, 9)):
        x, y = data(n)
        own = slice(cut, None) if ME else slice(None, cut)
        w, rows = jax.jit(fit)(x, y)
        got = streamed(x[own], y[own])
        for a, b in zip(got, (w, rows[own]), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5 * float(np.abs(b).max()))
        if n == 40:
            want, found = jax.value_and_grad(loss)(W, x, y), tx.chunked(stream, size=4, in_axes=(None, 0, 0))(loss)
            for a, b in zip(jax.value_and_grad(found)(W, x[own], y[own]), want, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    says = "the disk is gone" if ME else "in process 1, which cannot come to this call: tx.chunked(fit): OSError"
    refused(OSError if ME else ValueError, says, lambda: streamed(Failing(x), y))
    streamed(x[own], y[own])
    refused(tx.TransformOrderError, "or differentiated by its rows", lambda: jax.grad(found, 2)(W, x[own], y[own]))
    centred = tx.chunked(tx.over(MESH, "data", stream=tx.stream(out=(iter, None))), size=4)(rows_and_most)
    blocks, most = centred(x[own])
    np.testing.assert_array_equal(np.concatenate(list(blocks)), (x - x[:, :1])[own])
    assert most == x.max()
    handed = tx.over(MESH, "data", stream=tx.stream(out=(iter if ME else None, None)))
    refused(ValueError, "another way over the rows", lambda: tx.chunked(handed, size=4)(rows_and_most)(x[own]))
    if ME:
        refused(ValueError, "met another call in process 0", lambda: streamed(x[own], y[own]))
    else:
        refused(ValueError, "met another call in process 1", lambda: meshed_total(X))


def rows_and_most(x: Any) -> Any:
    return x - x[:, :1], x.max()


class Failing:
    """Rows that one of the processes cannot read."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, start: int, stop: int) -> np.ndarray:
        if ME and start:
            raise OSError("the disk is gone")
        return self.rows[start:stop]


def what_is_elsewhere() -> None:
    _, rows = meshed_fit(*data(13))
    assert isinstance(rows, tx.Padded)
    assert rows.mask.sum() == 13
    refused(ValueError, "tx.Padded.trim got data: f32[16], of which other processes have a part", rows.trim)
    refused(ValueError, "of which other processes have a part", lambda: np.asarray(rows))
    w, rows = meshed_fit(*data(16))
    assert np.asarray(w).shape == (3,)
    refused(RuntimeError, "non-addressable", lambda: np.asarray(rows))


# ---------------------------------------------------------------------------------------------- where they differ

SCALES = np.float32([1, 2])
X = np.arange(32, dtype=np.float32)


def total(x: Any) -> Any:
    return x.sum()


def scaled(x: Any, k: Any) -> Any:
    return (x * k).sum()


def by_a_constant(x: Any) -> Any:
    return (x[:, None] * np.full(3, SCALES[ME])).sum()


def of_one_alone(x: Any) -> Any:
    if ME:
        raise KeyError("only in one")
    return x.sum()


meshed_total, meshed_scaled = over(total), over(scaled, in_axes=(0, None))
DIFFERING: dict[str, Callable[[], Any]] = {
    "another function": lambda: over(jnp.max if ME else jnp.sum)(X),
    "another number of rows in process": lambda: meshed_total(X[: 30 + ME]),
    "another number of rows": lambda: over(total, size=3 + ME)(X),
    "another constant": lambda: over(by_a_constant)(X),
    "another argument without rows": lambda: meshed_scaled(X, SCALES[ME]),
    "another argument without": lambda: meshed_scaled(X, jnp.asarray(SCALES[ME])),
    "another number of traced arguments": lambda: (jax.grad(meshed_scaled, 1) if ME else meshed_scaled)(X, SCALES[0]),
    "another": lambda: (jax.grad(meshed_total) if ME else meshed_total)(X),
}
FAILING: list[tuple[str, type[Exception], str, Callable[[], Any]]] = [
    ("tx.chunked(of_one_alone)", KeyError, "only in one", lambda: over(of_one_alone)(X)),
    ("tx.chunked(scaled)", ValueError, "rows of different lengths", lambda: over(scaled)(X, X[: 32 - ME])),
]


def they_go_on() -> None:
    assert float(meshed_total(X)) == 496


def differing() -> None:
    for says, call in DIFFERING.items():
        refused(ValueError, says, call)
        they_go_on()


def failing() -> None:
    for label, kind, says, call in FAILING:
        if ME:
            refused(kind, says, call)
        else:
            refused(ValueError, f"in process 1, which cannot come to this call: {label}: {kind.__name__}", call)
        they_go_on()


def one_that_comes_late() -> None:
    store = _compat.store_of_processes()
    if ME:
        for turn in range(2):
            store.blocking_key_value_get(f"test/{turn}", 60_000)
        time.sleep(0.5)  # by then the other one waits for the next call
        for _ in range(2):
            refused(tx.StallError, "in process 1 did not meet process 0", lambda: meshed_total(X))
    else:
        agreement._WAIT = 0.1
        for turn in range(2):
            refused(tx.StallError, "in process 0 did not meet process 1", lambda: meshed_total(X))
            store.key_value_set(f"test/{turn}", "")
        agreement._WAIT = 60.0
    they_go_on()


def nothing_is_left() -> None:
    for _ in range(3):
        they_go_on()
    assert len(_compat.store_of_processes().key_value_dir_get("erythroxy_tx")) == 4  # two words of each


CHECKS: dict[str, Callable[[], None]] = {
    "fit": lambda: values(fit, meshed_fit, *LENGTHS),
    "carried": lambda: values(carried, over(carried), LENGTHS[1]),
    "gradients": gradients,
    "streams": streams,
    "what is elsewhere": what_is_elsewhere,
    "differing": differing,
    "failing": failing,
    "one that comes late": one_that_comes_late,
    "nothing is left": nothing_is_left,
}

if __name__ == "__main__":
    failed = {}
    for name, check in CHECKS.items():
        try:
            check()
        except Exception:  # noqa: BLE001 - the test shows it
            failed[name] = traceback.format_exc()
    sys.stdout.write(json.dumps(failed) + "\n")
