"""The mark `no_recompile`, the fixture `compiles`, and the table of `--erythroxy-compiles`."""

import re
from pathlib import Path

import pytest

from tests.testing.of_pytest import run

START = """
import collections, hypothesis, hypothesis.strategies as st, jax, numpy as np, pytest, unittest
runs = collections.defaultdict(list)
def again(name):
    runs[name].append(len(runs[name]))
    print(name, "run", len(runs[name]))
    return len(runs[name])
def ones(n): return np.ones(n, np.float32)
def jitted(): return jax.jit(lambda x: x + 1)
f = jitted()
"""

# Each compiles a function of its own.
MARKED = """
f_same, f_other = jitted(), jitted()

@pytest.mark.no_recompile
def test_same():
    again("same")
    f_same(ones(3))

@pytest.mark.no_recompile
def test_other():
    f_other(ones(3 + again("other")))

f_late, f_too_late, f_at_once = jitted(), jitted(), jitted()

@pytest.mark.no_recompile(warmup=3)
def test_late():
    f_late(ones(min(again("late"), 3)))

@pytest.mark.no_recompile(warmup=1)
def test_too_late():
    f_too_late(ones(min(again("too late"), 3)))

@pytest.mark.no_recompile(warmup=0)
def test_at_once():
    f_at_once(ones(again("at once")))

@pytest.mark.no_recompile(warmup="1")
def test_no_number():
    pass

f_warm, f_cold = jitted(), jitted()

@pytest.mark.no_recompile
def test_warm(compiles):
    again("warm")
    with compiles.warm():
        f_warm(ones(3))
    f_warm(ones(3))
    assert compiles.traces == 0 and len(runs["warm"]) == 1

@pytest.mark.no_recompile
def test_cold(compiles):
    with compiles.warm():
        f_cold(ones(3))
    f_cold(ones(4))

@pytest.fixture
def x():
    return jax.jit(lambda: jax.numpy.arange(5.0))()

f_of_x = jitted()

@pytest.mark.no_recompile
@pytest.mark.parametrize("times", [1, 2])
def test_fixture(x, times, compiles):
    f_of_x(x)
    assert compiles.traces <= (times == 1)

f_drawn, f_grown = jitted(), jitted()

@pytest.mark.no_recompile(warmup=1)
@hypothesis.settings(max_examples=5, database=None, deadline=None, derandomize=True)
@hypothesis.given(st.integers(0, 9))
def test_drawn(n):
    again("drawn")
    f_drawn(ones(3))

@pytest.mark.no_recompile(warmup=1)
@hypothesis.settings(max_examples=5, database=None, deadline=None, derandomize=True)
@hypothesis.given(st.integers(0, 9))
def test_grown(n):
    f_grown(ones(3 + again("grown")))

class TestCase(unittest.TestCase):
    @pytest.mark.no_recompile
    def test_of_unittest(self):
        pass

@pytest.mark.no_recompile
async def test_asynchronous():
    pass
"""


