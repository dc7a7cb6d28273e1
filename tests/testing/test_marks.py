"""The mark `no_recompile`, the fixture `compiles`, and the table of `--erythroxy-compiles`."""

from pathlib import Path

import pytest

from tests.testing.of_pytest import run

START = """
import hypothesis, hypothesis.strategies as st, jax, numpy as np, pytest, unittest
runs = []
def ones(n): return np.ones(n, np.float32)
f = jax.jit(lambda x: x + 1)
"""


def outcome(tmp_path: Path, body: str, *options: str) -> str:
    return run(tmp_path, START + body, "--tb=short", *options)


def test_the_body_runs_once_to_warm_up_and_once_more(tmp_path: Path) -> None:
    body = """
@pytest.mark.no_recompile
def test_it():
    runs.append(len(runs))
    print("run", len(runs))
    f(ones(3 + SIZE * len(runs)))
"""
    printed = outcome(tmp_path, body.replace("SIZE", "0"))
    assert "run 2" in printed
    assert "1 passed" in printed
    printed = outcome(tmp_path, body.replace("SIZE", "1"))
    assert "1 failed" in printed
    assert "test_it, marked no_recompile, run 2: <lambda> (test_it.py:" in printed
    assert "x: f32[4] → f32[5], axis 0" in printed


def test_more_warm_ups_and_none(tmp_path: Path) -> None:
    body = """
@pytest.mark.no_recompile(warmup=WARMUP)
def test_it():
    runs.append(1)
    print("run", len(runs))
    f(ones(min(len(runs), 3)))
"""
    assert "1 passed" in outcome(tmp_path, body.replace("WARMUP", "3"))
    assert "1 failed" in outcome(tmp_path, body.replace("WARMUP", "1"))
    printed = outcome(tmp_path, body.replace("WARMUP", "0"))
    assert "1 failed" in printed
    assert "run 2" not in printed
    assert "Expected warmup= and a number" in outcome(tmp_path, body.replace("WARMUP", "'1'"))


def test_a_warm_up_inside(tmp_path: Path) -> None:
    body = """
@pytest.mark.no_recompile
def test_it(compiles):
    runs.append(1)
    with compiles.warm():
        f(ones(3))
    f(ones(SIZE))
    assert compiles.traces == 0 and len(runs) == 1
"""
    assert "1 passed" in outcome(tmp_path, body.replace("SIZE", "3"))
    printed = outcome(tmp_path, body.replace("SIZE", "4"))
    assert "1 failed" in printed
    assert "after with compiles.warm()" in printed


def test_fixtures_are_no_part_of_the_body(tmp_path: Path) -> None:
    body = """
@pytest.fixture
def x():
    return jax.jit(lambda: jax.numpy.arange(5.0))()

@pytest.mark.no_recompile
@pytest.mark.parametrize("times", [1, 2])
def test_it(x, times, compiles):
    f(x)
    assert compiles.traces <= (times == 1)
"""
    assert "2 passed" in outcome(tmp_path, body)


def test_the_examples_of_hypothesis_are_the_calls(tmp_path: Path) -> None:
    body = """
@pytest.mark.no_recompile(warmup=1)
@hypothesis.settings(max_examples=5, database=None, derandomize=True)
@hypothesis.given(st.integers(0, 9))
def test_it(n):
    runs.append(n)
    f(ones(SIZE))
"""
    assert "1 passed" in outcome(tmp_path, body.replace("SIZE", "3"))
    assert "RetraceError" in outcome(tmp_path, body.replace("SIZE", "3 + len(runs)"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            """
class Test(unittest.TestCase):
    @pytest.mark.no_recompile
    def test_it(self):
        pass
""",
            "is no test function of pytest's own",
        ),
        (
            """
@pytest.mark.no_recompile
async def test_it():
    pass
""",
            "is asynchronous",
        ),
    ],
)
def test_where_it_would_do_nothing_it_is_refused(tmp_path: Path, body: str, told: str) -> None:
    printed = outcome(tmp_path, body)
    assert told in printed
    assert "passed" not in printed


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
    assert "slowest" not in outcome(tmp_path, body, *options)


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
    runs.append(float(v[next(r)]))
    f(ones(7))

@pytest.mark.no_host_sync
@hypothesis.settings(max_examples=3, database=None, derandomize=True)
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
    if not runs or runs[-1] != "grown":
        kept.append(np.ones(2**23))
        runs.append("grown")
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
