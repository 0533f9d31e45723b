"""Test the edges of what cycles decide: the moment at which a time is over, the last entry of a full table, ties."""

from dataclasses import replace
from typing import Any

import pytest
from rounds_world import DEFAULT, decided, nodes, pod_of, request, task
from valid_state import validate

from sharepod.agent.shares.share import ShareClass
from sharepod.scheduler.controller import controller_state, restarts
from sharepod.scheduler.controller.controller_state import LEAVE_S, SPARED_S, ControllerState
from sharepod.scheduler.controller.gang_annotations import Gang
from sharepod.scheduler.controller.queues import Queue, Queues
from sharepod.scheduler.controller.reservations import KEPT
from sharepod.scheduler.controller.restarts import ASKED_S, FAILED, GONE, SUCCEEDED, Restarts
from sharepod.scheduler.controller.scheduling_cycle import _Cycle
from sharepod.scheduler.placement.request import PodRequest, ShareRequest
from sharepod.scheduler.preemption.contention import CALM_S, STEP_S, WAITED_MILLIPERCENT
from sharepod.scheduler.simulation.timeline import Timeline
from sharepod.scheduler.state.cluster import Cluster
from sharepod.scheduler.state.pod import Pod
from sharepod.scheduler.state.usage import DeviceNumbers, ShareTerms, ShareUse

Shares = tuple[tuple[int, str, int | None], ...]
"""Of each share its milli, its class and its limit."""
ANY: Shares = ((100, "standard", 500),)
"""A share that may burst."""
GANG = ("team", "gang/gang")


def member(name: str, *, least: int = 3, restart: str = "whole", **more: Any) -> Pod:
    """Return a member of a gang of three; it is released unless it is `gated`."""
    given: dict[str, Any] = {
        "namespace": "team", "node": "", "priority": 0, "created": name, "ended": False, "deleting": False,
        "request": request(), "containers": ("main",), "gang": Gang("gang", 3, least, 600, restart),
    }  # fmt: skip
    return Pod(uid=name, name=name, **given | more)


def running(*names: str, **more: Any) -> list[Pod]:
    return [member(name, running=True, **more) for name in names]


def seen(*pods: Pod, queues: Queues = DEFAULT) -> Timeline:
    """Return what a replica sees that begins to decide: pods that came, and run, since 0."""
    timeline = Timeline(nodes(1, 8), queues)
    for number, pod in enumerate(pods):
        timeline.state.note(pod, since_s=0.0, started_s=0.0 if pod.running else None)
        timeline.cluster.set_pod(pod if pod.gated else replace(pod, node="n00", chosen=((f"n00/{number}",),)))
    return timeline


def leave(timeline: Timeline, *names: str) -> None:
    for name in names:
        timeline.cluster.remove_pod(pod_of(timeline, name).uid)


def test_what_is_noted_until_a_time_is_forgotten_at_that_time_and_not_before() -> None:
    state, cluster = ControllerState(), Cluster()
    state.leaving["uid"] = state.spared["uid"] = state.avoided["controller", "node"] = 70.0
    state.kept[GANG] = (("node",), 70.0)
    for now_s, there in ((69.9, [1, 1, 1, 1]), (70.0, [0, 0, 0, 0])):
        state.look(cluster, (), now_s)
        assert [len(state.leaving), len(state.spared), len(state.avoided), len(state.kept)] == there


@pytest.mark.parametrize("refused", [False, True])
def test_a_pod_whose_eviction_does_not_come_about_belongs_to_its_job_again(*, refused: bool) -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    timeline.come(task("low", request=request(1000, mib=None)))
    timeline.step()
    timeline.come(task("high", priority=10))
    state, low = timeline.state, ("team", "pod/low")
    assert decided(timeline, 10.0).evicted == ["low"]
    assert (list(state.kept), low in state.jobs) == ([("team", "pod/high")], False)
    decided(timeline, 10.5)
    assert [why for _, why in state.waiting] == ["the pods that make room for it have not ended yet"]
    if refused:
        state.refused(pod_of(timeline, "low"), 11.0)
        assert (state.kept, state.leaving, list(state.spared.values())) == ({}, {}, [11.0 + SPARED_S])
    leave(timeline, "high")
    decided(timeline, 12.0)
    assert (state.kept, state.told, low in state.jobs) == ({}, {}, refused)
    decided(timeline, 10.0 + LEAVE_S)
    assert low in state.jobs
    validate(timeline.cluster, state)


