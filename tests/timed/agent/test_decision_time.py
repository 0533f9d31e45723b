"""Test how long a decision of the policy takes."""

import statistics
import time

from rig.virtual.policy import Policy


def test_a_decision_among_64_shares_takes_at_most_5_microseconds() -> None:
    policy = Policy()
    shares = [policy.add(0, 1.5, limit) for limit in (100, 50, 1.6, 1.5) * 16]
    now_ns, took = 0, []
    for share in shares:
        policy.wait(0, share)
    for _ in range(3000):
        begin = time.perf_counter_ns()
        choice = policy.lib.sp_policy_next(policy.state, now_ns)
        took.append(time.perf_counter_ns() - begin)
        if choice.share < 0:
            now_ns = choice.retry_ns
            continue
        now_ns += choice.quantum_ns
        policy.charge(now_ns, choice.share, choice.quantum_ns)
        policy.wait(now_ns, choice.share)
        policy.end(now_ns, choice.share)
    assert statistics.median(took) <= 2 * 5_000
