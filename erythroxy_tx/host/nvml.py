"""Asks NVML, the library of the NVIDIA driver that nvidia-smi asks, about each GPU. Not here: which are idle
(`devices.py`).

NVML sees every GPU of the machine or the container, whatever CUDA_VISIBLE_DEVICES says, and starts no context on any.
Source: NVML API Reference Guide, chapter "Device Queries".
"""

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any
from typing import Literal
from typing import NamedTuple

import psutil

from erythroxy_tx.host.files import ROOT

SAMPLES, PAUSE = 4, 0.25  # of the utilisation, in seconds; NVML's own figure is a mean over 1/6 s to 1 s

# Not supported, no permission, not found, no room for the answer, no such function, no data: the GPU itself is well.
_NOT_TOLD = (3, 4, 6, 7, 13, 21)
_ABSENT = (9, 12)  # the driver is not loaded; there is no library of a driver
_INSTALL = "pip install 'erythroxy_tx[nvidia]'"
_GIVE = "install the NVIDIA driver; in a container, hand the GPUs in (docker run --gpus all)"
_FIXES = dict.fromkeys(_ABSENT, _GIVE) | {
    4: "look at who may open /dev/nvidiactl and /dev/nvidia*",
    18: "restart the machine, or unload and load the module nvidia: the driver was updated while it was in use",
}


@dataclasses.dataclass(frozen=True)
class Tenant:
    """Another process on a GPU.

    **Attributes:**

    - `pid`: as NVML gives it, in a container perhaps a pid of the machine outside.
    - `user`, `command`: None where the process cannot be seen from here, such as one of another container.
    - `bytes`: of the GPU's memory; None where NVML does not tell, such as under MIG and WSL.
    - `kind`: `"compute"`, `"graphics"` or `"both"`.
    """

    pid: int
    user: str | None
    command: str | None
    bytes: int | None
    kind: Literal["compute", "graphics", "both"]


@dataclasses.dataclass(frozen=True)
class Device:
    """One GPU. What NVML does not tell is None.

    **Attributes:**

    - `index`: NVML's and nvidia-smi's, in the order of the PCI bus. CUDA's may be another.
    - `uuid`, `name`: the UUID is the same for CUDA and NVML.
    - `total`, `used`, `free`: bytes.
    - `own`: bytes of `used` that this process holds; they do not count against the GPU.
    - `utilisation`: the highest sample, a share of the time from 0 to 1.
    - `tenants`: the other processes on it.
    - `mig`: whether it is split into instances.
    - `fault`: why it cannot be used, such as `"GPU is lost"`; empty where it can.
    - `busy`: the reasons why it is not idle; empty where it is.
    """

    index: int
    uuid: str | None
    name: str | None
    total: int | None
    used: int | None
    free: int | None
    own: int | None
    utilisation: float | None
    tenants: tuple[Tenant, ...] | None
    mig: bool
    fault: str
    busy: tuple[str, ...] = ()


class NoAnswer(NamedTuple):
    """Why NVML tells nothing, what to do, and whether it is because there is no GPU."""

    why: str
    fix: str
    absent: bool


def read_devices(*, root: Path = ROOT) -> tuple[Device, ...] | NoAnswer:
    """Every GPU, none of them judged."""
    try:
        import pynvml as nvml
    except ImportError as error:
        if _no_driver(root):
            return NoAnswer("no NVIDIA driver is loaded", _GIVE, absent=True)
        return NoAnswer(f"pynvml, which asks the driver, cannot be imported ({error})", _INSTALL, absent=False)
    try:
        nvml.nvmlInit()
        try:
            gpus = [_Gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
            samples = _sample(gpus)
            devices = tuple(gpu.device(seen) for gpu, seen in zip(gpus, samples, strict=True))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        fix = _FIXES.get(error.value, "see what nvidia-smi says")
        return NoAnswer(f"NVML says: {error}", fix, absent=error.value in _ABSENT)
    return devices or NoAnswer("the NVIDIA driver finds no GPU", _GIVE, absent=True)


class _Gpu:
    """Asks one GPU. An error that means that it is not well is kept in `fault`, and then it is not asked again."""

    def __init__(self, nvml: Any, index: int):
        self.nvml, self.index, self.fault = nvml, index, ""
        self.handle = self._try(nvml.nvmlDeviceGetHandleByIndex, index)
        if self.handle is None and not self.fault:
            self.fault = "the driver does not let this process open it"

    def _try(self, function: Any, *args: Any) -> Any:
        if self.fault:
            return None
        try:
            return function(*args)
        except self.nvml.NVMLError as error:
            if error.value not in _NOT_TOLD:
                self.fault = str(error)
            return None

    def ask(self, name: str) -> Any:
        function = getattr(self.nvml, name, None)  # an old pynvml lacks some
        return None if function is None else self._try(function, self.handle)

    def device(self, utilisation: float | None) -> Device:
        uuid, name = self.ask("nvmlDeviceGetUUID"), self.ask("nvmlDeviceGetName")
        memory, mig = self.ask("nvmlDeviceGetMemoryInfo"), self.ask("nvmlDeviceGetMigMode")
        own, tenants = _processes(
            self.ask("nvmlDeviceGetComputeRunningProcesses_v2"), self.ask("nvmlDeviceGetGraphicsRunningProcesses_v2")
        )
        return Device(
            index=self.index,
            uuid=uuid,
            name=name,
            total=None if memory is None else memory.total,
            used=None if memory is None else memory.used,
            free=None if memory is None else memory.free,
            own=own,
            utilisation=utilisation,
            tenants=tenants,
            mig=mig is not None and mig[0] == 1,
            fault=self.fault,
        )


def _sample(gpus: list[_Gpu]) -> list[float | None]:
    """The highest utilisation of each GPU, all sampled in the same rounds; None where one sample is missing."""
    rounds = []
    for i in range(SAMPLES):
        if i:
            time.sleep(PAUSE)
        rounds.append([gpu.ask("nvmlDeviceGetUtilizationRates") for gpu in gpus])
    return [None if None in seen else max(rate.gpu for rate in seen) / 100 for seen in zip(*rounds, strict=True)]


def _processes(compute: Any, graphics: Any) -> tuple[int | None, tuple[Tenant, ...] | None]:
    """The bytes of this process, and the others."""
    if compute is None:
        return None, None
    kinds: dict[int, set[str]] = {}
    held: dict[int, int | None] = {}
    for kind, processes in (("compute", compute), ("graphics", graphics or ())):
        for process in processes:  # one in both lists has the same bytes in each
            kinds.setdefault(process.pid, set()).add(kind)
            held[process.pid] = process.usedGpuMemory if held.get(process.pid) is None else held[process.pid]
    own = held.pop(os.getpid(), 0)
    return own, tuple(_tenant(pid, count, kinds[pid]) for pid, count in sorted(held.items()))


def _tenant(pid: int, held: int | None, kinds: set[str]) -> Tenant:
    kind: Any = "both" if len(kinds) == 2 else next(iter(kinds))
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline()) or process.name()
        return Tenant(pid, process.username(), command[:77] + "..." * (len(command) > 77), held, kind)
    except psutil.Error:
        return Tenant(pid, None, None, held, kind)


def _no_driver(root: Path) -> bool:
    """Whether there can be no NVIDIA GPU, as far as Linux shows; under WSL the driver is that of Windows."""
    places = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")
    return sys.platform == "darwin" or (sys.platform == "linux" and not any((root / each).exists() for each in places))
