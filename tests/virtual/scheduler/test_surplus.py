"""Test what shares use beyond their requests: how the arbiter gives it, and how that changes a play."""

import random
from pathlib import Path

import pytest
from rounds_world import DEFAULT, nodes, task

from sharepod.cli.commands.play import listed
from sharepod.scheduler.errors import TraceError
from sharepod.scheduler.placement.request import PodRequest, ShareRequest
from sharepod.scheduler.simulation.burst_model import Part, shared_out
from sharepod.scheduler.simulation.job_run import Task
from sharepod.scheduler.simulation.timeline import Timeline


def may_use(milli: int, limit: int, share_class: str = "standard", devices: int = 1) -> PodRequest:
    return PodRequest(1000, 4096, (ShareRequest(milli, devices, 1000, share_class=share_class, limit_milli=limit),))


def part(milli: int, most: int, *, batch: bool = False) -> Part:
    return Part("p", milli, most, batch)


@pytest.mark.parametrize("seed", range(200))
def test_everybody_has_what_he_asks_for_and_nothing_is_left_that_somebody_may_use(seed: int) -> None:
    chance = random.Random(seed)
    parts: list[Part] = []
    while chance.random() < 0.85:
        milli = chance.randint(1, 400)
        if sum(one.milli for one in parts) + milli > 1000:
            break
        most = chance.choice((milli, min(1000, milli + chance.randint(1, 300)), 1000))
        parts.append(part(milli, most, batch=chance.random() < 0.5))
    got = shared_out(parts)
    assert sum(got) <= 1000 + 1e-6
    for one, has in zip(parts, got, strict=True):
        assert one.milli - 1e-6 <= has <= one.most_milli + 1e-6
    below = [one for one, has in zip(parts, got, strict=True) if has < one.most_milli - 1e-6]
    if below:
        assert sum(got) == pytest.approx(1000)
    if any(not one.batch for one in below):
        assert all(has == one.milli for one, has in zip(parts, got, strict=True) if one.batch), "batch is served last"
    for batch in (False, True):
        ratios = [has / one.milli for one, has in zip(parts, got, strict=True) if one in below and one.batch == batch]
        assert not ratios or max(ratios) == pytest.approx(min(ratios)), "in proportion to what they ask for"


def ends(*tasks: Task, devices: int = 1) -> dict[str, float | None]:
    timeline = Timeline(nodes(1, devices), DEFAULT)
    return {job_run.task.name: job_run.ended_s for job_run in timeline.play(tasks, 1e6)}


def test_a_job_works_faster_on_what_is_idle_and_no_faster_than_its_limit_or_others_let_it() -> None:
    assert ends(task("a", request=may_use(250, 1000)))["a"] == pytest.approx(25.0)
    assert ends(task("a", request=may_use(250, 500)))["a"] == pytest.approx(50.0)
    assert ends(task("a", request=may_use(250, 250)))["a"] == pytest.approx(100.0)
    both = ends(task("a", request=may_use(250, 1000)), task("b", milli=500, run_s=10.0))
    assert both["b"] == pytest.approx(10.0)
    # It runs twice as fast for 10 s, then four times as fast.
    assert both["a"] == pytest.approx(10.0 + (100.0 - 20.0) / 4)


def test_one_on_two_devices_is_as_fast_as_the_fuller_lets_it() -> None:
    found = ends(
        task("wide", request=may_use(400, 1000, devices=2)),
        task("beside", milli=500, run_s=1000.0, arrive_s=1.0),
        devices=2,
    )
    # It runs 2.5 times as fast for a second, then as fast as 500 milli allow.
    assert found["wide"] == pytest.approx(1.0 + (100.0 - 2.5) / 1.25, rel=0.01)


def test_who_is_limited_or_paused_for_others_gives_back_what_he_had_beyond() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    low = [task(name, request=may_use(500, 1000, "batch"), run_s=1000.0) for name in ("low1", "low2")]
    high = task("high", priority=10, milli=300, run_s=100.0, arrive_s=50.0)
    job_runs = {job_run.task.name: job_run for job_run in timeline.play([*low, high], 1e6)}
    steps = {name: [(round(step.at_s), round(step.milli)) for step in one.steps] for name, one in job_runs.items()}
    assert steps["high"][0] == (50, 300)
    paused, beside = ("low1", "low2") if (50, 0) in steps["low1"] else ("low2", "low1")
    assert (50, 0) in steps[paused]
    assert (50, 500) in steps[beside], "held to its request while others yield for a high one"
    assert (150, 500) in steps[paused], "goes on when the high one has ended"
    assert job_runs[beside].ended_s == pytest.approx(1000.0)
    assert job_runs[paused].ended_s == pytest.approx(1050.0, abs=5), "500 alone at the end: twice as fast"


def test_lists_say_limits(tmp_path: Path) -> None:
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_limit_milli,creation_time,deletion_time\n"
    path = tmp_path / "pods.csv"
    path.write_text(head + "a,1,1,1,300,600,0,9\nb,1,1,1,300,,0,9\n")
    assert [one.request.shares[0].limit_milli for one in listed(path)] == [600, None]
    path.write_text(head + "a,1,1,1,300,200,0,9\n")
    with pytest.raises(TraceError, match=r"line 2: a share with the limit"):
        listed(path)
