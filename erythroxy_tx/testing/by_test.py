"""What each test compiled, for the table at the end of a run. Not here: how pytest calls it (`pytest_plugin.py`)."""

import collections
from typing import Any

from erythroxy_tx.compiling import events
from erythroxy_tx.compiling.events import Event

_MOST = 15  # lines of each table


class ByTest:
    """Listens to every compile, and keeps with each the test that ran."""

    def __init__(self) -> None:
        self.test = ""
        self.found: list[tuple[str, str, str, float]] = []  # test, stage, name, seconds
        events.listen()
        events.LISTENERS.add(self)

    def heard(self, event: Event) -> None:
        """Take an event."""
        self.found.append((self.test, event.stage, event.name, event.seconds))


def table(found: list[Any]) -> list[str]:
    """The slowest compiles, and the tests that compiled most, as lines."""
    if not found:
        return ["nothing was traced or compiled"]
    together: dict[tuple[str, str], float] = collections.defaultdict(float)  # a program's trace, lowering and compile
    times: collections.Counter[str] = collections.Counter()
    seconds: dict[str, float] = collections.defaultdict(float)
    for test, stage, name, took in found:
        together[test, name] += took
        seconds[test] += took
        times[test] += stage == "compile"
    slowest = sorted(together.items(), key=lambda item: -item[1])[:_MOST]
    lines = ["slowest to trace and compile", *(f"{took:8.2f} s  {name}  {test}" for (test, name), took in slowest)]
    most = sorted(seconds.items(), key=lambda item: -item[1])[:_MOST]
    lines += [
        "",
        "tests that compiled most",
        *(f"{took:8.2f} s  {times[test]:5d} compiled  {test}" for test, took in most),
    ]
    return [*lines, "", f"{sum(seconds.values()):.2f} s, {sum(times.values())} compiled, in {len(seconds)} tests"]
