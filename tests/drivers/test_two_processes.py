"""`tx.over` in several processes: what each has is the same as one-shot, and where they differ all of them refuse and
can go on. Two real processes on this machine make all checks (`in_two_processes.py`), as starting them takes longest.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_two_processes_compute_what_one_does_or_both_refuse() -> None:
    port = str(free_port())
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(HERE.parent.parent),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / "in_two_processes.py", str(me), port],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for me in range(2)
    ]
    try:
        told = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (out, errors) in zip(processes, told, strict=True):
        assert process.returncode == 0, errors
        failed = json.loads(out.splitlines()[-1])
        assert not failed, "\n".join(f"{name}:\n{what}" for name, what in failed.items())
