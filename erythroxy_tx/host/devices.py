"""The NVIDIA GPUs of this machine, who holds them, and which are idle. Not here: how they are asked (`nvml.py`), and
settings for JAX (`xla_env.py`).
"""

import dataclasses
from collections.abc import Iterator

from erythroxy_tx.host import nvml
from erythroxy_tx.host.nvml import Device
from erythroxy_tx.host.nvml import NoAnswer
from erythroxy_tx.host.nvml import Tenant
from erythroxy_tx.host.report import Line
from erythroxy_tx.host.report import Report
from erythroxy_tx.units import format_bytes
from erythroxy_tx.units import parse_bytes


@dataclasses.dataclass(frozen=True)
class IdleDevices(Report):
    """All GPUs, and which of them are idle. Iterating gives the idle ones, each a `Device`; `len` counts them.

    **Attributes:**

    - `idle`: the indices of the idle ones, the one with the most free bytes first.
    - `devices`: every GPU, by index.
    - `rule`: what idle means here, in words.
    - `why`: why the GPUs could not be listed, and `fix`, what to do; both empty where they could.
    - `absent`: whether that is because there is no GPU.
    """

    idle: tuple[int, ...]
    devices: tuple[Device, ...]
    rule: str
    why: str = ""
    fix: str = ""
    absent: bool = False

    def __iter__(self) -> Iterator[Device]:
        by_index = {device.index: device for device in self.devices}
        return (by_index[index] for index in self.idle)

    def __len__(self) -> int:
        return len(self.idle)

    def lines(self) -> Iterator[Line]:
        if self.why:
            yield Line(f"no GPU is known to be idle: {self.why}", "dim" if self.absent else "warn")
            if self.fix:
                yield Line(f"fix: {self.fix}")
            return
        yield Line(f"{len(self.devices)} GPU{'s' if len(self.devices) > 1 else ''}, {len(self)} idle", "title")
        for device in self.devices:
            yield Line(f"GPU {device.index}  {device.name or 'unknown'}  {device.uuid or ''}".rstrip())
            yield Line(f"  {_figures(device)}")
            for tenant in device.tenants or ():
                yield Line(f"  {describe(tenant)}", "dim")
            yield from (Line(f"  busy: {reason}", "bad") for reason in device.busy)
            if not device.busy:
                yield Line(f"  idle: export CUDA_VISIBLE_DEVICES={device.uuid}", "good")
        yield Line(f"rule: {self.rule}", "dim")


def idle_devices(*, min_free: float | str = 0.9, max_utilisation: float = 0.05) -> IdleDevices:
    """List the NVIDIA GPUs, who holds them, and which are idle.

    A GPU is idle if it answers, MIG is off, no other process computes on it, at least `min_free` of its memory is
    free, and none of four samples over 0.75 s is above `max_utilisation`. What cannot be seen is not idle. In a
    container the processes of others may not be listed; the bytes they hold always are. Give CUDA_VISIBLE_DEVICES the
    UUID, as the report does: NVML counts by the PCI bus and CUDA, unless CUDA_DEVICE_ORDER=PCI_BUS_ID, by speed, so
    that one index can be two GPUs. Needs the extra `nvidia`; without it, or without a GPU, the result says so.

    **Arguments:**

    - `min_free`: a float, a share of the GPU's memory from 0.0 to 1.0; or bytes, an int or a string such as `"20GiB"`.
    - `max_utilisation`: a share of the time, 0 to 1; 0.05 is 5 %.

    **Returns:** an `IdleDevices`: iterate over it for the idle GPUs, `.idle` holds their indices and `.devices` every
    GPU; printed, it is a table.

    **Raises:** `ValueError` if `min_free` is neither a share nor a byte count, or `max_utilisation` is no share.

    >>> found = idle_devices(min_free="20GiB")
    >>> [device.uuid for device in found]
    [...]
    """
    rule = _Rule(min_free, max_utilisation)
    found = nvml.read_devices()
    if isinstance(found, NoAnswer):
        return IdleDevices((), (), str(rule), found.why, found.fix, found.absent)
    devices = tuple(dataclasses.replace(device, busy=tuple(rule.against(device))) for device in found)
    idle = sorted((device for device in devices if not device.busy), key=lambda device: -(device.free or 0))
    return IdleDevices(tuple(device.index for device in idle), devices, str(rule))


