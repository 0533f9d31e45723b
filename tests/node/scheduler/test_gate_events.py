"""What users are told by Events of what was decided about their pods: each reason once, not with every round."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from gates_world import RULES, World, in_world

from rig.until import eventually

if TYPE_CHECKING:
    from pathlib import Path

SOME_ROUNDS_S = 1.5
NAMESPACE, NAME = RULES.split("/")


def put_rules(world: World, text: str) -> None:
    world.server.put_config_map(NAMESPACE, NAME, {"queues.yaml": text})


def test_a_pod_is_told_where_it_goes_and_of_a_gang_one_for_all(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.add_node("n1", 2)
        world.add_node("n2", 2)
        world.create("alone", 100)
        async with world.replica():
            await eventually(lambda: "Released" in world.told("alone"), "not told")
            assert world.said("alone", "Released") == f"its gate has gone: it goes to node {world.node_of('alone')}"
            names = [f"gang-{number}" for number in range(3)]
            for name in names:
                world.create(name, 100, gang="gang", gang_size="3")
            await eventually(lambda: any("Released" in world.told(name) for name in names), "not told")
            await eventually(lambda: all(map(world.is_released, names)), "not released")
            told = [world.said(name, "Released") for name in names if "Released" in world.told(name)]
            assert len(told) == 1
            assert told[0].endswith(", all 3 of default/gang that it needs to 2 nodes")

    in_world(tmp_path, test)


def test_why_a_pod_waits_is_told_once_and_again_when_it_is_another_reason(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.add_node("n1", 1)
        world.create("first", 100)
        async with world.replica() as replica:
            await eventually(lambda: world.is_released("first"), "not released")
            world.run("first")
            world.create("second", 100)
            await eventually(lambda: "Waits" in world.told("second"), "not told that it waits")
            rounds = replica.keeper.rounds
            await asyncio.sleep(SOME_ROUNDS_S)
            put_rules(world, "default: {cap: 0.5}")
            await eventually(lambda: "QueueCap" in world.told("second"), "not told of the cap")
            await asyncio.sleep(SOME_ROUNDS_S)
            assert replica.keeper.rounds >= rounds + 2
            assert [event["count"] for event in world.events("second")] == [1, 1]
            world.create("huge", 400)
            await eventually(lambda: "NeverFits" in world.told("huge") or "QueueCap" in world.told("huge"), "not told")
            put_rules(world, "")
            await eventually(lambda: "NeverFits" in world.told("huge"), "not told that it never fits")

    in_world(tmp_path, test)


def test_an_elastic_gang_is_told_when_it_grows_and_when_members_make_room(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.add_node("n1", 4)
        world.create("first", 100)
        world.create("second", 100)
        async with world.replica() as replica:
            for name in ("first", "second"):
                await eventually(lambda name=name: world.is_released(name), "not released")  # type: ignore[misc]
                world.run(name)
            names = [f"gang-{number}" for number in range(4)]

            def grown() -> str:
                return "; ".join(world.said(name, "GangGrown") for name in names)

            for name in names:
                world.create(name, 100, gang="gang", gang_size="4", gang_min="2")
            await eventually(lambda: sum(map(world.is_released, names)) == 2, "the least is not released")
            for name in filter(world.is_released, names):
                world.run(name)
            await asyncio.sleep(SOME_ROUNDS_S)
            assert sum(map(world.is_released, names)) == 2, "there is room for no more"
            world.server.delete("first")
            world.server.delete("second")
            await eventually(lambda: all(map(world.is_released, names)), "it does not grow")
            for name in names:
                world.run(name)
            await eventually(lambda: "4 in all: it needs 2 to run" in grown(), f"not told that it grows: {grown()}")
            await eventually(lambda: sum(pod.running for pod in replica.cluster.pods()) == 4, "not seen to run")
            world.create("equal", 200)
            await eventually(lambda: world.is_released("equal"), "it does not give back what others want")
            assert len(world.server.registry.evicted) == 2
            left = [name for name in names if name not in world.server.registry.evicted]
            says = "2 of its members make room for default/equal of priority 0: the gang goes on with 2"
            await eventually(
                lambda: says in {world.said(name, "GangShrunk") for name in left}, "not told that it shrinks"
            )
            evicted = world.server.registry.evicted
            await eventually(lambda: all("Evicted" in world.told(name) for name in evicted), "not told who was evicted")
            assert all(world.yields(name) == "" for name in left)
            assert replica.keeper.memory.tally.gangs["shrunk"] == 1

    in_world(tmp_path, test)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("default: {share: 2}", "'share' is no rule: give weight"),
        ("default: {weight: -1}", "weight is '-1': give a number above 0"),
        ("default: [", "no YAML"),
        ("default: {longest-run: never}", "give a time"),
    ],
)
def test_rules_that_cannot_be_are_told_on_the_config_map_and_the_last_good_ones_stay(
    tmp_path: Path, text: str, says: str
) -> None:
    async def test(world: World) -> None:
        world.add_node("n1", 1)
        put_rules(world, "default: {cap: 1, weight: 2}")
        async with world.replica() as replica:
            await eventually(lambda: replica.keeper.queues.default.weight == 2, "not read")
            await eventually(lambda: "QueuesRead" in world.told(NAME), "not told that they are read")
            put_rules(world, text)
            await eventually(lambda: "QueuesRefused" in world.told(NAME), "not told that they are refused")
            [event] = world.events(NAME, "QueuesRefused")
            assert says in event["message"]
            assert (event["type"], event["count"]) == ("Warning", 1)
            about = event["involvedObject"]
            assert (about["kind"], about["namespace"], about["name"]) == ("ConfigMap", NAMESPACE, NAME)
            assert (replica.keeper.queues.default.cap_milli, replica.keeper.queues.default.weight) == (1000, 2.0)
            await asyncio.sleep(SOME_ROUNDS_S)
            assert len(world.events(NAME)) == 2

    in_world(tmp_path, test)


def test_a_cap_below_what_runs_ends_nothing_and_is_told_once(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.add_node("n1", 4)
        names = ["a", "b", "c"]
        for name in names:
            world.create(name, 100)
        async with world.replica() as replica:
            for name in names:
                await eventually(lambda name=name: world.is_released(name), "not released")  # type: ignore[misc]
                world.run(name)
            put_rules(world, "default: {cap: 1}")
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
            assert replica.keeper.memory.tally.orders["evict", "written"] == 0

    in_world(tmp_path, test)


def test_a_gang_that_does_not_come_to_run_is_told_and_starts_anew(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.add_node("n1", 2)
        for name in ("gang-0", "gang-1"):
            world.create(name, 100, gang="gang", gang_size="2", gang_timeout="1s")
        async with world.replica() as replica:
            await eventually(lambda: world.is_released("gang-0") and world.is_released("gang-1"), "not released")
            world.run("gang-0")
            await eventually(lambda: "GangTimedOut" in world.told("gang-0") & world.told("gang-1"), "not told")
            assert "1 of 2 members ran 1 s after their release" in world.said("gang-1", "GangTimedOut")
            await eventually(lambda: sorted(world.server.registry.evicted) == ["gang-0", "gang-1"], "not ended")
            assert replica.keeper.memory.tally.evictions["timeout"] == 2

    in_world(tmp_path, test)
