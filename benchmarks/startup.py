"""How long `erythroxy` takes, seen from the shell: whole processes, beside Python alone and the import of JAX.

    python benchmarks/startup.py [--runs 15]

No bound: what is slow here is mostly the start of Python. Commands are run in turns, so that a busy moment meets all.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KILL = (
    "Nov 14 13:01:40 host kernel: Out of memory: Killed process 77 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB\n"
)
ROOT = Path(__file__).parent.parent


def seconds(command: list[str]) -> float:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    begin = time.perf_counter()
    done = subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    taken = time.perf_counter() - begin
    if done.returncode not in {0, 1}:  # 1 says that there are findings
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()}")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        log.write_text(KILL)
        erythroxy = [sys.executable, "-m", "erythroxy_tx"]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "erythroxy --help": [*erythroxy, "--help"],
            "erythroxy oom --file": [*erythroxy, "oom", "--file", str(log)],
            "erythroxy pressure": [*erythroxy, "pressure"],
            "erythroxy env --gpu none": [*erythroxy, "env", "--gpu", "none"],
            "erythroxy doctor": [*erythroxy, "doctor"],
            "python -c 'import jax'": [sys.executable, "-c", "import jax"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(runs + 1):
            for name, command in commands.items():
                times[name].append(seconds(command))
    print(f"{'':26}median    quartiles       of {runs} runs, after one that is not counted")
    for name, taken in times.items():
        low, middle, high = statistics.quantiles(taken[1:], n=4)
        print(f"{name:26}{middle:.3f} s   {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
