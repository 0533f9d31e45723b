"""Test the controller on a double of the API server: gates, leases, evictions, rules; the test plays the agents."""

import asyncio
from pathlib import Path

import pytest
from gates_world import World

from rig.until import eventually
from sharepod.kube import lease as leases


async def test_a_gang_is_released_whole_onto_one_rack_and_one_of_it_is_told(tmp_path: Path) -> None:
    names = [f"gang-{number}" for number in range(4)]
    async with World(tmp_path) as world:
        for number in range(4):
            world.add_node(f"n{number}", 2, rack=f"r{number // 2}")
        world.create("alone", 100)
        async with world.replica():
            await eventually(lambda: "Released" in world.told("alone"), "not released")
            assert world.said("alone", "Released") == f"its gate has gone: it goes to node {world.node_of('alone')}"
            for name in names[:3]:
                world.create(name, 100, gang="gang", gang_size="4")
            await eventually(lambda: world.told("gang-0") == {"GangIncomplete"}, "not told that it is incomplete")
            assert not any(map(world.is_released, names[:3]))
            world.create("gang-3", 100, gang="gang", gang_size="4")
            await eventually(lambda: any("Released" in world.told(name) for name in names), "not told")
            await eventually(lambda: all(map(world.is_released, names)), "gang not released")
            [told] = [world.said(name, "Released") for name in names if "Released" in world.told(name)]
            assert told.endswith(", all 4 of default/gang that it needs to 2 nodes")
            racks = {int(world.node_of(name)[1]) // 2 for name in names}
            assert racks == {1 - int(world.node_of("alone")[1]) // 2}
            assert len({device for name in names for device in world.devices_of(name)}) == 4


async def test_who_is_held_by_others_gates_too_waits_for_them_first_and_takes_no_room_meanwhile(tmp_path: Path) -> None:
    async with World(tmp_path, n1=1) as world:
        for name in ("gang-0", "gang-1"):
            world.create(name, 50, gang="gang", gang_size="2")
        held = world.body("gang-1")
        held["spec"]["schedulingGates"].insert(0, {"name": "kueue.x-k8s.io/admission"})
        world.server.put(held)
        async with world.replica():
            await eventually(lambda: world.told("gang-0") == {"GangIncomplete"}, "not told that it is incomplete")
            world.create("alone", 100)
            await eventually(lambda: world.is_released("alone"), "what others hold takes room")
            world.server.delete("alone")
            held["spec"]["schedulingGates"].pop(0)
            world.server.put(held)
            await eventually(lambda: world.is_released("gang-0") and world.is_released("gang-1"), "not released")


async def test_a_lower_pod_is_paused_for_a_higher_one_and_resumed_when_it_has_gone(tmp_path: Path) -> None:
    async with World(tmp_path, n1=1) as world:
        world.create("low", 100, memory="1Gi")
        async with world.replica() as replica:
            counters = replica.keeper.state.counters
            await world.run_released("low")
            world.create("high", 60, priority=10, memory="1Gi")
            await eventually(lambda: world.yields("low") == "pause" and world.is_released("high"), "no room was made")
            world.run("high")
            await asyncio.sleep(1.0)
            assert world.yields("low") == "pause"
            world.server.delete("high")
            await eventually(lambda: not world.yields("low"), "not resumed")
            await eventually(
                lambda: world.told("low") == {"Released", "Paused", "Resumed"}, f"told {world.told('low')}"
            )
            await eventually(lambda: counters.yields["resumed"] == 1, f"counted {counters.yields}")
            assert (counters.yields["paused"], counters.yields["evicted"]) == (1, 0)
            assert (counters.actions["release", "written"], counters.actions["yield", "written"]) == (2, 2)
            assert world.server.registry.evicted == []


async def test_evictions_respect_disruption_budgets(tmp_path: Path) -> None:
    async with World(tmp_path, n1=2) as world:
        world.create("one", 100)
        world.create("two", 100)
        async with world.replica() as replica:
            counters = replica.keeper.state.counters
            await world.run_released("one", "two")
            world.guard("one")
            world.create("high", 100, priority=10)
            await eventually(lambda: world.is_released("high"), f"no room was made: {world.server.registry.evicted}")
            assert world.server.registry.evicted == ["two"]
            assert world.told("two") >= {"Evicted"}
            assert counters.yields["evicted"] == counters.evictions["yield"] == 1
            world.run("high")
            world.create("higher", 200, priority=20)
            await eventually(lambda: counters.actions["evict", "budget"], f"counted {counters.actions}")
            await eventually(lambda: "NotEvicted" in world.told("one"), "not told")
            assert "a disruption budget keeps it: for default/high" in world.said("one", "NotEvicted")


async def test_of_two_replicas_one_decides_and_the_other_goes_on_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "TAKE_AFTER_S", 1.5)
    monkeypatch.setattr(leases, "RENEW_WITHIN_S", 1.0)
    monkeypatch.setattr(leases, "RENEW_S", 0.2)
    async with World(tmp_path, n1=4) as world, world.replica("one") as first:
        await eventually(first.lease.is_held, "nobody leads")
        async with world.replica("two") as second:
            world.create("a", 60)
            await eventually(lambda: world.is_released("a"), "not released")
            assert (first.keeper.rounds > 0, second.keeper.rounds) == (True, 0)
            await first.kill()
            world.create("b", 60)
            await eventually(lambda: world.is_released("b"), "the other does not go on")
            assert second.lease.is_held()
            assert not first.lease.is_held()
            assert world.devices_of("a") != world.devices_of("b"), "what the first decided counts"


async def test_while_the_api_server_is_away_nothing_is_decided_and_all_of_it_when_it_is_back(tmp_path: Path) -> None:
    async with World(tmp_path, n1=4) as world, world.replica() as replica:
        await eventually(replica.lease.is_held, "nobody leads")
        assert not replica.lease.trouble
        await world.server.stop()
        world.create("a", 60)
        await eventually(lambda: replica.lease.trouble, "not told that the lease cannot be read")
        await world.server.start()
        await eventually(lambda: world.is_released("a"), "not released")
        await eventually(lambda: not replica.lease.trouble, "still told")


async def test_a_refused_write_is_tried_again_and_a_node_that_cannot_be_selected_gets_nobody(tmp_path: Path) -> None:
    async with World(tmp_path, n1=4) as world, world.replica() as replica:
        await eventually(lambda: replica.lease.is_held() and replica.observer.listed, "nobody leads")
        await asyncio.sleep(0.3)
        world.create("a", 60)
        world.server.faults.refuse(503, times=3)
        await eventually(lambda: world.is_released("a"), "not released")
        node = world.server.nodes["", "n1"]
        world.server.put_node({**node, "metadata": {**node["metadata"], "labels": {}}})  # no selector can match it now
        await eventually(lambda: (n1 := replica.cluster.node("n1")) and not n1.hostname, "not seen")
        world.create("b", 60)
        actions = replica.keeper.state.counters.actions
        await eventually(lambda: actions["release", "invalid"] == 1, f"counted {actions}")
        assert not world.is_released("b")


async def test_what_cannot_be_is_told_and_stays_gated(tmp_path: Path) -> None:
    async with World(tmp_path, n1=4) as world:
        world.create("of-a-gang", 60, gang="g", gang_size="0")
        world.create("wrong", 60, limit="10")
        world.create("two", 60, gang="h", gang_size="2")
        world.create("three", 60, gang="h", gang_size="3")
        world.create("right", 60)
        async with world.replica():
            for name in ("of-a-gang", "wrong"):
                await eventually(lambda name=name: world.told(name) == {"GateRefused"}, "not told")  # type: ignore[misc]
            disagree = "two", "three"
            await eventually(lambda: "GateRefused" in set.union(*map(world.told, disagree)), "not told of members")
            await eventually(lambda: world.is_released("right"), "not released")
            assert not any(map(world.is_released, ("of-a-gang", "wrong", *disagree)))
