"""Test which devices an agent takes for which when NVML can describe only some of them."""

import contextlib
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest
from agent_doubles import H200, MemoryArbiter

from sharepod.agent.devices import bus, inventory, nvml
from sharepod.agent.devices.device import DeviceInfo, DeviceLook, Unlisted, matched
from sharepod.agent.devices.monitor import Devices
from sharepod.agent.errors import AgentUnavailable
from sharepod.agent.shares.registry import Registry
from sharepod.agent.shares.share import DeviceUuid

FIRST, SECOND = "0000:18:00.0", "0000:3b:00.0"


def info(uuid: str, index: int, address: str = "") -> DeviceInfo:
    return DeviceInfo(DeviceUuid(uuid), index, "H200", 2**37, address=address)


def unlisted(place: int, uuid: str = "", address: str = "") -> Unlisted:
    return Unlisted(place, place, f"reason {place}", DeviceUuid(uuid) if uuid else None, address)


@pytest.mark.parametrize(
    ("now", "absent", "found", "unseen"),
    [
        ([unlisted(0, address=SECOND)], [info("a", 0, FIRST), info("b", 1, SECOND)], {"b": 0}, []),
        ([unlisted(1, address=SECOND)], [info("a", 1, FIRST)], {}, [1]),
        ([unlisted(0, "b")], [info("a", 0), info("b", 1)], {"b": 0}, []),
        ([unlisted(0, "c")], [info("a", 0)], {}, [0]),
        ([unlisted(1)], [info("a", 0), info("b", 1)], {"b": 1}, []),
        ([unlisted(4)], [info("a", 0), info("b", 1)], {"a": 4}, []),
        ([unlisted(4), unlisted(1)], [info("a", 0), info("b", 1)], {"a": 4, "b": 1}, []),
        ([unlisted(0, address=FIRST)], [info("i", 0, FIRST), info("j", 1, FIRST), info("b", 2)], {"i": 0, "j": 0}, []),
        ([unlisted(0), unlisted(1)], [info("a", 0)], {"a": 0}, [1]),
        ([unlisted(0, address=FIRST)], [info("a", 0)], {"a": 0}, []),
        ([], [info("a", 0)], {}, []),
        (
            [unlisted(0, "i", FIRST), unlisted(0, "j", FIRST)],
            [info("j", 0, FIRST), info("gone", 1, FIRST), info("i", 2, FIRST)], {"i": 0, "j": 0}, [],
        ),
        ([unlisted(0)], [info("i", 0, FIRST), info("j", 1, FIRST), info("b", 2, SECOND)], {"i": 0, "j": 0}, []),
    ],
    ids=[
        "by address", "another address", "by uuid", "another uuid", "by index", "any", "index first", "instances",
        "one too many", "of an agent that noted no address", "none",
        "two instances that tell their names", "instances of a GPU of which no address is known now",
    ],
)  # fmt: skip
def test_who_is_absent_is_matched_by_uuid_then_address_then_index(
    now: list[Unlisted], absent: list[DeviceInfo], found: dict[str, int], unseen: list[int]
) -> None:
    known, left = matched(now, absent)
    assert {uuid: one.place for uuid, one in known.items()} == found
    assert [one.place for one in left] == unseen


def test_what_no_agent_knew_has_a_name_by_its_address_or_its_place() -> None:
    assert unlisted(3, address=FIRST).name == f"GPU-at-{FIRST}"
    assert unlisted(3).name == "GPU-at-place-3"
    assert unlisted(3, "GPU-x", FIRST).name == "GPU-x"


def test_the_kernel_tells_the_places_of_a_drivers_devices_in_nvmls_order(tmp_path: Path) -> None:
    far = "10000:02:00.0"
    for name in (far, SECOND, FIRST, "bind", "new_id", "uevent"):
        (tmp_path / name).mkdir()
    assert bus.driven(tmp_path) == (FIRST, SECOND, far)
    assert bus.driven(tmp_path / "none") == ()
    (tmp_path / FIRST / "numa_node").write_text("1\n")
    assert (bus.numa_node_of(FIRST, tmp_path), bus.numa_node_of(SECOND, tmp_path), bus.numa_node_of("")) == (1, -1, -1)
    assert bus.file_of(FIRST, tmp_path) == tmp_path / FIRST / "uevent"
    assert bus.file_of("") is None
    assert [bus.address_of(text) for text in ("00000000:3B:00.0", "no place")] == [SECOND, ""]


