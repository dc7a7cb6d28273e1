"""The example of a file that no memory holds, with a small file: the same rows each time, and the fit of all rows."""

import importlib
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
ROWS = 9000


@pytest.fixture(scope="module")
def example():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module("out_of_core")


def loaded(folder: Path) -> list[np.ndarray]:
    return [np.load(folder / name) for name in ("x.npy", "y.npy")]


def test_it_runs_and_forecasts_each_row(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(example, "SAMPLE", ROWS // 2)
    assert example.main(["--rows", str(ROWS), "--budget", "2MiB", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"9000 rows in {-(-ROWS // 1024)} chunks of 1024" in printed
    for said in (
        "rows are read 4 times",
        "4 passes over the rows",
        "9,000 forecasts are in forecast.npy",
        "host memory: ",
    ):
        assert said in printed
    forecast = jax.jit(example.fit)(*loaded(tmp_path))[2]
    np.testing.assert_allclose(np.load(tmp_path / "forecast.npy"), forecast, rtol=0, atol=1e-5)


def test_a_file_is_the_same_when_it_is_made_again(example: ModuleType, tmp_path: Path) -> None:
    for name, rows in (("a", 500), ("b", 700)):
        (tmp_path / name).mkdir()
        example.make(tmp_path / name, rows)
    for a, b in zip(loaded(tmp_path / "a"), loaded(tmp_path / "b"), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, b[:500])


def test_a_target_is_what_comes_after_its_row(example: ModuleType) -> None:
    days = example.real_days()
    rows, target = example.piece(days, 0, 300)
    days_of = rows.reshape(300, example.WINDOW, 4)
    np.testing.assert_array_equal(days_of[1:, :-1], days_of[:-1, 1:])
    ahead = days_of[example.HORIZON :, -example.HORIZON :, example.CLOSE].sum(1)
    np.testing.assert_allclose(target[: -example.HORIZON], ahead, rtol=1e-4, atol=1e-7)
