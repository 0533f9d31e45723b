"""Test that a higher priority starts within two seconds where lower ones can yield; an independent witness judges."""

import random

import pytest
from priority_inversion import Witness
from rounds_world import DEFAULT, DEVICE_MIB, check, decided, nodes, played, pod_of, random_tasks, request, task

from sharepod.scheduler.controller.actions import Evict
from sharepod.scheduler.controller.queues import Queue, Queues
from sharepod.scheduler.controller.scheduling_cycle import PLANS_MOST
from sharepod.scheduler.placement.request import NodeSpec
from sharepod.scheduler.simulation.job_run import Task
from sharepod.scheduler.simulation.timeline import Timeline

BAR_S = 2.0
LOW, MIDDLE, HIGH = 0, 100, 1000


def watched(specs: list[NodeSpec], tasks: list[Task], queues: Queues, until_s: float) -> tuple[Timeline, Witness]:
    timeline = Timeline(specs, queues)
    timeline.expect(tasks)
    witness = Witness(timeline, specs, LOW)
    timeline.play(tasks, until_s, witness.look)
    witness.end()
    return timeline, witness


def crowded(seed: int, count: int) -> list[Task]:
    """Return the jobs of an afternoon on `count` nodes: much batch, whole-device gangs, bursts of small urgent jobs."""
    chance = random.Random(seed)
    batch = [
        task(f"l{number}", LOW, arrive_s=chance.choice((0.0, 3600.0)), run_s=chance.expovariate(1 / 1800),
             request=request(chance.choice((300, 500, 700, 1000)), mib=chance.choice((8_000, 24_000))))
        for number in range(24 * count)
    ]  # fmt: skip
    gangs = [
        task(f"m{number}", MIDDLE, arrive_s=chance.uniform(0, 7200), run_s=1200.0, size=size,
             least=chance.choice((1, size)))
        for number in range(2 * count)
        for size in (chance.choice((2, 4)),)
    ]  # fmt: skip
    bursts = [chance.uniform(60, 7200) for _ in range(4)]
    comes = [chance.choice(bursts) + chance.expovariate(1 / 20) for _ in range(16 * count)]
    urgent = [
        task(f"h{number}", HIGH, arrive_s=at_s, run_s=chance.uniform(30, 900),
             request=request(chance.choice((100, 200, 250, 300, 500)), mib=8_000))
        for number, at_s in enumerate(comes)
    ]  # fmt: skip
    return [*batch, *gangs, *urgent]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [1, 2])
def test_no_task_waits_while_lower_ones_hold_its_room(count: int, seed: int) -> None:
    timeline, witness = watched(nodes(count), crowded(seed, count), Queues(), 1e9)
    for priority in (HIGH, MIDDLE):
        longest = witness.longest(priority)
        assert longest is None or longest.lasted_s <= BAR_S, longest
    assert not [denial for denial in witness.denials if denial.kept and denial.priority == HIGH]
    assert sum(job_run.paused for job_run in timeline.job_runs.values() if job_run.task.priority == LOW) > 0, (
        "nobody yielded"
    )


@pytest.mark.parametrize("seed", range(6))
def test_batch_that_is_overdue_keeps_nobody_of_higher_priority_waiting(seed: int) -> None:
    timeline, witness = watched(nodes(1), crowded(seed, 1), Queues(Queue(longest_wait_s=300)), 1e9)
    longest = witness.longest(HIGH)
    assert longest is None or longest.lasted_s <= BAR_S, longest
    late = [
        job_run for job_run in timeline.job_runs.values() if (job_run.started_s or 1e9) - job_run.task.arrive_s > 600
    ]
    assert len(late) > 10, "hardly anybody had waited for twice as long"


def test_a_job_that_others_were_evicted_for_may_have_more_of_them_paused_on_its_node() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    low = [
        task("big", run_s=1e6, request=request(200, mib=60_000)),
        task("small", run_s=1e6, request=request(800, mib=10_000)),
    ]
    played(
        timeline, [*low, task("high", priority=10, arrive_s=30.0, run_s=40.0, request=request(700, mib=40_000))], 100.0
    )
    assert (timeline.job_runs["big"].evicted, timeline.job_runs["small"].evicted) == (1, 0)
    assert timeline.job_runs["small"].paused == 1
    assert timeline.job_runs["high"].started_s == pytest.approx(31.0, abs=BAR_S - 1)


