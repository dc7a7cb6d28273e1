"""What differs on a GPU, checked there: copies, transfers, the device's peak, products in lower precision, and what the
driver tells.

    python benchmarks/gpu.py        about a minute; exit status 1 if a check fails, 2 where there is no GPU

Not here: figures of time against peers (`chunking.py`, `dispatch.py`), which run on any backend.
"""

import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import erythroxy_tx as tx

ROWS, FEATURES = 65_536, 256


def problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, FEATURES)).astype("f"), rng.normal(size=(FEATURES, 1024)).astype("f") / 16


def gram(x, w):
    h = jnp.tanh(x @ w)
    return h.T @ h


def a_resident_copy_is_the_devices_own() -> str:
    x, w = problem()
    f = tx.vram_resident(gram)
    before = np.asarray(f(x, w))
    f.evict()
    x[:] = 0
    same = np.array_equal(before, np.asarray(tx.vram_resident(gram)(problem()[0], w)))
    return "" if same else "the result changed with the host array"


def a_warm_call_transfers_nothing() -> str:
    x, w = problem()
    f = tx.vram_resident(gram)
    f(x, w)
    with jax.transfer_guard("disallow"):
        f(x, w).block_until_ready()
    return ""


def chunks_lower_the_devices_peak() -> str:
    x, w = map(jnp.asarray, problem())
    in_chunks = tx.chunked(lax.map, size=1024, in_axes=(0, None), out="sum")(gram)
    ours, one_shot = tx.measure(in_chunks, x, w), tx.measure(gram, x, w)
    print(ours, one_shot, sep="\n")
    return "" if ours.program.temp * 4 < one_shot.program.temp else "temporaries are not a quarter of one-shot's"


def the_device_reports_its_peak() -> str:
    x, w = map(jnp.asarray, problem())
    return "" if tx.measure(gram, x, w).device_peak_bytes else "no peak is reported"


def chunks_are_as_accurate_as_one_shot() -> str:
    """At the backend's own precision of products, which on a GPU may be TF32."""
    x, w = problem()
    exact = np.tanh(x.astype(np.float64) @ w)
    exact = exact.T @ exact
    in_chunks = tx.chunked(lax.map, size=1000, in_axes=(0, None), out="sum")(gram)
    ours, one_shot = (float(np.abs(np.asarray(f(x, w)) - exact).max()) for f in (in_chunks, jax.jit(gram)))
    slack = 16 * np.finfo(np.float32).eps * np.abs(exact).max()
    return "" if ours <= 4 * one_shot + slack else f"{ours:.3g} from float64, one-shot {one_shot:.3g}"


def attend(x):
    h = jax.nn.softmax(x @ x.T / 16) @ x
    return (h - h.mean(0)) / (h.std(0) + 1e-3), h.max(0)


def padding_reaches_no_result() -> str:
    """With the device's own kernels, for lengths that fill a tile and lengths that do not."""
    x = problem()[0][:512] / 4
    padded = tx.pad_static(512)(attend)
    for n in (1, 31, 64, 500, 512):
        results = [padded(*padded.pad(x[:n], fill=fill)) for fill in (0.0, float("nan"))]
        if not all(np.array_equal(a, b) for a, b in zip(*results, strict=True)):
            return f"what the padding holds changes the result for {n} rows"
        for ours, unpadded in zip(results[0], jax.jit(attend)(x[:n]), strict=True):
            if np.abs(np.asarray(ours) - np.asarray(unpadded)).max() > 2e-2:
                return f"the result for {n} rows is another one than without padding"
    return ""


def results_without_rows_are_not_fetched() -> str:
    x = problem()[0][:512]
    padded = tx.pad_static(512)(lambda x: x.max(0))
    padded(x)
    with jax.transfer_guard_device_to_host("disallow"):
        padded(x[:100]).block_until_ready()
    return ""


