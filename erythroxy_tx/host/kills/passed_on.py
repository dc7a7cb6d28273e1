"""The words of shells and schedulers that pass on a kill, without who sent it or to which process: signs."""

import re

from erythroxy_tx.host.kills.kill import Sign
from erythroxy_tx.host.kills.records import Record

_SHELL = re.compile(r"(?a)Killed|\S.*: line \d+: +\d+ Killed\b.*|\[\d+\][+-]? +Killed\b.*|zsh: killed\b.*")
_SLURM = re.compile(r"(?a)Detected (\d{1,9}) oom[-_]kill event\(?s?\)? in (?:StepId|step)\s*=?\s*\S+")
_KUBERNETES = re.compile(r"\bOOMKilled\b")


def read(record: Record) -> Sign | None:
    """What is passed on of a kill; None for anything else."""
    if _SHELL.fullmatch(record.said):
        return Sign("sigkill", "a shell saw SIGKILL; who sent it is not said", record.line)
    if found := _SLURM.search(record.said):
        text = f"Slurm tells of {found[1]} kill(s) by the kernel in a step; whom is not said"
        return Sign("passed-on", text, record.line)
    if _KUBERNETES.search(record.said):
        return Sign("passed-on", "Kubernetes says that the kernel killed in a container; whom is not said", record.line)
    return None
