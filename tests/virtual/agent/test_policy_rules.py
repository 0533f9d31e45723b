"""Test each rule of the policy through the policy's own functions."""

from typing import Any

import pytest
from driving import MS, Driver, S, waiting

from rig.virtual.policy import Rule, ShareClass

LATENCY, STANDARD, BATCH = ShareClass.LATENCY, ShareClass.STANDARD, ShareClass.BATCH


def test_a_latency_share_below_its_request_goes_before_a_share_that_is_further_behind(driver: Driver) -> None:
    standard = driver.policy.add(0, 70)
    latency = driver.policy.add(0, 30, share_class=LATENCY)
    waiting(driver, standard)
    driver.now_ns = 50 * MS
    waiting(driver, latency)
    choice = driver.policy.next(driver.now_ns)
    assert (choice.share, choice.rule) == (latency, Rule.LATENCY)


def test_a_latency_share_above_its_request_goes_behind_one_below_its_request(driver: Driver) -> None:
    latency = driver.policy.add(0, 10, share_class=LATENCY)
    standard = driver.policy.add(0, 60)
    both = [latency, standard]
    driver.saturate(both, 1 * S)
    assert driver.rules[latency, Rule.LATENCY] < 0.5 * driver.rules[latency, Rule.SURPLUS]
    part = driver.saturate(both, 10 * S)
    assert part[latency] == pytest.approx(100 / 7, abs=0.3)


def test_the_waiting_share_with_the_largest_relative_shortfall_runs_next(driver: Driver) -> None:
    small, large = driver.policy.add(0, 20), driver.policy.add(0, 60)
    waiting(driver, small)
    driver.now_ns = 20 * MS  # `small` is 4 ms short, which is 20 ms of its request
    waiting(driver, large)
    driver.now_ns = 30 * MS  # both are 6 ms short: that is 30 ms of the request of `small`, 10 ms of that of `large`
    choice = driver.policy.next(driver.now_ns)
    assert (choice.share, choice.rule) == (small, Rule.REQUEST)


@pytest.mark.parametrize(
    ("terms", "parts"),
    [
        ([(10,), (20,), (5,)], [100 * 10 / 35, 100 * 20 / 35, 100 * 5 / 35]),
        ([(20, 30), (20,), (10,)], [30, 70 * 2 / 3, 70 / 3]),  # what a limit leaves goes to the other shares
        ([(80,), (80,), (40,)], [40, 40, 20]),  # requests of more than 100 % together are scaled down
        ([(90, 100, LATENCY), (90,)], [50, 50]),  # a latency share's request is scaled too
        ([(25, 100, BATCH), (25,)], [25, 75]),  # a batch share has its request, and nothing of the surplus
        ([(10, 100, BATCH), (30, 100, BATCH)], [25, 75]),
    ],
)
def test_the_surplus_goes_in_proportion_to_request_and_to_batch_last(
    driver: Driver, terms: list[tuple[Any, ...]], parts: list[float]
) -> None:
    shares = [driver.policy.add(0, *term) for term in terms]
    part = driver.saturate(shares, 20 * S)
    assert [part[share] for share in shares] == pytest.approx(parts, abs=0.1)


@pytest.mark.parametrize("share_class", ShareClass)
def test_a_share_without_request_runs_only_when_no_one_else_waits(driver: Driver, share_class: ShareClass) -> None:
    nobody = driver.policy.add(0, 0, share_class=share_class)
    standard = driver.policy.add(0, 10)
    part = driver.saturate([nobody, standard], 5 * S)
    assert part[nobody] <= 0.5
    driver.stop([standard])
    assert driver.saturate([nobody], 1 * S)[nobody] == pytest.approx(100)


def test_a_holder_above_its_request_has_the_least_turn_once_one_below_its_request_waits(driver: Driver) -> None:
    holder, below, nothing = driver.policy.add(0, 10), driver.policy.add(0, 60), driver.policy.add(0, 0)
    waiting(driver, holder, below, nothing)
    driver.policy.pause(0, below, paused=True)
    driver.saturate([holder], 100 * MS)
    assert driver.policy.next(driver.now_ns).share == holder
    assert driver.policy.quantum(driver.now_ns, holder) > 2 * MS
    driver.policy.pause(driver.now_ns, below, paused=False)
    assert driver.policy.quantum(driver.now_ns, holder) == 2 * MS


def test_an_overrun_while_nobody_waited_costs_nothing(driver: Driver) -> None:
    lone, late = driver.policy.add(0, 50), driver.policy.add(0, 50)
    waiting(driver, lone)
    assert driver.policy.next(driver.now_ns).share == lone
    driver.use(lone, 5 * S)
    driver.policy.end(driver.now_ns, lone)
    assert driver.policy.share(lone).debt == 0
    driver.policy.remove(driver.now_ns, late)
    late = driver.policy.add(driver.now_ns, 50)
    assert driver.saturate([lone, late], 1 * S)[lone] == pytest.approx(50, abs=1.5)


