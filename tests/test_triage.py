"""The triage page: what it names exists, and what it calls missing is missing. Its examples run with the pages."""

import re
from pathlib import Path

import erythroxy_tx as tx
from erythroxy_tx import cli

PAGE = (Path(__file__).parent.parent / "docs" / "triage.md").read_text(encoding="utf-8")
BUILT, NOT_BUILT = PAGE.split("## Not built")

NAME = re.compile(r"\btx\.(\w+)")
COMMAND = re.compile(r"(?:`|\$\(|^ +)erythroxy (\w+)", re.MULTILINE)


def test_every_name_exists() -> None:
    names = set(NAME.findall(BUILT))
    assert len(names) > 25
    assert not names - set(tx.__all__)


def test_every_command_exists() -> None:
    commands = set(COMMAND.findall(PAGE))
    assert commands == {"oom", "pressure", "doctor", "env", "cache", "explain"}
    folder = Path(cli.__file__).parent
    assert not [name for name in commands if not (folder / f"{name}.py").is_file()]


def test_what_is_not_built_is_not_built() -> None:
    """And the page names no other way than what is built."""
    missing = re.findall(r"^- `tx\.(\w+)`", NOT_BUILT, re.MULTILINE)
    assert missing == ["audit", "plan"]
    assert not set(missing) & set(tx.__all__)
    assert not set(NAME.findall(NOT_BUILT)) - set(missing) - set(tx.__all__)


def test_every_row_leads_somewhere() -> None:
    rows = [line for line in BUILT.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 6
    assert all(NAME.search(row) or COMMAND.search(row) for row in rows)
    steps = re.split(r"^\*\*(\d)\. ", BUILT, flags=re.MULTILINE)
    assert steps[1::2] == [str(i) for i in range(1, 10)]
    assert all(NAME.search(step) or "](#" in step for step in steps[2::2])