def test_pods_that_are_deleted_held_by_others_paused_alone_refused_or_gone_count_as_what_they_are() -> None:
    nothing = PodRequest(1, 1)
    timeline = seen(
        *running("a", "b", "c", least=2, restart="never"),
        member("held", gang=None, gated=True, withheld=True),
        member("plain", gang=None, request=nothing),
        member("wrong", gang=None, gated=True, request=nothing, refusal="it is wrong", deleting=True),
    )
    state = timeline.state
    timeline.come(task("gone", size=2, least=2))
    decided(timeline, 0.0)
    leave(timeline, "gone-0", "gone-1")
    pod_of(timeline, "a", deleting=True)
    pod_of(timeline, "b", yields="pause")
    state.look(timeline.cluster, (), 5.0)
    assert [[pod.name for pod in job.released] for job in state.waits.values()] == [["b", "c"]]
    validate(timeline.cluster, state)
    timeline.cluster.strand(pod_of(timeline, "c"))
    state.look(timeline.cluster, (), 5.0)
    leave(timeline, "a", "c")
    pod_of(timeline, "b", yields="", refusal="it is wrong")
    assert decided(timeline, 6.0).told == [("GateRefused", "a member is refused: it is wrong")]
    validate(timeline.cluster, state)


def test_a_pod_runs_and_idles_too_long_only_after_the_time_that_its_queue_allows() -> None:
    timeline = seen(member("one", gang=None, running=True))
    state, queue, pod = timeline.state, Queue(longest_run_s=100.0, idle_s=100.0), pod_of(timeline, "one")
    assert not state.idles(pod, queue, 1e9), "it was not seen to run"
    for look_s, busy, yields in ((1.0, (), ""), (50.0, ("one", "another"), ""), (60.0, (), "pause"), (90.0, (), "")):
        pod_of(timeline, "one", yields=yields)
        state.look(timeline.cluster, busy, look_s)
        since_s = 50.0 if yields else look_s  # while it was paused it could not be busy
        assert [state.idles(pod, queue, since_s + after_s) for after_s in (100.0, 100.1)] == [False, True]
    assert [state.overruns(pod, queue, at_s) for at_s in (100.0, 100.1)] == [False, True]
    assert (state.idles(pod, Queue(), 1e9), state.waited_s("one", 90.0), state.waited_s("no", 9.0)) == (
        False,
        90.0,
        None,
    )


def test_since_when_a_pod_yields_is_known_with_the_latest_reason_until_it_goes_on() -> None:
    timeline = seen(member("one", gang=None, running=True))
    state, pod = timeline.state, pod_of(timeline, "one")
    for goes_on_by_order in (True, False):
        state.yielded(pod, "limit", "first", 1.0)
        state.yielded(pod, "pause", "second", 2.0)
        assert state.yields == {"one": (1.0, "second")}
        if goes_on_by_order:
            state.yielded(pod, "", "third", 3.0)
        else:
            state.look(timeline.cluster, (), 3.0)
        assert state.yields == {}


def test_of_kinds_no_more_are_known_than_may_be_and_two_never_have_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_state, "_KINDS_MAX", 2)
    state = ControllerState()
    first, same, *others = map(state._kind_of, ("a", "a", "b", "c", "a"))
    assert (first, len({first, *others}), list(state._kinds)) == (same, 4, ["c", "a"])


def test_of_lost_members_the_latest_are_known_and_a_gang_is_calm_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarts, "KNOWN_MAX", 2)
    lost = Restarts()
    for pod in (*running("a", "b", "c"), member("d", gated=True)):
        lost.lose(pod, 0.0)
    assert [[pod.name for pod in lost.unknown(most)] for most in (9, 1)] == [["b", "c"], ["b"]]
    lost.found("b", "", "")
    assert [pod.name for pod in lost.unknown(9)] == ["c"]
    assert lost.held_back(0.0) == {GANG: "a member of its gang has ended, and the API server is asked how"}
    lost.emptied(GANG)
    assert [lost._note_restart(GANG, at_s).until_s for at_s in (0.0, 590.0)] == [0.0, 600.0]
    assert [list(lost.held_back(at_s)) for at_s in (599.9, 600.0)] == [[GANG], []]
    assert lost._note_restart(GANG, 600.0 + restarts.CALM_S).times == 1


