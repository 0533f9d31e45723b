"""Test replicas of the controller: what a successor learns from the API server, clocks that jump, late writes."""

import time
from pathlib import Path

import pytest
from gates_world import World

from rig.until import eventually
from sharepod.kube import lease as leases
from sharepod.scheduler.state.usage import SILENT_S

DAY_S = 86_400.0


async def test_who_was_made_first_goes_first_whichever_replica_decides(tmp_path: Path) -> None:
    async with World(tmp_path, n1=1) as world:
        world.create("runs", 100, ago_s=200)
        world.bind("runs", "GPU-n1-0", runs_s=100)
        world.create("a-young", 100, ago_s=10)
        world.create("z-old", 100, ago_s=100)
        async with world.replica():
            await eventually(lambda: "Waits" in world.told("a-young") & world.told("z-old"), "not told")
            world.server.delete("runs")
            await eventually(lambda: world.is_released("a-young") or world.is_released("z-old"), "nobody is released")
            assert world.is_released("z-old")


async def test_a_replica_that_starts_anew_knows_since_when_pods_run_and_that_none_ran_before_it_was_made(
    tmp_path: Path,
) -> None:
    async with World(tmp_path, n1=2) as world:
        world.put_rules("default: {longest-run: 1h, overrun: end}")
        world.create("long", 100, ago_s=7300)
        world.bind("long", "GPU-n1-0", runs_s=7200)
        world.create("fresh", 100, ago_s=60)
        world.bind("fresh", "GPU-n1-1", runs_s=7200)
        async with world.replica() as replica:
            await eventually(lambda: world.server.registry.evicted, "nobody is ended")
            rounds = replica.keeper.rounds
            await eventually(lambda: replica.keeper.rounds >= rounds + 2, "no more rounds")
            assert world.server.registry.evicted == ["long"]
            await eventually(lambda: "Evicted" in world.told("long"), "not told")
            assert world.said("long", "Evicted") == "it has run for longer than queue default lets it"
            counters = replica.keeper.state.counters
            assert (counters.evictions["overrun"], counters.yields["evicted"]) == (1, 0)


@pytest.mark.parametrize("jump_s", [3 * DAY_S, -3 * DAY_S], ids=["ahead", "back"])
async def test_a_clock_that_jumps_is_told_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, jump_s: float
) -> None:
    async with World(tmp_path) as world:
        ahead_s = 0.0
        world.put_rules("default: {longest-wait: 1d, longest-run: 1d, overrun: end}")
        world.add_node("n1", 1)
        world.create("first", 100)
        async with world.replica(unix=lambda: time.time() + ahead_s) as replica:
            await eventually(lambda: world.is_released("first"), "not released")
            world.create("a-before", 100, ago_s=5)
            await eventually(lambda: "Waits" in world.told("a-before"), "not told")
            ahead_s = jump_s
            world.run("first")
            world.create("b-after", 100)
            await eventually(lambda: "Waits" in world.told("b-after"), "not told")
            rounds = replica.keeper.rounds
            await eventually(lambda: replica.keeper.rounds >= rounds + 2, "no more rounds")
            assert world.server.registry.evicted == [], "it has not run for a day"
            world.server.delete("first")
            await eventually(
                lambda: world.is_released("a-before") or world.is_released("b-after"), "nobody is released"
            )
            assert world.is_released("a-before"), "the other has not waited for a day"
    [told] = [record for record in caplog.records if record.message == "wall clock has jumped"]
    assert told.__dict__["seconds"] == pytest.approx(jump_s, abs=1.0)


