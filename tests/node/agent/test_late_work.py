"""Test work that does not end, or that the arbiter has not heard of: it counts to its end, and delays no other share.

The tests play the processes by hand: they write the processes' reports into the share's region.
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
from sharepod.agent.shares.share import Turn

Pair = tuple[Tenant, Tenant]


@pytest.fixture
def tenants(arbiter: Arbiter, tmp_path: Path) -> Pair:
    """Return the tenants of two shares of one device."""
    return Tenant(arbiter.share(tmp_path / "first")), Tenant(arbiter.share(tmp_path / "second"))


def turns_of(arbiter: Arbiter, tenant: Tenant) -> list[Turn]:
    """Return the turns of a share that have ended."""
    return [turn for turn in arbiter.native.read_turns(0, 100) if turn.share == tenant.share.handle]


def test_a_turn_is_not_drained_while_a_process_that_is_new_to_the_arbiter_has_work_in_it(
    arbiter: Arbiter, tenants: Pair
) -> None:
    first, second = tenants
    turn = first.enter()
    first.say(0, turn, turn)  # the process that rang has launched, finished and given its turn back
    first.claim(1)
    first.say(1, turn, 0)  # a new process has found the gate open, so it did not ring
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
    first.say(0, turn, 0)  # its work does not end
    second.ask()
    until(lambda: first.word() != turn)
    first.wait(1)
    first.ring()
    until(lambda: first.word() % 2 == 1)  # its drain is late, so it is granted another turn
    again = first.word()
    until(lambda: first.word() != again)  # the turn ends, as it does not enter it
    drained_ns = first.say(0, turn, turn)
    first.ring()
    until(lambda: len(turns_of(arbiter, first)) >= 2)
    assert turns_of(arbiter, first)[-1].drained_ns >= drained_ns


def test_a_wait_that_ended_without_a_turn_is_counted_once(tenants: Pair) -> None:
    first, second = tenants
    turn = first.enter()
    first.say(0, turn, 0)  # it holds the device
    second.ask()
    until(lambda: second.share.usage().waited_ns)
    second.wait(0)  # its waiter gives up, or was killed

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
        sleeps = f" {ctypes.addressof(word):#x} "  # it sleeps on this word, and not on a lock of the interpreter
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
