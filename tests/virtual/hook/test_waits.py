"""Test the gate's waits in virtual time: how long a launch waits, what it enters, and what it leaves behind."""

import ctypes

import pytest
from hooklab import C, load_c

MS = 1_000_000
TURN = 3
CONTENDED, PAUSED = 1, 2
MADE, NEAR, STUCK = range(3)
AGAIN, PASSES, ENTERED = range(3)
STALE_MS = 900
"""SP_STALE_NS."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load_c(tmp_path_factory.mktemp("waits") / "waits.so", C / "waits.c")


class Lab:
    """A thread at the gate of a device."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.do("begin")
        self.began_ns = self.do("began")

    def do(self, name: str, *arguments: float) -> int:
        """Call a function of waits.c. Times are in ns."""
        function = getattr(self._library, f"lab_{name}")
        function.restype = ctypes.c_int64
        return int(function(*(ctypes.c_int64(round(argument)) for argument in arguments)))

    def get(self, *names: str) -> list[int]:
        return [self.do(f"get_{name}") for name in names]

    def set(self, **values: int) -> None:
        for name, value in values.items():
            self.do(f"set_{name}", value)

    def at(self, name: str) -> float:
        """Return a field that holds a time, in ms since the beginning."""
        return (self.do(f"get_{name}") - self.began_ns) / MS

    @property
    def now_ms(self) -> float:
        return self.do("now") / MS

    def count(self, *names: str) -> list[int]:
        return [ctypes.c_int.in_dll(self._library, name).value for name in names]

    def progress(self, predicted_ms: float = 0) -> int:
        """Wait until less is in flight."""
        return self.do("progress", predicted_ms * MS)


@pytest.fixture
def lab(library: ctypes.CDLL) -> Lab:
    return Lab(library)


def test_a_wait_ends_two_ms_after_the_predicted_end_and_each_pass_doubles_that(lab: Lab) -> None:
    lab.do("in_flight", 5 * MS)
    assert (lab.progress(), lab.now_ms) == (STUCK, 7)
    waits = []
    for _ in range(6):
        lab.do("gave_up")
        lab.set(stood_ns=0)  # another launch
        began_ms = lab.now_ms
        assert lab.progress() == STUCK
        waits.append(lab.now_ms - began_ms)
    assert waits == [4, 8, 16, 32, 32, 32]
    assert lab.get("passed", "gate_waiters") == [6, 0]


def test_what_was_waited_in_vain_for_this_launch_counts(lab: Lab) -> None:
    lab.do("in_flight", 5 * MS)
    assert (lab.progress(), lab.now_ms) == (STUCK, 7)
    assert lab.get("stood_ns") == [7 * MS]
    assert (lab.progress(), lab.now_ms) == (STUCK, 7)
    assert lab.count("sleeps") == [1]


def test_progress_ends_a_wait_and_begins_the_patience_anew(lab: Lab) -> None:
    lab.do("in_flight", 5 * MS)
    lab.do("finishes", 3 * MS)
    assert (lab.progress(), lab.now_ms, *lab.get("gate_waiters", "stood_ns")) == (MADE, 3, 0, 0)
    lab.do("gave_up")
    lab.set(stood_ns=9 * MS)
    lab.do("finishes", 10**9)
    lab.do("in_flight", 5 * MS)
    assert (lab.progress(), lab.now_ms) == (STUCK, 3 + 5 + 2)
    assert lab.get("stood_ns") == [7 * MS]


def test_no_predicted_end_is_believed_that_is_further_than_a_hundred_ms(lab: Lab) -> None:
    lab.do("in_flight", 500 * MS)
    assert (lab.progress(), lab.now_ms) == (STUCK, 102)


def test_with_nothing_in_flight_there_is_nothing_to_wait_for(lab: Lab) -> None:
    assert (lab.progress(), *lab.count("sleeps")) == (STUCK, 0)
    lab.set(pending_ns=1)
    lab.progress()
    assert lab.count("marked") == [1]  # so that progress can be seen


@pytest.mark.parametrize(
    ("in_flight_ms", "budget_ms", "end", "at_ms"),
    [(5, 4, NEAR, 4.7), (5, 0.2, NEAR, 4.9), (6.25, 4, NEAR, 5.95), (6.26, 4, STUCK, 8.26)],
)
def test_the_second_of_two_long_units_follows_shortly_before_the_end(
    lab: Lab, in_flight_ms: float, budget_ms: float, end: int, at_ms: float
) -> None:
    lab.set(budget_ns=round(budget_ms * MS))
    lab.do("in_flight", in_flight_ms * MS)
    assert (lab.progress(predicted_ms=5), lab.now_ms) == (end, pytest.approx(at_ms))