async def test_before_it_has_seen_all_nodes_it_decides_nothing(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        world.server.faults.delay(2.0, "get nodes")
        world.add_node("n1", 4)
        world.create("a", 400)
        async with world.replica() as replica:
            await eventually(lambda: replica.lease.is_held() and list(replica.cluster.pods()), "pods are not seen")
            await eventually(lambda: world.is_released("a"), "not released")
            assert world.told("a") <= {"Released"}


async def test_a_gang_that_another_replica_released_is_timed_by_the_next(tmp_path: Path) -> None:
    async with World(tmp_path, n1=4) as world:
        for gang, runs in (("late", 1), ("well", 2)):
            for number in range(2):
                name = f"{gang}-{number}"
                world.create(name, 100, ago_s=90, gang=gang, gang_size="2", gang_timeout="2s")
                device = f"GPU-n1-{number + 2 * (gang == 'well')}"
                world.bind(name, device, runs_s=60 if number < runs else None)
        async with world.replica() as replica:
            await eventually(lambda: "GangTimedOut" in world.told("late-0") & world.told("late-1"), "not told")
            assert "1 of 2 members ran 2 s after their release" in world.said("late-1", "GangTimedOut")
            await eventually(lambda: sorted(world.server.registry.evicted) == ["late-0", "late-1"], "not ended")
            assert replica.keeper.state.counters.evictions["timeout"] == 2


async def test_who_decides_no_more_writes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_WITHIN_S", 1.0)
    monkeypatch.setattr(leases, "RENEW_S", 0.2)
    async with World(tmp_path, n1=4) as world, world.replica() as replica:
        await eventually(lambda: replica.lease.is_held() and replica.observer.listed, "nobody leads")
        world.server.faults.refuse(503, times=10_000, only="patch pods")
        world.create("a", 60)
        await eventually(lambda: world.server.requests["patch pods"], "nothing is tried")
        world.server.faults.refuse(503, times=10_000, only="put leases")
        await eventually(lambda: not replica.lease.is_held(), "the lease is still held")
        await eventually(lambda: replica.keeper.state.counters.actions["release", "conflict"] == 1, "it is still tried")
        world.server.faults.stop_refusing()
        await eventually(replica.lease.is_held, "it does not decide again")
        assert not world.is_released("a"), "it may be another's by now"


def remake(world: World, name: str, units: int) -> None:
    """Delete a pod and create another with its name, as a StatefulSet does."""
    uid = world.body(name)["metadata"]["uid"]
    world.server.delete(name)
    world.create(name, units, uid=f"{uid}-again")


async def test_what_was_decided_about_a_pod_is_not_done_to_another_of_its_name(tmp_path: Path) -> None:
    async with World(tmp_path, n1=1) as world, world.replica() as replica:
        actions = replica.keeper.state.counters.actions
        await eventually(lambda: replica.lease.is_held() and replica.observer.listed, "nobody leads")
        world.server.faults.delay(1.0, "patch pods")
        world.create("low", 60)
        await eventually(lambda: world.server.requests["patch pods"] == 1, "not decided")
        world.server.faults.delay(0.0, "patch pods")
        remake(world, "low", 50)
        await eventually(lambda: actions["release", "conflict"] == 1, f"another was released: {actions}")
        await world.run_released("low")
        world.server.faults.delay(1.0, "post pods/eviction")
        world.create("high", 100, priority=10)
        await eventually(lambda: world.server.requests["post pods/eviction"] == 1, "not decided")
        world.server.faults.delay(0.0, "post pods/eviction")
        remake(world, "low", 10)
        await eventually(lambda: actions["evict", "conflict"] == 1, f"another was evicted: {actions}")
        assert world.server.registry.evicted == []


async def test_two_that_both_decide_do_no_harm(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        for number in range(4):
            world.add_node(f"n{number}", 4)
        async with world.replica("one", lease="one") as first, world.replica("two", lease="two") as second:
            await eventually(lambda: first.lease.is_held() and second.lease.is_held(), "they do not both decide")
            names = [f"p{number:02}" for number in range(12)]
            for name in names:
                world.create(name, 100)
            members = [f"gang-{number}" for number in range(4)]
            for name in members:
                world.create(name, 100, gang="gang", gang_size="4")
            seen: dict[str, tuple[str, tuple[str, ...]]] = {}

            def all_there() -> bool:
                for name in filter(world.is_released, [*names, *members]):
                    place = world.node_of(name), tuple(world.devices_of(name))
                    assert seen.setdefault(name, place)[0] == place[0], "a released pod is sent elsewhere"
                return len(seen) == 16

            await eventually(all_there, "not all are released")
            tallies = [replica.keeper.state.counters.actions for replica in (first, second)]
            assert {key for counters in tallies for key in counters} <= {
                ("release", "written"), ("release", "invalid"), ("release", "conflict"),
            }  # fmt: skip
            assert world.server.registry.evicted == []


async def test_while_an_agent_is_silent_nothing_goes_there_nothing_yields_there_and_nobody_is_told_that_he_never_fits(
    tmp_path: Path,
) -> None:
    async with World(tmp_path, n1=2) as world:
        world.create("low", 100)
        world.bind("low", "GPU-n1-0", runs_s=100)
        async with world.replica() as replica:
            await eventually(lambda: replica.keeper.rounds, "nothing is decided")
            await replica.observer.take_usage(time.monotonic() + SILENT_S + 1)
            world.create("fits", 100)
            world.create("high", 200, priority=10)
            await eventually(lambda: "Waits" in world.told("fits") & world.told("high"), "not told")
            rounds = replica.keeper.rounds
            await eventually(lambda: replica.keeper.rounds >= rounds + 2, "no more rounds")
            assert "on nodes with a reporting agent, nodes without: 1" in world.said("fits", "Waits")
            assert not any("NeverFits" in world.told(name) for name in ("fits", "high"))
            assert not world.is_released("fits")
            assert (world.yields("low"), world.server.registry.evicted) == ("", [])
            world.server.delete("high")
            await replica.report(world.agents)
            await eventually(lambda: world.is_released("fits"), "not released once the agent is back")
            world.create("huge", 300)
            await eventually(lambda: "NeverFits" in world.told("huge"), "not told what never fits")
