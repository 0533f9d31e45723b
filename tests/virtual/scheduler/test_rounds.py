"""Test cycles in virtual time: gangs start whole or not at all, which job yields to which, and how long jobs wait."""

import os
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from rounds_world import DEFAULT, check, decided, nodes, played, pod_of, random_tasks, request, task

from sharepod.scheduler.controller.controller_state import AVOID_S
from sharepod.scheduler.controller.queues import Queue, Queues
from sharepod.scheduler.controller.scheduling_cycle import _Cycle
from sharepod.scheduler.placement.request import NodeSpec, PodRequest, ShareRequest
from sharepod.scheduler.preemption.room import SITES_SEARCHED
from sharepod.scheduler.simulation.timeline import Timeline

ORDERS = int(os.environ.get("SHAREPOD_TEST_SCHEDULES", "8"))
"""How many random schedules are played; `make soak` plays thousands."""
WHOLE = request(1000, mib=None)
"""A request for all of a device's memory: a pod that holds it cannot be paused for another."""


def test_an_elastic_gang_starts_with_its_least_grows_and_gives_back_what_others_want() -> None:
    timeline = Timeline(nodes(2), DEFAULT)
    tasks = [
        task("other", size=4, least=4, run_s=50.0),
        task("elastic", size=8, least=2, run_s=1000.0, arrive_s=1.0),
        task("equal", size=3, least=3, run_s=50.0, arrive_s=200.0),
    ]
    sizes: list[int] = []

    def look(_: float) -> None:
        check(timeline)
        sizes.append(sum(timeline.job_runs["elastic"].active.values()) if "elastic" in timeline.job_runs else 0)

    timeline.play(tasks, 1e9, look)
    distinct = [size for size, after in pairwise([*sizes, None]) if size != after]
    assert distinct == [0, 4, 8, 5, 8, 0]
    assert timeline.job_runs["equal"].started_s == pytest.approx(200.0, abs=2.0)
    assert timeline.job_runs["elastic"].lost_s == 0, "it works on with those that are left"


def test_where_memory_is_short_the_lower_one_is_evicted_and_starts_anew() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    played(timeline, [task("low", request=WHOLE), task("high", priority=10, arrive_s=30.0, run_s=40.0, request=WHOLE)])
    low = timeline.job_runs["low"]
    assert (low.paused, low.evicted) == (0, 1)
    assert low.lost_s == pytest.approx(30.0, abs=2.0)
    assert low.ended_s == pytest.approx(170.0, abs=5.0)


def test_an_elastic_gang_says_when_it_grows_and_when_members_make_room() -> None:
    timeline = Timeline(nodes(1, 4), DEFAULT)
    for name in ("first", "second"):
        timeline.come(task(name))
    decided(timeline, 0.0).run(timeline)
    timeline.come(task("gang", size=4, least=2))
    least = decided(timeline, 0.5)
    assert sorted(least.released) == ["gang-0", "gang-1"]
    least.run(timeline)
    assert decided(timeline, 1.0).released == [], "there is room for no more"
    for name in ("first", "second"):
        timeline.cluster.remove_pod(pod_of(timeline, name).uid)
    grown = decided(timeline, 2.0)
    assert sorted(grown.released) == ["gang-2", "gang-3"]
    says = "the gang has 2 more of its members, 4 in all: it needs 2 to run"
    assert grown.told == [("GangGrown", says)]
    grown.run(timeline)
    timeline.come(task("equal", size=2, least=2))
    shrunk = decided(timeline, 3.0)
    assert (len(shrunk.evicted), shrunk.yields) == (2, {})
    says = "2 of its members make room for team/equal of priority 0: the gang goes on with 2"
    assert ("GangShrunk", says) in shrunk.told
    assert timeline.state.counters.gangs["shrunk"] == 1


