"""Test the metrics of gates, queues and yielding pods, with real cycles and with tenants that make many queues."""

import re
from pathlib import Path
from typing import Any

import pytest
from gates_world import World
from rounds_world import nodes, pod_of, task

from rig.until import eventually
from sharepod.process.metrics import families
from sharepod.scheduler.controller import gate_controller
from sharepod.scheduler.controller.actions import Action
from sharepod.scheduler.controller.fairness import jain
from sharepod.scheduler.controller.queues import Queues
from sharepod.scheduler.controller.scheduling_cycle import decide
from sharepod.scheduler.explain.gate_summary import summarise_gates
from sharepod.scheduler.gate_metrics import (
    OTHER,
    QUEUES_MAX,
    RESULTS,
    TABLES,
    GateCounters,
    GateLook,
    GateSnapshot,
    QueueLook,
    QueueNames,
    band_of,
)
from sharepod.scheduler.simulation.timeline import Timeline

Samples = dict[str, dict[tuple[str, ...], float]]


def samples(look: GateLook, counters: GateCounters | None = None) -> Samples:
    """Return the exported values by the metric's name and the values of its labels."""
    found: Samples = {}
    snapshot = GateSnapshot(look, counters or GateCounters(), QueueNames().told(look))
    for family in families(TABLES, snapshot):
        for sample in family.metric().samples:
            assert tuple(sample.labels.values()) not in found.get(sample.name, {})
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def look(timeline: Timeline, *, leading: bool = True) -> Samples:
    found = summarise_gates(
        timeline.state, timeline.queues, timeline.now_s, leading=leading, turns=1, rules_refused=False
    )
    return samples(found, timeline.state.counters)


def empty_look(queues: dict[str, QueueLook], ruled: tuple[str, ...] = ()) -> GateLook:
    return GateLook(True, 1, queues, ruled, 0.0, 1.0, False)


def test_queues_are_told_with_what_waits_and_what_they_hold_by_the_replica_that_decides() -> None:
    timeline = Timeline(nodes(1, 4), Queues())
    timeline.come(task("runs", user="team", size=3, least=3, run_s=1e6))
    timeline.step()
    timeline.now_s = 30.0
    timeline.come(task("gang", user="team", size=4, least=2, arrive_s=30.0))
    timeline.come(task("small", user="other-team", milli=400, arrive_s=30.0))
    timeline.step()
    timeline.now_s = 95.0
    timeline.step()
    found = look(timeline)
    assert found["sharepod_gates_waiting_pods"] == {("other-team",): 0, ("team",): 4, (OTHER,): 0}
    assert found["sharepod_gates_waiting_shares"]["team",] == 4
    assert found["sharepod_gates_waiting_devices"]["team",] == 4.0
    assert found["sharepod_gates_held_devices"] == {("other-team",): 0.4, ("team",): 3.0, (OTHER,): 0}
    assert found["sharepod_gates_longest_wait_seconds"][()] == 65.0
    assert found["sharepod_gates_fairness"][()] == pytest.approx(jain([3.0, 0.4]))
    found = look(timeline, leading=False)
    assert found["sharepod_gates_waiting_pods"] == {(OTHER,): 0}
    assert found["sharepod_gates_held_devices"] == {(OTHER,): 0}
    assert found["sharepod_gates_leading"][()] == 0
    assert found["sharepod_gates_fairness"][()] == 1


def test_jains_index_is_one_where_all_have_the_same_and_less_the_fewer_have_all() -> None:
    for same in ([], [0, 0], [2, 2, 2]):
        assert jain(same) == 1
    assert (jain([1, 0, 0, 0]), jain([3, 1])) == (0.25, 0.8)


def test_who_is_paused_is_counted_apart_from_who_waits() -> None:
    timeline = Timeline(nodes(1, 1), Queues())
    timeline.come(task("low"))
    timeline.step()
    timeline.come(task("high", priority=10))
    timeline.step()
    timeline.step()
    found = look(timeline)
    assert found["sharepod_gates_paused_pods"]["team",] == 1
    assert found["sharepod_gates_waiting_pods"]["team",] == 0


