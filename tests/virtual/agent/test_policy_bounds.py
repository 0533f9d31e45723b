"""Test what bounds a share beside its place in the queue: its limit, its preemptors, and the quantum."""

import random

import pytest
from driving import MS, Driver, S, waiting

from rig.virtual.policy import Policy, Rule, ShareClass

LATENCY, STANDARD, BATCH = ShareClass.LATENCY, ShareClass.STANDARD, ShareClass.BATCH
HOLDERS = {
    Rule.LATENCY: (20, LATENCY, 0),
    Rule.REQUEST: (20, STANDARD, 0),
    Rule.SURPLUS: (20, STANDARD, -1),
    Rule.LEFTOVER: (0, BATCH, 0),
}
"""Request, class and credit of the share that the rule chooses."""


@pytest.mark.parametrize("limit_percent", [1, 5, 30, 50, 90, 99])
def test_a_limit_is_exact_and_smooth_on_an_idle_device(driver: Driver, limit_percent: int) -> None:
    share = driver.policy.add(0, 0, limit_percent)
    driver.saturate([share], 1 * S)
    pauses, part = [], driver.saturate([share], 10 * S)
    for _ in range(200):
        before_ns = driver.now_ns
        if driver.turn([share]) is None:
            pauses.append(driver.now_ns - before_ns)
    assert part[share] == pytest.approx(limit_percent, abs=0.2)
    assert max(pauses) <= 20 * MS


def test_retry_says_exactly_when_a_limit_lets_a_waiting_share_run(driver: Driver) -> None:
    share = driver.policy.add(0, 30, 30)
    while driver.turn([share]) is not None:
        refused_ns = driver.now_ns
    retry_ns = driver.now_ns  # turn() has advanced to the retry
    assert refused_ns < retry_ns
    assert driver.policy.next(retry_ns - 1).share is None
    assert driver.policy.next(retry_ns).share == share


@pytest.mark.parametrize(
    ("share_class", "credit", "missing", "revoked"),
    [
        (LATENCY, 0, 0, {Rule.REQUEST, Rule.SURPLUS, Rule.LEFTOVER}),
        (LATENCY, -1, 0, {Rule.LEFTOVER}),  # above its request
        (LATENCY, 0, 1, set()),  # over its limit
        (STANDARD, 0, 0, set()),
    ],
)
def test_only_a_latency_share_within_its_limit_revokes_and_above_its_request_only_who_uses_leftovers(
    share_class: ShareClass, credit: int, missing: int, revoked: set[Rule]
) -> None:
    for rule, (request, holders_class, holders_credit) in HOLDERS.items():
        policy = Policy()
        holder, waiter = policy.add(0, request, share_class=holders_class), policy.add(0, 20, 30, share_class)
        policy.wait(0, holder)
        policy.share(holder).credit = holders_credit
        assert policy.next(0).rule is rule
        policy.wait(0, waiter)
        policy.share(waiter).credit = credit
        policy.share(waiter).bucket -= missing
        assert policy.preempts(0, waiter, holder) == (rule in revoked), rule
        may_soon = share_class is LATENCY and rule is not Rule.LATENCY
        assert policy.preempts(1, waiter, holder) == may_soon, rule


def test_nobody_revokes_itself_or_who_holds_nothing(driver: Driver) -> None:
    holder, other = driver.policy.add(0, 40), driver.policy.add(0, 20)
    latency = driver.policy.add(0, 20, share_class=LATENCY)
    waiting(driver, holder)
    assert driver.policy.next(0).share == holder
    waiting(driver, latency, other)
    assert driver.policy.preempts(0, latency, holder)
    for nobody in (latency, other, 99):
        assert not driver.policy.preempts(0, latency, nobody)


def test_the_quantum_stays_between_2_and_50_ms_and_follows_waiters_and_units(driver: Driver) -> None:
    policy = driver.policy
    shares = [policy.add(0, 1.5) for _ in range(64)]
    waiting(driver, shares[0])
    assert policy.quantum(0, shares[0]) == 24 * MS
    assert policy.next(0).quantum_ns == 24 * MS
    waiting(driver, shares[1])
    assert policy.quantum(0, shares[0]) == 10 * MS  # a quantum that was granted alone is cut when another share waits
    assert policy.unit(shares[1], 60 * MS) == 30 * MS
    assert policy.unit(shares[1], 10 * S) == 50 * MS
    policy.unit(shares[1], 0)
    waiting(driver, *shares)
    assert policy.quantum(0, shares[0]) == 2 * MS


def test_a_quantum_is_the_ordinary_one_give_or_take_a_fifth(driver: Driver) -> None:
    policy = driver.policy
    shares = [policy.add(0, 50), policy.add(0, 30), policy.add(0, 20)]
    chance, parts = random.Random(1), []
    waiting(driver, *shares)
    for _ in range(1000):
        choice = policy.next(driver.now_ns)
        assert choice.share is not None
        parts.append(choice.quantum_ns / policy.quantum(driver.now_ns, choice.share))
        driver.use(choice.share, choice.quantum_ns + chance.choice([0, 0, 0, 5 * MS]))
        waiting(driver, choice.share)
        policy.end(driver.now_ns, choice.share)
    assert min(parts) == pytest.approx(0.8)
    assert max(parts) == pytest.approx(1.2)
