"""What is answered where there is no clear kill of the process that was asked for, and the advice that fits."""

import io
from pathlib import Path

import pytest

from erythroxy_tx.host.kills.advice import advice
from erythroxy_tx.host.kills.kill import Kill
from erythroxy_tx.host.kills.verdict import is_elsewhere
from erythroxy_tx.host.oom import Diagnosis
from erythroxy_tx.host.oom import diagnose_oom

HEAD = "Aug 14 03:41:47 box"
SWAP = (
    f"{HEAD} systemd-oomd[8]: Killed /system.slice/train.service due to memory used (90) / total (99) and swap used "
    "(92) / total (99) being more than 90.00%\n"
)
KILLED = f"{HEAD} kernel: Memory cgroup out of memory: Killed process 77 (python) total-vm:9kB, anon-rss:8kB\n"
QUIET = f"{HEAD} cron[1]: nothing\n"
POD = "/kubepods.slice/pod0.slice/a.scope"
ACCOUNT = f"""\
[7.10] memory: usage 33554432kB, limit 33554432kB, failcnt 8123
[7.11] swap: usage 0kB, limit 9007199254740988kB, failcnt 0
[7.12] Memory cgroup stats for {POD}:
[7.13] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,oom_memcg={POD},task_memcg={POD},\
task=python,pid=77,uid=0
[7.14] Memory cgroup out of memory: Killed process 77 (python) total-vm:84938268kB, anon-rss:33001112kB, file-rss:8kB
"""


def of(log: str, **asked: int) -> Diagnosis:
    return diagnose_oom(file=io.StringIO(log), **asked)


def test_a_kill_that_names_no_process_is_no_guess_and_is_told() -> None:
    found = of(SWAP + KILLED, pid=5, status=137)
    assert (found.cause, found.kills) == ("unknown", ())
    assert [kill.killer for kill in found.others] == ["systemd-oomd", "kernel"]
    assert "1 kill may be of it, since no process is named: systemd-oomd killed train.service" in found.verdict
    assert "1 kill names another process" in found.verdict
    assert of(SWAP + KILLED, pid=5, status=1).others == ()


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "0 lines"), (b"\x7fELF\0\nkill memory\n", "none of its first 2 lines looks like one of a log")],
)
def test_what_is_no_log_is_no_all_clear(data: bytes, why: str) -> None:
    found = diagnose_oom(file=io.BytesIO(data))
    assert found.looked_at == ()
    assert found.verdict.startswith("Nothing could be read")
    assert why in found.could_not_read[0]


@pytest.mark.parametrize(
    "line", [QUIET, "[7.10] usb 1-1: new device", '{"MESSAGE": "hello"}', "2025-01-01T00:00:00+00:00 box cron[1]: x"]
)
def test_a_log_without_a_kill_is_one(line: str) -> None:
    assert of(line).verdict == "No kill found."
    assert of(line).looked_at


@pytest.mark.parametrize(
    ("status", "words", "but"),
    [
        (139, ["the place of the crash"], ["as root", "docker stop"]),
        (1, ["has written itself"], ["as root", "docker stop"]),
        (0, [], ["as root", "docker stop"]),
        (137, ["docker stop", "the kubelet", "limit of time", "a person", "A file tells"], ["as root"]),
    ],
)
def test_advice_fits_the_status(status: int, words: list[str], but: list[str]) -> None:
    steps = "\n".join(of(QUIET, status=status).advice)
    assert all(word in steps for word in words)
    assert not any(word in steps for word in but)


def test_advice_for_a_kill_by_swap() -> None:
    steps = "\n".join(of(SWAP).advice)
    assert "More swap" in steps
    assert "MemorySwapMax=" in steps
    assert "Pressure" not in steps
    assert "time lost" not in steps
    assert "systemd-run" not in steps  # train.service is its own group


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (f"{HEAD} slurmstepd[7]: error: Detected 1 oom-kill event(s) in StepId=12.batch. Some of", "passed-on"),
        ("    Reason:       OOMKilled", "passed-on"),
        ("Killed", "sigkill"),
        ("run.sh: line 3: 4711 Killed                  python train.py", "sigkill"),
    ],
)
def test_what_is_passed_on_is_a_sign(line: str, kind: str) -> None:
    found = of(f"step 100\n{line}\n", status=137)
    assert (found.cause, [sign.kind for sign in found.signs]) == ("unknown", [kind])
    assert line.strip() in str(found)


def test_amounts_of_a_kill_at_a_limit() -> None:
    (kill,) = of(ACCOUNT).kills
    assert kill.limit_bytes == 32 * 2**30
    assert ACCOUNT.split("\n", maxsplit=1)[0] in kill.evidence
    assert "held 31.5 GiB, limit 32.0 GiB" in str(of(ACCOUNT))


@pytest.mark.parametrize(
    "log",
    [
        ACCOUNT.replace(f"stats for {POD}", "stats for /other"),
        ACCOUNT.replace(f"[7.12] Memory cgroup stats for {POD}:\n", ""),
        ACCOUNT.replace("[7.10]", "[1.10]"),
        ACCOUNT.replace("[7.13]", "[7.125] a invoked oom-killer: gfp\n[7.13]"),
    ],
)
def test_a_limit_of_another_account_is_left_out(log: str) -> None:
    (kill,) = of(log).kills
    assert kill.limit_bytes is None


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (POD, "`resources.limits.memory` of the container"),
        ("/docker/0a1b", "`docker run --memory` of the container"),
        ("/system.slice/docker-0a1b.scope", "`docker run --memory` of the container"),
        ("/system.slice/train.service", "MemoryMax= of its unit"),
    ],
)
def test_where_a_limit_is_set(group: str, words: str) -> None:
    steps = advice(Kill("kernel", scope="cgroup", limit_of=group, cgroup=group))
    assert any(f"raise the limit of {group}: {words}." in step for step in steps)


@pytest.mark.parametrize(
    ("group", "unit", "own", "elsewhere"),
    [
        ("/a/b", None, "/a", False),
        ("/a", None, "/a", False),
        ("/ab", None, "/a", True),
        ("/b", None, "/", False),
        (None, None, "/a", False),
        (None, "x.service", "/system.slice/x.service", False),
        (None, "y.service", "/system.slice/x.service", True),
    ],
)
def test_what_is_elsewhere(group: str | None, unit: str | None, own: str, elsewhere: bool) -> None:
    assert is_elsewhere(Kill("kernel", cgroup=group, unit=unit), own) is elsewhere


def test_a_refusal_of_the_host_gets_advice_for_the_host() -> None:
    host, device = of("MemoryError").advice, of("RESOURCE_EXHAUSTED: Out of memory").advice
    assert "Hold less on the host" in host[0]
    assert "memory of the device" in device[0]


def test_a_file_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"diagnose_oom got file=3\. Expected the path of a log"):
        diagnose_oom(file=3)


def test_an_empty_path_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    assert diagnose_oom(file=tmp_path / "log", pid=7, status=137).verdict.endswith(
        "log: 0 lines. Fix: hand over what journalctl or dmesg prints."
    )
