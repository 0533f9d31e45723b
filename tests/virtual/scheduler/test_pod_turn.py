"""Test what `sharepod explain pod/NAME` and `sharepod queue` show of pods that wait at their gates or make room."""

import asyncio
import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from rounds_world import nodes, pod_of, request, task
from typer.testing import CliRunner

from sharepod.cli.commands.pods import lines
from sharepod.cli.errors import CliError
from sharepod.cli.main import app
from sharepod.scheduler.controller.queues import Queue, Queues
from sharepod.scheduler.explain.explanation import explain
from sharepod.scheduler.explain.pending_status import LISTED, NEVER, NOBODY, UNLISTED, Turn, turn_of
from sharepod.scheduler.explain.queue_view import view
from sharepod.scheduler.explain.status_server import StatusServer
from sharepod.scheduler.placement.constraints import Constraints
from sharepod.scheduler.simulation.timeline import Timeline


def turn(timeline: Timeline, name: str, *, decides: bool = True) -> Turn:
    pod = pod_of(timeline, name)
    found = turn_of(timeline.cluster, timeline.state, timeline.queues, pod, timeline.now_s, decides=decides)
    assert found is not None
    return found


def reasons(timeline: Timeline, name: str) -> list[tuple[str, str]]:
    """Return the jobs before a pod's job, each with the reason that is told."""
    return [(before.job, before.why) for before in turn(timeline, name).before]


def shown(timeline: Timeline, name: str, *, decides: bool = True) -> str:
    """Return what the command prints after the way over the wire."""
    pod = pod_of(timeline, name)
    found = turn_of(timeline.cluster, timeline.state, timeline.queues, pod, timeline.now_s, decides=decides)
    answer = json.dumps(asdict(explain(timeline.cluster, pod, turn=found)))
    return "\n".join(lines(json.loads(answer), "http://here", 300))


def full() -> Timeline:
    """Return a cluster of four devices, all of which are taken."""
    timeline = Timeline(nodes(1, 4), Queues())
    timeline.come(task("heavy", user="heavy", size=3, least=3, run_s=1e6))
    timeline.come(task("light", user="light", run_s=1e6))
    timeline.step()
    timeline.now_s = 60.0
    return timeline


def test_a_pod_that_waits_is_told_who_is_before_it_and_why() -> None:
    timeline = full()
    timeline.come(task("mine", user="heavy", arrive_s=60.0))
    timeline.come(
        task("urgent", user="heavy", priority=5, arrive_s=60.0, request=request(1000, mib=None), size=5, least=5)
    )
    timeline.come(task("poorer", user="light", arrive_s=60.0))
    timeline.step()
    timeline.now_s = 70.0
    timeline.come(task("later", user="heavy", arrive_s=70.0))
    timeline.step()
    found = turn(timeline, "later")
    assert (found.position, found.in_line, found.in_queue) == (4, 4, 3)
    assert [(before.job, before.why) for before in found.before] == [
        ("heavy/urgent", "priority 5 is above 0"),
        ("light/poorer", "its queue holds 0.250 of the cluster by its weight, this one 0.750"),
        ("heavy/mine", "it came before"),
    ]
    assert found.standing.held_devices == 3.0
    text = shown(timeline, "later")
    assert "heavy/later: its gate is kept: no room for 100 percent now; by devices alone its shares fit on 0" in text
    assert "its turn: 4 of 4 jobs in the line, 3 of its queue; heavy/later has waited for less than 1 s" in text
    assert "before it heavy/urgent, 5 devices: priority 5 is above 0" in text
    assert "kube-scheduler" not in text
    assert "This replica does not decide" in shown(timeline, "later", decides=False)


