"""A pod of low priority makes room for another one and goes on afterwards; plugin, agent and programs are real."""

from __future__ import annotations

import pytest
from yielding_pods import MEMORY, PAUSE, becomes, held, starting

from rig.cluster.kubelet_pods import StartFailed
from rig.cluster.node import plugin_node
from rig.until import eventually

pytestmark = pytest.mark.timeout(240)


async def test_spare_units_let_a_pod_in_that_waits_until_there_is_room() -> None:
    async with plugin_node("1xH200", spare_percent=60) as node:
        assert node.kubelet.capacity == 160
        first = await node.admit("first", {"main": 80})
        await starting(node, first)
        second = await node.admit("second", {"main": 50})
        with pytest.raises(StartFailed, match="request 50 % does not fit on device 0: 20 % of its time is free"):
            await node.kubelet.start(second, "main")
        told = "ShareNotReady: container main: request 50 % does not fit on device 0: 20 % of its time is free"
        await eventually(lambda: any(text.startswith(told) for text in node.events("second")), node.log)
        node.kubelet.finish(first)
        node.show(first, {}, phase="Succeeded")
        await starting(node, second)
        assert list(await node.shares()) == ["second/main"]


async def test_a_container_whose_pod_has_not_its_time_back_starts_paused_and_goes_on_later() -> None:
    async with plugin_node("1xH200", spare_percent=100) as node:
        batch = await node.admit("batch", {"main": 70}, annotations=MEMORY)
        await starting(node, batch)
        node.show(batch, MEMORY | PAUSE)
        await becomes(node, "batch", lambda share: share.yielding)
        serve = await node.admit("serve", {"main": 60}, annotations=MEMORY)
        await starting(node, serve)
        node.show(batch, MEMORY)
        await eventually(lambda: any("ShareStaysPaused" in text for text in node.events("batch")), node.log)
        await node.kubelet.restart(batch, "main", patience_s=5)
        assert (await held(node, "batch")).yielding
        node.kubelet.finish(serve)
        node.show(serve, {}, phase="Succeeded")
        await becomes(node, "batch", lambda share: not share.paused)


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
