"""Test at which moments a play has a scheduling cycle: when something has happened, or has lasted for too long."""

import pytest
from rounds_world import nodes, task

from sharepod.scheduler.controller.queues import Queue, Queues
from sharepod.scheduler.simulation.job_run import Task
from sharepod.scheduler.simulation.timeline import Timeline

FIRST = task("first", arrive_s=5.0, run_s=400.0)


@pytest.mark.parametrize(
    ("rules", "tasks", "moments", "turns", "made_room"),
    [
        # Both have waited too long after 100 s: then a node is reserved for the second, and looked at every 30 s.
        (Queue(longest_wait_s=100.0),
         [task("first", arrive_s=5.0, run_s=150.0), task("second", arrive_s=7.5, run_s=10.0)],
         [5, 6, 7.5, 105, 107.5, 137.5, 155, 156, 165], [5, 155], (0, 0)),
        # The first is paused at 7; then it has been so for 50 s, which comes to its cycle a second after the other's,
        # and for the calm time at 127; it goes on at 207.
        (Queue(longest_wait_s=50.0), [FIRST, task("high", priority=9, arrive_s=6.2, run_s=200.0)],
         [5, 6, 7, 8, 55, 56.2, 57.2, 127, 207, 208, 605], [5, 7, 207, 605], (1, 0)),
        # It has run for too long at 106, yields, and goes on when the other has ended.
        (Queue(longest_wait_s=1e3, longest_run_s=100.0), [FIRST, task("equal", arrive_s=7.5, run_s=20.0)],
         [5, 6, 7.5, 106.001, 107.001, 126.001, 127.001, 425], [5, 106.001, 126.001, 425], (1, 0)),
        # Here it is ended for that, and begins anew.
        (Queue(longest_wait_s=1e3, longest_run_s=100.0, overrun="end"), [FIRST],
         [5, 6, 106.001, 107.001, 108.001], [5, 106.001, 107.001], (0, 1)),
    ],
)  # fmt: skip
def test_a_play_has_a_cycle_when_something_has_happened_or_lasted_too_long_and_no_other(
    rules: Queue, tasks: list[Task], moments: list[float], turns: list[float], made_room: tuple[int, int]
) -> None:
    timeline = Timeline(nodes(1, 1), Queues(rules))
    assert [timeline.fits(task("t", size=2, least=least)) for least in (1, 2)] == [True, False]
    times: list[float] = []
    timeline.play(tasks, 200.0 if rules.overrun == "end" else 1e6, times.append)
    assert times == pytest.approx(moments)
    first = timeline.job_runs["first"]
    assert [step.at_s for step in first.steps] == pytest.approx(turns), "when it began and stopped"
    assert [(step.running, step.milli) for step in first.steps] == [(1, 1000), (0, 0), (1, 1000), (0, 0)][: len(turns)]
    assert (first.paused, first.evicted, timeline.rounds) == (*made_room, len(moments))
    assert (first.lost_s, first.done_s) == pytest.approx((101.001, 0) if first.evicted else (0, first.task.run_s))
