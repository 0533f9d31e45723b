"""Test the life of turns on one device, to the nanosecond: the arbiter's own code on processes that the tests play."""

import ctypes
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rig import REPO_ROOT

MS = 1_000_000
BEGAN_NS = 1000 * MS
NEVER = (1 << 64) - 1
CONTENDED, PAUSED, LIMITED = 1, 2, 4
LATENCY, STANDARD = 0, 1
ALONE, SHARED, END, WITH_LIMIT, BESIDE_LATENCY = 50 * MS, 4 * MS, MS, 2 * MS, MS // 5
PAIR, PAIR_LATENCY = 16 * MS, 1_100_000
QUANTUM = 10 * MS
"""The quantum of each of two shares of 50 % that both want the device."""
IDLE, QUANTUM_OVER, LIMIT, PREEMPTED, DEAD, IS_PAUSED = range(6)


class Device:
    """A device and its shares; times count from the beginning of the test."""

    def __init__(self, lab: ctypes.CDLL) -> None:
        self.lab = lab
        self.now_ns = 0
        lab.lab_begin(ctypes.c_uint64(BEGAN_NS))

    def at(self, ns: int | None = None) -> ctypes.c_uint64:
        return ctypes.c_uint64(BEGAN_NS + (self.now_ns if ns is None else ns))

    def share(self, request: int = 50, limit: int = 100, share_class: int = STANDARD, word: int = 2) -> "Share":
        return Share(self, self.lab.lab_add(request * 1000, limit * 1000, share_class, word))

    def ring(self, number: int = -1) -> int:
        """Let a share ring, and the arbiter do what is due; return when the next thing is due."""
        self.lab.lab_ring.restype = ctypes.c_uint64
        due_ns = int(self.lab.lab_ring(number, self.at()))
        return due_ns if due_ns == NEVER else due_ns - BEGAN_NS

    def until(self, ns: int) -> int:
        """Let time pass and do what becomes due meanwhile; return when the next thing is due."""
        due_ns = self.ring()
        while due_ns <= ns:
            self.now_ns = max(self.now_ns, due_ns)
            due_ns = self.ring()
        self.now_ns = ns
        return self.ring()


@dataclass
class Share:
    """A share of one process."""

    device: Device
    number: int

    def __getattr__(self, name: str) -> int:
        self.device.lab.lab_read.restype = ctypes.c_uint64
        value = int(self.device.lab.lab_read(self.number, name.encode()))
        return value - BEGAN_NS if name in ("granted_ns", "deadline_ns", "bound_ns", "requested_ns") else value

    @property
    def grant(self) -> tuple[int, int, int]:
        """Return what the share's grant says: flags, budget and look-ahead."""
        return self.flags, self.budget_ns, self.lookahead_ns

    @property
    def turn(self) -> tuple[int, int]:
        """Return when its open turn began, and when it ends if others wait."""
        assert (self.holding, self.word % 2) == (1, 1)
        return self.granted_ns, self.deadline_ns

    def say(self, **fields: int) -> None:
        for name, value in fields.items():
            is_time = name in ("waiting_since_ns", "residue_until_ns", "drained_ns", "first_ended_ns", "entered_ns")
            said = self.device.at(value) if is_time else ctypes.c_uint64(value)
            self.device.lab.lab_say(self.number, name.encode(), said)

    def wait(self) -> None:
        """Let a thread of the share wait at the gate, and ring."""
        self.say(waiting=1, waiting_since_ns=self.device.now_ns)
        self.device.ring(self.number)

    def enter(self) -> None:
        assert self.holding
        self.device.lab.lab_enter(self.number, self.device.at())

    def drain(self) -> None:
        """Let all of the share's work end now, and ring."""
        self.device.lab.lab_drain(self.number, self.device.at())
        self.device.ring(self.number)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("turns") / "turn_lab.so"
    turns = [
        f"agent/arbiter/{part}.c"
        for part in ("step", "gang", "join", "turn", "slots", "copies", "pressure", "lead", "bill", "shared")
    ]
    accounts = [f"agent/policy/{part}.c" for part in ("policy", "accounts", "rates")]
    sources = ["tests/support/agent/turn_lab.c", *turns, *accounts, "region/region.c"]
    flags = ["-std=gnu11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-I."]
    wraps = ["-Wl,-Bsymbolic", "-Wl,--wrap=sp_now_ns", "-Wl,--wrap=sp_grant_set"]
    subprocess.run(["gcc", *flags, *wraps, *sources, "-o", str(built)], cwd=REPO_ROOT, check=True)
    return ctypes.CDLL(str(built))


