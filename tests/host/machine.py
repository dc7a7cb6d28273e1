"""A planted machine: the files under /proc and /sys that tell of memory and pressure, in a folder of a test."""

from pathlib import Path

GIB = 2**30


class Machine:
    """`root` is what functions of `erythroxy_tx.host` take."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def meminfo(self, total: int, available: int, swap_total: int = 0, swap_free: int = 0) -> None:
        kib = {"MemTotal": total, "MemAvailable": available, "SwapTotal": swap_total, "SwapFree": swap_free}
        lines = [f"{name}:  {size // 1024} kB\n" for name, size in kib.items()]
        self.write("proc/meminfo", "".join([*lines, "HugePages_Total:       0\n"]))

    def psi(self, path: str, some: float = 0.0, full: float = 0.0, total: int = 0) -> None:
        lines = [
            f"{kind} avg10={now:.2f} avg60=0.50 avg300=0.25 total={total}\n"
            for kind, now in (("some", some), ("full", full))
        ]
        self.write(path, "".join(lines))

    def pressure(self, some: float = 0.0, full: float = 0.0, total: int = 0) -> None:
        """Of the machine."""
        for resource in ("memory", "io", "cpu"):
            self.psi(f"proc/pressure/{resource}", some, full, total)

    def mounts(self, *lines: str) -> None:
        self.write("proc/self/mountinfo", "\n".join(["22 1 8:1 / / rw shared:1 - ext4 /dev/sda rw", *lines, ""]))

    def version_2(self, path: str, top: str = "/", pid: str = "self") -> None:
        self.mounts(f"30 22 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate")
        self.write(f"proc/{pid}/cgroup", f"0::{path}\n")
        (self.root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)

    def group(self, path: str, usage: int, limit: int | str = "max", high: int | str = "max", file: int = 0) -> Path:
        """A group of version 2; half of `file` is active, and as much again is shared memory."""
        folder = f"sys/fs/cgroup/{path.strip('/')}"
        stat = {"anon": usage - 2 * file, "file": 2 * file, "shmem": file}
        stat |= {"inactive_file": file - file // 2, "active_file": file // 2}
        files = {"current": usage, "max": limit, "high": high, "peak": usage, "swap.current": 0, "swap.max": "max"}
        for name, value in files.items():
            self.write(f"{folder}/memory.{name}", f"{value}\n")
        self.write(f"{folder}/memory.stat", "".join(f"{name} {size}\n" for name, size in stat.items()))
        self.write(f"{folder}/memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n")
        return self.write(f"{folder}/cgroup.events", "populated 1\nfrozen 0\n").parent
