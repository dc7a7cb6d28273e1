"""Prints a report: in colours on a terminal, plain when piped, or as JSON. `NO_COLOR` is heeded."""

import os
import sys

from erythroxy_tx.host.report import Report

_STYLES = {"title": "bold", "good": "green", "warn": "yellow", "bad": "bold red", "dim": "dim"}


def show(report: Report, *, json: bool = False) -> None:
    """Print `report` on standard output."""
    if json:
        print(report.to_json())
    elif sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        print_in_colours(report)
    else:
        print(printable(str(report)))


def printable(text: str) -> str:
    """`text` with what standard output cannot say, such as bytes of a variable that are no text, written out."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_in_colours(report: Report) -> None:
    """Print `report` line by line in the styles of its lines; lines are not broken."""
    from rich.console import Console  # 13 MB: only where it is shown

    console = Console(highlight=False, soft_wrap=True)
    for line in report.lines():
        console.print(printable(line.text), style=_STYLES.get(line.style, ""), markup=False)
