"""Test the device time that each party used: sums that stay, and shares that are remembered for a while."""

from agent_doubles import H200

from sharepod.agent.shares.share import (
    DeviceTerms,
    DeviceUsage,
    Share,
    ShareClass,
    ShareId,
    ShareStatus,
    Terms,
    Usage,
)
from sharepod.agent.shares.spending import OWNERS_MAX, PARTIES_MAX, Party, Spending, Spent

A, B = Party(namespace="a"), Party(user="b")


def status(name: str, used_ns: int) -> ShareStatus:
    share = Share(ShareId(name), (DeviceTerms(H200.uuid, Terms(1000, 1000, 0)),), ShareClass.STANDARD, "", 0)
    usage = Usage(used_ns=used_ns, launches=7)
    return ShareStatus(share, (DeviceUsage(H200.uuid, usage),), ())


def test_what_is_used_is_counted_once_and_stays_when_shares_end() -> None:
    spending = Spending(keep_ns=100)
    spending.adopt(ShareId("old"), 1000, B)
    for used_ns in (0, 10, 10, 30):
        spending.count(status("new", used_ns), A)
    spending.count(status("old", 1005), B)
    spending.end(status("new", 35), A, now_ns=50)
    spending.end(status("next", 4), A, now_ns=60)
    assert set(spending.spent()) == {Spent(A, 39, 2), Spent(B, 5, 1)}
    first, second = spending.ended(149)
    usage = first.usages[0].usage
    assert (first.share.id, second.share.id, usage.launches, usage.used_ns) == ("new", "next", 7, 35)
    assert [one.share.id for one in spending.ended(150)] == ["next"]
    assert spending.ended(160) == ()
    assert set(spending.spent()) == {Spent(A, 39, 2), Spent(B, 5, 1)}


def test_the_sums_of_an_earlier_agent_go_on_with_its_shares_in_them() -> None:
    first = Spending(keep_ns=0)
    first.end(status("ended", 10), A, 0)
    first.count(status("goes on", 5), A)
    again = Spending(keep_ns=0)
    again.restore(first.spent())
    again.adopt(ShareId("goes on"), 5, A)
    again.count(status("goes on", 8), A)  # 1 of these 3 it used before it was adopted, after the last checkpoint
    again.count(status("new", 1), B)
    assert set(again.spent()) == {Spent(A, 10 + 8, 2), Spent(B, 1, 1)}


def test_workloads_are_counted_by_name_as_far_as_one_namespace_does_not_crowd_out_the_others() -> None:
    spending = Spending(keep_ns=0)
    for number in range(OWNERS_MAX + 2):
        for namespace in ("a", "b"):
            spending.count(status(f"{namespace}{number}", 1), Party(namespace, f"Job/j{number}"))
    spent = {one.party: one.used_ns for one in spending.spent()}
    assert (spent[Party("a", "Job/j0")], spent[Party("a")], spent[Party("b")]) == (1, 2, 2)
    assert len(spent) == 2 * (OWNERS_MAX + 1)


def test_of_very_many_parties_the_last_ones_are_one() -> None:
    spending = Spending(keep_ns=0)
    for number in range(PARTIES_MAX + 5):
        spending.end(status(str(number), 2), Party(namespace=str(number)), 0)
        assert spending.ended(0) == ()
    spent = {one.party: one.used_ns for one in spending.spent()}
    assert len(spent) == PARTIES_MAX + 1
    assert (spent[Party(namespace="0")], spent[Party()]) == (2, 10)
