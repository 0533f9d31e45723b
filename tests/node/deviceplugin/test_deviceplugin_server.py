"""Test what kubelet asks of the plugin and what it gets, with a double of kubelet."""

import asyncio
from pathlib import Path

import pytest
from memory_allocator import A, B, MemoryAllocator, plugin

from rig.cluster.kubelet import AdmissionFailed, FakeKubelet, StartFailed
from rig.cluster.kubelet_endpoint import RECEIVE_LIMIT_BYTES
from rig.until import eventually
from sharepod.deviceplugin.core.agent import NoRoom
from sharepod.deviceplugin.core.unit import UnitId, Units
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.metrics import Counters
from sharepod.deviceplugin.v1beta1.service import MESSAGE_MAX, _told
from sharepod.proto import deviceplugin_pb2 as pb


async def test_a_container_is_allocated_once_and_asked_for_before_each_start(directory: Path) -> None:
    allocator = MemoryAllocator()
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins, allocator):
        await kubelet.registered()
        assert (kubelet.capacity, kubelet.allocatable) == (100, 100)
        pod = await kubelet.admit("default", "trainer", {"train": 30})
        started = await kubelet.start(pod, "train")
        assert started.pre_started
        assert started.response is not None
        assert dict(started.response.envs) == {"SIZE": "30", "NUMBER": "1"}
        assert [(m.host_path, m.container_path, m.read_only) for m in started.response.mounts] == [
            ("/host/1", "/share", True),
            ("/host/slots", "/share/slots", False),
        ]
        assert [(d.host_path, d.container_path, d.permissions) for d in started.response.devices] == [
            ("/dev/zero", "/dev/gpu0", "rw")
        ]
        assert [device.name for device in started.response.cdi_devices] == ["sharepod.io/share=1"]
        await kubelet.restart(pod, "train")
        assert allocator.started == allocator.allocated * 2
        assert allocator.allocated == [{UnitId(f"u{number:04d}") for number in range(30)}]


@pytest.mark.parametrize(("retriable", "code"), [(True, "Unavailable"), (False, "FailedPrecondition")])
async def test_an_error_of_allocate_fails_the_pod_with_its_text(directory: Path, retriable: bool, code: str) -> None:
    allocator = MemoryAllocator()
    allocator.refusal = PluginError("30 units are of 2 devices:\n ask for fewer", retriable=retriable)
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins, allocator):
        await kubelet.registered()
        with pytest.raises(AdmissionFailed) as failure:
            await kubelet.admit("default", "trainer", {"train": 30})
        assert str(failure.value) == (
            f"Allocate failed due to rpc error: code = {code} desc = 30 units are of 2 devices: ask for fewer, "
            "which is unexpected"
        )
        allocator.refusal = None
        await kubelet.admit("default", "trainer", {"train": 100})  # the refused admission has left nothing behind


def test_an_error_is_one_line_and_is_cut_only_if_it_is_too_long() -> None:
    for length in (MESSAGE_MAX - 1, MESSAGE_MAX):
        assert _told(PluginError("x" * length)) == "x" * length
    assert _told(PluginError("x" * (MESSAGE_MAX + 1))) == "x" * (MESSAGE_MAX - 1) + "…"
    assert _told(PluginError("no room:\n  take less")) == "no room: take less"


async def test_starts_that_fail_are_tried_again_and_counted_by_how_they_ended(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    allocator, counters = MemoryAllocator(), Counters()
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins, allocator, counters=counters):
        await kubelet.registered()
        pod = await kubelet.admit("default", "trainer", {"train": 30})
        for refusal, code in (
            (NoRoom("full"), "Unavailable"),
            (PluginError("x" * 1000), "Unavailable"),
            (PluginError("no", retriable=False), "FailedPrecondition"),
            (ValueError("a secret"), "Internal desc = SharePod's device plugin failed"),
        ):
            allocator.refusal = refusal
            with pytest.raises(StartFailed, match=f"code = {code}") as failure:
                await kubelet.start(pod, "train")
            assert "secret" not in str(failure.value)
            if "x" in str(refusal):  # the text goes into the pod's status and into an Event, so it is cut
                assert str(failure.value).rpartition("desc = ")[2] == "x" * (MESSAGE_MAX - 1) + "…"
        allocator.refusal = None
        await kubelet.start(pod, "train")
    report = counters.report(serving=True, allocations=1, unbound=0, rival_devices=0)
    assert report.starts == {"ready": 1, "no_room": 1, "waiting": 1, "refused": 1, "failed": 1}
    assert (sum(report.allocate.counts), sum(report.pre_start.counts)) == (1, 5)
    assert report.pre_start.sum_ns > 0
    bugs = [(record.message, record.__dict__["call"]) for record in caplog.records if record.exc_info]
    assert bugs == [("call failed", "PreStartContainer")]


