"""Real processes: one that goes past the limit of its group, and one that is sent SIGKILL, are told apart."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from erythroxy_tx.host.cgroup import memory_cgroups
from erythroxy_tx.host.kills.sources import Sources
from erythroxy_tx.host.oom import diagnose_oom

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")

LIMIT = 32 * 2**20
_ACCOUNT = re.compile(r"\S+ (?:memory: usage|Memory cgroup stats for)")
GREEDY = """
import os, sys
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
held = []
while len(held) < 256:
    held.append(bytearray(os.urandom(1)) * 2**20)
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """The folder of a fresh control group below this process's own, or below one above it, with a small limit."""
    if Path("/proc/sys/vm/panic_on_oom").read_text().strip() == "2":
        pytest.skip("the machine would panic")
    made: Path | None = None
    for group in memory_cgroups():
        if group.version == 2 and "memory" not in (group.folder / "cgroup.subtree_control").read_text().split():
            continue
        folder = group.folder / f"erythroxy-{os.getpid()}-{time.monotonic_ns()}"
        try:
            folder.mkdir()
            made = folder
            (folder / ("memory.max" if group.version == 2 else "memory.limit_in_bytes")).write_text(str(LIMIT))
            for name, swap in (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", LIMIT)):
                if (folder / name).exists():
                    (folder / name).write_text(str(swap))
            break
        except OSError:
            if made:
                made.rmdir()
            made = None
    if made is None:
        pytest.skip("no control group with a limit can be made here")
    yield made
    for _ in range(100):  # it is busy until the kernel has let go of the process
        try:
            made.rmdir()
            return
        except OSError:
            time.sleep(0.02)


def the_ring_can_be_read() -> bool:
    sources = Sources()
    sources._read_ring(None)
    return bool(sources.looked_at) and not sources.counts_other_processes()


def greedy_child(folder: Path) -> subprocess.Popen:
    """One that went past the limit of the group, after its end."""
    child = subprocess.Popen([sys.executable, "-c", GREEDY, str(folder / "cgroup.procs")])
    status = child.wait(timeout=60)
    if status >= 0:
        pytest.skip("a process cannot enter the group, or swap takes what is past its limit")
    assert status == -signal.SIGKILL
    version = 2 if (folder / "memory.max").exists() else 1
    counters = (folder / ("memory.events" if version == 2 else "memory.oom_control")).read_text().split()
    assert int(counters[counters.index("oom_kill") + 1]) == 1
    return child


def test_past_the_limit_of_its_group(small_group: Path) -> None:
    began = time.time()
    child = greedy_child(small_group)
    if not the_ring_can_be_read():
        pytest.skip("the kernel's ring cannot be read here, or has other numbers for processes")
    found = diagnose_oom(pid=child.pid, status=child.returncode, since=began)
    assert found.cause == "kernel", found
    (kill,) = found.kills
    assert (kill.killer, kill.scope, kill.pid, kill.signal) == ("kernel", "cgroup", child.pid, "KILL")
    assert kill.cgroup is not None
    assert kill.cgroup.endswith(small_group.name)
    assert kill.limit_of == kill.cgroup
    assert 0 < kill.anon < 2 * LIMIT
    assert abs(kill.time - began) < 60
    assert all(str(child.pid) in line for line in kill.evidence if not _ACCOUNT.match(line))
    assert kill.limit_bytes in {LIMIT, None}  # a kernel without those lines


def test_the_counters_name_nobody(small_group: Path) -> None:
    """A second child of the group, killed by hand: that the group has had a kill is told, and blames none for it."""
    greedy_child(small_group)
    waits = (
        f"open({str(small_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", f"import os, time; {waits}"], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        found = diagnose_oom(pid=child.pid)
        assert found.counters[0].kills == 1
        assert found.counters[0].limit == LIMIT
        child.kill()
        assert child.wait() == -9
    assert found.cause == "unknown"
    assert "The kernel has killed 1 in" in found.verdict
    assert "whom is not told" in found.verdict


def test_sent_sigkill_is_unknown() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child.kill()
    assert child.wait() == -9
    child.stdin.close()
    found = diagnose_oom(pid=child.pid, status=child.returncode)
    assert (found.cause, found.kills) == ("unknown", ())
    assert found.verdict.startswith("SIGKILL, cause unknown")
    assert found.looked_at or found.could_not_read


def test_a_child_that_nobody_has_waited_for_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        found = diagnose_oom(pid=child.pid, status=-9)
    assert found.verdict.startswith("SIGKILL, cause unknown")


def test_case_50_exit_status_137_is_no_proof() -> None:
    """Source: cBio/cbio-cluster#232, danijar/dreamerv3#203, noelshin/selfmask#11."""
    code = "import os, signal; x = bytearray(20_000_000); os.kill(os.getpid(), signal.SIGKILL)"
    kills = [group.kills for group in memory_cgroups()]
    popen = subprocess.run([sys.executable, "-c", code], check=False).returncode
    shell = int(subprocess.check_output(["sh", "-c", f"{sys.executable} -c '{code}' 2>/dev/null; echo $?"]).split()[-1])
    assert (popen, shell) == (-9, 137)
    if [group.kills for group in memory_cgroups()] != kills:
        pytest.skip("somebody else was killed meanwhile")
    by_popen, by_shell = diagnose_oom(pid=2**22 + 1, status=popen), diagnose_oom(pid=2**22 + 1, status=shell)
    assert by_popen.cause == by_shell.cause == "unknown"
    assert by_popen.verdict == by_shell.verdict
    assert by_popen.verdict.startswith("SIGKILL, cause unknown")
    assert by_popen.looked_at + by_popen.could_not_read
    assert by_popen.counters == () or by_popen.counters[0].peak is None or by_popen.counters[0].peak > 0
