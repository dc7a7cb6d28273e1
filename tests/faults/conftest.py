"""Prints how many inputs each planted fault took."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    caught = [dict(report.user_properties) for report in terminalreporter.stats.get("passed", [])]
    faults = sorted((found for found in caught if "planted fault" in found), key=lambda found: -found["inputs"])
    if not faults:
        return
    terminalreporter.section("planted faults, and the inputs that each took")
    for found in faults:
        terminalreporter.write_line(f"{found['inputs']:5}  {found['planted fault']}, under {found['way']}")