def test_an_equal_that_would_lose_less_is_left_alone_where_a_lower_one_can_yield() -> None:
    timeline = Timeline(nodes(2, 1), DEFAULT)
    tasks = [
        task("lower", request=WHOLE, run_s=1e6),
        task("equal", priority=5, request=WHOLE, run_s=1e6, arrive_s=500.0),
    ]
    played(timeline, [*tasks, task("next", priority=5, request=WHOLE, arrive_s=600.0)], 650.0)
    assert (timeline.job_runs["lower"].evicted, timeline.job_runs["equal"].evicted) == (1, 0)


def test_a_gang_that_is_paused_does_not_grow_in_the_same_round() -> None:
    timeline = Timeline(nodes(1, 4), DEFAULT)
    tasks = [
        task("gang", size=5, least=4, run_s=1e5),  # its last member has waited long enough to be tried first
        task("high", priority=10, arrive_s=8000.0, run_s=50.0),
    ]
    played(timeline, tasks, 8100.0)
    assert timeline.job_runs["gang"].paused == 4
    assert timeline.job_runs["high"].ended_s is not None


def test_of_those_who_could_be_evicted_the_one_with_least_work_goes() -> None:
    timeline = Timeline(nodes(2, 1), DEFAULT)
    tasks = [task("old", request=WHOLE, run_s=1e6), task("young", request=WHOLE, run_s=1e6, arrive_s=500.0)]
    played(timeline, [*tasks, task("high", priority=10, request=WHOLE, arrive_s=600.0)], 650.0)
    assert (timeline.job_runs["old"].evicted, timeline.job_runs["young"].evicted) == (0, 1)


def test_of_equal_priority_the_queue_with_the_least_share_goes_first() -> None:
    timeline = Timeline(nodes(1, 4), DEFAULT)
    heavy = [task(f"heavy{number}", user="heavy", run_s=100.0) for number in range(40)]
    light = [task(f"light{number}", user="light", run_s=100.0, arrive_s=50.0) for number in range(2)]
    played(timeline, heavy + light)
    assert all((timeline.job_runs[one.name].started_s or 1e9) <= 102.0 for one in light), "before 36 that came earlier"


def test_weights_divide_a_full_cluster() -> None:
    queues = Queues(Queue(longest_wait_s=1e6), {"big": Queue(weight=3.0, longest_wait_s=1e6)})
    timeline = Timeline(nodes(2, 4), queues)
    tasks = [task(f"{user}{number}", user=user, run_s=100.0) for user in ("big", "small") for number in range(60)]
    played(timeline, tasks, 950.0)
    done = {
        user: sum(c.ended_s is not None for c in timeline.job_runs.values() if c.task.user == user)
        for user in ("big", "small")
    }
    assert done["big"] / done["small"] == pytest.approx(3.0, rel=0.1)


def test_a_queue_holds_no_more_than_its_cap() -> None:
    queues = Queues(Queue(), {"team": Queue(cap_milli=2500)})
    timeline = Timeline(nodes(1, 4), queues)
    most = 0

    def look(_: float) -> None:
        nonlocal most
        most = max(most, sum(pod.request.milli for pod in timeline.cluster.pods() if pod.node))

    timeline.play([task(f"t{number}", milli=500) for number in range(12)], 1e9, look)
    assert most == 2500


def test_an_elastic_gang_grows_up_to_its_queues_cap() -> None:
    timeline = Timeline(nodes(1, 4), Queues(Queue(), {"team": Queue(cap_milli=3000)}))
    timeline.come(task("elastic", size=4, least=2))
    for _ in range(3):
        timeline.step()
    assert sum(timeline.job_runs["elastic"].active.values()) == 3