@pytest.fixture
def device(lab: ctypes.CDLL) -> Iterator[Device]:
    """Yield a device without shares; after each test the policy's sums must be valid."""
    device = Device(lab)
    yield device
    assert Share(device, 0).valid


@pytest.fixture
def pair(device: Device) -> tuple[Share, Share]:
    """Return two shares of 50 %; the first has the device and works."""
    one, other = device.share(), device.share()
    one.wait()
    one.enter()
    return one, other


def test_who_is_alone_has_the_device_until_it_gives_it_back(device: Device) -> None:
    share = device.share()
    share.wait()
    assert (share.turn[0], share.grant, device.ring()) == (0, (0, ALONE, ALONE), NEVER)
    share.enter()
    assert device.until(500 * MS) == NEVER
    share.drain()
    assert (share.holding, share.turns) == (1, 0)  # no other share wants the device, so the turn goes on
    device.share().wait()
    assert (share.holding, share.reason, share.turns) == (0, IDLE, 1)


def test_who_waits_shortens_the_turn_and_is_granted_the_device_as_the_residue_ends(
    device: Device, pair: tuple[Share, Share]
) -> None:
    one, other = pair
    device.until(3 * MS)
    other.wait()
    assert one.turn == (0, QUANTUM)
    assert (one.grant, device.ring()) == ((CONTENDED, SHARED, PAIR), QUANTUM - SHARED + END)
    device.until(7 * MS)
    assert one.grant == (CONTENDED, END, END)
    one.say(residue_until_ns=13 * MS)
    device.until(QUANTUM - 1)
    assert one.holding
    device.until(12 * MS)
    assert (one.holding, one.draining, one.reason) == (0, 1, QUANTUM_OVER)
    assert (one.word % 2, one.flags, one.bound_ns) == (0, 0, QUANTUM + 20 * MS)
    device.until(13 * MS - 1)
    lead_ns = 13 * MS - other.turn[0]
    assert (lead_ns, other.requested_ns, other.waited_ns) == (MS // 10, 3 * MS, 10 * MS - lead_ns)
    other.enter()
    device.until(13 * MS)
    one.drain()
    assert (one.draining, one.used_ns, one.charged_ns, one.turns) == (0, 13 * MS, 13 * MS, 1)
    assert (one.overrun_ns, other.cogrants, one.cogrants) == (3 * MS, 0, 0)


@pytest.mark.parametrize(("requests", "end_ns"), [((10, 80), 4_320_000), ((20, 70), 8_050_000)])
def test_one_more_who_waits_shortens_the_turn_again_to_where_a_residue_is_not_cut(
    device: Device, requests: tuple[int, int], end_ns: int
) -> None:
    one, other, third = (device.share(request) for request in (requests[0], *requests))
    one.wait()
    one.enter()
    other.wait()
    assert one.turn == (0, QUANTUM)
    third.wait()
    assert one.turn == (0, end_ns)  # its part, moved away from the begin of a hardware slice (every 2 ms)


def test_who_has_drained_and_rung_no_bell_is_seen_to_have_when_its_turn_ends(
    device: Device, pair: tuple[Share, Share]
) -> None:
    one, other = pair
    other.wait()
    device.until(9 * MS)
    device.lab.lab_drain(one.number, device.at())
    device.until(QUANTUM)
    assert (one.turns, one.draining, one.used_ns, other.turn[0]) == (1, 0, 9 * MS, QUANTUM)
    one.say(waiting=1, waiting_since_ns=0)  # impossible: that is before its turn began
    other.enter()
    device.now_ns = QUANTUM + MS
    device.ring(one.number)
    device.now_ns = other.deadline_ns
    other.drain()
    assert one.requested_ns == QUANTUM  # its wait counts from the end of that turn


def test_who_has_its_next_turn_before_the_news_of_its_drain_pays_for_no_time_of_the_others(
    device: Device, pair: tuple[Share, Share]
) -> None:
    one, other = pair
    other.wait()
    ended_ns = QUANTUM + MS // 20
    one.say(residue_until_ns=ended_ns)
    device.until(QUANTUM)
    assert (one.draining, other.turn[0]) == (1, QUANTUM)  # granted early, so that its first launch follows at once
    other.enter()
    one.wait()
    device.now_ns = QUANTUM + MS // 5
    other.drain()
    assert (one.draining, one.turn[0]) == (0, device.now_ns)
    device.now_ns += MS
    device.lab.lab_drain(one.number, device.at(ended_ns))  # only now its keeper sees the end, and does not ring
    one.enter()
    device.ring(one.number)
    device.now_ns += 2 * MS
    other.wait()
    one.drain()
    assert one.used_ns == ended_ns + 2 * MS
    assert other.used_ns == QUANTUM + MS // 5 - ended_ns


def test_work_outside_every_turn_is_billed_once(device: Device) -> None:
    share = device.share()
    device.until(50 * MS)
    for ran_ns in (3 * MS, 5 * MS, 5 * MS, 4 * MS):
        device.now_ns += 10 * MS
        share.say(beside_ns=ran_ns, beside_until_us=(BEGAN_NS + device.now_ns) // 1000)
        device.ring(share.number)
    assert share.beside_ns == share.used_ns == 5 * MS


def test_a_file_that_was_cut_is_a_fault_once(device: Device) -> None:
    share = device.share()
    share.say(cut=-5)
    for _ in range(3):
        device.ring(share.number)
    assert share.faults == 1


def test_the_next_turn_of_long_units_is_longer(device: Device, pair: tuple[Share, Share]) -> None:
    one, other = pair
    other.wait()
    one.say(longest_unit_us=60_000, waiting=1)
    device.until(QUANTUM)
    assert one.bound_ns == QUANTUM + 90 * MS  # 1.5 units
    device.now_ns = 50 * MS
    one.drain()
    begin_ns, end_ns = other.turn
    assert (begin_ns, end_ns - begin_ns) == (50 * MS, 36_050_000)  # it would be 12.05 ms after short units


def test_a_drain_that_is_late_is_shared_and_its_share_may_have_another_turn(
    device: Device, pair: tuple[Share, Share]
) -> None:
    one, other = pair
    other.wait()
    one.say(longest_unit_us=1_000_000)
    device.until(QUANTUM)
    assert one.bound_ns == 110 * MS  # never more than 100 ms
    device.until(110 * MS - 1)
    assert (one.cogranted, other.holding) == (0, 0)
    device.until(110 * MS)
    assert (one.cogranted, one.cogrants, other.turn[0]) == (1, 1, 110 * MS)
    other.enter()
    other.drain()
    one.wait()
    assert (one.turn[0], one.late, one.overdue) == (110 * MS, 1, 1)
    one.enter()
    other.wait()
    end_ns = one.deadline_ns
    device.until(end_ns)
    assert (one.draining, one.bound_ns, other.turn[0]) == (1, end_ns, end_ns)  # its late work is not waited for again


def test_what_is_late_is_waited_for_again_when_work_of_its_new_turn_has_ended(
    device: Device, pair: tuple[Share, Share]
) -> None:
    one, other = pair
    other.wait()
    device.until(30 * MS)
    other.enter()
    other.drain()
    one.wait()
    one.enter()
    one.say(first_ended_ns=31 * MS)
    other.wait()
    device.until(one.deadline_ns)
    assert (one.overdue, one.draining, one.bound_ns - device.now_ns) == (1, 1, 20 * MS)


def test_what_is_late_and_spins_for_a_launch_that_its_limit_forbids_gets_a_short_turn(device: Device) -> None:
    one, other = device.share(request=1, limit=1), device.share(request=90)
    one.wait()
    one.enter()
    other.wait()
    device.until(one.deadline_ns)
    device.until(one.bound_ns)
    other.enter()
    one.wait()
    other.drain()
    bound_ns = one.bound_ns
    device.until(bound_ns + 50 * MS - 1)
    assert (one.cogranted, one.holding) == (1, 0)
    device.until(bound_ns + 50 * MS)
    assert one.turn == (bound_ns + 50 * MS, bound_ns + 60 * MS)


def test_who_does_not_come_is_not_believed_until_it_rings_again(device: Device) -> None:
    one, other = device.share(), device.share()
    other.wait()
    device.until(10 * MS)
    device.ring(one.number)
    assert other.turn[0] == 0
    device.until(10 * MS + 1)
    device.ring(one.number)
    assert (other.holding, other.reason, other.turns, other.used_ns) == (0, IDLE, 1, 0)
    one.wait()
    one.enter()
    device.until(200 * MS)
    assert (one.holding, one.flags) == (1, 0)
    device.ring(other.number)
    assert (one.holding, one.reason) == (0, QUANTUM_OVER)


def test_a_turn_that_was_given_back_without_a_bell_ends_when_somebody_waits(
    device: Device, pair: tuple[Share, Share]
) -> None:
    one, other = pair
    device.until(5 * MS)
    one.say(parks=1)  # it gives its turn back while the arbiter writes its grant
    other.wait()
    one.say(parks=0)
    device.ring()
    assert (one.holding, one.reason, one.used_ns, other.turn[0]) == (0, IDLE, 5 * MS, 5 * MS)


@pytest.mark.parametrize(
    ("limit", "other_class", "waits", "grant"),
    [
        (100, STANDARD, False, (0, ALONE, ALONE)),
        (60, STANDARD, False, (LIMITED, WITH_LIMIT, PAIR)),
        (60, STANDARD, True, (LIMITED | CONTENDED, WITH_LIMIT, PAIR)),
        (100, LATENCY, False, (0, BESIDE_LATENCY, PAIR_LATENCY)),
        (60, LATENCY, False, (LIMITED, BESIDE_LATENCY, PAIR_LATENCY)),
    ],
)
def test_how_much_may_be_in_flight_follows_from_who_else_is_there(
    device: Device, limit: int, other_class: int, waits: bool, grant: tuple[int, int, int]
) -> None:
    one, other = device.share(limit=limit), device.share(share_class=other_class)
    one.wait()
    one.enter()
    if waits:
        other.wait()
    for share in (other, one):
        device.ring(share.number)
    assert one.grant == grant


def test_beside_a_share_that_was_there_a_moment_ago_little_is_in_flight(
    device: Device, pair: tuple[Share, Share]
) -> None:
    one, other = pair
    one.drain()
    other.wait()
    other.enter()
    assert other.grant == (0, SHARED, PAIR)
    device.until(99 * MS)
    other.wait()
    assert other.grant == (0, SHARED, PAIR)
    device.until(101 * MS)
    other.wait()
    assert other.grant == (0, ALONE, ALONE)


def test_a_latency_share_takes_the_device_at_once(device: Device) -> None:
    other, one = device.share(share_class=LATENCY), device.share()
    one.wait()
    one.enter()
    device.until(MS)
    one.say(residue_until_ns=MS + 200_000)
    other.wait()
    assert (one.holding, one.reason) == (0, PREEMPTED)
    device.until(2 * MS)
    assert other.turn[0] == MS + 100_000


def test_a_latency_share_that_has_what_it_asked_for_waits_like_any_other(device: Device) -> None:
    other, one = device.share(request=10, share_class=LATENCY), device.share(request=90)
    other.wait()
    other.enter()
    one.wait()
    device.until(other.deadline_ns)
    other.drain()
    one.enter()
    other.wait()
    assert (one.holding, one.flags) == (1, CONTENDED)


def test_a_limit_ends_the_turn_of_who_is_alone(device: Device) -> None:
    share = device.share(request=10, limit=20)
    share.wait()
    share.enter()
    _, end_ns = share.turn
    share.say(waiting=1, waiting_since_ns=0)
    device.until(end_ns)
    assert (share.holding, share.reason) == (0, LIMIT)
    share.drain()
    assert (share.used_ns, share.overrun_ns) == (end_ns, 0)
    due_ns = device.until(end_ns + MS)
    assert share.holding == 0
    device.until(due_ns)
    assert share.turn[0] == due_ns


def test_a_pause_ends_the_turn_and_all_waiting_and_a_resume_begins_it_anew(
    device: Device, pair: tuple[Share, Share]
) -> None:
    one, other = pair
    other.wait()
    device.lab.lab_pause(one.number, 1, device.at())
    device.ring(one.number)
    assert (one.holding, one.reason, one.flags) == (0, IS_PAUSED, PAUSED)
    one.say(waiting=1, waiting_since_ns=0)
    one.drain()
    other.enter()
    device.until(300 * MS)
    assert (one.holding, other.flags) == (0, 0)
    device.lab.lab_pause(one.number, 0, device.at())
    device.ring(one.number)
    assert (other.holding, other.reason) == (0, QUANTUM_OVER)


def test_when_a_process_dies_in_its_turn_its_counts_stay_and_the_device_is_free(
    device: Device, pair: tuple[Share, Share]
) -> None:
    one, other = pair
    one.say(launches=7, passed=2, refusals=3, memory_used_bytes=1000, waiting=1, waiting_since_ns=0)
    other.wait()
    device.until(4 * MS)
    device.ring(one.number)
    assert (one.memory_used_bytes, one.processes) == (1000, 1)
    one.say(idle_ns=3 * MS)  # the arbiter has not read this yet
    device.lab.lab_die(one.number, device.at())
    device.ring(one.number)
    assert (one.holding, one.reason, one.used_ns) == (0, DEAD, MS)
    assert (one.launches, one.passed, one.memory_refusals) == (7, 2, 3)
    assert (one.memory_used_bytes, one.processes) == (0, 0)
    assert other.turn[0] == 4 * MS
    device.until(200 * MS)
    assert one.waited_ns == 0


def test_what_a_process_said_last_counts_and_the_next_one_in_its_slot_begins_anew(device: Device) -> None:
    share = device.share()
    device.ring(share.number)
    share.say(launches=9, passed=1)  # it does not ring any more
    device.lab.lab_die(share.number, device.at())
    device.ring(share.number)
    assert (share.launches, share.passed, share.processes) == (9, 1, 0)
    share.say(claimed=3, launches=4, passed=0)
    device.ring(share.number)
    assert (share.launches, share.passed, share.processes) == (9 + 2 * 4, 1, 2)  # this lab has one report for all slots


def test_a_new_agent_lets_what_it_finds_drain_before_it_grants(device: Device) -> None:
    one, other = device.share(word=7), device.share()
    assert (one.holding, one.draining, one.word, one.grant) == (0, 1, 8, (0, 0, 0))
    assert (one.granted_ns, one.requested_ns, one.bound_ns) == (-BEGAN_NS, 0, 100 * MS)
    one.say(entered_ns=0, idle_ns=0)
    other.wait()
    assert other.holding == 0
    device.until(100 * MS)
    assert (one.cogranted, other.turn[0]) == (1, 100 * MS)


@pytest.mark.parametrize(
    ("said_ns", "since_ns"), [(2 * MS, 2 * MS), (3 * MS, 3 * MS), (-BEGAN_NS, 5 * MS), (6 * MS, 5 * MS), (-1, 0)]
)
def test_since_when_it_waits_is_believed_as_far_as_it_can_be_true(
    device: Device, pair: tuple[Share, Share], said_ns: int, since_ns: int
) -> None:
    _, other = pair
    device.ring(other.number)  # it rings without a waiting thread
    device.until(5 * MS)
    other.say(waiting=1, waiting_since_ns=said_ns)
    device.ring(other.number)
    device.until(QUANTUM)
    pair[0].drain()
    assert other.requested_ns == since_ns


def test_a_report_that_is_half_written_keeps_its_turn_until_the_bound_and_is_no_fault_for_a_second(
    device: Device, pair: tuple[Share, Share]
) -> None:
    one, other = pair
    one.say(launches=5)
    device.ring(one.number)
    other.wait()
    one.say(torn=1, sequence=3)
    device.until(QUANTUM)
    assert (one.draining, one.faults, one.launches) == (1, 0, 5)
    device.until(QUANTUM + 20 * MS - 1)
    assert other.holding == 0
    device.until(QUANTUM + 20 * MS)
    assert (one.cogranted, other.turn[0], one.faults) == (1, QUANTUM + 20 * MS, 0)
    device.until(1100 * MS)
    device.ring(one.number)
    assert one.faults > 0


def test_a_damaged_report_is_a_fault_at_once(device: Device, pair: tuple[Share, Share]) -> None:
    one, _ = pair
    one.say(torn=1, sequence=2)
    device.ring(one.number)
    assert one.faults > 0


def test_what_cannot_be_true_is_a_fault_and_harms_the_liar_alone(device: Device, pair: tuple[Share, Share]) -> None:
    one, other = pair
    other.wait()
    device.until(QUANTUM)
    one.say(entered_ns=-5 * MS)
    faults = one.faults
    device.ring(one.number)
    assert one.faults == faults + 1
    one.say(entered_ns=0, memory_used_bytes=1 << 50)
    device.ring(one.number)
    assert (one.faults, one.memory_used_bytes) == (faults + 2, 0)
    one.say(memory_used_bytes=5, context_bytes=6)
    device.ring(one.number)
    assert (one.faults, one.memory_used_bytes) == (faults + 3, 0)
