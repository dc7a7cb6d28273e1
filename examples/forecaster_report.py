"""What `train_forecaster.py` prints: the progress of both loops, a table of speed, memory and stalls, where the time of
the second goes, and a sentence. Each loop waits until the host has room. Exits with 1 if the loops do not arrive at the
same model, or the second reads more than once an epoch.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from train_forecaster import BATCH
from train_forecaster import WINDOW
from train_forecaster import Data
from train_forecaster import data
from train_forecaster import steps
from train_forecaster import train
from train_forecaster import train_naively

import erythroxy_tx as tx
from erythroxy_tx.host.memory import HighWater
from erythroxy_tx.host.psi import StallClock
from erythroxy_tx.measurement.memory import DevicePeak
from erythroxy_tx.units import format_bytes

LOOPS = {"as people write it": train_naively, "tx": train}
NEED = "512MiB"  # of host memory, beside what is held when the training starts
APART = 1e-3  # of the largest parameter: rounding, over an epoch of Adam


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a forecaster by two loops, and compare them.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="one row in so many")
    parser.add_argument("--run", type=Path, help="a folder in which the parameters of the run are kept")
    options = parser.parse_args(argv)
    if options.run is not None:  # started again with others, this refuses
        tx.RunSpec(options.run / "spec.json", epochs=options.epochs, every=options.every, batch=BATCH, window=WINDOW)

    found = data(every=options.every)
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        figures = {name: run(name, loop, found, options.epochs, progress) for name, loop in LOOPS.items()}
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table(figures))
    console.print(legend(figures), soft_wrap=True, highlight=False, style="dim")
    console.print(str(figures["tx"]["phases"]), highlight=False)
    said = judge(figures, options.epochs)
    console.print(said or agreed(figures), soft_wrap=True, highlight=False)
    return int(bool(said))


def run(name: str, loop: Any, found: Data, epochs: int, progress: Progress) -> dict[str, Any]:
    """Train by one loop, twice: once to compile, and once to look."""
    loop(found)
    total = steps(found, epochs)
    task = progress.add_task(name, total=total)
    tx.wait_for_headroom(NEED, timeout="10min")
    device, stalls = DevicePeak(), StallClock()
    with HighWater() as host, tx.host_syncs() as reads, tx.phase("training") as phases:
        begin = time.perf_counter()
        params, history = loop(found, epochs, lambda done: progress.update(task, completed=done))
        jax.block_until_ready(params)
        seconds = time.perf_counter() - begin
    figures = {"host": host.peak, "device": device.read(), "stalls": stalls.read()}
    figures |= {"speed": total / seconds, "reads": reads.count, "phases": phases}
    return {"params": params, "history": history, **figures}


def table(figures: dict[str, dict[str, Any]]) -> Table:
    made = Table(box=None, pad_edge=False)
    for column in ("loop", "steps/s", "reads", "host peak", "device peak", "stalls", "loss at last", "held out"):
        made.add_column(column, justify="left" if column == "loop" else "right")
    for name, each in figures.items():
        loss, held_out = np.mean(each["history"]["loss"][-100:]), each["history"]["held out"][-1]
        peak, _ = each["device"]
        memory = format_bytes(each["host"]), "-" if peak is None else format_bytes(peak)
        stalled = each["stalls"].memory
        speed = f"{each['speed']:.0f}", str(each["reads"]), *memory, "-" if stalled is None else f"{stalled:.1%}"
        made.add_row(name, *speed, f"{loss:.4f}", f"{held_out:.4f}")
    return made


def legend(figures: dict[str, dict[str, Any]]) -> str:
    """What the columns are, and why some are not known."""
    device, stalls = (figures["tx"][name] for name in ("device", "stalls"))
    return (
        f"reads are of the device; host peak is the most resident memory of the process; device peak: {device[1]}; "
        f"stalls are the share of the time in which a task of this machine waited for memory"
        f"{f': {stalls.missing}' if stalls.missing else ''}."
    )


def apart(figures: dict[str, dict[str, Any]]) -> float:
    """How far the two models are from each other, over the largest parameter."""
    one, other = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(each["params"])]) for each in figures.values())
    return float(np.abs(one - other).max() / np.abs(one).max())


def judge(figures: dict[str, dict[str, Any]], epochs: int) -> str:
    """What does not hold, or nothing."""
    if (difference := apart(figures)) > APART:
        return f"The two models differ by {difference:.1e} of their largest parameter, expected at most {APART:.0e}."
    if (reads := figures["tx"]["reads"]) > epochs:
        return f"The second loop read the device {reads} times, expected at most once an epoch, {epochs}."
    return ""


def agreed(figures: dict[str, dict[str, Any]]) -> str:
    plain, ours = figures.values()
    return (
        f"Both loops arrive at the same model, {apart(figures):.0e} of its largest parameter apart; the second takes "
        f"{ours['speed'] / plain['speed']:.1f} times as many steps a second, with {ours['reads']} reads of the device "
        f"in place of {plain['reads']}. That the forecast is of use is not shown."
    )