def test_who_has_waited_for_too_long_or_is_paused_is_told_to_be_before_for_that() -> None:
    timeline = Timeline(nodes(1, 1), Queues(Queue(), {"old": Queue(longest_wait_s=30.0)}))
    timeline.come(task("low", user="low", run_s=1e6))
    timeline.step()
    timeline.come(task("high", user="high", priority=9, run_s=1e6))
    timeline.step()
    timeline.come(task("aged", user="old", priority=-7))
    timeline.come(task("equal", user="low"))
    timeline.now_s = 40.0
    timeline.step()
    paused = ("low/low", "it is paused: among equal jobs a paused one goes on first")
    assert reasons(timeline, "equal") == [("old/aged", "nodes are kept free for it"), paused]
    timeline.state.kept.clear()
    aged = "it has waited for longer than its queue lets anyone wait"
    assert reasons(timeline, "equal") == [("old/aged", aged), paused]
    for job, _ in timeline.state.waiting:
        timeline.state.kept[job.key] = ("n00",), 1e9
    came = "it came before"
    assert reasons(timeline, "equal") == [("old/aged", came), ("low/low", came)], "nodes are kept free for all three"


def test_of_two_that_have_waited_for_too_long_the_earlier_one_is_before_the_other_whatever_their_priority() -> None:
    timeline = Timeline(nodes(1, 1), Queues(Queue(longest_wait_s=30.0)))
    timeline.come(task("runs", run_s=1e6))
    timeline.step()
    timeline.come(task("first", priority=-7))
    timeline.now_s = 1.0
    timeline.come(task("second", priority=-5, arrive_s=1.0))
    timeline.now_s = 40.0
    timeline.step()
    timeline.state.kept.clear()
    assert reasons(timeline, "second") == [("team/first", "it came before")]


def test_a_paused_gang_that_lacks_a_member_is_not_in_the_line() -> None:
    timeline = Timeline(nodes(1, 2), Queues())
    timeline.come(task("gang", size=2, least=2, run_s=1e6))
    timeline.step()
    timeline.come(task("high", size=2, least=2, priority=9, run_s=1e6))
    timeline.step()
    timeline.step()
    assert turn(timeline, "gang-0").in_line == 1
    timeline.cluster.remove_pod(pod_of(timeline, "gang-1").uid)
    timeline.step()
    found = turn(timeline, "gang-0")
    assert found.gang is not None
    assert (found.gang.missing, found.position, found.in_line) == (1, None, 0)


def test_of_many_before_it_the_first_are_told_and_the_others_counted() -> None:
    timeline = full()
    for number in range(12):
        timeline.come(task(f"t{number:02}", user="heavy", arrive_s=60.0))
    timeline.step()
    found = turn(timeline, "t11")
    assert (found.position, len(found.before)) == (12, LISTED)
    assert "and 6 more" in shown(timeline, "t11")


def test_of_a_gang_it_is_told_who_is_missing() -> None:
    timeline = full()
    timeline.come(task("gang", user="heavy", size=6, least=4, arrive_s=60.0))
    for name in ("gang-3", "gang-4", "gang-5"):
        timeline.cluster.remove_pod(pod_of(timeline, name).uid)
    timeline.step()
    found = turn(timeline, "gang-1")
    assert found.gang is not None
    assert (found.gang.size, found.gang.least, found.gang.waiting, found.gang.missing) == (6, 4, 3, 1)
    assert found.position is None
    text = shown(timeline, "gang-1")
    assert "its gate is kept: 3 of 4 members of the gang are there" in text
    assert "gang: 3 of 6 members are there, 0 of them released; 4 start together, and 1 of these have still" in text


def test_why_others_do_not_yield_is_told() -> None:
    timeline = full()
    timeline.come(task("equal", user="heavy", arrive_s=60.0))
    timeline.step()
    assert turn(timeline, "equal").yields == NOBODY
    assert f"nobody makes room: {NOBODY}" in shown(timeline, "equal")
    timeline.come(task("polite", user="heavy", priority=5, arrive_s=60.0))
    pod_of(timeline, "polite", preempts=False)
    timeline.step()
    assert turn(timeline, "polite").yields == NEVER
    timeline.come(task("huge", user="heavy", priority=5, request=request(1000, devices=5), arrive_s=60.0))
    timeline.step()
    assert "not even all would make room for it on one node" in turn(timeline, "huge").yields


