"""A GRU that forecasts two stock indices, trained twice on the bars of the main job: by a loop as people write it, and
by the same loop in which nothing waits. `python examples/train_forecaster.py` runs both, and compares. Not here: how
that is shown (`forecaster_report.py`), and the main job (`relocate_ridge.py`).

One row is (index, day, horizon), as there: the last 32 days of that index forecast its log return from that day to
`horizon` days later. Batches are rows; windows and features are built when a batch is worked on, on the host by the
first loop and in the compiled step by the second.
"""

import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from relocate_ridge import ANCHOR
from relocate_ridge import HORIZONS
from relocate_ridge import problem
from relocate_ridge import returns

import erythroxy_tx as tx

WINDOW = 32  # days
HIDDEN = 16
BATCH = 64
CHECK = 100  # steps from one look at the rows that are held out to the next
SCALE = 50.0  # of the targets: daily returns are about 1/50
OPTIMISER = optax.adam(1e-3)

Says = Callable[[int], Any]  # is told how many steps are done; `id` minds nothing
History = dict[str, list[float]]  # of each metric, a number for each step


class Data(NamedTuple):
    """What both loops are called with."""

    base: np.ndarray  # f32[2, days, 5]: the bars of the main job
    segments: list[np.ndarray]  # i32[rows, 3]: the rows to train on, a year of an index in each
    held_out: np.ndarray  # i32[rows, 3]


def data(*, every: int = 1) -> Data:
    """Load the bars, and one row in `every`."""
    base, _, rows = problem(every=every, columns=1)
    first = len(rows) * 7 // 10
    train, held_out = rows[:first], rows[len(rows) * 8 // 10 :][:1024]
    year = train[:, 1] // 252 * 2 + train[:, 0]
    return Data(base, [train[year == each] for each in np.unique(year)], held_out)


# ---------------------------------------------------------------------- the model, and what both loops compute


def scaled(xp: Any, windows: Any) -> Any:
    """Windows relative to their last day, each channel of size 1: by numpy or by JAX, [rows, WINDOW, 5]."""
    windows = windows - windows[:, -1:, ANCHOR]
    return windows / xp.sqrt((windows**2).mean(1, keepdims=True) + 1e-6)


def init(key: Any) -> dict[str, Any]:
    """Parameters of the GRU; its forecast is zero at first."""
    of_inputs, of_state = jax.random.split(key)
    return {
        "inputs": jax.random.normal(of_inputs, (5, 2 * HIDDEN)) / jnp.sqrt(5),
        "state": jax.random.normal(of_state, (HIDDEN, 2 * HIDDEN)) / jnp.sqrt(HIDDEN),
        "bias": jnp.zeros(2 * HIDDEN),
        "out": jnp.zeros((HIDDEN + 1, 1)),
    }


def forecast(params: Any, windows: Any, horizon: Any) -> Any:
    def cell(h: Any, x: Any) -> tuple[Any, None]:
        gate, new = jnp.split(x @ params["inputs"] + h @ params["state"] + params["bias"], 2, -1)
        gate = jax.nn.sigmoid(gate)
        return (1 - gate) * h + gate * jnp.tanh(new), None

    h, _ = lax.scan(cell, jnp.zeros((windows.shape[0], HIDDEN)), windows.swapaxes(0, 1))
    return (jnp.concatenate([h, horizon[:, None]], 1) @ params["out"])[:, 0]


def error(params: Any, windows: Any, horizon: Any, target: Any) -> tuple[Any, Any]:
    """The mean squared error, and how many signs were right."""
    found = forecast(params, windows, horizon)
    return ((found - target) ** 2).mean(), (jnp.sign(found) == jnp.sign(target)).sum()


def update(params: Any, moments: Any, *batch: Any) -> tuple[Any, Any, dict[str, Any]]:
    """One step of Adam."""
    (loss, right), gradient = jax.value_and_grad(error, has_aux=True)(params, *batch)
    change, moments = OPTIMISER.update(gradient, moments)
    norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))
    return optax.apply_updates(params, change), moments, {"loss": loss, "right": right, "norm": norm}


# ---------------------------------------------------------------------- the rows, in the same order for both


def batches(data: Data, epochs: int) -> tx.SegmentPool:
    """Batches of rows: six segments at a time, each row once an epoch, seeded."""
    return tx.SegmentPool(data.segments, active=6, batch=BATCH, shuffle="rows", epochs=epochs, last="drop")