def test_a_gang_that_lost_two_members_at_once_starts_anew_once_when_all_that_were_there_have_ended() -> None:
    timeline = seen(*running("a", "b", "c", "d", least=2))
    state = timeline.state
    decided(timeline, 1.0)
    state.released[GANG] = 1.0
    leave(timeline, "a", "b")
    decided(timeline, 2.0)
    state._since["c"] = 2.0  # as old as the loss
    state.restarts._note_restart(GANG, 0.0)
    for name in ("a", "b"):
        state.restarts.found(name, FAILED, "why")
    found = decided(timeline, 3.0)
    says = "failed (why): the 2 other members of team/gang start anew with it, for the 2. time: 10 s from now at the"
    assert (found.evicted, found.told) == (["c", "d"], [("GangRestarts", says + " soonest")])
    assert (state.counters.gangs["restarted"], state.released) == (1, {})
    state.refused(pod_of(timeline, "c"), 3.0)
    pod_of(timeline, "d", deleting=True)
    decided(timeline, 4.0)
    leave(timeline, "d")
    timeline.cluster.set_pod(member("e", gated=True, least=2))
    assert decided(timeline, 20.0).released == []
    ends = "member a of its gang failed (why): all start anew"
    assert [why for _, why in state.waiting] == [
        f"its gang starts anew, and members of before have not ended yet: {ends}"
    ]
    assert decided(timeline, 3.0 + SPARED_S).evicted == ["c"]


@pytest.mark.parametrize(
    ("how", "least", "ends"), [(GONE, 2, False), (GONE, 3, True), (SUCCEEDED, 3, False), (FAILED, 2, True)]
)
def test_a_gang_ends_where_fewer_than_its_least_are_left_or_one_failed(how: str, least: int, *, ends: bool) -> None:
    timeline = seen(*running("a", "b", "c", least=least))
    decided(timeline, 1.0)
    leave(timeline, "a")
    decided(timeline, 10.0)
    timeline.cluster.set_pod(member("d", gated=True, least=least))
    timeline.state.restarts.found("a", how, "why")
    found = decided(timeline, 11.0)
    assert (found.evicted, found.released) == ((["b", "c"], []) if ends else ([], ["d"]))


def test_how_a_member_ended_is_asked_for_a_time_and_not_when_the_others_are_deleted() -> None:
    timeline = seen(*running("a", "b", "c"))
    decided(timeline, 1.0)
    for name, at_s, asked in (("a", 2.0, ["a"]), ("", 2.0 + ASKED_S, ["a"]), ("", 2.1 + ASKED_S, []), ("b", 700.0, [])):
        leave(timeline, *filter(None, [name]))
        pod_of(timeline, "c", deleting=name == "b")
        decided(timeline, at_s)
        assert [pod.name for pod in timeline.state.restarts.unknown(9)] == asked


@pytest.mark.parametrize(
    ("started_s", "came_s", "restart", "least", "lost"),
    [
        ((0.0, 50.0), (10.0,), "whole", 3, True),
        ((0.0, 50.0), (10.0,), "never", 3, False),
        ((0.0, 50.0), (10.0,), "whole", 2, False),
        ((5.0,), (6.0, 90.0), "whole", 3, False),
        ((5.0,), (6.1, 90.0), "whole", 3, True),
    ],
)
def test_a_gang_has_lost_a_member_where_it_needs_one_that_came_after_the_others_had_started(
    started_s: tuple[float, ...], came_s: tuple[float, ...], restart: str, least: int, *, lost: bool
) -> None:
    timeline = seen()
    for number, at_s in enumerate((*started_s, *came_s)):
        runs = number < len(started_s)
        where: dict[str, Any] = {"node": "n00", "chosen": ((f"n00/{number}",),)} if runs else {"gated": True}
        pod = member(f"m{number}", restart=restart, least=least, running=runs, **where)
        timeline.state.note(pod, since_s=0.0 if runs else at_s, started_s=at_s if runs else None)
        timeline.cluster.set_pod(pod)
    assert bool(decided(timeline, 100.0).evicted) is lost


