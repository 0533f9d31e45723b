"""Test single cycles at their limits: what is placed, planned, given up, ended and told in one, and in the next."""

from dataclasses import replace
from typing import Any

import pytest
from rounds_world import DEFAULT, check, decided, nodes, pod_of, request, task

from sharepod.scheduler.controller import gang_placement, scheduling_cycle
from sharepod.scheduler.controller.actions import Evict, Tell
from sharepod.scheduler.controller.controller_state import BIND_S
from sharepod.scheduler.controller.gang_annotations import Gang
from sharepod.scheduler.controller.gang_placement import Placer
from sharepod.scheduler.controller.job import Job, job_of
from sharepod.scheduler.controller.job_order import Total, total_of
from sharepod.scheduler.controller.queues import Queue, Queues
from sharepod.scheduler.controller.scheduling_cycle import OVERRUN, PLANS, PLANS_MOST, _Cycle, _shown
from sharepod.scheduler.placement.request import PodRequest, ShareRequest
from sharepod.scheduler.preemption.contention import CALM_S
from sharepod.scheduler.simulation.timeline import Timeline
from sharepod.scheduler.state.pod import Pod

BURSTS = PodRequest(100, 100, (ShareRequest(100, 1, 100, limit_milli=500),))


def runs(timeline: Timeline, name: str, *devices: str, priority: int = 0, **more: Any) -> Pod:
    """Let a pod run on devices of n00."""
    timeline.come(task(name, priority, **more))
    return pod_of(timeline, name, gated=False, node="n00", chosen=tuple((device,) for device in devices), running=True)


def waits(timeline: Timeline) -> dict[str, str]:
    return {job.title.partition("/")[2]: why for job, why in timeline.state.waiting}


def test_a_cycle_places_no_more_pods_than_it_may_and_the_next_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_cycle, "PLACED", 3)
    timeline = Timeline(nodes(1, 10), DEFAULT)
    timeline.come(task("gang", 5, size=5, least=1))
    for name in "abc":
        timeline.come(task(name))
    first = decided(timeline, 0.0)
    assert sorted(first.released) == ["a", "b", "gang-0"]
    assert waits(timeline) == {"c": "its turn comes in the next cycle"}
    first.run(timeline)
    second = decided(timeline, 1.0)
    assert sorted(second.released) == ["c", "gang-1", "gang-2"]
    second.run(timeline)
    timeline.come(task("late", 9, size=3, least=1))
    third = decided(timeline, 2.0)
    for grown, title in ((second, "gang"), (third, "late")):
        [told] = [one for one in grown.actions if isinstance(one, Tell)]
        says = "the gang has 2 more of its members, 3 in all: it needs 1 to run"
        assert (told.pod.name, told.reason, told.text, told.warning) == (f"{title}-1", "GangGrown", says, False)


def test_a_queue_gets_no_more_than_its_cap_within_a_cycle_and_no_part_of_a_gang_that_exceeds_it() -> None:
    cap = Queue(cap_milli=1000)
    timeline = Timeline(nodes(2, 4), Queues(Queue(), {"team": cap, "part": cap, "none": Queue(cap_milli=0)}))
    timeline.come(task("gang", 5, user="part", size=4, least=2, milli=600))
    timeline.come(task("large", -5, user="free", size=9, least=8))
    for name, milli in (("a", 400), ("b", 600), ("c", 10)):
        timeline.come(task(name, milli=milli))
    timeline.come(task("d", user="none", milli=10))
    assert sorted(decided(timeline, 0.0).released) == ["a", "b"]
    more = "would hold more than its cap of"
    assert waits(timeline) == {
        "large": "no room for 8 pods of 100 percent now",
        "gang": f"queue part {more} 1 devices",
        "c": f"queue team {more} 1 devices",
        "d": f"queue none {more} 0 devices",
    }


@pytest.mark.parametrize(("count", "plans"), [(1, PLANS_MOST), (64, 64), (65, 63), (256, PLANS), (300, PLANS)])
def test_the_more_nodes_the_fewer_searches_for_victims_are_made_in_a_cycle(count: int, plans: int) -> None:
    timeline = Timeline(nodes(count, 1), DEFAULT)
    timeline.cluster.advance(0.0)
    assert _Cycle(timeline.cluster, timeline.state, timeline.queues, 0.0)._plans_most == plans


