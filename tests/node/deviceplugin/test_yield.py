"""Test that a low-priority pod yields to another and goes on afterwards, with real plugin, agent and programs."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from rig.cluster.kubelet_pods import FakePod
from rig.cluster.node import PluginNode, plugin_node
from rig.until import eventually
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

LIMIT, PAUSE = {"sharepod.io/yield": "limit"}, {"sharepod.io/yield": "pause"}
MEMORY = {"sharepod.io/memory": "20Gi"}


@contextlib.asynccontextmanager
async def program(node: PluginNode, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program that always wants the device in a pod's share."""
    share = await held(node, name)
    async with grpc.aio.insecure_channel(f"unix:{node.runtime}/agent.sock") as channel:
        stub: rpc.NodeServiceAsyncStub = rpc.NodeServiceStub(channel)
        request = pb.RegisterShareRequest(id=share.id, devices=[pb.DeviceAsk(request_millipercent=1000)])
        there = await stub.RegisterShare(request, timeout=10)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SHAREPOD_", "SIMGPU_"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sharepod.cli.demo.program", "--seconds", "600", "--kernel-us", "2000",
        env={**inherited, **there.environment, "LD_PRELOAD": there.hook_path}, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await becomes(node, name, lambda share: bool(share.processes and share.devices[0].usage.launches))
        yield process
        assert process.returncode is None, "nothing is restarted"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def held(node: PluginNode, name: str) -> pb.Share:
    return (await node.shares())[f"{name}/main"]


async def becomes(node: PluginNode, name: str, condition: Callable[[pb.Share], bool]) -> None:
    """Wait until a pod's share meets the condition."""

    async def is_so() -> bool:
        return condition(await held(node, name))

    await eventually(is_so, node.log)


async def used_percent(node: PluginNode, name: str, for_s: float) -> float:
    """Return how many percent of its device a pod's share uses over this time."""
    loop = asyncio.get_running_loop()
    begun_s, begun_ns = loop.time(), (await held(node, name)).devices[0].usage.used_ns
    await asyncio.sleep(for_s)
    used_ns = (await held(node, name)).devices[0].usage.used_ns - begun_ns
    return used_ns / 1e7 / (loop.time() - begun_s)


async def uses(node: PluginNode, name: str, more_than_percent: float) -> None:
    """Wait until a pod's share uses more than this percentage of its device for half a second."""

    async def enough() -> bool:
        return await used_percent(node, name, 0.5) > more_than_percent

    await eventually(enough, node.log)


async def rests(node: PluginNode, name: str) -> None:
    """Wait until a pod's work on its device has ended, and its share uses nothing for half a second."""

    async def nothing() -> bool:
        return await used_percent(node, name, 0.5) < 2

    await eventually(nothing, node.log)


async def starting(node: PluginNode, pod: FakePod) -> None:
    await node.kubelet.start(pod, "main", patience_s=30)


@pytest.mark.early
async def test_a_pod_is_limited_then_paused_for_another_and_goes_on_when_that_is_gone() -> None:
    async with plugin_node("1xH200", spare_percent=100) as node:
        assert node.kubelet.capacity == 200  # the spare units admit a pod that then waits for room
        batch = await node.admit("batch", {"main": 50}, annotations=MEMORY)
        await starting(node, batch)
        before = await held(node, "batch")
        async with program(node, "batch"):
            await uses(node, "batch", 60)  # a share that is alone may use all of the device

            node.show(batch, MEMORY | LIMIT)
            await becomes(node, "batch", lambda share: share.devices[0].limit_millipercent == 50_000)
            assert await used_percent(node, "batch", 2) < 52
            await uses(node, "batch", 35)

            serve = await node.admit("serve", {"main": 60})  # kubelet has the units, but the agent has no time left
            start = asyncio.create_task(starting(node, serve))
            await asyncio.sleep(1)
            assert not start.done()
            assert list(await node.shares()) == ["batch/main"]

            node.show(batch, MEMORY | PAUSE)
            await becomes(node, "batch", lambda share: share.paused and share.yielding)
            await start
            await rests(node, "batch")
            async with program(node, "serve"):
                assert (await held(node, "serve")).devices[0].device_uuid == before.devices[0].device_uuid
                await uses(node, "serve", 60)

                await node.end(node.agent, signal.SIGKILL)
                await node.start_agent()
                assert await used_percent(node, "batch", 0.5) < 2
                share = await held(node, "batch")
                assert (share.id, share.paused, share.yielding) == (before.id, True, True)

                node.show(batch, MEMORY)
                stays = (
                    f"ShareStaysPaused: container main: share {before.id} stays paused: its request 50 % does not fit "
                    "on device 0 again, 40 % of its time is free"
                )
                await eventually(lambda: any(text.startswith(stays) for text in node.events("batch")), node.log)
                assert (await held(node, "batch")).yielding
                await node.end(node.plugin, signal.SIGKILL)
                await node.start_plugin()
                await uses(node, "serve", 60)
                assert (await held(node, "batch")).yielding
            node.kubelet.finish(serve)
            node.show(serve, {}, phase="Succeeded")
            await becomes(node, "batch", lambda share: not share.paused)
            assert list(await node.shares()) == ["batch/main"]
            await uses(node, "batch", 60)
            share = await held(node, "batch")
            assert (share.id, share.yielding, share.devices[0].limit_millipercent) == (before.id, False, 100_000)
            resumed = f"ShareResumed: container main: share {before.id} runs"
            await eventually(lambda: resumed in node.events("batch"), node.log)


async def test_the_pods_of_a_gang_are_one_to_the_agent_unless_they_may_come_and_go() -> None:
    gang = {"sharepod.io/gang": "job", "sharepod.io/gang-size": "2"}
    elastic = gang | {"sharepod.io/gang": "crowd", "sharepod.io/gang-min": "1"}
    async with plugin_node("2xH200") as node:
        for name, annotations in (("a", gang), ("b", gang), ("c", elastic), ("d", {})):
            await starting(node, await node.admit(name, {"main": 20}, annotations=annotations))
        found = {name: (await held(node, name)).gang for name in "abcd"}
        namespace = (await held(node, "a")).labels["namespace"]
        assert found == {"a": f"{namespace}/job", "b": f"{namespace}/job", "c": "", "d": ""}

        joins = await node.admit("e", {"main": 20})
        await starting(node, joins)
        node.show(joins, gang)
        await becomes(node, "e", lambda share: share.gang == f"{namespace}/job")
