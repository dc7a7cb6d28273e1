"""`RunSpec`: what a restart may and may not change, and that the file is whole or refused."""

import enum
import errno
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erythroxy_tx.errors import RunSpecError
from erythroxy_tx.runtime.run_spec import RunSpec

GIVEN: dict[str, Any] = {"batch": 1024, "gpu": 0, "lr": 3e-4, "layers": [64, {"width": 8}], "name": "a", "ema": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "spec.json"


def test_a_restart_takes_all_from_the_file(path: Path) -> None:
    first = RunSpec(path, **GIVEN)
    again = RunSpec(str(path))
    assert dict(again) == dict(first) == GIVEN
    assert (again.batch, again["layers"], len(again), list(again)) == (1024, [64, {"width": 8}], 6, list(GIVEN))
    assert first.path == path
    assert not [each.name for each in path.parent.iterdir() if each != path]


def test_the_same_again_is_no_change(path: Path) -> None:
    RunSpec(path, **GIVEN)
    before = path.read_bytes(), path.stat().st_mtime_ns
    RunSpec(path, **dict(reversed(GIVEN.items())))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"batch": 512}, "  batch: 1024 → 512"),
        ({"batch": 1024.0}, "  batch: 1024 → 1024.0"),
        ({"gpu": False}, "  gpu: 0 → False"),
        ({"gpu": -0.0}, "  gpu: 0 → -0.0"),
        ({"gpu": None}, "  gpu: 0 → None"),
        ({"batch": "1024"}, "  batch: 1024 → '1024'"),
        ({"ema": 0}, "  ema: None → 0"),
        ({"layers": [64, {"width": 9}]}, "  layers[1]['width']: 8 → 9"),
        ({"layers": [64, {}]}, "  layers[1]['width']: 8 → not given"),
        ({"layers": [64]}, "  layers: [64, {'width': 8}] → [64]"),
        ({"fraction": 0.6}, "  fraction: not there → 0.6"),
    ],
)
def test_what_differs_is_refused(path: Path, given: dict[str, Any], told: str) -> None:
    RunSpec(path, **GIVEN)
    before = path.read_bytes()
    with pytest.raises(RunSpecError) as caught:
        RunSpec(path, **GIVEN | given)
    (name,) = given
    assert told in str(caught.value).splitlines()
    assert f"changed=({name!r},)" in str(caught.value)
    assert [change.name for change in caught.value.changes] == [name]
    assert path.read_bytes() == before


def test_what_is_dropped_is_refused(path: Path) -> None:
    """A restart that forgets the GPU and the batch does not fall back to defaults."""
    RunSpec(path, **GIVEN)
    with pytest.raises(RunSpecError) as caught:
        RunSpec(path, lr=3e-4)
    assert [(c.name, c.kind) for c in caught.value.changes] == [
        (name, "missing") for name in ("batch", "gpu", "layers", "name", "ema")
    ]


def test_a_change_that_is_meant_is_kept_in_the_history(path: Path) -> None:
    RunSpec(path, **GIVEN)
    new = {name: value for name, value in GIVEN.items() if name != "gpu"} | {"batch": 512, "more": 1}
    for _ in range(2):  # the same script may be started again
        spec = RunSpec(path, **new, changed=("batch", "gpu", "more"))
        assert dict(spec) == new
        assert [{n: v for n, v in entry.items() if n != "time"} for entry in spec.history] == [
            {"name": "batch", "before": 1024, "after": 512},
            {"name": "gpu", "before": 0},
            {"name": "more", "after": 1},
        ]
    assert spec.history == RunSpec(path).history
    with pytest.raises(RunSpecError, match=r"lr: 0\.0003 → 0\.1"):
        RunSpec(path, **new | {"lr": 0.1, "batch": 64}, changed=("batch",))
    assert RunSpec(path).batch == 512
    with pytest.raises(ValueError, match="the run has no bacth"):
        RunSpec(path, **new, changed=("bacth",))


def test_change(path: Path) -> None:
    spec = RunSpec(path, **GIVEN)
    changed = spec.change(batch=512).change(batch=np.int64(256))
    assert (spec.batch, changed.batch, RunSpec(path).batch) == (1024, 256, 256)
    assert [(entry["before"], entry["after"]) for entry in changed.history] == [(1024, 512), (512, 256)]
    with pytest.raises(RunSpecError, match="was changed since"):
        spec.change(batch=2)
    with pytest.raises(ValueError, match="got bacth"):
        changed.change(bacth=1)
    before = path.read_bytes()
    assert changed.change(batch=256) == changed
    assert path.read_bytes() == before


