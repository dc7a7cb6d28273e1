"""The words of systemd about a unit in which something was killed, old and new. Not here: those of systemd-oomd itself.

Where the journal gives the number of the message that counts, whatever the words.
Sources: src/core/unit.c and src/systemd/sd-messages.h of systemd.
"""

import re
from fractions import Fraction

from erythroxy_tx.host.kills.kill import EITHER
from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.kill import Sign
from erythroxy_tx.host.kills.kill import Told
from erythroxy_tx.host.kills.records import Record

OOMD_KILL = "d989611b15e44c9dbf31e3c81256e4ed"
OUT_OF_MEMORY = "fe6faa94e7774663a0da52717891d8ef"
PROCESS_EXIT = "98e322203f7a4ed290d09fe03c09fe15"
FAILURE_RESULT = "d9b373ed55a64feb8242e02dbe79a49c"
RESOURCES = "ae8f7b866b0347b9af31fe1c80b127c0"

_UNIT = re.compile(r"(\S+\.(?:service|scope|slice|socket|mount|swap)): (.*)")
_OOMD = re.compile(r"(?a)systemd-oomd killed (\d{1,9}|some) process\(es\) in this unit")
_KERNEL = re.compile(r"A process of this unit has been killed by the OOM killer|The kernel OOM killer killed some ")
_RESULT = re.compile(r"Failed with result 'oom-kill'")
_PEAK = re.compile(r"(?a)Consumed .*?, (\d{1,5}(?:\.\d)?)([BKMGT]) memory peak")
_SIGKILL = re.compile(r"Main process exited, code=killed, status=9/KILL")
_BYTES = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def read(record: Record) -> Told | None:
    """What systemd tells of a kill in a unit; None for anything else, and for anybody else."""
    if record.speaker != "systemd":
        return None
    found = _UNIT.fullmatch(record.said)
    unit, words = found.groups() if found else (record.unit, record.said)
    if unit is None:
        return None
    oomd = _OOMD.match(words)
    if oomd or record.message_id == OOMD_KILL:
        count = int(oomd[1]) if oomd and oomd[1] != "some" else None
        return Told(record, "killed", Kill("systemd-oomd", unit=unit, processes=count))
    if _KERNEL.match(words) or record.message_id == OUT_OF_MEMORY:
        return Told(record, "killed", Kill("kernel", unit=unit))
    either = Kill(EITHER, unit=unit)
    if _RESULT.match(words):
        return Told(record, "result", either)
    if peak := _PEAK.match(words):
        either = Kill(EITHER, unit=unit, peak=int(Fraction(peak[1]) * _BYTES[peak[2]]))
        return Told(record, "detail", either)
    if _SIGKILL.match(words):
        sign = Sign("sigkill", f"the main process of {unit} got SIGKILL; who sent it is not said", record.line)
        return Told(record, "detail", either, sign)
    return None
