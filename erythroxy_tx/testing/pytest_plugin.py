"""The pytest plugin: how hard this run tries to find counterexamples, a mark for each guard, the fixture `compiles`,
and a table of what compiled. Loads without JAX, and without Hypothesis where no profile is asked for.
"""

import functools
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = ("fast", "ci", "thorough")
_MARKS = {
    "no_recompile": "(warmup=1): fail where the body traces or compiles anything after its warm-up",
    "no_host_sync": "(allow=0): fail where the body reads device arrays on the host",
    "no_disk_io": "(allow=()): fail where the body reads or writes the disk",
    "host_flat": "(max_growth, warmup=1): fail where the host's memory grows by more in a run after the warm-up",
}
_HONOURED = pytest.StashKey[bool]()
_BY_TEST = pytest.StashKey[Any]()  # of this process
_FOUND = pytest.StashKey[list]()  # of this process and the workers together


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--erythroxy-*`."""
    group = parser.getgroup("erythroxy_tx")
    group.addoption(
        "--erythroxy-compiles",
        action="store_true",
        help="at the end, a table of the slowest compiles, and of the tests that compiled most",
    )
    group.addoption(
        "--erythroxy-profile",
        choices=_NAMES,
        help="how many inputs Hypothesis and tx.testing.prove try: fast 6, ci 60, thorough 1000; always the same "
        "ones, unless --hypothesis-seed is given",
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Load the profile, after Hypothesis's own plugin loaded one."""
    for name, does in _MARKS.items():
        config.addinivalue_line("markers", name + does)
    config.stash[_FOUND] = []
    if (name := config.getoption("--erythroxy-profile")) is not None:
        from erythroxy_tx.testing.registration import load

        load(name, seeded=config.getoption("--hypothesis-seed", default=None) is not None)


def pytest_report_header(config: pytest.Config) -> Any:
    """Say which profile runs."""
    name = config.getoption("--erythroxy-profile")
    return None if name is None else f"erythroxy_tx: profile {name}"


# ---------------------------------------------------------------------- the guards


@pytest.fixture
def compiles() -> Iterator[Any]:
    """What this test traces, lowers and compiles: a recorder, as of `tx.compiles()`."""
    import erythroxy_tx as tx

    with tx.compiles() as recorder:
        yield recorder


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    """Run the body of a test that is marked with a guard as its marks say."""
    marks = _marks(pyfuncitem)
    if not marks:
        return (yield)
    import erythroxy_tx as tx
    from erythroxy_tx.testing.marked import inside
    from erythroxy_tx.testing.marked import repeated

    recorder: Any = pyfuncitem.funcargs.get("compiles")
    kept = body = pyfuncitem.obj
    for name, mark in marks.items():
        if name != "no_recompile":
            given = dict(mark.kwargs)
            warmup = given.pop("warmup", 1) if name == "host_flat" else 0  # the first run of a test compiles
            block = functools.partial(getattr(tx, name), *mark.args, **given)
            body = inside(body, pyfuncitem.name, name, block, warmup)
    if "no_recompile" in marks:
        warmup = _warmup(marks["no_recompile"])
        body = repeated(body, pyfuncitem.name, warmup, lambda: recorder.clear() if recorder is not None else None)
    pyfuncitem.obj = body
    pyfuncitem.stash[_HONOURED] = True
    try:
        return (yield)
    finally:
        pyfuncitem.obj = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """Refuse a mark where it would do nothing."""
    result = yield
    marks = _marks(item)
    if marks and not item.stash.get(_HONOURED, False):
        name = next(iter(marks))
        pytest.fail(
            f"{item.nodeid} is marked {name}, and is no test function of pytest's own (a unittest.TestCase?), so "
            f"that nothing was watched. Fix: with tx.{name}(...): inside of it.",
            pytrace=False,
        )
    return result


def _marks(item: pytest.Item) -> dict[str, pytest.Mark]:
    """The closest mark of each guard."""
    return {name: mark for name in _MARKS if (mark := item.get_closest_marker(name)) is not None}


def _warmup(mark: pytest.Mark) -> int:
    warmup = mark.kwargs.get("warmup", mark.args[0] if mark.args else 1)
    if len(mark.args) > 1 or set(mark.kwargs) - {"warmup"} or not isinstance(warmup, int) or warmup < 0:
        raise ValueError(
            f"pytest.mark.no_recompile got {mark.args} and {mark.kwargs}. Expected warmup= and a number ≥ 0."
        )
    return warmup


# ---------------------------------------------------------------------- --erythroxy-compiles


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Tell which test runs."""
    if item.config.getoption("--erythroxy-compiles"):
        from erythroxy_tx.testing.by_test import ByTest

        if _BY_TEST not in item.config.stash:
            item.config.stash[_BY_TEST] = ByTest()
        item.config.stash[_BY_TEST].test = item.nodeid
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what was found to the process that prints."""
    if (by_test := session.config.stash.get(_BY_TEST, None)) is not None:
        found = session.config.stash[_FOUND]
        found += by_test.found
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["erythroxy_compiles"] = by_test.found


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker of xdist found."""
    node.config.stash[_FOUND] += map(tuple, getattr(node, "workeroutput", {}).get("erythroxy_compiles", []))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table."""
    if config.getoption("--erythroxy-compiles"):
        from erythroxy_tx.testing.by_test import table

        terminalreporter.section("compiles")
        for line in table(config.stash[_FOUND]):
            terminalreporter.write_line(line)
