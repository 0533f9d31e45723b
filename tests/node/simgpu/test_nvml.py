"""Test what unmodified pynvml sees of the simulated devices while clients of the simulated driver use them."""

from nvml_fixtures import Ask, Use
from simgpu_fixtures import MIB, Gpu

from rig.until import until

H200_BYTES = 143771 * MIB
PROCESSES = "nvmlDeviceGetComputeRunningProcesses(gpu(0))"
MEMORY = "nvmlDeviceGetMemoryInfo(gpu(0))"


def test_the_devices_are_those_that_were_asked_for(ask: Ask) -> None:
    assert ask("nvmlDeviceGetCount()") == 3
    assert [ask(f"nvmlDeviceGetName(gpu({n}))") for n in range(3)] == ["NVIDIA H200", "NVIDIA H200", "NVIDIA A10"]
    assert ask("gpu(3) and 0") == "NVMLError_InvalidArgument"
    assert ask("nvmlDeviceGetCudaComputeCapability(gpu(2))") == [8, 6]
    assert ask("nvmlSystemGetCudaDriverVersion()") >= 12000
    assert ask("nvmlSystemGetDriverVersion()").split(".")[0].isdigit()
    assert [ask(f"nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu({n}))") for n in (0, 2)] == [0, 40]


def test_a_device_is_found_by_index_uuid_and_bus_and_has_its_uuid_in_the_driver_too(ask: Ask, machine: Gpu) -> None:
    uuids = [ask(f"nvmlDeviceGetUUID(gpu({n}))") for n in range(3)]
    buses = [ask(f"nvmlDeviceGetPciInfo(gpu({n}))")["busId"] for n in range(3)]
    assert len({*uuids}) == len({*buses}) == 3
    for n in range(3):
        assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('{uuids[n]}'))") == n
        assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId('{buses[n]}'))") == n
        assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId('{buses[n][4:]}'))") == n
    assert ask("nvmlDeviceGetHandleByUUID('GPU-nowhere')") == "NVMLError_NotFound"
    of_driver = machine.play("""
        ok(cuda.cuInit(0))
        raw = ctypes.create_string_buffer(16)
        for n in range(3):
            ok(cuda.cuDeviceGetUuid_v2(raw, n))
            print(raw.raw.hex())
        """)
    assert [uuid.removeprefix("GPU-").replace("-", "") for uuid in uuids] == of_driver
    with machine.truth() as truth:
        assert [device.uuid for device in truth.devices()] == uuids


def test_memory_is_what_all_processes_hold_and_a_killed_one_is_gone_at_once(ask: Ask, use: Use) -> None:
    assert ask(MEMORY) == {"total": H200_BYTES, "free": H200_BYTES, "used": 0}
    first, second = (use(0, 1000, 10000, size) for size in (512 * MIB, 256 * MIB))
    running = {process["pid"]: process["usedGpuMemory"] for process in ask(PROCESSES)}
    assert running == {first.pid: 512 * MIB, second.pid: 256 * MIB}
    for call in (MEMORY, "nvmlDeviceGetMemoryInfo(gpu(0), version=nvmlMemory_v2)"):
        memory = ask(call)
        assert memory["used"] == sum(running.values())
        assert memory["free"] == memory["total"] - memory["used"]
    assert ask("nvmlDeviceGetMemoryInfo(gpu(1))")["used"] == 0
    assert ask("nvmlDeviceGetGraphicsRunningProcesses(gpu(0))") == []
    first.kill()
    until(lambda: [process["pid"] for process in ask(PROCESSES)] == [second.pid])
    assert ask(MEMORY)["used"] == 256 * MIB


