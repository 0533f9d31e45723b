"""Gangs that start anew as a whole: which losses have them do so, how soon again, and what is left of before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gates_world import World, in_world
from rounds_world import DEFAULT, nodes, task

from rig.until import eventually
from sharepod.scheduler.endings import how_ended
from sharepod.scheduler.orders import Evict, Release, Tell
from sharepod.scheduler.restarts import CALM_S, FAILED, GONE, MOST_S, SUCCEEDED
from sharepod.scheduler.round import decide
from sharepod.scheduler.timeline import Timeline

if TYPE_CHECKING:
    from pathlib import Path

    from sharepod.scheduler.orders import Order
    from sharepod.scheduler.pod import Pod


class Gang:
    """A gang that runs, in virtual time."""

    def __init__(self, size: int = 3, least: int = 3, restart: str = "whole") -> None:
        self.line = Timeline(nodes(2, 4), DEFAULT)
        self.size, self.least, self.restart = size, least, restart
        self.now_s, self.number = 0.0, 0
        self.come(size)
        self.decide()

    def come(self, count: int) -> None:
        """Have its controller make so many members."""
        for _ in range(count):
            self.number += 1
            self.line.come(task(f"m{self.number}", arrive_s=self.now_s))
        for pod in list(self.line.cluster.pods()):
            if pod.gang is None and pod.gated:
                gang = self.gang(pod)
                self.line.cluster.set_pod(gang)

    def gang(self, pod: Pod) -> Pod:
        from sharepod.scheduler.gang import Gang as Said

        return replace(pod, gang=Said("gang", self.size, self.least, 0, self.restart))

    def decide(self, after_s: float = 0.25) -> list[Order]:
        """Decide, and have what was released run."""
        self.now_s += after_s
        self.line.now_s = self.now_s
        orders = decide(self.line.cluster, self.line.memory, self.line.queues, self.now_s)
        for order in orders:
            if isinstance(order, Release):
                for place in order.places:
                    pod = replace(place.pod, gated=False, node=place.node, chosen=place.devices, running=True)
                    self.line.cluster.set_pod(pod)
        return orders

    @property
    def running(self) -> list[Pod]:
        return sorted((pod for pod in self.line.cluster.pods() if pod.running), key=lambda pod: pod.name)

    def lose(self, pod: Pod, how: str) -> list[Order]:
        """Let a member end, and decide once that is known."""
        self.line.cluster.remove_pod(pod.uid)
        assert not evicted(self.decide()), "nobody knows yet how it ended"
        self.line.memory.restarts.found(pod.uid, how, "why")
        return self.decide()

    def gone(self, orders: list[Order]) -> None:
        """Let whoever was evicted end, as it was asked to."""
        for order in orders:
            if isinstance(order, Evict):
                self.line.cluster.set_pod(replace(order.pod, deleting=True))
        self.decide()
        for order in orders:
            if isinstance(order, Evict):
                self.line.cluster.remove_pod(order.pod.uid)


def evicted(orders: list[Order]) -> list[str]:
    return sorted(order.pod.name for order in orders if isinstance(order, Evict))


def released(orders: list[Order]) -> int:
    return sum(len(order.places) for order in orders if isinstance(order, Release))


def test_when_a_member_fails_the_others_end_and_all_are_released_together_once_they_are_there() -> None:
    gang = Gang()
    first, *others = gang.running
    orders = gang.lose(first, FAILED)
    assert evicted(orders) == [pod.name for pod in others]
    assert {order.cause for order in orders if isinstance(order, Evict)} == {"restart"}
    [told] = [order for order in orders if isinstance(order, Tell)]
    assert (told.pod, told.reason) == (first, "GangRestarts")
    assert told.text == "failed (why): the 2 other members of team/gang start anew with it"
    assert not evicted(gang.decide()), "once"
    gang.gone(orders)
    gang.come(2)
    assert released(gang.decide()) == 0
    gang.come(1)
    assert released(gang.decide()) == 3
    assert gang.line.memory.tally.gangs["restarted"] == 1


@pytest.mark.parametrize(
    ("how", "size", "least", "restart", "ends"),
    [
        (FAILED, 3, 3, "whole", True),
        (FAILED, 3, 3, "never", False),
        (GONE, 3, 3, "whole", True),
        (GONE, 3, 3, "never", False),
        (SUCCEEDED, 3, 3, "whole", False),
        (FAILED, 4, 2, "whole", True),
        (GONE, 4, 2, "whole", False),
        ("", 3, 3, "whole", False),
    ],
)
def test_which_losses_end_the_others(how: str, size: int, least: int, restart: str, ends: bool) -> None:
    gang = Gang(size, least, restart)
    assert bool(evicted(gang.lose(gang.running[0], how))) is ends


def test_a_member_that_is_deleted_is_lost_when_it_has_gone_and_nobody_has_to_be_asked() -> None:
    gang = Gang()
    first = gang.running[0]
    gang.line.cluster.set_pod(replace(first, deleting=True))
    assert not evicted(gang.decide())
    gang.line.cluster.remove_pod(first.uid)
    assert len(evicted(gang.decide())) == 2


def test_a_gang_that_is_deleted_as_a_whole_is_left_alone() -> None:
    gang = Gang()
    pods = gang.running
    for pod in pods:
        gang.line.cluster.set_pod(replace(pod, deleting=True))
    for pod in pods:
        gang.line.cluster.remove_pod(pod.uid)
        assert gang.decide() == []


def test_who_fails_again_and_again_waits_longer_and_longer() -> None:
    gang = Gang(size=2, least=2)
    waits = []
    for _ in range(9):
        gang.gone(gang.lose(gang.running[0], FAILED))
        gang.come(2)
        began_s = gang.now_s
        while not released(gang.decide(0.5)):
            assert gang.now_s - began_s < 2 * MOST_S
        waits.append(gang.now_s - began_s)
    assert waits == [pytest.approx(wait, abs=1.5) for wait in (0, 10, 20, 40, 80, 160, 300, 300, 300)]
    gang.decide(CALM_S + MOST_S)
    gang.gone(gang.lose(gang.running[0], FAILED))
    gang.come(2)
    assert released(gang.decide()) == 2, "it has run for long: that is another failure"


def test_while_it_waits_it_says_how_long() -> None:
    gang = Gang(size=2, least=2)
    for _ in range(2):
        gang.gone(gang.lose(gang.running[0], FAILED))
        gang.come(2)
        orders = gang.decide()
    assert [(order.reason, order.text) for order in orders if isinstance(order, Tell)] == [
        ("GangRestarts", "its gang was started anew 2 times: it waits for 10 s more")
    ]


def test_until_it_is_known_how_a_member_ended_none_is_released_in_its_place() -> None:
    gang = Gang()
    first = gang.running[0]
    gang.line.cluster.remove_pod(first.uid)
    gang.come(1)
    assert released(gang.decide()) == 0
    assert gang.line.memory.restarts.unknown(9) == [first]
    gang.line.memory.restarts.found(first.uid, SUCCEEDED, "it has done its work")
    assert released(gang.decide()) == 1


def test_who_may_not_be_evicted_is_asked_again_and_nobody_starts_beside_him() -> None:
    gang = Gang()
    first, second, third = gang.running
    orders = gang.lose(first, FAILED)
    gang.line.memory.refused(third, gang.now_s)
    gang.line.cluster.remove_pod(second.uid)
    gang.come(2)
    for _ in range(100):
        assert released(gang.decide(0.5)) == 0
    assert evicted(orders) == [second.name, third.name]
    again = gang.decide(15.0)
    assert evicted(again) == [third.name]
    gang.gone(again)
    gang.come(1)
    assert released(gang.decide()) == 3


def test_a_gang_that_lost_a_member_while_nobody_looked_is_found_by_the_next_to_decide() -> None:
    gang = Gang()
    gang.now_s = 100.0
    gang.line.cluster.remove_pod(gang.running[0].uid)
    gang.come(1)
    fresh = Timeline(nodes(2, 4), DEFAULT)
    for pod in gang.line.cluster.pods():
        since_s = 0.0 if pod.running else 100.0
        fresh.memory.note(pod, since_s=since_s, started_s=since_s if pod.running else None)
        fresh.cluster.set_pod(pod)
    assert len(evicted(decide(fresh.cluster, fresh.memory, fresh.queues, 101.0))) == 2


def test_a_gang_whose_last_member_was_not_released_in_time_is_not_taken_for_one_that_lost_it() -> None:
    gang = Gang()
    late = replace(gang.running[0], gated=True, node="", chosen=(), running=False)
    fresh = Timeline(nodes(2, 4), DEFAULT)
    for pod in [late, *gang.running[1:]]:
        fresh.memory.note(pod, since_s=0.0, started_s=5.0 if pod.running else None)
        fresh.cluster.set_pod(pod)
    orders = decide(fresh.cluster, fresh.memory, fresh.queues, 10.0)
    assert (evicted(orders), released(orders)) == ([], 1)


@pytest.mark.parametrize(
    ("body", "how", "says"),
    [
        ({"status": {"phase": "Running"}}, "", ""),
        ({"status": {"phase": "Running"}, "metadata": {"deletionTimestamp": "now"}}, GONE, "deleted"),
        ({"status": {"phase": "Succeeded"}}, SUCCEEDED, "done"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, FAILED, "reason 'Evicted'"),
        ({"status": {"phase": "Failed", "reason": 7, "containerStatuses": "none"}}, FAILED, "does not say"),
        (
            {
                "status": {
                    "phase": "Failed",
                    "containerStatuses": [
                        {"name": "init", "state": {"terminated": {"exitCode": 0}}},
                        {"name": "x" * 5000, "state": {"terminated": {"exitCode": 137}}},
                    ],
                }
            },
            FAILED,
            "ended with 137",
        ),
        ({}, "", ""),
    ],
)
def test_how_a_pod_ended_is_read_of_its_status_whatever_that_says(body: dict[str, Any], how: str, says: str) -> None:
    found, detail = how_ended(body)
    assert found == how
    assert says in detail
    assert len(detail) < 200


@pytest.mark.parametrize("how", ["Failed", "Succeeded", "deleted"])
def test_a_gang_starts_anew_as_a_whole_when_a_member_fails_or_is_deleted(tmp_path: Path, how: str) -> None:
    async def test(world: World) -> None:
        world.add_node("n1", 4)
        said = {"gang": "gang", "gang_size": "3", "gang_restart": "whole"}
        names = [f"gang-{number}" for number in range(3)]
        for name in names:
            world.create(name, 100, **said)
        async with world.replica() as replica:
            await eventually(lambda: all(map(world.is_released, names)), "not released")
            for name in names:
                world.run(name)
            await eventually(lambda: sum(pod.running for pod in replica.cluster.pods()) == 3, "not seen to run")
            ended = {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 3}}}]}
            if how == "deleted":
                world.server.delete("gang-0")
            else:
                world.end("gang-0", how, **(ended if how == "Failed" else {}))
            world.create("gang-3", 100, **said)
            if how == "Succeeded":
                await eventually(lambda: world.is_released("gang-3"), "not released in the place of one that is done")
                assert world.server.registry.evicted == []
                return
            await eventually(lambda: sorted(world.server.registry.evicted) == ["gang-1", "gang-2"], "the others go on")
            assert not world.is_released("gang-3"), "alone"
            new = ["gang-3", "gang-4", "gang-5"]
            for name in new[1:]:
                world.create(name, 100, **said)
            await eventually(lambda: all(map(world.is_released, new)), f"not released: {world.told('gang-3')}")
            why = "its container 'main' ended with 3" if how == "Failed" else "it was deleted"
            await eventually(lambda: why in world.said("gang-0", "GangRestarts"), "not told")
            assert "Evicted" in world.told("gang-1")
            assert replica.keeper.memory.tally.evictions["restart"] == 2

    in_world(tmp_path, test)
