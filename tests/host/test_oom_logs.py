"""Each log of `logs/`, whose first line tells where its shape is from, against what it is evidence of."""

import dataclasses
import importlib
import io
import json
import re
from pathlib import Path

import pytest

import erythroxy_tx as tx
from erythroxy_tx.cli import _COMMANDS
from erythroxy_tx.host.oom import diagnose_oom

LOGS = Path(__file__).parent / "logs"
USER = "/user.slice/user-1000.slice/user@1000.service"
CHROME = r"app-chrome\x2dabcdef\x2dDefault@0123456789abcdef0123456789abcdef.service"
POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod00000000_0000_0000_0000_000000000000.slice"

# For each log what is known of each kill, and the signs that are no kill.
EXPECTED: dict[str, tuple[list[dict], list[str]]] = {
    "01_oomd_pressure_killed_upto_v259": (
        [
            {
                "killer": "systemd-oomd",
                "reason": "memory-pressure",
                "unit": "vte-spawn-00000000-1111-2222-3333-444444444444.scope",
                "limit_of": USER,
                "pressure": 51.07,
                "limit": 50.0,
                "seconds": 20.0,
                "processes": 12,
                "pid": None,
                "when": "Dec 18 19:34:56",
            }
        ],
        [],
    ),
    "03_oomd_swap_killed": (
        [
            {
                "killer": "systemd-oomd",
                "reason": "memory-and-swap",
                "unit": CHROME,
                "cgroup": f"{USER}/app.slice/{CHROME}",
                "memory_used": 22369452032,
                "memory_total": 24681861120,
                "swap_used": 8589910016,
                "swap_total": 8589930496,
                "limit": 90.0,
                "pressure": None,
            }
        ],
        [],
    ),
    "04_oomd_swap_marked_v260plus": (
        [
            {
                "killer": "systemd-oomd",
                "reason": "memory-and-swap",
                "unit": "train-386.scope",
                "processes": 65,
                "memory_used": 15449980928,
                "swap_total": 16436412416,
            }
        ],
        [],
    ),
    "06_oomd_v247_announce": ([], ["announced"]),
    "07_oomd_rules_v261": ([], ["rule", "rule"]),
    "08_oomd_unit_some_processes": (
        [{"killer": "systemd-oomd", "unit": "train.service", "peak": int(11.5 * 2**30), "processes": None}],
        [],
    ),
    "10_oomd_failed_kill": ([], ["failed", "failed", "failed"]),
    "11_oomd_localised_timestamps": (
        [
            {"killer": "systemd-oomd", "unit": "app-a.scope", "pressure": 57.8, "when": "avril 16 21:08:50"},
            {"killer": "systemd-oomd", "unit": "app-b.scope", "pressure": 82.63, "when": "9月 18 02:27:12"},
        ],
        [],
    ),
    "20_kernel_global_5plus": (
        [
            {
                "killer": "kernel",
                "scope": "global",
                "pid": 2621226,
                "comm": "train",
                "anon": 68726128 * 1024,
                "unit": "app-konsole-10418.scope",
            }
        ],
        ["invoked"],
    ),
    "21_kernel_global_dmesg_raw": (
        [{"killer": "kernel", "scope": "global", "pid": 48845, "comm": "python", "limit_of": None}],
        [],
    ),
    "23_kernel_memcg_k8s": (
        [{"killer": "kernel", "scope": "cgroup", "pid": 461754, "comm": "pt_main_thread", "limit_of": POD}],
        [],
    ),
    "24_kernel_memcg_systemd_scope": (
        [{"killer": "kernel", "scope": "cgroup", "pid": 30448, "unit": "run-p1-i1.scope", "peak": 200 * 2**20}],
        [],
    ),
    "26_kernel_memcg_only_kill_line": (
        [{"killer": "kernel", "scope": "cgroup", "pid": 63214, "comm": "uwsgi", "unit": None, "cgroup": None}],
        ["invoked"],
    ),
    "28_false_friend_systemd-oomd_invoked": (
        [{"killer": "kernel", "scope": "global", "pid": 40404, "comm": "ld"}],
        ["invoked"],
    ),
    "29_kernel_cpuset_mempolicy": (
        [
            {"killer": "kernel", "scope": "cpuset", "pid": 4321, "anon": 900 * 1024},
            {"killer": "kernel", "scope": "mempolicy", "pid": 4322},
        ],
        [],
    ),
    "30_systemd_old_wording": (
        [{"killer": "kernel", "unit": "train.service", "pid": None, "scope": None, "peak": int(13.9 * 2**30)}],
        [],
    ),
    "31_earlyoom": (
        [
            {"killer": "earlyoom", "signal": "TERM", "pid": 29410, "comm": "python", "rss": 23964 * 2**20},
            {"killer": "earlyoom", "signal": "KILL", "pid": 12006, "comm": "python3", "rss": 2891 * 2**20},
            {"killer": "earlyoom", "signal": "TERM", "pid": 3425760, "comm": "python", "rss": 2194 * 2**20},
        ],
        [],
    ),
    "32_not_oom": ([], ["allocator", "sigkill"]),
    "34_journal_json": (
        [
            {"killer": "systemd-oomd", "unit": "train.scope", "processes": 3, "time": 1791484880.414318},
            {"killer": "kernel", "scope": "cgroup", "pid": 2413311, "comm": "python3", "unit": "u.scope"},
            {"killer": "kernel", "unit": "train.scope", "pid": None},
        ],
        [],
    ),
}