def each_read_is_seen_once() -> str:
    """The host has no view of the device's memory: numpy gets its arrays by another way than on a CPU."""
    ways: dict[str, Callable] = {
        "float": lambda v, _: float(v),
        ".item()": lambda v, _: v.item(),
        "np.asarray": lambda _, x: np.asarray(x),
        "device_get": lambda v, x: jax.device_get([v, x]),
        "mask": lambda v, x: x[x > v],
        "f-string": lambda v, _: f"{v} {v}",
    }
    wrong = []
    for kind, read in ways.items():
        v, x = jnp.float32(1) + 1, jnp.arange(4.0) * 2
        with tx.host_syncs() as seen:
            read(v, x)
        if (seen.count, [line.kind for line in seen.lines]) != (1, [kind]):
            wrong.append(f"{kind}: {seen}")
        try:
            with tx.no_host_sync():
                read(jnp.float32(1) + 1, jnp.arange(4.0) * 2)
        except tx.HostSyncError:
            continue
        wrong.append(f"{kind} was not refused")
    return "; ".join(wrong)


def a_buffer_that_is_used_again_reaches_no_batch() -> str:
    def batches():
        buffer = np.empty(2**20, np.float32)
        for i in range(50):
            buffer[:] = i
            yield buffer

    with tx.prefetch(batches()) as loader:
        sums = [batch.sum() for batch in loader]
    return "" if [float(each) for each in sums] == [i * 2.0**20 for i in range(50)] else "a batch was overwritten"


def metrics_are_appended_without_a_transfer() -> str:
    step = jax.jit(lambda x: (x * 0.5, x.sum()))
    x, metrics = jnp.ones(8), tx.MetricBuffer()
    for _ in range(65):  # one block is written
        x, loss = step(x)
        metrics.append(loss=loss)
    with jax.transfer_guard("disallow"), tx.no_recompile():
        for _ in range(200):
            x, loss = step(x)
            metrics.append(loss=loss)
    return "" if len(metrics.numpy()["loss"]) == 265 else "rows are missing"


def the_driver_tells_of_every_gpu() -> str:
    """While this process holds one. In a container the driver may list no process at all."""
    held = jax.device_put(np.ones(2**26, np.float32)).block_until_ready()
    found = tx.idle_devices()
    print(found)
    well = [device for device in found.devices if not device.fault]
    if not well or not all(device.uuid and device.total for device in well):
        return found.why or "no GPU is told with its UUID and its size"
    if max(device.used or 0 for device in well) < held.nbytes:
        return "what this process holds is not told as used"
    own = [device for device in well if device.own]
    return "" if own or not any(device.tenants for device in well) else "this process is not known as its own"


def the_lines_of_env_choose_the_gpu_and_the_share() -> str:
    """For JAX in a new process, beside what this one holds."""
    device = [device for device in tx.idle_devices().devices if not device.fault and not device.mig][-1]
    lines = f'eval "$("$0" -m erythroxy_tx.cli env --gpu {device.uuid} --fraction 0.05)"'
    code = "import jax; print(jax.device_count(), jax.devices()[0].memory_stats()['bytes_limit'])"
    command = ["sh", "-c", f'{lines}; exec "$0" -c "{code}"', sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr[-500:]
    count, limit = map(int, done.stdout.split())
    share = limit / (device.total or 1)
    return "" if count == 1 and 0.04 < share < 0.06 else f"{count} GPUs, {share:.3f} of the memory"


CHECKS: tuple[Callable[[], str], ...] = (
    a_resident_copy_is_the_devices_own,
    a_warm_call_transfers_nothing,
    chunks_lower_the_devices_peak,
    the_device_reports_its_peak,
    chunks_are_as_accurate_as_one_shot,
    padding_reaches_no_result,
    results_without_rows_are_not_fetched,
    each_read_is_seen_once,
    a_buffer_that_is_used_again_reaches_no_batch,
    metrics_are_appended_without_a_transfer,
    the_driver_tells_of_every_gpu,
    the_lines_of_env_choose_the_gpu_and_the_share,
)


def main() -> int:
    if jax.default_backend() != "gpu":
        print(f"there is no GPU here: the backend is {jax.default_backend()}")
        return 2
    failed = 0
    for check in CHECKS:
        fault = check()
        failed += bool(fault)
        print(f"{'FAILED' if fault else 'ok':7}{check.__name__.replace('_', ' ')}{': ' + fault if fault else ''}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
