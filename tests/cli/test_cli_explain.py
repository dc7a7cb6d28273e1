"""`erythroxy explain`: a function of a module or a file, with arguments as text."""

from pathlib import Path

import pytest

from erythroxy_tx.cli import main

TRAIN = """
import jax, jax.numpy as jnp, erythroxy_tx as tx

params = {"w": jnp.ones((64, 8))}
LR = 0.1

@tx.chunked(jax.lax.map, size=100)
def centre(x):
    return x - x.mean(0)

def step(params, x, lr=1.0, name=""):
    return jax.tree.map(lambda w: w - lr * x.sum(), params)

def broken(x):
    raise RuntimeError("as it is")
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("train_of_explain.py").write_text(TRAIN)
    return "train_of_explain"


@pytest.mark.parametrize("place", ["{}", "{}.py"])
def test_a_function_of_a_module_and_of_a_file(train: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", place.format(train) + ":centre", "f32[1000,8]"]) == 0
    out = capsys.readouterr().out
    assert "tx.chunked: 1000 rows in 10 chunks of 100" in out
    assert "compiled:" in out


def test_names_of_the_module_and_values_by_name(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{train}:step", ":params", "f32[256,64]", "lr=:LR", "name='adam'"]) == 0
    assert "result['w']" in capsys.readouterr().out


def test_a_function_without_a_decorator_as_if_in_chunks(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "jax.numpy:std", "f32[1000,8]", "axis=0", "--chunks", "100"]) == 0
    assert "tx.chunked: 1000 rows in 10 chunks of 100" in capsys.readouterr().out
    assert main(["explain", f"{train}:step", ":params", "f32[256,64]", "--chunks", "64"]) == 0
    assert "tx.chunked: 256 rows in 4 chunks of 64" in capsys.readouterr().out
    assert main(["explain", "jax.nn:softmax", "f32[1000,8]"]) == 0
    assert "--chunks 100 tells" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{}"], "Expected MODULE:FUNCTION"),
        (["{}:centr", "f32[3]"], "has no 'centr'. It has: centre."),
        (["{}:params"], "is not a function: it is dict"),
        (["nothing_here:f"], "there is no module 'nothing_here'"),
        (["nothing_here.py:f"], "there is no file nothing_here.py"),
        (["{}:centre"], "missing a required argument: 'x'"),
        (["{}:centre", "f32[3,]x"], "is neither an array such as f32[1000,64]"),
        (["{}:centre", "f31[3]"], "has no type 'f31'"),
        (["{}:centre", "f64[3]"], "JAX_ENABLE_X64=1"),
        (["{}:step", "x=f32[3]", ":params"], "stands after one that is passed by name"),
        (["{}:broken", "f32[3]"], "as it is"),
    ],
)
def test_what_cannot_be_explained(train: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *(word.format(train) for word in words)]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""
