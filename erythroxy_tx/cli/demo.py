"""`erythroxy demo`: the example that the README shows."""

import argparse
import subprocess
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.epilog = "Options after -- are the example's: erythroxy demo -- --help"
    parser.add_argument("options", nargs="*", metavar="-- OPTIONS", help="what the example takes")


def run(arguments: argparse.Namespace) -> int:
    """Run the example with what follows --. Returns its exit status."""
    command = [sys.executable, str(_example("relocate_ridge.py")), *arguments.options]
    return subprocess.run(command, check=False).returncode  # noqa: S603  # our own file


def _example(name: str) -> Path:
    """An example's file: in an installed package beside this one, in a checkout beside the package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "examples", package.parent / "examples"):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{name} is not installed. Expected it in {package / 'examples'}.")