def steps(data: Data, epochs: int = 1) -> int:
    return epochs * (sum(map(len, data.segments)) // BATCH)


# ---------------------------------------------------------------------- 1. as people write it


def batch_on_host(base: Any, rows: Any) -> tuple[Any, Any, Any]:
    """What some rows are trained on: windows, horizons and targets."""
    windows = np.stack([base[index, day + 1 - WINDOW : day + 1] for index, day, _ in rows])
    return scaled(np, windows), rows[:, 2] / np.float32(HORIZONS), SCALE * returns(base, rows)


def train_naively(data: Data, epochs: int = 1, says: Says = id) -> tuple[Any, History]:
    """Bars from the disk, windows on the host, and three numbers read at every step."""
    step, look = jax.jit(update), jax.jit(error)
    params = init(jax.random.key(0))
    moments, history = OPTIMISER.init(params), {"loss": [], "right": [], "norm": [], "held out": []}
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "bars.npy", data.base)
        for i, rows in enumerate(batches(data, epochs)):
            base = np.load(Path(folder) / "bars.npy")
            params, moments, found = step(params, moments, *batch_on_host(base, rows))
            history["loss"].append(float(found["loss"]))
            history["right"].append(int(found["right"]))
            history["norm"].append(found["norm"].item())
            if not np.isfinite(history["norm"][-1]):
                raise FloatingPointError(f"the gradient is not finite at step {i}")
            if i % CHECK == 0:
                held_out = float(look(params, *batch_on_host(base, data.held_out))[0])
            history["held out"].append(held_out)
            says(i + 1)
    return params, history


# ---------------------------------------------------------------------- 2. where nothing waits


def batch_on_device(base: Any, rows: Any) -> tuple[Any, Any, Any]:
    """The same, built in the step from three numbers a row."""
    index, day, horizon = rows.T
    windows = base[index[:, None], day[:, None] + jnp.arange(1 - WINDOW, 1)]
    return scaled(jnp, windows), horizon / np.float32(HORIZONS), SCALE * returns(base, rows)


@tx.every(CHECK)
def look(params: Any, base: Any, rows: Any) -> Any:
    """The error on the rows that are held out: a branch of the compiled step, which the other steps do not take."""
    return error(params, *batch_on_device(base, rows))[0]


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state: Any, base: Any, held_out: Any, rows: Any) -> Any:
    """A step that builds its windows, and keeps its metrics, on the device."""
    params, moments, found = update(state["params"], state["moments"], *batch_on_device(base, rows))
    seen = look(params, base, held_out, step=state["step"], last=state["held out"])
    state["metrics"].append({**found, "held out": seen})
    return {**state, "params": params, "moments": moments, "step": state["step"] + 1, "held out": seen}


def start(size: int) -> dict[str, Any]:
    """The state before the first step, with room for the metrics of `size` steps."""
    params = init(jax.random.key(0))
    row = {"loss": jnp.float32(0), "right": jnp.int32(0), "norm": jnp.float32(0), "held out": jnp.float32(0)}
    return {
        "params": params,
        "moments": OPTIMISER.init(params),
        "step": jnp.int32(0),
        "held out": jnp.float32(0),
        "metrics": tx.MetricBuffer(size, like=row, check_nan=size),
    }


def train(data: Data, epochs: int = 1, says: Says = id) -> tuple[Any, History]:
    """Bars on the device, rows fetched ahead, and all metrics read once, at the end of an epoch."""
    base, held_out = jax.device_put((data.base, data.held_out))
    size = steps(data)
    state, history = start(size), []
    with tx.prefetch(batches(data, epochs)) as loader:
        state = train_step(state, base, held_out, next(loader))  # compiles
        with tx.no_recompile(), tx.no_disk_io(), tx.no_host_sync(allow=epochs):
            for done in range(2, epochs * size + 1):
                with tx.phase("fetch"):
                    rows = next(loader)
                with tx.phase("step"):
                    state = train_step(state, base, held_out, rows)
                says(done)
                if done % size == 0:  # the last `size` steps: those of this epoch
                    history.append(state["metrics"].numpy())
    return state["params"], {name: [x for each in history for x in each[name].tolist()] for name in history[0]}


if __name__ == "__main__":
    from forecaster_report import main

    sys.exit(main())
