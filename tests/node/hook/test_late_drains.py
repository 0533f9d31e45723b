"""Work that does not end: how long others wait for it, and what it is charged beside them. Played by hand."""

import time
from pathlib import Path

import pytest
from tenant import Tenant, two_shares, until

from rig.arbiter import Arbiter
from sharepod.agent.share import ShareClass, Terms

TEN_S = 10_000_000 << 32
"""A longest unit of ten seconds, where a report has it."""


def test_a_drain_is_bounded_whatever_length_of_a_unit_a_tenant_claims(arbiter: Arbiter, tmp_path: Path) -> None:
    _, tenants = two_shares(arbiter, tmp_path)
    first, second = tenants["first"], tenants["second"]
    turn = first.enter()
    first.say(0, turn, 0, launches=1, last=TEN_S)
    second.claim(0)
    second.wait(0, 1)
    second.ring(0)
    until(lambda: first.word() != turn)
    until(lambda: second.word() % 2 == 1, timeout_s=5)  # 100 ms, and not 15 s
    for tenant in tenants.values():
        tenant.close()


def test_shares_whose_work_overlaps_are_charged_no_more_than_has_passed(arbiter: Arbiter, tmp_path: Path) -> None:
    began_ns = time.monotonic_ns()
    shares = {name: arbiter.share(tmp_path / name) for name in ("first", "second")}
    tenants = {name: Tenant(tmp_path / name) for name in shares}
    first, second = tenants["first"], tenants["second"]
    turn = first.enter()
    first.say(0, turn, 0)  # what it launches does not end
    second.claim(0)
    second.wait(0, 1)
    second.ring(0)
    until(lambda: second.word() % 2 == 1)  # co-granted
    second.wait(0, 0)
    second.say(0, second.word(), 0)
    second.ring(0)
    before_ns = [share.usage().charged_ns for share in shares.values()]
    until(lambda: all(s.usage().charged_ns > b + 300_000_000 for s, b in zip(shares.values(), before_ns, strict=True)))
    charged_ns = [share.usage().charged_ns for share in shares.values()]
    assert sum(charged_ns) <= time.monotonic_ns() - began_ns
    assert charged_ns[1] - before_ns[1] == pytest.approx(charged_ns[0] - before_ns[0], rel=0.2)
    for tenant in tenants.values():
        tenant.close()


def test_what_its_limit_keeps_out_while_it_spins_gets_a_turn_all_the_same(arbiter: Arbiter, tmp_path: Path) -> None:
    tenants = {}
    for name, limit in (("spinning", 10_000), ("other", 100_000)):
        (tmp_path / name).mkdir()
        terms = Terms(10_000, limit, 0)
        arbiter.native.add_share(str(tmp_path / name), [(arbiter.device(0), terms)], ShareClass.STANDARD, [])
        tenants[name] = Tenant(tmp_path / name)
    spinning, other = tenants.values()
    turn = spinning.enter()
    spinning.say(0, turn, 0)  # it does not end before the share launches more
    spinning.wait(0, 1)
    spinning.ring(0)
    until(lambda: spinning.word() != turn)
    theirs = other.enter()  # co-granted
    other.say(0, theirs, theirs)
    other.ring(0)
    # It pays for all the time that passes, and its limit never lets it be chosen.
    until(lambda: spinning.word() % 2 == 1, timeout_s=5)
    for tenant in tenants.values():
        tenant.close()