def test_jobs_that_have_waited_too_long_leave_half_of_the_searches_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_cycle, "PLANS_MOST", 4)
    monkeypatch.setattr(scheduling_cycle, "PLANS", 4)
    timeline = Timeline(nodes(8, 1), Queues(Queue(longest_wait_s=100.0)))
    for number in range(8):
        timeline.come(task(f"low{number}"))
    timeline.step()
    for number in range(4):
        timeline.come(task(f"aged{number}", 5, milli=900 + 10 * number))
        timeline.come(task(f"young{number}", 5, milli=800 + 10 * number, arrive_s=400.0))
    found = decided(timeline, 400.0)
    assert sorted(found.released) == ["aged0", "aged1", "young0", "young1"]
    assert sorted(found.yields.values()) == ["pause"] * 4
    found.run(timeline)
    for name, how in found.yields.items():
        pod_of(timeline, name, yields=how)
    assert sorted(decided(timeline, 401.0).released) == ["aged2", "aged3", "young2", "young3"]
    assert timeline.state.kept == {}


def test_those_beside_a_job_that_others_yield_to_are_held_to_their_requests_for_a_calm_time() -> None:
    timeline = Timeline(nodes(1, 2), DEFAULT)
    runs(timeline, "wide", "n00/0", "n00/1", request=PodRequest(100, 100, (BURSTS.shares[0],) * 2))
    runs(timeline, "tight", "n00/0", milli=100)
    runs(timeline, "low", "n00/0", milli=700, priority=-1)
    runs(timeline, "equal", "n00/1", milli=900, priority=10)
    runs(timeline, "equals", "n00/0", request=BURSTS, priority=10)
    timeline.come(task("high", 10, milli=500))
    assert decided(timeline, 5.0).yields == {"low": "pause", "wide": "limit"}
    assert pod_of(timeline, "wide").yields == "limit"
    uids = {name: pod_of(timeline, name).uid for name in ("wide", "high")}
    assert timeline.state.pressed == {uids["wide"]: (5.0 + CALM_S, uids["high"])}


def test_a_gang_yields_to_anyone_once_one_member_has_run_for_too_long_and_ends_where_that_is_the_rule() -> None:
    for overrun, ends in (("yield", False), ("end", True)):
        queues = Queues(Queue(), {"long": Queue(longest_run_s=100.0, overrun=overrun)})
        timeline = Timeline(nodes(1, 2), queues)
        timeline.come(task("gang", 5, user="long", size=2, least=2))
        for number in range(2):
            there = pod_of(timeline, f"gang-{number}")
            timeline.state.note(there, since_s=0.0, started_s=50.0 * number)
            pod_of(timeline, there.name, gated=False, node="n00", chosen=((f"n00/{number}",),), running=True)
        timeline.come(task("low", user="team"))
        assert decided(timeline, 100.0).actions[1:] == []
        late = decided(timeline, 100.1)
        assert late.yields == ({} if ends else {"gang-0": "pause", "gang-1": "pause"})
        assert [(one.pod.name, one.cause, one.why) for one in late.actions if isinstance(one, Evict)] == [
            (name, "overrun", "it has run for longer than queue long lets it") for name in ("gang-0", "gang-1") if ends
        ]


