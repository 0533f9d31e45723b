"""Test gangs that restart as a whole: after which losses, how soon again, and what remains of the run before."""

from dataclasses import replace
from typing import Any

import pytest
from rounds_world import DEFAULT, Decided, decided, nodes, pod_of, task

from sharepod.scheduler.controller import restarts as module
from sharepod.scheduler.controller.actions import Evict
from sharepod.scheduler.controller.exit_status import how_ended
from sharepod.scheduler.controller.gang_annotations import Gang as Said
from sharepod.scheduler.controller.restarts import CALM_S, FAILED, GONE, MOST_S, SUCCEEDED, Restarts
from sharepod.scheduler.simulation.timeline import Timeline
from sharepod.scheduler.state.pod import Pod


class Gang:
    """A running gang in virtual time."""

    def __init__(self, size: int = 3, least: int = 3, restart: str = "whole") -> None:
        self.timeline = Timeline(nodes(2, 4), DEFAULT)
        self.said = Said("gang", size, least, 0, restart)
        self.now_s, self.number = 0.0, 0
        self.come(size)
        self.decide()

    def come(self, count: int) -> None:
        """Let the gang's controller create this number of members."""
        for _ in range(count):
            self.number += 1
            self.timeline.come(task(f"m{self.number}", arrive_s=self.now_s))
            pod_of(self.timeline, f"m{self.number}", gang=self.said)

    def decide(self, after_s: float = 0.25) -> Decided:
        """Play a cycle, and let the released pods run."""
        self.now_s += after_s
        self.timeline.now_s = self.now_s
        found = decided(self.timeline, self.now_s)
        found.run(self.timeline)
        return found

    @property
    def running(self) -> list[Pod]:
        return sorted((pod for pod in self.timeline.cluster.pods() if pod.running), key=lambda pod: pod.name)

    def lose(self, pod: Pod, how: str) -> Decided:
        """Let a member end, and play a cycle once it is known how."""
        self.timeline.cluster.remove_pod(pod.uid)
        assert not self.decide().evicted, "nobody knows yet how it ended"
        self.timeline.state.restarts.found(pod.uid, how, "why")
        return self.decide()

    def gone(self, found: Decided) -> None:
        """Let the evicted pods end, as they were asked to."""
        ending = [pod_of(self.timeline, name, deleting=True) for name in found.evicted]
        self.decide()
        for pod in ending:
            self.timeline.cluster.remove_pod(pod.uid)

    def fail(self) -> None:
        """Let a member fail, the others end, and the controller create all of them anew."""
        self.gone(self.lose(self.running[0], FAILED))
        self.come(self.said.size)


def test_when_a_member_fails_the_others_end_and_all_are_released_together_once_they_are_there() -> None:
    gang = Gang()
    first, *others = gang.running
    found = gang.lose(first, FAILED)
    assert found.evicted == [pod.name for pod in others]
    assert {action.cause for action in found.actions if isinstance(action, Evict)} == {"restart"}
    assert found.told == [("GangRestarts", "failed (why): the 2 other members of team/gang start anew with it")]
    assert not gang.decide().evicted, "once"
    gang.gone(found)
    gang.come(2)
    assert not gang.decide().released
    gang.come(1)
    assert len(gang.decide().released) == 3
    assert gang.timeline.state.counters.gangs["restarted"] == 1


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
    assert bool(gang.lose(gang.running[0], how).evicted) is ends


def test_a_member_that_is_deleted_is_lost_when_it_has_gone_and_nobody_has_to_be_asked() -> None:
    gang = Gang()
    first = pod_of(gang.timeline, "m1", deleting=True)
    assert not gang.decide().evicted
    gang.timeline.cluster.remove_pod(first.uid)
    assert gang.decide().evicted == ["m2", "m3"]


def test_a_gang_that_is_deleted_as_a_whole_is_left_alone() -> None:
    gang = Gang()
    for pod in [pod_of(gang.timeline, name, deleting=True) for name in ("m1", "m2", "m3")]:
        gang.timeline.cluster.remove_pod(pod.uid)
        assert gang.decide().actions == []


def test_who_fails_again_and_again_waits_longer_and_longer_and_says_so() -> None:
    gang = Gang(size=2, least=2)
    waits, told = [], []
    for _ in range(9):
        gang.fail()
        began_s = gang.now_s
        while not (found := gang.decide(0.5)).released:
            told += found.told
            assert gang.now_s - began_s < 2 * MOST_S
        waits.append(gang.now_s - began_s)
    assert waits == [pytest.approx(wait, abs=1.5) for wait in (0, 10, 20, 40, 80, 160, 300, 300, 300)]
    assert ("GangRestarts", "its gang was started anew 2 times: it waits for 9 s more") in told
    gang.decide(CALM_S + MOST_S)
    gang.fail()
    assert len(gang.decide().released) == 2, "it has run for long: that is another failure"