def test_who_plans_beside_an_eviction_is_not_released_before_it_has_happened() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    timeline.come(task("low", request=request(1000, mib=DEVICE_MIB)))
    timeline.step()
    for name in ("one", "two"):
        timeline.come(task(name, priority=10, request=request(500, mib=30_000)))
    first = decided(timeline, 10.0)
    assert (first.evicted, first.released, first.yields) == (["low"], [], {}), "once for both"
    assert [one.why for one in first.actions if isinstance(one, Evict)] == ["for team/one of priority 10"]
    timeline.come(task("lower", priority=5, request=request(100, mib=None)))
    beside = decided(timeline, 11.0)
    assert (beside.released, beside.evicted) == ([], [])
    timeline.cluster.remove_pod(pod_of(timeline, "low").uid)
    assert sorted(decided(timeline, 12.0).released) == ["one", "two"]


def test_room_that_others_have_yet_to_yield_is_nobodys_though_its_node_is_kept_for_him() -> None:
    chance = random.Random(822)  # here a node is reserved for a gang, and another job has pods evicted and paused there
    timeline = Timeline(nodes(chance.choice((1, 2, 3)), chance.choice((2, 4, 8))), Queues(Queue(longest_wait_s=600)))
    played(timeline, random_tasks(chance, 14, gap_s=chance.choice((1.0, 60.0, 300.0)), mib=(1000, 30_000, None)))


def test_what_is_free_on_a_node_that_is_kept_stays_so_and_who_runs_there_yields() -> None:
    timeline = Timeline(nodes(1, 2), Queues(Queue(longest_wait_s=100.0)))
    low = [task("half", milli=500, run_s=1e6), task("rest", milli=500, run_s=250.0), task("one", run_s=1e6)]
    gang = task("gang", size=2, least=2, arrive_s=1.0, run_s=10.0)
    high = [task("into", priority=10, milli=500, arrive_s=300.0, run_s=500.0)]
    played(timeline, [*low, gang, *high], 310.0)
    assert timeline.job_runs["into"].started_s == pytest.approx(300.0, abs=1.0)
    assert timeline.job_runs["half"].paused == 1, "the other half of its device is free, and kept for the gang"
    assert timeline.job_runs["gang"].started_s is None


def test_those_for_whom_nobody_can_yield_do_not_keep_others_from_being_looked_at() -> None:
    timeline = Timeline(nodes(1, 8), DEFAULT)
    equal = [task(f"equal{number}", priority=10, run_s=1e6) for number in range(7)]
    stuck = [
        task(f"stuck{number}", priority=10, arrive_s=20.0, request=request(900, 2, 1000 + number))
        for number in range(2 * PLANS_MOST)
    ]
    last = task("last", priority=10, arrive_s=30.0, run_s=50.0, milli=600)
    played(timeline, [*equal, task("low", run_s=1e6, arrive_s=1.0), *stuck, last], 100.0)
    assert timeline.job_runs["low"].paused == 1
    assert (timeline.job_runs["last"].started_s or 1e9) - 30.0 <= 3.0, "two rounds for those before it, and its own"


def test_who_may_not_preempt_does_not_speak_for_those_who_ask_for_the_same() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    timeline.come(task("low"))
    timeline.step()
    for name in ("early", "late"):
        timeline.come(task(name, priority=10, user=name))
    pod_of(timeline, "early", preempts=False)
    assert decided(timeline, 5.0).released == ["late"]


@pytest.mark.parametrize(("holder", "denied"), [(0, True), (10, False), (20, False)])
def test_a_witness_tells_who_holds_the_room(holder: int, *, denied: bool) -> None:
    specs = nodes(1, 1)
    timeline = Timeline(specs, DEFAULT)
    witness = Witness(timeline, specs, 0)
    timeline.come(task("first", priority=holder))
    timeline.step()
    timeline.come(task("second", priority=10))
    for now_s in (1.0, 5.0, 9.0):  # no cycle is played, so the task waits even if it could begin
        timeline.now_s = now_s
        witness.look(now_s)
    witness.end()
    assert [(denial.task, denial.lasted_s, denial.kept) for denial in witness.denials] == (
        [("second", 9.0, False)] if denied else []
    )


def test_a_witness_tells_apart_what_may_be_kept_for_who_has_waited_twice() -> None:
    specs = nodes(1, 2)
    timeline = Timeline(specs, Queues(Queue(longest_wait_s=10.0)))
    witness = Witness(timeline, specs, 0)
    timeline.come(task("low", milli=300))
    timeline.step()
    timeline.come(task("late", size=2, least=2))
    timeline.now_s = 21.0
    timeline.come(task("fits", priority=10, milli=300, arrive_s=21.0))
    timeline.come(task("wide", priority=10, milli=900, arrive_s=21.0))
    for now_s in (21.0, 25.0):
        timeline.now_s = now_s
        witness.look(now_s)
    witness.end()
    assert {denial.task: denial.kept for denial in witness.denials} == {"fits": False, "wide": True}
    check(timeline)
