"""What every test runs under: two CPU devices, no compilation cache on disk, seeded randomness.

Not here: anything about a single transform.
"""

import gc
import hashlib
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_TWO_DEVICES = "--xla_force_host_platform_device_count=2"

# JAX reads these when it is imported, and processes that a test starts inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
if _TWO_DEVICES.partition("=")[0] not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_TWO_DEVICES}".strip()

import hypothesis
import jax
import numpy as np
import pytest

import erythroxy_tx as tx

hypothesis.settings.load_profile("erythroxy_fast")  # unless --erythroxy-profile says otherwise


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sampled(share): slow; by default that share of its cases runs, in ci half")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a profile does not take: the same cases in every process and every run.

    `fast` takes a third of the cases of each test that has three or more; `ci` takes all, and of slow tests, or six
    cases and more, half on each of two Pythons. A module that makes cases chooses among them itself, and what is asked
    for by its name runs.
    """
    profile, tests = config.getoption("--erythroxy-profile", default=None) or "fast", dict[str, list[pytest.Item]]()
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    taken: set[pytest.Item] = set()
    for cases in tests.values():
        cases.sort(key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
        mark = cases[0].get_closest_marker("sampled")
        if hasattr(getattr(cases[0], "module", None), "pytest_generate_tests"):
            taken |= set(cases)
        elif profile == "fast" and len(cases) > 2:
            taken |= set(cases[: max(1, round(len(cases) * (mark.args[0] if mark else 1 / 3)))])
        elif profile == "ci" and (len(cases) > 5 or (mark and len(cases) > 1)):
            taken |= set(cases[sys.version_info.minor // 2 % 2 :: 2])  # of 3.11 and 3.13, one and the other
        else:
            taken |= set(cases)
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    items[:] = [item for item in items if item in taken]


_MAPS = Path("/proc/self/maps")
_ENOUGH = 20_000  # memory maps; Linux gives a process 65 530, of which each compiled program takes some
_TESTS = itertools.count(1)


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Forget compiled programs before their process has no memory maps left, which is a crash in LLVM."""
    yield
    if next(_TESTS) % 10 == 0 and _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _ENOUGH:
        tx.clear()
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """For `jax.checking_leaks`, which collects garbage after each trace: what is there before is passed over."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone."""
    digest = hashlib.sha256(request.node.nodeid.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8]))


@pytest.fixture
def strict_jax() -> Iterator[None]:
    """Neither ranks nor dtypes are promoted silently."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield
