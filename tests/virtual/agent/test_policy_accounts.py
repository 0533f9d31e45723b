"""Test what each account of docs/policy.md, "The account", holds after a time, exactly; in ns × millipercent."""

import pytest
from driving import MS, Driver, S, waiting

REQUEST, LIMIT, WHOLE = 40_000, 60_000, 100_000
HOLD = 20 * MS * LIMIT * (WHOLE - LIMIT) // WHOLE
"""What the bucket of a share with this limit must hold before a turn."""
SAVED_NS = 75 * MS


def accounts(driver: Driver, share: int) -> tuple[int, int, int, int]:
    """Return a share's present credit, lag, debt and bucket."""
    held = driver.policy.share(share)
    return int(held.credit), int(held.lag), int(held.debt), int(held.bucket)


def advance(driver: Driver, passed_ns: int) -> None:
    """Let time pass for the active shares; no share is charged for it."""
    driver.now_ns += passed_ns
    driver.policy.quantum(driver.now_ns, 0)


@pytest.mark.parametrize("idle_ns", [0, 1, 7 * MS, SAVED_NS, SAVED_NS + 1, 10 * S])
def test_an_idle_share_earns_its_request_for_75_ms_and_its_limit_for_two_bursts(driver: Driver, idle_ns: int) -> None:
    share = driver.policy.add(0, 40, 60)
    driver.now_ns = idle_ns
    waiting(driver, share)
    saved = min(idle_ns, SAVED_NS) * REQUEST
    assert accounts(driver, share) == (saved, saved, 0, min(HOLD + idle_ns * LIMIT, 2 * HOLD))


def test_a_paused_share_earns_nothing_but_its_limit(driver: Driver) -> None:
    share = driver.policy.add(0, 40, 60)
    driver.policy.pause(0, share, paused=True)
    waiting(driver, share)
    assert driver.policy.next(0).share is None
    driver.policy.pause(MS, share, paused=False)
    assert accounts(driver, share) == (0, 0, 0, HOLD + MS * LIMIT)


def test_waiting_shares_earn_what_they_are_guaranteed_their_target_and_their_limit(driver: Driver) -> None:
    one, other = driver.policy.add(0, 40, 60), driver.policy.add(0, 20)
    waiting(driver, one, other)
    advance(driver, 5 * MS)  # of the surplus of 40 %, the limit lets `one` have 20 %, and `other` has the rest
    assert accounts(driver, one) == (5 * MS * REQUEST, 5 * MS * LIMIT, 0, HOLD + 5 * MS * LIMIT)
    assert accounts(driver, other)[:3] == (5 * MS * 20_000, 5 * MS * 40_000, 0)


def test_a_share_that_is_alone_earns_the_whole_device_as_credit_and_its_limit_as_lag(driver: Driver) -> None:
    share = driver.policy.add(0, 40, 60)
    waiting(driver, share)
    advance(driver, 5 * MS)
    assert accounts(driver, share)[:2] == (5 * MS * WHOLE, 5 * MS * LIMIT)


@pytest.mark.parametrize("lost_ns", [0, 1 * MS])
def test_a_charge_is_paid_in_full_and_time_that_nobody_is_charged_for_is_given_back(
    driver: Driver, lost_ns: int
) -> None:
    one, other = driver.policy.add(0, 40, 60), driver.policy.add(0, 20)
    waiting(driver, one, other)
    assert driver.policy.next(0).share == one
    driver.now_ns = 6 * MS
    driver.policy.charge(driver.now_ns, one, 6 * MS - lost_ns)
    earned_ns = 6 * MS - lost_ns
    assert accounts(driver, one) == (
        earned_ns * REQUEST - earned_ns * WHOLE,
        earned_ns * LIMIT - earned_ns * WHOLE,
        0,
        HOLD + 6 * MS * LIMIT - earned_ns * WHOLE,
    )
    assert accounts(driver, other)[:3] == (earned_ns * 20_000, earned_ns * 40_000, 0)
    assert driver.policy.state.used_ns == driver.policy.share(one).used_ns == earned_ns


@pytest.fixture
def debtor(driver: Driver) -> int:
    """Return a share of 40 % (limit 60) that has run a kernel of 3 s while another waited; both want the device."""
    share, other = driver.policy.add(0, 40, 60), driver.policy.add(0, 40)
    waiting(driver, share, other)
    assert driver.policy.next(0).share == share
    driver.use(share, 3 * S)
    waiting(driver, share)
    driver.policy.end(driver.now_ns, share)
    return share