def cycle_with(now_s: float, **waiting: tuple[int, float, tuple[str, ...]]) -> _Cycle:
    """Return a cycle in which jobs wait; of each its priority, since when it waits, and the nodes reserved for it."""
    timeline = Timeline(nodes(8, 4), Queues(Queue(longest_wait_s=100.0)))
    timeline.come(task("left"))
    left = pod_of(timeline, "left", gated=False, node="n02", chosen=(("n02/0",),))
    for name, (priority, since_s, kept) in waiting.items():
        timeline.come(task(name, priority, arrive_s=since_s))
        if kept:
            timeline.state.kept["team", f"pod/{name}"] = kept, 1e9
    timeline.state.look(timeline.cluster, (), now_s)
    timeline.state.evicted(left, now_s, timeline.cluster)
    return _Cycle(timeline.cluster, timeline.state, timeline.queues, now_s)


def test_which_reserved_nodes_are_closed_to_a_job_and_on_which_it_may_have_what_its_victims_free() -> None:
    cycle = cycle_with(
        300.0, me=(10, 299.0, ("n06",)), aged=(0, 100.0, ("n00", "n06")), low=(0, 100.1, ("n01",)),
        ends=(0, 299.0, ("n02", "n07")), equal=(10, 298.0, ("n03",)), high=(20, 299.0, ("n04",)), first=(30, 299.0, ()),
        both=(10, 100.0, ("n05",)), old=(0, 100.0, ("n02",)), free=(0, 201.0, ()),
        late=(-9, 200.0, ()), later=(-5, 150.0, ()),
    )  # fmt: skip
    assert [job.title.partition("/")[2] for job in cycle._in_order()] == [
        "high", "both", "equal", "me", "aged", "old", "low", "ends", "later", "late", "first", "free",
    ]  # fmt: skip
    jobs = {job.title.partition("/")[2]: job for job in cycle._job_order.jobs}
    reservations, placer = cycle._reservations, cycle._placer
    reservations.open_for(jobs["me"])
    assert placer.closed == {"n00", "n02", "n03", "n04", "n05", "n07"}
    assert reservations.reserved(jobs["me"]) == {"n00"}
    reservations.keep(jobs["first"], ("n01",), ("n06",))
    reservations.open_for(jobs["me"])
    assert placer.closed == {"n00", "n01", "n02", "n03", "n04", "n05", "n06", "n07"}
    reservations.keep(jobs["aged"], ("n00",), ("n00",))
    assert reservations.reserved(jobs["me"]) == frozenset()
    reservations.end(jobs["both"])
    reservations.open_for(jobs["me"])
    assert "n05" not in placer.closed


@pytest.mark.parametrize(
    ("count", "where"),
    [(1, "node n0 is"), (2, "nodes n0, n1 are"), (3, "nodes n0, n1, n2 are"), (4, "nodes n0, n1, n2 and 1 more are")],
)
def test_at_most_three_of_the_nodes_that_are_reserved_are_named(count: int, where: str) -> None:
    cycle = cycle_with(1.0, me=(0, 0.0, tuple(f"n{number}" for number in range(count))))
    assert cycle._reservations.where(cycle._job_order.jobs[0]) == where


@pytest.mark.parametrize(
    ("others", "size", "milli", "since_s", "kept"),
    [
        (0, 8, 1000, 200.0, True),
        (1, 4, 1000, 200.0, True),
        (1, 8, 1000, 100.0, False),
        (0, 9, 1000, 200.0, True),
        (0, 10, 800, 100.1, False),
        (0, 10, 800, 100.0, True),
        (KEPT - 1, 4, 1000, 200.0, True),
        (KEPT, 4, 1000, 200.0, False),
    ],
)
def test_no_more_than_a_quarter_of_the_devices_is_reserved_unless_one_job_needs_it(
    others: int, size: int, milli: int, since_s: float, *, kept: bool
) -> None:
    timeline = Timeline(nodes(8, 4), Queues(Queue(longest_wait_s=100.0)))
    timeline.come(task("gang", size=size, least=size, milli=milli, arrive_s=since_s))
    timeline.state.kept |= {("team", f"pod/{number}"): (("n07",), 1e9) for number in range(others)}
    timeline.state.look(timeline.cluster, (), 300.0)
    cycle = _Cycle(timeline.cluster, timeline.state, timeline.queues, 300.0)
    assert cycle._reservations.keep_for_aged(timeline.state.jobs[GANG]) is kept
    assert timeline.state.kept.get(GANG, ((), 0.0))[1] == (300.0 + LEAVE_S if kept else 0.0)


