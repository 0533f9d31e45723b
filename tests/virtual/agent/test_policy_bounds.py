"""What bounds a share beside its place in the queue: its limit, who may take its turn away, and the quantum."""

import random

import pytest
from driving import MS, Driver, S, waiting

from rig.virtual.policy import Rule, ShareClass

LATENCY, BATCH = ShareClass.LATENCY, ShareClass.BATCH


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


def test_a_limit_that_was_not_used_allows_a_burst_of_two_quanta(driver: Driver) -> None:
    share = driver.policy.add(0, 30, 30)
    driver.now_ns = 60 * S
    begin_ns = driver.now_ns
    while driver.turn([share]) is not None:
        pass
    assert driver.used_ns[share] <= 2 * 10 * MS
    driver.saturate([share], begin_ns + 1 * S - driver.now_ns)
    assert driver.used_ns[share] <= 0.31 * S


def test_retry_says_exactly_when_a_limit_lets_a_waiting_share_run(driver: Driver) -> None:
    share = driver.policy.add(0, 30, 30)
    while driver.turn([share]) is not None:
        refused_ns = driver.now_ns
    retry_ns = driver.now_ns  # turn() went there
    assert refused_ns < retry_ns
    assert driver.policy.next(retry_ns - 1).share is None
    assert driver.policy.next(retry_ns).share == share


def test_a_limit_is_kept_after_an_overrun_however_long(driver: Driver) -> None:
    share = driver.policy.add(0, 30, 30)
    waiting(driver, share)
    driver.policy.next(0)
    driver.use(share, 3 * S)
    driver.policy.wait(driver.now_ns, share)
    driver.policy.end(driver.now_ns, share)
    choice = driver.policy.next(driver.now_ns)
    assert choice.share is None
    assert choice.retry_ns - driver.now_ns == pytest.approx(7 * S, rel=0.01)


def test_only_a_latency_share_below_its_request_revokes_a_holder_below_its_own(driver: Driver) -> None:
    standard = driver.policy.add(0, 40)
    latency = driver.policy.add(0, 20, share_class=LATENCY)
    other = driver.policy.add(0, 20)
    waiting(driver, standard)
    assert driver.policy.next(0).share == standard
    driver.now_ns = 3 * MS
    waiting(driver, latency, other)
    assert driver.policy.preempts(driver.now_ns, latency, standard)
    assert not driver.policy.preempts(driver.now_ns, other, standard)
    assert not driver.policy.preempts(driver.now_ns, latency, latency)
    assert not driver.policy.preempts(driver.now_ns, latency, other)  # holds nothing
    assert not driver.policy.preempts(driver.now_ns, latency, 99)


def test_a_latency_share_does_not_revoke_another_below_its_request(driver: Driver) -> None:
    one, two = (driver.policy.add(0, 20, share_class=LATENCY) for _ in range(2))
    waiting(driver, one)
    assert driver.policy.next(1).rule is Rule.LATENCY
    driver.now_ns = 1 * MS
    waiting(driver, two)
    assert not driver.policy.preempts(driver.now_ns, two, one)


def test_a_latency_share_above_its_request_revokes_only_a_holder_of_leftovers(driver: Driver) -> None:
    latency = driver.policy.add(0, 10, share_class=LATENCY)
    standard = driver.policy.add(0, 40)
    batch = driver.policy.add(0, 0, share_class=BATCH)
    driver.saturate([latency, standard], 1 * S)
    driver.stop([latency, standard])
    while driver.policy.share(latency).credit >= 0:
        driver.turn([latency, standard])
    driver.stop([latency, standard])
    waiting(driver, batch)
    assert driver.policy.next(driver.now_ns).rule is Rule.LEFTOVER
    waiting(driver, latency)
    assert driver.policy.preempts(driver.now_ns, latency, batch)
    driver.policy.end(driver.now_ns, batch)
    driver.stop([latency])
    waiting(driver, standard)
    assert driver.policy.next(driver.now_ns).share == standard
    waiting(driver, latency)
    assert not driver.policy.preempts(driver.now_ns, latency, standard)


def test_a_latency_share_over_its_limit_revokes_nobody(driver: Driver) -> None:
    latency, standard = driver.policy.add(0, 10, 10, share_class=LATENCY), driver.policy.add(0, 40)
    while driver.turn([latency]) is not None:
        last_ns = driver.now_ns
    driver.stop([latency])
    policy = driver.policy
    policy.wait(driver.now_ns, standard)
    assert policy.next(driver.now_ns).share == standard
    driver.use(standard, 1 * MS)
    policy.end(driver.now_ns, standard)
    policy.wait(driver.now_ns, latency)
    while driver.turn([latency]) is not None:
        last_ns = driver.now_ns
    policy.wait(last_ns, standard)
    assert policy.next(last_ns).share == standard
    assert not policy.preempts(last_ns, latency, standard)


def test_the_quantum_stays_between_2_and_50_ms_and_follows_waiters_and_units(driver: Driver) -> None:
    policy = driver.policy
    shares = [policy.add(0, 1.5) for _ in range(64)]
    waiting(driver, shares[0])
    assert policy.quantum(0, shares[0]) == 24 * MS
    assert policy.next(0).quantum_ns == 24 * MS
    waiting(driver, shares[1])
    assert policy.quantum(0, shares[0]) == 10 * MS  # what was granted alone is cut when another waits
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
