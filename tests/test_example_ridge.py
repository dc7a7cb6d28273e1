"""The example that `make demo` runs, on few rows and in this process. Not here: its bounds on memory and
time, which the demo itself holds.
"""

import importlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module", autouse=True)
def examples_importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield


@pytest.fixture(scope="module")
def ridge(examples_importable: None) -> ModuleType:
    return importlib.import_module("relocate_ridge")


@pytest.fixture(scope="module")
def report(examples_importable: None) -> ModuleType:
    return importlib.import_module("ridge_report")


@pytest.fixture(scope="module")
def measure(examples_importable: None) -> ModuleType:
    return importlib.import_module("ridge_measure")


@pytest.fixture(scope="module")
def quick(ridge: ModuleType, measure: ModuleType):
    return ridge.problem(**measure.QUICK)


def test_three_versions_agree(ridge, quick) -> None:
    reference = ridge.fit_numpy(*quick)
    for fit in (ridge.fit_one_shot, ridge.fit):
        result = fit(*quick)
        assert set(result) == set(reference)
        for name, expected in reference.items():
            np.testing.assert_allclose(result[name], expected, rtol=0, atol=5e-6 * np.abs(expected).max())


def test_the_stack_reads_from_the_check_inwards(ridge, report) -> None:
    assert [each.name for each in tx.stack(ridge.fit)] == ["tx.assert_relocation", "tx.vram_resident", "tx.chunked"]
    assert ridge.fit.rtol == report.FURTHEST
    assert tx.unwrap(ridge.fit).__name__ == "fit"


def test_the_check_refuses_another_computation(ridge, quick) -> None:
    def fit_other(*problem):
        return {name: value * 1.01 for name, value in ridge.fit_numpy(*problem).items()}

    with pytest.raises(tx.RelocationError):
        tx.assert_relocation(fit_other, rtol=5e-4)(ridge.fit.fn)(*quick)


def test_the_second_call_compiles_nothing(ridge, measure, quick) -> None:
    ridge.fit(*quick)
    with measure.counted() as events:
        ridge.fit(*quick)
    assert not events
    with measure.counted() as events:
        jax.jit(lambda x: x + 1)(jnp.ones(3))
    assert set(events) == measure.EVENTS


def test_the_stream_needs_a_chunk_of_memory(ridge) -> None:
    problem = ridge.problem(every=4, columns=32)
    compiled = (fit.lower(*problem).compile() for fit in (ridge.fit_one_shot, ridge.fit))
    one_shot, decorated = (program.memory_analysis().temp_size_in_bytes for program in compiled)
    assert one_shot > len(problem.rows) * ridge.WINDOW * 5 * 4
    assert decorated < one_shot / 3


def test_each_feature_is_computed_once(ridge) -> None:
    said = str(tx.explain(ridge.fit, *ridge.problem(every=8, columns=32)))
    assert "3 passes over the rows; computes 1.0 times what one-shot does" in said


def test_no_row_looks_ahead(ridge) -> None:
    problem = ridge.problem(columns=2)
    parts = [problem.rows[part] for part in ridge.split(len(problem.rows), problem.base)]
    for earlier, later in itertools.pairwise(parts):
        assert (earlier[:, 1] + earlier[:, 2]).max() < later[:, 1].min()
    row = parts[-1][:1]
    future = problem.base.copy()
    future[:, row[0, 1] + 1 :] += 1.0
    bases = map(jnp.asarray, (problem.base, future))
    before, after = (ridge.features(base, problem.projection, row) for base in bases)
    np.testing.assert_array_equal(before, after)


def test_zero_volumes_give_finite_features(ridge) -> None:
    problem = ridge.problem(columns=2)
    index, day = np.nonzero(problem.base[:, :, 4] == 0)
    assert len(index)
    rows = np.stack([index, day, np.ones_like(day)], axis=1)
    assert np.isfinite(ridge.features(jnp.asarray(problem.base), problem.projection, rows)).all()


def test_the_quick_demo_reports(report, measure, quick, tmp_path, monkeypatch, capsys) -> None:
    def run(version: str, folder: Path, is_quick: bool) -> dict:
        assert is_quick
        measure.main(version, folder, quick)
        return json.loads((folder / f"{version}.json").read_text())

    monkeypatch.setattr(report, "run", run)
    assert report.main(["--quick", "--png", str(tmp_path / "memory.png")]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    said = ("host peak", "tx.assert_relocation: fit: ", "Proved on this machine, for 1908 rows", "not proved:")
    for text in (*measure.VERSIONS, *said):
        assert text in printed


FIGURES = {
    "numpy": {"host_rise": 1000, "rows": 10, "columns": 4, "penalty": 1.0}
    | {"error_ridge": 1.1, "error_zero": 1.0, "error_drift": 1.0},
    "one-shot": {"temp": 1000, "seconds": 1.0, "difference": 1e-5},
    "decorated": {"temp": 100, "seconds": 1.1, "difference": 1e-5, "host_rise": 100, "compiles": 0},
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "Proved on this machine"),
        ({"host_rise": 101}, "host peak over numpy's is 0.101, expected at most 0.1"),
        ({"temp": 101}, "temporaries over the one-shot version's is 0.101"),
        ({"seconds": 1.11}, "time over the one-shot version's is 1.11, expected at most 1.1"),
        ({"difference": 2e-5}, "difference from numpy is 2e-05"),
        ({"compiles": 1}, "compiles on the second call is 1, expected at most 0"),
    ],
)
def test_a_missed_bound_is_said(report, changed, said) -> None:
    figures = FIGURES | {"decorated": FIGURES["decorated"] | changed}
    claims = report.judge(figures, quick=False)
    assert sum(not claim.holds for claim in claims) == len(changed)
    assert said in report.sentence(figures, claims, quick=False)