def test_however_many_queues_tenants_make_so_many_are_told_and_none_is_lost() -> None:
    names = QueueNames()
    for batch in range(20):
        queues = {f"ns-{batch}-{number}": QueueLook(pods=1) for number in range(50)}
        told = names.told(empty_look(queues))
        assert sum(queue.pods for queue in told.values()) == 50
        assert len(told) <= QUEUES_MAX + 1
    assert told[OTHER].pods == 50
    ruled = tuple(f"ruled-{number:04}" for number in range(1000))
    told = names.told(empty_look({"ruled-0000": QueueLook(pods=3), "ruled-0999": QueueLook(pods=4)}, ruled))
    assert told["ruled-0000"].pods == 3
    assert len(told) == 2 * QUEUES_MAX + 1
    assert told[OTHER].pods == 4


def test_a_tenants_queue_of_the_name_of_the_rest_makes_no_second_series() -> None:
    shown = samples(empty_look({OTHER: QueueLook(pods=2), "a": QueueLook(pods=1)}))
    assert shown["sharepod_gates_waiting_pods"] == {("a",): 1, (OTHER,): 2}


@pytest.mark.parametrize(
    ("priority", "band"),
    [(-1, "negative"), (0, "zero"), (1, "positive"), (1_999_999_999, "positive"), (2_000_001_000, "system")],
)
def test_priorities_come_in_bands(priority: int, band: str) -> None:
    assert band_of(priority) == band


def test_every_series_is_there_from_the_start_at_zero() -> None:
    found = samples(empty_look({}))
    for table in TABLES:
        for row in table.rows:
            series = found[row.name + ("_count" if row.kind == "histogram" else "")]
            assert {len(values) for values in series} == {len(table.labels)}, row.name
            if row.kind != "gauge" and row.name != "sharepod_gates_leads_total":
                assert set(series.values()) == {0.0}
    assert len(found["sharepod_gates_orders_total"]) == 3 * len(RESULTS)


def test_gangs_are_timed_from_their_first_member_to_release_and_until_all_run() -> None:
    timeline = Timeline(nodes(1, 4), Queues())
    timeline.come(task("gang", size=3, least=2))
    early = [pod_of(timeline, f"gang-{number}") for number in range(2)]
    for pod in early:
        timeline.cluster.remove_pod(pod.uid)
    timeline.step()
    timeline.now_s = 40.0
    timeline.come(task("other"))  # a cycle of its own
    for pod in early:
        timeline.cluster.set_pod(pod)
    timeline.step()
    timeline.now_s = 47.0
    timeline.step()
    found = look(timeline)
    assert found["sharepod_gates_gang_seconds_sum"] == {("release",): 40.0, ("start",): 7.0}
    assert found["sharepod_gates_gangs_total"]["released",] == 1
    assert found["sharepod_gates_gangs_total"]["grown",] == 1


def test_waits_are_told_by_class_and_band_of_priority() -> None:
    counters = GateCounters()
    counters.released("latency", 10, 3.0)
    found = samples(empty_look({}), counters)
    assert found["sharepod_gates_wait_seconds_count"]["latency", "positive"] == 1
    assert found["sharepod_gates_wait_seconds_count"]["latency", "zero"] == 0
    assert found["sharepod_gates_wait_seconds_bucket"]["latency", "positive", "10.0"] == 1


async def test_a_round_that_fails_is_counted_logged_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gate_controller, "FAILED_S", 0.2)
    rounds = [ArithmeticError("one that nobody thought of")] * 2

    def fail_first(*given: Any, **more: Any) -> list[Action]:
        if rounds:
            raise rounds.pop()
        return decide(*given, **more)

    monkeypatch.setattr(gate_controller, "decide", fail_first)
    async with World(tmp_path, n1=1) as world:
        world.create("a", 60)
        async with world.replica() as replica:
            await eventually(lambda: world.is_released("a"), "nothing was decided after a failure")
            found = samples(empty_look({}), replica.keeper.state.counters)
            assert found["sharepod_gates_round_seconds_count"]["failed",] == 2
    assert len(re.findall("round failed", caplog.text)) == 2
