"""Planted environments, each wrong in one way or a few, and the codes that `doctor` finds: those, and no other. And
their fixes, pasted into a shell in the order of the page, leave none of it.
"""

import dataclasses
import enum
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from erythroxy_tx.host.checkup.asked import BadFlag
from erythroxy_tx.host.checkup.asked import Jax
from erythroxy_tx.host.checkup.counts import CacheCounts
from erythroxy_tx.host.checkup.facts import Facts
from erythroxy_tx.host.checkup.finding import CODES
from erythroxy_tx.host.checkup.machine import Machine
from erythroxy_tx.host.checkup.machine import Place
from erythroxy_tx.host.checkup.settings import literal
from erythroxy_tx.host.checkup.settings import says
from erythroxy_tx.host.checkup.watch import Late
from erythroxy_tx.host.checkup.watch import is_setting
from erythroxy_tx.host.compile_cache import CompileCache
from erythroxy_tx.host.compile_cache import compile_cache
from erythroxy_tx.host.doctor import examine
from erythroxy_tx.host.nvml import Device
from erythroxy_tx.host.nvml import Tenant
from erythroxy_tx.host.room import Room
from erythroxy_tx.host.xla_flags import flags_of

GIB = 2**30
CONFIG = {
    "jax_platforms": None,
    "jax_enable_x64": False,
    "jax_cuda_visible_devices": "all",
    "jax_num_cpu_devices": -1,
    "jax_enable_compilation_cache": True,
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 1.0,
}
WORKS = Jax("works", version="0.12.0", jaxlib="0.12.0", backend="cpu", devices=("cpu:0",), config=CONFIG)
SCHEDULER = "--xla_gpu_enable_latency_hiding_scheduler=true"
OTHERS = (Tenant(7, "ada", "python train.py", 8 * GIB, "compute"),)
REFUSED = "ValueError: invalid literal for int() with base 10: 'x'"


def gpu(index: int = 0, name: str = "H200", tenants: tuple[Tenant, ...] = (), busy: tuple[str, ...] = ()) -> Device:
    memory = {"total": 96 * GIB, "used": 0, "free": 96 * GIB, "own": 0}
    about = {"utilisation": 0.0, "tenants": tenants, "mig": False, "fault": "", "busy": busy}
    return Device(index=index, uuid=f"GPU-{index}a", name=name, **memory, **about)


CPU = Facts({}, WORKS)
GPU = Facts(
    {"XLA_FLAGS": SCHEDULER},
    dataclasses.replace(WORKS, backend="gpu", devices=("cuda:0",)),
    machine=Machine(has_gpu=True, gpus=(gpu(),)),
)


def on(
    base: Facts, *, jax: dict[str, Any] | None = None, machine: dict[str, Any] | None = None, **changes: Any
) -> Facts:
    """`base` with some of it changed; `environ` is added to what is there."""
    changes["environ"] = {**base.environ, **changes.get("environ", {})}
    changes["jax"] = dataclasses.replace(base.jax, **(jax or {}))
    changes["machine"] = dataclasses.replace(base.machine, **(machine or {}))
    return dataclasses.replace(base, **changes)


def env(base: Facts, **environ: str) -> Facts:
    return on(base, environ=environ)


def with_gpus(*gpus: Device, **environ: str) -> Facts:
    return on(GPU, machine={"gpus": gpus}, environ=environ)


def with_flags(flags: str, *bad: tuple[str, Any], known: frozenset[str] = frozenset()) -> Facts:
    found = tuple(BadFlag(flag, kind) for flag, kind in bad)
    return on(CPU, environ={"XLA_FLAGS": flags}, jax={"bad_flags": found}, flags=known)


def named(names: set[str], **environ: str) -> Facts:
    return on(CPU, environ=environ, names=frozenset(names))


def here(
    late: Late, start: dict[str, str] | None = None, config: dict[str, Any] | None = None, **environ: str
) -> Facts:
    """A backend runs in this process, in which something was set; another process would see it."""
    seen = {"jax_enable_x64": True} if environ.get("JAX_ENABLE_X64") == "1" else {}
    jax = {"asked": "this process", "config": {**CONFIG, **seen}, "config_here": {**CONFIG, **(config or {})}}
    return on(CPU, environ=environ, at_start=start or {}, late=(late,) if late else (), jax=jax)


def place(role: str, **about: Any) -> Facts:
    about = {"free": 100 * GIB, "total": 200 * GIB, **about}
    cache = CompileCache(Path("/c"), exists=True) if role == "compilation cache" else CompileCache()
    return on(CPU, machine={"places": (Place(role, Path("/c"), **about),)}, cache=cache)


