"""Which container holds which units, as kubelet says it: at its rate, or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from memory_binder import MemoryBinder, plugin

from rig.cluster.kubelet import AdmissionFailed, FakeContainer, FakeKubelet
from rig.cluster.kubelet_endpoint import RECEIVE_LIMIT_BYTES
from rig.until import eventually
from sharepod.deviceplugin import podresources
from sharepod.deviceplugin.podresources import Holder, KubeletUnavailable, PodResources
from sharepod.deviceplugin.unit import UnitId
from sharepod.proto import podresources_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sharepod.deviceplugin.injection import ContainerEdits


def units(ids: Iterable[str]) -> frozenset[UnitId]:
    return frozenset(map(UnitId, ids))


class CuriousBinder(MemoryBinder):
    """Asks who holds the units while kubelet waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.resources: PodResources
        self.seen: list[tuple[Holder, ...]] = []

    async def allocate(self, units: frozenset[UnitId]) -> ContainerEdits:
        self.seen.append(await self.resources.list())
        return await super().allocate(units)

    async def pre_start(self, units: frozenset[UnitId]) -> None:
        self.seen.append(await self.resources.list())
        await super().pre_start(units)


async def test_the_entries_of_a_container_are_one_set_of_units(directory: Path) -> None:
    async with (
        FakeKubelet(directory) as kubelet,
        plugin(kubelet.plugins),
        PodResources(kubelet.pod_resources) as resources,
    ):
        await kubelet.registered()
        pod = await kubelet.admit(
            "research", "trainer", {"train": 40, "plain": 0}, init={"fetch": 40}, sidecars={"proxy": 5}
        )
        done = await kubelet.admit("research", "done", {"main": 10})
        kubelet.finish(done)
        ids = {name: units(container.ids) for name, container in pod.containers.items()}
        assert ids["fetch"] < ids["proxy"] | ids["train"]  # what an init container had is handed on
        assert sorted(await resources.list(), key=lambda holder: holder.container) == [
            Holder("research", "trainer", "proxy", ids["proxy"]),
            Holder("research", "trainer", "train", ids["train"]),
        ]
        kubelet.delete(pod)
        assert await resources.list() == ()


async def test_kubelet_says_it_before_a_start_but_not_yet_while_it_allocates(directory: Path) -> None:
    binder = CuriousBinder()
    async with (
        FakeKubelet(directory) as kubelet,
        plugin(kubelet.plugins, binder),
        PodResources(kubelet.pod_resources) as binder.resources,
    ):
        await kubelet.registered()
        pod = await kubelet.admit("research", "trainer", {"train": 40})
        await kubelet.start(pod, "train")
        holder = Holder("research", "trainer", "train", units(pod.containers["train"].ids))
        assert binder.seen == [(), (holder,)]


