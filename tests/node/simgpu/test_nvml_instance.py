"""Test what unmodified pynvml sees of the MIG profiles of a GPU and of its instances."""

import pytest
from nvml_fixtures import Ask
from simgpu_fixtures import Gpu, NewGpu

NUMBERS = {"1g": 0, "2g": 1, "3g": 2, "4g": 3, "7g": 4, "1g wide": 9}


@pytest.fixture
def machine(new_gpu: NewGpu) -> Gpu:
    return new_gpu("1xA10,1xH100:3g.40gb+4g.40gb,1xA100")


def profile(gpu: int, number: int, version: int = 2) -> str:
    return f"nvmlDeviceGetGpuInstanceProfileInfo(gpu({gpu}), {number}, {version})"


def instance(n: int) -> str:
    return f"nvmlDeviceGetGpuInstanceById(gpu(1), {n})"


def compute(n: int) -> str:
    return f"nvmlGpuInstanceGetComputeInstanceById({instance(n)}, 0)"


def placements(gpu: int, profile_id: int) -> str:
    return (
        "(lambda count, places: nvmlDeviceGetGpuInstancePossiblePlacements"
        f"(gpu({gpu}), {profile_id}, places, byref(count)) or [[p.start, p.size] for p in places[:count.value]])"
        "(c_uint(), (c_nvmlGpuInstancePlacement_t * 8)())"
    )


