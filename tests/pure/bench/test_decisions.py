"""Test that the bench's cluster is as described, and that its decisions are the policy's."""

import numpy as np

from bench.cluster import decisions
from sharepod.scheduler.placement.native import Verdict


def test_decisions_in_a_small_cluster_are_the_best_of_the_candidates() -> None:
    made, _ = decisions.cluster(nodes=40, pods=400)
    snapshot, policy = made.snapshot, made.policy.native
    assert len(made.running) > 300
    full = 1 - sum(snapshot.free_milli.values()) / (40 * decisions.DEVICES * 1000)
    assert 0.6 < full < 1
    candidates = np.arange(39, -1, -1, dtype=np.int32)
    fitted = 0
    for request in made.requests[:50]:
        judged = snapshot.rank(request, policy, range(40))
        fitting = [one for one in judged if one.verdict is Verdict.FITS]
        best = min(fitting, key=lambda one: (one.cost, one.node), default=None)
        place = decisions.decide(snapshot, policy, request, candidates)
        assert (place and place.node) == (best and best.node)
        fitted += place is not None
    assert fitted > 10
    times = decisions.decisions(made, 20, 100)
    assert len(times.passed_ms) == len(times.worked_ms) == 100
    assert "p99" in times.told()