class TestAWaitForATurn:
    def test_it_is_counted_rings_once_and_ends_with_the_grant(self, lab: Lab) -> None:
        lab.do("heartbeat", 0, 1)
        lab.do("opens", 250 * MS, TURN)
        assert (lab.do("turn"), lab.now_ms) == (AGAIN, 250)
        assert lab.count("rings", "begun", "ended", "again") == [1, 1, 1, 3]

    def test_it_rings_again_when_the_agent_has_forgotten_it(self, lab: Lab) -> None:
        lab.do("heartbeat", 0, 1)
        lab.do("opens", 250 * MS, TURN)
        lab.set(wakes_again=1)
        lab.do("turn")
        assert lab.count("rings", "ended") == [4, 1]

    def test_it_passes_when_the_agents_heart_has_stopped(self, lab: Lab) -> None:
        assert lab.do("turn") == PASSES
        assert STALE_MS < lab.now_ms <= STALE_MS + 100
        assert lab.count("begun", "ended") == [1, 1]

    def test_it_passes_at_once_when_the_agent_has_stopped(self, lab: Lab) -> None:
        lab.do("stopped")
        assert (lab.do("turn"), lab.now_ms) == (PASSES, 0)

    def test_a_paused_share_waits_for_ever(self, lab: Lab) -> None:
        lab.do("stopped")
        lab.set(flags=PAUSED)
        lab.do("opens", 20_000 * MS, TURN)
        assert (lab.do("turn"), lab.now_ms) == (AGAIN, 20_000)

    @pytest.mark.parametrize("old_ms", [10_000, -10_000])
    def test_a_heartbeat_by_another_clock_is_one_while_it_moves(self, lab: Lab, old_ms: int) -> None:
        lab.do("heartbeat", old_ms * MS, 1)
        lab.do("opens", 5000 * MS, TURN)
        assert (lab.do("turn"), lab.now_ms) == (AGAIN, 5000)

    @pytest.mark.parametrize("old_ms", [10_000, -10_000])
    def test_a_heartbeat_by_another_clock_that_stands_still_is_none(self, lab: Lab, old_ms: int) -> None:
        lab.do("heartbeat", old_ms * MS, 0)
        assert (lab.do("turn"), lab.now_ms) == (PASSES, 400)


class TestAnEntry:
    @pytest.fixture
    def open_lab(self, lab: Lab) -> Lab:
        lab.do("sleep", 20 * MS)
        lab.set(word=TURN)
        return lab

    def test_the_first_entry_of_a_turn_begins_its_account(self, open_lab: Lab) -> None:
        open_lab.set(
            idle_ns=7, starved_ns=8, held_turn=1, drained_turn=1, residue_until_ns=9, eta_published=1, back_ns=5
        )
        assert open_lab.do("turn") == ENTERED
        assert open_lab.get("idle_ns", "starved_ns", "residue_until_ns", "eta_published", "back_ns") == [0] * 5
        assert open_lab.get("held_turn", "drained_turn", "entered", "start") == [TURN, 1, TURN, 1]
        assert [open_lab.at(name) for name in ("entered_ns", "entry_ns", "began_ns", "fresh_ns")] == [20] * 4

    @pytest.mark.parametrize(("residue_ms", "idle_ms"), [(12, 8), (20, 0), (35, 0)])
    def test_coming_back_within_a_turn_the_time_in_between_was_idle(
        self, open_lab: Lab, residue_ms: int, idle_ms: int
    ) -> None:
        open_lab.set(
            held_turn=TURN, drained_turn=TURN, idle_ns=MS, starved_ns=8, entered_ns=open_lab.began_ns,
            residue_until_ns=open_lab.began_ns + residue_ms * MS,
        )  # fmt: skip
        assert open_lab.do("turn") == ENTERED
        assert open_lab.get("idle_ns", "starved_ns", "drained_turn") == [(1 + idle_ms) * MS, 8, 0]
        assert (open_lab.at("entered_ns"), open_lab.at("entry_ns")) == (0, 20)

    def test_with_work_in_flight_no_start_event_tells_when_the_turns_work_began(self, open_lab: Lab) -> None:
        open_lab.do("in_flight", MS)
        open_lab.set(began_ns=open_lab.began_ns)
        assert open_lab.do("turn") == ENTERED
        assert (open_lab.get("start", "fresh_ns"), *open_lab.count("started")) == ([0, 0], 0)
        assert (open_lab.at("began_ns"), open_lab.at("entry_ns")) == (0, 20)

    def test_work_that_stood_ran_beside_others_until_the_entry(self, open_lab: Lab) -> None:
        open_lab.do("in_flight", MS)
        open_lab.set(aside=1, began_ns=open_lab.began_ns)
        assert open_lab.do("turn") == ENTERED
        assert [open_lab.at(name) for name in ("back_ns", "began_ns")] == [20, 20]
        assert open_lab.get("aside", "fresh_ns") == [0, 0]

    def test_a_turn_that_was_taken_away_meanwhile_leaves_all_as_it_was(self, open_lab: Lab) -> None:
        open_lab.set(
            refuses=1, held_turn=1, drained_turn=0, entry_ns=open_lab.began_ns, idle_ns=7, aside=1, residue_until_ns=9
        )
        assert open_lab.do("turn") == AGAIN
        names = ("held_turn", "drained_turn", "idle_ns", "aside", "residue_until_ns", "entered")
        assert open_lab.get(*names) == [1, 0, 7, 1, 9, 0]
        assert (open_lab.at("entry_ns"), *open_lab.count("published", "rings")) == (0, 1, 1)

    def test_a_process_that_never_held_a_turn_says_that_it_has_drained_this_one(self, open_lab: Lab) -> None:
        open_lab.set(refuses=1)
        assert open_lab.do("turn") == AGAIN
        assert open_lab.get("held_turn", "drained_turn") == [TURN, TURN]

    def test_what_another_thread_has_entered_meanwhile_is_not_entered_again(self, open_lab: Lab) -> None:
        open_lab.set(enters_word=TURN, held_turn=TURN, entry_ns=open_lab.began_ns)
        assert open_lab.do("turn") == ENTERED
        assert (open_lab.get("start"), open_lab.at("entry_ns")) == ([0], 0)  # two events: neither tells

    def test_a_turn_that_is_over_is_not_entered(self, open_lab: Lab) -> None:
        open_lab.set(next_word=TURN + 2, held_turn=1, idle_ns=7)
        assert open_lab.do("turn") == AGAIN
        assert open_lab.get("held_turn", "entered", "idle_ns") == [1, 0, 7]
