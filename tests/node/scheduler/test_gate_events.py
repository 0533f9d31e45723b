"""Test the Events for users and operators, each reason once, and the rules of queues that some Events are about."""

import asyncio
from pathlib import Path

from gates_world import RULES, Replica, World

from rig.until import eventually

SOME_ROUNDS_S = 1.5
NAMESPACE, NAME = RULES.split("/")


async def test_why_a_pod_waits_is_told_once_and_again_when_it_is_another_reason(tmp_path: Path) -> None:
    async with World(tmp_path, n1=1) as world:
        world.create("first", 100)
        async with world.replica() as replica:
            await world.run_released("first")
            world.create("second", 100)
            await eventually(lambda: "Waits" in world.told("second"), "not told that it waits")
            rounds = replica.keeper.rounds
            await asyncio.sleep(SOME_ROUNDS_S)
            world.put_rules("default: {cap: 0.5}")
            await eventually(lambda: "QueueCap" in world.told("second"), "not told of the cap")
            await asyncio.sleep(SOME_ROUNDS_S)
            assert replica.keeper.rounds >= rounds + 2
            assert [event["count"] for event in world.events("second")] == [1, 1]
            world.create("huge", 400)
            await eventually(lambda: "NeverFits" in world.told("huge") or "QueueCap" in world.told("huge"), "not told")
            world.put_rules("")
            await eventually(lambda: "NeverFits" in world.told("huge"), "not told that it never fits")


async def test_rules_that_cannot_be_are_told_on_the_config_map_and_the_last_good_ones_stay(tmp_path: Path) -> None:
    async with World(tmp_path, n1=1) as world:
        world.put_rules("default: {cap: 1, weight: 2}")
        async with world.replica() as replica:
            await eventually(lambda: replica.keeper.queues.default.weight == 2, "not read")
            await eventually(lambda: "QueuesRead" in world.told(NAME), "not told that they are read")
            world.put_rules("default: {weight: -1}")
            await eventually(lambda: "QueuesRefused" in world.told(NAME), "not told that they are refused")
            [event] = world.events(NAME, "QueuesRefused")
            assert "weight is '-1': give a number above 0" in event["message"]
            assert (event["type"], event["count"]) == ("Warning", 1)
            about = event["involvedObject"]
            assert (about["kind"], about["namespace"], about["name"]) == ("ConfigMap", NAMESPACE, NAME)
            assert (replica.keeper.queues.default.cap_milli, replica.keeper.queues.default.weight) == (1000, 2.0)
            await asyncio.sleep(SOME_ROUNDS_S)
            assert len(world.events(NAME)) == 2


async def test_a_cap_below_what_runs_ends_nothing_and_is_told_once(tmp_path: Path) -> None:
    async with World(tmp_path, n1=4) as world:
        names = ["a", "b", "c"]
        for name in names:
            world.create(name, 100)
        async with world.replica() as replica:
            await world.run_released(*names)
            world.put_rules("default: {cap: 1}")
            await eventually(lambda: "QueueOverCap" in world.told(NAME), "not told")
            says = "queue default holds 3 devices, its cap is 1: nothing of it ends"
            assert says in world.said(NAME, "QueueOverCap")
            world.create("more", 100)
            await eventually(lambda: "QueueCap" in world.told("more"), "not told")
            await asyncio.sleep(SOME_ROUNDS_S)
            assert [event["count"] for event in world.events(NAME, "QueueOverCap")] == [1]
            assert world.server.registry.evicted == []
            assert not any(world.yields(name) for name in names)
            for name in names:
                assert not world.is_released("more")
                world.server.delete(name)
            await eventually(lambda: world.is_released("more"), "not released when enough has ended")
            assert replica.keeper.state.counters.actions["evict", "written"] == 0


async def report_for_ever(world: World, replica: Replica) -> None:
    """Let the agent report repeatedly what runs on its node."""
    agent = world.agents["n1"]
    while True:
        agent.shares = {pod.uid: (pod, pod.chosen[0]) for pod in replica.cluster.pods() if pod.place and pod.chosen}
        await replica.report(world.agents)
        await asyncio.sleep(0.2)


async def test_a_share_that_is_measured_idle_yields_to_an_equal_and_one_that_works_does_not(tmp_path: Path) -> None:
    async with World(tmp_path, n1=2) as world:
        world.put_rules("default: {idle: 2s}")
        world.agents["n1"].used = {"works": 40_000}
        world.create("works", 100, memory="1Gi")
        world.create("sleeps", 100, memory="1Gi")
        async with world.replica() as replica, asyncio.TaskGroup() as group:
            await eventually(lambda: replica.keeper.queues.default.idle_s == 2.0, "rules not read")
            await world.run_released("works", "sleeps")
            reports = group.create_task(report_for_ever(world, replica))
            await eventually(lambda: replica.runs("works", "sleeps"), "not seen to run")
            await asyncio.sleep(3.0)
            assert (world.yields("works"), world.yields("sleeps")) == ("", ""), "nobody waits"
            world.create("next", 100, memory="1Gi")
            await eventually(lambda: world.is_released("next"), "nobody yields")
            assert (world.yields("works"), world.yields("sleeps")) == ("", "pause")
            world.create("after", 100, memory="1Gi")
            await eventually(lambda: "Waits" in world.told("after"), "not told")
            await asyncio.sleep(SOME_ROUNDS_S)
            assert world.yields("works") == "", "it works"
            reports.cancel()
