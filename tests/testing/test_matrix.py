"""Every transform in every way of calling, for every dtype: `erythroxy_tx/testing/matrix.py` is the table.

By default a sample of it, most of it for float32. With `--erythroxy-profile=ci` all of float32, and of the others every
second case, the other half of them on the next version of Python; with `thorough` all.
"""

import random
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.testing import matrix

TRANSFORMS = Path(tx.__file__).parent / "transforms"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dtype" not in metafunc.fixturenames:
        return
    profile, chance = metafunc.config.getoption("--erythroxy-profile", default=None), random.Random(0)
    cases = []
    for i, case in enumerate(matrix.cases()):
        is_float32, drawn = case.values[2] == "float32", chance.random()  # the same in every process
        in_ci = (i + sys.version_info.minor // 2) % (2 if is_float32 else 4) == 0  # of 3.11 and 3.13, others
        if drawn < (0.2 if is_float32 else 0.05) if profile in (None, "fast") else in_ci or profile == "thorough":
            cases.append(case)
    metafunc.parametrize(("row", "way", "dtype"), cases)


def test_the_matrix(row: matrix.Row, way: str, dtype: str) -> None:
    matrix.check(row, way, dtype)


def test_every_transform_has_a_row() -> None:
    public = {path.stem for path in TRANSFORMS.glob("*.py")} & set(tx.__all__)
    assert public
    assert {row.name for row in matrix.ROWS} == public
    for row in matrix.ROWS:
        assert isinstance(row.decorate(matrix.scaled), Transform)
        assert row.decorate(matrix.scaled).name == f"tx.{row.name}"


class Doubled(Transform):
    """Wrong in one way of calling only."""

    name, usage, compiles, traceable = "tx.doubled", "@doubled", True, True

    def _runner(self) -> Any:
        return self.program

    def _traced(self, x: Any, w: Any) -> Any:
        return jax.tree.map(lambda y: y + y, self.fn(x, w))


@pytest.mark.parametrize("way", ["jit", "eager", "vmap", "grad", "scan", "remat", "jvp", "method", "module", "pickle"])
def test_a_wrong_transform_fails_in_every_way(way: str) -> None:
    row = matrix.Row("doubled", Doubled.around)
    with pytest.raises(tx.IdentityError, match=f"doubled under {way}"):
        matrix.check(row, way, "float32")


def test_a_refusal_must_come() -> None:
    row = matrix.Row("chunked", tx.chunked(lax.map, 2, in_axes=(0, None), out=matrix._OUT), refused={"jit": TypeError})
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        matrix.check(row, "jit", "float32")
