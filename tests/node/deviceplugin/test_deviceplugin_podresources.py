"""Test which container holds which units by kubelet's answers, which come at kubelet's rate or not at all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from memory_allocator import plugin

from rig.cluster.kubelet import FakeContainer, FakeKubelet
from rig.cluster.kubelet_endpoint import RECEIVE_LIMIT_BYTES
from rig.cluster.kubelet_pods import FakePod
from sharepod.deviceplugin.core.unit import UnitId
from sharepod.deviceplugin.v1beta1 import podresources
from sharepod.deviceplugin.v1beta1.podresources import Holder, KubeletUnavailable, PodResources
from sharepod.proto import podresources_pb2 as pb


@contextlib.asynccontextmanager
async def listing(directory: Path, **rate: float) -> AsyncIterator[tuple[FakeKubelet, PodResources]]:
    """Run a kubelet with our plugin; yield it and the client that asks it."""
    async with (
        FakeKubelet(directory, **rate) as kubelet,  # type: ignore[arg-type]
        plugin(kubelet.plugins),
        PodResources(kubelet.pod_resources, kubelet.plugins) as resources,
    ):
        await kubelet.registered()
        yield kubelet, resources


async def test_the_entries_of_a_container_are_one_set_of_units_without_other_resources(directory: Path) -> None:
    async with listing(directory) as (kubelet, resources):
        kubelet.others_held = {"nvidia.com/gpu": ["u0000"], "sharepod.io/x": ["u0000"]}
        pod = await kubelet.admit(
            "research", "trainer", {"train": 40, "plain": 0}, init={"fetch": 40}, sidecars={"proxy": 5}
        )
        done = await kubelet.admit("research", "done", {"main": 10})
        kubelet.finish(done)
        assert sorted(await resources.list(), key=lambda holder: holder.container) == [
            Holder("research", "trainer", name, frozenset(map(UnitId, pod.containers[name].ids)))
            for name in ("proxy", "train")
        ]
        kubelet.delete(pod)
        assert await resources.list() == ()


async def test_a_hundred_containers_that_start_at_once_ask_a_few_times(directory: Path) -> None:
    async with listing(directory, rate=20, burst=2) as (kubelet, resources):
        pods = await asyncio.gather(*(kubelet.admit("default", f"pod-{n}", {"main": 1}) for n in range(100)))

        async def start(pod: FakePod) -> int:
            await kubelet.start(pod, "main")
            return len(await resources.list())

        assert await asyncio.gather(*map(start, pods)) == [100] * 100
        assert kubelet.lists < 100


async def test_a_list_may_be_larger_than_grpc_expects(directory: Path) -> None:
    async with listing(directory) as (kubelet, resources):
        pod = await kubelet.admit("default", "trainer", {"main": 1})
        for number in range(110):
            pod.containers[f"{'c' * 40_000}-{number}"] = FakeContainer(
                "c" * 40_000, "app", 1, pod.containers["main"].ids
            )
        assert pb.ListPodResourcesResponse(pod_resources=kubelet.listed()).ByteSize() > RECEIVE_LIMIT_BYTES
        assert len(await resources.list()) == 111


async def test_a_kubelet_that_is_away_is_an_error_that_passes(directory: Path) -> None:
    async with listing(directory) as (kubelet, resources):
        assert await resources.list() == ()
        async with kubelet.away():
            with pytest.raises(KubeletUnavailable, match="UNAVAILABLE") as failure:
                await resources.list()
            assert failure.value.retriable
        assert await resources.list() == ()


async def test_the_failure_of_one_call_cancels_no_other(directory: Path) -> None:
    async with PodResources(directory / "nobody.sock", directory) as resources:
        for _ in range(3):
            asked = (resources.look(), resources.given("nvidia.com/"), resources.look(), resources.given("nvidia.com/"))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(answer) for answer in answers] == [KubeletUnavailable] * 4


async def test_a_kubelet_that_others_ask_all_the_time_is_given_up_with_a_remedy(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(podresources.PATIENCE_S, grpc.StatusCode.RESOURCE_EXHAUSTED, 0.2)
    async with listing(directory, rate=0, burst=0) as (_, resources):
        with pytest.raises(KubeletUnavailable, match="rejected by rate limit: something else on the node"):
            await resources.list()
