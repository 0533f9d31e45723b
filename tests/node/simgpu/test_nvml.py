"""What pynvml, unmodified, sees of the simulated devices, while real clients of the simulated driver use them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from nvml_programs import HERE, Ask, Use

from rig.gpu import SimulatedGpu
from rig.until import until

MIB = 1 << 20
H200_BYTES = 143771 * MIB


@pytest.fixture
def inject(machine: SimulatedGpu, repo_root: Path, tmp_path: Path) -> Callable[[int, int], None]:
    """Inject an XID into a device; 0 makes it work again."""
    tool = tmp_path / "inject_xid"
    names = ("state.c", "client.c", "owner.c", "catalogue.c", "model.c", "repair.c")
    sources = [str(path) for path in (HERE / "inject_xid.c", *(repo_root / "simgpu" / name for name in names))]
    subprocess.run(["cc", "-std=gnu11", "-O1", f"-I{repo_root}", "-o", str(tool), *sources], check=True)
    return lambda device, xid: (
        subprocess.run([str(tool), str(machine.state), str(device), str(xid)], check=True) and None
    )


def test_the_devices_are_those_that_were_asked_for(ask: Ask) -> None:
    assert ask("nvmlDeviceGetCount()") == 3
    assert [ask(f"nvmlDeviceGetName(gpu({n}))") for n in range(3)] == ["NVIDIA H200", "NVIDIA H200", "NVIDIA A10"]
    assert ask("gpu(3) and 0") == "NVMLError_InvalidArgument"
    assert ask("nvmlDeviceGetCudaComputeCapability(gpu(2))") == [8, 6]
    assert ask("nvmlSystemGetCudaDriverVersion()") >= 12000
    assert ask("nvmlSystemGetDriverVersion()").split(".")[0].isdigit()


def test_a_device_is_found_by_index_uuid_and_bus(ask: Ask) -> None:
    uuids = [ask(f"nvmlDeviceGetUUID(gpu({n}))") for n in range(3)]
    buses = [ask(f"nvmlDeviceGetPciInfo(gpu({n}))")["busId"] for n in range(3)]
    assert len({*uuids}) == len({*buses}) == 3
    for n in range(3):
        assert uuids[n].startswith("GPU-")
        assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('{uuids[n]}'))") == n
        assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId('{buses[n]}'))") == n
        assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId('{buses[n][4:]}'))") == n
    assert ask("nvmlDeviceGetHandleByUUID('GPU-nowhere')") == "NVMLError_NotFound"


def test_uuids_are_the_same_in_the_driver(machine: SimulatedGpu, ask: Ask) -> None:
    code = (
        "import ctypes; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0); b = (ctypes.c_char * 16)();"
        "c.cuDeviceGetUuid_v2(b, 1); print(bytes(b).hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], env=machine.env, capture_output=True, text=True, check=True)
    assert ask("nvmlDeviceGetUUID(gpu(1))").removeprefix("GPU-").replace("-", "") == done.stdout.strip()


def test_mig_is_off_where_it_exists_and_unknown_elsewhere(ask: Ask) -> None:
    assert ask("nvmlDeviceGetMigMode(gpu(0))") == [0, 0]
    assert ask("nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), 0) and 0") == "NVMLError_NotFound"
    assert ask("nvmlDeviceGetMigMode(gpu(2))") == "NVMLError_NotSupported"


def test_what_is_not_simulated_is_a_missing_function(ask: Ask) -> None:
    assert ask("nvmlDeviceGetFanSpeed(gpu(0))") == "NVMLError_FunctionNotFound"
    assert ask("nvmlDeviceGetNvLinkState(gpu(0), 0)") == "NVMLError_NotSupported"


def test_topology_tells_the_same_device_from_neighbours(ask: Ask) -> None:
    assert ask("nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(0))") == 0
    assert ask("nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(2))") == 40


def test_memory_is_what_all_processes_hold(ask: Ask, use: Use) -> None:
    idle = ask("nvmlDeviceGetMemoryInfo(gpu(0))")
    assert idle == {"total": H200_BYTES, "free": H200_BYTES, "used": 0}
    first, second = (use(0, 1000, 10000, size) for size in (512 * MIB, 256 * MIB))
    running = {p["pid"]: p["usedGpuMemory"] for p in ask("nvmlDeviceGetComputeRunningProcesses(gpu(0))")}
    assert running.keys() == {first.pid, second.pid}
    assert running[first.pid] - running[second.pid] == 256 * MIB
    assert running[second.pid] >= 256 * MIB  # and what a context itself takes
    for call in ("nvmlDeviceGetMemoryInfo(gpu(0))", "nvmlDeviceGetMemoryInfo(gpu(0), version=nvmlMemory_v2)"):
        memory = ask(call)
        assert memory["used"] == sum(running.values())
        assert memory["free"] == memory["total"] - memory["used"]
    assert ask("nvmlDeviceGetMemoryInfo(gpu(1))")["used"] == 0
    assert ask("nvmlDeviceGetGraphicsRunningProcesses(gpu(0))") == []


def test_a_killed_process_is_gone_at_once(ask: Ask, use: Use) -> None:
    process = use(0, 1000, 10000, 512 * MIB)
    process.kill()
    process.wait()
    until(lambda: ask("nvmlDeviceGetComputeRunningProcesses(gpu(0))") == [])
    assert ask("nvmlDeviceGetMemoryInfo(gpu(0))")["used"] == 0


def test_a_saturated_device_is_fully_utilised_and_its_neighbour_idle(ask: Ask, use: Use) -> None:
    use(0, 20000)
    until(lambda: ask("nvmlDeviceGetUtilizationRates(gpu(0))")["gpu"] >= 97)
    assert ask("nvmlDeviceGetUtilizationRates(gpu(1))")["gpu"] == 0
    assert ask("nvmlDeviceGetPowerUsage(gpu(0))") > 2 * ask("nvmlDeviceGetPowerUsage(gpu(1))")
    assert ask("nvmlDeviceGetTemperature(gpu(0), 0)") > ask("nvmlDeviceGetTemperature(gpu(1), 0)")


def test_utilisation_is_told_apart_by_process(ask: Ask, use: Use) -> None:
    deep = use(0, 20000)
    light = use(0, 10000, 90000)

    def settled() -> bool:
        samples = {s["pid"]: s["smUtil"] for s in ask("nvmlDeviceGetProcessUtilization(gpu(0), 0)")}
        return samples.keys() == {deep.pid, light.pid} and samples[deep.pid] >= 80 and 4 <= samples[light.pid] <= 15

    until(settled)
    assert ask("nvmlDeviceGetProcessUtilization(gpu(1), 0)") == "NVMLError_NotFound"


def test_an_xid_reaches_whoever_registered_for_the_device(ask: Ask, inject: Callable[[int, int], None]) -> None:
    inject(0, 13)  # before anyone registered: never told
    ask("globals().update(events=nvmlEventSetCreate())")
    ask("[nvmlDeviceRegisterEvents(gpu(n), nvmlEventTypeXidCriticalError, events) for n in (0, 1)]")
    assert ask("nvmlEventSetWait_v2(events, 20)") == "NVMLError_Timeout"
    inject(1, 31)
    inject(2, 43)  # not registered
    inject(0, 45)
    told = [
        ask(f"(lambda e: [nvmlDeviceGetIndex(e.device), e.eventData, e.eventType])({wait})")
        for wait in ["nvmlEventSetWait_v2(events, 2000)"] * 2
    ]
    assert told == [[1, 31, 8], [0, 45, 8]]
    assert ask("nvmlEventSetWait_v2(events, 20)") == "NVMLError_Timeout"
    assert ask("nvmlDeviceRegisterEvents(gpu(0), nvmlEventTypeClock, events)") == "NVMLError_NotSupported"
    assert ask("nvmlEventSetFree(events)") is None


def test_a_device_off_the_bus_is_lost_until_it_is_back(ask: Ask, inject: Callable[[int, int], None]) -> None:
    inject(0, 79)
    assert ask("nvmlDeviceGetMemoryInfo(gpu(0))") == "NVMLError_GpuIsLost"
    assert ask("nvmlDeviceGetComputeRunningProcesses(gpu(0))") == "NVMLError_GpuIsLost"
    assert ask("nvmlDeviceGetName(gpu(0))") == "NVIDIA H200"
    assert ask("nvmlDeviceGetMemoryInfo(gpu(1))")["used"] == 0
    inject(0, 0)
    assert ask("nvmlDeviceGetMemoryInfo(gpu(0))")["used"] == 0


def test_a_memory_fault_asks_for_a_reset(ask: Ask, inject: Callable[[int, int], None]) -> None:
    action = "nvmlDeviceGetFieldValues(gpu(0), [NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0].value.uiVal"
    assert ask(action) == 0
    inject(0, 48)
    assert ask(action) == 1
    assert ask("nvmlDeviceGetMemoryInfo(gpu(0))")["used"] == 0  # still on the bus


def test_nothing_works_before_init_or_after_shutdown(machine: SimulatedGpu) -> None:
    code = """
import pynvml
pynvml.nvmlInit(); pynvml.nvmlInit(); gpu = pynvml.nvmlDeviceGetHandleByIndex(0); pynvml.nvmlShutdown()
assert pynvml.nvmlDeviceGetName(gpu) == "NVIDIA H200"
pynvml.nvmlShutdown()
for call in (lambda: pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlDeviceGetCount, pynvml.nvmlShutdown):
    try:
        call()
    except pynvml.NVMLError_Uninitialized:
        continue
    raise SystemExit("answered without init")
"""
    subprocess.run([sys.executable, "-c", code], env=machine.env, check=True)