def test_it_cannot_be_changed_in_memory(path: Path) -> None:
    spec = RunSpec(path, **GIVEN)
    spec.layers[1]["width"] = 9
    spec.environment["x"] = "y"
    spec.history.append({})
    assert dict(spec) == GIVEN
    assert not spec.environment
    assert not spec.history
    with pytest.raises(AttributeError, match=r"spec = spec.change\(batch=1\)"):
        spec.batch = 1
    with pytest.raises(AttributeError, match="do not change"):
        del spec.batch
    with pytest.raises(AttributeError, match=r"no parameter .bacth"):
        _ = spec.bacth
    copied = pickle.loads(pickle.dumps(spec))
    assert dict(copied) == GIVEN
    assert copied.path == path


def test_the_given_values_are_copied(path: Path) -> None:
    layers = [1]
    spec = RunSpec(path, layers=layers)
    layers.append(2)
    assert spec.layers == [1]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ((1, (2,)), [1, [2]]),
        (np.float64(0.5), 0.5),
        (np.int32(3), 3),
        (np.bool_(1), True),
        (10**30, 10**30),
        (0.1, 0.1),
    ],
)
def test_values_come_back(path: Path, value: Any, kept: Any) -> None:
    for spec in (RunSpec(path, value=value), RunSpec(path, value=value), RunSpec(path)):
        assert spec.value == kept
        assert type(spec.value) is type(kept)


