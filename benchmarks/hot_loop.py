"""The loop around a step: as people write it, and as this library lets it be written.

    python benchmarks/hot_loop.py

Three parts, each in a process of its own. `reads`: the forecaster of `examples/train_forecaster.py`, by its two loops:
reads of the device in an epoch, and steps a second. `overlap`: batches that take the host as long to make as the device
to work on, one core for each, by a plain loop, a thread and a queue by hand, grain, and `tx.prefetch`: seconds a step,
over the longer of the two. `pool`: an epoch over segments that together are many times the budget, all loaded at first,
mapped, and by `tx.SegmentPool`: the rise of the resident memory. The exit status is 1 if a bound is missed.
"""

import argparse
import importlib.util
import itertools
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"  # one core
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rounds import interleaved
from rounds import ratio

import erythroxy_tx as tx
from erythroxy_tx.host.memory import HighWater

READS = 4  # of the device, in an epoch
FASTER = 2.0  # steps a second, of those of the plain loop
OVERLAP = 1.2  # seconds a step, of the longer of making a batch and working on it
EACH = 0.010  # seconds to make a batch, and to work on it
STEPS = 50  # in a round of the overlap
SEGMENTS, ROWS, BUDGET = 64, 2**19, 64 * 2**20  # segments of 8 MiB, 512 MiB together


# ---------------------------------------------------------------------- reads


def reads(rounds: int) -> dict[str, Any]:
    import train_forecaster as example

    data = example.data()
    loops = {"as people write it": example.train_naively, "tx": example.train}
    counted: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    steps = example.steps(data)
    for name, train in loops.items():  # what compiles is compiled, and an epoch is counted
        with tx.host_syncs() as seen:
            train(data)
        counted[name] = seen.count
    for turn in range(rounds):
        for name in sorted(loops, reverse=bool(turn % 2)):
            begin = time.perf_counter()
            loops[name](data)
            seconds[name].append(time.perf_counter() - begin)
    plain, ours = seconds.values()
    found = {
        name: {"reads": counted[name], "steps a second": steps / statistics.median(seconds[name])} for name in loops
    }
    return {"steps": steps, "loops": found, "faster": ratio(plain, ours)}


# ---------------------------------------------------------------------- overlap


BLOCK = np.random.default_rng(0).normal(size=50_000).astype(np.float32)
SQUARE = np.full((128, 128), 1 / 128, np.float32)


def make(times: int) -> np.ndarray:
    """A batch by numpy, which lets go of the interpreter while it counts."""
    out = np.empty_like(BLOCK)
    for _ in range(times):
        np.tanh(BLOCK, out=out)
    return out


@jax.jit
def step(x: jax.Array, batch: jax.Array, times: Any) -> jax.Array:
    return lax.fori_loop(0, times, lambda _, y: jnp.tanh(y @ SQUARE), x + batch[0] * 0)


def calibrated(work: Callable[[int], Any]) -> int:
    """How often a unit of work is done in `EACH` seconds."""
    jax.block_until_ready(work(1))
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        jax.block_until_ready(work(16))
        times.append(time.perf_counter() - begin)
    return max(1, round(16 * EACH / statistics.median(times)))


def by_hand(source: Iterator[Any]) -> Iterator[jax.Array]:
    filled: queue.Queue = queue.Queue(2)

    def work() -> None:
        for batch in source:
            filled.put(batch)
        filled.put(None)

    threading.Thread(target=work, daemon=True).start()
    while (batch := filled.get()) is not None:
        yield jax.device_put(batch)


def by_grain(times: int) -> Iterator[Any]:
    import grain

    made = grain.MapDataset.range(STEPS).map(lambda _: make(times))
    return map(jax.device_put, made.to_iter_dataset(grain.ReadOptions(num_threads=1)))


def overlap(rounds: int) -> dict[str, Any]:
    host, device = calibrated(make), calibrated(lambda times: step(SQUARE, BLOCK, times))

    def source() -> Iterator[np.ndarray]:
        return (make(host) for _ in range(STEPS))

    def consume(batches: Any) -> jax.Array:
        x = jnp.asarray(SQUARE)
        for batch in batches:
            x = jax.block_until_ready(step(x, batch, device))  # the time of a step, not how many may pile up
        return x

    runs: dict[str, Callable[[], Any]] = {
        "making": lambda: list(source()),
        "working": lambda: consume(itertools.repeat(jax.device_put(BLOCK), STEPS)),
        "one after the other": lambda: consume(map(jax.device_put, source())),
        "a thread and a queue": lambda: consume(by_hand(source())),
        "tx.prefetch": lambda: consume(tx.prefetch(source())),
    }
    if importlib.util.find_spec("grain") is None:
        print("grain: not installed", file=sys.stderr)
    else:
        runs["grain"] = lambda: consume(by_grain(host))
    seconds = interleaved(runs, rounds)
    longer = [max(pair) for pair in zip(seconds["making"], seconds["working"], strict=True)]
    each = {name: statistics.median(times) / STEPS for name, times in seconds.items()}
    return {"each": each, "over the longer": {name: ratio(times, longer) for name, times in seconds.items()}}


