"""Test which devices NVLink joins by NVML's word; it joins none if the driver cannot say or the GPU is partitioned."""

from typing import Any

import pynvml
import pytest

from sharepod.agent.devices import nvml
from sharepod.agent.devices.device import DeviceInfo
from sharepod.agent.errors import AgentUnavailable
from sharepod.agent.shares.share import DeviceUuid


def handle(index: int, parent: str = "", own: object = None) -> Any:
    """Return a device: a whole GPU, or a MIG instance of `parent`."""
    info = DeviceInfo(DeviceUuid(f"GPU-{index}"), index, "H200", 2**37)
    whole = parent or f"GPU-{index}"
    return nvml.Handle(info, own or whole, whole, whole)


def test_the_peers_are_those_whose_p2p_status_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [handle(index) for index in range(4)]
    linked = {("GPU-0", "GPU-1"), ("GPU-1", "GPU-0"), ("GPU-0", "GPU-3")}

    def status(one: str, other: str, index: int) -> int:
        assert index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        return pynvml.NVML_P2P_STATUS_OK if (one, other) in linked else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED

    monkeypatch.setattr(pynvml, "nvmlDeviceGetP2PStatus", status)
    assert [nvml.nvlink_peers(one, devices) for one in devices] == [(1, 3), (0,), (), ()]


@pytest.mark.parametrize(
    ("error", "cause", "remedy"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "are of different versions", "reboot"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "kernel module is not loaded", "modprobe nvidia"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "may not be opened", "/dev/nvidia"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no GPU on this machine", "install the NVIDIA driver"),
    ],
)
def test_why_nvml_cannot_be_opened_is_told_with_what_helps(
    monkeypatch: pytest.MonkeyPatch, error: int, cause: str, remedy: str
) -> None:
    def init() -> None:
        raise pynvml.NVMLError(error)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    with pytest.raises(AgentUnavailable, match=f"{cause}.*: NVML says .*{remedy}"):
        nvml.open_nvml("")


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_a_driver_that_cannot_say_has_no_links(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def status(*_: object) -> int:
        raise pynvml.NVMLError(error)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetP2PStatus", status)
    devices = [handle(0), handle(1)]
    assert nvml.nvlink_peers(devices[0], devices) == ()


def test_an_instance_of_a_cut_gpu_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetP2PStatus", lambda *_: pynvml.NVML_P2P_STATUS_OK)
    devices = [handle(0), handle(1), handle(2, "GPU-9", "MIG-a"), handle(3, "GPU-9", "MIG-b")]
    assert [nvml.nvlink_peers(one, devices) for one in devices] == [(1,), (0,), (), ()]
