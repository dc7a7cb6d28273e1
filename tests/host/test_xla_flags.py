"""XLA_FLAGS as XLA reads it; that it does is seen in `test_checkup_asked.py`, with the real one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erythroxy_tx.host.xla_flags import file_of
from erythroxy_tx.host.xla_flags import flags_of
from erythroxy_tx.host.xla_flags import split


@pytest.mark.parametrize(
    ("text", "plain", "rest"),
    [
        ("", [], ""),
        (" --a=1\n\t--b ", ["--a=1", "--b"], ""),
        ('--a=\'x y\' --b="q \\" r"', ["--a=x y", '--b=q " r'], ""),
        ("--a='x --b=1", ["--a=x --b=1"], ""),
        ("--a=1,--b=2", ["--a=1,--b=2"], ""),
        ("--a true --b=1", ["--a"], "true --b=1"),
        ("--a=1 # --b=1", ["--a=1"], "# --b=1"),
        ("--a==1 -b=it's", ["--a==1", "-b=it's"], ""),
    ],
)
def test_what_is_read(text: str, plain: list[str], rest: str) -> None:
    flags, ignored = split(text)
    assert ([flag.plain for flag in flags], ignored) == (plain, rest)


def test_names_and_values() -> None:
    flags, _ = split("--a='x=y' -b")
    assert [(flag.name, flag.value) for flag in flags] == [("a", "x=y"), ("b", "true")]


@given(st.text(alphabet="-a='\"\\ \n,"))
def test_every_text_is_read_to_its_end(text: str) -> None:
    flags, rest = split(text)
    kept = "".join([*(flag.written for flag in flags), rest])
    assert "".join(kept.split()) == "".join(text.split())
    assert not rest.startswith("-")


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("--a=1\n--b=2\n")
    assert [flag.name for flag in flags_of(str(file))[0]] == ["a", "b"]
    assert flags_of(str(tmp_path / "none")) == ((), "")
    assert [file_of(text) for text in ("", " --a", "a", " ")] == [None, None, "a", " "]
