"""Checks of which GPUs a run sees: the lists of devices, how many they leave, and whether those are idle.

A list names GPUs by index or UUID; an entry that is no GPU ends it, and -1 is such an entry.
Source: CUDA C++ Programming Guide, CUDA environment variables.
"""

import re
from collections.abc import Iterator
from shlex import quote

from erythroxy_tx.host.checkup.facts import Facts
from erythroxy_tx.host.checkup.finding import Finding
from erythroxy_tx.host.checkup.finding import finding
from erythroxy_tx.host.checkup.settings import uses_gpu
from erythroxy_tx.host.checkup.settings import where
from erythroxy_tx.host.nvml import Device
from erythroxy_tx.host.xla_flags import file_of

_CUDA, _HIP, _ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
_UUID = re.compile(r"(GPU|MIG|MIG-GPU)-[0-9A-Fa-f/-]+")
_OF_JAX = "JAX_CUDA_VISIBLE_DEVICES"
_SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"


def check(facts: Facts) -> Iterator[Finding]:
    """Look at the lists, then at the GPUs that they leave."""
    if not uses_gpu(facts):
        return
    for name in (_CUDA, _HIP, _ROCR):
        if name in facts.in_force:
            yield from _list(facts, name)
    if _HIP in facts.in_force and _ROCR in facts.in_force:
        yield finding(
            "E328",
            where(facts, _HIP),
            f"{_ROCR} is set too",
            why=f"{_HIP} then counts among the GPUs that {_ROCR} leaves, from 0",
            fix=f"unset {_HIP}",
        )
    if facts.machine.has_gpu and not is_hidden(facts):
        yield from _policy(facts)


def is_hidden(facts: Facts) -> bool:
    """Whether a list leaves no GPU."""
    return any(name in facts.in_force and not _before_end(facts.in_force[name]) for name in (_CUDA, _HIP, _ROCR))


def visible(facts: Facts) -> list[Device] | None:
    """The NVIDIA GPUs that a run sees, as far as it is known which they are."""
    gpus = facts.machine.gpus
    if gpus is None or facts.read(_OF_JAX) not in {"", "all"}:  # which chooses among what CUDA shows
        return None
    if _CUDA not in facts.in_force:
        return list(gpus)
    entries = _before_end(facts.in_force[_CUDA])
    if any(entry.isdecimal() for entry in entries) and _may_be_another(facts):
        return None
    named = [_named(entry, gpus) for entry in dict.fromkeys(entries)]
    return None if None in named else [gpu for gpu in named if gpu is not None]


def _list(facts: Facts, name: str) -> Iterator[Finding]:
    text = facts.in_force[name]
    entries = [entry.strip() for entry in text.split(",")]
    if not _before_end(text):
        fix = f"export JAX_PLATFORMS=cpu   # or unset {name}, if a GPU is meant"
        yield finding(
            "E321",
            where(facts, name),
            f"{text!r} hides every GPU",
            why="JAX runs on the CPU, or does not start",
            fix=fix,
        )
        return
    if len(set(entries)) < len(entries):
        why = "a GPU may be listed once; CUDA then shows none"
        fix = f"export {name}={','.join(dict.fromkeys(entries))}"
        yield finding("E322", where(facts, name), f"{text!r} lists a GPU twice", why=why, fix=fix)
    gpus = facts.machine.gpus if name == _CUDA else None
    for entry in dict.fromkeys(entries):
        if not entry.isdecimal() and not _UUID.fullmatch(entry):
            what, code = f"{entry!r} is neither an index nor a UUID", "E324"
        elif gpus and not entry.startswith("MIG-") and _named(entry, gpus) is None:
            what, code = f"{entry} is none of the {len(gpus)} GPUs", "E323"
        else:
            continue
        why = "it ends the list: what comes after it is hidden too"
        yield finding(code, where(facts, name), what, why=why, fix=_pin(facts))
        break
    if gpus and entries[0].isdecimal() and _may_be_another(facts):
        what = f"index {entries[0]} among GPUs of {len({gpu.name for gpu in gpus})} models"
        why = "CUDA counts from the fastest, nvidia-smi by the bus, so that one index is two GPUs"
        meant = _named(entries[0], gpus)
        is_idle = len(entries) == 1 and meant is not None and not meant.busy
        fix = "export CUDA_DEVICE_ORDER=PCI_BUS_ID" if is_idle else _pin(facts)
        yield finding("E325", where(facts, name), what, why=why, fix=fix)


def _policy(facts: Facts) -> Iterator[Finding]:
    gpus = visible(facts)
    if gpus is not None and len(gpus) > 1:
        why = "the fraction is taken on each of them at the start, also from those who use them"
        yield finding("E326", _place(facts), f"{len(gpus)} GPUs are visible", why=why, fix=_pin(facts))
    elif gpus is not None and len(gpus) == 1 and _is_of_others(facts, gpus[0]):
        what = f"GPU {gpus[0].index} is not idle: {'; '.join(gpus[0].busy)}"
        yield finding(
            "E327", _place(facts), what, why="one of the two runs short of memory, and both wait", fix=_pin(facts)
        )
    file = file_of(facts.in_force.get("XLA_FLAGS", ""))
    if facts.knows_scheduler and _SCHEDULER not in dict(facts.flag_values):
        yield finding(
            "E329",
            "XLA_FLAGS",
            f"--{_SCHEDULER} is not set",
            why="transfers between devices then do not overlap with computation",
            fix=f"edit {quote(file)}" if file else f'export XLA_FLAGS="--{_SCHEDULER}=true $XLA_FLAGS"',
        )


def _may_be_another(facts: Facts) -> bool:
    """Whether an index of CUDA may be another one of NVML."""
    models = {gpu.name for gpu in facts.machine.gpus or ()}
    return len(models) > 1 and facts.in_force.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _is_of_others(facts: Facts, gpu: Device) -> bool:
    """Whether a GPU is not idle; what this process computes and the instances of MIG do not tell."""
    return bool(gpu.busy) and not gpu.mig and (facts.jax.asked != "this process" or bool(gpu.tenants))


def _before_end(text: str) -> list[str]:
    """The entries up to the first that cannot be a GPU."""
    found = []
    for entry in (entry.strip() for entry in text.split(",")):
        if not entry.isdecimal() and not _UUID.fullmatch(entry):
            break
        found.append(entry)
    return found


def _named(entry: str, gpus: tuple[Device, ...]) -> Device | None:
    if entry.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    return next((gpu for gpu in gpus if (gpu.uuid or "").lower().startswith(entry.lower())), None)


def _place(facts: Facts) -> str:
    return where(facts, _CUDA) if _CUDA in facts.in_force else f"{_CUDA} (not set)"


def _pin(facts: Facts) -> str:
    gpus = facts.machine.gpus
    if not gpus:
        return f"export {_CUDA}=0   # one that nvidia-smi shows idle"
    idle = [gpu for gpu in gpus if not gpu.busy]
    return (
        f"export {_CUDA}={idle[0].uuid or idle[0].index}" if idle else "erythroxy env   # who holds them: none is idle"
    )
