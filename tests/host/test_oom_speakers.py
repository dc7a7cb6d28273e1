"""Who is entitled to say what: a line that is quoted by another program tells of no kill."""

import bz2
import gzip
import io
import json
import lzma

import pytest

from erythroxy_tx.host.kills import sources
from erythroxy_tx.host.kills.records import records
from erythroxy_tx.host.oom import diagnose_oom

KERNEL = "Out of memory: Killed process 5 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB"
OOMD = (
    "Killed /a.slice/a.scope due to memory pressure for /a.slice being 57.97% > 50.00% for > 20s with reclaim activity"
)
UNIT = "a.scope: systemd-oomd killed 3 process(es) in this unit."
EARLY = 'sending SIGTERM to process 5 uid 0 "python": badness 9, VmRSS 8 MiB'


def kills(*lines: str) -> list[str]:
    return [kill.killer for kill in diagnose_oom(file=io.StringIO("\n".join(lines))).kills]


def journal(message: object, **fields: object) -> str:
    return json.dumps({"MESSAGE": message, "__REALTIME_TIMESTAMP": "1791484880414318", **fields})


@pytest.mark.parametrize(
    "line",
    [
        f"kernel: {KERNEL}",
        f"Jun 19 16:23:33 box kernel: {KERNEL}",
        f"Jun 19 16:23:33 box kernel: [ 7063.247407] {KERNEL}",
        f"Jun  9 16:23:33 kernel: {KERNEL}",
        f"2026-08-27T15:51:41+1000 box kernel: {KERNEL}",
        f"2026-08-27T15:51:41.123456+10:00 box kernel: {KERNEL}",
        f"Mon 2026-08-17 01:09:56 UTC box kernel: {KERNEL}",
        f"1791484880.414318 box kernel: {KERNEL}",
        f"[ 1234.567890] box kernel: {KERNEL}",
        f"[ 1234.567890] {KERNEL}",
        f"[ 1234.567890][ T123] {KERNEL}",
        f"[Mon Jun 19 16:23:33 2026] {KERNEL}",
        f"[lun. juin  9 16:23:33 2026] {KERNEL}",
        f"[Mo Jun 19 16:23:33 2026 <    0.000012>] {KERNEL}",
        f"[ 1234.567890 <    0.000012>] {KERNEL}",
        f"[ 1234.567890 <    0.000012 >] box kernel: {KERNEL}",
        f"[Jun19 16:23] {KERNEL}",
        f"[  +0.000012] {KERNEL}",
        f"2026-08-17T01:09:56,123456+00:00 {KERNEL}",
        f"kern  :err   : 2026-08-17T01:09:56,123456+00:00 {KERNEL}",
        f"kern  :err   : {KERNEL}",
        f"\x1b[32m[ 1234.567890] \x1b[0m\x1b[1m\x1b[31m{KERNEL}\x1b[0m",
        f"Mon 2026-08-17 01:09:56 -03 box kernel: {KERNEL}",
        f"Mo 2026-08-17 01:09:56 CEST box kernel: {KERNEL}",
        f"Jun 19 16:23:33 box kern.err kernel: [ 1234.567890] {KERNEL}",
        f"Mon Jun 19 16:23:33 2026 kern.err kernel: [ 1234.567890] {KERNEL}",
        f"<3>1 2026-08-17T01:09:56.123456+00:00 box kernel - - - {KERNEL}",
        f'<3>1 2026-08-17T01:09:56Z box kernel - - [x@1 a="b\\]"][y@1] [ 1234.567890] {KERNEL}',
        f"\ufeff{KERNEL}",
        f"\x1e{journal(KERNEL, _TRANSPORT='kernel')}",
        f"data: {journal(KERNEL, _TRANSPORT='kernel')}",
        f"<3>[ 1234.567890] {KERNEL}",
        f"kern  :err   : [ 1234.567890] {KERNEL}",
        f"3,338,1351916,-;{KERNEL}",
        KERNEL,
        f"    {KERNEL}\r",
        journal(KERNEL, _TRANSPORT="kernel"),
        journal(KERNEL, _TRANSPORT="kernel", SYSLOG_FACILITY="0", SYSLOG_IDENTIFIER="kernel"),
        journal(list(KERNEL.encode()), _TRANSPORT="kernel"),
    ],
)
def test_the_kernel_speaks(line: str) -> None:
    assert kills(line) == ["kernel"]