def describe(tenant: Tenant) -> str:
    """One line about a tenant: pid, user, command, bytes."""
    who = "a process that cannot be seen from here, such as one of another container"
    if tenant.command is not None:
        who = f"{tenant.user or 'unknown user'}  {tenant.command}"
    held = "bytes unknown" if tenant.bytes is None else format_bytes(tenant.bytes)
    return f"pid {tenant.pid}  {who}  {held}  {tenant.kind}"


class _Rule:
    """When a GPU is idle."""

    def __init__(self, min_free: float | str, max_utilisation: float):
        if isinstance(min_free, float) and not 0 <= min_free <= 1:
            raise ValueError(
                f"idle_devices got min_free={min_free!r}. Expected a share of the memory from 0.0 to 1.0 as a float, "
                'or bytes as an int or a string such as "20GiB".'
            )
        if not isinstance(min_free, float) and parse_bytes(min_free, "idle_devices: min_free") == 1:
            raise ValueError("idle_devices got min_free=1, which is one byte. Write 1.0 for all of the memory.")
        if isinstance(max_utilisation, bool | str) or not 0 <= max_utilisation <= 1:
            raise ValueError(
                f"idle_devices got max_utilisation={max_utilisation!r}. Expected a share of the time from 0 to 1: "
                "0.05 is 5 %."
            )
        self.share = min_free if isinstance(min_free, float) else None
        self.bytes = 0 if isinstance(min_free, float) else parse_bytes(min_free, "min_free")
        self.most = max_utilisation

    def __str__(self) -> str:
        free = format_bytes(self.bytes) if self.share is None else f"{self.share:.4g} of the memory"
        seconds = (nvml.SAMPLES - 1) * nvml.PAUSE
        return (
            f"at least {free} is free, the utilisation is at most {self.most:.4g} in {nvml.SAMPLES} samples over "
            f"{seconds:g} s, MIG is off, and no other process computes on it"
        )

    def against(self, device: Device) -> Iterator[str]:
        """The reasons why a GPU is not idle."""
        if device.fault:
            yield f"it cannot be used: {device.fault}"
            return
        if device.uuid is None:
            yield "its UUID is not told, so it cannot be named"
        if device.mig:
            yield "MIG is on: its instances are used each by its own UUID (nvidia-smi -L lists them)"
        computing = sum(tenant.kind != "graphics" for tenant in device.tenants or ())
        if device.tenants is None:
            yield "its processes are not told"
        if computing:
            yield f"{computing} other process{'es' if computing > 1 else ''} computing on it"
        if device.free is None or device.total is None:
            yield "its memory is not told"
        else:
            ours = device.free + (device.own or 0)
            least = self.bytes if self.share is None else self.share * device.total
            if ours < least:
                yield f"{format_bytes(ours)} free, less than {format_bytes(least)}"
        if device.mig:
            return  # its utilisation is that of the instances
        if device.utilisation is None:
            yield "its utilisation is not told"
        elif device.utilisation > self.most:
            yield f"utilisation {device.utilisation:.4g}, more than {self.most:.4g}"


def _figures(device: Device) -> str:
    memory, utilisation = "memory unknown", "utilisation unknown"
    if device.free is not None and device.total is not None:
        memory = f"{format_bytes(device.free)} of {format_bytes(device.total)} free"
    if device.utilisation is not None:
        utilisation = f"utilisation {device.utilisation:.4g}"
    return f"{memory}, {utilisation}" + (", processes unknown" if device.tenants is None else "")