async def test_other_resources_are_not_ours(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeKubelet(directory) as kubelet, PodResources(kubelet.pod_resources) as resources:
        entries = [
            pb.ContainerDevices(resource_name=name, device_ids=["u0000"])
            for name in ("nvidia.com/gpu", "sharepod.io/x")
        ]
        container = pb.ContainerResources(name="main", devices=entries)
        listed = [pb.PodResources(name="pod", namespace="default", containers=[container])]
        monkeypatch.setattr(kubelet, "listed", lambda: listed)
        assert await resources.list() == ()


async def test_a_hundred_containers_that_start_at_once_ask_a_few_times(directory: Path) -> None:
    binder = CuriousBinder()
    async with (
        FakeKubelet(directory, rate=20, burst=2) as kubelet,
        plugin(kubelet.plugins, binder),
        PodResources(kubelet.pod_resources) as binder.resources,
    ):
        await kubelet.registered()
        pods = await asyncio.gather(*(kubelet.admit("default", f"pod-{n}", {"main": 1}) for n in range(100)))
        binder.seen.clear()
        before = kubelet.lists
        await asyncio.gather(*(kubelet.start(pod, "main") for pod in pods))
        assert kubelet.lists - before < 100
        assert all(len(seen) == 100 for seen in binder.seen)


async def test_who_asks_while_a_list_is_under_way_gets_the_next_one(directory: Path) -> None:
    async with (
        FakeKubelet(directory) as kubelet,
        plugin(kubelet.plugins),
        PodResources(kubelet.pod_resources) as resources,
    ):
        await kubelet.registered()
        first = asyncio.create_task(resources.list())
        await eventually(lambda: kubelet.lists == 1)
        later = [asyncio.create_task(resources.list()) for _ in range(5)]
        pod = await kubelet.admit("default", "trainer", {"train": 3})
        fresh = await resources.list()
        assert await first == ()
        assert [holder.pod for holder in fresh] == [pod.name]
        await asyncio.gather(*later)
        assert kubelet.lists <= 3


async def test_a_caller_that_gives_up_takes_nothing_from_the_others(directory: Path) -> None:
    async with FakeKubelet(directory) as kubelet, PodResources(kubelet.pod_resources) as resources:
        callers = [asyncio.create_task(resources.list()) for _ in range(3)]
        await asyncio.sleep(0)
        callers[0].cancel()
        assert await asyncio.gather(*callers[1:]) == [(), ()]
        assert callers[0].cancelled()


async def test_a_list_may_be_larger_than_grpc_expects(directory: Path) -> None:
    async with (
        FakeKubelet(directory) as kubelet,
        plugin(kubelet.plugins),
        PodResources(kubelet.pod_resources) as resources,
    ):
        await kubelet.registered()
        pod = await kubelet.admit("default", "trainer", {"main": 1})
        for number in range(110):
            pod.containers[f"{'c' * 40_000}-{number}"] = FakeContainer(
                "c" * 40_000, "app", 1, pod.containers["main"].ids
            )
        assert pb.ListPodResourcesResponse(pod_resources=kubelet.listed()).ByteSize() > RECEIVE_LIMIT_BYTES
        assert len(await resources.list()) == 111


async def test_a_kubelet_that_is_away_is_an_error_that_passes(directory: Path) -> None:
    async with FakeKubelet(directory) as kubelet, PodResources(kubelet.pod_resources) as resources:
        assert await resources.list() == ()
        async with kubelet.away():
            with pytest.raises(KubeletUnavailable, match="UNAVAILABLE") as failure:
                await resources.list()
            assert failure.value.retriable
        assert await resources.list() == ()


async def test_the_failure_of_one_call_cancels_no_other(directory: Path) -> None:
    async with PodResources(directory / "nobody.sock") as resources:
        for _ in range(3):
            asked = (resources.look(), resources.given("nvidia.com/"), resources.look(), resources.given("nvidia.com/"))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(answer) for answer in answers] == [KubeletUnavailable] * 4


async def test_a_kubelet_that_others_ask_all_the_time_is_given_up_with_a_remedy(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(podresources.PATIENCE_S, grpc.StatusCode.RESOURCE_EXHAUSTED, 0.2)
    async with (
        FakeKubelet(directory, rate=0, burst=0) as kubelet,
        PodResources(kubelet.pod_resources) as resources,
    ):
        with pytest.raises(KubeletUnavailable, match="rejected by rate limit: something else on the node"):
            await resources.list()


async def test_what_is_asked_at_the_end_is_given_up(directory: Path) -> None:
    async with FakeKubelet(directory, rate=0, burst=0) as kubelet:
        async with PodResources(kubelet.pod_resources) as resources:
            asking = asyncio.create_task(resources.list())
            await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_failed_admission_holds_nothing(directory: Path) -> None:
    async with (
        FakeKubelet(directory) as kubelet,
        plugin(kubelet.plugins),
        PodResources(kubelet.pod_resources) as resources,
    ):
        await kubelet.registered()
        with pytest.raises(AdmissionFailed):
            await kubelet.admit("default", "greedy", {"one": 60, "two": 60})
        assert await resources.list() == ()