def test_a_gang_is_given_its_whole_time_and_a_pod_its_own_to_be_bound_from_when_a_replica_decides() -> None:
    timeline = Timeline(nodes(1, 8), DEFAULT)
    timeline.come(task("ends", 5))
    for name in ("gang", "well", "ever"):
        timeline.come(task(name, size=2, least=2, arrive_s=-30.0 if name == "gang" else 0.0))
        for number in range(2 if name != "ever" else 0):
            pod = pod_of(timeline, f"{name}-{number}")
            assert pod.gang is not None
            controller = "starts" if pod.name == "gang-0" else "job"
            pod_of(timeline, pod.name, controller=controller, gang=replace(pod.gang, timeout_s=300))
    timeline.come(task("alone"))
    timeline.state._since[pod_of(timeline, "gang-1").uid] = -10.0
    for place in decided(timeline, 0.0).placed:
        starts = place.pod.name in ("gang-0", "well-0", "well-1")
        where = {"node": place.node, "running": True} if starts else {"destined": place.node}
        pod_of(timeline, place.pod.name, gated=False, chosen=place.devices, **where)
    assert timeline.state.counters.gang_times["release"].seconds[1] == 30.0, "from the first member on"
    pod_of(timeline, "ends", deleting=True)
    decided(timeline, 5.0)
    assert sum(timeline.state.counters.gang_times["start"].seconds[0]) == 1, "the other gangs do not run yet"
    timeline.state.decides = False
    assert decided(timeline, 10.0).actions == []
    assert timeline.state.released == {("team", "gang/gang"): 10.0, ("team", "gang/ever"): 10.0}
    assert decided(timeline, 10.0 + BIND_S).actions == []
    late = decided(timeline, 10.1 + BIND_S)
    assert sorted(one.pod.name for one in late.actions if isinstance(one, Tell)) == ["alone", "ever-0", "ever-1"]
    says = (
        "its room is given to others, and if it is bound after all it waits there until there is room: delete it, and"
    )
    assert all(text.endswith(f"{says} make it anew") for _, text in late.told)
    assert decided(timeline, 310.0).evicted == []
    late = decided(timeline, 310.1)
    assert (late.evicted, list(timeline.state.avoided)) == (["gang-0", "gang-1"], [("job", "n00")])
    assert {text for _, text in late.told} == {"1 of 2 members ran 300 s after their release: all start anew"}


def test_a_pod_that_ends_is_not_paused_for_another_and_a_gang_that_may_not_preempt_as_a_whole_gets_no_room() -> None:
    timeline = Timeline(nodes(1, 2), DEFAULT)
    runs(timeline, "low", "n00/0")
    runs(timeline, "large", "n00/1", request=request(500, mib=79_500))
    timeline.come(task("gang", 5, size=2, least=2, milli=500))
    pod_of(timeline, "gang-1", preempts=False)
    assert decided(timeline, 1.0).yields == {}
    pod_of(timeline, "gang-1", preempts=True)
    pod_of(timeline, "low", deleting=True)
    found = decided(timeline, 2.0)
    assert (found.yields, found.released, found.evicted) == ({}, [], [])


def test_a_paused_gang_has_waited_since_its_first_pause_and_comes_last_if_one_member_ran_for_too_long() -> None:
    timeline = Timeline(nodes(1, 2), Queues(Queue(longest_run_s=100.0)))
    timeline.come(task("gang", 5, size=2, least=2))
    for number, at_s in enumerate((5.0, 60.0)):
        where = {"node": "n00", "chosen": ((f"n00/{number}",),), "running": True, "yields": "pause", "gated": False}
        pod_of(timeline, f"gang-{number}", **where)
        timeline.state.look(timeline.cluster, (), at_s)
    for now_s, priority in ((105.0, 5), (105.1, OVERRUN)):
        [job] = _Cycle(timeline.cluster, timeline.state, timeline.queues, now_s)._waiting
        assert (job.since_s, job.priority, job.resumes) == (5.0, priority, True)


def test_why_a_job_waits_is_told_once_and_anew_after_its_release_and_not_of_one_that_is_paused() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    timeline.come(task("low"))
    decided(timeline, 0.0).run(timeline)
    timeline.come(task("equal"))
    [told] = decided(timeline, 1.0).actions
    assert isinstance(told, Tell)
    assert (told.pod.name, told.reason, told.warning) == ("equal", "Waits", False)
    timeline.come(task("gang", size=3, least=3, milli=10))
    timeline.cluster.remove_pod(pod_of(timeline, "gang-2").uid)
    pod_of(timeline, "gang-1", gated=False, destined="n00", chosen=(("n00/0",),))
    [told] = decided(timeline, 2.0).actions
    assert isinstance(told, Tell)
    assert (told.reason, told.text, told.warning) == ("GangIncomplete", "2 of 3 members of the gang are there", True)
    pod_of(timeline, "low", yields="pause")
    high = runs(timeline, "high", "n00/0", priority=5)
    assert decided(timeline, 3.0).actions == []
    assert waits(timeline)["low"] == "is paused until its devices have room again"
    for name in ("low", "high", "gang-0", "gang-1"):
        timeline.cluster.remove_pod(pod_of(timeline, name).uid)
    assert decided(timeline, 4.0).released == ["equal"]
    assert timeline.state.told == {}
    assert high.priority == 5


