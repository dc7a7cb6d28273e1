"""What a group held and might hold when the kernel killed in it, from the lines before the kill. They name no process.

The kernel writes one account at a time (`oom_lock`): usage and limit, then the group, then the victim and its group.
They are taken for one where nothing else of an account is between them, the group is the same, and the time is near.
Source: mem_cgroup_print_oom_meminfo in mm/memcontrol.c of Linux.
"""

import dataclasses

from erythroxy_tx.host.kills.kill import Told

_NEAR = 5.0  # seconds, for a slow console


def with_limits(told: list[Told]) -> list[Told]:
    """The same, where the lines of an account carry the number of the process that it is about."""
    told = list(told)
    open_accounts: dict[str | None, list[int]] = {}
    for number, part in enumerate(told):
        if part.kill.killer != "kernel" or part.record.speaker not in {"kernel", None}:
            continue
        account = open_accounts.pop(part.record.host, [])
        if part.kind == "detail" and part.kill.limit_bytes is not None:
            open_accounts[part.record.host] = [number]
        elif part.kind == "detail" and part.kill.limit_of is not None and len(account) == 1:
            open_accounts[part.record.host] = [*account, number]
        elif part.kind == "chosen" and len(account) == 2 and _is_one([told[each] for each in account], part):
            for each in account:
                kill = dataclasses.replace(told[each].kill, pid=part.kill.pid)
                told[each] = dataclasses.replace(told[each], kill=kill)
    return told


def _is_one(account: list[Told], chosen: Told) -> bool:
    first, last = account[0].record.time, chosen.record.time
    is_near = (first.kind, first.day) == (last.kind, last.day) and 0 <= last.seconds - first.seconds <= _NEAR
    return is_near and account[1].kill.limit_of == chosen.kill.limit_of
