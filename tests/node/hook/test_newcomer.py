"""Work that the arbiter has not heard of, or has granted twice: it counts until it has ended."""

from pathlib import Path

from tenant import two_shares, until

from rig.arbiter import Arbiter


def test_a_turn_is_not_drained_while_a_process_that_is_new_to_the_arbiter_has_work_in_it(
    arbiter: Arbiter, tmp_path: Path
) -> None:
    handles, tenants = two_shares(arbiter, tmp_path)
    first, second = tenants["first"], tenants["second"]
    turn = first.enter()
    first.say(0, turn, turn)  # the process that rang has launched, finished and parked
    first.claim(1)
    first.say(1, turn, 0)  # the newcomer has found the gate open: it did not need to ring
    second.claim(0)
    second.wait(0, 1)
    second.ring(0)
    until(lambda: first.word() != turn)
    drained_ns = first.say(1, turn, turn)
    first.ring(1)
    until(lambda: any(t.share == handles["first"] for t in arbiter.native.read_turns(0, 100)))
    for tenant in tenants.values():
        tenant.close()
    (ended,) = (t for t in arbiter.native.read_turns(0, 100) if t.share == handles["first"])
    assert ended.drained_ns >= drained_ns


def test_a_turn_that_nobody_entered_is_not_drained_before_the_late_work_that_it_went_on_with(
    arbiter: Arbiter, tmp_path: Path
) -> None:
    handles, tenants = two_shares(arbiter, tmp_path)
    first, second = tenants["first"], tenants["second"]
    turn = first.enter()
    first.say(0, turn, 0)  # what it launches does not end
    second.claim(0)
    second.wait(0, 1)
    second.ring(0)
    until(lambda: first.word() != turn)
    first.wait(0, 1)
    first.ring(0)
    until(lambda: first.word() % 2 == 1)  # its drain is late, so it is granted again
    again = first.word()
    until(lambda: first.word() != again)  # … and does not come
    drained_ns = first.say(0, turn, turn)
    first.ring(0)
    until(lambda: sum(t.share == handles["first"] for t in arbiter.native.read_turns(0, 100)) >= 2)
    for tenant in tenants.values():
        tenant.close()
    ended = [t for t in arbiter.native.read_turns(0, 100) if t.share == handles["first"]]
    assert ended[-1].drained_ns >= drained_ns
