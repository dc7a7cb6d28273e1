"""Which lines are one kill, which are two, and which are none."""

import io
import itertools

import pytest

from erythroxy_tx.host.kills.kill import unit_of
from erythroxy_tx.host.oom import Diagnosis
from erythroxy_tx.host.oom import diagnose_oom

APP = "/user.slice/user-1000.slice/user@1000.service/app.slice"


def diagnose(*lines: str) -> Diagnosis:
    return diagnose_oom(file=io.StringIO("\n".join(lines)))


def chosen(pid: int, scope: str = "MEMCG", unit: str = "u.scope") -> str:
    return (
        f"oom-kill:constraint=CONSTRAINT_{scope},nodemask=(null),cpuset=/,mems_allowed=0,"
        f"oom_memcg=/a,task_memcg=/a/{unit},task=python,pid={pid},uid=0"
    )


def killed(pid: int, of: str = "Memory cgroup out of memory") -> str:
    return f"{of}: Killed process {pid} (python) total-vm:9kB, anon-rss:{pid}kB, file-rss:0kB, UID:0"


def reaped(pid: int) -> str:
    return f"oom_reaper: reaped process {pid} (python), now anon-rss:0kB, file-rss:0kB"


def test_order_does_not_matter() -> None:
    lines = [f"[10.{i}] {line}" for i, line in enumerate([chosen(11), killed(11), reaped(11), chosen(22), killed(22)])]
    for order in itertools.permutations(lines):
        found = diagnose(*order)
        assert sorted((kill.pid, kill.anon, len(kill.evidence)) for kill in found.kills) == [
            (11, 11 * 1024, 3),
            (22, 22 * 1024, 2),
        ]


def test_a_number_that_is_used_again_is_another_process() -> None:
    found = diagnose(f"[10.0] {killed(11)}", f"[10.1] {reaped(11)}", f"[9000.0] {killed(11)}")
    assert [len(kill.evidence) for kill in found.kills] == [2, 1]


def test_a_number_that_is_used_again_on_another_day() -> None:
    def of(day: int, unit: str, anon: int) -> list[str]:
        return [
            f"Jun {day} 10:00:00 box kernel: {chosen(11, unit=unit)}",
            f"Jun {day} 10:00:00 box kernel: {killed(11).replace('rss:11kB', f'rss:{anon}kB')}",
        ]

    found = diagnose(*of(19, "a.scope", 5), *of(24, "b.scope", 7))
    assert [(kill.unit, kill.anon, kill.limit_of) for kill in found.kills] == [
        ("a.scope", 5120, "/a"),
        ("b.scope", 7168, "/a"),
    ]


def test_one_kill_at_midnight() -> None:
    found = diagnose(f"Jun 19 23:59:59 box kernel: {chosen(11)}", f"Jun 20 00:00:01 box kernel: {killed(11)}")
    assert [(kill.pid, kill.unit) for kill in found.kills] == [(11, "u.scope")]


def test_one_kill_of_a_group_at_midnight() -> None:
    (kill,) = diagnose(
        f"Jun 19 23:59:59 box systemd-oomd[9]: Killed {APP}/a.scope due to memory pressure for {APP} "
        "being 57.97% > 50.00% for > 20s with reclaim activity",
        "Jun 20 00:00:00 box systemd[1402]: a.scope: systemd-oomd killed 7 process(es) in this unit.",
    ).kills
    assert (kill.processes, kill.pressure, kill.bystander) == (7, 57.97, False)


def test_a_unit_that_is_killed_each_minute() -> None:
    lines = [f"Jun 19 10:0{i}:00 box systemd[1]: t.service: Failed with result 'oom-kill'." for i in range(3)]
    assert len(diagnose(*lines, *lines).kills) == 3


def test_the_latest_of_a_log_from_the_newest_to_the_oldest() -> None:
    lines = [f"2026-08-{day}T01:00:00+00:00 box kernel: {killed(day)}" for day in (18, 17)]
    assert [kill.pid for kill in diagnose(*lines).kills] == [17, 18]


@pytest.mark.parametrize("status", [0, 1, -15, 139])
def test_a_process_that_ended_otherwise_was_not_killed(status: int) -> None:
    log = f"[10.0] {killed(11)}"
    assert diagnose_oom(file=io.StringIO(log), pid=11, status=status).cause == "unknown"
    assert diagnose_oom(file=io.StringIO(log), pid=11, status=137).cause == "kernel"