def beside(**pods: tuple[int, str, Shares]) -> Timeline:
    """Return pods that run on a node with two devices: of each its priority, its device and its shares."""
    timeline = Timeline(nodes(1, 2), DEFAULT)
    for name, (priority, device, shares) in pods.items():
        asked = tuple(ShareRequest(milli, 1, 100, None, of_class, limit) for milli, of_class, limit in shares)
        timeline.come(task(name, priority, request=PodRequest(100, 100, asked)))
        pod_of(timeline, name, gated=False, node="n00", chosen=((device,),) * len(asked), running=True)
    return timeline


def stepped(timeline: Timeline, now_s: float, **waited: tuple[int, int]) -> dict[str, str]:
    """Let shares wait and use so much in the last minute; return how pods yield after a cycle, which the API shows."""
    use = timeline.cluster.use("n00")
    assert use is not None
    devices = []
    for device in use.devices:
        shares = []
        for pod in timeline.cluster.pods():
            if (device.facts.uuid,) in pod.chosen:
                waits, used = waited.get(pod.name, (0, 0))
                asks = pod.request.shares[0].milli * 100
                terms = ShareTerms(pod.uid, pod.uid, "team", pod.name, "", ShareClass.BATCH, asks, 0, 0, paused=False)
                shares.append(ShareUse(terms, used, waits))
        numbers = DeviceNumbers(waited_1m_millipercent=sum(share.waited_1m_millipercent for share in shares))
        devices.append(replace(device, numbers=numbers, shares=tuple(shares)))
    timeline.cluster.set_use("n00", replace(use, devices=tuple(devices)))
    yields = decided(timeline, now_s).yields
    for name, how in yields.items():
        pod_of(timeline, name, yields=how)
    return yields


def test_a_step_follows_the_one_before_after_its_time_and_each_device_has_its_own() -> None:
    waits = (WAITED_MILLIPERCENT, 0)
    timeline = beside(low=(0, "n00/0", ANY), high=(5, "n00/0", ANY), mean=(0, "n00/1", ANY), wide=(5, "n00/1", ANY))
    assert stepped(timeline, 10.0, high=waits) == {"low": "limit"}
    assert stepped(timeline, 10.0 + STEP_S - 0.1, high=waits, wide=waits) == {"mean": "limit"}
    assert stepped(timeline, 10.0 + STEP_S, high=waits) == {"low": "pause"}
    leave(timeline, "wide")
    assert stepped(timeline, 80.0) == {"mean": ""}, "the one that it made room for has left"
    timeline.come(task("next", 5, milli=900))
    pod_of(timeline, "next", gated=False, node="n00", chosen=(("n00/0",),))
    assert [stepped(timeline, at_s) for at_s in (9.9 + STEP_S + CALM_S, 10.1 + STEP_S + CALM_S)] == [{}, {}]
    leave(timeline, "next")
    assert stepped(timeline, 300.0) == {"low": ""}


@pytest.mark.parametrize(
    ("waits", "used", "steps"),
    [(WAITED_MILLIPERCENT, 10_000, True), (WAITED_MILLIPERCENT - 1, 0, False), (WAITED_MILLIPERCENT, 10_001, False)],
)
def test_a_share_that_uses_no_more_than_its_request_waits_too_long_from_a_twentieth_of_its_time_on(
    waits: int, used: int, *, steps: bool
) -> None:
    timeline = beside(first=(5, "n00/0", ANY), equal=(5, "n00/0", ANY), low=(0, "n00/1", ANY), high=(5, "n00/1", ANY))
    assert bool(stepped(timeline, 10.0, first=(WAITED_MILLIPERCENT, 0), high=(waits, used))) is steps


@pytest.mark.parametrize(
    ("one", "other", "step"),
    [
        (((100, "batch", None),), ((200, "standard", None),), {"one": "pause"}),
        (((100, "standard", None),), ((200, "standard", 200),), {"other": "pause"}),
        (((100, "standard", None),), ((200, "standard", 201),), {"other": "limit"}),
        (((100, "standard", 100), (100, "latency", 500)), ((100, "standard", None),), {"one": "limit"}),
        (((100, "latency", None), (100, "batch", None)), ((500, "standard", None),), {"one": "pause"}),
    ],
)
def test_those_that_may_burst_are_limited_then_the_least_urgent_is_paused_then_the_largest(
    one: Shares, other: Shares, step: dict[str, str]
) -> None:
    timeline = beside(one=(0, "n00/0", one), other=(0, "n00/0", other), high=(5, "n00/0", ANY))
    assert stepped(timeline, 10.0, high=(WAITED_MILLIPERCENT, 0)) == step
