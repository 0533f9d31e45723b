"""Test the scheduler's view under any order of events: nothing is promised twice, and a new replica sees the same."""

import random
from collections.abc import Iterator

import pytest
import valid_cluster
from cluster_world import World, pod_body
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sharepod.scheduler.placement.decision import Judgement, judge
from sharepod.scheduler.placement.native import Verdict
from sharepod.scheduler.placement.policy import Policy
from sharepod.scheduler.state.cluster import ASSUMED_S, Assumed, Cluster
from sharepod.scheduler.state.pod import NODE

SIZES = {"n1": 2, "n2": 1, "n3": 4}
UNITS = st.sampled_from([10, 25, 40, 50, 60, 75, 100, 200])
PICK = st.integers(0, 7)
ANNOTATIONS = st.sampled_from([{}, {}, {"sharepod.io/memory": "30Gi"}, {"sharepod.io/memory": "1Gi"},
                               {"sharepod.io/class": "latency"}])  # fmt: skip


class Events(RuleBasedStateMachine):
    """Events for one replica: it hears of them late and in any order, and its writes may be lost."""

    @initialize()
    def begin(self) -> None:
        self.world = World(SIZES)
        self.cluster: Cluster = self.world.replica()
        self.untold: set[tuple[str, str]] = set()
        """What has happened and the replica has not heard of yet."""
        self.writes: dict[str, Assumed] = {}
        self.number = 0

    def place(self, uid: str) -> None:
        if assumed := self.world.place(self.cluster, uid):
            self.writes[uid] = assumed

    @rule(units=UNITS, annotations=ANNOTATIONS)
    def create(self, units: int, annotations: dict[str, str]) -> None:
        self.number += 1
        self.untold.add(("pod", self.world.create(pod_body(f"p{self.number:03}", units, annotations))))

    @rule(sizes=st.lists(UNITS, min_size=1, max_size=5), annotations=ANNOTATIONS)
    def burst(self, sizes: list[int], annotations: dict[str, str]) -> None:
        """Let several pods come at once, and place them one after the other."""
        for units in sizes:
            self.create(units, annotations)
            self.place(f"uid-p{self.number:03}")

    @rule(pick=PICK)
    def run_all(self, pick: int) -> None:
        """Write all choices, then bind and start all released pods."""
        while self.writes:
            self.write(pick, lost=False)
        for uid in sorted(self.released()):
            self.world.bind(uid)
            self.start_one(uid)

    def released(self) -> set[str]:
        return {uid for uid, body in self.world.pods.items() if NODE in body["metadata"]["annotations"]}

    def some(self, pick: int, kind: str) -> str:
        """Return a pod that waits for its place, for its binding or for its start, or any pod; empty: there is none."""
        released = self.released()
        bound = {uid for uid, body in self.world.pods.items() if body["spec"].get("nodeName")}
        running = {uid for agent in self.world.agents.values() for uid in agent.shares}
        pods = set(self.world.pods)
        found = {
            "waiting": pods - released - set(self.writes), "released": released - bound, "bound": bound - running,
            "any": pods,
        }[kind]  # fmt: skip
        return sorted(found)[pick % len(found)] if found else ""

    @precondition(lambda self: self.world.pods)
    @rule(pick=PICK)
    def schedule(self, pick: int) -> None:
        if uid := self.some(pick, "waiting"):
            self.place(uid)

    @precondition(lambda self: self.writes)
    @rule(pick=PICK, lost=st.sampled_from([False, False, False, True]))
    def write(self, pick: int, lost: bool) -> None:
        """Write a choice, or lose the write; a lost choice is decided anew once it is assumed no longer."""
        assumed = self.writes.pop(sorted(self.writes)[pick % len(self.writes)])
        if not lost and self.world.release(assumed):
            self.untold.add(("pod", assumed.pod.uid))

    @precondition(lambda self: self.world.pods)
    @rule(pick=PICK)
    def bind(self, pick: int) -> None:
        if uid := self.some(pick, "released"):
            self.world.bind(uid)
            self.untold.add(("pod", uid))

    @precondition(lambda self: self.world.pods)
    @rule(pick=PICK)
    def start(self, pick: int) -> None:
        if uid := self.some(pick, "bound"):
            self.start_one(uid)

    def start_one(self, uid: str) -> None:
        assert self.world.start(uid), f"{uid} was sent where it does not fit"
        self.untold |= {("pod", uid), ("use", self.world.pod(uid).node)}

    @precondition(lambda self: self.world.pods)
    @rule(pick=PICK)
    def end(self, pick: int) -> None:
        uid = self.some(pick, "any")
        node = self.world.pods[uid]["spec"].get("nodeName")
        self.world.end(uid)
        self.writes.pop(uid, None)
        self.untold.add(("pod", uid))
        if node:
            self.untold.add(("use", node))

    @rule(seed=st.integers(0, 5), part=st.floats(0, 1))
    def hear(self, seed: int, part: float) -> None:
        """Tell the replica a part of what has happened."""
        items = sorted(self.untold)
        random.Random(seed).shuffle(items)
        for kind, name in items[: int(len(items) * part) + 1]:
            self.untold.discard((kind, name))
            self.world.tell(self.cluster, kind, name)

    @rule(seconds=st.sampled_from([0.5, ASSUMED_S + 1]))
    def wait(self, seconds: float) -> None:
        """Let time pass; first write and tell everything if the time exceeds how long a choice is assumed."""
        if seconds > ASSUMED_S:
            while self.writes:
                self.write(0, lost=False)
            self.hear_all()
        self.world.now_s += seconds
        self.cluster.advance(self.world.now_s)

    @rule(seed=st.integers(0, 5))
    def restart(self, seed: int) -> None:
        """Let another replica take over: choices that were assumed and not written are lost."""
        self.writes.clear()
        self.untold.clear()
        self.cluster = self.world.replica(random.Random(seed))

    def hear_all(self) -> None:
        for kind, name in sorted(self.untold):
            self.world.tell(self.cluster, kind, name)
        self.untold.clear()

    @invariant()
    def what_it_keeps_twice_is_the_same(self) -> None:
        valid_cluster.validate(self.cluster)

    @invariant()
    def no_device_is_oversubscribed(self) -> None:
        for agent in self.world.agents.values():
            for index in range(agent.devices):
                assert agent.used_milli(agent.uuid(index)) <= 1000
        self.cluster.advance(self.world.now_s)
        for name in SIZES:
            if row := self.cluster.row(name):
                assert min(row.free_milli) >= 0, f"{name} is promised twice: {row}"
        valid_cluster.validate(self.cluster)

    def teardown(self) -> None:
        """Check that, once all is heard and nothing is assumed, every replica sees and answers the same."""
        self.hear_all()
        self.world.now_s += ASSUMED_S + 1
        cluster = self.cluster
        cluster.advance(self.world.now_s)
        names = list(SIZES)
        for seed in range(3):
            other = self.world.replica(random.Random(seed))
            assert [other.row(name) for name in names] == [cluster.row(name) for name in names]
            for each in (cluster, other):
                each.renew(Policy("worth", each.snapshot, each.expected()), each.expected())
            for units in (25, 100, 200):
                pod = self.world.pod(self.world.create(pod_body("probe", units)))
                ours, theirs = (judge(each, pod, names) for each in (cluster, other))
                assert ours.names == theirs.names == names
                assert list(judgements(ours)) == list(judgements(theirs))
                del self.world.pods[pod.uid]


def judgements(judged: Judgement) -> Iterator[tuple[int, int, object]]:
    """Yield the result for each node: the verdict, and if the pod fits, the cost and the devices."""
    ranking = judged.ranking
    assert ranking is not None
    for position, (verdict, cost) in enumerate(zip(ranking.verdict.tolist(), ranking.cost.tolist(), strict=True)):
        fits = verdict == Verdict.FITS
        yield verdict, cost if fits else 0, ranking.devices(position) if fits else ()


Events.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestEvents = Events.TestCase
TestEvents.pytestmark = [pytest.mark.early]