def test_who_would_yield_and_what_that_loses_is_told_and_nothing_changes() -> None:
    timeline = full()
    timeline.come(task("high", user="high", priority=5, arrive_s=60.0))
    pod = pod_of(timeline, "high")
    timeline.state.note(pod, since_s=60.0)
    timeline.state.look(timeline.cluster, (), timeline.now_s)
    version = timeline.cluster.version
    found = turn(timeline, "high")
    assert [(way.node, way.paused, way.evicted) for way in found.ways] == [("n00", ("light/light",), ())]
    assert found.why == UNLISTED
    assert timeline.cluster.version == version
    assert "on n00 a pod of it would fit if light/light were paused" in shown(timeline, "high")
    for name in ("heavy-0", "heavy-1", "heavy-2", "light"):
        there = pod_of(timeline, name)
        timeline.cluster.set_pod(
            replace(there, request=replace(there.request, shares=(replace(there.request.shares[0], mib=None),)))
        )
    timeline.state.look(timeline.cluster, (), timeline.now_s)
    timeline.cluster.advance(timeline.now_s)
    [way] = turn(timeline, "high").ways
    assert (way.paused, way.evicted) == ((), ("light/light",))
    assert way.lost_s == pytest.approx(60.0), "it has just been seen to run, and starts anew"


def test_nodes_that_are_closed_to_it_are_told_by_why() -> None:
    timeline = Timeline(nodes(3, 1), Queues())
    for name in ("one", "two", "three"):
        timeline.come(task(name, run_s=1e6))
    timeline.step()
    timeline.come(task("mine", user="mine"))
    pod_of(timeline, "mine", constraints=Constraints((("disk", "fast"),), None, ()))
    timeline.step()
    [barred] = turn(timeline, "mine").barred
    assert (barred.nodes, barred.examples) == (3, ("n00", "n01", "n02"))
    assert "3 nodes (n00, n01, n02): its node selector or affinity, a taint or a cordon keeps it away" in shown(
        timeline, "mine"
    )
    timeline.come(task("other", user="other"))
    timeline.step()
    timeline.state.kept["mine", "pod/mine"] = ("n01",), 1e9
    node = timeline.cluster.node("n02")
    assert node is not None
    timeline.cluster.set_node(replace(node, units=100))
    timeline.cluster.advance(timeline.now_s)
    assert {(one.why.split(",")[0], one.examples) for one in turn(timeline, "other").barred} == {
        ("kept free for mine", ("n01",)), ("kubelet has not enough percents of devices left there", ("n02",)),
    }  # fmt: skip


def test_a_pod_that_makes_room_is_told_for_whom_since_when_and_when_it_goes_on() -> None:
    timeline = Timeline(nodes(1, 1), Queues())
    timeline.come(task("low", run_s=1e6))
    timeline.step()
    timeline.now_s = 100.0
    timeline.come(task("high", priority=9, run_s=1e6, arrive_s=100.0))
    timeline.step()
    timeline.now_s = 190.0
    timeline.step()
    found = turn(timeline, "low")
    assert (found.waits, found.waited_s, found.why) == (False, 90.0, "for team/high of priority 9")
    text = shown(timeline, "low")
    assert "it makes room for 1 min 30 s: for team/high of priority 9" in text
    assert "to go on: 1 of 1 jobs in the line" in text
    timeline.state.yields.clear()
    assert "another replica has decided it; see its Events" in shown(timeline, "low")
    timeline.end("high")
    timeline.step()
    pod = pod_of(timeline, "low")
    assert turn_of(timeline.cluster, timeline.state, timeline.queues, pod, 191.0, decides=True) is None


def test_a_pod_that_others_hold_is_told_so() -> None:
    timeline = full()
    timeline.come(task("mine", user="heavy", arrive_s=60.0))
    pod_of(timeline, "mine", withheld=True)
    timeline.step()
    assert "another's scheduling gate holds it, and it takes no room before that has gone" in shown(timeline, "mine")


def test_a_gang_of_which_more_came_than_it_takes_tells_those_so() -> None:
    timeline = full()
    timeline.come(task("gang", user="heavy", size=2, least=2, arrive_s=60.0))
    extra = replace(pod_of(timeline, "gang-1"), uid="extra", name="gang-9", created="9")
    timeline.state.note(extra, since_s=60.0)
    timeline.cluster.set_pod(extra)
    timeline.step()
    assert turn(timeline, "gang-9").why == "its gang has 2 other members already, as many as it takes"


