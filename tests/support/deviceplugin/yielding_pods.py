"""Pods that yield to others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rig.cluster.kubelet_pods import FakePod
    from rig.cluster.node import PluginNode
    from sharepod.proto import v1_pb2 as pb


LIMIT, PAUSE = {"sharepod.io/yield": "limit"}, {"sharepod.io/yield": "pause"}


MEMORY = {"sharepod.io/memory": "20Gi"}


async def held(node: PluginNode, name: str) -> pb.Share:
    return (await node.shares())[f"{name}/main"]


async def becomes(node: PluginNode, name: str, condition: object, timeout_s: float = 30) -> float:
    """Wait until a pod's share is so; return for how long."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    while not condition(await held(node, name)):  # type: ignore[operator]
        assert loop.time() - begun_s < timeout_s, f"{await held(node, name)}\n{node.log()}"
        await asyncio.sleep(0.05)
    return loop.time() - begun_s


async def starting(node: PluginNode, pod: FakePod) -> None:
    await node.kubelet.start(pod, "main", patience_s=30)
