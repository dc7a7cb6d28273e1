"""Every situation that may make JAX compile again, through each form of `no_recompile`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import erythroxy_tx as tx
from tests.compiling.situations import ALL
from tests.compiling.situations import Situation
from tests.testing.of_pytest import run

each = pytest.mark.parametrize("situation", ALL, ids=lambda situation: situation.name)


def as_decorator(warm: Callable[[], Any], probe: Callable[[], Any]) -> None:
    run = [warm]

    @tx.no_recompile(warmup=2)
    def call() -> Any:
        return run[0]()

    call()
    call()
    run[0] = probe
    call()


def as_block(warm: Callable[[], Any], probe: Callable[[], Any]) -> None:
    warm()
    warm()
    with tx.no_recompile():
        probe()


def of(situation: Situation, form: Callable[..., None]) -> tx.RetraceError | None:
    jax.clear_caches()
    warm, probe = situation.make()
    try:
        form(warm, probe)
    except tx.RetraceError as error:
        return error
    return None


def judge(situation: Situation, error: tx.RetraceError | None) -> None:
    if situation.kinds is None:
        assert error is None, error
        return
    assert error is not None, "nothing was raised"
    assert {change.kind for change in error.changes} == situation.kinds, error
    assert situation.told in re.sub(r" of <lambda>(?=:)", "", str(error)), error


def test_there_are_enough() -> None:
    assert len(ALL) >= 36


@each
@pytest.mark.parametrize("form", [as_decorator, as_block])
def test_each_situation(situation: Situation, form: Callable[..., None]) -> None:
    judge(situation, of(situation, form))


@each
def test_the_next_good_call_works(situation: Situation) -> None:
    warm, probe = situation.make()
    warm()
    warm()
    try:
        with tx.no_recompile():
            probe()
    except tx.RetraceError:
        warm()


MARKED = """
import jax
import pytest
from tests.compiling.situations import ALL

@pytest.mark.no_recompile
@pytest.mark.parametrize("situation", ALL, ids=lambda situation: situation.name)
def test(situation, compiles):
    with compiles.warm():
        jax.clear_caches()
        warm, probe = situation.make()
        warm()
        warm()
    probe()
"""


def test_each_situation_in_a_marked_test(tmp_path: Path) -> None:
    printed = run(tmp_path, MARKED, "-rA", "--tb=line")
    for situation in ALL:
        wanted = "PASSED" if situation.kinds is None else "FAILED"
        assert re.search(rf"^{wanted} .*\[{situation.name}\]", printed, re.MULTILINE), situation.name
