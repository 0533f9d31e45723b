"""Test exactly when the scheduler waits no more, forgets a token or ends a stream, and what would make room."""

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gates_world import World
from rounds_world import nodes, pod_of, request, task

from rig.until import eventually
from sharepod.scheduler.controller.queues import Queues
from sharepod.scheduler.explain.pending_status import NAMED, WAYS, Turn, turn_of
from sharepod.scheduler.feed import usage_identity
from sharepod.scheduler.feed.usage_identity import AGENT_USER, AUDIENCE, REMEMBER_S, TOKEN_MAX, Identities, Unanswered
from sharepod.scheduler.feed.usage_server import AGE_S, BURST, PACE, QUIET_S, UsageServer, _End, _Stream
from sharepod.scheduler.simulation.timeline import Timeline
from sharepod.scheduler.state.observer import PATIENCE_S
from sharepod.scheduler.state.usage import UsageBook


def turn(timeline: Timeline, name: str) -> Turn:
    timeline.state.look(timeline.cluster, (), timeline.now_s)
    pod = pod_of(timeline, name)
    found = turn_of(timeline.cluster, timeline.state, timeline.queues, pod, timeline.now_s, decides=True)
    assert found is not None
    return found


def test_of_those_that_would_yield_the_cheapest_are_told_and_many_are_counted() -> None:
    timeline = Timeline(nodes(5, 1), Queues())
    for number in range(5):
        timeline.now_s = 10.0 * number
        timeline.come(task(f"low{number}", request=request(1000, mib=None), run_s=1e6))
        timeline.step()
    timeline.now_s = 100.0
    timeline.come(task("high", priority=9))
    timeline.come(task("wide", priority=9, request=request(1000, 2)))
    ways = turn(timeline, "high").ways
    assert [way.evicted for way in ways] == [(f"team/low{number}",) for number in (4, 3, 2)][:WAYS], "the youngest"
    assert turn(timeline, "wide").yields.startswith("of 5 that are of lower priority not even all")
    timeline = Timeline(nodes(1, 1), Queues())
    for number in range(NAMED + 2):
        timeline.come(task(f"low{number}", milli=100, run_s=1e6))
    timeline.step()
    timeline.come(task("high", priority=9))
    [way] = turn(timeline, "high").ways
    assert (len(way.paused), way.more) == (NAMED, 2)


async def test_a_start_waits_for_agents_of_nodes_that_are_there_and_not_for_ever(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        for name in ("n1", "n2"):
            world.add_node(name, 1)
        agents, world.agents = world.agents, {}
        async with world.replica("one") as replica, world.replica("two") as other:
            for one in (replica, other):
                await eventually(lambda one=one: one.observer.listed and len(one.cluster.names()) == 2)  # type: ignore[misc]
                assert "nodes without: 2" in one.observer.not_ready(100.0)
            assert "nodes without: 2" in other.observer.not_ready(100 + PATIENCE_S - 0.1)
            assert other.observer.not_ready(100 + PATIENCE_S) == ""
            await replica.report({"n2": agents["n2"]})
            assert "nodes without: 1" in replica.observer.not_ready(101.0)
            world.server.store.delete("nodes", ("", "n1"))
            await eventually(lambda: replica.cluster.names() == ["n2"])
            assert replica.observer.not_ready(102.0) == ""
            world.server.store.delete("nodes", ("", "n2"))
            await eventually(lambda: not replica.book.names())
            world.add_node("n3", 1)
            await eventually(lambda: "n3" in replica.cluster.names())
            assert replica.observer.not_ready(103.0) == "", "it has been ready"


async def test_the_token_of_which_the_answer_is_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_identity, "REMEMBER_MAX", 2)
    asked: Counter[str] = Counter()
    clock = SimpleNamespace(now_s=0.0, status=200)

    class Api:
        async def call(self, _: str, __: str, *, body: Any, timeout_s: float) -> Any:
            asked[body["spec"]["token"]] += timeout_s > 0
            user = {"username": AGENT_USER, "extra": {"authentication.kubernetes.io/node-name": ["n1"]}}
            told = {"authenticated": True, "audiences": [AUDIENCE], "user": user}
            return SimpleNamespace(status=clock.status, body={"status": told})

    api: Any = Api()
    identities = Identities(api, ArithmeticError, lambda: clock.now_s)
    for clock.now_s, token in ((0.0, "a"), (1.0, "b"), (2.0, "a"), *((REMEMBER_S, token) for token in "aca")):
        assert await identities.node_of(token) == "n1"
    assert asked == {"a": 2, "b": 1, "c": 1}
    assert await identities.node_of("x" * TOKEN_MAX) == "n1"
    clock.status = 300
    with pytest.raises(Unanswered, match="the API server says 300"):
        await identities.node_of("d")


async def test_a_stream_may_send_its_burst_then_its_pace_and_is_ended_when_it_is_quiet_or_old() -> None:
    clock = SimpleNamespace(now_s=1000.0)
    server = UsageServer(UsageBook(), None, lambda: clock.now_s)
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
    burst, quiet, old = streams = [_Stream("n1", one, clock.now_s) for one in tasks]
    assert all(AGE_S <= one.old_s - 1000 <= 1.2 * AGE_S for one in streams)
    for at_s, count in ((1000.0, BURST), (1001.0, PACE)):
        for _ in range(int(count)):
            burst.pay(at_s, 0)
        assert burst.left == 0
    with pytest.raises(_End, match="more than 2 messages a second"):
        burst.pay(1001.0, 0)
    server._open |= {quiet, old}
    old.old_s = clock.now_s = 1000.0 + QUIET_S
    server.age()
    assert (quiet.end, old.end) == (None, None)
    clock.now_s += 1
    old.heard_s = clock.now_s
    server.age()
    assert [one.end.why for one in (quiet, old) if one.end] == ["quiet", "old"]
    tasks[0].cancel()
    await asyncio.wait(tasks)
