"""Test the loop around the cycles and what it writes: at their limits, and where the API server refuses or is away."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_world import read
from gates_world import World
from rounds_world import nodes, request

from rig.until import eventually
from sharepod.kube.client import Client
from sharepod.kube.event_writer import EventWriter
from sharepod.kube.events import Subject
from sharepod.scheduler.controller import action_writer, exit_status, gate_controller
from sharepod.scheduler.controller.action_writer import ActionWriter
from sharepod.scheduler.controller.actions import Action, Evict, Release, Yield
from sharepod.scheduler.controller.exit_status import ExitStatuses
from sharepod.scheduler.controller.gang_annotations import Gang
from sharepod.scheduler.controller.gate_controller import AGE_MAX_S, NEWS_S, GateController
from sharepod.scheduler.controller.queues import Queues
from sharepod.scheduler.controller.restarts import FAILED, GONE, Restarts
from sharepod.scheduler.placement.request import PodRequest, ShareRequest
from sharepod.scheduler.simulation.timeline import Timeline
from sharepod.scheduler.state.cluster import Assumed, Cluster
from sharepod.scheduler.state.node import read_node
from sharepod.scheduler.state.pod import Pod


def pod_like(name: str, **more: Any) -> Pod:
    given: dict[str, Any] = {
        "namespace": "team", "node": "", "priority": 0, "created": "", "ended": False, "deleting": False,
        "request": request(), "containers": ("main",),
    }  # fmt: skip
    return Pod(uid=name, name=name, **given | more)


class Writer(ActionWriter):
    """A writer that notes what it would write."""

    def __init__(self, cluster: Cluster) -> None:
        nothing: Any = None
        super().__init__(nothing, cluster, nothing)
        self.wrote: list[Action] = []
        self.said: list[tuple[str, bool]] = []

    def write(self, actions: Iterable[Action]) -> None:
        self.wrote += actions

    def tell_of(self, subject: Subject, reason: str, text: str, *, warning: bool) -> None:
        self.said.append((f"{reason}: {text.partition(':')[0]}", warning))


class Keeper:
    """A controller with its parts; the wall clock shows `unix_s`."""

    def __init__(self, count: int = 4) -> None:
        self.timeline = Timeline(nodes(1, count), Queues())
        self.held, self.why, self.unix_s = True, "", 1e9
        lease: Any = SimpleNamespace(is_held=lambda: self.held)
        self.writer = Writer(self.timeline.cluster)
        self.gates = GateController(
            self.timeline.cluster, self.writer, lease, lambda: self.why, unix=lambda: self.unix_s
        )
        self.timeline.state = self.gates.state

    def come(self, name: str, created_s: float, started_s: float = 0.0, **more: Any) -> Pod:
        """Let a pod come that was made and started at these times of the wall clock; 0: none is told."""
        at = [datetime.fromtimestamp(at_s, UTC).isoformat() if at_s else "" for at_s in (created_s, started_s)]
        pod = pod_like(name, created=at[0], started=at[1], **{"running": bool(started_s)} | more)
        self.timeline.cluster.set_pod(pod)
        return pod


def test_ages_come_from_other_clocks_and_are_believed_within_limits() -> None:
    keeper = Keeper()
    state = keeper.gates.state
    keeper.why = "it starts"
    keeper.gates.look(1000.0)
    keeper.come("old", 1e9 - 500, 1e9 - 400)
    keeper.come("oldest", 1.0, 1e9 - 600)
    keeper.come("young", 1e9 - 10, 1e9 - 20)
    keeper.come("early", 1e9 + 10, 1e9 + 5)
    keeper.come("dateless", 0.0, 1e9 - 5)
    keeper.come("pulls", 1e9 - 500, 1e9 - 400, running=False)
    assert keeper.gates.look(1000.0) is False
    pods = {pod.name: pod for pod in keeper.timeline.cluster.pods()}
    assert {name: (1000 - state.came_s(pod), 1000 - state.started_s(pod)) for name, pod in pods.items()} == {
        "old": (500, 400), "oldest": (AGE_MAX_S, 600), "young": (10, 10), "early": (0, 0), "dateless": (0, 0),
        "pulls": (500, 500),
    }  # fmt: skip
    keeper.why = ""
    keeper.gates.look(1001.0)
    late = keeper.come("late", 1e9 - 500, 1e9 - 400)
    keeper.unix_s += 1.0
    keeper.gates.look(1001.0)
    assert (state.came_s(late), state.started_s(late)) == (1001 - NEWS_S, 1001 - NEWS_S)


def test_the_wall_clock_may_be_slewed_and_its_jumps_do_not_count() -> None:
    gates = Keeper().gates
    assert [gates._offset(shown_s) for shown_s in (900.0, 905.0, 911.0, 901.0)] == [900.0, 905.0, 905.0, 905.0]


@pytest.mark.parametrize(("held", "why", "decides"), [(True, "", True), (False, "", False), (True, "starts", False)])
def test_only_a_replica_that_leads_and_knows_enough_decides_and_the_others_follow(
    monkeypatch: pytest.MonkeyPatch, held: bool, why: str, decides: bool
) -> None:
    monkeypatch.setattr(gate_controller, "PLACED", 4)
    keeper = Keeper()
    keeper.gates.state.decides = True
    for name in "abc":
        keeper.come(name, 1e9, gated=True)
    keeper.held, keeper.why = held, why
    assert keeper.gates.look(5.0) is False, "a cycle may place one more"
    assert (bool(keeper.writer.wrote), keeper.gates.state.decides, keeper.gates.rounds) == (decides, decides, decides)
    assert len(keeper.gates.state.jobs) == 3
    counts, sum_s = keeper.gates.state.counters.rounds["decided"].seconds
    assert (sum(counts), 0 < sum_s < 60) == (decides, decides)
    keeper = Keeper()
    for name in "abcd":
        keeper.come(name, 1e9, gated=True)
    assert keeper.gates.look(5.0) is True


def test_queues_that_come_to_hold_more_than_their_caps_are_told_once_and_again_when_caps_are_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate_controller, "TOLD_MAX", 1)
    keeper = Keeper()
    keeper.gates._rules = Subject("sharepod", "rules", "", "ConfigMap")
    for name in ("a", "b"):
        keeper.come(name, 1e9, namespace=name, node="n00", chosen=(("n00/0",),), request=request(400))
    capped, said = {"queues.yaml": "default: {cap: 0.3}"}, keeper.writer.said
    read, over = (
        ("QueuesRead: rules of 0 queues, and of all others", False),
        "QueueOverCap: queue a holds 0.4 devices, its",
    )
    for rules, told in (
        (capped, [read, (f"{over} cap is 0.3", True)]),
        (None, []),
        ({"queues.yaml": "default: {cap: 0.3"}, [("QueuesRefused: the rules stay as they were", True)]),
        (capped, [read, (f"{over} cap is 0.3", True)]),
        ({"queues.yaml": "default: {cap: 0.4}"}, [read]),
    ):
        if rules is not None:
            keeper.gates.set_rules(rules)
        keeper.gates.look(5.0)
        assert said == told
        assert bool(keeper.gates.refusal) == (told[:1] != [read] and told != [])
        said.clear()


@pytest.mark.parametrize(
    ("classes", "counted"), [(("batch", "latency"), "latency"), (("standard", "batch"), "standard"), ((), "batch")]
)
def test_how_long_a_released_pod_has_waited_is_counted_under_its_most_urgent_class(
    classes: tuple[str, ...], counted: str
) -> None:
    keeper = Keeper()
    shares = tuple(ShareRequest(100, share_class=one) for one in classes)
    pod = keeper.come("one", 1e9, request=PodRequest(100, 100, shares))
    keeper.writer.released(pod)
    keeper.gates.state.note(pod, since_s=time.monotonic() - 20.0)
    keeper.writer.released(pod)
    found = {key: waits.seconds for key, waits in keeper.gates.state.counters.waits.items() if any(waits.seconds[0])}
    assert list(found) == [(counted, "zero")]
    assert 20.0 <= found[counted, "zero"][1] < 80.0


async def test_a_cycle_follows_a_change_or_a_time_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_controller, "ROUND_S", 0.0)
    monkeypatch.setattr(gate_controller, "LOOK_S", time.monotonic() / 2)
    keeper = Keeper()
    looks: list[int] = []
    advance = keeper.timeline.cluster.advance

    def counted(now_s: float) -> None:
        looks.append(keeper.gates.rounds)
        advance(now_s)

    monkeypatch.setattr(keeper.timeline.cluster, "advance", counted)
    task = asyncio.create_task(keeper.gates.decide_for_ever())
    try:
        await eventually(lambda: len(looks) > 20)
        assert keeper.gates.rounds == 1
        keeper.come("one", 1e9, node="n00", chosen=(("n00/0",),))
        before = len(looks)
        await eventually(lambda: len(looks) > before + 20)
        assert keeper.gates.rounds == 2
        monkeypatch.setattr(gate_controller, "LOOK_S", 0.0)
        await eventually(lambda: keeper.gates.rounds > 9)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def writer_of(world: World, tmp_path: Path) -> AsyncIterator[ActionWriter]:
    """Give a writer that no replica runs; its Events are only queued."""
    async with Client(world.server.access(tmp_path / "account"), "test") as api:
        cluster = Cluster()
        there = read_node(world.server.nodes["", "n1"])
        assert there is not None
        cluster.set_node(there)
        writer = ActionWriter(api, cluster, EventWriter(api, "here", "test"))
        yield writer
        await writer.stop()


async def written(writer: ActionWriter, *actions: Action) -> dict[tuple[str, ...], int]:
    """Have actions written; return what was counted."""
    writer.counters.actions.clear()
    writer.write(actions)
    await eventually(lambda: not writer._tasks, "requests are still under way")
    return dict(writer.counters.actions)


@pytest.mark.parametrize(
    ("code", "after", "times", "result"),
    [(503, None, 2, "busy"), (429, "1", 2, "busy"), (403, None, 1, "forbidden"), (400, None, 1, "invalid"),
     (422, None, 1, "invalid"), (404, None, 1, "gone")],
)  # fmt: skip
async def test_a_request_is_repeated_for_its_time_where_that_may_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, after: str | None, times: int, result: str
) -> None:
    monkeypatch.setattr(action_writer, "TRY_S", 0.5)
    async with World(tmp_path, n1=1) as world, writer_of(world, tmp_path) as writer:
        world.create("one", 50)
        refused: list[Pod] = []
        writer.refused = refused.append
        world.server.faults.refuse(code, times=9, after=after, only="post pods/eviction")
        assert await written(writer, Evict(read(world.body("one")), "why")) == {("evict", result): 1}
        assert (world.server.requests["post pods/eviction"], refused) == (times, [])


async def test_what_is_released_is_told_unless_too_many_events_wait_and_needs_a_node(tmp_path: Path) -> None:
    async with World(tmp_path, n1=1) as world, writer_of(world, tmp_path) as writer:
        job: Any = None
        released: list[Pod] = []
        writer.released = released.append
        for number in range(127):
            writer.tell(pod_like(f"m{number}"), "Waits", "for room", warning=False)
        for name, node, waiting in (("a", "gone", 127), ("b", "n1", 128), ("c", "n1", 129), ("d", "n1", 129)):
            world.create(name, 10)
            assumed = Assumed(read(world.body(name)), node, (("GPU-n1-0",),), 1e9)
            result = "invalid" if node == "gone" else "written"
            assert await written(writer, Release(job, (assumed,))) == {("release", result): 1}
            assert writer._events.waiting == waiting
        assert [pod.name for pod in released] == ["b", "c", "d"]


async def test_requests_that_are_under_way_are_cancelled_at_the_end(tmp_path: Path) -> None:
    async with World(tmp_path, n1=1) as world, writer_of(world, tmp_path) as writer:
        world.create("one", 50)
        world.server.faults.delay(60.0, "patch pods")
        writer.write([Yield(read(world.body("one")), "pause", "why")])
        await eventually(lambda: world.server.requests["patch pods"])
        await writer.stop()
        assert not writer.counters.actions


async def test_how_members_ended_is_asked_until_there_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_status, "LOOK_S", 1e9)
    monkeypatch.setattr(exit_status, "AWAY_S", 0.0)
    async with World(tmp_path, n1=1) as world, Client(world.server.access(tmp_path / "account"), "test") as api:
        lost = Restarts()
        for name in ("lives", "failed", "again", "gone"):
            world.create(name, 10)
            lost.lose(replace(read(world.body(name)), gang=Gang("gang", 3, 3, 600, "whole"), gated=False), 0.0)
        for name in ("failed", "again"):
            world.server.put(world.body(name) | {"status": {"phase": "Failed", "reason": "Evicted"}})
        remade = world.body("again")
        world.server.put(remade | {"metadata": remade["metadata"] | {"uid": "another"}})
        world.server.delete("gone")
        world.server.faults.refuse(503, only="get pods")
        held: Any = SimpleNamespace(is_held=lambda: True)
        task = asyncio.create_task(ExitStatuses(api, lost, held).ask_for_ever())
        try:
            await eventually(lambda: not lost.unknown(9), "not answered")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        found = {one.pod.name: (one.how, one.detail) for one in lost._lost.values()}
        deleted = (GONE, "it was deleted")
        assert found == {"failed": (FAILED, "reason 'Evicted'"), "again": deleted, "gone": deleted}
        assert world.server.requests["get pods"] == 5
