"""Work that does not end, or of which the arbiter has not heard: it counts until it has ended, and holds nobody up.

Played by hand: what a share's processes say is written into its region.
"""

import ctypes
import mmap
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from report import WORD_AT
from tenant import Tenant, until

from rig.arbiter import Arbiter
from sharepod.agent.share import Turn

TEN_S = 10_000_000 << 32
"""A longest unit of ten seconds, where a report has it."""
Pair = tuple[Tenant, Tenant]


@pytest.fixture
def tenants(arbiter: Arbiter, tmp_path: Path) -> Pair:
    """Two shares of one device."""
    return Tenant(arbiter.share(tmp_path / "first")), Tenant(arbiter.share(tmp_path / "second"))


def turns_of(arbiter: Arbiter, tenant: Tenant) -> list[Turn]:
    """Return the turns of a share that have ended."""
    return [turn for turn in arbiter.native.read_turns(0, 100) if turn.share == tenant.share.handle]


def test_a_drain_is_bounded_whatever_length_of_a_unit_a_tenant_claims(tenants: Pair) -> None:
    first, second = tenants
    turn = first.enter()
    first.say(0, turn, 0, launches=1, last=TEN_S)
    second.ask()
    until(lambda: first.word() != turn)
    until(lambda: second.word() % 2 == 1, timeout_s=5)  # 100 ms, and not 15 s


def test_shares_whose_work_overlaps_are_charged_no_more_than_has_passed(tenants: Pair) -> None:
    began_ns = time.monotonic_ns()
    first, second = tenants
    turn = first.enter()
    first.say(0, turn, 0)  # what it launches does not end
    second.say(0, second.enter(), 0)  # co-granted
    second.ring()
    before_ns = [tenant.share.usage().charged_ns for tenant in tenants]
    for tenant, before in zip(tenants, before_ns, strict=True):
        until(lambda tenant=tenant, before=before: tenant.share.usage().charged_ns > before + 300_000_000)
    charged_ns = [tenant.share.usage().charged_ns for tenant in tenants]
    assert sum(charged_ns) <= time.monotonic_ns() - began_ns
    assert charged_ns[1] - before_ns[1] == pytest.approx(charged_ns[0] - before_ns[0], rel=0.2)


def test_what_its_limit_keeps_out_while_it_spins_gets_a_turn_all_the_same(arbiter: Arbiter, tmp_path: Path) -> None:
    spinning = Tenant(arbiter.share(tmp_path / "spinning", request=10, limit=10))
    other = Tenant(arbiter.share(tmp_path / "other", request=10))
    turn = spinning.enter()
    spinning.say(0, turn, 0)  # it does not end before the share launches more
    spinning.wait(1)
    spinning.ring()
    until(lambda: spinning.word() != turn)
    theirs = other.enter()  # co-granted
    other.say(0, theirs, theirs)
    other.ring()
    # It pays for all the time that passes, and its limit never lets it be chosen.
    until(lambda: spinning.word() % 2 == 1, timeout_s=5)


def test_a_turn_is_not_drained_while_a_process_that_is_new_to_the_arbiter_has_work_in_it(
    arbiter: Arbiter, tenants: Pair
) -> None:
    first, second = tenants
    turn = first.enter()
    first.say(0, turn, turn)  # the process that rang has launched, finished and parked
    first.claim(1)
    first.say(1, turn, 0)  # the newcomer has found the gate open: it did not need to ring
    second.ask()
    until(lambda: first.word() != turn)
    drained_ns = first.say(1, turn, turn)
    first.ring(1)
    [ended] = until(lambda: turns_of(arbiter, first))
    assert ended.drained_ns >= drained_ns


