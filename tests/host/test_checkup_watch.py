"""Settings that come too late, in this process and, as case 52 has them, in others."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax._src import xla_bridge

from erythroxy_tx._compat_started import backend_started
from erythroxy_tx.host.checkup.watch import Late
from erythroxy_tx.host.checkup.watch import is_setting
from erythroxy_tx.host.checkup.watch import late_settings

NAME = "XLA_OF_THIS_TEST"


def late(name: str) -> list[Late]:
    return [each for each in late_settings() if each.name == name]


@pytest.fixture(autouse=True)
def started() -> None:
    jax.devices()


def test_a_setting_after_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend_started()
    os.environ[NAME] = "1"
    (found,) = late(NAME)
    line = test_a_setting_after_the_start.__code__.co_firstlineno + 2
    assert found == Late(NAME, None, f"test_checkup_watch.py:{line}")
    os.environ[NAME] = "2"
    assert late(NAME) == [found]
    del os.environ[NAME]  # as the backend saw it
    assert late(NAME) == []


@pytest.mark.parametrize("change", [os.environ.setdefault, lambda n, v: os.environ.update({n: v}), os.putenv])
def test_each_way_to_set(change, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "JAX_OF_THIS_TEST"
    change(name, "1")
    try:
        assert name in os.environ or change is os.putenv  # which os.environ does not see
        assert bool(late(name)) == (name in os.environ)
    finally:
        os.environ.pop(name, None)


def test_what_is_no_setting_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME_OF_THIS_TEST", "1")
    assert not late("HOME_OF_THIS_TEST")
    assert [name for name in ("CUDA_VISIBLE_DEVICES", "PATH") if is_setting(name)] == ["CUDA_VISIBLE_DEVICES"]


def test_values_reach_the_environment_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "ä")
    shown = subprocess.check_output([sys.executable, "-Sc", f"import os; print(os.environ[{NAME!r}] == 'ä')"])
    assert shown.split() == [b"True"]


PROGRAM = """
import os
import erythroxy_tx as tx
from erythroxy_tx.host.checkup import facts
from erythroxy_tx.host.checkup.asked import Jax
def make():
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    os.environ["JAX_ENABLE_X64"] = "1"
WHEN == "before import" and make()
import jax, jax.numpy as jnp
WHEN == "after import" and make()
if WHEN == "after the first operation":
    jnp.zeros(1)
    make()
count = jax.device_count()
facts.ask = lambda *_, **__: Jax("works", config={**jax.config.values, "jax_enable_x64": True})  # what it would answer
found = tx.doctor()
late = [each for each in found.findings if each.code in ("E105", "E106", "E204")]
print(count, found.jax.asked, *[f"{each.code} {each.what.split(' to ')[0]}" for each in late], sep="|")
"""
BEFORE_US = """
import os, jax
jax.devices()
os.environ["XLA_CLIENT_MEM_FRACTION"] = "0.6"
import erythroxy_tx as tx
from erythroxy_tx.host.checkup import facts
from erythroxy_tx.host.checkup.asked import Jax
facts.ask = lambda *_, **__: Jax("works", config=dict(jax.config.values))
found = tx.doctor()
print(*[each.code for each in found.findings if each.code in ("E105", "E106")], found.counts.is_complete)
"""


def start(program: str) -> subprocess.Popen:
    environ = {name: value for name, value in os.environ.items() if not is_setting(name)} | {"JAX_PLATFORMS": "cpu"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    return subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True)


def test_case_52_by_time_of_setting() -> None:
    """Source: jax-ml/jax issue 5555: a setting further down in the file changes nothing, and nobody says so."""
    expected = {
        "before import": "4|this process",
        "after import": "4|this process|E204 set at <string>:8",
        "after the first operation": "1|this process|E105 set at <string>:7|E204 set at <string>:8",
    }
    runs = {when: start(PROGRAM.replace("WHEN", repr(when))) for when in expected}
    assert {when: run.communicate()[0].strip() for when, run in runs.items()} == expected


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system does not tell the first environment")
def test_a_setting_before_the_watch() -> None:
    out, _ = start(BEFORE_US).communicate()
    assert out.strip() == "E106 False"


def test_nothing_is_imported_while_jax_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set while JAX is half imported, by itself or in another thread."""
    monkeypatch.setitem(sys.modules, "jax", object())
    monkeypatch.delitem(sys.modules, "jax._src.xla_bridge")
    monkeypatch.setitem(sys.modules, "jax._src", None)
    monkeypatch.setattr("builtins.__import__", None)
    os.environ["XLA_OF_THIS_TEST"] = "1"
    del os.environ["XLA_OF_THIS_TEST"]
    assert not backend_started()


def test_a_plugin_may_set_variables_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX holds a lock while a plugin starts."""
    with xla_bridge._backend_lock:
        monkeypatch.setenv(NAME, "1")
