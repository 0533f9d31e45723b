"""Test the bill of agent/arbiter/bill.c in virtual time: what each share pays for, to the nanosecond."""

import ctypes
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from driving import MS

from rig import REPO_ROOT

FREE_NS, GRACE_NS = MS // 2, 10 * MS
"""How much of a turn may be idle without charge, and how much of that allowance a share saves up."""
BEGAN_NS = 1000 * MS


class Paid(NamedTuple):
    used: int
    charged: int
    estimated: int
    overrun: int
    beside: int
    grace: int
    charged_in_all: int


class Bill:
    """A device with shares, and its time in ns since the beginning."""

    def __init__(self, lab: ctypes.CDLL) -> None:
        self.lab = lab
        self.now_ns = 0
        lab.lab_begin(ctypes.c_uint64(BEGAN_NS))

    def at(self, ns: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(BEGAN_NS + ns)

    def grant(self, share: int, *, contended: bool = True) -> None:
        self.lab.lab_grant(share, self.at(self.now_ns), contended)

    def say(self, share: int, used_ns: int, running: int = 0, ended_ns: int | None = None) -> None:
        """Let a share's processes report what they used in this turn, how many still run, and when the work ended."""
        until = self.at(self.now_ns if ended_ns is None else ended_ns)
        self.lab.lab_say(share, self.at(self.now_ns), ctypes.c_uint64(used_ns), running, until)

    def close(self, share: int) -> None:
        """End the share's turn; its work runs on."""
        self.lab.lab_close(share, self.at(self.now_ns))

    def drained(self, share: int) -> None:
        """Let the arbiter hear that the share's turn has drained."""
        self.lab.lab_drained(share, self.at(self.now_ns))

    def bill(self, passed_ns: int) -> None:
        self.now_ns += passed_ns
        self.lab.lab_bill(self.at(self.now_ns))

    def turn(self, share: int, lasts_ns: int, used_ns: int) -> None:
        """Play a whole turn, which has drained when it ends."""
        self.grant(share)
        self.now_ns += lasts_ns
        self.say(share, used_ns)
        self.close(share)
        self.drained(share)

    def beside(self, share: int, ran_ns: int, ended_ns: int) -> None:
        self.lab.lab_beside(share, self.at(self.now_ns), ctypes.c_uint64(ran_ns), self.at(ended_ns))

    def paid(self, share: int) -> Paid:
        read = (ctypes.c_int64 * 7)()
        self.lab.lab_read(share, read)
        return Paid(*read)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("bill") / "bill_lab.so"
    policy = [f"agent/policy/{part}.c" for part in ("policy", "accounts", "rates")]
    sources = ["tests/support/agent/bill_lab.c", "agent/arbiter/bill.c", *policy]
    command = ["gcc", "-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-I."]
    subprocess.run([*command, *sources, "-o", str(built)], cwd=REPO_ROOT, check=True)
    return ctypes.CDLL(str(built))


@pytest.fixture
def bill(lab: ctypes.CDLL) -> Iterator[Bill]:
    """Yield a device with four shares; after each test no more must be charged than the time that passed."""
    bill = Bill(lab)
    yield bill
    paid = [bill.paid(share) for share in range(4)]
    assert sum(each.charged for each in paid) == paid[0].charged_in_all <= bill.now_ns
    assert sum(each.used for each in paid) <= bill.now_ns
    assert all(0 <= each.grace <= GRACE_NS for each in paid)


def test_alone_a_share_is_charged_what_it_used(bill: Bill) -> None:
    bill.grant(0, contended=False)
    bill.now_ns = 10 * MS
    bill.say(0, 4 * MS)
    bill.bill(0)
    assert bill.paid(0)[:6] == (4 * MS, 4 * MS, 0, 0, 0, FREE_NS)


@pytest.mark.parametrize(
    ("contended_ns", "drained_ns", "charged_ns"),
    [(0, 0, 0), (0, 4 * MS, 0), (4 * MS, 0, 4 * MS - FREE_NS), (4 * MS, 3 * MS, 7 * MS - FREE_NS)],
)
def test_idle_time_that_is_told_late_is_charged_only_where_it_kept_others_out(
    bill: Bill, contended_ns: int, drained_ns: int, charged_ns: int
) -> None:
    bill.grant(0, contended=False)
    bill.say(0, 0, running=1)
    bill.bill(3 * MS)
    if contended_ns:
        bill.lab.lab_contend(0, True)
        bill.bill(contended_ns)
    bill.close(0)
    bill.bill(drained_ns)
    bill.say(0, 20_000)
    bill.drained(0)
    bill.turn(0, 20 * MS, used_ns=20 * MS)  # counters never fall: an excess billed before is taken off this turn
    assert bill.paid(0)[:2] == (20 * MS + 20_000, 20 * MS + charged_ns + 20_000 * (not charged_ns))


def test_while_others_wait_the_idle_time_of_each_turn_is_charged_but_for_its_grace(bill: Bill) -> None:
    bill.turn(0, 10 * MS, used_ns=4 * MS)
    before = bill.paid(0)
    assert (before.used, before.charged, before.grace) == (4 * MS, 10 * MS - FREE_NS, 0)
    bill.turn(0, 10 * MS, used_ns=10 * MS)
    after = bill.paid(0)
    assert (after.used - before.used, after.charged - before.charged, after.grace) == (10 * MS, 10 * MS, FREE_NS)
    bill.turn(0, 10 * MS, used_ns=10 * MS - 300_000)
    assert bill.paid(0).charged - after.charged == 10 * MS - 300_000
    assert bill.paid(0).grace == 2 * FREE_NS - 300_000


def test_the_grace_is_saved_up_over_turns_and_no_further(bill: Bill) -> None:
    for number in range(1, 31):
        bill.turn(0, 1 * MS, used_ns=1 * MS)
        assert bill.paid(0).grace == min(number * FREE_NS, GRACE_NS)
    before = bill.paid(0)
    bill.turn(0, 20 * MS, used_ns=8 * MS)
    assert bill.paid(0).charged - before.charged == 20 * MS - GRACE_NS


def test_what_was_taken_for_idle_by_mistake_takes_the_grace_back(bill: Bill) -> None:
    bill.grant(0)
    bill.say(0, 0)
    bill.bill(5 * MS)
    assert bill.paid(0)[:2] == (0, 5 * MS - FREE_NS)
    bill.now_ns += 5 * MS
    bill.say(0, 10 * MS)
    bill.bill(0)
    assert bill.paid(0)[:2] == (10 * MS, 10 * MS)
    assert bill.paid(0).grace == FREE_NS


def test_what_runs_is_used_until_it_is_heard_to_have_ended(bill: Bill) -> None:
    bill.grant(0)
    bill.now_ns = 2 * MS
    bill.say(0, 1 * MS, running=1)
    bill.bill(8 * MS)
    assert bill.paid(0)[:2] == (9 * MS, 10 * MS - FREE_NS)


def test_nobody_has_used_more_than_passed_while_it_paid(bill: Bill) -> None:
    bill.turn(0, 10 * MS, used_ns=99 * MS)
    assert bill.paid(0)[:2] == (10 * MS, 10 * MS)


def test_shares_that_overlap_pay_for_their_part_and_it_is_estimated(bill: Bill) -> None:
    bill.grant(0)
    bill.say(0, 0, running=1)
    bill.bill(10 * MS)
    bill.close(0)
    bill.lab.lab_cogrant(0, bill.at(bill.now_ns))
    bill.grant(1)
    bill.say(1, 0, running=1)
    bill.bill(6 * MS)
    assert bill.paid(0)[:3] == (13 * MS, 13 * MS, 3 * MS)
    assert bill.paid(1)[:3] == (3 * MS, 3 * MS, 3 * MS)


def test_a_drain_that_is_not_late_pays_alone(bill: Bill) -> None:
    bill.grant(0)
    bill.say(0, 0, running=1)
    bill.bill(10 * MS)
    bill.close(0)
    bill.grant(1)
    bill.bill(2 * MS)
    assert bill.paid(0)[:2] == (12 * MS, 12 * MS)
    assert bill.paid(1)[:2] == (0, 0)


@pytest.mark.parametrize(("contended", "over_ns"), [(True, 4 * MS), (False, 0)])
def test_what_is_charged_beyond_the_end_of_a_turn_is_overrun_while_others_wait(
    bill: Bill, contended: bool, over_ns: int
) -> None:
    bill.grant(0, contended=contended)
    bill.lab.lab_deadline(0, bill.at(6 * MS))
    bill.say(0, 0, running=1)
    bill.bill(5 * MS)
    assert bill.paid(0).overrun == 0
    bill.bill(5 * MS)
    assert bill.paid(0).overrun == over_ns


def test_what_ran_beside_anothers_turn_is_its_own_and_not_the_others(bill: Bill) -> None:
    bill.grant(1)
    bill.say(1, 0, running=1)
    bill.bill(10 * MS)
    bill.beside(0, 3 * MS, ended_ns=8 * MS)
    assert bill.paid(0)[:5] == (3 * MS, 3 * MS, 3 * MS, 0, 3 * MS)
    assert bill.paid(1)[:3] == (10 * MS, 10 * MS, 3 * MS)  # counters never fall: the excess is taken off the next bill
    bill.bill(10 * MS)
    assert bill.paid(1)[:2] == (17 * MS, 17 * MS)


@pytest.mark.parametrize(
    ("put_off_ns", "changed_ns"),
    [(0, 0), (MS, 0), (3 * MS, 0), (3 * MS + 190_000, 190_000), (9 * MS, 300_000)],
)
def test_nobody_pays_for_the_time_in_which_the_device_changes_to_what_runs_beside_a_turn(
    bill: Bill, put_off_ns: int, changed_ns: int
) -> None:
    bill.grant(1)
    bill.say(1, 0, running=1)
    bill.bill(10 * MS)
    bill.beside(0, 3 * MS, ended_ns=8 * MS)
    bill.lab.lab_put_off(1, ctypes.c_uint64(put_off_ns))
    bill.bill(10 * MS)
    bill.close(1)
    bill.drained(1)
    bill.turn(1, 10 * MS, used_ns=10 * MS)  # counters never fall: an excess billed before is taken off this turn
    assert (bill.paid(0).used, bill.paid(1).used) == (3 * MS, 27 * MS - changed_ns)


def test_of_a_turn_that_is_billed_by_the_clock_too_only_that_is_left_out(bill: Bill) -> None:
    bill.lab.lab_late(1, True)
    bill.grant(1)
    bill.bill(10 * MS)
    bill.beside(0, 3 * MS, ended_ns=8 * MS)
    bill.bill(10 * MS)
    assert bill.paid(0)[:2] == (3 * MS, 3 * MS)
    assert bill.paid(1)[:2] == (17 * MS, 17 * MS)


def test_what_runs_beside_a_drain_is_left_out_of_its_turn_too(bill: Bill) -> None:
    bill.grant(1)
    bill.say(1, 0, running=1)
    bill.bill(10 * MS)
    bill.close(1)
    bill.beside(0, 3 * MS, ended_ns=8 * MS)
    bill.now_ns += 10 * MS
    bill.drained(1)
    assert (bill.paid(0).used, bill.paid(1).used) == (3 * MS, 17 * MS)


def test_a_turn_that_goes_on_with_the_last_ones_work_has_used_what_ran_before_it_was_entered(bill: Bill) -> None:
    bill.lab.lab_late(0, False)
    bill.grant(0)
    bill.now_ns = 2 * MS
    bill.say(0, 0, running=1)  # it enters 2 ms after the grant
    bill.bill(8 * MS)
    assert bill.paid(0)[:2] == (10 * MS, 10 * MS)


@pytest.mark.parametrize("late", [False, True], ids=["within its bound", "beyond it"])
@pytest.mark.parametrize("others", [1, 2])
def test_who_ran_before_the_news_came_that_the_turn_before_had_ended_is_billed_for_that(
    bill: Bill, others: int, late: bool
) -> None:
    bill.grant(0)
    bill.say(0, 0, running=1)
    bill.bill(10 * MS)
    bill.close(0)
    for share in range(1, 1 + others):
        bill.grant(share)  # granted early, so that its first launch follows at once
        bill.bill(3 * MS // 2)
        if late:
            bill.lab.lab_cogrant(0, bill.at(bill.now_ns))
        bill.bill(MS // 2)
        bill.say(share, MS, ended_ns=bill.now_ns - MS // 2)
        bill.close(share)
        bill.drained(share)
    bill.say(0, 10 * MS, ended_ns=10 * MS)  # this report is late: the keeper had no core
    bill.drained(0)
    bill.turn(0, 10 * MS, used_ns=10 * MS)  # counters never fall: an excess billed before is taken off this turn
    assert [bill.paid(share).used for share in range(3)] == [20 * MS, MS, MS * (others - 1)]


@pytest.mark.parametrize("late", [False, True], ids=["within its bound", "beyond it"])
@pytest.mark.parametrize("runs", [False, True], ids=["it had ended", "it runs on"])
def test_who_goes_on_before_the_news_came_that_its_turn_before_had_ended_is_billed_for_what_it_ran(
    bill: Bill, runs: bool, late: bool
) -> None:
    bill.turn(0, 10 * MS, used_ns=10 * MS)  # earns some grace
    bill.grant(0)
    bill.say(0, 0, running=1)
    bill.bill(10 * MS)
    bill.close(0)
    bill.grant(1)  # granted early, so that its first launch follows at once
    bill.bill(3 * MS // 2)
    if late:
        bill.lab.lab_cogrant(0, bill.at(bill.now_ns))
    bill.bill(MS // 2)
    bill.say(1, MS, ended_ns=bill.now_ns - MS // 2)
    bill.close(1)
    bill.drained(1)
    bill.lab.lab_go_on(0, bill.at(bill.now_ns))
    bill.now_ns += MS
    bill.say(0, 0, running=1)  # it enters its next turn
    bill.lab.lab_last(0, bill.at(20 * MS), runs)
    bill.bill(10 * MS)
    bill.say(0, 10 * MS)
    bill.close(0)
    bill.drained(0)
    split_ns = MS // 4 * late  # a half of the time since the co-grant
    assert (bill.paid(0).used, bill.paid(1).used) == ((33 * MS - split_ns, split_ns) if runs else (30 * MS, MS))


def test_late_news_of_what_ran_beside_takes_nothing_from_what_is_told_next(bill: Bill) -> None:
    for round_ns in (0, 10 * MS, 20 * MS):
        bill.now_ns = round_ns + 6 * MS  # a slow host: the first report comes when the second work has ended too
        bill.beside(0, 2 * MS, ended_ns=round_ns + 4 * MS)
        bill.now_ns = round_ns + 6 * MS + MS // 10
        bill.beside(0, 2 * MS, ended_ns=round_ns + 6 * MS)
    assert bill.paid(0)[:2] == (12 * MS, 12 * MS)


@pytest.mark.parametrize(
    ("ended_ns", "billed_ns"),
    [(0, 7 * MS), (3 * MS, 7 * MS), (99 * MS, 6 * MS)],
    ids=["long ago", "before", "to come"],
)
def test_no_more_ran_beside_than_has_passed_whenever_it_is_said_to_have_ended(
    bill: Bill, ended_ns: int, billed_ns: int
) -> None:
    for now_ns in (5 * MS, 6 * MS, 7 * MS):
        bill.now_ns = now_ns
        bill.beside(0, 4 * MS, ended_ns=ended_ns)
    assert bill.paid(0)[:2] == (billed_ns, billed_ns)


def test_no_more_ran_beside_than_has_passed_since_that_was_billed_last(bill: Bill) -> None:
    bill.now_ns = 5 * MS
    bill.beside(0, 99 * MS, ended_ns=5 * MS)
    assert bill.paid(0)[:2] == (5 * MS, 5 * MS)
    bill.now_ns = 6 * MS
    bill.beside(0, 99 * MS, ended_ns=6 * MS)
    assert bill.paid(0)[:2] == (6 * MS, 6 * MS)
