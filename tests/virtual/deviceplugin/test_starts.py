"""Test starts of containers that pod-resources does not list, that the API server cannot answer for, or that fail."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from model_node import ModelNode, NodePod
from virtual_time import virtually

from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.v1beta1.allocator import Allocator
from sharepod.deviceplugin.v1beta1.podresources import Listing
from sharepod.kube.pod import Container, Pod

LONG_AGO, LATER = "2026-01-01T00:00:00Z", "2100-01-01T00:00:00Z"


@contextlib.asynccontextmanager
async def prompt(directory: Path) -> AsyncIterator[ModelNode]:
    """Run a node on which every answer comes at once."""
    node = ModelNode(directory, 1)
    node.lag.always_s = 0
    await node.start_plugin()
    try:
        yield node
    finally:
        await node.end()


async def made(node: ModelNode, size: int, init: int) -> NodePod:
    await node.create(size, init)
    await asyncio.sleep(200)
    (pod,) = node.pods
    return pod


def allocator(node: ModelNode) -> Allocator:
    assert node.plugin is not None
    return node.plugin.allocator


@virtually
async def test_a_share_of_an_init_container_alone_ends_with_it_and_its_units_stay_the_pods(tmp_path: Path) -> None:
    async with prompt(tmp_path) as node:
        pod = await made(node, 0, 3)
        warm, main = pod.containers
        assert (warm.done, main.lives, node.agent.held) == (True, True, {})
        assert [(key, len(units)) for key, units in allocator(node).taken().items()] == [("", 3)]
        # The pod's sandbox is lost: the container starts again, and the API server still shows its earlier end.
        shown = node.api.pods[pod.pod.name]
        node.api.put(replace(shown, finished={"init": LONG_AGO}))
        await allocator(node).pre_start(warm.units)
        await asyncio.sleep(60)
        assert list(node.agent.held) == [warm.token]
        node.api.put(replace(shown, finished={"init": LATER}))
        await asyncio.sleep(15)
        assert node.agent.held == {}
        await node.delete(0, "calm")
        await asyncio.sleep(200)
        assert node.plugin is not None
        assert node.plugin.record.all() == ()


@virtually
async def test_an_init_container_may_wait_long_for_its_image(tmp_path: Path) -> None:
    """Check the time before a process uses its units: only kubelet's checkpoint lists them then."""
    async with prompt(tmp_path) as node:
        node.random.choice = lambda options: options[-1]  # type: ignore[method-assign]
        await node.create(0, 3)
        await asyncio.sleep(500)
        (pod,) = node.pods
        assert pod.containers[-1].lives


@virtually
async def test_a_share_with_a_program_is_not_an_init_containers_that_has_ended(tmp_path: Path) -> None:
    async with prompt(tmp_path) as node:
        pod = await made(node, 0, 3)
        warm = pod.containers[0]
        await allocator(node).pre_start(warm.units)
        node.agent.held[warm.token].processes.add()
        node.api.put(replace(node.api.pods[pod.pod.name], finished={"init": LATER}))
        await asyncio.sleep(60)
        assert list(node.agent.held) == [warm.token]


@virtually
async def test_a_sidecar_before_an_init_container_of_as_many_units_has_its_own_name(tmp_path: Path) -> None:
    async with prompt(tmp_path) as node:
        pod = await made(node, 3, 0)
        node.api.put(
            replace(
                pod.pod,
                containers=(Container("other"),),
                init_containers=(
                    Container("main", ("initContainers", 0), units=3),
                    Container("warm", ("initContainers", 1), units=3, stays=False),
                ),
            )
        )
        await asyncio.sleep(1)
        await allocator(node).pre_start(pod.containers[0].units)
        assert [share.labels["container"] for share in node.agent.held.values()] == ["main"]


@virtually
async def test_a_container_starts_again_while_the_api_server_is_away(tmp_path: Path) -> None:
    async with prompt(tmp_path) as node:
        pod = await made(node, 3, 0)
        await node.make_yield(0, "limit")
        await asyncio.sleep(1)
        node.api.up = False
        begun = asyncio.get_running_loop().time()
        await allocator(node).pre_start(pod.containers[0].units)
        assert asyncio.get_running_loop().time() - begun < 3
        assert [terms.yields for terms in node.agent.terms.values()] == ["limit"]


@virtually
async def test_a_pod_of_the_name_of_one_before_it_waits_for_the_api_server(tmp_path: Path) -> None:
    """Check the case that the watch still shows the earlier pod, which has other terms."""
    async with prompt(tmp_path) as node:
        pod = await made(node, 3, 0)
        node.api.up = False
        pod.pod = replace(pod.pod, uid="uid-of-the-next")
        with pytest.raises(PluginError, match="annotations of default/p1 cannot be read"):
            await allocator(node).pre_start(pod.containers[0].units)
        assert node.api.events[-1][:2] == ("", "ShareNotReady")


@pytest.mark.parametrize("cause", ["kubelet does not answer", "nobody is listed", "the API server has no such pod"])
@virtually
async def test_a_start_that_fails_is_told_to_the_pod_where_the_checkpoint_knows_it(tmp_path: Path, cause: str) -> None:
    async with prompt(tmp_path) as node:
        pod = await made(node, 3, 0)
        units = pod.containers[0].units
        if cause == "kubelet does not answer":
            node.listing.up = False
        elif cause == "nobody is listed":
            node.listing._listing = lambda: Listing((), frozenset())
            node.agent.up = False
        else:
            del node.api.pods[pod.pod.name]
        with pytest.raises(PluginError) as caught:
            await allocator(node).pre_start(units)
        assert node.api.events[-1] == (pod.pod.name, "ShareNotReady", f"container main: {caught.value}")


@virtually
async def test_a_start_that_fails_is_told_to_the_node_where_nobody_knows_the_pod(tmp_path: Path) -> None:
    async with prompt(tmp_path) as node:
        pod = await made(node, 3, 0)
        node.listing.synced = False
        node.listing.recorded = tuple
        with pytest.raises(PluginError, match="kubelet does not list yet which container holds these units"):
            await allocator(node).pre_start(pod.containers[0].units)
        name, reason, text = node.api.events[-1]
        assert (name, reason) == ("", "ShareNotReady")
        assert text.startswith("a container with 3 units does not start: kubelet does not list")


@virtually
@pytest.mark.parametrize("deleting", [True, False])
async def test_a_kubelet_that_lists_no_pod_is_believed_once_none_is_to_stay(tmp_path: Path, deleting: bool) -> None:
    async with prompt(tmp_path) as node:
        node.others.clear()  # the plugin was started by hand and has no pod
        node.api.remove("plugin")
        pod = await made(node, 3, 0)
        node.api.put(Pod("uid-other", "default", "other", phase="Running", deleting=deleting))
        assert pod.task is not None
        pod.task.cancel()
        pod.containers[0].created = pod.containers[0].lives = False
        node.pods.remove(pod)
        node.api.remove(pod.pod.name)
        await asyncio.sleep(60)
        assert bool(node.agent.held) == (not deleting)
