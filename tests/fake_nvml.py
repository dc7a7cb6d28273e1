"""A `pynvml` that answers from a list of GPUs, and raises what the real one raises."""

import types
from collections.abc import Callable
from typing import Any

GIB = 2**30
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_IS_LOST, MISMATCH = 3, 4, 9, 12, 15, 18
_WORDS = {
    NOT_SUPPORTED: "Not Supported",
    NO_PERMISSION: "Insufficient Permissions",
    DRIVER_NOT_LOADED: "Driver Not Loaded",
    LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    GPU_IS_LOST: "GPU is lost",
    MISMATCH: "RM has detected an NVML/RM version mismatch.",
}


class NVMLError(Exception):
    def __init__(self, value: int):
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return _WORDS.get(self.value, "Unknown Error")


def process(pid: int, used: int | None) -> types.SimpleNamespace:
    return types.SimpleNamespace(pid=pid, usedGpuMemory=used, gpuInstanceId=2**32 - 1, computeInstanceId=2**32 - 1)


def gpu(number: int = 0, *, used: int = 0, compute: Any = (), graphics: Any = (), **other: Any) -> dict[str, Any]:
    """What each question about a GPU is answered with: a value, an error, or a list, one for each time."""
    answers = {
        "HandleByIndex": number,
        "UUID": f"GPU-{number:08d}-1111-2222-3333-444444444444",
        "Name": "NVIDIA A100-SXM4-80GB",
        "MemoryInfo": types.SimpleNamespace(total=80 * GIB, used=used, free=80 * GIB - used),
        "UtilizationRates": 0,
        "MigMode": NVMLError(NOT_SUPPORTED),
        "ComputeRunningProcesses_v2": list(compute),
        "GraphicsRunningProcesses_v2": list(graphics),
    }
    return answers | other


def fake(gpus: list[dict[str, Any]], *, init: NVMLError | None = None) -> Any:
    """The module. `opened` counts the `nvmlInit` that no `nvmlShutdown` has followed."""
    module: Any = types.ModuleType("pynvml")
    module.NVMLError, module.opened, asked = NVMLError, 0, {}

    def start() -> None:
        if init is not None:
            raise init
        module.opened += 1

    def stop() -> None:
        module.opened -= 1

    def answer(question: str) -> Callable[[int], Any]:
        def ask(number: int) -> Any:
            assert module.opened, "NVML is asked before it is started"
            asked[question, number] = asked.get((question, number), 0) + 1
            found = gpus[number][question]
            if question == "UtilizationRates" and isinstance(found, list):
                found = found[asked[question, number] - 1]
            if isinstance(found, Exception):
                raise found
            return types.SimpleNamespace(gpu=found, memory=0) if question == "UtilizationRates" else found

        return ask

    module.nvmlInit, module.nvmlShutdown, module.nvmlDeviceGetCount = start, stop, lambda: len(gpus)
    for question in gpu():
        setattr(module, f"nvmlDeviceGet{question}", answer(question))
    return module