def test_paused_shares_of_any_request_take_nothing_from_what_others_are_guaranteed(driver: Driver) -> None:
    yielding = [driver.policy.add(0, request) for request in (100, 100, 60)]
    for share in yielding:
        driver.policy.pause(0, share, paused=True)
    waiting(driver, *yielding)
    latency, standard = driver.policy.add(0, 60, share_class=LATENCY), driver.policy.add(0, 20)
    part = driver.saturate([latency, standard], 5 * S)
    assert [part[s] for s in (latency, standard)] == pytest.approx([75, 25], abs=0.2)
    assert all(driver.policy.share(share).target_mp == 0 for share in yielding)


def test_a_share_that_is_paused_in_its_turn_takes_nothing_from_others_while_its_last_work_runs(driver: Driver) -> None:
    batch, serve = driver.policy.add(0, 100), driver.policy.add(0, 60)
    waiting(driver, batch)
    assert driver.policy.next(0).share == batch
    driver.policy.pause(0, batch, paused=True)
    waiting(driver, serve)
    driver.now_ns = 10 * MS
    assert driver.policy.next(driver.now_ns).share == serve  # it is co-granted
    held = driver.policy.share(serve)
    assert (held.guarantee_mp, held.target_mp) == (60_000, 100_000)
    assert driver.policy.share(batch).target_mp == 0
    driver.policy.charge(driver.now_ns, batch, 10 * MS)
    driver.policy.end(driver.now_ns, batch)
    driver.policy.end(driver.now_ns, serve)
    driver.policy.pause(driver.now_ns, batch, paused=False)
    driver.policy.update(driver.now_ns, batch, 40, 100)
    part = driver.saturate([batch, serve], 5 * S)
    assert [part[s] for s in (batch, serve)] == pytest.approx([40, 60], abs=0.5)


def test_new_terms_take_effect_at_once(driver: Driver) -> None:
    one, two = driver.policy.add(0, 50), driver.policy.add(0, 50)
    driver.saturate([one, two], 1 * S)
    driver.policy.update(driver.now_ns, one, 80, 100)
    driver.policy.update(driver.now_ns, two, 20, 100)
    assert driver.saturate([one, two], 1 * S)[one] == pytest.approx(80, abs=2)
    driver.policy.update(driver.now_ns, one, 10, 10)
    assert driver.saturate([one, two], 1 * S)[one] == pytest.approx(10, abs=2)


@pytest.mark.parametrize("share_class", [STANDARD, LATENCY])
def test_hand_off_losses_do_not_move_the_proportions(driver: Driver, share_class: ShareClass) -> None:
    one, other = driver.policy.add(0, 30, share_class=share_class), driver.policy.add(0, 70)
    for _ in range(5000):
        driver.turn([one, other])
        driver.now_ns += 500_000  # no share is charged for this time
    assert 100 * driver.used_ns[one] / driver.used_ns.total() == pytest.approx(30, abs=0.1)


def test_time_for_which_nobody_was_billed_leaves_no_trace(driver: Driver) -> None:
    holder, waiter = driver.policy.add(0, 50), driver.policy.add(0, 50)
    waiting(driver, holder, waiter)
    assert driver.policy.next(0).share == holder
    driver.now_ns = 100 * S  # the node was suspended
    driver.policy.charge(driver.now_ns, holder, 10 * MS)
    driver.policy.end(driver.now_ns, holder)
    assert driver.saturate([holder, waiter], 1 * S)[holder] == pytest.approx(50, abs=2)


def test_co_granted_holders_are_billed_one_after_the_other_and_lose_nothing(driver: Driver) -> None:
    policy, shares = driver.policy, [driver.policy.add(0, 25) for _ in range(3)]
    for _ in range(3000):
        waiting(driver, *shares)
        first, second = policy.next(driver.now_ns).share, policy.next(driver.now_ns).share
        assert first is not None
        assert second is not None
        driver.now_ns += 10 * MS
        for holder in (first, second):
            policy.charge(driver.now_ns, holder, 5 * MS)
            driver.used_ns[holder] += 5 * MS
        for holder in (first, second):
            policy.end(driver.now_ns, holder)
    assert [driver.used_ns[s] for s in shares] == pytest.approx([10 * S] * 3, rel=0.005)


def test_a_table_that_is_full_refuses_and_a_freed_place_is_used_again(driver: Driver) -> None:
    shares = [driver.policy.add(0, 0) for _ in range(128)]
    assert shares == list(range(128))
    assert driver.policy.add(0, 0) == -1
    driver.policy.remove(0, 17)
    assert driver.policy.add(0, 0) == 17


def test_calls_on_shares_that_do_not_exist_do_nothing(driver: Driver) -> None:
    policy = driver.policy
    for share in (-1, 0, 127, 128, 1 << 30):
        policy.wait(0, share)
        policy.charge(0, share, 5)
        policy.end(0, share)
        policy.remove(0, share)
        policy.pause(0, share, paused=True)
        policy.update(0, share, 5, 5)
        assert policy.unit(share, 5) == policy.quantum(0, share) == 2 * MS
    assert policy.valid()
    assert policy.next(0).share is None


def test_time_that_steps_back_counts_as_no_time(driver: Driver) -> None:
    one, two = driver.policy.add(1 * S, 50), driver.policy.add(1 * S, 50)
    for share in (one, two):
        driver.policy.wait(0, share)
    assert driver.policy.next(5).share == one
    assert driver.policy.valid()