@pytest.mark.parametrize(
    "line",
    [
        f"Jun 19 16:23:33 box python[77]: {KERNEL}",
        f"Jun 19 16:23:33 box python[77]: kernel: {KERNEL}",
        f"Jun 19 16:23:33 box python[77]: Jun 19 16:23:33 box kernel: {KERNEL}",
        f"Jun 19 16:23:33 box kernel[77]: {KERNEL}",  # `logger -i -t kernel`: the kernel has no number
        f"<13>Jun 19 16:23:33 box kernel: {KERNEL}",  # facility user
        f"<12>[ 1234.567890] {KERNEL}",
        f"user  :warn  : [ 1234.567890] {KERNEL}",
        f"12,338,1351916,-;{KERNEL}",
        f"<13>1 2026-08-17T01:09:56.123456+00:00 box kernel - - - {KERNEL}",
        f"<3>1 2026-08-17T01:09:56.123456+00:00 box kernel 77 - - {KERNEL}",
        f"<3>1 2026-08-17T01:09:56.123456+00:00 box python - - - {KERNEL}",
        f"Jun 19 16:23:33 box user.err kernel: {KERNEL}",
        f"data: {KERNEL}",
        f"2026-08-17T01:09:56.123456+00:00 {KERNEL}",
        f"2026-08-17 01:09:56,123 WARNING kernel: {KERNEL}",
        f"[2026-08-17 01:09:56] {KERNEL}",
        f"WARNING:root:{KERNEL}",
        f"saw {KERNEL}",
        f"saw: Jun 19 16:23:33 box kernel: {KERNEL}",
        "Killed process 5 (python) total-vm:9kB, anon-rss:8kB",
        "Out of memory: Killed process 5 (python)",
        "Killed",
        journal(KERNEL, _TRANSPORT="stdout", _COMM="python3", SYSLOG_IDENTIFIER="python"),
        journal(KERNEL, _TRANSPORT="syslog", _COMM="logger", SYSLOG_IDENTIFIER="kernel"),
        journal(KERNEL, _TRANSPORT="syslog", SYSLOG_IDENTIFIER="kernel"),
        journal(KERNEL, _TRANSPORT="kernel", SYSLOG_FACILITY="1"),  # written to /dev/kmsg
        journal(KERNEL, _TRANSPORT="journal", _COMM="systemd"),
        journal(KERNEL),
    ],
)
def test_others_do_not_speak_for_the_kernel(line: str) -> None:
    assert kills(line) == []


@pytest.mark.parametrize(("speaker", "said"), [("systemd-oomd", OOMD), ("systemd", UNIT), ("earlyoom", EARLY)])
def test_each_speaks_for_itself(speaker: str, said: str) -> None:
    expected = ["earlyoom" if speaker == "earlyoom" else "systemd-oomd"]
    for name in ("systemd-oomd", "systemd", "earlyoom", "kernel", "python"):
        if name != "kernel":
            assert kills(f"Jun 19 16:23:33 box {name}[7]: {said}") == (expected if name == speaker else [])
            assert kills(journal(said, _COMM=name, _TRANSPORT="journal")) == (expected if name == speaker else [])
        assert kills(f"Jun 19 16:23:33 box {name}: {said}") == (expected if name == speaker else [])
        assert kills(journal(said, _COMM="python3", SYSLOG_IDENTIFIER=name, _TRANSPORT="syslog")) == []


def test_only_earlyoom_may_leave_its_head_out() -> None:
    assert kills(EARLY) == ["earlyoom"]
    assert kills(UNIT, OOMD) == []


@pytest.mark.parametrize(
    ("number", "killer"),
    [("d989611b15e44c9dbf31e3c81256e4ed", "systemd-oomd"), ("fe6faa94e7774663a0da52717891d8ef", "kernel")],
)
def test_the_number_of_a_message_counts_whatever_its_words(number: str, killer: str) -> None:
    fields = {"MESSAGE_ID": number, "USER_UNIT": r"app\x2da.scope", "_HOSTNAME": "box"}
    found = diagnose_oom(file=io.StringIO(journal("words of a later version", _COMM="systemd", **fields)))
    assert [(kill.killer, kill.unit) for kill in found.kills] == [(killer, r"app\x2da.scope")]
    assert kills(journal("words of a later version", _COMM="python", **fields)) == []


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "{}",
        "[1]",
        '{"MESSAGE":',
        '{"MESSAGE":null}',
        '{"MESSAGE":[300]}',
        '{"MESSAGE":{}}',
        '{"a":' * 9999,
        '{"MESSAGE":"\\ud800 killed","_TRANSPORT":"kernel","__REALTIME_TIMESTAMP":"999999999999999999"}',
    ],
)
def test_what_cannot_be_read_is_left_out(line: str) -> None:
    for record in records([line]):
        record.line.encode()
    assert kills(line) == []


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (gzip.compress(KERNEL.encode(), mtime=0), "it is packed"),
        (lzma.compress(KERNEL.encode()), "it is packed"),
        (bz2.compress(KERNEL.encode()), "it is packed"),
        (b"LPKSHHRH\0\0", "a file of journald"),
        (KERNEL.encode("utf-16"), "UTF-16"),
        (b'{\n   "dmesg": [\n      {\n', "`dmesg` without -J"),
        (f"__CURSOR=s=1\n_TRANSPORT=kernel\nMESSAGE={KERNEL}\n".encode(), "`journalctl -o json`"),
        (f'{{\n\t"__CURSOR" : "s=1",\n\t"MESSAGE" : "{KERNEL}"\n}}'.encode(), "`journalctl -o json`"),
        (f"Mon 2026-08-17 01:09:56 UTC [s=1;i=2;b=3;m=4]\n    MESSAGE={KERNEL}\n".encode(), "`journalctl -o json`"),
    ],
)
def test_a_form_that_is_not_read_is_said(log: bytes, why: str) -> None:
    found = diagnose_oom(file=io.BytesIO(log))
    assert why in found.could_not_read[0]
    assert (found.kills, found.looked_at) == ((), ())
    assert "Nothing could be read" in found.verdict


def test_a_terminal_is_not_sent_what_it_would_obey() -> None:
    found = diagnose_oom(file=io.StringIO(f"kernel: {KERNEL.replace('python', chr(27) + ']0;title' + chr(7))}"))
    assert found.kills
    assert "\x1b" not in str(found)
    assert "\x07" not in str(found)


def test_the_rest_of_a_long_line_is_not_a_line() -> None:
    file = io.BytesIO(b"x" * sources._LINE + f"kernel: {KERNEL}\nkernel: {KERNEL.replace('5', '6')}\n".encode())
    assert [kill.pid for kill in diagnose_oom(file=file).kills] == [6]
