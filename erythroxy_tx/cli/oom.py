"""`erythroxy oom`: who killed a process for want of memory."""

import argparse
import re
import sys

from erythroxy_tx.cli.show import show
from erythroxy_tx.host.oom import diagnose_oom


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.epilog = """\
Examples:
  erythroxy oom
  erythroxy oom --since 2h
  erythroxy oom --pid 4711 --status 137
  erythroxy oom --file journal.txt --json
  journalctl -b -1 | erythroxy oom --file -

Exit status: 0 no kill found, 1 a kill found, 2 nothing could be read."""
    parser.add_argument(
        "--since", help="how far back: 10min, '1 hour ago', today, or a time; else all since the machine was started"
    )
    parser.add_argument("--pid", type=int, help="the process to ask for, also when it has ended")
    parser.add_argument("--status", type=int, help="how it ended: 137 as a shell says it, or -9 as Popen does")
    parser.add_argument("--file", metavar="LOG", help="read this log in place of the machine; - is standard input")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Diagnose, and print. Returns 1 where a kill was found."""
    file = sys.stdin.buffer if arguments.file == "-" else arguments.file
    try:
        found = diagnose_oom(since=arguments.since, pid=arguments.pid, status=arguments.status, file=file)
    except ValueError as error:  # in the words of the command
        raise ValueError(re.sub(r"\Adiagnose_oom got (\w+)=", r"--\1=", str(error))) from error
    show(found, json=arguments.json)
    if not found.looked_at:
        return 2
    return 1 if found.kills else 0