def cached(counts: CacheCounts | None = None, config: dict[str, Any] | None = None, **about: Any) -> Facts:
    cache = CompileCache(Path("/c"), **{"exists": True, **about})
    return on(CPU, cache=cache, counts=counts, jax={"config": {**CONFIG, **(config or {})}})


def asked_for(platforms: str, base: Facts = CPU) -> Facts:
    config = {**CONFIG, "jax_platforms": platforms}
    jax = {"outcome": "no start", "error": "AssertionError", "backend": None, "config": config}
    return on(base, environ={"JAX_PLATFORMS": platforms}, jax=jax)


ONE_LATE = Late("XLA_FLAGS", None, "train.py:3")
COUNT = "--xla_force_host_platform_device_count"
FRACTION, OLD = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
PREALLOCATE, ALLOCATOR = "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR"
VISIBLE = "CUDA_VISIBLE_DEVICES"

PLANTED = {
    "nothing is set": (CPU, ""),
    "nothing is set beside a GPU": (GPU, ""),
    # JAX itself
    "not installed": (on(CPU, jax={"outcome": "missing", "error": "ModuleNotFoundError", "config": {}}), "E001"),
    "import fails": (on(CPU, jax={"outcome": "no import", "error": "ImportError: x", "config": {}}), "E002"),
    "no backend": (on(CPU, jax={"outcome": "no start", "error": "RuntimeError: cud", "backend": None}), "E003"),
    "no plugin and no driver": (asked_for("cuda"), "E003"),
    "no plugin": (asked_for("gpu", GPU), "E003"),
    "no driver": (on(asked_for("cuda,cpu"), jax={"plugins": {"xla_cuda13": "0.12.0"}}), "E003"),
    "hangs": (on(CPU, jax={"outcome": "no answer", "backend": None}), "E004"),
    "ends": (on(CPU, jax={"outcome": "ended", "error": "exit status -11", "backend": None}), "E005"),
    "cannot be asked": (on(CPU, jax={"outcome": "not asked", "error": "no Python", "backend": None}), "E007"),
    "the CPU is meant by the old name": (
        on(
            GPU,
            environ={"JAX_PLATFORM_NAME": "cpu"},
            jax={"backend": "cpu", "config": {**CONFIG, "jax_platform_name": "cpu"}},
        ),
        "E206",
    ),
    "the GPU is not used": (on(GPU, jax={"backend": "cpu"}), "E006"),
    "the CPU is meant": (
        on(GPU, environ={"JAX_PLATFORMS": "cpu"}, jax={"backend": "cpu", "config": {**CONFIG, "jax_platforms": "cpu"}}),
        "",
    ),
    # flags
    "a misspelt flag": (
        with_flags("--xla_dump_too=x", ("--xla_dump_too=x", "unknown"), known=frozenset({"xla_dump_to"})),
        "E101",
    ),
    "commas": (with_flags("--xla_a=1,--xla_b=1", ("--xla_a=1,--xla_b=1", "unknown")), "E101"),
    "commas after a value that is read": (
        with_flags(f"{COUNT}=2,--xla_b=0 --xla_a=1", (f"{COUNT}=2,--xla_b=0", "value")),
        "E102",
    ),
    "two bad flags, a value after a space, and a flag twice": (
        with_flags(
            "--xla_pases=a --xla_a=1 --xla_a=2 --xla_b=maybe --xla_c 'x y' z --xla_d",
            ("--xla_pases=a", "unknown"),
            ("--xla_b=maybe", "value"),
            known=frozenset({"xla_passes"}),
        ),
        "E101 E102 E104 E107",
    ),
    "a flag without a value": (with_flags("--xla_a=maybe", ("--xla_a=maybe", "value")), "E102"),
    "no dashes": (with_flags("xla_a=1", ("xla_a=1", "file")), "E103"),
    "a flag twice": (with_flags(f"{COUNT}=2 {COUNT}=4"), "E104"),
    "a value after a space": (with_flags("--xla_a true --xla_b=1"), "E107"),
    "a value after a space, where XLA wants one": (
        with_flags(f"{COUNT} 4 --xla_b=1", (COUNT, "unknown"), known=frozenset({COUNT.lstrip("-")})),
        "E101 E107",
    ),
    "a value with a space": (with_flags("--xla_dump_to='a b' --xla_b=1"), ""),
    "a misspelt flag that begins another": (
        with_flags("--xla_dump_too=x --xla_dump_to=y", ("--xla_dump_to=y", "unknown"), known=frozenset({"xla_dump_t"})),
        "E101",
    ),
    "a comma of a value": (
        with_flags("--xla_pases=a,b", ("--xla_pases=a,b", "unknown"), known=frozenset({"xla_passes"})),
        "E101",
    ),
    "no such file": (with_flags("/of/nobody", ("/of/nobody", "file")), "E103"),
    "a flag twice, once without a value": (with_flags("--xla_a --xla_a=true"), ""),
    "a flag twice with one value": (with_flags(f"{COUNT}=2 {COUNT}=2"), ""),
    "flags after the start": (here(ONE_LATE, XLA_FLAGS=f"{COUNT}=4"), "E105"),
    "flags that were seen to come late": (here(None, XLA_FLAGS=f"{COUNT}=4"), "E105"),
    "flags that came in time": (here(None, XLA_FLAGS=f"{COUNT}=1"), ""),
    "devices by another setting": (here(None, config={"jax_num_cpu_devices": 1}, XLA_FLAGS=f"{COUNT}=4"), ""),
    "deleted after the start": (here(Late("XLA_FLAGS", f"{COUNT}=1", "a.py:1"), {"XLA_FLAGS": f"{COUNT}=1"}), "E105"),
    "perhaps after the start": (
        on(CPU, environ={FRACTION: "0.6"}, at_start={}, before_watch={FRACTION: "0.6"}),
        "E106",
    ),
    "before the start, for all that is known": (
        on(CPU, environ={FRACTION: "0.6"}, at_start={FRACTION: "0.6"}, before_watch={FRACTION: "0.6"}),
        "",
    ),
    "set too late, and bad for that": (
        on(GPU, environ={PREALLOCATE: "false"}, late=(Late(PREALLOCATE, None, "a.py:1"),)),
        "E105",
    ),
    # names and values
    "a misspelt name": (named(set(), JAX_ENABLE_X46="1"), "E201"),
    "a misspelt name of XLA": (named({PREALLOCATE}, XLA_PYTHON_CLIENT_PREALLOCATES="1"), "E201"),
    "a name with a part left out": (named(set(), JAX_CACHE_DIR="/x"), "E201"),
    "a misspelt name, beside the right one": (named(set(), JAX_ENABLE_X46="1", JAX_ENABLE_X64="0"), "E201"),
    "a name of another program": (named(set(), JAX_OF_MY_LAB="1"), "E202"),
    "a name that some file reads": (named({"JAX_COORDINATOR_ADDRESS"}, JAX_COORDINATOR_ADDRESS="a:1"), ""),
    "not from the environment": (env(CPU, JAX_CUDA_VISIBLE_DEVICES="0"), "E203"),
    "the default, written out": (env(CPU, JAX_CUDA_VISIBLE_DEVICES="all", JAX_ENABLE_X64="no"), ""),
    "a space at the end": (
        on(CPU, environ={"JAX_COMPILATION_CACHE_DIR": "/c "}, jax={"config": {"jax_compilation_cache_dir": "/c "}}),
        "",
    ),
    "after import jax": (here(Late("JAX_ENABLE_X64", None, "a.py:1"), JAX_ENABLE_X64="1"), "E204"),
    "deleted, and set again after import jax": (
        here(Late("JAX_ENABLE_X64", None, "a.py:1"), {"JAX_ENABLE_X64": "1"}, JAX_ENABLE_X64="1"),
        "E204",
    ),
    "after import jax, before this package": (here(None, JAX_ENABLE_X64="1"), "E204"),
    "jax.config was updated since": (here(None, {"JAX_ENABLE_X64": "1"}, JAX_ENABLE_X64="1"), ""),
    "a value that JAX refuses": (
        on(
            env(CPU, JAX_ENABLE_X64="perhaps"),
            jax={
                "outcome": "no import",
                "error": "ValueError: invalid truth value 'perhaps' for environment 'JAX_ENABLE_X64'",
                "config": {},
            },
        ),
        "E205",
    ),
    "a value that JAX refuses, beside one whose name begins like it": (
        on(
            env(CPU, JAX_ENABLE_X64="perhaps", JAX_ENABLE="1"),
            jax={"outcome": "no import", "error": "ValueError: 'perhaps' for 'JAX_ENABLE_X64'", "config": {}},
        ),
        "E205",
    ),
    "the old name of the backend, which JAX does not read": (
        on(env(CPU, JAX_XLA_BACKEND="cpu"), jax={"config": {**CONFIG, "jax_xla_backend": ""}}),
        "E203",
    ),
    "the old name of the platform": (env(CPU, JAX_PLATFORM_NAME="cpu"), "E206"),
    "the allocator of TensorFlow": (env(CPU, TF_GPU_ALLOCATOR="cuda_malloc_async"), "E207"),
    "the growth of TensorFlow": (env(GPU, TF_FORCE_GPU_ALLOW_GROWTH="true"), "E207"),
    # the memory of GPUs
    "a fraction": (env(GPU, **{FRACTION: "0.6"}), ""),
    "seventy, by the old name": (env(GPU, **{OLD: "70", PREALLOCATE: "no"}), "E302 E304 E305"),
    "the old fraction, too much beside others": (with_gpus(gpu(tenants=OTHERS), **{OLD: "0.9"}), "E302 E313"),
    "unified memory, without limit": (env(GPU, TF_FORCE_UNIFIED_MEMORY="1", **{FRACTION: "inf"}), "E304 E314"),
    "both fractions": (env(GPU, **{FRACTION: "0.6", OLD: "0.6"}), "E301"),
    "the old fraction": (env(GPU, **{OLD: "0.6"}), "E302"),
    "a percentage": (env(GPU, **{FRACTION: ".70%"}), "E303"),
    "a comma for a point": (env(GPU, **{FRACTION: "0,7"}), "E303"),
    "the old fraction, no number": (env(GPU, **{OLD: "most"}), "E302 E303"),
    "seventy": (env(GPU, **{FRACTION: "70"}), "E304"),
    "no memory": (env(GPU, **{FRACTION: "0"}), "E304"),
    "no number at all": (env(GPU, **{FRACTION: "nan"}), "E304"),
    "a negative fraction": (env(GPU, **{FRACTION: "-0.5"}), "E304"),
    "a fraction on a CPU that aims at a GPU": (env(CPU, **{FRACTION: "70"}), "E304"),
    "a fraction, and the CPU is meant": (
        on(CPU, environ={FRACTION: "70", "JAX_PLATFORMS": "cpu"}, jax={"config": {**CONFIG, "jax_platforms": "cpu"}}),
        "",
    ),
    "preallocation: no": (env(GPU, **{PREALLOCATE: "no"}), "E305"),
    "preallocation: off": (env(GPU, **{PREALLOCATE: "off"}), "E305"),
    "preallocation: FALSE": (env(GPU, **{PREALLOCATE: "FALSE"}), "E305"),
    "preallocation: true": (env(GPU, **{PREALLOCATE: "true"}), ""),
    "preallocation: false": (env(GPU, **{PREALLOCATE: "false"}), "E306"),
    "preallocation: 0": (env(GPU, **{PREALLOCATE: "0"}), "E306"),
    "a fraction of nothing": (env(GPU, **{PREALLOCATE: "False", FRACTION: "0.6"}), "E306 E307"),
    "no such allocator": (env(GPU, **{ALLOCATOR: "cuda_malloc_async"}), "E308"),
    "the platform's allocator": (env(GPU, **{ALLOCATOR: "platform"}), "E310"),
    "the platform's allocator, with a fraction": (env(GPU, **{ALLOCATOR: "Platform", FRACTION: "0.6"}), "E310 E311"),
    "the asynchronous allocator": (env(GPU, **{ALLOCATOR: "cuda_async"}), "E312"),
    "the usual allocator": (env(GPU, **{ALLOCATOR: "bfc"}), ""),
    "another setting that is refused": (
        on(env(GPU, XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB="x"), jax={"options_error": REFUSED}),
        "E309",
    ),
    "a refusal that has its own code": (on(env(GPU, **{FRACTION: "x"}), jax={"options_error": REFUSED}), "E303"),
    "unified memory": (env(GPU, TF_FORCE_UNIFIED_MEMORY="1", **{FRACTION: "4"}), "E314"),
    "the default beside others": (with_gpus(gpu(tenants=OTHERS)), "E313"),
    "too much beside others": (with_gpus(gpu(tenants=OTHERS), **{FRACTION: "0.9"}), "E313"),
    "a share beside others": (with_gpus(gpu(tenants=OTHERS), **{FRACTION: "0.6"}), ""),
    # which GPUs
    "an empty list": (env(GPU, **{VISIBLE: ""}), "E321"),
    "minus one": (env(GPU, **{VISIBLE: "-1"}), "E321"),
    "words": (env(GPU, **{VISIBLE: "all"}), "E321"),
    "a list twice": (env(GPU, **{VISIBLE: "0,0"}), "E322"),
    "out of range": (env(GPU, **{VISIBLE: "1"}), "E323"),
    "another UUID": (env(GPU, **{VISIBLE: "GPU-9c"}), "E323"),
    "words in a list": (env(GPU, **{VISIBLE: "0,gpu1"}), "E324"),
    "a UUID": (env(GPU, **{VISIBLE: "GPU-0a"}), ""),
    "an instance of a GPU by its old name": (env(GPU, **{VISIBLE: "MIG-GPU-0a/1/0"}), ""),
    "one of two, chosen by JAX": (
        on(
            with_gpus(gpu(), gpu(1)),
            jax={"config_here": {**CONFIG, "jax_cuda_visible_devices": "0"}},
        ),
        "",
    ),
    "an index among two models": (with_gpus(gpu(), gpu(1, "H100"), **{VISIBLE: "1"}), "E325"),
    "an index among two models, of which one is busy": (
        with_gpus(gpu(), gpu(1, "H100", busy=("72 GiB used",)), **{VISIBLE: "1"}),
        "E325",
    ),
    "instances of one GPU": (with_gpus(dataclasses.replace(gpu(busy=("MIG is on",)), mig=True)), ""),
    "this run computes on it": (on(with_gpus(gpu(busy=("utilisation 0.9",))), jax={"asked": "this process"}), ""),
    "in the order of the bus": (
        with_gpus(gpu(), gpu(1, "H100"), **{VISIBLE: "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        "",
    ),
    "all of two": (with_gpus(gpu(), gpu(1)), "E326"),
    "two of two": (with_gpus(gpu(), gpu(1), **{VISIBLE: "0,1"}), "E326"),
    "one of two": (with_gpus(gpu(), gpu(1, busy=("72 GiB used",)), **{VISIBLE: "0"}), ""),
    "the busy one of two": (with_gpus(gpu(), gpu(1, busy=("72 GiB used",)), **{VISIBLE: "1"}), "E327"),
    "GPUs that cannot be listed": (on(GPU, machine={"gpus": None}), ""),
    "two lists of AMD": (env(GPU, HIP_VISIBLE_DEVICES="0", ROCR_VISIBLE_DEVICES="0"), "E328"),
    "no scheduler, and a jaxlib without it": (dataclasses.replace(env(GPU, XLA_FLAGS=""), knows_scheduler=False), ""),
    "no scheduler": (env(GPU, XLA_FLAGS=""), "E329"),
    "an empty list, and the CPU is meant": (
        on(
            GPU,
            environ={VISIBLE: "", "JAX_PLATFORMS": "cpu"},
            jax={"backend": "cpu", "config": {**CONFIG, "jax_platforms": "cpu"}},
        ),
        "",
    ),
    "a list without a GPU": (env(CPU, **{VISIBLE: ""}), ""),
    # the host
    "little memory": (on(CPU, machine={"rooms": (Room("the host", GIB // 2, 64 * GIB, kills=True),)}), "E401"),
    "little in a small group": (
        on(CPU, machine={"rooms": (Room("memory.max of /job", GIB // 16, GIB, kills=True),)}),
        "E401",
    ),
    "enough in a small group": (
        on(CPU, machine={"rooms": (Room("memory.max of /job", GIB - 2**26, GIB, kills=True),)}),
        "",
    ),
    "a full disk": (place("temporary folder", free=2**20), "E402"),
    "a nearly full disk": (place("working folder", free=2**28), "E403"),
    "a full disk under the cache": (place("compilation cache", free=0), "E402"),
    "results in the temporary folder": (place("working folder", is_temporary=True), "E404"),
    "results in memory": (place("working folder", is_temporary=True, in_memory=True), "E405"),
    "a temporary folder in memory": (place("temporary folder", in_memory=True), ""),
    "auto, and oomd": (
        on(
            CPU,
            machine={
                "unit": {
                    "Id": "a.service",
                    "ManagedOOMMemoryPressure": "auto",
                    "MemorySwapMax": "infinity",
                    "oomd": "active",
                }
            },
        ),
        "E411",
    ),
    "auto without oomd": (
        on(
            CPU,
            machine={
                "unit": {
                    "Id": "a.service",
                    "ManagedOOMMemoryPressure": "auto",
                    "MemorySwapMax": "infinity",
                    "oomd": "inactive",
                }
            },
        ),
        "",
    ),
    "a cap on swap": (
        on(
            CPU,
            machine={
                "unit": {"Id": "a.service", "ManagedOOMMemoryPressure": "kill", "MemorySwapMax": "0", "oomd": "active"}
            },
        ),
        "E412",
    ),
    # the compilation cache
    "a cache": (cached(), ""),
    "a cache that is a file": (cached(is_folder=False), "E501"),
    "a cache that is read-only": (cached(is_writable=False), "E502"),
    "a cache that is off": (cached(config={"jax_enable_compilation_cache": False}), "E503"),
    "fast programs": (cached(CacheCounts(requests=3, too_fast=3, slowest=0.2)), "E504"),
    "fast programs among slow ones": (cached(CacheCounts(requests=3, too_fast=2, stored=1)), ""),
    "a second start": (cached(CacheCounts(requests=3, hits=3)), ""),
    "a folder that came late": (cached(CacheCounts(requests=5, before_folder=2, stored=3)), "E505"),
    "old programs": (cached(entries=3, older=2), "E506"),
    "a cache in the temporary folder": (place("compilation cache", is_temporary=True), "E507"),
    "slow programs that were not stored": (cached(CacheCounts(requests=1)), "E508"),
    # together
    "three at once": (
        on(GPU, environ={FRACTION: "0.6", OLD: "0.7", ALLOCATOR: "platform", "TF_GPU_ALLOCATOR": "x"}),
        "E207 E301 E310 E311",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_environment(name: str) -> None:
    facts, codes = PLANTED[name]
    found = examine(facts)
    assert {each.code for each in found.findings} == set(codes.split())
    assert len(found.findings) == len(codes.split())
    for each in found.findings:
        assert each.severity == CODES[each.code][0]
        assert all([each.where, each.what, each.why, each.fix])
        assert {each.code, each.what, each.why, each.fix} <= {
            part for part in dataclasses.astuple(each) if part in str(found)
        }
    assert json.loads(found.to_json())["findings"] == [dataclasses.asdict(each) for each in found.findings]
    assert found.is_clean == all(CODES[code][0] == "note" for code in codes.split())


def test_each_code_is_planted() -> None:
    planted = {code for _, codes in PLANTED.values() for code in codes.split()}
    assert planted == set(CODES)


def test_the_page_has_a_section_for_each_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (E\d{3}): (.*)$", page, re.MULTILINE))
    assert sections == {code: title for code, (_, title) in CODES.items()}


def fix(facts: Facts) -> str:
    (found,) = examine(facts).findings
    return found.fix


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a misspelt flag", "export XLA_FLAGS=--xla_dump_to=x"),
        ("commas", "export XLA_FLAGS='--xla_a=1 --xla_b=1'"),
        ("commas after a value that is read", f"export XLA_FLAGS='{COUNT}=2 --xla_b=0 --xla_a=1'"),
        ("no plugin and no driver", "export JAX_PLATFORMS=cpu   # to go on without the device"),
        ("no plugin", "pip install --upgrade 'jax[cuda13]'   # for NVIDIA"),
        ("a name with a part left out", "export JAX_COMPILATION_CACHE_DIR=/x; unset JAX_CACHE_DIR"),
        ("a misspelt name, beside the right one", "unset JAX_ENABLE_X46   # JAX_ENABLE_X64 is set"),
        ("a misspelt flag that begins another", "export XLA_FLAGS='--xla_dump_too=x --xla_dump_t=y'"),
        ("a comma of a value", "export XLA_FLAGS=--xla_passes=a,b"),
        ("a value after a space", "export XLA_FLAGS='--xla_a=true --xla_b=1'"),
        ("no such file", "unset XLA_FLAGS"),
        ("the old name of the platform", "export JAX_PLATFORMS=cpu; unset JAX_PLATFORM_NAME"),
        ("no scheduler", f'export XLA_FLAGS="{SCHEDULER} $XLA_FLAGS"'),
        ("no dashes", "export XLA_FLAGS=--xla_a=1"),
        ("a flag twice", f"export XLA_FLAGS={COUNT}=4"),
        ("a misspelt name", "export JAX_ENABLE_X64=1; unset JAX_ENABLE_X46"),
        ("a percentage", f"export {FRACTION}=0.7"),
        ("a comma for a point", f"export {FRACTION}=0.7"),
        ("seventy", f"export {FRACTION}=0.7"),
        ("no memory", f"export {FRACTION}=0.6"),
        ("the old fraction", f"export {FRACTION}=0.6; unset {OLD}"),
        ("the busy one of two", f"export {VISIBLE}=GPU-0a"),
        ("out of range", f"export {VISIBLE}=GPU-0a"),
        (
            "not from the environment",
            "jax.config.update(\"jax_cuda_visible_devices\", '0')   # before the first operation",
        ),
        ("after import jax", 'jax.config.update("jax_enable_x64", True)   # or set JAX_ENABLE_X64 above import jax'),
        ("fast programs", 'jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)'),
    ],
)
def test_fix(name: str, expected: str) -> None:
    assert fix(PLANTED[name][0]) == expected


LINE = re.compile(r"(export|unset) ")


def restarted(facts: Facts, environ: dict[str, str]) -> Facts:
    """What a process finds that is started with another environment. JAX says the same but of what was changed."""
    changed = {name for name in {*facts.environ, *environ} if facts.environ.get(name) != environ.get(name)}
    read = {name.lower() for name in changed} & set(CONFIG)
    config = facts.jax.config | {name: environ.get(name.upper(), CONFIG[name]) for name in read}
    flags = {flag.plain for flag in flags_of(environ.get("XLA_FLAGS", ""))[0]} | {environ.get("XLA_FLAGS")}
    bad = tuple(bad for bad in facts.jax.bad_flags if bad.flag in flags)
    jax = dataclasses.replace(facts.jax, config=config, config_here=None, bad_flags=bad, options_error="")
    if changed and jax.outcome in {"no import", "no start"}:
        jax = dataclasses.replace(jax, outcome="works", backend="cpu", error="")
    kept = {"at_start": None, "late": (), "before_watch": None, "cache": CompileCache()}
    return dataclasses.replace(facts, **kept, environ=environ, jax=jax)


def pasted(several: list[Facts]) -> list[dict[str, str]]:
    """The environments after all fixes, in the order of the page: one `sh` for all."""
    script = ["set -e"]
    for facts in several:
        before = [f"export {name}={quote(value)}" for name, value in facts.environ.items()]
        fixes = [each.fix for each in examine(facts).findings]
        script.append("(" + "\n".join([*before, *fixes, "env -0", r"printf '\1')"]))
    environ = {"PATH": os.environ["PATH"], "HOME": "/home/ada"}
    done = subprocess.run(["sh"], input="\n".join(script), env=environ, capture_output=True, text=True, check=True)
    assert not done.stderr
    pairs = [[pair.split("=", 1) for pair in each.split("\0") if pair] for each in done.stdout.split("\1")[:-1]]
    return [{name: value for name, value in each if is_setting(name)} for each in pairs]


def codes(facts: Facts) -> dict[str, str]:
    return {each.code: each.fix for each in examine(facts).findings}


@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("sh") is None, reason="env -0 of GNU, and sh")
def test_the_fixes_that_are_pasted_leave_nothing() -> None:
    several = {name: facts for name, (facts, _) in PLANTED.items()}
    values = {
        OLD: (None, "0.6", "70", "x"),
        FRACTION: (None, "0.9", "70", "0,7"),
        PREALLOCATE: (None, "no", "0"),
        ALLOCATOR: (None, "platform", "x"),
        "TF_FORCE_UNIFIED_MEMORY": (None, "1"),
    }
    for tenants in ((), OTHERS):
        for chosen in itertools.product(*values.values()):
            environ = {name: value for name, value in zip(values, chosen, strict=True) if value is not None}
            several[f"{environ}, {len(tenants)} others"] = with_gpus(gpu(tenants=tenants), **environ)
    several = {name: facts for name, facts in several.items() if all(map(LINE.match, codes(facts).values()))}
    for (name, facts), environ in zip(several.items(), pasted(list(several.values())), strict=True):
        if codes(facts):
            assert not codes(restarted(facts, environ)), (name, codes(facts), environ)


def test_what_is_pasted_is_quoted() -> None:
    assert fix(named(set(), JAX_ENABLE_X46="$(id)")) == "export JAX_ENABLE_X64='$(id)'; unset JAX_ENABLE_X46"
    both = on(CPU, environ={"JAX_PLATFORM_NAME": "cpu", "JAX_PLATFORMS": "cuda,cpu"})
    assert fix(on(both, jax={"config": {}})) == "unset JAX_PLATFORM_NAME   # and name cpu first in JAX_PLATFORMS"
    assert fix(env(GPU, **{FRACTION: "1.5"})) == f"export {FRACTION}=0.6"


def test_a_report_is_json_whatever_is_in_it() -> None:
    config = {**CONFIG, "jax_default_device": object(), "jax_limit": float("inf")}
    facts = on(env(CPU, JAX_OF_MINE="\udcff"), jax={"config": {"jax_limit": float("nan")}, "config_here": config})
    found = json.loads(examine(facts).to_json())
    assert found["jax"]["config_here"]["jax_limit"] == "inf"
    assert found["settings"][0]["value"] == "\udcff"


def test_a_cache_of_a_cloud_is_no_finding() -> None:
    assert not examine(on(CPU, cache=compile_cache("gs://bucket/cache"))).findings


def test_a_setting_that_came_late_turns_no_cache_on() -> None:
    late = here(Late("JAX_COMPILATION_CACHE_DIR", None, "a.py:1"), JAX_COMPILATION_CACHE_DIR="/c")
    assert (late.read("JAX_COMPILATION_CACHE_DIR"), on(late, jax={"config_here": None, "config": {}}).read("A")) == (
        "",
        "",
    )


class Level(enum.IntEnum):
    WARN = 1


def test_an_enumeration_is_read_by_name() -> None:
    assert says(Level.WARN, "warn")
    assert not says(Level.WARN, "error")
    assert literal(Level.WARN, "error") == "'error'"


def test_the_line_of_a_late_setting_is_told() -> None:
    (found,) = examine(PLANTED["flags after the start"][0]).findings
    assert found.where == "XLA_FLAGS (os.environ)"
    assert found.what == f"set at train.py:3 to '{COUNT}=4', after the backend had started with no value"


def settings_of(facts: Facts) -> dict[str, tuple[str | None, str | None, str]]:
    return {each.name: (each.value, each.effective, each.origin) for each in examine(facts).settings}


def test_values_that_count() -> None:
    config = {"jax_enable_x64": True, "jax_compilation_cache_dir": "/c"}
    facts = here(ONE_LATE, {"JAX_ENABLE_X64": "0", VISIBLE: "0"}, config, JAX_ENABLE_X64="0", XLA_FLAGS="--xla_a=1")
    assert settings_of(env(facts, **{VISIBLE: "0"})) == {
        VISIBLE: ("0", "0", "environment"),
        "JAX_ENABLE_X64": ("0", "True", "jax.config"),
        "XLA_FLAGS": ("--xla_a=1", "no value", "os.environ"),
        "jax_compilation_cache_dir": (None, "/c", "jax.config"),
    }


def test_defaults_are_told_beside_a_gpu() -> None:
    assert settings_of(env(GPU, **{OLD: "0.6"})) == {
        OLD: ("0.6", None, "environment"),
        "XLA_FLAGS": (SCHEDULER, SCHEDULER, "environment"),
        PREALLOCATE: (None, "true", "default"),
        ALLOCATOR: (None, "default", "default"),
        VISIBLE: (None, "all", "default"),
    }


def test_what_the_gpu_client_took_counts() -> None:
    facts = on(env(GPU, **{PREALLOCATE: "off"}), jax={"options": {"preallocate": True}})
    assert settings_of(facts)[PREALLOCATE] == ("off", "True", "environment")


def test_what_the_finding_says() -> None:
    (lacking,) = examine(asked_for("cuda")).findings
    assert lacking.what == "no plugin for cuda is installed here, and no NVIDIA driver is loaded"
    assert lacking.why.endswith("the first operation raises AssertionError")
    (commas,) = examine(PLANTED["commas after a value that is read"][0]).findings
    assert commas.what == f"{COUNT}=2,--xla_b=0 is read as one flag: XLA wants spaces between flags"


def test_the_top_says_what_ends_the_process() -> None:
    assert "  backend cpu, 1 device: cpu:0 (in another process)\n" in str(examine(CPU))
    page = str(examine(PLANTED["a misspelt flag"][0]))
    assert "  with XLA_FLAGS as it is, the start of the backend ends the process\n  backend cpu, 1 device: " in page
    assert "(in another process, without the flags that end it)" in page


def test_the_report_tells_how_the_cache_fared() -> None:
    facts = cached(CacheCounts(requests=5, hits=1, stored=1, too_fast=2, before_folder=1))
    assert "  in this process: 5 requests, 1 hits, 3 misses, 1 stored, 2 below the minimum time" in str(examine(facts))
    late = dataclasses.replace(facts, counts=CacheCounts(is_complete=False))
    assert "what compiled before erythroxy_tx was used is not counted" in str(examine(late))
