"""`erythroxy env`: prints the lines of a shell that set up JAX for one GPU. Standard output holds nothing else."""

import argparse
import os
import sys

from erythroxy_tx.host.devices import IdleDevices
from erythroxy_tx.host.devices import describe
from erythroxy_tx.host.devices import idle_devices
from erythroxy_tx.host.nvml import Device
from erythroxy_tx.host.xla_env import LATENCY_HIDING
from erythroxy_tx.host.xla_env import SHELLS
from erythroxy_tx.host.xla_env import settings
from erythroxy_tx.host.xla_env import shell_lines
from erythroxy_tx.host.xla_env import xla_knows

_EXAMPLES = """\
Examples:
  eval "$(erythroxy env)"                           # an idle GPU, and 0.6 of its memory
  eval "$(erythroxy env --gpu 1 --fraction 0.3)"    # GPU 1 of nvidia-smi, idle or not
  eval "$(erythroxy env --gpu none)"                # the scheduler of the cluster chooses the GPU
  erythroxy env --shell fish | source

Exit status: 0; 1 if the GPU cannot be had: there is none with that index or UUID, it cannot be used, or with auto
none is idle; 2 if the command could not run. With 1 and 2 nothing is on standard output. On a machine without a GPU
auto is 0: the other lines are printed."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--gpu",
        default="auto",
        metavar="auto|INDEX|UUID|none",
        help="an idle GPU, this one of nvidia-smi, or no word about GPUs (default: auto)",
    )
    parser.add_argument(
        "--fraction",
        type=float,
        default=0.6,
        metavar="SHARE",
        help="of the GPU's memory that JAX takes when it starts (default: 0.6)",
    )
    parser.add_argument("--shell", choices=SHELLS, default="sh", help="sh is any POSIX shell (default: sh)")


def run(arguments: argparse.Namespace) -> int:
    """Print the lines. Returns 0, or 1 where the GPU cannot be had, or 2 where that cannot be told."""
    device, wanted = None, arguments.gpu
    if wanted not in {"auto", "none"} and not wanted.isdecimal() and not wanted.startswith(("GPU-", "MIG-")):
        raise ValueError(
            f"--gpu {wanted} is no index and no UUID of nvidia-smi -L. Fix: use --gpu auto, or --gpu none."
        )
    if wanted != "none":
        found = idle_devices()
        if found.why:
            if found.absent and wanted == "auto":
                _say(f"{found.why}: CUDA_VISIBLE_DEVICES stays as it is.")
            else:
                lack = f"GPU {wanted} cannot be had: " if found.absent else ""
                _say(f"{lack}{found.why}. Fix: use --gpu none, or {found.fix.rstrip('.')}.")
                return 1 if found.absent else 2
        else:
            device = _choose(found, wanted)
            if device is None:
                return 1
    before = os.environ.get("CUDA_VISIBLE_DEVICES", device.uuid if device else None)
    if device is not None and before != device.uuid:
        _say(f"CUDA_VISIBLE_DEVICES was {before!r}, and is replaced.")
    chosen = settings(arguments.fraction, device, os.environ, knows_flag=xla_knows(LATENCY_HIDING))
    print("\n".join(shell_lines(chosen, arguments.shell)))
    return 0


def _choose(found: IdleDevices, wanted: str) -> Device | None:
    """The GPU that is asked for; None, after saying why, if it cannot be had."""
    if wanted == "auto":
        device = next(iter(found), None)
        if device is None:
            _say(f"no GPU is idle.\n{found}\n--gpu INDEX takes one that is not.")
        return device
    device = next((each for each in found.devices if wanted in {str(each.index), each.uuid}), None)
    if device is None:
        names = ", ".join(f"{each.index} ({each.uuid})" for each in found.devices)
        _say(f"GPU {wanted} cannot be had: it is none of the GPUs here: {names}.")
        return None
    if device.fault or device.mig or device.uuid is None:
        _say(f"GPU {device.index} cannot be had: {'; '.join(device.busy)}.")
        return None
    for tenant in device.tenants or ():
        _say(f"GPU {device.index} is shared with {describe(tenant)}.")
    return device


def _say(words: str) -> None:
    print(f"erythroxy env: {words}", file=sys.stderr)
