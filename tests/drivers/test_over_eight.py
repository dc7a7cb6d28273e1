"""`tx.over` on eight devices, in one process of their own: what a fit takes on each, what they tell each other, and how
far it is from one-shot. Not here: what runs there (`on_eight_devices.py`).
"""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROWS = (65536, 65521, 65537, 5)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Any:
    fast = request.config.getoption("--erythroxy-profile", default=None) in (None, "fast")
    rows = ROWS[-1:] if fast else ROWS
    script = pathlib.Path(__file__).with_name("on_eight_devices.py")
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, str(script), *map(str, rows)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_device_takes_little(found: Any) -> None:
    assert found["bytes"] <= 5e6


def test_a_pass_ends_with_one_collective_for_each_kind(found: Any) -> None:
    """Three passes add up, the last one takes a maximum."""
    assert found["all-reduce"] == 4
    assert not found["in loops"]
    assert not any(found[kind] for kind in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"))
    assert found["loops"] >= 4


def test_it_is_as_one_shot(found: Any) -> None:
    assert found["errors"]
    assert all(error < 1e-3 for error in found["errors"].values()), found["errors"]
