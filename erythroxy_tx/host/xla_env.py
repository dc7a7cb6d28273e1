"""Settings for JAX on a GPU, as variables of the environment, and the lines of a shell that set them. Not here: which
GPU is idle (`devices.py`), and what is wrong with the settings that there are (`doctor.py`).
"""

import dataclasses
import importlib.util
import math
import mmap
import shlex
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

from erythroxy_tx.host.nvml import Device
from erythroxy_tx.host.xla_flags import file_of
from erythroxy_tx.host.xla_flags import flags_of
from erythroxy_tx.units import format_bytes

SHELLS = ("sh", "fish")
FRACTION, OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
LATENCY_HIDING = "xla_gpu_enable_latency_hiding_scheduler"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One variable: `value` is None where it is to be taken away."""

    name: str
    value: str | None
    reason: str


def settings(
    fraction: float, device: Device | None, environ: Mapping[str, str], *, knows_flag: bool | None
) -> tuple[Setting, ...]:
    """The variables for JAX on one GPU, which it may share.

    **Arguments:**

    - `fraction`: the share of the GPU's whole memory that JAX takes when it starts, above 0, at most 1.
    - `device`: the GPU; None leaves the choice to what is set already.
    - `environ`: what is set already; XLA_FLAGS is added to.
    - `knows_flag`: whether XLA knows the latency hiding scheduler; None if that is unknown.

    **Returns:** at most one `Setting` for each variable.

    **Raises:** `ValueError` if `fraction` is no share, or is more than what is free on `device`.
    """
    if not 0 < fraction <= 1:
        raise ValueError(
            f"the fraction is {fraction!r}. Expected a share of the GPU's memory above 0 and at most 1, such as 0.6."
        )
    found = [Setting("CUDA_VISIBLE_DEVICES", device.uuid, _about(device))] if device is not None else []
    found += [
        Setting(FRACTION, str(fraction), _about_fraction(fraction, device)),
        Setting(OLD_FRACTION, None, f"the old name of {FRACTION}; with both JAX does not start"),
        _flags(environ.get("XLA_FLAGS", ""), knows_flag),
    ]
    return tuple(found)


def shell_lines(found: tuple[Setting, ...], shell: str = "sh") -> Iterator[str]:
    """The lines that make the settings, then a comment for each, so that they also work when they are joined."""
    for setting in found:
        if setting.value is not None:
            quote = shlex.quote if shell == "sh" else _fish_quote
            export = f"export {setting.name}=" if shell == "sh" else f"set -gx {setting.name} "
            yield f"{export}{quote(setting.value)};"
        elif setting.name == OLD_FRACTION:
            yield f"unset {setting.name};" if shell == "sh" else f"set -e {setting.name};"
    for setting in found:
        yield f"# {setting.name}: {' '.join(setting.reason.split())}"


def xla_knows(flag: str) -> bool | None:
    """Whether the XLA that is installed knows a flag: one that it does not know ends the process.

    The name is looked for in the compiled libraries of jaxlib and of JAX's CUDA plugins, so nothing is imported.

    **Returns:** None where there is no library to look in.
    """
    libraries = list(_libraries())
    name = flag.encode() + b"\0"  # as compiled code holds its strings: no longer name that begins like it
    return all(_holds(path, name) for path in libraries) if libraries else None


def _about(device: Device) -> str:
    state = f"busy: {'; '.join(device.busy)}" if device.busy else "idle"
    return f"GPU {device.index} of nvidia-smi, {device.name}, {state}; the UUID is the same GPU for CUDA, in any order"


def _about_fraction(fraction: float, device: Device | None) -> str:
    about = f"JAX takes {fraction:g} of the memory of each GPU that it sees when it starts, and no more"
    if device is None or device.total is None or device.free is None:
        return about
    share, free = fraction * device.total, device.free + (device.own or 0)
    if share > free:
        fits = math.floor(100 * free / device.total) / 100
        raise ValueError(
            f"{fraction:g} of GPU {device.index}'s {format_bytes(device.total)} is {format_bytes(share)}, and "
            f"{format_bytes(free)} is free. " + (f"--fraction {fits:g} fits." if fits else "Choose another GPU.")
        )
    about += f": {format_bytes(share)}"
    if device.tenants and not 0.5 <= fraction <= 0.7:
        others = f"{len(device.tenants)} other process{'es are' if len(device.tenants) > 1 else ' is'} on it"
        about += f"; {others}, where 0.5 to 0.7 leaves room for both"
    return about


def _flags(now: str, knows: bool | None) -> Setting:
    """XLA_FLAGS with the latency hiding scheduler, or None and why not."""
    flag = f"--{LATENCY_HIDING}=true"
    if any(flag.name == LATENCY_HIDING for flag in flags_of(now)[0]):
        return Setting("XLA_FLAGS", None, f"left as it is: it sets {LATENCY_HIDING}")
    if now.strip() and file_of(now) is not None:
        return Setting("XLA_FLAGS", None, f"left as it is: it names a file, where {flag} may be added")
    if knows is None:
        return Setting("XLA_FLAGS", None, f"left as it is: no jaxlib is installed here that would know {flag}")
    if not knows:
        return Setting("XLA_FLAGS", None, f"left as it is: the jaxlib that is installed does not know {flag}")
    about = "copies and collectives overlap with computing, which is off by default; the peak of memory may rise"
    flags = f"{flag} {now}".strip()  # in front, where XLA reads it whatever follows
    return Setting("XLA_FLAGS", flags, about + ("; what was set before stays" if now.strip() else ""))


def _libraries() -> Iterator[Path]:
    for package, pattern in (("jaxlib", "libjax_common.*"), ("jax_plugins", "xla_cuda*/xla_cuda_plugin.*")):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from Path(folder).glob(pattern)


def _holds(path: Path, name: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name) >= 0


def _fish_quote(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
