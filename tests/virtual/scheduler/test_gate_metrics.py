"""What Prometheus reads of gates, queues and who yields: of real rounds, and of tenants who make many queues."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from gates_world import World, in_world
from rounds_world import nodes, task

from rig.until import eventually
from sharepod.process.metrics import families
from sharepod.scheduler import gatekeeper
from sharepod.scheduler.fairness import jain, overfull, weighted_shares
from sharepod.scheduler.gate_metrics import (
    OTHER,
    QUEUES_MAX,
    RESULTS,
    TABLES,
    GateLook,
    GateSnapshot,
    GateTally,
    QueueLook,
    QueueNames,
    band_of,
)
from sharepod.scheduler.gate_summary import summarise_gates
from sharepod.scheduler.orders import Release
from sharepod.scheduler.queues import Queue, Queues
from sharepod.scheduler.round import decide
from sharepod.scheduler.timeline import Timeline

if TYPE_CHECKING:
    from pathlib import Path

    from sharepod.scheduler.orders import Order

Samples = dict[str, dict[tuple[str, ...], float]]


def samples(look: GateLook, tally: GateTally | None = None, names: QueueNames | None = None) -> Samples:
    """Return the values that are shown, by name and the values of the labels."""
    found: Samples = {}
    snapshot = GateSnapshot(look, tally or GateTally(), (names or QueueNames()).told(look))
    for family in families(TABLES, snapshot):
        for sample in family.samples:
            assert tuple(sample.labels.values()) not in found.get(sample.name, {})
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def look(line: Timeline, *, leading: bool = True, names: QueueNames | None = None) -> Samples:
    found = summarise_gates(line.memory, line.queues, line.now_s, leading=leading, turns=1, rules_refused=False)
    return samples(found, line.memory.tally, names)


def line_of(queues: Queues | None = None) -> Timeline:
    line = Timeline(nodes(1, 4), queues or Queues())
    line.come(task("runs", user="team", size=3, least=3, run_s=1e6))
    line.step()
    line.now_s = 30.0
    line.come(task("gang", user="team", size=4, least=2, arrive_s=30.0))
    line.come(task("small", user="other-team", milli=400, arrive_s=30.0))
    line.step()
    line.now_s = 95.0
    line.step()
    return line


def empty_look(queues: dict[str, QueueLook], ruled: tuple[str, ...] = ()) -> GateLook:
    return GateLook(True, 1, queues, ruled, 0.0, 1.0, False)


def test_queues_are_told_with_what_waits_and_what_they_hold() -> None:
    found = look(line_of())
    assert found["sharepod_gates_waiting_pods"] == {("other-team",): 0, ("team",): 4, (OTHER,): 0}
    assert found["sharepod_gates_waiting_shares"]["team",] == 4
    assert found["sharepod_gates_waiting_devices"]["team",] == 4.0
    assert found["sharepod_gates_held_devices"] == {("other-team",): 0.4, ("team",): 3.0, (OTHER,): 0}
    assert found["sharepod_gates_longest_wait_seconds"][()] == 65.0


def test_a_replica_that_does_not_decide_tells_no_queue_twice() -> None:
    found = look(line_of(), leading=False)
    assert found["sharepod_gates_waiting_pods"] == {(OTHER,): 0}
    assert found["sharepod_gates_held_devices"] == {(OTHER,): 0}
    assert found["sharepod_gates_leading"][()] == 0
    assert found["sharepod_gates_fairness"][()] == 1


@pytest.mark.parametrize(
    ("values", "index"), [([], 1.0), ([0, 0], 1.0), ([2, 2, 2], 1.0), ([1, 0, 0, 0], 0.25), ([3, 1], 0.8)]
)
def test_jains_index_is_one_where_all_have_the_same_and_less_the_fewer_have_all(
    values: list[float], index: float
) -> None:
    assert jain(values) == pytest.approx(index)


def test_fairness_is_jains_index_of_shares_by_weight() -> None:
    assert look(line_of())["sharepod_gates_fairness"][()] == pytest.approx(jain([3.0, 0.4]))
    weighted = Queues(Queue(), {"team": Queue(weight=7.5)})
    line = line_of(weighted)
    assert weighted_shares(line.memory, weighted) == {"team": pytest.approx(0.1), "other-team": pytest.approx(0.1)}
    assert look(line)["sharepod_gates_fairness"][()] == pytest.approx(1.0)


def test_who_is_paused_is_counted_apart_from_who_waits() -> None:
    line = Timeline(nodes(1, 1), Queues())
    line.come(task("low"))
    line.step()
    line.come(task("high", priority=10))
    line.step()
    line.step()
    found = look(line)
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
    line = Timeline(nodes(1, 4), Queues())
    line.come(task("gang", size=3, least=2))
    late = next(pod for pod in line.cluster.pods() if pod.name == "gang-2")
    for pod in [pod for pod in line.cluster.pods() if pod is not late]:
        line.cluster.remove_pod(pod.uid)
    line.step()
    line.now_s = 40.0
    line.come(task("other"))  # a round of its own
    for number in range(2):
        line._add_pod(line.courses["gang"].task, number, 40.0)
    line.step()
    line.now_s = 47.0
    line.step()
    found = look(line)
    assert found["sharepod_gates_gang_seconds_sum"] == {("release",): 40.0, ("start",): 7.0}
    assert found["sharepod_gates_gangs_total"]["released",] == 1
    assert found["sharepod_gates_gangs_total"]["grown",] == 1


def test_a_gang_that_timed_out_is_counted() -> None:
    line = Timeline(nodes(1, 4), Queues())
    line.come(task("gang", size=2, least=2))
    for pod in list(line.cluster.pods()):
        assert pod.gang is not None
        line.cluster.set_pod(replace(pod, gang=replace(pod.gang, timeout_s=60)))
    orders: list[Order] = decide(line.cluster, line.memory, line.queues, 0.0)
    for place in next(order for order in orders if isinstance(order, Release)).places:
        line.cluster.set_pod(replace(place.pod, gated=False, node=place.node, chosen=place.devices))
    decide(line.cluster, line.memory, line.queues, 61.0)
    assert look(line)["sharepod_gates_gangs_total"]["timed_out",] == 1


def test_queues_that_hold_more_than_their_caps_are_found() -> None:
    line = line_of()
    assert overfull(line.memory, Queues(Queue(), {"team": Queue(cap_milli=2999)})) == [("team", 3000, 2999)]
    assert overfull(line.memory, Queues(Queue(cap_milli=399))) == [("team", 3000, 399), ("other-team", 400, 399)]
    assert overfull(line.memory, Queues(Queue(), {"team": Queue(cap_milli=3000)})) == []


def test_what_the_api_server_took_and_refused_is_counted(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.add_node("n1", 1)
        world.create("low", 100, memory="1Gi")
        async with world.replica() as replica:
            tally = replica.keeper.memory.tally
            await eventually(lambda: world.is_released("low"), "not released")
            await eventually(lambda: tally.orders["release", "written"] == 1, "not counted")
            world.run("low")
            world.create("high", 60, priority=10, memory="1Gi", **{"class": "latency"})
            await eventually(lambda: world.yields("low") == "pause" and world.is_released("high"), "no room was made")
            world.run("high")
            world.server.delete("high")
            await eventually(lambda: tally.yields["resumed"] == 1, "not resumed")
            assert (tally.yields["paused"], tally.yields["evicted"]) == (1, 0)
            assert tally.orders["yield", "written"] == 2
            shown = summarise_gates(
                replica.keeper.memory, replica.keeper.queues, 0.0, leading=True, turns=1, rules_refused=False
            )
            found = samples(shown, tally)
            assert found["sharepod_gates_wait_seconds_count"]["latency", "positive"] == 1
            assert found["sharepod_gates_wait_seconds_count"]["standard", "zero"] == 1
            assert found["sharepod_gates_wait_seconds_bucket"]["latency", "positive", "10.0"] == 1
            assert found["sharepod_gates_round_seconds_count"]["decided",] > 0

    in_world(tmp_path, test)


def test_an_order_that_is_refused_is_counted_by_why(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.add_node("n1", 1)
        world.create("low", 100)
        async with world.replica() as replica:
            tally = replica.keeper.memory.tally
            await eventually(lambda: world.is_released("low"), "not released")
            world.run("low")
            world.guard("low")
            world.create("high", 100, priority=10)
            await eventually(lambda: tally.orders["evict", "budget"] >= 1, f"counted {tally.orders}")
            await eventually(lambda: "NotEvicted" in world.told("low"), "not told")
            says = "a disruption budget keeps it: for default/high of priority 10"
            assert world.said("low", "NotEvicted") == says
            assert tally.yields["evicted"] == tally.evictions["yield"] == 0
            body = world.server.nodes["", "n1"]
            body["metadata"]["labels"] = {}
            world.server.put_node(body)
            world.server.delete("low")
            await eventually(lambda: tally.orders["release", "invalid"] >= 1, f"counted {tally.orders}")

    in_world(tmp_path, test)


def test_a_round_that_fails_is_counted_logged_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gatekeeper, "FAILED_S", 0.2)
    decide_well = gatekeeper.decide
    left = 2

    def fail_first(*given: object, **more: object) -> list[Order]:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ArithmeticError("one that nobody thought of")
        return decide_well(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(gatekeeper, "decide", fail_first)

    async def test(world: World) -> None:
        world.add_node("n1", 1)
        world.create("a", 60)
        async with world.replica() as replica:
            await eventually(lambda: world.is_released("a"), "nothing was decided after a failure")
            found = samples(empty_look({}), replica.keeper.memory.tally)
            assert found["sharepod_gates_round_seconds_count"]["failed",] == 2

    in_world(tmp_path, test)
    assert len(re.findall("round failed", caplog.text)) == 2