def test_a_gpu_tells_the_profiles_of_its_model_in_mig_mode_or_not(ask: Ask) -> None:
    for gpu, sms, decoders in ((1, (16, 32, 60, 64, 132, 16), (1, 2, 3, 4, 7, 1)),
                               (2, (14, 28, 42, 56, 98, 14), (0, 1, 2, 2, 5, 1))):  # fmt: skip
        told = [ask(profile(gpu, number)) for number in NUMBERS.values()]
        assert [info["id"] for info in told] == [19, 14, 9, 5, 0, 15]
        assert [info["sliceCount"] for info in told] == [1, 2, 3, 4, 7, 1]
        assert [info["instanceCount"] for info in told] == [7, 3, 2, 1, 1, 4]
        assert [info["multiprocessorCount"] for info in told] == [*sms]
        assert [info["decoderCount"] for info in told] == [*decoders]
        assert [info["isP2pSupported"] for info in told] == [info["encoderCount"] for info in told] == [0] * 6
    wanted = ask(profile(1, 2))
    assert (wanted["name"], wanted["memorySizeMB"], wanted["copyEngineCount"]) == ("MIG 3g.40gb", 81559 // 2, 3)
    older = ask(profile(1, 2, 1))
    assert older == {name: wanted[name] for name in older}
    assert ask(profile(1, 5)) == ask(profile(0, 0)) == "NVMLError_NotSupported"
    assert ask(profile(1, 18)) == "NVMLError_InvalidArgument"


def test_a_profile_may_be_placed_where_its_memory_slices_lie(ask: Ask) -> None:
    assert ask(placements(2, 19)) == [[start, 1] for start in range(7)]
    assert ask(placements(2, 15)) == [[start, 2] for start in (0, 2, 4, 6)]
    assert ask(placements(2, 14)) == [[start, 2] for start in (0, 2, 4)]
    assert ask(placements(2, 9)) == [[0, 4], [4, 4]]
    assert [ask(placements(2, profile_id)) for profile_id in (5, 0)] == [[[0, 4]], [[0, 8]]]
    assert ask(placements(2, 7)) == ask(placements(0, 0)) == "NVMLError_NotSupported"


def test_an_instance_tells_its_profile_its_place_and_what_it_has(ask: Ask) -> None:
    info = "(lambda i: [nvmlDeviceGetIndex(i.device), i.id, i.profileId, i.placement.start, i.placement.size])"
    told = [ask(f"{info}(nvmlGpuInstanceGetInfo({instance(n)}))") for n in (1, 2)]
    assert told == [[1, 1, 9, 4, 4], [1, 2, 5, 0, 4]]  # 4g.40gb fits only at place 0
    told = [ask(f"{info}(nvmlComputeInstanceGetInfo({compute(n)}))") for n in (1, 2)]
    assert told == [[1, 0, 2, 0, 3], [1, 0, 3, 0, 4]]
    parent = f"nvmlComputeInstanceGetInfo({compute(2)}).gpuInstance"
    assert ask(f"nvmlGpuInstanceGetInfo(cast({parent}, c_nvmlGpuInstance_t)).id") == 2
    mig = "nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 0)"
    assert ask(f"nvmlDeviceGetAttributes({mig})") == {
        "multiprocessorCount": 60,
        "sharedCopyEngineCount": 3,
        "sharedDecoderCount": 3,
        "sharedEncoderCount": 0,
        "sharedJpegCount": 3,
        "sharedOfaCount": 0,
        "gpuInstanceSliceCount": 3,
        "computeInstanceSliceCount": 3,
        "memorySizeMB": 81559 // 2,
    }
    window = ask(f"nvmlDeviceGetBAR1MemoryInfo({mig})")
    assert (window["bar1Total"], window["bar1Used"]) == (65536 << 20, 0)  # half of the GPU's window
    assert ask("nvmlDeviceGetAttributes(gpu(1))") == "NVMLError_NotSupported"
    assert ask(f"{instance(3)} and 0") == "NVMLError_NotFound"
    assert ask("nvmlDeviceGetGpuInstanceById(gpu(2), 1) and 0") == "NVMLError_NotSupported"
    assert ask(f"nvmlGpuInstanceGetComputeInstanceById({instance(1)}, 1) and 0") == "NVMLError_NotFound"
    assert ask("nvmlGpuInstanceGetInfo(gpu(1))") == "NVMLError_InvalidArgument"


def test_an_instance_tells_into_what_its_compute_could_be_cut(ask: Ask) -> None:
    def part(number: int, version: int = 2) -> str:
        return f"nvmlGpuInstanceGetComputeInstanceProfileInfo({instance(2)}, {number}, 0, {version})"

    told = [ask(part(number)) for number in (0, 1, 3)]
    assert [info["name"] for info in told] == ["MIG 1c.4g.40gb", "MIG 2c.4g.40gb", "MIG 4g.40gb"]
    assert [info["multiprocessorCount"] for info in told] == [16, 32, 64]
    assert [info["instanceCount"] for info in told] == [4, 2, 1]
    older = ask(part(3, 1))
    assert older == {name: told[2][name] for name in older}
    assert ask(part(2)) == ask(part(4)) == "NVMLError_NotSupported"
    assert ask(part(9)) == "NVMLError_InvalidArgument"


@pytest.mark.parametrize(
    ("cut", "starts"),
    [
        ("3g.40gb+3g.40gb", [4, 0]),
        ("2g.20gb+3g.40gb+2g.20gb", [2, 4, 0]),
        ("1g.20gb+1g.10gb+4g.40gb+1g.10gb", [6, 5, 0, 4]),
        ("+".join(["1g.10gb"] * 7), [6, 5, 4, 3, 2, 1, 0]),
        ("7g.80gb", [0]),
    ],
)
def test_each_instance_has_the_highest_place_that_larger_ones_leave(
    new_gpu: NewGpu, cut: str, starts: list[int]
) -> None:
    lines = new_gpu(f"1xH100:{cut}").play(
        """
        from pynvml import *
        nvmlInit()
        gpu = nvmlDeviceGetHandleByIndex(0)
        for n in range(1, int(sys.argv[1]) + 1):
            print(nvmlGpuInstanceGetInfo(nvmlDeviceGetGpuInstanceById(gpu, n)).placement.start)
        """,
        len(starts),
    )
    assert [int(line) for line in lines] == starts