def test_utilisation_is_told_of_each_device_and_apart_by_process(ask: Ask, use: Use) -> None:
    deep, light = use(0, 20000), use(0, 10000, 90000)

    def settled() -> bool:
        samples = {s["pid"]: s["smUtil"] for s in ask("nvmlDeviceGetProcessUtilization(gpu(0), 0)")}
        return samples.keys() == {deep.pid, light.pid} and samples[deep.pid] >= 80 and 4 <= samples[light.pid] <= 15

    until(settled)
    light.kill()
    until(lambda: ask("nvmlDeviceGetUtilizationRates(gpu(0))")["gpu"] >= 97)
    assert ask("nvmlDeviceGetUtilizationRates(gpu(1))")["gpu"] == 0
    assert ask("nvmlDeviceGetProcessUtilization(gpu(1), 0)") == "NVMLError_NotFound"
    assert ask("nvmlDeviceGetPowerUsage(gpu(0))") > 2 * ask("nvmlDeviceGetPowerUsage(gpu(1))")
    assert ask("nvmlDeviceGetTemperature(gpu(0), 0)") > ask("nvmlDeviceGetTemperature(gpu(1), 0)")


def test_an_xid_reaches_whoever_registered_for_xids_of_the_device(ask: Ask, machine: Gpu) -> None:
    assert ask("nvmlDeviceGetSupportedEventTypes(gpu(0))") == 31
    with machine.truth() as truth:
        truth.inject_xid(0, 13)  # this comes before any client registers, so it is never told
        ask("globals().update(events=nvmlEventSetCreate(), others=nvmlEventSetCreate())")
        ask("[nvmlDeviceRegisterEvents(gpu(n), nvmlEventTypeXidCriticalError, events) for n in (0, 1)]")
        other = "nvmlEventTypeDoubleBitEccError | nvmlEventTypeClock"
        assert ask(f"nvmlDeviceRegisterEvents(gpu(0), {other}, others)") is None
        assert ask("nvmlEventSetWait_v2(events, 20)") == "NVMLError_Timeout"
        for device, xid in ((1, 31), (2, 43), (0, 45)):  # no client is registered for device 2
            truth.inject_xid(device, xid)
    told = "(lambda e: [nvmlDeviceGetIndex(e.device), e.eventData, e.eventType])(nvmlEventSetWait_v2(events, 2000))"
    assert [ask(told), ask(told)] == [[1, 31, 8], [0, 45, 8]]
    assert [ask(f"nvmlEventSetWait_v2({which}, 20)") for which in ("events", "others")] == ["NVMLError_Timeout"] * 2
    storm = "nvmlEventTypeSingleBitEccErrorStorm"
    assert ask(f"nvmlDeviceRegisterEvents(gpu(0), {storm}, events)") == "NVMLError_NotSupported"
    assert ask("nvmlEventSetFree(events)") is None


def test_a_device_off_the_bus_is_lost_until_it_is_back_and_a_memory_fault_asks_for_a_reset(
    ask: Ask, machine: Gpu
) -> None:
    action = "nvmlDeviceGetFieldValues(gpu(0), [NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0].value.uiVal"
    with machine.truth() as truth:
        truth.inject_xid(0, 79)
        assert ask(MEMORY) == ask(PROCESSES) == "NVMLError_GpuIsLost"
        assert ask("nvmlDeviceGetName(gpu(0))") == "NVMLError_GpuIsLost"  # NVML gives out no handle of it
        assert ask("nvmlDeviceGetMemoryInfo(gpu(1))")["used"] == 0
        truth.recover(0)
        assert ask(MEMORY)["used"] == ask(action) == 0
        truth.inject_xid(0, 48)
        assert ask(action) == 1
        assert ask(MEMORY)["used"] == 0  # the device is still on the bus


def test_nothing_works_before_init_or_after_shutdown(machine: Gpu) -> None:
    assert machine.play("""
        from pynvml import *
        nvmlInit(); nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0); nvmlShutdown()
        print(nvmlDeviceGetName(gpu))
        nvmlShutdown()
        for call in (lambda: nvmlDeviceGetName(gpu), nvmlDeviceGetCount, nvmlShutdown):
            try:
                call()
            except NVMLError_Uninitialized:
                print("refused")
        """) == ["NVIDIA H200", "refused", "refused", "refused"]
