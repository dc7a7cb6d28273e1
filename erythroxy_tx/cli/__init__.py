"""The `erythroxy` command: one file a command, imported when it is called. None needs JAX to start."""

import argparse
import difflib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

import erythroxy_tx
from erythroxy_tx.errors import ErythroxyError

_COMMANDS = {
    "demo": "relocate a forecaster of stock indices: numpy, one-shot JAX and decorated, in one table",
    "doctor": "check the settings of JAX, XLA and the machine, with a fix for each finding",
    "env": "print the export lines of good settings for this machine",
    "oom": "say who killed a process, by what rule, and what to do first",
    "pressure": "show how much the machine waits for memory, and what room is left",
    "cache": "tell what the compilation cache holds, or clear it",
    "explain": "tell how a function is run: its transforms, passes, and bytes",
}
_COULD_NOT_RUN = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status: 0 clean, 1 there are findings, 2 it could not run."""
    if sys.stdout is None:  # closed, so that nothing can be told
        return _COULD_NOT_RUN
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a log or a path may hold what this terminal cannot show
    try:
        try:
            return _run(sys.argv[1:] if argv is None else list(argv))
        finally:
            sys.stdout.flush()  # a reader that has gone is met here, and not when Python ends
    except BrokenPipeError:  # `| head` has read enough
        return _unwritten()
    except OSError as error:  # the disk is full
        print(f"erythroxy: standard output cannot be written: {error}", file=sys.stderr)
        return _unwritten()


def _unwritten() -> int:
    """What is left to be written goes nowhere, so that Python does not meet it again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _COULD_NOT_RUN


def _run(argv: list[str]) -> int:
    chosen = next((word for word in argv if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog="erythroxy",
        description="JAX under tight memory: what the machine does, and what to do about it.",
        epilog="erythroxy COMMAND --help tells more, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"erythroxy_tx {erythroxy_tx.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=_sentence(summary), formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name == chosen:
            module = importlib.import_module(f"erythroxy_tx.cli.{name}")
            module.configure(command)
            command.set_defaults(run=module.run)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        told = commands.choices[arguments.command]  # the usage of what was called
        known = [option for action in told._actions for option in action.option_strings]
        near = difflib.get_close_matches(unknown[0], known, 1)
        told.error(f"unrecognized arguments: {' '.join(unknown)}" + (f". Did you mean {near[0]}?" if near else ""))
    try:
        return int(arguments.run(arguments))
    except BrokenPipeError:
        raise
    except (ErythroxyError, OSError, ValueError) as error:
        print(f"erythroxy {arguments.command}: {error}", file=sys.stderr)
        return _COULD_NOT_RUN
    except KeyboardInterrupt:
        return 130
    except Exception:  # noqa: BLE001  # Python's own status would be 1, which means findings
        traceback.print_exc()
        return _COULD_NOT_RUN


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."