def test_every_log_has_its_verdict() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_log(name: str) -> None:
    kills, signs = EXPECTED[name]
    found = diagnose_oom(file=LOGS / f"{name}.txt")
    seen = [dataclasses.asdict(kill) for kill in found.kills]
    assert [{key: kill[key] for key in expected} for kill, expected in zip(seen, kills, strict=True)] == kills
    assert sorted(sign.kind for sign in found.signs) == sorted(signs)
    assert found.cause == (kills[-1]["killer"] if kills else "unknown")
    lines = (LOGS / f"{name}.txt").read_text(encoding="utf-8").split("\n")
    if not name.startswith("34"):  # records of the journal are cited as lines
        assert {line for kill in found.kills for line in kill.evidence} <= {line.strip() for line in lines}


@pytest.mark.parametrize("name", EXPECTED)
def test_report_says_what_it_has(name: str) -> None:
    found = diagnose_oom(file=LOGS / f"{name}.txt")
    text = str(found)
    assert text.startswith(found.verdict)
    assert all(line in text for kill in found.kills for line in kill.evidence)
    assert str(LOGS / f"{name}.txt") in text
    assert json.loads(found.to_json())["cause"] == found.cause
    assert all(step in text for step in found.advice)
    for kill in found.kills:
        assert "None" not in str(kill)


@pytest.mark.parametrize("name", EXPECTED)
def test_advice_names_what_exists(name: str) -> None:
    advice = "\n".join(diagnose_oom(file=LOGS / f"{name}.txt").advice)
    assert set(re.findall(r"`tx\.(\w+)", advice)) <= set(tx.__all__)
    assert set(re.findall(r"`erythroxy (\w+)", advice)) <= set(_COMMANDS)
    for function, module in re.findall(r"`(\w+)` of `([\w.]+)`", advice):
        assert hasattr(importlib.import_module(module), function)


def test_case_47_a_terminal_vanishes() -> None:
    """systemd-oomd kills one group by pressure, and another one with it. Source: systemd/systemd#35270 and #32687."""
    scope = f"{USER}/app.slice/tmux-spawn-01.scope"
    log = f"""\
Mar 04 03:12:07 box systemd-oomd[911]: Considered 6 cgroups for killing, top candidates were:
Mar 04 03:12:07 box systemd-oomd[911]: \tPath: {scope}
Mar 04 03:12:07 box systemd-oomd[911]: \t\tMemory Pressure Limit: 0.00%
Mar 04 03:12:07 box systemd-oomd[911]: \t\tPressure: Avg10: 71.20 Avg60: 44.10 Avg300: 12.00 Total: 1min 4s
Mar 04 03:12:07 box systemd-oomd[911]: \t\tCurrent Memory Usage: 23.1G
Mar 04 03:12:07 box systemd-oomd[911]: Killed {scope} due to memory pressure for {USER} \
being 57.97% > 50.00% for > 20s with reclaim activity
Mar 04 03:12:08 box systemd[1402]: tmux-spawn-01.scope: systemd-oomd killed 34 process(es) in this unit.
Mar 04 03:12:24 box systemd[1402]: app-editor-7.scope: systemd-oomd killed some process(es) in this unit.
Mar 04 03:12:24 box systemd[1402]: app-editor-7.scope: Failed with result 'oom-kill'.
"""
    found = diagnose_oom(file=io.StringIO(log))
    assert found.cause == "systemd-oomd"
    first, second = found.kills
    assert (first.unit, first.pressure, first.limit, first.seconds) == ("tmux-spawn-01.scope", 57.97, 50.0, 20)
    assert [kill.processes for kill in found.kills] == [34, None]
    assert (first.bystander, second.bystander) == (False, True)
    assert (second.unit, second.pressure, second.pid) == ("app-editor-7.scope", None, None)
    advice = "\n".join(found.advice)
    assert "kills a whole group, not the largest process" in advice
    assert "systemd-run --user --scope" in advice
    assert "Raising MemoryMax= does not help" in advice
    assert "ManagedOOMMemoryPressure=auto on the unit does not help" in advice
    order = [advice.index(name) for name in ("tx.vram_resident", "tx.chunked", "tx.wait_for_headroom")]
    assert order == sorted(order)


def test_case_49_at_the_limit_of_its_own_group() -> None:
    """Source: marin-community/marin#6774, ymoslem/OpenNMT-Tutorial#6."""
    log = """\
[9182.11] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=pod7,mems_allowed=0-1,oom_memcg=/kubepods/pod7,\
task_memcg=/kubepods/pod7/main,task=python,pid=77,uid=0
[9182.11] Memory cgroup out of memory: Killed process 77 (python) total-vm:910263412kB, anon-rss:417333248kB, \
file-rss:102400kB, shmem-rss:102400kB, UID:0 pgtables:921004kB oom_score_adj:0
"""
    found = diagnose_oom(file=io.StringIO(log))
    (kill,) = found.kills
    assert (kill.killer, kill.scope, kill.limit_of) == ("kernel", "cgroup", "/kubepods/pod7")
    assert (kill.cgroup, kill.pid, kill.anon) == ("/kubepods/pod7/main", 77, 417333248 * 1024)
    assert "/kubepods/pod7 was at its limit" in found.verdict
    assert any("raise the limit of /kubepods/pod7" in step for step in found.advice)
    assert diagnose_oom(file=io.StringIO(log), pid=77).kills == found.kills
    assert diagnose_oom(file=io.StringIO(log), pid=7).cause == "unknown"
