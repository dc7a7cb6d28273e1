"""Decorators for JAX under tight memory: a function fits, stays compiled, stays on the device, and is
proved to compute the same thing, or is refused with the line and the fix.

| to | use |
|---|---|
| run a one-shot function as a stream | `chunked` |
| run it on rows that no memory holds | `chunked` with `stream` |
| run it on the devices of a mesh | `chunked` with `over` |
| compile once for inputs of any length | `pad_static`, `Padded` |
| keep inputs and results on the device | `vram_resident` |
| stop at a silent compile, and see them all | `no_recompile`, `compiles` |
| stop at a read of the device, and see them all | `no_host_sync`, `host_syncs` |
| stop at the disk, and where the host's memory grows | `no_disk_io`, `host_flat` |
| have batches ready | `prefetch`, `SegmentPool`, `generate`, `per_step_key` |
| keep metrics on the device; run something at times | `MetricBuffer`, `every` |
| see where time goes; keep a run's parameters | `phase`, `RunSpec` |
| store less; divide safely | `compress`, `safe_divide` |
| differentiate a scan from a small tape | `checkpointed_scan`, `bf16_carry_scan` |
| compute once what does not change | `hoist_invariants`, `precompute` |
| keep the starts of windows, not the windows | `windows` |
| hold a port against its numpy original | `assert_relocation` |
| time and weigh honestly | `measure` |
| see how the host's memory is, and wait for room | `pressure`, `on_pressure`, `wait_for_headroom` |
| find out who killed a process | `diagnose_oom` |
| find an idle GPU | `idle_devices` |
| see what is wrong with settings, and how the compilation cache fares | `doctor` |
| search for a counterexample | `testing.prove`, `testing.prove_relocation` |
| look at a stack | `explain`, `stack`, `unwrap`, `contract`; `Bitwise`, `Close`, `AsAccurate` |
| forget what was compiled and uploaded | `clear` |

Names are imported on first use, so importing this package needs neither JAX nor a backend.
"""

import importlib
import sys
from typing import TYPE_CHECKING
from typing import Any

from erythroxy_tx.host.checkup.watch import watch

if "jax" in sys.modules:
    # What it imports adds to the key of all programs of jax 0.12, which compiles them again: rather now than later.
    import equinox as equinox

watch()  # `doctor` tells which settings came too late, and how the compilation cache fared

if TYPE_CHECKING:
    from erythroxy_tx.compiling.recorder import compiles as compiles
    from erythroxy_tx.core.cache import clear as clear
    from erythroxy_tx.core.contract import AsAccurate as AsAccurate
    from erythroxy_tx.core.contract import Bitwise as Bitwise
    from erythroxy_tx.core.contract import Close as Close
    from erythroxy_tx.core.padded import Padded as Padded
    from erythroxy_tx.core.stack import contract as contract
    from erythroxy_tx.core.stack import stack as stack
    from erythroxy_tx.core.stack import unwrap as unwrap
    from erythroxy_tx.drivers.over import over as over
    from erythroxy_tx.drivers.stream import stream as stream
    from erythroxy_tx.errors import BudgetError as BudgetError
    from erythroxy_tx.errors import ContractError as ContractError
    from erythroxy_tx.errors import DiskIOError as DiskIOError
    from erythroxy_tx.errors import ErythroxyError as ErythroxyError
    from erythroxy_tx.errors import HostSyncError as HostSyncError
    from erythroxy_tx.errors import IdentityError as IdentityError
    from erythroxy_tx.errors import LengthError as LengthError
    from erythroxy_tx.errors import RelocationError as RelocationError
    from erythroxy_tx.errors import RetraceError as RetraceError
    from erythroxy_tx.errors import RowMixingError as RowMixingError
    from erythroxy_tx.errors import RunSpecError as RunSpecError
    from erythroxy_tx.errors import StaleArrayError as StaleArrayError
    from erythroxy_tx.errors import StallError as StallError
    from erythroxy_tx.errors import StaticArgumentError as StaticArgumentError
    from erythroxy_tx.errors import ThreadError as ThreadError
    from erythroxy_tx.errors import TransformOrderError as TransformOrderError
    from erythroxy_tx.explanation import explain as explain
    from erythroxy_tx.guards.syncs import host_syncs as host_syncs
    from erythroxy_tx.host.devices import idle_devices as idle_devices
    from erythroxy_tx.host.doctor import doctor as doctor
    from erythroxy_tx.host.headroom import wait_for_headroom as wait_for_headroom
    from erythroxy_tx.host.on_pressure import on_pressure as on_pressure
    from erythroxy_tx.host.oom import diagnose_oom as diagnose_oom
    from erythroxy_tx.host.pressure import pressure as pressure
    from erythroxy_tx.measurement.timing import measure as measure
    from erythroxy_tx.runtime.compress import compress as compress
    from erythroxy_tx.runtime.divide import safe_divide as safe_divide
    from erythroxy_tx.runtime.every import every as every
    from erythroxy_tx.runtime.generate import generate as generate
    from erythroxy_tx.runtime.keys import per_step_key as per_step_key
    from erythroxy_tx.runtime.metrics import MetricBuffer as MetricBuffer
    from erythroxy_tx.runtime.phase import phase as phase
    from erythroxy_tx.runtime.prefetch import prefetch as prefetch
    from erythroxy_tx.runtime.run_spec import RunSpec as RunSpec
    from erythroxy_tx.runtime.segments import SegmentPool as SegmentPool
    from erythroxy_tx.runtime.windows import windows as windows
    from erythroxy_tx.transforms.assert_relocation import assert_relocation as assert_relocation
    from erythroxy_tx.transforms.bf16_carry_scan import bf16_carry_scan as bf16_carry_scan
    from erythroxy_tx.transforms.checkpointed_scan import checkpointed_scan as checkpointed_scan
    from erythroxy_tx.transforms.chunked import chunked as chunked
    from erythroxy_tx.transforms.hoist_invariants import hoist_invariants as hoist_invariants
    from erythroxy_tx.transforms.host_flat import host_flat as host_flat
    from erythroxy_tx.transforms.no_disk_io import no_disk_io as no_disk_io
    from erythroxy_tx.transforms.no_host_sync import no_host_sync as no_host_sync
    from erythroxy_tx.transforms.no_recompile import no_recompile as no_recompile
    from erythroxy_tx.transforms.pad_static import pad_static as pad_static
    from erythroxy_tx.transforms.precompute import precompute as precompute
    from erythroxy_tx.transforms.vram_resident import vram_resident as vram_resident

