"""What `examples/prove_a_port.py` claims, on few inputs. Not here: `prove` and `prove_relocation` themselves."""

import importlib
from pathlib import Path
from types import ModuleType

import hypothesis.strategies as st
import numpy as np
import pytest

import erythroxy_tx as tx

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def port():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module("prove_a_port")


@pytest.fixture(scope="module")
def found(port: ModuleType) -> tx.RelocationError:
    with pytest.raises(tx.RelocationError) as raised:
        port.search(port.zscore_port, 100)
    return raised.value


def test_noise_does_not_tell_the_port_from_the_original(port) -> None:
    np.testing.assert_allclose(port.zscore_port(port.NOISE), port.zscore_numpy(port.NOISE), rtol=1e-4, atol=1e-4)


def test_the_search_does(port, found) -> None:
    (bars,) = found.counterexample
    assert bars.max() - bars.min() <= 1  # it was shrunk
    expected = port.zscore_numpy(bars)
    assert np.abs(port.zscore_port(bars) - expected).max() > 1e-3 * np.abs(expected).max()


def test_the_code_of_the_counterexample_raises_it_again(found) -> None:
    code = str(found).partition("# To see it again:\n")[2]
    with pytest.raises(tx.RelocationError) as again:
        exec(code, {})
    difference = str(found).splitlines()[1]
    assert difference in str(again.value)


def test_real_bars_are_wrong_beyond_what_is_possible(port) -> None:
    largest, told = port.on_real_bars(port.zscore_port)
    assert largest > (port.WINDOW - 1) ** 0.5
    assert "numpy" in told


def test_the_mended_port_holds(port) -> None:
    assert port.search(port.zscore_mended, 60).examples == 60
    assert port.on_real_bars(port.zscore_mended)[0] < (port.WINDOW - 1) ** 0.5
    bars = port.arch.data.sp500.load()[port.SERIES].to_numpy()
    np.testing.assert_allclose(port.zscore_mended(bars.astype(np.float32)), port.zscore_numpy(bars), rtol=0, atol=1e-5)


def test_a_flat_window_has_the_score_zero(port) -> None:
    flat = np.full((port.WINDOW + 4, 2), 987.65, np.float32)
    assert not port.zscore_numpy(flat).any()
    assert not np.any(port.zscore_mended(flat))


def test_the_mended_port_in_chunks_holds(port) -> None:
    inputs = st.tuples(port.DAYS, port.PRICES)
    proof = tx.testing.prove(port.zscore_in_chunks, inputs, under=("jit", "grad"), max_examples=10)
    assert proof.ways[1].gradients


def test_the_lesson_is_told(port, capsys, monkeypatch) -> None:
    def few(fn, inputs, **options):
        return tx.testing.prove(fn, inputs, under=("jit",), **options)

    monkeypatch.setattr(port, "prove", few)
    port.main(max_examples=60)
    printed = capsys.readouterr().out
    for said in ("np.allclose: True", "found with input", "Read it: a price", "exceeds √19 = 4.36"):
        assert said in printed
    assert printed.count("no counterexample to") == 2