class Kind(enum.IntEnum):
    A = 1


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (float("nan"), "value=nan"),
        ([1, {"a": float("inf")}], r"value\[1\]\['a'\]=inf"),
        (np.ones(2), "value of type ndarray"),
        (Kind.A, "value of type Kind"),
        ({1: 2}, "value of type dict with keys that are no str"),
        (Path("a"), "value of type .*Path"),
        ({1}, "value of type set"),
        (1j, "value of type complex"),
    ],
)
def test_values_that_would_not_come_back_are_refused(path: Path, value: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        RunSpec(path, value=value)
    assert not path.parent.exists()


@pytest.mark.parametrize("name", ["keys", "change", "path", "_x", "a-b"])
def test_names_with_a_meaning_are_refused(path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        RunSpec(path, **{name: 1})


@pytest.mark.parametrize("arguments", [{"changed": "batch"}, {"environment": "HOME"}, {"changed": (1,)}])
def test_names_are_given_in_a_tuple(path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Expected a tuple of names"):
        RunSpec(path, batch=1, **arguments)


def test_a_run_begins_with_parameters(path: Path) -> None:
    with pytest.raises(RunSpecError, match="got no parameters"):
        RunSpec(path)
    with pytest.raises(RunSpecError, match="there is no such file"):
        RunSpec.read(path)
    assert not path.parent.exists()


# ---------------------------------------------------------------- the environment


def test_the_environment_travels_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1 2")
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    names = ("CUDA_VISIBLE_DEVICES", "XLA_CLIENT_MEM_FRACTION")
    spec = RunSpec(path, batch=1, environment=names)
    assert spec.environment == {"CUDA_VISIBLE_DEVICES": "1 2", "XLA_CLIENT_MEM_FRACTION": None}
    RunSpec(path)
    RunSpec(path, batch=1, environment=names)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", ".5")
    for given in ({}, {"batch": 1}, {"environment": names}):
        with pytest.raises(RunSpecError) as caught:
            RunSpec(path, **given)
        told = str(caught.value)
        assert "  the variable CUDA_VISIBLE_DEVICES: '1 2' → not set" in told
        assert "(export CUDA_VISIBLE_DEVICES='1 2'; unset XLA_CLIENT_MEM_FRACTION)" in told
    assert RunSpec.read(path).environment == spec.environment
    assert RunSpec(path, changed=names).environment == dict(zip(names, (None, ".5"), strict=True))
    RunSpec(path)


def test_variables_are_not_dropped_either(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "1")
    RunSpec(path, batch=1, environment=("A",))
    with pytest.raises(RunSpecError, match="the variable A: '1' → not given"):
        RunSpec(path, batch=1, environment=())
    with pytest.raises(RunSpecError, match="the variable B: not there → not set"):
        RunSpec(path, batch=1, environment=("A", "B"))


def test_arguments_for_a_child(path: Path) -> None:
    spec = RunSpec(path, batch=1, lr=1e-5, name="a b", fast=True, ema=None, layers=(1, 2))
    assert spec.argv() == ["--batch=1", "--lr=1e-05", "--name=a b", "--fast=true", "--ema=null", "--layers=[1, 2]"]


# ---------------------------------------------------------------- the file


def foreign(text: str, **fields: Any) -> str:
    return json.dumps(json.loads(text) | fields)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda text: "", "cut short"),
        (lambda text: text[: len(text) // 2], "cut short"),
        (lambda text: "[]", 'no "format"'),
        (lambda text: '{"batch": 1}', 'no "format"'),
        (lambda text: foreign(text, version=2), "version 2"),
        (lambda text: foreign(text, version=True), "version True"),
        (lambda text: foreign(text, history={}), "fields"),
        (lambda text: foreign(text, more=1), "fields"),
        (lambda text: text.replace("1024", "NaN"), "NaN"),
        (lambda text: text.replace("1024", "1e999"), "1e999"),
        (lambda text: text.replace('"gpu"', '"batch"'), "twice"),
        (lambda text: "\udcff", "utf-8"),
    ],
)
def test_a_broken_file_is_refused_and_stays(path: Path, broken: Any, told: str) -> None:
    RunSpec(path, **GIVEN)
    path.write_bytes(broken(path.read_text()).encode(errors="surrogateescape"))
    before = path.read_bytes()
    for start in (lambda: RunSpec(path), lambda: RunSpec(path, **GIVEN), lambda: RunSpec.read(path)):
        with pytest.raises(RunSpecError, match=told):
            start()
    with pytest.raises(RunSpecError, match=told):
        RunSpec(path, **GIVEN | {"batch": 1}, changed=tuple(GIVEN))
    assert path.read_bytes() == before


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunSpecError, match="directory"):
        RunSpec(tmp_path, batch=1)


def test_a_person_can_read_it(path: Path) -> None:
    RunSpec(path, **GIVEN)
    found = json.loads(path.read_text())
    assert found["parameters"] == GIVEN
    assert '\n    "batch": 1024,\n' in path.read_text()


def test_a_write_that_fails_leaves_what_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec(path, **GIVEN)
    before = path.read_bytes()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        spec.change(batch=1)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_without_hard_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", no_links)
    assert RunSpec(path, **GIVEN) == RunSpec(path)


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    RunSpec(path, **GIVEN)
    (tmp_path / "latest.json").symlink_to(path)
    RunSpec(tmp_path / "latest.json").change(batch=2)
    assert (tmp_path / "latest.json").is_symlink()
    assert RunSpec(path).batch == 2


def test_of_two_that_start_at_once_one_writes(path: Path) -> None:
    """All wait for one file to appear, then start: one set of parameters wins, whole, and the others are refused."""
    code = (
        "import sys, os\n"
        "from erythroxy_tx.runtime.run_spec import RunSpec\n"
        "from erythroxy_tx.errors import RunSpecError\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    RunSpec(sys.argv[1], batch=int(sys.argv[2])); print('won')\n"
        "except RunSpecError: print('refused')\n"
    )
    root = str(Path(__file__).parents[2])
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path), str(batch)], cwd=root, **pipes) for batch in range(3)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    outs = []
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    outs = [process.communicate()[0].strip() for process in processes]
    assert sorted(outs) == ["refused", "refused", "won"]
    assert RunSpec(path).batch == outs.index("won")


def test_a_path_that_a_reboot_wipes_is_told(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("erythroxy_tx.runtime.specs.file._EMPTIED", {str(path.parents[1])})
    RunSpec(path, **GIVEN)
    assert "which a reboot wipes" in caplog.text
    caplog.clear()
    RunSpec(path, **GIVEN)
    assert not caplog.text


def test_a_launch_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bacth"):
        RunSpec(tmp_path / "spec.json", batch=1, changed=("bacth",))
    with pytest.raises(ValueError, match="one name for one"):
        RunSpec(tmp_path / "spec.json", SEED=1, environment=("SEED",))
    with pytest.raises(ValueError, match="halves of characters"):
        RunSpec(tmp_path / "spec.json", name="\ud83d\ude00")
    assert not list(tmp_path.iterdir())