def test_only_the_choice_of_an_old_kernel() -> None:
    found = diagnose("[10.1] Out of memory: Kill process 11 (python) score 900 or sacrifice child")
    assert found.cause == "unknown"
    assert "does not say that it killed it" in found.signs[0].text


def test_a_limit_of_pressure_is_no_help_against_the_rule_of_swap() -> None:
    found = diagnose(
        "Oct 01 12:00:00 box systemd-oomd[9]: Killed /a.slice/a.scope due to swap used (9) / total (10) being more "
        "than 90.00%"
    )
    assert found.kills[0].reason == "swap"
    assert not any("ManagedOOMMemoryPressureLimit" in step for step in found.advice)


def test_two_clocks_tell_of_one_process() -> None:
    found = diagnose(f"[10.0] {killed(11)}", f"Oct 01 12:00:00 box kernel: {chosen(11)}")
    (kill,) = found.kills
    assert (kill.scope, kill.cgroup, kill.anon) == ("cgroup", "/a/u.scope", 11 * 1024)


def test_two_machines_have_each_their_own() -> None:
    found = diagnose(f"Oct 01 12:00:00 one kernel: {killed(11)}", f"Oct 01 12:00:00 two kernel: {killed(11)}")
    assert len(found.kills) == 2


def test_out_of_memory_alone_does_not_tell_of_what() -> None:
    (kill,) = diagnose(f"[10.0] {killed(11, 'Out of memory')}").kills
    assert kill.scope is None
    assert "not told" in str(kill)


def test_a_victim_that_was_exiting_is_not_killed() -> None:
    found = diagnose(
        f"[10.0] {chosen(11)}",
        "[10.1] Memory cgroup out of memory: OOM victim 11 (python) is already exiting. Skip killing the task",
    )
    assert found.cause == "unknown"
    assert [sign.kind for sign in found.signs] == ["spared"]


def test_old_kernels_may_kill_a_child_of_the_one_they_name() -> None:
    found = diagnose(
        f"[10.0] {chosen(11, 'NONE')}",
        "[10.1] Out of memory: Kill process 11 (python) score 900 or sacrifice child",
        "[10.2] Killed process 12 (worker) total-vm:9kB, anon-rss:8kB, file-rss:0kB",
    )
    assert [(kill.pid, kill.comm) for kill in found.kills] == [(12, "worker")]


@pytest.mark.parametrize(
    "line",
    [
        "Killed process 12 (worker) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB",
        "Killed process 12 (worker), UID 1000, total-vm:9kB, anon-rss:8kB, file-rss:0kB",
        "Killed process 12, UID 1000, (worker) total-vm:9kB, anon-rss:8kB, file-rss:0kB",
    ],
)
def test_words_of_older_kernels(line: str) -> None:
    (kill,) = diagnose(
        "[10.1] Memory cgroup out of memory: Kill process 12 (worker) score 900 or sacrifice child", f"[10.2] {line}"
    ).kills
    assert (kill.pid, kill.comm, kill.anon, kill.scope) == (12, "worker", 8192, "cgroup")


def test_unit_line_joins_the_nearest_kill_of_its_unit() -> None:
    def at(seconds: int, line: str) -> str:
        return f"Oct 01 12:00:{seconds:02} box {line}"

    found = diagnose(
        at(1, "systemd[1]: u.scope: The kernel OOM killer killed some processes in this unit."),
        at(2, f"kernel: {chosen(11)}"),
        at(20, f"kernel: {chosen(22)}"),
        at(21, "systemd[1]: u.scope: A process of this unit has been killed by the OOM killer."),
        at(22, "systemd[1]: other.scope: The kernel OOM killer killed some processes in this unit."),
        at(50, "systemd[1]: u.scope: Failed with result 'oom-kill'."),
    )
    assert [(kill.pid, kill.unit, len(kill.evidence)) for kill in found.kills] == [
        (11, "u.scope", 2),
        (22, "u.scope", 3),
        (None, "other.scope", 1),
    ]


def test_the_manager_of_the_user_tells_of_the_same_kill() -> None:
    found = diagnose(
        f"Oct 01 12:00:00 box systemd-oomd[9]: Killed {APP}/a.scope due to memory pressure for {APP} "
        "being 57.97% > 50.00% for > 1min 30s with reclaim activity",
        "Oct 01 12:00:00 box systemd[1]: user@1000.service: systemd-oomd killed some process(es) in this unit.",
        "Oct 01 12:00:01 box systemd[1402]: a.scope: systemd-oomd killed 7 process(es) in this unit.",
    )
    (kill,) = found.kills
    assert (kill.unit, kill.processes, kill.seconds, kill.bystander) == ("a.scope", 7, 90.0, False)


