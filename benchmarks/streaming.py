"""A fit on rows that are read from a file while it runs, beside the same without reading, on a slow disk, in one piece,
and by dask.

    python benchmarks/streaming.py
    python benchmarks/streaming.py --rows 2000000

Rows of 64 columns, 256 features, float32: standardise, normal equations, solve, and a forecast for each row, which is
written to a file. Each variant runs in a process of its own, in turns, after a warm-up on a few rows; told are seconds,
the highest resident size of the whole process, the anonymous memory above what the warm-up left, and compiles. One-shot
and dask have a sixth of the rows, and their seconds are scaled up. The exit status is 1 if a bound is missed.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS, FEATURES, SIZE = 64, 256, 2**12
THROTTLED = 600e6  # bytes a second
HIGH_WATER, ANONYMOUS = 450e6, 100e6  # bytes
COMPUTE_ONLY, ONE_SHOT, OVERLAP = 1.15, 0.75, 1.15
PIECE = 6  # one-shot and dask run on a sixth of the rows, and their time is scaled up
PROJECTION = np.random.default_rng(1).normal(size=(COLUMNS, FEATURES)).astype(np.float32) / 8


def fit(x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    h = jnp.tanh(x @ PROJECTION)
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-6)
    w = jnp.linalg.solve(h.T @ h + 10 * jnp.eye(FEATURES), h.T @ y)
    return w, h @ w


def make(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    for name, shape in (("x", (rows, COLUMNS)), ("y", (rows,))):
        file = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, shape)
        for first in range(0, rows, 2**17):
            part = file[first : first + 2**17]
            part[:] = rng.standard_normal(part.shape, np.float32)
        file.flush()


# ---------------------------------------------------------------------- sources


class Slow:
    """Rows of a file from a disk of so many bytes a second. Waiting takes no core."""

    def __init__(self, array: Any, begun: list[float]):
        self.array, self.begun = array, begun

    def __len__(self) -> int:
        return len(self.array)

    def note(self, start: int, stop: int) -> None:
        """A pass begins with the first chunk; one row is read for its type."""
        if start == 0 and stop > 1:
            self.begun.append(time.perf_counter())

    def read(self, start: int, stop: int) -> np.ndarray:
        begin = time.perf_counter()
        self.note(start, stop)
        file, shape = self.array, (stop - start, *self.array.shape[1:])
        at = file.offset + start * file.strides[0]
        found = np.fromfile(file.filename, file.dtype, math.prod(shape), offset=at).reshape(shape)
        time.sleep(max(0.0, found.nbytes / THROTTLED - (time.perf_counter() - begin)))
        return found


class Still(Slow):
    """The same rows again and again, from memory; `length` of them."""

    def __init__(self, array: np.ndarray, begun: list[float], length: int):
        super().__init__(array, begun)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, stop: int) -> np.ndarray:
        self.note(start, stop)
        return self.array[: stop - start]


# ---------------------------------------------------------------------- one variant, in a process of its own


def status() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if line[0] in ("VmHWM:", "RssAnon:")}


class Sampled(threading.Thread):
    """The most anonymous memory while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, status()["RssAnon"])


def streamed(folder: Path, kind: str) -> dict[str, Any]:
    import jax

    import erythroxy_tx as tx

    x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
    begun: list[float] = []
    given: dict[str, tuple[Any, Any]] = {
        "file": (x, y),
        "slow disk": (Slow(x, begun), Slow(y, [])),
        "no reading": (Still(np.array(x[:SIZE]), begun, len(x)), Still(np.array(y[:SIZE]), [], len(y))),
    }
    run = tx.chunked(tx.stream(out=(None, folder / f"{kind}.npy")), size=SIZE)(fit)
    few = 2 * SIZE + 5
    with tx.compiles() as seen:
        run(x[:few], y[:few])
    warm, compiled = status(), seen.backend_compiles
    sampled = Sampled()
    sampled.start()
    begin = time.perf_counter()
    with tx.compiles() as again:
        jax.block_until_ready(run(*given[kind])[0])
    end = time.perf_counter()
    sampled.over.set()
    return {
        "seconds": end - begin,
        "passes": [b - a for a, b in itertools.pairwise([*begun, end])],
        "high": status()["VmHWM"],
        "anonymous": sampled.most - warm["RssAnon"],
        "compiles": compiled,
        "again": again.backend_compiles,
    }


def one_shot(folder: Path) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
    n = len(x) // PIECE
    given = jnp.asarray(x[:n]), jnp.asarray(y[:n])
    run = jax.jit(fit)
    jax.block_until_ready(run(*given))
    begin = time.perf_counter()
    jax.block_until_ready(run(*given))
    return {"seconds": (time.perf_counter() - begin) * PIECE, "high": status()["VmHWM"]}