def test_a_paused_gang_goes_on_only_where_all_of_its_devices_have_room_and_nothing_presses_it() -> None:
    timeline = Timeline(nodes(1, 3), Queues(Queue(), {"team": Queue(cap_milli=2000)}))
    timeline.come(task("gang", size=3, least=1, milli=500))
    for number in range(3):
        where = {"node": "n00", "chosen": ((f"n00/{number}",),), "running": True, "yields": "pause", "gated": False}
        pod_of(timeline, f"gang-{number}", **where)
    runs(timeline, "high", "n00/0", user="boss", milli=510, priority=5)
    decided(timeline, 1.0)
    assert waits(timeline) == {"gang": "is paused until its devices have room again"}
    pod_of(timeline, "high", request=request(500))
    timeline.state.pressed[pod_of(timeline, "gang-2").uid] = 50.0, ""
    assert decided(timeline, 2.0).actions == []
    assert waits(timeline) == {"gang": "is paused until those of higher priority beside it wait no more"}
    timeline.come(task("more", milli=600))
    on = decided(timeline, 50.0)
    assert (on.yields, on.released) == ({f"gang-{number}": "" for number in range(3)}, [])
    check(timeline)


@pytest.mark.parametrize(
    ("shares", "count", "says"),
    [
        ((ShareRequest(500),), 1, "50 percent"),
        ((ShareRequest(1000, 2), ShareRequest(255)), 1, "2 x 100 percent and 25.5 percent"),
        ((ShareRequest(100, 3),), 2, "2 pods of 3 x 10 percent"),
    ],
)
def test_what_pods_ask_for_is_said_in_words(shares: tuple[ShareRequest, ...], count: int, says: str) -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    timeline.come(task("small", milli=10))
    timeline.come(task("gang", size=2, least=2, request=PodRequest(1, 1, shares)))
    names = {1: ("gang-0",), 2: ("small", "gang-0")}[count]
    assert _shown([pod_of(timeline, name) for name in names]) == says


def of_racks(*racks: str) -> Timeline:
    """Return nodes with one device each, in these racks and zones: "r1 z1"."""
    timeline = Timeline(nodes(len(racks), 1), DEFAULT)
    for number, where in enumerate(racks):
        there = timeline.cluster.node(f"n{number:02d}")
        assert there is not None
        timeline.cluster.set_node(replace(there, domains=tuple(where.split(" "))))
    return timeline


@pytest.mark.parametrize(
    ("size", "racks", "nodes_"),
    [
        (2, ("r1 z1", "r1 z1", "r1 z1", "r2 z1", "r2 z1"), {"n03", "n04"}),
        (2, ("r1 z1", "r2 z1", "r2 z1", "r2 z1"), {"n01", "n02"}),
        (3, ("r1 z1", "r1 z1", "r2 z2", "r2 z2", "r3 z2"), {"n02", "n03", "n04"}),
        (2, (" z1", " z2", " z1", " z2"), {"n00", "n02"}),
        (2, ("r1 z1", "r2 z2", "r3 z1"), {"n00", "n02"}),
        (3, ("r1 z1", "r1 z2", "r2 z3"), {"n00", "n01", "n02"}),
    ],
)
def test_a_gang_goes_to_the_narrowest_domain_that_it_fills_most(
    size: int, racks: tuple[str, ...], nodes_: set[str]
) -> None:
    timeline = of_racks(*racks)
    timeline.come(task("gang", size=size, least=size))
    found = {place.node for place in decided(timeline, 0.0).placed}
    assert len(found) == size
    assert found <= nodes_


