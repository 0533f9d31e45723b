"""Test what unmodified clients of NVML and of the driver see of a GPU with MIG instances."""

import time

import pytest
from nvml_fixtures import Ask, Use
from simgpu_fixtures import MIB, Gpu, NewGpu

from rig.until import until

SMALL, LARGE = (f"MIG-53474750-0000-0000-8000-0000000000{n}1" for n in (1, 2))


@pytest.fixture
def machine(new_gpu: NewGpu) -> Gpu:
    return new_gpu("1xA10,1xH100:3g.40gb+4g.40gb,1xA100")


def mig(n: int) -> str:
    return f"nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), {n})"


def test_a_gpu_in_mig_mode_lists_its_instances_and_each_knows_its_ids_and_its_gpu(ask: Ask) -> None:
    assert [ask(f"nvmlDeviceGetMigMode(gpu({n}))") for n in range(3)] == ["NVMLError_NotSupported", [1, 1], [0, 0]]
    assert ask("nvmlDeviceGetMaxMigDeviceCount(gpu(1))") == 7
    assert ask(f"{mig(2)} and 0") == "NVMLError_NotFound"
    assert ask("nvmlDeviceGetMigDeviceHandleByIndex(gpu(2), 0) and 0") == "NVMLError_NotFound"
    assert ask("nvmlDeviceGetName(" + mig(0) + ")") == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert [ask(f"nvmlDeviceIsMigDeviceHandle({handle}).value") for handle in (mig(0), "gpu(1)")] == [1, 0]
    for n, uuid in enumerate((SMALL, LARGE)):
        assert ask(f"nvmlDeviceGetUUID({mig(n)})") == uuid
        assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('{uuid}'))") == n
        assert ask(f"nvmlDeviceGetGpuInstanceId({mig(n)})") == n + 1
        assert ask(f"nvmlDeviceGetComputeInstanceId({mig(n)})") == 0
        assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle({mig(n)}))") == 1
    assert ask("nvmlDeviceGetGpuInstanceId(gpu(1))") == "NVMLError_NotSupported"
    assert ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu(1)) and 0") == "NVMLError_InvalidArgument"


def test_what_belongs_to_the_board_is_not_told_of_an_instance(ask: Ask) -> None:
    for call in ("PowerUsage", "MinorNumber", "PersistenceMode", "UtilizationRates", "MigMode"):
        assert ask(f"nvmlDeviceGet{call}({mig(0)})") == "NVMLError_NotSupported", call
    assert ask("nvmlDeviceGetPowerUsage(gpu(1))") > 0
    assert ask("nvmlDeviceGetUtilizationRates(gpu(1))") == "NVMLError_NotSupported"  # in MIG mode, for the GPU too
    assert ask("nvmlDeviceGetProcessUtilization(gpu(1), 0)") == "NVMLError_NotSupported"


def test_memory_and_processes_are_those_of_the_instance_and_all_of_them_the_gpus(ask: Ask, use: Use) -> None:
    totals = [ask(f"nvmlDeviceGetMemoryInfo({mig(n)})")["total"] for n in range(2)]
    assert totals == [81559 * MIB // 2 // MIB * MIB] * 2
    sizes = {SMALL: 512 * MIB, LARGE: 256 * MIB}
    programs = [use(0, 1000, 10000, size, CUDA_VISIBLE_DEVICES=uuid) for uuid, size in sizes.items()]
    for n, (program, size) in enumerate(zip(programs, sizes.values(), strict=True)):
        (entry,) = ask(f"nvmlDeviceGetComputeRunningProcesses({mig(n)})")
        assert entry["pid"] == program.pid
        assert (entry["gpuInstanceId"], entry["computeInstanceId"]) == (n + 1, 0)
        assert ask(f"nvmlDeviceGetMemoryInfo({mig(n)})")["used"] == entry["usedGpuMemory"] == size
    whole = ask("nvmlDeviceGetComputeRunningProcesses(gpu(1))")
    assert [(p["pid"], p["gpuInstanceId"]) for p in whole] == [(programs[0].pid, 1), (programs[1].pid, 2)]
    assert ask("nvmlDeviceGetMemoryInfo(gpu(1))")["used"] == sum(sizes.values())
    assert ask("nvmlDeviceGetComputeRunningProcesses(gpu(0))") == []


def test_instances_work_beside_each_other_at_full_rate(machine: Gpu, use: Use) -> None:
    programs = [use(0, 2000, CUDA_VISIBLE_DEVICES=uuid) for uuid in (SMALL, LARGE)]
    with machine.truth() as truth:
        places = {device.uuid: device.index for device in truth.devices()}

        def busy_parts() -> list[float]:
            before_ns, before = truth.now_ns(), truth.devices()
            time.sleep(0.5)
            after, passed_ns = truth.devices(), truth.now_ns() - before_ns
            return [(after[at].busy_ns - before[at].busy_ns) / passed_ns for at in (places[SMALL], places[LARGE])]

        until(lambda: min(busy_parts()) > 0.8)  # together more than one device could give
        assert [c.pid for uuid in (SMALL, LARGE) for c in truth.contexts(places[uuid])] == [p.pid for p in programs]


def test_a_gpu_that_is_cut_draws_power_for_its_instances(ask: Ask, use: Use) -> None:
    power, energy = "nvmlDeviceGetPowerUsage(gpu(1))", "nvmlDeviceGetTotalEnergyConsumption(gpu(1))"
    assert ask(power) == 100_000
    program = use(0, 20000, CUDA_VISIBLE_DEVICES=LARGE)  # it uses 64 of the 132 SMs
    until(lambda: 380_000 <= ask(power) <= 388_000)
    before = ask(energy)
    until(lambda: ask(energy) > before + 50_000)  # in millijoules: an eighth of a second
    program.kill()
    until(lambda: ask(power) == 100_000)


def test_an_xid_of_an_instance_is_told_on_its_gpu_with_its_ids(machine: Gpu, ask: Ask) -> None:
    ask("globals().update(events=nvmlEventSetCreate())")
    assert ask(f"nvmlDeviceRegisterEvents({mig(0)}, 8, events)") == "NVMLError_NotSupported"
    assert ask("nvmlDeviceRegisterEvents(gpu(1), 8, events)") is None
    with machine.truth() as truth:
        place = next(device.index for device in truth.devices() if device.uuid == LARGE)
        truth.inject_xid(place, 43)
        told = ask(
            "(lambda e: [nvmlDeviceGetIndex(e.device), e.eventData, e.gpuInstanceId, e.computeInstanceId])"
            "(nvmlEventSetWait_v2(events, 2000))"
        )
        assert told == [1, 43, 2, 0]
        truth.inject_xid(1, 79)  # this hits the GPU and so all of its instances
        assert ask(f"nvmlDeviceGetMemoryInfo({mig(1)})") == "NVMLError_GpuIsLost"
        truth.recover(1)
        assert ask(f"nvmlDeviceGetMemoryInfo({mig(1)})")["used"] == 0


@pytest.mark.parametrize(
    "devices",
    [
        "1xH100:5g.50gb",
        "1xH100:4g.40gb+4g.40gb",
        "1xH100:3g.40gb+3g.40gb+1g.10gb",
        "1xA10:1g.10gb",
        "1xA10:mig",
        "1xH100:",
    ],
)
def test_what_the_hardware_cannot_be_cut_into_is_refused(new_gpu: NewGpu, devices: str) -> None:
    assert new_gpu(devices).play("print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())") == ["2"]