def outcome(tmp_path: Path, body: str, *options: str) -> str:
    return run(tmp_path, START + body, "--tb=short", *options)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one process prints of all that is marked."""
    return outcome(tmp_path_factory.mktemp("marked"), MARKED, "-rA")


def passed(printed: str, name: str) -> bool:
    """Whether a test passed; if not, it failed."""
    [verdict] = set(re.findall(rf"^(PASSED|FAILED) test_it\.py::{name}\b", printed, re.MULTILINE))
    return verdict == "PASSED"


def test_the_body_runs_once_to_warm_up_and_once_more(printed: str) -> None:
    assert passed(printed, "test_same")
    assert "same run 2" in printed
    assert "same run 3" not in printed
    assert not passed(printed, "test_other")
    assert "test_other, marked no_recompile, run 2: <lambda> (test_it.py:" in printed
    assert "x: f32[4] → f32[5], axis 0" in printed


def test_more_warm_ups_and_none(printed: str) -> None:
    assert passed(printed, "test_late")
    assert "late run 4" in printed
    assert not passed(printed, "test_too_late")
    assert not passed(printed, "test_at_once")
    assert "at once run 2" not in printed
    assert not passed(printed, "test_no_number")
    assert "Expected warmup= and a number" in printed


def test_a_warm_up_inside(printed: str) -> None:
    assert passed(printed, "test_warm")
    assert not passed(printed, "test_cold")
    assert "after with compiles.warm()" in printed


def test_fixtures_are_no_part_of_the_body(printed: str) -> None:
    assert passed(printed, "test_fixture")


def test_the_examples_of_hypothesis_are_the_calls(printed: str) -> None:
    assert passed(printed, "test_drawn")
    assert "drawn run 2" in printed
    assert not passed(printed, "test_grown")
    assert "test_grown, marked no_recompile" in printed


def test_where_it_would_do_nothing_it_is_refused(printed: str) -> None:
    assert not passed(printed, "TestCase::test_of_unittest")
    assert "is no test function of pytest's own" in printed
    assert not passed(printed, "test_asynchronous")
    assert "is asynchronous" in printed


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_the_table(tmp_path: Path, options: tuple[str, ...]) -> None:
    body = """
def test_much():
    for n in range(3):
        jax.jit(lambda x: x * n)(1.0)

def test_little():
    jax.jit(lambda x: x - 1)(1.0)

def test_nothing():
    pass
"""
    printed = outcome(tmp_path, body, "--erythroxy-compiles", *options)
    assert "slowest to trace and compile" in printed
    most = printed.partition("tests that compiled most")[2].splitlines()
    counts = {line.split()[-1].partition("::")[2]: line.split()[2] for line in most[1:3]}
    assert counts == {"test_much": "3", "test_little": "1"}  # in the order of their seconds, which vary
    assert "4 compiled, in 2 tests" in printed


def test_no_table_where_none_is_asked_for(printed: str) -> None:
    assert "slowest" not in printed


def test_other_guards_are_around_each_run_of_the_body(tmp_path: Path) -> None:
    body = """
v = [jax.numpy.float32(i) + 0.5 for i in range(40)]
r = iter(range(40))

@pytest.mark.no_host_sync
def test_reads():
    float(v[next(r)])

@pytest.mark.no_host_sync(allow=1)
def test_reads_as_many_as_it_may():
    float(v[next(r)])

@pytest.mark.no_host_sync(allow=1)
@pytest.mark.no_recompile
def test_of_two_runs_each_reads_one():
    float(v[next(r)])
    f(ones(7))

@pytest.mark.no_host_sync
@hypothesis.settings(max_examples=3, database=None, deadline=None, derandomize=True)
@hypothesis.given(st.integers(0, 9))
def test_examples(n):
    float(v[next(r)])

@pytest.mark.no_host_sync
class TestOfAClass:
    def test_reads(self):
        float(v[next(r)])

@pytest.mark.no_host_sync
async def test_late():
    pass

@pytest.mark.no_disk_io
def test_disk(tmp_path):
    (tmp_path / "x").write_text("x")

@pytest.mark.no_disk_io(allow="/")
def test_disk_that_is_allowed(tmp_path):
    (tmp_path / "x").write_text("x")

kept = []

@pytest.mark.host_flat("20MiB")
def test_grows():
    kept.append(np.ones(2**23))

@pytest.mark.host_flat("20MiB")
def test_grows_in_the_first_run_alone():
    if again("grown") == 1:
        kept.append(np.ones(2**23))
"""
    printed = outcome(tmp_path, body, "-rA")
    assert "6 failed, 4 passed" in printed
    for guard in ("tx.no_host_sync", "tx.no_disk_io", "tx.host_flat"):
        assert f"with {guard}(): " in printed
    for name in (
        "test_reads_as_many_as_it_may",
        "test_of_two_runs_each_reads_one",
        "test_disk_that_is_allowed",
        "test_grows_in_the_first_run_alone",
    ):
        assert f"PASSED test_it.py::{name}" in printed
    assert "is marked no_host_sync and is asynchronous" in printed
