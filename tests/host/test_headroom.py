"""`wait_for_headroom`: returns when there is room and the machine is calm, or says what binds and how to mend it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from machine import GIB
from machine import Machine

from erythroxy_tx.errors import BudgetError
from erythroxy_tx.errors import StallError
from erythroxy_tx.host import headroom
from erythroxy_tx.host.headroom import wait_for_headroom


class Clock:
    """Time that passes by sleeping alone; `then` says what has changed by a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then: dict[int, Callable[[], None]] = {}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.then.pop(int(self.now), lambda: None)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(headroom, "time", made)
    return made


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """2 of 32 GiB available, and calm."""
    made = Machine(tmp_path)
    made.meminfo(32 * GIB, 2 * GIB)
    made.pressure()
    return made


@pytest.mark.parametrize("need", [1, "2GiB", 2 * GIB])
def test_room_that_is_there_is_not_waited_for(machine: Machine, clock: Clock, need: int | str) -> None:
    assert wait_for_headroom(need, timeout=0, root=machine.root) == 0


def test_it_waits_until_there_is_room(machine: Machine, clock: Clock) -> None:
    clock.then[5] = lambda: machine.meminfo(32 * GIB, 9 * GIB)
    assert wait_for_headroom("8GiB", root=machine.root) == 5


def test_it_waits_until_the_pressure_is_calm(machine: Machine, clock: Clock) -> None:
    machine.pressure(some=30.0)
    clock.then[3] = lambda: machine.pressure(some=5.0)
    clock.then[7] = lambda: machine.pressure(some=4.9)
    assert wait_for_headroom("1GiB", timeout="1min", root=machine.root) == 7


def test_little_room_is_enough_where_little_is_asked_for(machine: Machine, clock: Clock) -> None:
    machine.meminfo(32 * GIB, GIB)  # pressure() calls that scarce
    assert wait_for_headroom("512MiB", timeout=0, root=machine.root) == 0


def test_without_pressure_the_room_decides(machine: Machine, clock: Clock) -> None:
    (machine.root / "proc/pressure/memory").unlink()
    assert wait_for_headroom("1GiB", timeout=0, root=machine.root) == 0


def test_page_cache_that_can_be_reclaimed_is_room(machine: Machine, clock: Clock) -> None:
    machine.version_2("/job")
    machine.group("/job", usage=4 * GIB, limit=4 * GIB, file=GIB)
    assert wait_for_headroom("1GiB", timeout=0, root=machine.root) == 0


def test_a_time_that_is_up_names_the_room_who_binds_and_the_fix(machine: Machine, clock: Clock) -> None:
    machine.version_2("/job")
    machine.group("/job", usage=3 * GIB, limit=4 * GIB)
    with pytest.raises(StallError) as error:
        wait_for_headroom("2GiB", timeout=2.5, root=machine.root)
    assert clock.now == 2.5
    assert isinstance(error.value, TimeoutError)
    for text in (
        "wait_for_headroom('2GiB', timeout=2.5) found 1.0 GiB of room, by memory.max of /job, after 2 s",
        "Expected 2.0 GiB, and calm. Fix: end what else holds memory there, or raise that limit",
    ):
        assert text in str(error.value)


def test_a_machine_that_stalls_names_the_stall(machine: Machine, clock: Clock) -> None:
    machine.pressure(some=30.0)
    with pytest.raises(
        StallError, match=r"reclaiming: some task of the machine .* 30.0 %.*until what stalls the machine"
    ):
        wait_for_headroom("1GiB", timeout=0, root=machine.root)


def test_what_can_never_come_is_refused_at_once(machine: Machine, clock: Clock) -> None:
    with pytest.raises(BudgetError, match=r"got 33.0 GiB, and the host has 32.0 GiB in all: that room can never come"):
        wait_for_headroom("33GiB", root=machine.root)
    machine.version_2("/job")
    machine.group("/job", usage=GIB, limit=4 * GIB)
    with pytest.raises(BudgetError, match=r"got 5.0 GiB, and memory.max of /job allows 4.0 GiB in all"):
        wait_for_headroom("5GiB", root=machine.root)
    assert clock.now == 0


def test_a_limit_that_is_set_while_it_waits_ends_the_wait(machine: Machine, clock: Clock) -> None:
    machine.version_2("/job")
    machine.group("/job", usage=3 * GIB, limit=16 * GIB)
    clock.then[4] = lambda: machine.group("/job", usage=3 * GIB, limit=4 * GIB) and None
    with pytest.raises(BudgetError, match=r"allows 4.0 GiB"):
        wait_for_headroom("8GiB", root=machine.root)
    assert clock.now == 4


def test_a_machine_that_tells_no_room_is_refused(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(OSError, match=r"cannot tell what room there is: .*MemAvailable"):
        wait_for_headroom("1GiB", root=tmp_path)


def test_the_room_of_a_group_is_not_that_of_the_host(machine: Machine, clock: Clock) -> None:
    machine.version_2("/job")
    machine.group("/job", usage=GIB, limit=64 * GIB)
    machine.write("proc/meminfo", "MemTotal: 33554432 kB\n")
    with pytest.raises(OSError, match=r"cannot tell what room there is: .*MemAvailable"):
        wait_for_headroom("40GiB", timeout=0, root=machine.root)


@pytest.mark.parametrize(("need", "timeout", "name"), [("much", None, "need"), (0, None, "need"), (1, -1, "timeout")])
def test_other_values_are_refused(machine: Machine, need: int | str, timeout: float | None, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}="):
        wait_for_headroom(need, timeout, root=machine.root)
