"""The example of two processes, with few rows: `bash` alone runs it, and each process tells what it has."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.skipif(shutil.which("bash") is None, reason="the example is a bash script")
def test_both_processes_have_the_weights_of_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "ROWS": "2003", "TMPDIR": str(tmp_path)}
    command = ["bash", EXAMPLES / "two_processes.sh"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == 0, found.stderr
    assert "one process: 2,003 rows" in found.stdout
    for process, rows in ((0, "1,002"), (1, "1,001")):
        assert f"process {process}: reads {rows} rows" in found.stdout
        assert f"for 2 of 4 devices, and has {rows} forecasts" in found.stdout
    assert found.stdout.count("from those of one process") == 2
    assert not list(tmp_path.iterdir())
