"""The pytest plugin and what Hypothesis learns at its import: profiles, options, types, and no JAX."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import jax
import pytest

import erythroxy_tx as tx
from erythroxy_tx.testing.registration import PROFILES
from tests.testing.of_pytest import run


def test_the_entry_points() -> None:
    for group in ("pytest11", "hypothesis"):
        assert "erythroxy_tx" in {point.name for point in importlib.metadata.entry_points(group=group)}


def test_the_plugin_loads_without_jax(tmp_path: Path) -> None:
    code = """
import sys
def test_it(request):
    assert request.config.pluginmanager.hasplugin("erythroxy_tx")
    print("jax" in sys.modules, "hypothesis" in sys.modules)
"""
    assert "False False" in run(tmp_path, code)
    assert "False True" in run(tmp_path, code, "--erythroxy-profile=fast")


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_for_each_kind_of_run(name: str, tmp_path: Path) -> None:
    code = """
import hypothesis
def test_it():
    given = hypothesis.settings()
    print(given.max_examples, given.derandomize, given.deadline)
"""
    printed = run(tmp_path, code, f"--erythroxy-profile={name}")
    assert f"{PROFILES[name]} True None" in printed
    seeded = run(tmp_path, code, f"--erythroxy-profile={name}", "--hypothesis-seed=3")
    assert f"{PROFILES[name]} False None" in seeded


def test_the_option_comes_before_what_a_conftest_loads(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('import hypothesis\nhypothesis.settings.load_profile("erythroxy_thorough")')
    code = "import hypothesis\ndef test_it():\n    print(hypothesis.settings().max_examples)"
    assert f"{PROFILES['thorough']}" in run(tmp_path, code).splitlines()
    assert f"{PROFILES['fast']}" in run(tmp_path, code, "--erythroxy-profile=fast").splitlines()
    (tmp_path / "conftest.py").unlink()
    assert f"{PROFILES['ci']}" in run(tmp_path, code, "--hypothesis-profile=erythroxy_ci").splitlines()


def test_the_run_says_which_profile_it_has(tmp_path: Path) -> None:
    printed = run(tmp_path, "def test_it(): pass", "--erythroxy-profile=ci", "-v")
    assert "erythroxy_tx: profile ci" in printed
    assert "erythroxy_tx: profile" not in run(tmp_path, "def test_it(): pass", "-v")
    assert (
        "invalid choice: 'slow'"
        in subprocess.run(
            [sys.executable, "-m", "pytest", "--erythroxy-profile=slow"], capture_output=True, text=True, check=False
        ).stderr
    )


def test_a_seed_changes_what_is_drawn(tmp_path: Path) -> None:
    code = """
import zlib
import erythroxy_tx as tx
def test_it():
    seen = []
    tx.testing.prove_relocation(lambda x: x, lambda x: (seen.append(x.tobytes()), x)[1], tx.testing.arrays(shape=9),
                                contract=tx.Bitwise())
    print("drawn", zlib.crc32(b"".join(x for x in seen if isinstance(x, bytes))))
"""
    options = [(), ("--hypothesis-seed=1",), ("--hypothesis-seed=1",), ("--hypothesis-seed=2",)]
    drawn = [
        next(line for line in run(tmp_path, code, "--erythroxy-profile=fast", *each).splitlines() if "drawn" in line)
        for each in options
    ]
    assert drawn[0] != drawn[1] == drawn[2] != drawn[3]


@hypothesis.settings(max_examples=20)
@hypothesis.given(st.data())
def test_types_are_drawn_by_their_name(data: st.DataObject) -> None:
    assert isinstance(data.draw(st.from_type(jax.Array)), jax.Array)
    for kind in (tx.Bitwise, tx.Close, tx.AsAccurate):
        assert isinstance(data.draw(st.from_type(kind)), kind)
