"""Which control groups count the memory of a process: of planted trees of both versions, and of this machine."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import GIB
from machine import Machine

from erythroxy_tx.host.cgroup import memory_cgroups
from erythroxy_tx.host.cgroup import pressure_folder
from erythroxy_tx.host.cgroup import pressure_folders

VERSION_1 = "35 31 0:32 {top} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
UNLIMITED = 9223372036854771712
ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="control groups are of Linux")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def version_1(machine: Machine, group: str, usage: int, limit: int, swap: int = UNLIMITED) -> None:
    folder = f"sys/fs/cgroup/memory/{group.strip('/')}"
    total = {"cache": 900, "rss": 100, "shmem": 200, "active_file": 300, "inactive_file": 400, "swap": 5}
    stat = "cache 1\nrss 2\n" + "".join(f"total_{name} {count}\n" for name, count in total.items())
    files = {"usage_in_bytes": usage, "max_usage_in_bytes": usage + 1, "limit_in_bytes": limit}
    for name, value in {**files, "memsw.limit_in_bytes": swap}.items():
        machine.write(f"{folder}/memory.{name}", f"{value}\n")
    machine.write(f"{folder}/memory.stat", stat)
    machine.write(f"{folder}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n")


def test_version_2_from_the_own_group_up_to_the_top(machine: Machine) -> None:
    machine.version_2("/user.slice/job.scope")
    machine.group("/user.slice", 3 * GIB, high=8 * GIB)
    folder = machine.group("/user.slice/job.scope", 2 * GIB, limit=4 * GIB, file=GIB // 4)
    job, user, top = memory_cgroups(root=machine.root)
    assert [group.path for group in (job, user, top)] == ["/user.slice/job.scope", "/user.slice", "/"]
    assert (job.version, job.folder, job.usage, job.limit, job.high) == (2, folder, 2 * GIB, 4 * GIB, None)
    assert job.file == GIB // 4  # shared memory, which `file` of memory.stat has too, cannot be reclaimed
    assert (job.anon, job.peak, job.swap_usage, job.swap_limit, job.kills) == (GIB * 3 // 2, 2 * GIB, 0, None, 2)
    assert (user.limit, user.high) == (None, 8 * GIB)
    assert top.usage is top.limit is top.file is None  # the top group of all has none of these files


def test_version_1(machine: Machine) -> None:
    machine.mounts(VERSION_1.format(top="/"), "36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuacct,cpu")
    machine.write("proc/self/cgroup", "5:cpu,cpuacct:/elsewhere\n4:memory:/job\n1:name=systemd:/init.scope\n")
    version_1(machine, "/", 5000, UNLIMITED)
    version_1(machine, "/job", 1000, 4096, 6144)
    job, top = memory_cgroups(root=machine.root)
    assert (job.path, job.version, job.usage, job.peak, job.limit, job.high) == ("/job", 1, 1000, 1001, 4096, None)
    assert (job.anon, job.file, job.swap_usage, job.swap_limit, job.kills) == (100, 700, 5, 2048, 7)
    assert (top.limit, top.swap_limit) == (None, None)
    assert pressure_folder(root=machine.root) is None


def test_hybrid_memory_by_version_1_and_pressure_by_version_2(machine: Machine) -> None:
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    machine.mounts(VERSION_1.format(top="/"), unified)
    machine.write("proc/self/cgroup", "4:memory:/job\n0::/job/step\n")
    version_1(machine, "/job", 1000, 4096)
    (machine.root / "sys/fs/cgroup/unified/job/step").mkdir(parents=True)
    assert [(group.version, group.path) for group in memory_cgroups(root=machine.root)] == [(1, "/job"), (1, "/")]
    folder = machine.root / "sys/fs/cgroup/unified"
    assert pressure_folders(root=machine.root) == {
        folder / "job/step": "/job/step",
        folder / "job": "/job",
        folder: "/",
    }


def test_a_container_with_a_namespace_sees_its_group_as_the_root(machine: Machine) -> None:
    machine.version_2("/")
    machine.group("/", 2 * GIB, limit=4 * GIB)
    (group,) = memory_cgroups(root=machine.root)
    assert (group.path, group.limit) == ("/", 4 * GIB)


@pytest.mark.parametrize("top", ["/docker/ab12", r"/machine.slice/machine-a\134x2db.scope"])
def test_a_container_without_a_namespace_has_its_group_mounted(machine: Machine, top: str) -> None:
    machine.version_2(top.replace(r"\134", "\\") + "/task", top)
    machine.group("/", 3 * GIB, limit=4 * GIB)
    machine.group("/task", 2 * GIB)
    assert [group.path for group in memory_cgroups(root=machine.root)] == ["/task", "/"]
    assert memory_cgroups(root=machine.root)[1].limit == 4 * GIB


@pytest.mark.parametrize("path", ["/../other", "/docker/other", "/docker/ab12345"])
def test_a_group_outside_of_the_mount_is_not_looked_for_inside(machine: Machine, path: str) -> None:
    machine.version_2(path, "/docker/ab12")
    machine.group("/", GIB)
    machine.group("/other", 2 * GIB)
    machine.group("/docker/other", 2 * GIB)
    assert [group.path for group in memory_cgroups(root=machine.root)] == ["/"]


def test_of_two_mounts_the_one_that_holds_the_group(machine: Machine) -> None:
    other = "50 22 0:26 /docker/ab12 /mnt/inner rw - cgroup2 cgroup2 rw"
    machine.mounts(other, "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    machine.write("proc/self/cgroup", "0::/job\n")
    machine.group("/job", GIB)
    assert [group.path for group in memory_cgroups(root=machine.root)] == ["/job", "/"]


def test_a_group_above_the_namespace_is_not_looked_for_above_the_mount(machine: Machine) -> None:
    machine.version_2("/../other")
    machine.group("/", GIB)
    machine.group("/../other", 2 * GIB)
    assert [group.path for group in memory_cgroups(root=machine.root)] == ["/"]


@pytest.mark.parametrize("path", ["/user.slice/gone.scope", "/user.slice/gone.scope (deleted)"])
def test_of_a_group_that_was_removed_the_nearest_that_is_left(machine: Machine, path: str) -> None:
    machine.version_2(path)
    machine.group("/user.slice", GIB)
    assert [group.path for group in memory_cgroups(root=machine.root)] == ["/user.slice", "/"]


def test_what_may_not_be_read_is_none(machine: Machine) -> None:
    machine.version_2("/job")
    folder = machine.group("/job", GIB, limit=2 * GIB)
    for name in ("memory.current", "memory.stat"):
        (folder / name).unlink()
        (folder / name).mkdir()  # which is refused to everybody, root too
    job, _ = memory_cgroups(root=machine.root)
    assert job.usage is job.anon is job.file is None
    assert job.limit == 2 * GIB


@pytest.mark.parametrize("cgroup", [None, "", "nonsense\n4:memory\n", "4:memory:/job\n"])
def test_no_groups(machine: Machine, cgroup: str | None) -> None:
    machine.mounts()
    if cgroup is not None:
        machine.write("proc/self/cgroup", cgroup)
    assert memory_cgroups(root=machine.root) == ()
    assert pressure_folder(root=machine.root) is None


def test_another_system(tmp_path: Path) -> None:
    assert memory_cgroups(root=tmp_path) == ()
    assert pressure_folders(root=tmp_path) == {}


def test_another_process_and_one_that_has_ended(machine: Machine) -> None:
    machine.version_2("/mine")
    machine.write("proc/77/cgroup", "0::/theirs\n")
    machine.group("/theirs", GIB)
    assert memory_cgroups(77, root=machine.root)[0].path == "/theirs"
    assert memory_cgroups(78, root=machine.root) == ()


# ------------------------------------------------------------------ this machine


@ONLY_LINUX
def test_a_process_of_this_machine_that_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert memory_cgroups(child.pid) == ()


@contextlib.contextmanager
def new_group(limit: int) -> Iterator[Path]:
    """A group below the one of this process with a limit of memory."""
    own = memory_cgroups()
    if not own:
        pytest.skip("no control groups here")
    folder = own[-1].folder / f"erythroxy-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if own[0].version == 2 else "memory.limit_in_bytes")).write_text(str(limit))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no group can be made here: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()


@ONLY_LINUX
def test_a_real_group_with_a_limit() -> None:
    with new_group(64 * 2**20) as folder:
        program = "import sys; print('ready', flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                (folder / "cgroup.procs").write_text(str(child.pid))
                child.stdout.readline()
                group = memory_cgroups(child.pid)[0]
            finally:
                child.stdin.close()
                child.wait()
    assert group.path == f"/{folder.name}"
    assert group.limit == 64 * 2**20
    assert group.usage is not None
    assert group.usage < group.limit
    assert group.kills == 0
