"""Run pytest on a few lines in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def run(tmp_path: Path, code: str, *options: str) -> str:
    """Run a test file, and give what was printed. The tests of this library can be imported in it."""
    (tmp_path / "test_it.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *options, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    return found.stdout