def test_nodes_that_are_closed_are_in_no_domain_until_they_are_open_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = of_racks("r1", "r1", "r2", "r2", "r2")
    timeline.come(task("gang", size=2, least=2))
    pods = [pod_of(timeline, f"gang-{number}") for number in range(2)]
    placer = Placer(timeline.cluster, 0.0)
    for closed, found in (((), {"n00", "n01"}), (("n01",), {"n02", "n03"}), (("n01", "n02", "n03"), {"n00", "n04"})):
        placer.close(closed)
        places = placer.place(pods)
        assert places is not None
        assert {place.node for place in places} <= found | ({"n04"} if "n02" in found else set())
        placer.undo(places)
    assert placer.open_names(pods[0]) == ["n00", "n04"]
    assert placer.open_names(pods[0], ("n02",)) == ["n00", "n02", "n04"]
    placer.close(("n00", "n01", "n02", "n03"))
    assert placer.place(pods) is None
    monkeypatch.setattr(gang_placement, "DOMAINS_TRIED", 0)
    placer.close(())
    assert placer.place(pods) is not None, "what did not fit is tried again where more nodes are open"


def test_what_a_job_is_follows_from_its_members() -> None:
    gang = Gang("gang", 3, 2, 60)
    timeline = Timeline(nodes(1, 1), DEFAULT)
    for name in ("a", "b", "c", "d"):
        timeline.come(task(name))
    a, b, c, d = (pod_of(timeline, name, gang=gang, priority=number) for number, name in enumerate("abcd"))
    since = {"a": 4.0, "b": 9.0, "c": 7.0, "d": 2.0}

    def job(*members: Pod, released: str = "") -> Job:
        names = {pod.name: pod for pod in members}
        return job_of(
            ("team", "gang/gang"), list(members), lambda pod: since[pod.name], lambda pod: pod.name in released,
            lambda _: 7 if names else 0,
        )  # fmt: skip

    def told(of: Job) -> tuple[list[str], float, int, int | None, int]:
        return [pod.name for pod in of.waiting], of.since_s, of.priority, of.kind, of.missing

    assert told(job(d, c, b, a)) == (["a", "b", "c"], 9.0, 0, 7, 0)
    assert told(job(d, c, b, a, released="a")) == (["b", "c"], 9.0, 0, 7, 0)
    assert told(job(d, c, b, a, released="ab")) == (["c"], 2.0, 0, 7, 0)
    assert told(job(d, c, b, a, released="abc")) == ([], 2.0, 0, None, 0)
    assert told(job(replace(c, affinity="x"), d)) == (["c", "d"], 7.0, 2, None, 0)
    assert told(job(replace(d, request=request(10)))) == (["d"], 2.0, 3, 7, 1)
    assert told(job(replace(d, request=request(10)), c)) == (["c", "d"], 7.0, 2, None, 0)
    differ = "members of gang gang differ in size, least, timeout or restart: say the same in all of them"
    assert job(a, replace(b, gang=replace(gang, size=4))).refusal == differ
    assert job(replace(a, refusal="no"), b).refusal == "a member is refused: no"
    assert job(replace(a, refusal="no", gang=None)).refusal == "no"


def test_totals_are_sums_of_all_resources_and_the_dominant_is_the_largest_part() -> None:
    asked = PodRequest(3, 5, (ShareRequest(100, 2, 7), ShareRequest(10, 1, None)))
    timeline = Timeline(nodes(1, 1), DEFAULT)
    timeline.come(task("a", request=asked))
    pod = pod_of(timeline, "a")
    one = total_of([pod], 1000)
    assert (one, total_of([pod, pod], 1000), one.plus(one)) == (Total(210, 24, 3, 5), *[Total(420, 48, 6, 10)] * 2)
    for whole, part in (
        (Total(2100, 2400, 6, 50), 0.5), (Total(2100, 2400, 0, 10), 0.5), (Total(420, 480, 30, 50), 0.5),
        (Total(2100, 48, 30, 50), 0.5), (Total(), 0.0),
    ):  # fmt: skip
        assert one.dominant(whole) == part
