"""The example of a training loop, on few rows: both loops arrive at the same model, and the second never waits."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
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
def example(examples_importable: None) -> ModuleType:
    return importlib.import_module("train_forecaster")


@pytest.fixture(scope="module")
def data(example: ModuleType) -> Any:
    return example.data(every=32)


def test_both_loops_arrive_at_the_same_model(example: ModuleType, data: Any) -> None:
    steps = example.steps(data)
    with tx.host_syncs() as naive:
        params, history = example.train_naively(data)
    with tx.host_syncs() as ours:
        again, also = example.train(data)
    assert naive.count > 3 * steps
    assert ours.count == 1
    for name, values in history.items():
        assert len(values) == len(also[name]) == steps
        np.testing.assert_allclose(also[name], values, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), params, again)
    assert np.mean(history["loss"][-10:]) < np.mean(history["loss"][:10])


def test_a_second_epoch_reads_once_more_and_counts_each_step(example: ModuleType, data: Any) -> None:
    done: list[int] = []
    with tx.host_syncs() as seen:
        _, history = example.train(data, 2, done.append)
    assert seen.count == 2
    assert done == list(range(2, 2 * example.steps(data) + 1))
    assert len(history["loss"]) == 2 * example.steps(data)
    assert len(set(history["held out"])) == -(-2 * example.steps(data) // example.CHECK)


def test_an_epoch_is_every_row_once_but_for_the_last_batch(example: ModuleType, data: Any) -> None:
    rows = [tuple(row) for batch in example.batches(data, 1) for row in batch]
    known = {tuple(row) for segment in data.segments for row in segment}
    assert len(rows) == len(set(rows)) == example.steps(data) * example.BATCH
    assert set(rows) <= known
    assert len(known) - len(rows) < example.BATCH


def test_no_row_looks_ahead(example: ModuleType, data: Any) -> None:
    last = max((segment[:, 1] + segment[:, 2]).max() for segment in data.segments)
    assert last < data.held_out[:, 1].min()
    row = data.segments[-1][:1]
    future = data.base.copy()
    future[:, row[0, 1] + 1 :] += 1
    for batch in (example.batch_on_host, example.batch_on_device):
        (before, *_), (after, *_) = (batch(base, row) for base in (data.base, future))
        np.testing.assert_allclose(before, after, atol=1e-5)  # numpy rounds by where an array lies


def test_it_reports(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = importlib.import_module("forecaster_report")
    waits: list[object] = []  # a machine that tests run on need not be calm
    monkeypatch.setattr(tx, "wait_for_headroom", lambda need, timeout: waits.append((need, timeout)))
    assert report.main(["--every", "64", "--epochs", "1", "--run", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for text in ("as people write it", "Both loops arrive at the same model", "with 1 reads of the device", "fetch"):
        assert text in printed
    for text in ("host peak", "device peak: not reported by cpu", "stalls are the share of the time", "iB"):
        assert text in printed
    assert waits == [("512MiB", "10min")] * 2
    with pytest.raises(tx.RunSpecError, match="epochs"):
        report.main(["--every", "64", "--epochs", "2", "--run", str(tmp_path)])


def test_what_does_not_hold_is_said(example: ModuleType) -> None:
    report = importlib.import_module("forecaster_report")
    figures = {"as people write it": {"params": np.ones(3)}, "tx": {"params": np.ones(3) * 1.01, "reads": 1}}
    assert "differ by" in report.judge(figures, 1)
    figures["tx"] = {"params": np.ones(3), "reads": 2}
    assert "2 times" in report.judge(figures, 1)
    assert not report.judge(figures, 2)