def test_a_member_that_was_lost_before_this_replica_decided_is_not_named_after_the_pod_in_its_place() -> None:
    gang = Gang()
    gang.decide()
    gang.timeline.cluster.remove_pod(gang.running[0].uid)
    gang.decide(10)
    gang.come(1)
    gang.timeline.state.restarts = Restarts()  # what a replica knows that has just come to decide
    found = gang.decide()
    assert found.evicted == ["m2", "m3"]
    lost = "a member of its gang is gone (2 of 3 were left when this replica came to decide, and another had come)"
    assert ("GangRestarts", f"{lost}: the 2 other members of team/gang start anew with it") in found.told
    assert {one.why for one in found.actions if isinstance(one, Evict)} == {f"{lost}: all start anew"}


def test_until_it_is_known_how_a_member_ended_none_is_released_in_its_place() -> None:
    gang = Gang()
    first = gang.running[0]
    gang.timeline.cluster.remove_pod(first.uid)
    gang.come(1)
    assert not gang.decide().released
    assert gang.timeline.state.restarts.unknown(9) == [first]
    gang.timeline.state.restarts.found(first.uid, SUCCEEDED, "it has done its work")
    assert gang.decide().released == ["m4"]


def test_who_may_not_be_evicted_is_asked_again_and_nobody_starts_beside_him() -> None:
    gang = Gang()
    first, second, third = gang.running
    assert gang.lose(first, FAILED).evicted == [second.name, third.name]
    gang.timeline.state.refused(third, gang.now_s)
    gang.timeline.cluster.remove_pod(second.uid)
    gang.come(2)
    for _ in range(100):
        assert not gang.decide(0.5).released
    again = gang.decide(15.0)
    assert again.evicted == [third.name]
    gang.gone(again)
    gang.come(1)
    assert len(gang.decide().released) == 3


def seen_anew(*pods: Pod) -> Timeline:
    """Return the view of another replica that has not followed the cluster before. Gated pods came at 100 s."""
    fresh = Timeline(nodes(2, 4), DEFAULT)
    for pod in pods:
        fresh.state.note(pod, since_s=0.0 if pod.running else 100.0, started_s=0.0 if pod.running else None)
        fresh.cluster.set_pod(pod)
    return fresh


def test_a_gang_that_lost_a_member_while_nobody_looked_is_found_by_the_next_to_decide() -> None:
    gang = Gang()
    gang.now_s = 100.0
    gang.timeline.cluster.remove_pod(gang.running[0].uid)
    gang.come(1)
    assert decided(seen_anew(*gang.timeline.cluster.pods()), 101.0).evicted == ["m2", "m3"]


def test_a_gang_whose_last_member_was_not_released_in_time_is_not_taken_for_one_that_lost_it() -> None:
    first, *others = Gang().running
    fresh = seen_anew(*others)
    late = replace(first, gated=True, node="", chosen=(), running=False)
    fresh.state.note(late, since_s=0.0)
    fresh.cluster.set_pod(late)
    found = decided(fresh, 10.0)
    assert (found.evicted, found.released) == ([], [first.name])


def ended(name: str, code: int) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code}}}


ONE_FAILED = [ended("init", 0), ended("x" * 5000, 137)]


@pytest.mark.parametrize(
    ("body", "how", "says"),
    [
        ({"status": {"phase": "Running"}}, "", ""),
        ({"status": {"phase": "Running"}, "metadata": {"deletionTimestamp": "now"}}, GONE, "deleted"),
        ({"status": {"phase": "Succeeded"}}, SUCCEEDED, "done"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, FAILED, "reason 'Evicted'"),
        ({"status": {"phase": "Failed", "reason": 7, "containerStatuses": "none"}}, FAILED, "does not say"),
        ({"status": {"phase": "Failed", "containerStatuses": ONE_FAILED}}, FAILED, "137"),
        ({}, "", ""),
    ],
)
def test_how_a_pod_ended_is_read_of_its_status_whatever_that_says(body: dict[str, Any], how: str, says: str) -> None:
    found, detail = how_ended(body)
    assert found == how
    assert says in detail
    assert len(detail) < 200


def test_of_more_gangs_than_can_be_known_the_one_that_started_anew_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 1)
    restarts = Restarts()
    first, second = ("team", "gang/first"), ("team", "gang/second")
    assert [restarts._note_restart(key, at_s).times for at_s, key in enumerate((first, second, second, first))] == [
        1, 1, 2, 1,
    ]  # fmt: skip
