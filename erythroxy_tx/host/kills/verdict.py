"""The sentences of a verdict where there is no kill to tell of, or only one of others. Not here: a kill itself."""

import signal

from erythroxy_tx.host.kills.kill import Kill

# Signals that a program brings on itself.
CRASHES = {"SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"}


def signal_of(status: int | None) -> str | None:
    """The name of the signal that an exit status tells of; None where it tells of none."""
    if status is None:
        return None
    try:
        return signal.Signals(-status if status < 0 else status - 128).name
    except ValueError:
        return None


def ended_by_itself(status: int | None) -> bool:
    """Whether an exit status is one that a program gives itself."""
    return status is not None and 0 <= status <= 128


def fits(kill: Kill, status: int | None) -> bool:
    """Whether a process may have ended by this kill. One that is sent SIGTERM may end as it likes."""
    return status is None or signal_of(status) == "SIGKILL" or kill.killer == "earlyoom"


def unknown(pid: int | None, status: int | None, *, is_running: bool) -> str:
    """What is to be said where nothing that was read is evidence of a kill."""
    who = "the process" if pid is None else f"process {pid}"
    if is_running:
        return f"Process {pid} is running: nothing has killed it."
    if status is None:
        return f"No kill of {who} found." if pid is not None else "No kill found."
    if ended_by_itself(status):
        return f"No kill found: {who} ended by itself, with exit status {status}."
    name = signal_of(status)
    if name is None:
        return f"No kill found: exit status {status} is no signal."
    if name in CRASHES:
        return f"{name}, cause unknown: a crash of {who} itself; nobody who wants memory back sends that."
    return f"{name}, cause unknown: nothing that was read tells who sent it to {who}."


def of_others(may_be: tuple[Kill, ...], others: int) -> str:
    """What else was told of: kills that name no process, and how many there are of other processes."""
    said = ""
    if may_be:
        count = f"{len(may_be)} kill{'s' if len(may_be) > 1 else ''} may be of it, since no process is named"
        latest = "; the latest" if len(may_be) > 1 else ""
        said += f" {count}{latest}: {str(may_be[-1]).rstrip('.')}; ask without a pid to see more."
    if others:
        said += f" {others} kill{'s name other processes' if others > 1 else ' names another process'}; "
        said += "in a container a process has another number than the kernel gives it."
    return said


def is_elsewhere(kill: Kill, own: str) -> bool:
    """Whether a kill is told to be of another control group than `own` and those below it."""
    if own == "/":
        return False
    if kill.cgroup is not None:
        return not f"{kill.cgroup}/".startswith(f"{own}/")
    return kill.unit is not None and kill.unit not in own.split("/")


def of_kills(kills: tuple[Kill, ...]) -> str:
    """The latest kill in a sentence; those of other control groups come first in `kills`."""
    latest, elsewhere = kills[-1], sum(kill.elsewhere for kill in kills)
    if latest.elsewhere:
        return f"None in this control group; {elsewhere} elsewhere, the latest: {latest}"
    if len(kills) == 1:
        return str(latest)
    where = f", {elsewhere} of them in other control groups" if elsewhere else ""
    return f"{len(kills)} kills{where}. The latest{' of this group' if elsewhere else ''}: {latest}"
