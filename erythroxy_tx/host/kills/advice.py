"""What to do about a kill, in the order in which it helps: hold less on the host, then stream, then wait for room."""

from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.kill import Sign

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
    (
        "It kills a whole group, not the largest process. In a group of its own, with a limit of its own, the job does "
        "not take the terminal with it: `systemd-run --user --scope -p MemoryMax=... python train.py`."
    ),
)
_ALLOCATOR = (
    "An allocator that refuses memory raises an exception. For the memory of the device: `tx.chunked` with a budget, "
    "and `erythroxy doctor` for how much of it JAX may take."
)
_UNKNOWN = (
    (
        "Look again where more can be read, and soon: as root or a member of the group systemd-journal, and on the "
        "host where this is a container."
    ),
    "Keep what the next one leaves: the exit status of the process, and a `time.time()` from before it for `since`.",
)


def advice(kill: Kill | None, signs: tuple[Sign, ...]) -> tuple[str, ...]:
    """What to do first; `kill` is the one to answer for, None where the cause is not known."""
    if kill is None:
        refused = any(sign.kind == "allocator" for sign in signs)
        return (_ALLOCATOR,) if refused else _UNKNOWN
    over = kill.limit_of or "its control group"
    steps = (_HOLD_LESS, _STREAM, _WAIT)
    if kill.killer == "systemd-oomd":
        raised = f"A higher ManagedOOMMemoryPressureLimit= on {over} lets it wait longer; the machine stalls meanwhile."
        return (*steps, *_OOMD, *([raised] if kill.reason not in {"memory-and-swap", "swap"} else []))
    if kill.scope == "cgroup":
        return (
            *steps,
            f"Where the machine has room, raise the limit of {over}: MemoryMax= of its unit, or that of the container.",
            "If each checkpoint leaves more, `saves_left` of `erythroxy_tx.host.kills.growth` says which is the last.",
        )
    if kill.scope in {"cpuset", "mempolicy"}:
        wider = "cpuset.mems" if kill.scope == "cpuset" else "the policy (`numactl --interleave=all`)"
        return (*steps, f"Other NUMA nodes may have memory left: widen {wider}.")
    if kill.killer == "earlyoom":
        return (*steps, "earlyoom kills below its thresholds (-m and -s), first with SIGTERM: exit status -15 or 143.")
    return steps
