"""The `erythroxy` command. It imports JAX only in the commands that need it."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import erythroxy_tx


def _example(name: str) -> Path:
    """An example's file: in an installed package beside this file, in a checkout beside the package."""
    package = Path(__file__).resolve().parent
    for folder in (package / "examples", package.parent / "examples"):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"erythroxy: {name} is not installed. Expected it in {package / 'examples'}.")


def _demo(arguments: Sequence[str]) -> int:
    command = [sys.executable, str(_example("relocate_ridge.py")), *arguments]
    return subprocess.run(command, check=False).returncode  # noqa: S603  # our own file


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="erythroxy", description="JAX under tight memory.")
    parser.add_argument("--version", action="version", version=f"erythroxy_tx {erythroxy_tx.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser(
        "demo",
        help="relocate a forecaster of stock indices: numpy, one-shot JAX and decorated, in one table",
        description="Run the main job three times and compare.",
        epilog="Options after -- are the example's: erythroxy demo -- --help",
    )
    _, rest = parser.parse_known_args(argv)
    return _demo([argument for argument in rest if argument != "--"])


if __name__ == "__main__":
    sys.exit(main())
