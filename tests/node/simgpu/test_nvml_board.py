"""Test what unmodified pynvml sees of a whole board: power, clocks, memory errors, its place on the bus, its links."""

import pytest
from nvml_fixtures import Ask, Use
from simgpu_fixtures import ANSWER, MIB, Gpu, NewGpu

from rig.until import until

ALL = "1xH200,1xH100,1xA100,1xA10,1xL4,1xT4"


@pytest.fixture
def machine(new_gpu: NewGpu) -> Gpu:
    return new_gpu(ALL)


def of_each(ask: Ask, call: str) -> list[object]:
    return [ask(f"nvmlDeviceGet{call.replace('GPU', f'gpu({n})')}") for n in range(6)]


def test_an_idle_board_draws_little_and_stays_in_p0_where_its_memory_is_hbm(ask: Ask) -> None:
    limits = [700_000, 700_000, 400_000, 150_000, 72_000, 70_000]
    for call in ("PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit"):
        assert of_each(ask, f"{call}(GPU)") == limits
    assert of_each(ask, "PowerUsage(GPU)") == [limit // 7 for limit in limits]
    assert of_each(ask, "PerformanceState(GPU)") == [0, 0, 0, 8, 8, 8]
    assert of_each(ask, "ClockInfo(GPU, NVML_CLOCK_SM)") == [345, 345, 210, 210, 210, 300]
    assert of_each(ask, "MaxClockInfo(GPU, NVML_CLOCK_SM)") == [1980, 1980, 1410, 1695, 2040, 1590]
    assert of_each(ask, "ClockInfo(GPU, NVML_CLOCK_MEM)") == [3201, 2619, 1593, 405, 405, 405]
    assert of_each(ask, "TemperatureV(GPU, 0)") == of_each(ask, "Temperature(GPU, 0)") == [32] * 6
    cores = [132 * 128, 132 * 128, 108 * 64, 72 * 128, 58 * 128, 40 * 64]
    assert of_each(ask, "NumGpuCores(GPU)") == cores
    assert of_each(ask, "FanSpeed(GPU)") == ["NVMLError_NotSupported"] * 6
    assert of_each(ask, "EncoderUtilization(GPU)") == of_each(ask, "DecoderUtilization(GPU)") == [[0, 167000]] * 6


def test_the_energy_is_the_integral_of_the_power(machine: Gpu, ask: Ask, use: Use) -> None:
    def energies() -> tuple[float, float, int, int]:
        """Return time and busy time in seconds, then the energy that the busy board and an idle board have used."""
        with machine.truth() as truth:
            now_ns, busy_ns = truth.now_ns(), truth.devices()[5].busy_ns
        return now_ns / 1e9, busy_ns / 1e9, *(ask(f"nvmlDeviceGetTotalEnergyConsumption(gpu({n}))") for n in (5, 4))

    program = use(5, 20000)  # CUDA numbers the fastest device first, and the T4 is the slowest
    until(lambda: ask("nvmlDeviceGetPowerUsage(gpu(5))") > 60_000)
    assert ask("nvmlDeviceGetPerformanceState(gpu(5))") == 0
    assert ask("nvmlDeviceGetClockInfo(gpu(5), NVML_CLOCK_GRAPHICS)") == 1590
    program.kill()
    until(lambda: ask("nvmlDeviceGetPowerUsage(gpu(5))") == 10_000)
    before = energies()
    until(lambda: energies()[0] > before[0] + 0.5)
    after = energies()
    passed, worked, busy, idle = (b - a for a, b in zip(before, after, strict=True))
    assert worked == 0
    assert idle == pytest.approx(72_000 / 7 * passed, rel=0.2)
    assert busy == pytest.approx(10_000 * passed, rel=0.2)
    assert after[2] - after[3] * 70 / 72 == pytest.approx(60_000 * after[1], rel=0.02)


def test_every_board_has_a_number_of_its_own_and_a_window_onto_its_memory(ask: Ask) -> None:
    serials = of_each(ask, "Serial(GPU)")
    assert len({*serials}) == 6
    assert all(isinstance(serial, str) and len(serial) == 13 and serial.isdigit() for serial in serials)
    windows = [ask(f"nvmlDeviceGetBAR1MemoryInfo(gpu({n}))") for n in range(6)]
    assert [window["bar1Total"] // MIB for window in windows] == [262144, 131072, 131072, 32768, 32768, 256]
    assert all(window["bar1Free"] + window["bar1Used"] == window["bar1Total"] for window in windows)
    assert of_each(ask, "Brand(GPU)") == [14] * 6
    assert of_each(ask, "VirtualizationMode(GPU)") == of_each(ask, "DisplayActive(GPU)") == [0] * 6


def test_the_layouts_of_the_place_on_the_bus_begin_alike(ask: Ask) -> None:
    raw = "(lambda b: (pynvml._nvmlGetFunctionPointer('nvmlDeviceGetPciInfo' + {!r})(gpu(1), b), b.raw.hex()))"
    raw += "(ctypes.create_string_buffer(b'\\xff' * 68, 68))"
    results = {name: ask(raw.format(name)) for name in ("", "_v2", "_v3")}
    assert [result for result, _ in results.values()] == [0, 0, 0]
    whole = bytes.fromhex(results["_v3"][1])
    assert (whole[:12], whole[36:52]) == (b"0000:18:00.0", b"00000000:18:00.0")
    assert bytes.fromhex(results["_v2"][1]) == whole[:36] + b"\xff" * 32
    assert bytes.fromhex(results[""][1]) == whole[:32] + b"\xff" * 36
    assert (
        of_each(ask, "CurrPcieLinkGeneration(GPU)") == of_each(ask, "MaxPcieLinkGeneration(GPU)") == [5, 5, 4, 4, 4, 3]
    )
    assert of_each(ask, "CurrPcieLinkWidth(GPU)") == [16] * 6


def test_a_copy_is_seen_on_the_bus_in_its_direction_while_it_runs(machine: Gpu, ask: Ask) -> None:
    calls = [f"nvmlDeviceGetPcieThroughput(gpu(0), NVML_PCIE_UTIL_{way}_BYTES)" for way in ("TX", "RX")]
    assert [ask(call) for call in calls] == [0, 0]
    for copy, seen in (("cuMemcpyDtoHAsync_v2(host, device, size, None)", [25_000_000, 0]),
                       ("cuMemcpyHtoDAsync_v2(device, host, size, None)", [0, 25_000_000])):  # fmt: skip
        program = machine.ready(f"""
            start(0)
            size = c_size_t(1 << 30)
            host, device = c_void_p(), c_uint64(allocate(1 << 30))
            ok(cuda.cuMemHostAlloc(byref(host), size, 0))
            print("ready", flush=True)
            while True:
                ok(cuda.{copy})
                ok(cuda.cuCtxSynchronize())
            """)
        until(lambda seen=seen: [ask(call) for call in calls] == seen)  # type: ignore[misc]
        program.kill()
        until(lambda: [ask(call) for call in calls] == [0, 0])


def test_errors_of_memory_are_those_that_xids_told_of(machine: Gpu, ask: Ask) -> None:
    count = "nvmlDeviceGetTotalEccErrors(gpu({}), NVML_MEMORY_ERROR_TYPE_{}CORRECTED, NVML_VOLATILE_ECC)"
    assert ask("nvmlDeviceGetEccMode(gpu(0))") == [1, 1]
    with machine.truth() as truth:
        for device, xid in ((0, 31), (0, 48), (0, 94), (1, 79)):
            truth.inject_xid(device, xid)
    assert [ask(count.format(0, kind)) for kind in ("", "UN")] == [0, 2]
    assert ask(count.format(2, "UN")) == 0
    assert ask(count.format(1, "UN")) == "NVMLError_GpuIsLost"
    assert ask("nvmlDeviceGetTotalEccErrors(gpu(0), 2, 0)") == "NVMLError_InvalidArgument"


def test_boards_with_links_are_joined_with_those_of_their_model(new_gpu: NewGpu) -> None:
    program = new_gpu("2xH100,2xA100,1xH100:mig,1xA10").ready(
        f"{ANSWER}\nnvmlInit()\ngpu = nvmlDeviceGetHandleByIndex\nanswer()"
    )
    links = "[nvmlDeviceGetNvLinkState(gpu({}), link) for link in range({})]"
    assert program.ask(links.format(0, 18)) == [1] * 18
    assert program.ask(links.format(2, 12)) == [1] * 12
    assert program.ask(links.format(2, 13)) == program.ask(links.format(5, 1)) == "NVMLError_NotSupported"
    linked = "nvmlDeviceGetP2PStatus(gpu({}), gpu({}), NVML_P2P_CAPS_INDEX_NVLINK)"
    pairs = ((0, 1), (2, 3), (0, 2), (0, 4), (0, 5))
    assert [program.ask(linked.format(*pair)) for pair in pairs] == [0, 0, 5, 5, 5]
    assert program.ask(linked.format(0, 0)) == "NVMLError_InvalidArgument"
