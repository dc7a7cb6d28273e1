"""`idle_devices`, by a fake NVML, and by the real one where there is one."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import DRIVER_NOT_LOADED
from fake_nvml import GIB
from fake_nvml import GPU_IS_LOST
from fake_nvml import LIBRARY_NOT_FOUND
from fake_nvml import MISMATCH
from fake_nvml import NO_PERMISSION
from fake_nvml import NOT_SUPPORTED
from fake_nvml import NVMLError
from fake_nvml import fake
from fake_nvml import gpu
from fake_nvml import process

import erythroxy_tx as tx
from erythroxy_tx.host import nvml
from erythroxy_tx.host.devices import IdleDevices

NOBODY = 2**22 + 1  # above the highest pid of Linux


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(nvml, "PAUSE", 0)

    def look(*gpus: dict[str, Any], init: NVMLError | None = None, **rule: Any) -> IdleDevices:
        module = fake(list(gpus), init=init)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        found = tx.idle_devices(**rule)
        assert module.opened == 0, "NVML was not shut down"
        json.loads(found.to_json())
        return found

    return look


def test_the_idle_ones_are_iterated_and_all_are_listed(look: Any) -> None:
    found = look(gpu(0, used=60 * GIB, compute=[process(os.getppid(), 60 * GIB)]), gpu(1, used=GIB), gpu(2))
    assert found.idle == (2, 1), "the most free bytes first"
    assert [device.uuid for device in found] == [gpu(2)["UUID"], gpu(1)["UUID"]]
    assert len(found) == 2
    assert [device.index for device in found.devices] == [0, 1, 2]
    busy = found.devices[0]
    assert (busy.total, busy.used, busy.free, busy.own) == (80 * GIB, 60 * GIB, 20 * GIB, 0)
    assert busy.busy == ("1 other process computing on it", "20.0 GiB free, less than 72.0 GiB")
    (tenant,) = busy.tenants
    assert (tenant.pid, tenant.bytes, tenant.kind) == (os.getppid(), 60 * GIB, "compute")
    assert tenant.user
    assert tenant.command
    assert f"export CUDA_VISIBLE_DEVICES={gpu(1)['UUID']}" in str(found)
    assert not look(gpu(0, UtilizationRates=99)), "no idle GPU is false"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"UtilizationRates": [0, 0, 6, 0]}, "utilisation 0.06, more than 0.05"),
        ({"UtilizationRates": NVMLError(NOT_SUPPORTED)}, "its utilisation is not told"),
        ({"UtilizationRates": [0, NVMLError(NOT_SUPPORTED), 0, 0]}, "its utilisation is not told"),
        ({"MemoryInfo": NVMLError(NOT_SUPPORTED)}, "its memory is not told"),
        ({"UUID": NVMLError(NOT_SUPPORTED)}, "its UUID is not told, so it cannot be named"),
        ({"compute": [process(NOBODY, 0)]}, "1 other process computing on it"),
        ({"used": 9 * GIB}, "71.0 GiB free, less than 72.0 GiB"),
        ({"HandleByIndex": NVMLError(GPU_IS_LOST)}, "it cannot be used: GPU is lost"),
        (
            {"HandleByIndex": NVMLError(NO_PERMISSION)},
            "it cannot be used: the driver does not let this process open it",
        ),
        ({"Name": NVMLError(GPU_IS_LOST)}, "it cannot be used: GPU is lost"),
        ({"UtilizationRates": [0, 0, NVMLError(GPU_IS_LOST), 0]}, "it cannot be used: GPU is lost"),
        ({"ComputeRunningProcesses_v2": NVMLError(999)}, "it cannot be used: Unknown Error"),
    ],
)
def test_what_is_held_or_not_told_is_not_idle(look: Any, changed: dict[str, Any], reason: str) -> None:
    """And one GPU that is not well hides no other."""
    found = look(gpu(0, **changed), gpu(1))
    assert found.devices[0].busy == (reason,)
    assert found.idle == (1,)
    assert reason in str(found)


def test_processes_that_are_not_told_may_be_there(look: Any) -> None:
    drawing = {"ComputeRunningProcesses_v2": NVMLError(NOT_SUPPORTED), "GraphicsRunningProcesses_v2": []}
    assert look(gpu(0, **drawing)).devices[0].busy == ("its processes are not told",)
    silent = dict.fromkeys(("ComputeRunningProcesses_v2", "GraphicsRunningProcesses_v2"), NVMLError(NOT_SUPPORTED))
    found = look(gpu(0, **silent))
    assert found.devices[0].tenants is None
    assert found.devices[0].busy == ("its processes are not told",)


def test_an_old_pynvml_has_fewer_questions(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake([gpu(0)])
    del module.nvmlDeviceGetComputeRunningProcesses_v2, module.nvmlDeviceGetGraphicsRunningProcesses_v2
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert tx.idle_devices().devices[0].tenants is None


def test_mig_is_not_idle(look: Any) -> None:
    found = look(gpu(0, MigMode=[1, 1], UtilizationRates=NVMLError(NOT_SUPPORTED)), gpu(1, MigMode=[0, 1]))
    assert [device.mig for device in found.devices] == [True, False]
    assert found.devices[0].busy == (
        "MIG is on: its instances are used each by its own UUID (nvidia-smi -L lists them)",
    )
    assert found.idle == (1,)


def test_a_process_that_cannot_be_seen_is_listed(look: Any) -> None:
    found = look(gpu(0, compute=[process(NOBODY, None)]))
    (tenant,) = found.devices[0].tenants
    assert (tenant.user, tenant.command, tenant.bytes) == (None, None, None)
    words = "a process that cannot be seen from here, such as one of another container  bytes unknown  compute"
    assert f"pid {NOBODY}  {words}" in str(found)


def test_kinds_of_processes(look: Any) -> None:
    """A desktop does not make a GPU busy; what also computes does, and is listed once."""
    found = look(
        gpu(0, graphics=[process(NOBODY, GIB)]),
        gpu(1, compute=[process(NOBODY, None)], graphics=[process(NOBODY, GIB)]),
        gpu(2, compute=[process(NOBODY, GIB)], graphics=[process(NOBODY, None)]),
    )
    assert [[(each.kind, each.bytes) for each in device.tenants] for device in found.devices] == [
        [("graphics", GIB)],
        [("both", GIB)],
        [("both", GIB)],
    ]
    assert found.idle == (0,)


def test_this_process_is_no_tenant(look: Any) -> None:
    found = look(gpu(0, used=60 * GIB, compute=[process(os.getpid(), 60 * GIB)]))
    (device,) = found.devices
    assert (device.tenants, device.own, device.free) == ((), 60 * GIB, 20 * GIB)
    assert found.idle == (0,)


@pytest.mark.parametrize(
    ("rule", "is_idle"),
    [
        ({"min_free": 0.75}, True),
        ({"min_free": 0.76}, False),
        ({"min_free": "60GiB"}, True),
        ({"min_free": 60 * GIB + 1}, False),
        ({"min_free": 0.0, "max_utilisation": 0.09}, False),
        ({"min_free": 0.0, "max_utilisation": 0.1}, True),
        ({"min_free": 0.0, "max_utilisation": 1}, True),
    ],
)
def test_the_rule(look: Any, rule: dict[str, Any], is_idle: bool) -> None:
    found = look(gpu(0, used=20 * GIB, UtilizationRates=10), **{"max_utilisation": 0.5} | rule)
    assert bool(found.idle) is is_idle


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"min_free": 1.5}, "min_free=1.5. Expected a share of the memory from 0.0 to 1.0 as a float, or bytes"),
        ({"min_free": -0.1}, "min_free=-0.1"),
        ({"min_free": float("nan")}, "min_free=nan"),
        ({"min_free": 0}, "min_free=0 is not a byte count"),
        ({"min_free": 1}, "min_free=1, which is one byte. Write 1.0"),
        ({"min_free": True}, "min_free=True is not a byte count"),
        ({"min_free": "much"}, "min_free='much' is not a byte count"),
        ({"max_utilisation": 5}, "max_utilisation=5. Expected a share of the time from 0 to 1: 0.05 is 5 %"),
        ({"max_utilisation": -0.1}, "max_utilisation=-0.1"),
        ({"max_utilisation": float("nan")}, "max_utilisation=nan"),
        ({"max_utilisation": "5%"}, "max_utilisation='5%'"),
        ({"max_utilisation": True}, "max_utilisation=True"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="idle_devices") as caught:
        tx.idle_devices(**rule)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("code", "is_absent", "fix"),
    [
        (LIBRARY_NOT_FOUND, True, "install the NVIDIA driver"),
        (DRIVER_NOT_LOADED, True, "install the NVIDIA driver"),
        (MISMATCH, False, "restart the machine"),
        (NO_PERMISSION, False, "/dev/nvidiactl"),
        (999, False, "nvidia-smi"),
    ],
)
def test_an_nvml_that_does_not_start_is_an_answer(look: Any, code: int, is_absent: bool, fix: str) -> None:
    found = look(init=NVMLError(code))
    assert (found.idle, found.devices, found.absent) == ((), (), is_absent)
    assert found.why == f"NVML says: {NVMLError(code)}"
    assert fix in found.fix
    assert str(found) == f"no GPU is known to be idle: {found.why}\nfix: {found.fix}"


def test_an_error_of_the_driver_in_the_middle_is_an_answer(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake([gpu(0)])

    def count() -> int:
        raise NVMLError(DRIVER_NOT_LOADED)

    module.nvmlDeviceGetCount = count
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert tx.idle_devices().why == "NVML says: Driver Not Loaded"
    assert module.opened == 0


def test_a_driver_without_a_gpu(look: Any) -> None:
    found = look()
    assert (found.why, found.absent) == ("the NVIDIA driver finds no GPU", True)


@pytest.mark.parametrize(
    ("planted", "is_absent", "why"),
    [
        ((), True, "no NVIDIA driver is loaded"),
        (("proc/driver/nvidia",), False, "pynvml, which asks the driver, cannot be imported"),
        (("dev/dxg",), False, "pynvml, which asks the driver, cannot be imported"),
    ],
)
def test_without_the_extra(
    planted: tuple[str, ...], is_absent: bool, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in planted:
        (tmp_path / place).mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(sys, "platform", "linux")
    found = nvml.read_devices(root=tmp_path)
    assert isinstance(found, nvml.NoAnswer)
    assert found.why.startswith(why)
    assert found.absent is is_absent
    assert found.fix.startswith("install the NVIDIA driver" if is_absent else "pip install 'erythroxy_tx[nvidia]'")


def test_the_real_nvml() -> None:
    pytest.importorskip("pynvml", reason="the extra nvidia is not installed")
    found = tx.idle_devices()
    if found.why:
        assert found.fix
        pytest.skip(f"no GPU: {found.why}")
    for device in found.devices:
        assert device.fault or (device.uuid and device.name)
        if device.total is not None:
            assert 0 < device.total >= (device.free or 0)
