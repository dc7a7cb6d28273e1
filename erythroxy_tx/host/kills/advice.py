"""What to do about a kill, in the order in which it helps: hold less on the host, then stream, then wait for room."""

import re

from erythroxy_tx.host.kills.allocators import is_of_the_host
from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.kill import Sign
from erythroxy_tx.host.kills.verdict import CRASHES
from erythroxy_tx.host.kills.verdict import ended_by_itself
from erythroxy_tx.host.kills.verdict import signal_of

_HOLD_LESS = (
    "1. Hold less on the host: keep the small base there and build what is large on the device, with "
    "`tx.vram_resident`. `tx.host_flat` holds the function to that."
)
_STREAM = (
    "2. Stream what is left: rows in chunks with `tx.chunked`, a data set a few segments at a time with "
    "`tx.SegmentPool`."
)
_WAIT = (
    "3. Start when the machine has room: `erythroxy pressure` shows how much, and `tx.wait_for_headroom` waits for it."
)
_OOMD = (
    (
        "Raising MemoryMax= does not help, unless the job was at that limit: systemd-oomd goes by time lost waiting "
        "for memory, and by swap."
    ),
    "ManagedOOMMemoryPressure=auto on the unit does not help: a group above it is the one that is watched.",
    "A cap on swap turns the kill into a stall.",
)
_OOMD_SWAP = (
    "Raising MemoryMax= does not help: this rule of systemd-oomd goes by what is in use on the whole machine.",
    "More swap lets it come later, and the machine slows down on the way; less swap lets it come sooner.",
    (
        "A cap on swap (MemorySwapMax= of the unit) keeps the job from filling it: a stall, or a kill by the kernel, "
        "in its place."
    ),
)
_GROUP = "It kills a whole group, not the largest process."
_OWN_GROUP = (
    f"{_GROUP} In a group of its own, with a limit of its own, the job does not take the terminal with it: "
    "`systemd-run --user --scope -p MemoryMax=... python train.py`."
)
_ALLOCATOR = (
    "An allocator that refuses memory raises an exception. For the memory of the device: `tx.chunked` with a budget, "
    "and `erythroxy doctor` for how much of it JAX may take."
)
_MORE = (
    "Look again where more can be read, and soon: as root or a member of the group systemd-journal, and on the "
    "host where this is a container."
)
_MORE_THAN_A_FILE = (
    "A file tells what it holds: on the machine that ran the job, `erythroxy oom` reads the journal, the kernel's "
    "ring and the counters of control groups."
)
_SENDERS = (
    "Others send {name} too: `docker stop` and the kubelet when a container does not end in time, a scheduler such as "
    "Slurm at a limit of time or of memory, a person with `kill`. Their own logs tell."
)
_KEEP = "Keep what the next one leaves: the exit status of the process, and a `time.time()` from before it for `since`."
_CRASH = "Look for the place of the crash: `python -X faulthandler` prints it, and `coredumpctl` may hold the rest."
_ENDED = "Read the last lines that it has written itself: with a status of its own it was not killed."
_RUNS = "`erythroxy pressure` shows how near a kill is."


def advice(kill: Kill) -> tuple[str, ...]:
    """What to do first about a kill."""
    over = kill.limit_of or "its control group"
    steps = (_HOLD_LESS, _STREAM, _WAIT)
    if kill.killer == "systemd-oomd":
        group = _GROUP if _is_own(kill.unit) else _OWN_GROUP
        if kill.reason in {"memory-and-swap", "swap"}:
            return (*steps, *_OOMD_SWAP, group)
        raised = f"A higher ManagedOOMMemoryPressureLimit= on {over} lets it wait longer; the machine stalls meanwhile."
        return (*steps, *_OOMD, group, raised)
    if kill.scope == "cgroup":
        return (
            *steps,
            f"Where the machine has room, raise the limit of {over}: {_limit_of(kill)}.",
            "If each checkpoint leaves more, `saves_left` of `erythroxy_tx.host.kills.growth` says which is the last.",
        )
    if kill.scope in {"cpuset", "mempolicy"}:
        wider = "cpuset.mems" if kill.scope == "cpuset" else "the policy (`numactl --interleave=all`)"
        return (*steps, f"Other NUMA nodes may have memory left: widen {wider}.")
    if kill.killer == "earlyoom":
        return (*steps, "earlyoom kills below its thresholds (-m and -s), first with SIGTERM: exit status -15 or 143.")
    return steps


def advice_without_kill(
    signs: tuple[Sign, ...], status: int | None, *, is_running: bool, is_file: bool, may_read_more: bool
) -> tuple[str, ...]:
    """What to do where the cause is not known."""
    refused = [sign for sign in signs if sign.kind == "allocator"]
    if refused:
        return (_HOLD_LESS, _STREAM) if is_of_the_host(refused[-1]) else (_ALLOCATOR,)
    name = signal_of(status)
    if is_running:
        return (_RUNS,)
    if name in CRASHES:
        return (_CRASH,)
    if ended_by_itself(status):
        return (_ENDED,) if status else ()
    more = (_MORE_THAN_A_FILE,) if is_file else (_MORE,) if may_read_more else ()
    senders = (_SENDERS.format(name=name),) if name in {"SIGKILL", "SIGTERM"} else ()
    return (*senders, *more, _KEEP)


def _is_own(unit: str | None) -> bool:
    """Whether a unit holds one job, and not the terminal or the session that it was started from."""
    return unit is not None and (unit.endswith(".service") or (unit.startswith("run-") and unit.endswith(".scope")))


def _limit_of(kill: Kill) -> str:
    """Where the limit of its group is set."""
    path = kill.limit_of or kill.cgroup
    if path is None:
        return "MemoryMax= of its unit, or that of the container"
    if "/kubepods" in path:
        return "`resources.limits.memory` of the container"
    if re.search(r"/docker[/-]", path):
        return "`docker run --memory` of the container"
    return "MemoryMax= of its unit"
