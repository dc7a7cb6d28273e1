"""Byte counts and times: what is read, what is refused, what is written."""

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erythroxy_tx.units import format_bytes
from erythroxy_tx.units import parse_bytes
from erythroxy_tx.units import parse_seconds

POWERS = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
POWERS |= {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}


@pytest.mark.parametrize(("unit", "power"), POWERS.items())
def test_every_unit(unit: str, power: int) -> None:
    assert parse_bytes(f"3{unit}", "budget") == 3 * power
    assert parse_bytes(f"  3 {unit} ", "budget") == 3 * power


@hypothesis.settings(max_examples=100)
@given(st.integers(1, 10**9), st.sampled_from(["KB", "GB", "TB"]))
def test_decimals_are_exact(hundredths: int, unit: str) -> None:
    text = f"{hundredths // 100}.{hundredths % 100:02}{unit}"  # 2.01GB as a float is a byte short
    assert parse_bytes(text, "budget") == hundredths * POWERS[unit] // 100


@hypothesis.settings(max_examples=100)
@given(st.integers(1, 2**70))
def test_whole_counts_are_themselves(count: int) -> None:
    assert parse_bytes(count, "budget") == parse_bytes(f"{count}B", "budget") == count


@pytest.mark.parametrize(
    "wrong", [0, -1, True, 1.5, None, "", "5", "-1GB", "0GB", "0.1B", "1 gb", "1e3MB", "1..2MB", "GB", "1GB2", b"1GB"]
)
def test_what_is_no_count_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"tx.chunked got budget=.* is not a byte count.*512MiB.*KiB") as caught:
        parse_bytes(wrong, "tx.chunked got budget")  # type: ignore[arg-type]
    assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (512, "512 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (-2048, "-2.0 KiB"), (3 * 2**30, "3.0 GiB")],
)
def test_written_for_a_person(count: int, told: str) -> None:
    assert format_bytes(count) == told
    assert format_bytes(5000 * 2**40) == "5000.0 TiB"


@pytest.mark.parametrize(
    ("value", "seconds"), [(2, 2.0), (0.5, 0.5), ("150ms", 0.15), (" 2 s ", 2.0), ("1.5min", 90.0), ("1h", 3600.0)]
)
def test_times(value: float | str, seconds: float) -> None:
    assert parse_seconds(value, "window") == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "wrong", [0, -1, True, None, float("inf"), float("nan"), "", "2", "0s", "-1s", "2 sec", "2S", b"2s"]
)
def test_what_is_no_time_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"on_pressure got window=.* is not a time.*150ms.*min") as caught:
        parse_seconds(wrong, "on_pressure got window")  # type: ignore[arg-type]
    assert repr(wrong) in str(caught.value)
