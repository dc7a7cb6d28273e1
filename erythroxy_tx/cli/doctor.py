"""`erythroxy doctor`: what is wrong with the settings of JAX, XLA and the machine."""

import argparse

from erythroxy_tx.cli.show import show
from erythroxy_tx.host.doctor import doctor
from erythroxy_tx.progress import progress


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.epilog = (
        "Exit status: 0 clean, notes aside; 1 there are errors or warnings; 2 it could not run.\n\n"
        "Examples:\n  erythroxy doctor\n  XLA_FLAGS=--xla_foo=1 erythroxy doctor\n  erythroxy doctor --json"
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, and print what was found. Returns the exit status."""
    with progress("asking JAX in another process"):
        found = doctor()
    show(found, json=arguments.json)
    return 0 if found.is_clean else 1
