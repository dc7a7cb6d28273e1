"""Logs that are cut, mixed, shuffled and broken: no exception, and no number that does not stand in the evidence."""

import io
import re
from pathlib import Path

from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st

from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.pairing import find_kills
from erythroxy_tx.host.kills.records import records
from erythroxy_tx.host.oom import diagnose_oom

LINES = [
    line
    for path in sorted((Path(__file__).parent / "logs").glob("*.txt"))
    for line in path.read_text(encoding="utf-8").split("\n")[1:]
    if line
]
UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def kills(lines: list[str]) -> tuple[Kill, ...]:
    found = diagnose_oom(file=io.StringIO("\n".join(lines)))
    str(found)
    found.to_json()
    return found.kills


def numbers(kill: Kill) -> set[tuple[str, object]]:
    names = (
        "pid",
        "pressure",
        "limit",
        "seconds",
        "memory_used",
        "memory_total",
        "swap_used",
        "swap_total",
        "limit_bytes",
    )
    names += ("anon", "rss", "peak", "processes")
    return {(name, getattr(kill, name)) for name in names if getattr(kill, name) is not None}


WHOLE = {number for line in LINES for kill in kills([line]) for number in numbers(kill)} | {
    number for kill in kills(LINES) for number in numbers(kill)
}


def stands(kill: Kill) -> None:
    """Each number is written out in a line that the kill cites, between characters that are no digits."""
    text = "\n".join(kill.evidence)

    def written(words: str) -> bool:
        return re.search(rf"(?<![\d.]){words}", text) is not None

    assert kill.evidence
    assert kill.pid is None or written(rf"{kill.pid}(?!\d)")
    assert kill.pressure is None or written(rf"{kill.pressure:.2f}% > ")
    assert kill.limit is None or written(rf"{kill.limit:.2f}%")
    assert kill.seconds is None or written(rf"{kill.seconds:g}s with reclaim")
    for size in (kill.memory_used, kill.memory_total, kill.swap_used, kill.swap_total):
        assert size is None or written(rf"{size}\)")
    assert kill.anon is None or written(rf"{kill.anon // 1024}kB")
    assert kill.limit_bytes is None or written(rf"{kill.limit_bytes // 1024}kB, failcnt")
    assert kill.rss is None or written(rf"{kill.rss // 2**20} MiB")
    assert kill.processes is None or written(rf"{kill.processes} process\(es\)")
    peaks = {int(float(size) * UNITS[unit]) for size, unit in re.findall(r"([\d.]+)([BKMGT]) memory peak", text)}
    assert kill.peak is None or kill.peak in peaks
    assert not kill.unit or kill.unit in text
    assert not kill.comm or kill.comm in text


@st.composite
def cut(draw: st.DrawFn) -> str:
    line = draw(st.sampled_from(LINES))
    start = draw(st.integers(0, len(line)) | st.just(0))
    return line[start : draw(st.integers(start, len(line)))]


noise = st.binary(max_size=60).map(lambda data: data.decode("latin-1")) | st.sampled_from(
    ["{", "[", "<6>", "Killed process ", "kernel: ", ",pid=", "\x00"]
)


@example(lines=[LINES[0][:-5]])
@given(lines=st.lists(cut() | st.sampled_from(LINES), max_size=12))
def test_cutting_makes_no_other_numbers(lines: list[str]) -> None:
    for kill in kills(lines):
        stands(kill)
        assert numbers(kill) <= WHOLE


def test_each_line_cut_at_each_place() -> None:
    for line in LINES:
        for end in range(len(line)):
            for kill in find_kills(records([line[:end]]))[0]:
                stands(kill)
                assert numbers(kill) <= WHOLE


@given(pieces=st.lists(st.lists(cut() | noise, max_size=4).map("".join), max_size=10))
def test_mixed_pieces(pieces: list[str]) -> None:
    for kill in kills(pieces):
        stands(kill)


@given(lines=st.permutations(LINES))
def test_the_order_of_lines_makes_no_other_numbers(lines: list[str]) -> None:
    found = kills(lines)
    for kill in found:
        stands(kill)
    assert {kill.pid for kill in found} == {kill.pid for kill in kills(LINES)}


@given(data=st.binary(max_size=400))
def test_random_bytes(data: bytes) -> None:
    for kill in diagnose_oom(file=io.BytesIO(data)).kills:
        stands(kill)


@given(data=st.binary(max_size=30), line=st.sampled_from(LINES), at=st.integers(0, 300))
def test_random_bytes_inside_of_lines(data: bytes, line: str, at: int) -> None:
    raw = line.encode()
    for kill in diagnose_oom(file=io.BytesIO(raw[:at] + data + raw[at:])).kills:
        stands(kill)
