"""The pytest plugin: how hard this run tries to find counterexamples. Loads without JAX, and without Hypothesis
where no profile is asked for.
"""

from typing import Any

import pytest

_NAMES = ("fast", "ci", "thorough")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--erythroxy-*`."""
    parser.getgroup("erythroxy_tx").addoption(
        "--erythroxy-profile",
        choices=_NAMES,
        help="how many inputs Hypothesis and tx.testing.prove try: fast 6, ci 60, thorough 1000; always the same "
        "ones, unless --hypothesis-seed is given",
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Load the profile, after Hypothesis's own plugin loaded one."""
    if (name := config.getoption("--erythroxy-profile")) is not None:
        from erythroxy_tx.testing.registration import load

        load(name, seeded=config.getoption("--hypothesis-seed", default=None) is not None)


def pytest_report_header(config: pytest.Config) -> Any:
    """Say which profile runs."""
    name = config.getoption("--erythroxy-profile")
    return None if name is None else f"erythroxy_tx: profile {name}"