async def test_several_containers_in_one_request_are_answered_in_order(directory: Path) -> None:
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins):
        stub = (await kubelet.registered()).stub
        asks = [pb.ContainerAllocateRequest(devices_ids=[f"u{n:04d}" for n in range(size)]) for size in (3, 1, 2)]
        response = await stub.Allocate(pb.AllocateRequest(container_requests=asks))
        assert [item.envs["SIZE"] for item in response.container_responses] == ["3", "1", "2"]
        free = [f"u{n:04d}" for n in range(20)]
        preferences = [
            pb.ContainerPreferredAllocationRequest(
                available_device_ids=free, must_include_device_ids=["u0019"], allocation_size=size
            )
            for size in (1, 3)
        ]
        advice = await stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=preferences))
        assert [list(item.device_ids) for item in advice.container_responses] == [
            ["u0019"],
            ["u0019", "u0000", "u0001"],
        ]


async def test_health_goes_to_kubelet_as_it_changes_and_spares_shares_of_healthy_devices(directory: Path) -> None:
    allocator = MemoryAllocator()
    units = Units([(A, True), (B, True)])
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins, allocator, units) as (service, _):
        endpoint = await kubelet.registered()
        pods = [await kubelet.admit("default", f"pod-{index}", {"main": 60}) for index in range(2)]
        for uuid, pod in zip((A, B), pods, strict=True):
            allocator.held[uuid] = frozenset(map(UnitId, pod.containers["main"].ids))
        service.show(Units([(A, False), (B, True)]))
        await eventually(lambda: kubelet.allocatable == 100)
        assert kubelet.capacity == 200
        assert not kubelet.healthy & allocator.held[A]
        assert kubelet.healthy >= allocator.held[B]
        allocator.held[B] = frozenset()
        kubelet.delete(pods[1])
        await kubelet.admit("default", "pod-2", {"main": 100})
        service.show(Units([(A, True), (B, True)]))
        await eventually(lambda: kubelet.allocatable == 200)
        assert endpoint.lists == 3


async def test_changes_that_come_together_are_one_list_and_none_where_nothing_changed(directory: Path) -> None:
    allocator = MemoryAllocator()
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins, allocator) as (service, _):
        endpoint = await kubelet.registered()
        service.changed()
        await asyncio.sleep(0.3)
        assert endpoint.lists == 1
        for healthy in (False, True, False, True, False):
            service.show(Units([(A, healthy)]))
        await eventually(lambda: kubelet.allocatable == 0)
        assert endpoint.lists == 2
        assert kubelet.capacity == 100


async def test_as_many_units_as_may_be_spared_are_below_what_kubelet_receives(directory: Path) -> None:
    units = Units([(f"MIG-{A}/{index}/0", index % 2 == 0) for index in range(112)], spare_percent=400)
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins, units=units):
        endpoint = await kubelet.registered()
        assert 39_900 < kubelet.capacity <= 40_000
        assert kubelet.allocatable == kubelet.capacity / 2
        assert endpoint.largest_bytes < RECEIVE_LIMIT_BYTES / 2


async def test_more_ids_than_fit_into_a_message_elsewhere_are_received(directory: Path) -> None:
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins):
        stub = (await kubelet.registered()).stub
        ask = pb.ContainerPreferredAllocationRequest(
            available_device_ids=[f"u{number:061d}" for number in range(70_000)], allocation_size=1
        )
        assert ask.ByteSize() > RECEIVE_LIMIT_BYTES
        advice = await stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[ask]))
        assert list(advice.container_responses[0].device_ids) == [f"u{0:061d}"]