@pytest.mark.parametrize("empty", [pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT])
def test_a_gpu_in_mig_mode_has_the_instances_that_there_are_whatever_an_empty_place_answers(
    monkeypatch: pytest.MonkeyPatch, empty: int
) -> None:
    def instance(_: object, place: int) -> str:
        if place != 2:
            raise pynvml.NVMLError(empty)
        return "MIG-2"

    def memory(handle: str) -> Any:
        assert handle == "MIG-2"
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)

    answers = {
        "HandleByIndex": lambda _: "GPU-0", "MigMode": lambda _: (1, 1), "MaxMigDeviceCount": lambda _: 7,
        "MigDeviceHandleByIndex": instance, "UUID": lambda handle: handle, "Name": lambda _: "H200",
        "MemoryInfo": memory, "PciInfo": lambda _: pynvml.nvmlPciInfo_t(busId=b"00000000:18:00.0"),
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", answer)
    [found] = nvml.list_gpu(0, simulated=True)
    assert found == Unlisted(0, -1, "NVML: Insufficient Permissions", DeviceUuid("MIG-2"), FIRST)


def test_an_agent_does_not_wait_for_ever_for_a_driver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(inventory, "OPEN_TIMEOUT_S", 0.1)
    monkeypatch.setattr(nvml, "open_nvml", lambda _: answers.wait())
    with pytest.raises(AgentUnavailable, match=r"NVML has not answered for 0\.1 s: look at dmesg"):
        inventory.Inventory()
    monkeypatch.setattr(nvml, "open_nvml", lambda _: None)
    monkeypatch.setattr(nvml, "driver_version", Mock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)))
    with pytest.raises(AgentUnavailable, match="NVML cannot list the devices: Unknown Error"):
        inventory.Inventory()
    answers.set()


@pytest.mark.parametrize(
    ("driven", "address"),
    [((FIRST, SECOND), SECOND), ((FIRST,), ""), ((FIRST, SECOND, "0000:5e:00.0"), "")],
    ids=["as-many", "one-is-gone", "one-is-hidden-from-nvml"],
)
def test_a_gpu_that_does_not_answer_has_the_address_of_its_place_if_nvml_lists_all(
    monkeypatch: pytest.MonkeyPatch, driven: tuple[str, ...], address: str
) -> None:
    def listed(place: int, *, simulated: bool) -> tuple[nvml.Handle, ...]:
        assert not simulated
        if place:
            raise nvml.Failure(pynvml.NVML_ERROR_GPU_IS_LOST)
        return (nvml.Handle(H200, "there", "there", H200.uuid),)

    monkeypatch.setattr(nvml, "open_nvml", lambda _: None)
    monkeypatch.setattr(nvml, "close_nvml", lambda: None)
    for name, answer in (("driver_version", "1"), ("gpu_count", 2)):
        monkeypatch.setattr(nvml, name, lambda answer=answer: answer)
    monkeypatch.setattr(nvml, "list_gpu", listed)
    monkeypatch.setattr(nvml, "with_peers", lambda handles: handles)
    monkeypatch.setattr(bus, "driven", lambda: driven)
    found = inventory.Inventory()
    assert [one.uuid for one in found.devices] == [H200.uuid]
    assert [(one.place, one.index, one.address) for one in found.unlisted] == [(1, 1, address)]
    found.close()


def test_a_gpu_that_turns_out_to_be_several_instances_is_replaced_by_these(tmp_path: Path) -> None:
    registry = Registry(MemoryArbiter(), tmp_path, [H200])
    devices = Devices(registry, Mock(), ())
    name = unlisted(1, address=FIRST).name
    devices.add_missing(DeviceInfo(name, 1, "unknown", 0), "NVML: GPU is lost", 0, 1)
    two = info("MIG-1", -1, FIRST), info("MIG-2", -1, FIRST)
    devices.looked([DeviceLook(name, found=two)], 0)
    assert [(one.uuid, one.index) for one in registry.devices] == [(H200.uuid, 0), ("MIG-1", 1), ("MIG-2", 2)]
    assert not devices.missing


def test_a_gpu_that_is_found_waits_for_its_description_its_own_address_and_for_another_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drive the search by hand: each look is what the thread would deliver."""
    whole = nvml.Handle(info("GPU-real", -1, SECOND), "h", "h", "GPU-real")
    answers: list[tuple[object, ...]] = [
        (Unlisted(1, -1, "NVML: Insufficient Permissions", DeviceUuid("MIG-1")),),  # an instance that does not tell
        (nvml.Handle(info("GPU-other", -1, FIRST), "h", "h", "GPU-other"),),  # the list has shifted
        (whole,),  # another agent has it
        (whole,),
    ]
    refusal = AgentUnavailable("device 1 belongs to another agent")
    claim, looks, forgotten = Mock(side_effect=[refusal, None]), list[DeviceLook](), list[str]()
    stopping = Mock(is_set=lambda: False, wait=lambda _: None)
    session = Mock(use=lambda: contextlib.nullcontext(0), looked=lambda *_, **__: None, forget=forgotten.append)
    monkeypatch.setattr(nvml, "list_gpu", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(inventory, "_Board", Mock())
    watch = inventory._Watch(session, False, lambda got: looks.extend(got), Mock(), stopping, claim, set())
    name = unlisted(1, address=SECOND).name
    inventory._Search(name, 1, watch).run()
    assert [look.error for look in looks] == ["NVML does not list it"] * 2 + [str(refusal), ""]
    assert [one.uuid for one in looks[-1].found] == ["GPU-real"]
    assert (watch.listed, forgotten) == ({"GPU-real"}, [name])