@pytest.mark.parametrize("turned", [7, [], {"decides": True}, {"decides": True, "waits": True, "waited_s": "x"}])
def test_what_is_no_turn_is_one_clear_error(turned: object) -> None:
    timeline = full()
    found = json.loads(json.dumps(asdict(explain(timeline.cluster, pod_of(timeline, "light")))))
    with pytest.raises(CliError, match="no SharePod scheduler of this version"):
        lines({**found, "turn": turned}, "http://here", 80)


def rounds() -> Timeline:
    timeline = Timeline(nodes(1, 4), Queues(Queue(), {"capped": Queue(weight=2.0, cap_milli=1000)}))
    timeline.come(task("runs", user="team", size=3, least=3, run_s=1e6))
    timeline.come(task("more", user="capped", milli=900))
    timeline.step()
    timeline.now_s = 30.0
    timeline.come(task("gang", user="team", size=4, least=2, arrive_s=30.0))
    timeline.come(task("over", user="capped", milli=200, arrive_s=30.0))
    timeline.come(task("never", user="team", size=9, least=9, arrive_s=30.0, priority=5))
    timeline.step()
    return timeline


def queue(*arguments: str, decides: bool = True, trouble: str = "") -> tuple[int, str, str]:
    """Run the command against a server that shows `cycles`; return exit status, stdout and stderr."""
    timeline = rounds()
    lease: Any = SimpleNamespace(is_held=lambda: decides, trouble=trouble)

    def look(_: float) -> dict[str, object]:
        return view(timeline.state, timeline.queues, lease, 95.0, refusal="queues.yaml: 'a': weight is -1")

    async def request() -> tuple[int, str, str]:
        status = StatusServer(timeline.cluster, not_ready=lambda: "", queue=look, turn=lambda *_: None)
        port = await status.start("127.0.0.1:0", None)
        try:
            command = ["queue", "--scheduler", f"http://127.0.0.1:{port}", *arguments]
            result = await asyncio.to_thread(CliRunner().invoke, app, command)
            return result.exit_code, result.stdout, result.stderr + str(result.exception or "")
        finally:
            await status.stop()

    return asyncio.run(request())


def test_what_waits_is_shown_in_order_with_the_reasons_and_what_queues_hold() -> None:
    code, shown, aside = queue()
    assert code == 0
    flat = " ".join(shown.split())
    assert "1 team/never 5 9 9 1 min 5 s 9 pods of 100 percent would not fit into the empty cluster" in flat
    assert "team/gang 0 2-4 4 1 min 5 s no room for 2 pods of 100 percent now" in flat
    assert "capped/over 0 1 0.2 1 min 5 s queue capped would hold more than its cap of 1 devices" in flat
    assert "capped 2 0.9 1 0.113 1 team 1 3 - 0.750 2" in flat
    assert "the rules of queues stay as they were: queues.yaml: 'a': weight is -1" in aside


def test_one_queue_is_shown_alone_and_as_json() -> None:
    code, shown, _ = queue("-n", "capped", "-o", "json")
    assert code == 0
    found = json.loads(shown)
    assert [job["job"] for job in found["waiting"]] == ["capped/over"]
    assert [(one["queue"], one["share"]) for one in found["queues"]] == [("capped", 0.1125)]
    assert found["fairness"] == round((0.75 + 0.1125) ** 2 / (2 * (0.75**2 + 0.1125**2)), 6)


def test_a_replica_that_does_not_decide_shows_no_queue() -> None:
    code, shown, why = queue(decides=False)
    assert (code, shown) == (1, "")
    assert "this replica does not decide, another one has the queue" in why
    code, shown, _ = queue("-o", "json", decides=False, trouble="API server https://10.0.0.1 is not reached")
    found = json.loads(shown)
    assert (code, found["decides"], found["waiting"], found["queues"]) == (0, False, [], []), "what it knew is not told"
    assert found["trouble"] == "API server https://10.0.0.1 is not reached"