_HOME = {
    "chunked": "transforms.chunked",
    "over": "drivers.over",
    "stream": "drivers.stream",
    "pad_static": "transforms.pad_static",
    "Padded": "core.padded",
    "vram_resident": "transforms.vram_resident",
    "checkpointed_scan": "transforms.checkpointed_scan",
    "bf16_carry_scan": "transforms.bf16_carry_scan",
    "hoist_invariants": "transforms.hoist_invariants",
    "precompute": "transforms.precompute",
    "windows": "runtime.windows",
    "prefetch": "runtime.prefetch",
    "SegmentPool": "runtime.segments",
    "generate": "runtime.generate",
    "MetricBuffer": "runtime.metrics",
    "every": "runtime.every",
    "phase": "runtime.phase",
    "RunSpec": "runtime.run_spec",
    "per_step_key": "runtime.keys",
    "compress": "runtime.compress",
    "safe_divide": "runtime.divide",
    "no_recompile": "transforms.no_recompile",
    "no_host_sync": "transforms.no_host_sync",
    "host_syncs": "guards.syncs",
    "no_disk_io": "transforms.no_disk_io",
    "host_flat": "transforms.host_flat",
    "assert_relocation": "transforms.assert_relocation",
    "measure": "measurement.timing",
    "diagnose_oom": "host.oom",
    "idle_devices": "host.devices",
    "doctor": "host.doctor",
    "compiles": "compiling.recorder",
    "pressure": "host.pressure",
    "on_pressure": "host.on_pressure",
    "wait_for_headroom": "host.headroom",
    "contract": "core.stack",
    "explain": "explanation",
    "stack": "core.stack",
    "unwrap": "core.stack",
    "Bitwise": "core.contract",
    "Close": "core.contract",
    "AsAccurate": "core.contract",
    "clear": "core.cache",
    "BudgetError": "errors",
    "ContractError": "errors",
    "DiskIOError": "errors",
    "ErythroxyError": "errors",
    "HostSyncError": "errors",
    "IdentityError": "errors",
    "LengthError": "errors",
    "RelocationError": "errors",
    "RetraceError": "errors",
    "RowMixingError": "errors",
    "RunSpecError": "errors",
    "StaleArrayError": "errors",
    "StallError": "errors",
    "StaticArgumentError": "errors",
    "ThreadError": "errors",
    "TransformOrderError": "errors",
}

__all__ = list(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "testing":  # its own names are as lazy, and it needs what only tests have installed
        return importlib.import_module("erythroxy_tx.testing")
    if name not in _HOME:
        raise AttributeError(f"module 'erythroxy_tx' has no attribute {name!r}")
    is_first = "jax" in sys.modules and "equinox" not in sys.modules
    value = getattr(importlib.import_module(f"erythroxy_tx.{_HOME[name]}"), name)
    if is_first and "equinox" in sys.modules:
        importlib.import_module("erythroxy_tx._compat").warn_of_first_use()
    watch()  # where JAX was imported after this package
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
