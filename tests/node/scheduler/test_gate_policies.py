"""The rules of queues as the live controller keeps them: longest waits and runs, idle shares, measured use."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from gates_world import RULES, Replica, World, in_world

from rig.until import eventually

if TYPE_CHECKING:
    from pathlib import Path


def rule(world: World, text: str) -> None:
    namespace, name = RULES.split("/")
    world.server.put_config_map(namespace, name, {"queues.yaml": text})


async def released_and_run(world: World, *names: str) -> None:
    for name in names:
        await eventually(lambda name=name: world.is_released(name), f"{name} is not released")  # type: ignore[misc]
        world.run(name)


def seen_to_run(replica: Replica, *names: str) -> bool:
    return {pod.name for pod in replica.cluster.pods() if pod.running} >= set(names)


async def report_use(world: World, replica: Replica, used: dict[str, int]) -> None:
    """Have agents report for ever that pods use so many millipercent of their devices."""
    while True:
        for name, agent in world.agents.items():
            agent.shares = {
                pod.uid: (pod, pod.chosen[0]) for pod in replica.cluster.pods() if pod.place == name and pod.chosen
            }
            use = agent.use()
            assert use is not None
            devices = tuple(
                replace(
                    device,
                    shares=tuple(
                        replace(share, used_1m_millipercent=used.get(share.terms.pod, 0)) for share in device.shares
                    ),
                )
                for device in use.devices
            )
            replica.cluster.set_use(name, replace(use, devices=devices))
        await asyncio.sleep(0.2)


def test_who_has_waited_for_longest_goes_before_priority_where_the_rule_says_so(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        rule(world, "default: {longest-wait: 3s}")
        world.add_node("n1", 1)
        world.create("first", 100)
        async with world.replica() as replica:
            await eventually(lambda: replica.keeper.queues.default.longest_wait_s == 3.0, "rules not read")
            await released_and_run(world, "first")
            world.create("low", 100, priority=-1)
            await asyncio.sleep(4.5)
            world.create("high", 100, priority=0)
            await eventually(lambda: "Waits" in world.told("high"), "not told")
            world.server.delete("first")
            await eventually(lambda: world.is_released("low") or world.is_released("high"), "nobody is released")
            assert world.is_released("low")
            assert not world.is_released("high")
            waiting = {job.title: why for job, why in replica.keeper.memory.waiting}
            assert "default/high" in waiting

    in_world(tmp_path, test)


def test_of_those_who_have_not_waited_too_long_the_higher_goes_first(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.add_node("n1", 1)
        world.create("first", 100)
        async with world.replica():
            await released_and_run(world, "first")
            world.create("low", 100, priority=-1)
            await asyncio.sleep(1.5)
            world.create("high", 100, priority=0)
            await eventually(lambda: "Waits" in world.told("high"), "not told")
            world.server.delete("first")
            await eventually(lambda: world.is_released("low") or world.is_released("high"), "nobody is released")
            assert world.is_released("high")

    in_world(tmp_path, test)


def test_who_has_run_for_too_long_yields_to_an_equal_and_goes_on_when_nobody_waits(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        rule(world, "default: {longest-run: 2s}")
        world.add_node("n1", 1)
        world.create("long", 100, memory="1Gi")
        async with world.replica() as replica:
            await eventually(lambda: replica.keeper.queues.default.longest_run_s == 2.0, "rules not read")
            await released_and_run(world, "long")
            await eventually(lambda: seen_to_run(replica, "long"), "not seen to run")
            world.create("next", 100, memory="1Gi")
            await eventually(lambda: world.yields("long") == "pause", "it does not yield")
            await released_and_run(world, "next")
            await asyncio.sleep(1.0)
            assert world.yields("long") == "pause", "somebody runs in its place"
            world.server.delete("next")
            await eventually(lambda: world.yields("long") == "", "it does not go on though nobody waits")
            assert world.server.registry.evicted == []

    in_world(tmp_path, test)


def test_before_its_longest_run_nobody_yields_to_an_equal(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        rule(world, "default: {longest-run: 1h}")
        world.add_node("n1", 1)
        world.create("long", 100, memory="1Gi")
        async with world.replica() as replica:
            await eventually(lambda: replica.keeper.queues.default.longest_run_s == 3600.0, "rules not read")
            await released_and_run(world, "long")
            world.create("next", 100, memory="1Gi")
            await eventually(lambda: "Waits" in world.told("next"), "not told")
            await asyncio.sleep(2.0)
            assert world.yields("long") == ""

    in_world(tmp_path, test)


def test_who_has_run_for_too_long_is_ended_where_that_is_the_rule_though_nobody_waits(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        rule(world, "default: {longest-run: 1s, overrun: end}")
        world.add_node("n1", 1)
        world.create("long", 100)
        async with world.replica() as replica:
            await eventually(lambda: replica.keeper.queues.default.overrun == "end", "rules not read")
            await released_and_run(world, "long")
            await eventually(lambda: world.server.registry.evicted == ["long"], "it is not ended")
            await eventually(lambda: "Evicted" in world.told("long"), "not told")
            assert world.said("long", "Evicted") == "it has run for longer than queue default lets it"
            assert replica.keeper.memory.tally.evictions["overrun"] == 1
            assert replica.keeper.memory.tally.yields["evicted"] == 0

    in_world(tmp_path, test)


def test_a_share_that_is_measured_idle_yields_to_an_equal_and_one_that_works_does_not(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        rule(world, "default: {idle: 2s}")
        world.add_node("n1", 2)
        world.create("works", 100, memory="1Gi")
        world.create("sleeps", 100, memory="1Gi")
        async with world.replica() as replica:
            await eventually(lambda: replica.keeper.queues.default.idle_s == 2.0, "rules not read")
            await released_and_run(world, "works", "sleeps")
            reports = asyncio.create_task(report_use(world, replica, {"works": 40_000}))
            try:
                await eventually(lambda: seen_to_run(replica, "works", "sleeps"), "not seen to run")
                await asyncio.sleep(3.0)
                assert (world.yields("works"), world.yields("sleeps")) == ("", ""), "nobody waits"
                world.create("next", 100, memory="1Gi")
                await eventually(lambda: world.is_released("next"), "nobody yields")
                assert (world.yields("works"), world.yields("sleeps")) == ("", "pause")
                world.create("after", 100, memory="1Gi")
                await eventually(lambda: "Waits" in world.told("after"), "not told")
                await asyncio.sleep(1.5)
                assert world.yields("works") == "", "it works"
            finally:
                reports.cancel()
                [end] = await asyncio.gather(reports, return_exceptions=True)
                assert isinstance(end, asyncio.CancelledError), end

    in_world(tmp_path, test)