def test_a_turn_that_nobody_entered_is_not_drained_before_the_late_work_that_it_went_on_with(
    arbiter: Arbiter, tenants: Pair
) -> None:
    first, second = tenants
    turn = first.enter()
    first.say(0, turn, 0)  # what it launches does not end
    second.ask()
    until(lambda: first.word() != turn)
    first.wait(1)
    first.ring()
    until(lambda: first.word() % 2 == 1)  # its drain is late, so it is granted again
    again = first.word()
    until(lambda: first.word() != again)  # … and does not come
    drained_ns = first.say(0, turn, turn)
    first.ring()
    until(lambda: len(turns_of(arbiter, first)) >= 2)
    assert turns_of(arbiter, first)[-1].drained_ns >= drained_ns


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "runs on"])
def test_late_work_is_waited_for_again_once_it_has_ended_and_only_then(
    ended: bool, arbiter: Arbiter, tenants: Pair
) -> None:
    first, second = tenants
    first.say(0, first.enter(), 0, last=TEN_S)  # its drain will be late
    theirs = second.enter()
    first.wait(1)
    second.say(0, theirs, theirs)
    again = first.enter()  # … and is, when it is granted again
    first.say(0, again, 0, last=TEN_S)
    if ended:
        first.end_first()
    second.ask()
    until(lambda: first.word() != again)
    theirs = until(lambda: second.word() if second.word() % 2 else 0)
    first.say(0, again, again)
    second.say(0, theirs, theirs)
    for tenant in tenants:
        tenant.wait(0)
        tenant.ring()
    closed, granted = (until(lambda tenant=tenant: turns_of(arbiter, tenant)[1:])[0] for tenant in tenants)
    waited_ns = granted.granted_ns - closed.closed_ns
    assert (waited_ns > 90_000_000) is ended


def test_a_wait_that_ended_without_a_turn_is_counted_once(tenants: Pair) -> None:
    first, second = tenants
    turn = first.enter()
    first.say(0, turn, 0)  # it holds the device
    second.ask()
    until(lambda: second.share.usage().waited_ns)
    second.wait(0)  # or its waiter was killed

    def stands() -> bool:
        before_ns = second.share.usage().waited_ns
        for _ in range(5):
            second.ring()
            time.sleep(0.005)
        return second.share.usage().waited_ns == before_ns

    until(stands)


FUTEX = 202 if os.uname().machine == "x86_64" else 98


def test_whoever_waits_when_its_share_ends_is_woken(arbiter: Arbiter, tenants: Pair) -> None:
    first, _ = tenants
    libc = ctypes.CDLL(None)
    with (first.share.region / "terms").open("r+b") as file, mmap.mmap(file.fileno(), 0) as terms:
        word = ctypes.c_uint32.from_buffer(terms, WORD_AT)
        result: list[int] = []

        def wait(word: ctypes.c_uint32) -> None:
            result.append(libc.syscall(FUTEX, ctypes.byref(word), 0, word.value, (ctypes.c_long * 2)(30, 0), None, 0))

        waiter = threading.Thread(target=wait, args=(word,))
        waiter.start()
        path = Path(f"/proc/self/task/{waiter.native_id}/syscall")
        sleeps = f" {ctypes.addressof(word):#x} "  # there, and not for the interpreter
        until(lambda: sleeps in path.read_text())
        arbiter.native.remove_share(first.share.handle)
        waiter.join(10)
        assert result == [0]
        del word


def test_the_threads_of_the_arbiter_leave_all_signals_but_bus_errors_to_python(arbiter: Arbiter) -> None:
    def threads() -> list[Path]:
        names = {path.parent: path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
        return [path for path, name in names.items() if name.startswith(("sharepod-arb", "sharepod-ide"))]

    until(lambda: len(threads()) >= 2)
    for path in threads():
        [line] = [line for line in (path / "status").read_text().splitlines() if line.startswith("SigBlk")]
        blocked = int(line.split()[1], 16)
        assert {number for number in signal.valid_signals() if not blocked >> (number - 1) & 1} == {
            signal.SIGKILL,
            signal.SIGSTOP,
            signal.SIGBUS,
        }
