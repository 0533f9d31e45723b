"""The scheduler's view under any order of events: nothing is promised twice, and who starts anew sees the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from cluster_world import World, pod_body, rows
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sharepod.scheduler.cluster import ASSUMED_S, Assumed
from sharepod.scheduler.policy import Policy

if TYPE_CHECKING:
    from sharepod.scheduler.extender import Extender

SIZES = {"n1": 2, "n2": 1, "n3": 4}
UNITS = st.sampled_from([10, 25, 40, 50, 60, 75, 100, 200])
PICK = st.integers(0, 7)
ANNOTATIONS = st.sampled_from([{}, {}, {"sharepod.io/memory": "30Gi"}, {"sharepod.io/memory": "1Gi"},
                               {"sharepod.io/class": "latency"}])  # fmt: skip


class Events(RuleBasedStateMachine):
    """One replica; what it is told comes late and in any order, and what it writes may be lost."""

    @initialize()
    def begin(self) -> None:
        self.world = World(SIZES)
        self.extender: Extender = self.world.replica()
        self.untold: set[tuple[str, str]] = set()
        """What has happened and the replica has not heard of."""
        self.writes: dict[str, Assumed] = {}
        self.extender.chosen = self.chose
        self.number = 0
        self.careless = False
        """Somebody was away: a replica, a write. Agents may then have to refuse, until all is known again."""

    def chose(self, assumed: Assumed) -> None:
        self.writes[assumed.pod.uid] = assumed

    @rule(units=UNITS, annotations=ANNOTATIONS)
    def create(self, units: int, annotations: dict[str, str]) -> None:
        self.number += 1
        self.untold.add(("pod", self.world.create(pod_body(f"p{self.number:03}", units, annotations))))

    @rule(sizes=st.lists(UNITS, min_size=1, max_size=5), annotations=ANNOTATIONS)
    def burst(self, sizes: list[int], annotations: dict[str, str]) -> None:
        """Several pods come at once, and are scheduled one after the other."""
        for units in sizes:
            self.create(units, annotations)
            uid = f"uid-p{self.number:03}"
            if self.world.schedule(self.extender, uid):
                self.untold.add(("pod", uid))

    @rule(pick=PICK)
    def run_all(self, pick: int) -> None:
        """What was chosen is written, and whatever is bound starts."""
        while self.writes:
            self.write(pick, lost=False)
        for uid in sorted(self.world.pods):
            if self.world.pods[uid]["spec"].get("nodeName") and self.world.pod(uid).chosen:
                self.start_one(uid)

    def some(self, pick: int, kind: str) -> str:
        """Return one of the pods that wait to be bound, to be started, or that are there; empty: there is none."""
        bound = {uid for uid, body in self.world.pods.items() if body["spec"].get("nodeName")}
        running = {uid for agent in self.world.agents.values() for uid in agent.shares}
        found = {"unbound": set(self.world.pods) - bound, "bound": bound - running, "any": set(self.world.pods)}[kind]
        return sorted(found)[pick % len(found)] if found else ""

    @precondition(lambda self: self.world.pods)
    @rule(pick=PICK)
    def schedule(self, pick: int) -> None:
        uid = self.some(pick, "unbound")
        if uid and self.world.schedule(self.extender, uid):
            self.untold.add(("pod", uid))

    @precondition(lambda self: self.writes)
    @rule(pick=PICK, lost=st.sampled_from([False, False, False, True]))
    def write(self, pick: int, lost: bool) -> None:
        assumed = self.writes.pop(sorted(self.writes)[pick % len(self.writes)])
        if lost:
            self.careless = True
        elif self.world.annotate(assumed.pod, assumed.devices):
            self.untold.add(("pod", assumed.pod.uid))

    @precondition(lambda self: self.world.pods)
    @rule(pick=PICK)
    def start(self, pick: int) -> None:
        """The plugin waits for what was chosen: here for as long as it takes, unless it was lost."""
        uid = self.some(pick, "bound")
        if not uid or uid in self.writes:
            return
        if self.world.pod(uid).chosen or self.careless:
            self.start_one(uid)

    def start_one(self, uid: str) -> None:
        pod = self.world.pod(uid)
        started = self.world.start(uid)
        assert started or self.careless, f"{uid} was sent where it does not fit"
        self.untold |= {("pod", uid), ("use", pod.node)}

    @precondition(lambda self: self.world.pods)
    @rule(pick=PICK)
    def end(self, pick: int) -> None:
        uid = self.some(pick, "any")
        if not uid:
            return
        node = self.world.pods[uid]["spec"].get("nodeName")
        self.world.end(uid)
        self.writes.pop(uid, None)
        self.untold.add(("pod", uid))
        if node:
            self.untold.add(("use", node))

    @rule(seed=st.integers(0, 5), part=st.floats(0, 1))
    def hear(self, seed: int, part: float) -> None:
        """The replica hears of some of what has happened."""
        items = sorted(self.untold)
        random.Random(seed).shuffle(items)
        for kind, name in items[: int(len(items) * part) + 1]:
            self.untold.discard((kind, name))
            self.world.tell(self.extender.cluster, kind, name)

    @rule(seconds=st.sampled_from([0.5, ASSUMED_S + 1]))
    def wait(self, seconds: float) -> None:
        """Time passes; more than a choice is assumed for only when what it led to is written and seen."""
        if seconds > ASSUMED_S:
            while self.writes:
                self.write(0, lost=False)
            self.hear_all()
        self.world.now_s += seconds
        self.extender.cluster.settle(self.world.now_s)

    @rule(seed=st.integers(0, 5))
    def restart(self, seed: int) -> None:
        """Another replica takes over: what was assumed and not written is lost."""
        self.careless = self.careless or bool(self.writes)
        self.writes.clear()
        self.untold.clear()
        self.extender = self.world.replica(random.Random(seed))
        self.extender.chosen = self.chose

    @rule()
    def look(self) -> None:
        """What is bound and untold is told."""
        self.hear_all()
        self.extender.cluster.settle(self.world.now_s)
        for pod, devices in self.extender.cluster.untold():
            if devices and pod.uid not in self.writes:
                self.world.annotate(pod, devices)
                self.untold.add(("pod", pod.uid))

    def hear_all(self) -> None:
        for kind, name in sorted(self.untold):
            self.world.tell(self.extender.cluster, kind, name)
        self.untold.clear()

    @invariant()
    def no_device_is_oversubscribed(self) -> None:
        if not hasattr(self, "world"):
            return
        for agent in self.world.agents.values():
            for index in range(agent.devices):
                assert agent.used_milli(agent.uuid(index)) <= 1000
        self.extender.cluster.settle(self.world.now_s)
        for name in SIZES:
            row = self.extender.cluster.row(name)
            if row is not None and not self.careless:
                assert min(row.free_milli) >= 0, f"{name} is promised twice: {row}"

    def teardown(self) -> None:
        """In the end, when all is heard and nothing is assumed, every replica sees the same and answers the same."""
        self.hear_all()
        self.world.now_s += ASSUMED_S + 1
        cluster = self.extender.cluster
        cluster.settle(self.world.now_s)
        names = list(SIZES)
        for seed in range(3):
            other = self.world.replica(random.Random(seed))
            assert rows(other.cluster, names) == rows(cluster, names)
            for each in (cluster, other.cluster):
                each.renew(Policy("worth", each.board, each.expected()), each.expected())
            for units in (25, 100, 200):
                pod = self.world.pod(self.world.create(pod_body("probe", units)))
                ours, theirs = (each.filter(pod, names, self.world.now_s) for each in (self.extender, other))
                assert ours == theirs, (ours, theirs)
                if len(ours.fitting) > 1:
                    one, another = (each.prioritise(pod, names, self.world.now_s) for each in (self.extender, other))
                    assert one.devices
                    assert one == another
                for each in (self.extender, other):
                    each.cluster.forget(pod.uid)
                del self.world.pods[pod.uid]


Events.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestEvents = Events.TestCase