def test_a_large_gang_that_waited_too_long_is_not_starved_by_small_ones() -> None:
    timeline = Timeline(nodes(2, 4), Queues(Queue(longest_wait_s=300.0)))
    chance = random.Random(1)
    small = [task(f"s{number}", arrive_s=5.0 * number, run_s=chance.uniform(30, 90)) for number in range(400)]
    played(timeline, [*small, task("gang", size=8, least=8, arrive_s=100.0)])
    waited = (timeline.job_runs["gang"].started_s or 1e9) - 100.0
    assert 300 <= waited <= 300 + 90 + 5, "its longest wait, and the longest run of the jobs that were there"


def test_what_has_run_too_long_yields_to_anyone_and_goes_on_when_nobody_waits() -> None:
    queues = Queues(Queue(), {"long": Queue(longest_run_s=200.0)})
    timeline = Timeline(nodes(1, 1), queues)
    low = [task(f"low{number}", priority=-5, arrive_s=250.0 + number, run_s=50.0) for number in range(3)]
    played(timeline, [task("long", user="long", priority=10, run_s=1000.0), *low])
    assert [round(timeline.job_runs[one.name].started_s or 0) // 10 for one in low] == [25, 30, 35]
    assert timeline.job_runs["long"].ended_s == pytest.approx(1150.0, abs=10.0)
    assert timeline.job_runs["long"].paused == 1, "between two of them it does not go on"


def test_what_has_run_too_long_is_ended_where_that_is_the_rule() -> None:
    queues = Queues(Queue(), {"long": Queue(longest_run_s=200.0, overrun="end")})
    timeline = Timeline(nodes(1, 1), queues)
    played(timeline, [task("long", user="long", run_s=1000.0)], 500.0)
    assert timeline.job_runs["long"].evicted == 2


@pytest.mark.parametrize("seed", range(ORDERS))
def test_in_random_orders_gangs_are_whole_and_devices_promised_once(seed: int) -> None:
    chance = random.Random(seed)
    timeline = Timeline(nodes(chance.randint(2, 5)), DEFAULT)
    tasks = random_tasks(
        chance, 80, gap_s=chance.choice((20.0, 60.0)), mib=chance.choice(((1000,), (None, 1000), (None,)))
    )
    for number, one in enumerate(tasks):  # replace tasks that could never fit
        if one.size > 8 or one.milli > 8000:
            tasks[number] = replace(one, size=1, least=1)
    played(timeline, tasks)
    assert all(job_run.ended_s is not None for job_run in timeline.job_runs.values()), "everybody runs in the end"


def full(*priorities: int) -> Timeline:
    """Return a cluster of one-device nodes held by pods of these priorities; a pod of priority 10 has come."""
    timeline = Timeline(nodes(len(priorities), 1), DEFAULT)
    for number, priority in enumerate(priorities):
        timeline.come(task(f"low{number}", priority=priority, request=WHOLE))
    timeline.step()
    timeline.come(task("high", priority=10, request=WHOLE))
    return timeline


@pytest.mark.parametrize("fresh", [False, True], ids=["the same replica", "another one"])
def test_nobody_is_evicted_beside_one_who_takes_his_time_to_end(*, fresh: bool) -> None:
    timeline = full(0, 0, 50)
    [name] = decided(timeline, 10.0).evicted
    first = pod_of(timeline, name, deleting=True)
    if fresh:
        timeline = restarted(timeline, nodes(3, 1))
    for at_s in (12.0, 13.0, 75.0, 76.0, 140.0):
        waits = decided(timeline, at_s)
        assert (waits.released, waits.evicted) == ([], [])
    timeline.cluster.remove_pod(first.uid)
    assert decided(timeline, 141.0).released == ["high"]


def test_who_may_not_be_evicted_is_spared_and_another_goes() -> None:
    timeline = full(0, 0)
    [first] = decided(timeline, 10.0).evicted
    timeline.state.refused(pod_of(timeline, first), 11.0)
    [second] = decided(timeline, 12.0).evicted
    assert {first, second} == {"low0", "low1"}


def test_of_two_jobs_that_others_end_for_each_gets_the_room_of_its_own_victims() -> None:
    timeline = full(0, 0)
    timeline.come(task("equal", priority=10, request=WHOLE))
    assert decided(timeline, 10.0).evicted == ["low0", "low1"]
    lows = [pod_of(timeline, name, deleting=True) for name in ("low0", "low1")]
    [of_equal] = [nodes for key, (nodes, _) in timeline.state.kept.items() if "equal" in key[1]]
    [early] = [pod for pod in lows if pod.node in of_equal]
    timeline.cluster.remove_pod(early.uid)  # `high` comes first, but its victim takes longer to end
    assert decided(timeline, 11.0).released == ["equal"]


def test_what_was_reserved_in_an_earlier_cycle_is_closed_to_others_before_this_one_tries_any_job() -> None:
    timeline = full(0)
    assert decided(timeline, 10.0).evicted == ["low0"]
    timeline.come(task("equal", priority=10, request=WHOLE))
    timeline.state.look(timeline.cluster, (), 11.0)
    cycle = _Cycle(timeline.cluster, timeline.state, timeline.queues, 11.0)
    [equal] = [job for key, job in timeline.state.jobs.items() if "equal" in key[1]]
    cycle._reservations.open_for(equal)
    assert cycle._placer.closed == {"n00"}


def test_a_gang_that_others_end_for_on_many_nodes_has_all_of_them() -> None:
    count = SITES_SEARCHED + 4
    timeline = Timeline(nodes(count, 1), DEFAULT)
    for number in range(count):
        timeline.come(task(f"low{number}", request=WHOLE))
    timeline.step()
    timeline.come(task("gang", priority=10, size=count, least=count, request=WHOLE))
    assert len(decided(timeline, 10.0).evicted) == count


def test_while_nodes_are_reserved_there_is_a_cycle_every_half_minute_and_no_more() -> None:
    timeline = full(0)
    decided(timeline, 0.0)
    pod_of(timeline, "low0", deleting=True)
    timeline.now_s = 1.0
    timeline.play([], 181.0)
    assert 6 <= timeline.rounds <= 9


def test_a_pod_that_holds_its_units_while_it_is_paused_is_evicted_where_kubelet_has_no_units_left() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    node = timeline.cluster.node("n00")
    assert node is not None
    timeline.cluster.set_node(replace(node, units=100))
    played(timeline, [task("low"), task("high", priority=10, arrive_s=30.0, run_s=40.0)])
    assert (timeline.job_runs["low"].paused, timeline.job_runs["low"].evicted) == (0, 1)


def test_a_gang_whose_members_do_not_all_come_to_run_starts_anew_after_its_timeout() -> None:
    timeline = Timeline(nodes(2, 4), DEFAULT)
    timeline.come(task("gang", size=3, least=3))
    timeline.come(task("well", size=2, least=2))
    for pod in list(timeline.cluster.pods()):
        assert pod.gang is not None
        timeline.cluster.set_pod(replace(pod, gang=replace(pod.gang, timeout_s=120)))
    decided(timeline, 0.0).run(timeline)
    pod_of(timeline, "gang-2", running=False)
    pod_of(timeline, "well-0", ended=True)  # it has done its work, so no one waits for it
    assert decided(timeline, 100.0).actions == []
    late = decided(timeline, 130.0)
    assert late.evicted == ["gang-0", "gang-1", "gang-2"]
    assert not [key for key in timeline.state.released if key[1] == "gang/well"]
    assert {text for _, text in late.told} == {"2 of 3 members ran 120 s after their release: all start anew"}
    assert timeline.state.counters.gangs["timed_out"] == 1


def sent(timeline: Timeline, name: str, at_s: float, controller: str = "rs") -> str:
    """Let a controller's pod come and be released; return its node. The pod is never bound."""
    timeline.come(task(name))
    pod_of(timeline, name, controller=controller)
    [place] = decided(timeline, at_s).placed
    pod_of(timeline, name, gated=False, destined=place.node, chosen=place.devices)
    return place.node


def test_who_is_not_bound_where_it_was_sent_is_made_anew_and_sent_elsewhere_for_a_while() -> None:
    timeline = Timeline(nodes(2, 1), DEFAULT)
    first = sent(timeline, "first", 0.0)
    assert decided(timeline, 119.0).actions == []
    late = decided(timeline, 121.0)
    assert late.evicted == ["first"]
    [(reason, text)] = late.told
    assert reason == "NotBound"
    assert f"has not bound it to {first} for 120 s" in text
    timeline.cluster.remove_pod(pod_of(timeline, "first").uid)
    second = sent(timeline, "second", 122.0)
    assert second != first
    timeline.come(task("other"))  # it has another controller, so it may have the place that was promised in vain
    [other] = decided(timeline, 123.0).placed
    assert other.node == first
    for name in ("second", "other"):
        timeline.cluster.remove_pod(pod_of(timeline, name).uid)
    assert sent(timeline, "third", 1020.0) == second
    timeline.cluster.remove_pod(pod_of(timeline, "third").uid)
    assert sent(timeline, "fourth", 121.0 + AVOID_S) == first


def test_a_node_that_has_gone_gets_no_pod_until_it_is_back() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    node = timeline.cluster.node("n00")
    assert node is not None
    decided(timeline, 0.0)
    timeline.cluster.remove_node("n00")
    timeline.come(task("one"))
    assert decided(timeline, 1.0).released == []
    assert timeline.cluster.row("n00") is None
    assert timeline.cluster.node_index.names() == []
    timeline.cluster.set_node(node)
    assert decided(timeline, 2.0).released == ["one"]


def test_where_every_node_would_be_avoided_none_is() -> None:
    timeline = Timeline(nodes(2, 1), DEFAULT)
    found = [sent(timeline, "first", 0.0)]
    for name, before, at_s in (("second", "first", 121.0), ("third", "second", 250.0)):
        assert decided(timeline, at_s).evicted == [before]
        timeline.cluster.remove_pod(pod_of(timeline, before).uid)
        found.append(sent(timeline, name, at_s + 1))
    assert found == ["n00", "n01", "n00"]


def test_who_is_not_bound_and_nobody_would_make_anew_is_told_once_and_its_room_is_others_until_it_is() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    sent(timeline, "alone", 0.0, controller="")
    timeline.come(task("other"))
    assert decided(timeline, 119.0).placed == []
    assert timeline.state.held("team", 0).device_milli == 1000
    late = decided(timeline, 121.0)
    assert (late.evicted, [reason for reason, _ in late.told]) == ([], ["NotBound"])
    next_one = decided(timeline, 122.0)
    assert next_one.released == ["other"]
    next_one.run(timeline)
    assert decided(timeline, 400.0).actions == []
    assert timeline.state.held("team", 0).device_milli == 1000
    pod_of(timeline, "other", ended=True)
    pod_of(timeline, "alone", destined="", node="n00", running=True)
    timeline.come(task("third"))
    assert decided(timeline, 600.0).placed == [], "it was bound after all, and counts again"
    assert timeline.state.held("team", 0).device_milli == 1000


def test_a_member_by_which_a_gang_has_grown_is_given_up_too_if_it_is_not_bound() -> None:
    timeline = Timeline(nodes(3, 1), DEFAULT)
    timeline.come(task("gang", size=3, least=2))
    for name in ("gang-0", "gang-1", "gang-2"):
        pod = pod_of(timeline, name)
        assert pod.gang is not None
        pod_of(timeline, name, controller="job", gang=replace(pod.gang, timeout_s=120))
    found = decided(timeline, 0.0)
    assert len(found.placed) == 3
    for place in found.placed:
        where = {"destined": place.node} if place.pod.name == "gang-2" else {"node": place.node, "running": True}
        pod_of(timeline, place.pod.name, gated=False, chosen=place.devices, **where)
    assert decided(timeline, 119.0).actions == []
    late = decided(timeline, 121.0)
    assert (late.evicted, [reason for reason, _ in late.told]) == (["gang-2"], ["NotBound"])


def test_a_gang_that_was_not_bound_in_its_time_is_evicted_once_and_a_pod_that_ends_is_left_alone() -> None:
    timeline = Timeline(nodes(3, 1), DEFAULT)
    timeline.come(task("gang", size=2, least=2))
    for name in ("gang-0", "gang-1"):
        pod = pod_of(timeline, name)
        assert pod.gang is not None
        pod_of(timeline, name, controller="job", gang=replace(pod.gang, timeout_s=200))
    for place in decided(timeline, 0.0).placed:
        pod_of(timeline, place.pod.name, gated=False, chosen=place.devices, destined=place.node)
    sent(timeline, "ends", 1.0)
    pod_of(timeline, "ends", deleting=True)
    late = decided(timeline, 201.0)
    assert late.evicted == ["gang-0", "gang-1"]
    assert {reason for reason, _ in late.told} == {"GangTimedOut"}


def test_a_pod_whose_eviction_did_not_come_about_is_given_up_again() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    sent(timeline, "first", 0.0)
    assert decided(timeline, 121.0).evicted == ["first"]
    assert decided(timeline, 230.0).evicted == []
    assert decided(timeline, 242.0).evicted == ["first"], "the API server could not be reached"


def test_who_is_bound_in_time_may_take_as_long_as_it_likes_to_start() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    pod_of(timeline, "slow", node=sent(timeline, "slow", 0.0), destined="")
    assert decided(timeline, 500.0).actions == []


def restarted(timeline: Timeline, there: list[NodeSpec]) -> Timeline:
    """Return what another replica, started now, sees and has noted."""
    fresh = Timeline(there, DEFAULT)
    for pod in timeline.cluster.pods():
        started_s = timeline.state.started_s(pod) if pod.running else None
        fresh.state.note(pod, since_s=timeline.state.since_s(pod), started_s=started_s)
        fresh.cluster.set_pod(pod)
    return fresh


def test_a_controller_that_starts_anew_decides_as_one_that_was_there() -> None:
    timeline = Timeline(nodes(2), DEFAULT)
    timeline.play(random_tasks(random.Random(3), 40, gap_s=10.0), 300.0)
    fresh = restarted(timeline, nodes(2))
    fresh.state.kept = dict(timeline.state.kept)
    for at_s in (301.0, 302.0):
        mine, theirs = decided(timeline, at_s), decided(fresh, at_s)
        places = [[(place.pod.uid, place.node, place.devices) for place in one.placed] for one in (mine, theirs)]
        assert places[0] == places[1]
        assert (mine.yields, mine.evicted) == (theirs.yields, theirs.evicted)


def test_who_stays_beside_a_job_that_others_yield_to_is_limited_only_below_its_priority() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    for number, (name, priority, milli) in enumerate((("equal", 10, 200), ("lower", 5, 200), ("low", 0, 600))):
        timeline.come(
            task(name, priority, request=PodRequest(1000, 4096, (ShareRequest(milli, 1, 1000, limit_milli=1000),)))
        )
        decided(timeline, float(number)).run(timeline)
    timeline.come(task("new", 10, 500))
    assert decided(timeline, 5.0).yields == {"low": "pause", "lower": "limit"}


def test_the_last_member_of_a_gang_fills_a_node_instead_of_opening_one() -> None:
    timeline = Timeline(nodes(3, 2), DEFAULT)
    timeline.come(task("single"))
    single = decided(timeline, 0.0)
    single.run(timeline)
    timeline.come(task("gang", size=3, least=3))
    places = [place.node for place in decided(timeline, 1.0).placed]
    assert sorted(map(places.count, set(places))) == [1, 2]
    assert single.placed[0].node in places
