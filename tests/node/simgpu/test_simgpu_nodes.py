"""Test that with SIMGPU_DEVICE_NODES, CUDA and NVML show a process the devices that have a node it can open."""

from pathlib import Path
from typing import Any

import pytest
from simgpu_fixtures import ANSWER, COUNTED, Gpu, NewGpu

DEVICES = "1xA10,1xH100:3g.40gb+4g.40gb,1xL4"
GPU = "GPU-53474750-0000-0000-8000-00000000000"
MIG = "MIG-53474750-0000-0000-8000-0000000000"


def machine(new_gpu: NewGpu, folder: Path, *nodes: str, **environment: str) -> Gpu:
    for node in nodes:
        (folder / node).touch()
    return new_gpu(DEVICES, SIMGPU_DEVICE_NODES=str(folder), **environment)


@pytest.mark.parametrize(
    ("nodes", "visible", "seen"),
    [
        ("nvidiactl nvidia0 nvidia2", None, "0 00 02"),
        ("nvidiactl nvidia2", None, "0 02"),
        ("nvidiactl nvidia2", "0", "0 02"),
        ("nvidiactl nvidia2", "1", "100"),
        ("nvidiactl nvidia2", f"{GPU}2", "0 02"),
        ("nvidiactl nvidia2", f"{GPU}0", "100"),
        ("nvidiactl nvidia0 nvidia1", None, "0 11"),  # the first instance of a GPU with MIG instances
        ("nvidiactl nvidia1", f"{MIG}21", "0 21"),
        ("nvidiactl nvidia0", f"{MIG}21", "100"),
        ("nvidiactl", None, "100"),
        ("nvidia0", None, "100"),
        ("", None, "100"),
    ],
)
def test_cuda_counts_only_what_it_may_use(
    new_gpu: NewGpu, tmp_path: Path, nodes: str, visible: str | None, seen: str
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert machine(new_gpu, tmp_path, *nodes.split(), **environment).play(COUNTED) == [seen]


def test_nvml_numbers_anew_what_is_left_and_keeps_the_minor_number(new_gpu: NewGpu, tmp_path: Path) -> None:
    program = machine(new_gpu, tmp_path, "nvidiactl", "nvidia1", "nvidia2").ready(f"{ANSWER}\nnvmlInit()\nanswer()")

    def of_each(call: str) -> list[Any]:
        return [program.ask(f"{call}(nvmlDeviceGetHandleByIndex({n}))") for n in range(2)]

    assert program.ask("nvmlDeviceGetCount()") == 2
    assert program.ask("nvmlDeviceGetHandleByIndex(2) and 0") == "NVMLError_InvalidArgument"
    assert of_each("nvmlDeviceGetUUID") == [f"{GPU}1", f"{GPU}2"]
    assert of_each("nvmlDeviceGetIndex") == [0, 1]
    assert of_each("nvmlDeviceGetMinorNumber") == [1, 2]
    by_uuid = "nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('{}'))"
    assert program.ask(by_uuid.format(f"{GPU}2")) == 1
    assert program.ask(by_uuid.format(f"{GPU}0")) == "NVMLError_NotFound"
    assert program.ask("nvmlDeviceGetHandleByPciBusId('0000:10:00.0') and 0") == "NVMLError_NotFound"
    mig = "nvmlDeviceGetMigDeviceHandleByIndex(nvmlDeviceGetHandleByIndex(0), 1)"
    assert program.ask(f"nvmlDeviceGetUUID({mig})") == f"{MIG}21"


def test_an_instance_goes_with_its_gpu(new_gpu: NewGpu, tmp_path: Path) -> None:
    program = machine(new_gpu, tmp_path, "nvidiactl", "nvidia0").ready(f"{ANSWER}\nnvmlInit()\nanswer()")
    assert program.ask(f"nvmlDeviceGetHandleByUUID('{MIG}11') and 0") == "NVMLError_NotFound"


@pytest.mark.parametrize(
    ("nodes", "flags", "result"),
    [("nvidiactl", 0, 6), ("nvidiactl", 1, 0), ("nvidia0", 0, 9), ("nvidia0", 1, 9), ("", 0, 9)],
)
def test_without_a_node_nvml_does_not_start(
    new_gpu: NewGpu, tmp_path: Path, nodes: str, flags: int, result: int
) -> None:
    gpu = machine(new_gpu, tmp_path, *nodes.split())
    text = "print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInitWithFlags(int(sys.argv[1])))"
    assert gpu.play(text, flags) == [str(result)]