# ---------------------------------------------------------------------- pool


def pool(way: str, folder: Path) -> dict[str, Any]:
    """An epoch, and how the resident memory rose."""
    paths = sorted(folder.glob("*.npy"))
    batch = 4096

    def everything() -> Iterator[np.ndarray]:
        held = [np.load(path) for path in paths]
        return (rows[i : i + batch] for rows in held for i in range(0, len(rows), batch))

    def mapped() -> Iterator[np.ndarray]:
        held = [np.load(path, mmap_mode="r") for path in paths]
        return (np.array(rows[i : i + batch]) for rows in held for i in range(0, len(rows), batch))

    total, peak = 0.0, 0
    jax.block_until_ready(jnp.zeros(batch) + 1)
    with HighWater() as high:
        begin = time.perf_counter()
        if way == "tx.SegmentPool":
            with tx.SegmentPool(paths, active=6, batch=batch, budget=BUDGET) as batches:
                total = sum(float(rows.sum()) for rows in batches)
                peak = batches.report().peak + batches.report().beside
        else:
            total = sum(float(rows.sum()) for rows in {"all at first": everything, "mapped": mapped}[way]())
        seconds = time.perf_counter() - begin
    return {"rise": high.rise, "seconds": seconds, "sum": total, "held": peak}


def pools() -> dict[str, Any]:
    ways = ("all at first", "mapped", "tx.SegmentPool")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i in range(SEGMENTS):
            np.save(folder / f"{i:03}.npy", np.full((ROWS, 4), i % 7, np.float32))
        return {way: run("pool", way, name) for way in ways}


# ---------------------------------------------------------------------- all of it


def run(part: str, *arguments: str) -> Any:
    """One part in a process of its own."""
    command = [sys.executable, __file__, "--part", part, *arguments]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed.splitlines()[-1])


def report(rounds: int) -> list[str]:
    """Print every figure, and give what is missed."""
    missed = []

    def judged(what: str, value: float, bound: float, *, at_least: bool = False) -> str:
        holds = value >= bound if at_least else value <= bound
        if not holds:
            missed.append(f"{what} is {value:.3g}, expected at {'least' if at_least else 'most'} {bound:.3g}")
        return "" if holds else "  <- missed"

    found = run("reads", "--rounds", str(rounds))
    print(f"reads: an epoch of {found['steps']} steps")
    for name, each in found["loops"].items():
        print(f"  {name:<24}{each['reads']:>8} reads{each['steps a second']:>10.0f} steps/s")
    print(f"  {found['faster']:.2f} times as many steps" + judged("steps", found["faster"], FASTER, at_least=True))
    judged("reads of an epoch", found["loops"]["tx"]["reads"], READS)

    found = run("overlap", "--rounds", str(rounds))
    print("overlap: making a batch, and working on it, one core for each")
    for name, seconds in found["each"].items():
        over = found["over the longer"][name]
        told = judged("overlap", over, OVERLAP) if name == "tx.prefetch" else ""
        print(f"  {name:<24}{1e3 * seconds:>8.2f} ms a step{over:>8.2f} of the longer{told}")

    found = run("pools")
    print(f"pool: {SEGMENTS} segments of 8 MiB, budget {BUDGET // 2**20} MiB")
    for name, each in found.items():
        told = judged("the pool's rise", each["rise"], BUDGET) if name == "tx.SegmentPool" else ""
        print(f"  {name:<24}{each['rise'] / 2**20:>8.0f} MiB more{each['seconds']:>8.2f} s{told}")
    if len({each["sum"] for each in found.values()}) > 1:
        missed.append("the pools differ in the rows that they gave")
    judged("what the pool says that it held", found["tx.SegmentPool"]["held"], BUDGET)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", choices=("reads", "overlap", "pool", "pools"), help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is None:
        missed = report(given.rounds)
        print("\n".join(f"missed: {each}" for each in missed) or "every bound holds")
        return bool(missed)
    if given.part == "pool":
        way, folder = given.rest
        print(json.dumps(pool(way, Path(folder))))
    elif given.part == "pools":
        print(json.dumps(pools()))
    else:
        print(json.dumps({"reads": reads, "overlap": overlap}[given.part](given.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