def test_an_overrun_beyond_the_bound_of_the_lag_is_debt(driver: Driver, debtor: int) -> None:
    credit, lag, debt, bucket = accounts(driver, debtor)
    target = 50_000  # 40 % and half of the surplus
    assert credit == -10 * MS * WHOLE  # a share never owes more than a turn of its guarantee
    assert lag == -200 * MS * target
    assert debt == 3 * S * (WHOLE - target) + lag
    assert bucket == HOLD + 3 * S * LIMIT - 3 * S * WHOLE  # a limit is repaid in full


def test_an_idle_debtor_repays_with_all_of_its_request_and_earns_nothing_else(driver: Driver, debtor: int) -> None:
    driver.stop([debtor])
    credit, lag, debt, bucket = accounts(driver, debtor)
    driver.now_ns += 10 * MS
    waiting(driver, debtor)
    assert accounts(driver, debtor) == (credit, lag, debt - 10 * MS * REQUEST, bucket + 10 * MS * LIMIT)


def test_an_idle_share_that_has_repaid_earns_from_then_on(driver: Driver, debtor: int) -> None:
    driver.stop([debtor])
    credit, lag, debt, bucket = accounts(driver, debtor)
    repaid_ns = -(-debt // REQUEST)
    driver.now_ns += repaid_ns + 9 * MS
    waiting(driver, debtor)
    assert bucket + repaid_ns * LIMIT > 2 * HOLD
    assert accounts(driver, debtor) == (credit + 9 * MS * REQUEST, lag + 9 * MS * REQUEST, 0, 2 * HOLD)


def test_a_debtor_that_waits_is_guaranteed_half_of_its_request_and_repays_with_the_other(
    driver: Driver, debtor: int
) -> None:
    credit, lag, debt, bucket = accounts(driver, debtor)
    advance(driver, 10 * MS)
    half = REQUEST // 2  # it earns no surplus, as the other share wants that
    assert accounts(driver, debtor) == (
        credit + 10 * MS * half,
        lag + 10 * MS * half,
        debt - 10 * MS * half,
        bucket + 10 * MS * LIMIT,
    )
    advance(driver, debt // half)
    assert driver.policy.share(debtor).debt == 0
    assert driver.policy.share(debtor).guarantee_mp == REQUEST


@pytest.mark.parametrize("first", [0, 1])
def test_of_shares_that_are_due_at_once_the_one_that_has_waited_longest_goes_first(driver: Driver, first: int) -> None:
    shares, holder = [driver.policy.add(0, 20) for _ in range(2)], driver.policy.add(0, 20)
    waiting(driver, holder)
    assert driver.policy.next(0).share == holder
    for share in (shares[first], shares[1 - first]):
        driver.now_ns += 1 * MS
        waiting(driver, share)
    driver.now_ns += 60 * S  # now both are as far behind as a share can be
    driver.policy.end(driver.now_ns, holder)
    assert accounts(driver, shares[0])[1] == accounts(driver, shares[1])[1]
    assert driver.policy.next(driver.now_ns).share == shares[first]


@pytest.mark.parametrize(("beyond", "near"), [(0, True), (1, False)])
def test_a_share_is_near_until_it_is_two_due_lags_ahead(driver: Driver, beyond: int, near: bool) -> None:
    share, other = driver.policy.add(0, 40), driver.policy.add(0, 40)
    waiting(driver, share, other)
    held = driver.policy.share(share)
    assert driver.policy.lib.sp_policy_is_near(driver.policy.state, share, 0)
    assert held.due_lag > 0
    held.lag = -2 * held.due_lag - beyond
    assert driver.policy.lib.sp_policy_is_near(driver.policy.state, share, 0) == near


@pytest.mark.parametrize("why", ["debt", "paused", "over its limit", "unknown"])
def test_a_share_that_may_not_run_soon_is_not_near(driver: Driver, debtor: int, why: str) -> None:
    share = debtor
    if why == "unknown":
        share = 77
    elif why != "debt":
        share = driver.policy.add(driver.now_ns, 10, 10)
        assert driver.policy.lib.sp_policy_is_near(driver.policy.state, share, driver.now_ns)
        if why == "paused":
            driver.policy.pause(driver.now_ns, share, paused=True)
        else:
            driver.policy.share(share).bucket -= 1
    assert not driver.policy.lib.sp_policy_is_near(driver.policy.state, share, driver.now_ns)