def dask(folder: Path) -> dict[str, Any]:
    import dask.array as da

    x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
    n = len(x) // PIECE
    x, y = da.from_array(x[:n], chunks=(SIZE, COLUMNS)), da.from_array(y[:n], chunks=SIZE)
    begin = time.perf_counter()
    h = da.tanh(x @ PROJECTION)
    mean, var = da.compute(h.mean(0), h.var(0))
    h = (h - mean) / np.sqrt(var + np.float32(1e-6))
    gram, right = da.compute(h.T @ h, h.T @ y)
    w = np.linalg.solve(gram + 10 * np.eye(FEATURES, dtype=np.float32), right)
    target = np.lib.format.open_memmap(folder / "dask.npy", "w+", np.float32, y.shape)
    da.store(h @ w, target, lock=False)
    return {"seconds": (time.perf_counter() - begin) * PIECE, "high": status()["VmHWM"]}


def error(folder: Path) -> dict[str, Any]:
    """How far the weights are from those in float64, on a part of the rows, beside one-shot's."""
    import jax

    import erythroxy_tx as tx

    x, y = (np.array(np.load(folder / f"{name}.npy", mmap_mode="r")[:500_000]) for name in "xy")
    h = np.tanh(x.astype(float) @ PROJECTION.astype(float))
    h = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-6)
    exact = np.linalg.solve(h.T @ h + 10 * np.eye(FEATURES), h.T @ y)
    found = {"streamed": tx.chunked(tx.stream(), size=SIZE)(fit)(x, y)[0], "one-shot": jax.jit(fit)(x, y)[0]}
    return {name: float(np.abs(np.asarray(w) - exact).max() / np.abs(exact).max()) for name, w in found.items()}


# ---------------------------------------------------------------------- the table

VARIANTS = {
    "file": lambda folder: streamed(folder, "file"),
    "no reading": lambda folder: streamed(folder, "no reading"),
    "slow disk": lambda folder: streamed(folder, "slow disk"),
    "one-shot": one_shot,
    "dask": dask,
    "error": error,
}


def measured(variant: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--variant", variant, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"missing": (done.stderr.strip().splitlines() or ["?"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files are or go; by default a temporary folder")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(VARIANTS[arguments.variant](arguments.folder)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if not (folder / "x.npy").exists():
            print(f"writing {arguments.rows * (COLUMNS + 1) * 4 / 1e9:.1f} GB")
            make(folder, arguments.rows)
        return report(folder, arguments.rounds)


def report(folder: Path, rounds: int) -> int:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS if name != "error"}
    for _ in range(rounds):
        for name, found in runs.items():
            found.append(measured(name, folder))
    for name, found in runs.items():
        if "missing" in found[0]:
            print(f"{name:<12} not measured: {found[0]['missing']}")
            continue
        seconds, high = (statistics.median(each[key] for each in found) for key in ("seconds", "high"))
        more = "" if not found[0].get("passes") else f", passes {[round(p, 1) for p in found[0]['passes']]}"
        print(f"{name:<12} {seconds:7.1f} s, high water {high / 1e6:6.0f} MB{more}")
    file, still, slow, whole = (runs[name] for name in ("file", "no reading", "slow disk", "one-shot"))
    bytes_of_pass = sum((folder / f"{name}.npy").stat().st_size for name in "xy")
    floor = [sum(max(p, bytes_of_pass / THROTTLED) for p in each["passes"]) for each in still]
    errors = measured("error", folder)
    passes = len(still[0]["passes"])
    bounds = [
        ("high water, MB", max(each["high"] for each in file) / 1e6, HIGH_WATER / 1e6),
        ("anonymous, MB above the warm-up", max(each["anonymous"] for each in file) / 1e6, ANONYMOUS / 1e6),
        ("time over no reading", _ratio(file, [each["seconds"] for each in still]), COMPUTE_ONLY),
        ("time over one-shot, scaled up", _ratio(file, [each["seconds"] for each in whole]), ONE_SHOT),
        ("slow disk over the longer of reading and computing", _ratio(slow, floor), OVERLAP),
        ("compiles", file[0]["compiles"], 2 * passes + 1),
        ("compiles for another length", max(each["again"] for each in file), 0),
        ("error of the weights over one-shot's", errors["streamed"] / errors["one-shot"], 1.0),
    ]
    missed = 0
    for name, value, bound in bounds:
        missed += value > bound
        print(f"{'holds ' if value <= bound else 'MISSED'} {name}: {value:.3g} (bound {bound:.3g})")
    return int(missed > 0)


def _ratio(runs: list[dict[str, Any]], others: list[float]) -> float:
    return statistics.median(run["seconds"] / other for run, other in zip(runs, others, strict=True))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
