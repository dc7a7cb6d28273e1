"""The demo around `relocate_ridge.py`: each version in a process of its own, then one table, one picture,
and a sentence that says what was proved and what was not. Exits with 1 if a bound is missed. Not here:
how a version is measured (`ridge_measure.py`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from ridge_measure import PROGRAM
from ridge_measure import VERSIONS

from erythroxy_tx.units import format_bytes

FURTHEST = 5e-4  # of the largest forecast
ROUNDING = 4 * float(np.finfo(np.float32).eps)  # two float32 results closer than this are equally accurate
MEASURE = Path(__file__).with_name("ridge_measure.py")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A ridge forecast: plain numpy, one-shot JAX, decorated.")
    parser.add_argument("--quick", action="store_true", help="few rows; memory and time are not judged")
    parser.add_argument("--png", type=Path, default=Path("relocate_ridge.png"), help="where the picture goes")
    options = parser.parse_args(argv)

    with tempfile.TemporaryDirectory() as folder:
        figures = {version: run(version, Path(folder), options.quick) for version in VERSIONS}
        forecasts = {version: np.load(Path(folder, f"{version}.npy")) for version in VERSIONS}
    reference = forecasts["numpy"]
    for version in VERSIONS:
        difference = np.abs(forecasts[version] - reference).max() / np.abs(reference).max()
        figures[version]["difference"] = float(difference)
    for version, seconds in figures["decorated"]["medians"].items():
        figures[version]["seconds"] = seconds

    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table(figures))
    draw(figures, options.png)
    console.print(f"Memory over time: {escape(str(options.png))}", soft_wrap=True)
    console.print(f"tx.assert_relocation: {figures['decorated']['checked']}", soft_wrap=True, highlight=False)
    claims = judge(figures, options.quick)
    console.print(sentence(figures, claims, options.quick), soft_wrap=True, highlight=False)
    return int(any(not claim.holds for claim in claims))


def run(version: str, folder: Path, quick: bool) -> dict[str, Any]:
    """Measure one version in a fresh process, and show what it says on stderr meanwhile."""
    command = [sys.executable, str(MEASURE), version, str(folder), *(["--quick"] if quick else [])]
    console = Console(stderr=True)
    with (
        console.status(f"{version}: starting") as status,
        subprocess.Popen(
            command, env={"JAX_PLATFORMS": "cpu", **os.environ}, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for stage in process.stdout:
            status.update(f"{version}: {stage.strip()}")
            if not console.is_terminal:
                console.print(f"{version}: {stage.strip()}", soft_wrap=True, highlight=False)
    if process.returncode:
        sys.exit(f"The {version} version failed with exit status {process.returncode}; its error is above.")
    figures: dict[str, Any] = json.loads((folder / f"{version}.json").read_text())
    return figures


# ---------------------------------------------------------------------- the table and the picture


def table(figures: dict[str, dict[str, Any]]) -> Table:
    shown = Table(title="one ridge forecast, three versions", caption_justify="left")
    shown.caption = (
        "Host peak: of the first call, compiling included, above the process with its backend up and data "
        "loaded. Time: warm, medians of runs in turns in one process; numpy once. Difference: the largest "
        "from numpy, over its largest forecast."
    )
    shown.add_column("version")
    program = (f"XLA {kind}" for kind in PROGRAM)
    for name in ("host peak", *program, "time", "difference", "compiles, 2nd call"):
        shown.add_column(name, justify="right")
    for version in VERSIONS:
        found = figures[version]
        sizes = [format_bytes(found[kind]) if kind in found else "-" for kind in PROGRAM]
        difference = "-" if version == "numpy" else f"{found['difference']:.1e}"
        seconds = f"{found.get('seconds', found['first_seconds']):.2f} s"
        peak = format_bytes(found["host_rise"])
        shown.add_row(version, peak, *sizes, seconds, difference, str(found.get("compiles", "-")))
    return shown


def draw(figures: dict[str, dict[str, Any]], path: Path) -> None:
    """Memory above start-up, over the first call of each version."""
    mpl.use("agg")
    drawing, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for version in VERSIONS:
        found = figures[version]
        label = f"{version}: peak {format_bytes(found['host_rise'])}"
        axes.plot(found["trace_seconds"], np.array(found["trace_bytes"]) / 2**20, label=label)
    axes.set(xlabel="seconds from the call", ylabel="host memory above start-up (MiB)")
    axes.set_title("The first call of each version, in a process of its own, compiling included")
    axes.legend()
    drawing.savefig(path, dpi=120)
    plt.close(drawing)


# ---------------------------------------------------------------------- what is claimed


class Claim(NamedTuple):
    """A measured value that has to be at most its bound."""

    what: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.value <= self.bound


def judge(figures: dict[str, dict[str, Any]], quick: bool) -> list[Claim]:
    numpy, one_shot, decorated = (figures[version] for version in VERSIONS)
    furthest = min(FURTHEST, one_shot["difference"] + ROUNDING)
    claims = [
        Claim("difference from numpy", decorated["difference"], furthest),
        Claim("compiles on the second call", decorated["compiles"], 0),
    ]
    if not quick:
        claims += [
            Claim("host peak over numpy's", decorated["host_rise"] / numpy["host_rise"], 0.1),
            Claim("temporaries over the one-shot version's", decorated["temp"] / one_shot["temp"], 0.1),
            Claim("time over the one-shot version's", decorated["seconds"] / one_shot["seconds"], 1.1),
        ]
    return claims


def sentence(figures: dict[str, dict[str, Any]], claims: list[Claim], quick: bool) -> str:
    missed = "; ".join(
        f"{claim.what} is {claim.value:.3g}, expected at most {claim.bound:.3g}" for claim in claims if not claim.holds
    )
    if missed:
        return f"Not proved, because a bound is missed: {missed}."

    numpy, one_shot, decorated = (figures[version] for version in VERSIONS)
    proved = (
        f"Proved on this machine, for {numpy['rows']} rows of {numpy['columns']} features: the decorated fit "
        f"forecasts what the float64 numpy version does, to {decorated['difference']:.1e} of its largest "
        f"forecast (the one-shot version: {one_shot['difference']:.1e}), and compiles nothing on its second "
        "call"
    )
    unproved = "nor anything of other data or other devices"
    if quick:
        unproved += ", nor, in a quick run, anything of memory and time"
    else:
        host, temp, time = (claim.value for claim in claims[2:])
        proved += (
            f", in {host:.1%} of numpy's host memory, {temp:.1%} of the one-shot version's temporaries and "
            f"{time:.2f} times its time"
        )
    return (
        f"{proved}; not proved: that prices can be forecast (with the penalty {numpy['penalty']:g}, the squared error "
        f"on the last fifth of the days is {against(numpy, 'error_zero')} that of forecasting no change, and "
        f"{against(numpy, 'error_drift')} that of forecasting the mean of the first seven tenths), {unproved}."
    )


def against(figures: dict[str, Any], naive: str) -> str:
    excess = figures["error_ridge"] / figures[naive] - 1
    return f"{abs(excess):.2%} {'above' if excess > 0 else 'below'}"