def test_two_decisions_with_other_numbers_are_two_kills() -> None:
    line = (
        f"Oct 01 12:00:00 box systemd-oomd[9]: Killed {APP}/a.scope due to memory pressure for {APP} "
        "being {}% > 50.00% for > 20s with reclaim activity"
    )
    found = diagnose(line.format("57.97"), line.format("61.00"), line.format("57.97"))
    assert [kill.pressure for kill in found.kills] == [57.97, 61.0]


def test_marked_alone_is_no_kill() -> None:
    found = diagnose(
        f"Oct 01 12:00:00 box systemd-oomd[9]: Marked {APP}/a.scope for killing due to memory pressure for {APP} "
        "being 57.97% > 50.00% for > 20s with reclaim activity"
    )
    assert found.cause == "unknown"
    assert [sign.kind for sign in found.signs] == ["marked"]
    assert "a.scope" in found.signs[0].text


def test_result_alone_does_not_say_who() -> None:
    (kill,) = diagnose("Oct 01 12:00:00 box systemd[1]: a.service: Failed with result 'oom-kill'.").kills
    assert kill.killer == "kernel or systemd-oomd"


@pytest.mark.parametrize("end", ["kill failed: Operation not permitted", "dryrun, not actually sending any signal"])
def test_earlyoom_that_did_not_kill(end: str) -> None:
    sending = 'sending SIGTERM to process 29410 uid 1000 "python": badness 1264, VmRSS 23964 MiB'
    other = sending.replace("29410", "29411")
    found = diagnose(
        f"Feb 16 13:58:29 box earlyoom[1233]: {sending}",
        f"Feb 16 13:58:29 box earlyoom[9999]: {other}",
        f"Feb 16 13:58:29 box earlyoom[1233]: {end}",
    )
    assert [kill.pid for kill in found.kills] == [29411]
    assert [sign.kind for sign in found.signs] == ["failed"]


def test_earlyoom_in_the_words_of_2019_and_its_second_signal() -> None:
    (kill,) = diagnose('killing process 27541 "bash" with signal 15: badness 550, VmRSS 7609 MiB').kills
    assert (kill.pid, kill.signal, kill.rss) == (27541, "TERM", 7609 * 2**20)
    sent = 'sending SIGTERM to process 5 uid 0 "python": badness 9, VmRSS 8 MiB'
    (kill,) = diagnose(sent, "escalating to SIGKILL after 2.4 seconds").kills
    assert (kill.signal, kill.evidence) == ("KILL", (sent, "escalating to SIGKILL after 2.4 seconds"))


def test_allocators_raise_and_do_not_kill() -> None:
    found = diagnose(
        "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1000000000,)",
        "MemoryError",
    )
    assert found.cause == "unknown"
    assert [sign.text.split()[0] for sign in found.signs] == ["XLA", "CUDA", "numpy", "Python"]
    assert any("tx.chunked" in step for step in found.advice)


def test_a_name_may_look_like_the_kernels_words() -> None:
    (kill,) = diagnose(f"[1.0] {chosen(11, unit='x,task=evil,pid=1,uid=0')}").kills
    assert (kill.pid, kill.comm, kill.cgroup) == (11, "python", "/a/x,task=evil,pid=1,uid=0")


@pytest.mark.parametrize("name", ["x,pid=1,uid=0", "a) total-vm:1kB", "(sd-pam)", "Killed process", "a, UID 0, (b"])
def test_a_process_may_have_any_name(name: str) -> None:
    lines = [chosen(11).replace("python", name), killed(11).replace("python", name)]
    for said in (lines, lines[:1], lines[1:]):
        (kill,) = diagnose(*(f"[1.0] {line}" for line in said)).kills
        assert (kill.pid, kill.comm) == (11, name)
    assert kill.anon == 11 * 1024


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        (f"{APP}/a.scope", "a.scope"),
        (f"{APP}/app-x.slice/a.scope/tab(1).scope", "a.scope"),
        ("/user.slice/user-1000.slice/user@1000.service", "user@1000.service"),
        ("/system.slice/train.service/sub", "train.service"),
        ("/user.slice", "user.slice"),
        ("/slurm/uid_1000/job_1", None),
        ("/", None),
        (None, None),
    ],
)
def test_unit_of_a_group(cgroup: str | None, unit: str | None) -> None:
    assert unit_of(cgroup) == unit
