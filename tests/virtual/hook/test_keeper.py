"""Test the keeper in virtual time: how long it sleeps and for what, what it marks, reports and rings.

The times of a diary are in µs since the beginning. A sleep stands there with its end: "driver" for a marker, "grant"
for the grant or a kick, "kick" for a kick alone, "time" for nothing else. "told" is a report with the turn that it says
is drained; "marked" has the name of the recorder.
"""

import ctypes
import itertools

import pytest
from hooklab import HOOK, C, load_c

US, MS, S = 1, 1000, 1_000_000
BEGAN_NS = 1_000_000_000
TURN = 3
CONTENDED, LIMITED = 1, 4
KEEPER, OTHER = "keeper", "other"
ACTS = ("driver", "time", "kick", "grant", "rang", "told", "marked", "spins")
ASLEEP = S
"""A sleep without a turn."""
Page = tuple[float | int | str, ...]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load_c(tmp_path_factory.mktemp("keeper") / "keeper.so", C / "keeper.c", HOOK / "meter" / "stand.c")


class Lab:
    """A process with a keeper and two streams."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._call("begin")

    def _call(self, name: str, *arguments: float) -> int:
        function = getattr(self._library, f"lab_{name}")
        function.restype = ctypes.c_int64
        return int(function(*(ctypes.c_int64(round(argument)) for argument in arguments)))

    def grant(self, word: int, flags: int = 0) -> None:
        self._call("grant", word, flags)

    def launch(self, takes_us: float, stream: int = 0) -> None:
        self._call("launch", stream, takes_us * 1000)

    def mark(self, stream: int = 0) -> None:
        self._call("mark", stream)

    def wait(self, until_us: float, stream: int = 0) -> None:
        """Let the stream wait for something else than the device."""
        self._call("wait", stream, until_us * 1000)

    def until(self, us: float) -> None:
        self._call("until", us * 1000)

    def synced(self, *, contended: bool) -> None:
        """A thread of the program has waited for its work."""
        self._call("synced", contended)

    def linger(self, *, contended: bool) -> int:
        return self._call("linger", contended)

    def do(self, name: str) -> None:
        self._call(name)

    def get(self, name: str) -> int:
        return self._call(f"get_{name}")

    def set(self, **values: int) -> None:
        for name, value in values.items():
            self._call(f"set_{name}", value)

    def at(self, name: str) -> float:
        """Return a field that holds a time, in µs since the beginning."""
        return (self.get(name) - BEGAN_NS) / 1000

    def count(self, name: str) -> int:
        return ctypes.c_int.in_dll(self._library, name).value

    @property
    def now(self) -> float:
        return self._call("now") / 1000

    def diary(self) -> list[Page]:
        """Return what the keeper has done since the last diary."""
        pages = (ctypes.c_int64 * 3 * 256).in_dll(self._library, "diary")
        noted = ctypes.c_int.in_dll(self._library, "noted")
        found: list[Page] = []
        for at_ns, act, value in pages[: noted.value]:
            name = ACTS[act]
            after: Page = (value / 1000,)
            if name in ("rang", "spins"):
                after = ()
            elif name == "told":
                after = (value,)
            elif name == "marked":
                after = ({3: KEEPER, 2: OTHER}.get(value, value),)
            found.append((at_ns / 1000, name, *after))
        noted.value = 0
        assert self.count("broken") == 0  # locks, and what the keeper says of its sleep
        return found


@pytest.fixture
def lab(library: ctypes.CDLL) -> Lab:
    found = Lab(library)
    assert found.diary() == [(0, "kick", ASLEEP)]
    return found


def granted(library: ctypes.CDLL, flags: int = 0) -> Lab:
    """Return a lab at the beginning of a turn."""
    found = Lab(library)
    found.diary()
    found.grant(TURN, flags)
    return found


def test_alone_the_keeper_looks_marks_the_work_and_returns_the_turn_after_a_linger(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.launch(1000)
    lab.until(2000)
    assert lab.diary() == [
        (0, "told", 0), (0, "grant", 100), (100, "marked", KEEPER), (100, "driver", 1000),
        (1000, "grant", 1050), (1050, "told", TURN), (1050, "kick", 1050 + ASLEEP),
    ]  # fmt: skip
    assert (lab.at("drained_ns"), lab.at("residue_until_ns")) == (1000, 1000)
    assert (lab.get("entered"), lab.get("blocked"), lab.get("launches")) == (0, 1, 1)


def test_the_keepers_thread_is_named_and_wakes_in_time(lab: Lab) -> None:
    assert (lab.get("named"), lab.get("slack_ns")) == (1, 1)


def test_of_a_stream_that_is_gone_no_event_is_waited_for(library: ctypes.CDLL) -> None:
    for dead in (0, 1):
        lab = granted(library)
        lab.launch(1000)
        lab.mark()
        lab.set(dead=dead)
        lab.until(0)
        assert [page[1] for page in lab.diary()] == (["told", "grant"] if dead else ["driver"])
        lab.until(1000)
        assert lab.get("waited") == 1 - dead


def test_a_marker_that_has_passed_already_was_not_waited_for(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.launch(50)
    lab.until(2000)
    assert lab.get("blocked") == 0


@pytest.mark.parametrize(
    ("flags", "looks"),
    [
        (0, (100, 200, 400, 800, 1600, 3200, 4000, 4000)),
        *((flags, (100, 200, 200, 200)) for flags in (CONTENDED, LIMITED)),
    ],
)
def test_while_a_program_launches_the_keeper_looks_ever_less_often(
    library: ctypes.CDLL, flags: int, looks: tuple[int, ...]
) -> None:
    lab = granted(library, flags)
    lab.launch(10 * S)
    lab.until(0)
    found, now = [], 0.0
    for _ in looks:
        [until] = [page[2] for page in lab.diary() if page[1] == "grant"]
        assert isinstance(until, float)
        found.append(until - now)
        lab.launch(1)
        lab.until(until)
        now = until
    assert found == list(looks)


@pytest.mark.parametrize(("synced", "idle"), [(False, 1100), (True, 1000)])
def test_a_program_that_has_waited_for_its_work_is_believed_to_pause(
    library: ctypes.CDLL, synced: bool, idle: int
) -> None:
    lab = granted(library, CONTENDED)
    lab.launch(1000)
    lab.mark()
    lab.until(999)
    if synced:
        lab.synced(contended=True)
    lab.until(2000)
    looks = [] if synced else [(1000, "grant", 1100)]
    assert lab.diary() == [
        (0, "driver", 1000), (1000, "told", 0), *looks, (idle, "grant", idle + 50),
        (idle + 50, "told", TURN), (idle + 50, "rang"), (idle + 50, "kick", idle + 50 + ASLEEP),
    ]  # fmt: skip
    assert (lab.at("drained_ns"), lab.get("synced")) == (idle + 50, 0)  # the idle time kept others out


def test_a_thread_that_has_waited_returns_the_turn_itself_if_the_program_will_pause(library: ctypes.CDLL) -> None:
    def idle(gap_ns: int) -> Lab:
        lab = granted(library, CONTENDED)
        lab.launch(10)
        lab.mark()
        lab.until(15)
        lab.set(gap_ns=gap_ns)
        lab.diary()
        return lab

    lab = idle(500_000)
    lab.synced(contended=True)
    assert lab.diary() == [(15, "told", TURN), (15, "rang")]
    assert (lab.get("synced"), lab.count("questions"), lab.get("entered")) == (0, 0, 0)
    for gap_ns, contended in ((10_000, True), (500_000, False)):
        lab = idle(gap_ns)
        kicks = lab.get("kick")
        lab.synced(contended=contended)
        assert (lab.diary(), lab.get("synced"), lab.get("entered")) == ([], 1, TURN)
        assert lab.get("kick") == kicks + 1  # the keeper looks
    lab = idle(500_000)
    lab.launch(100)  # there is work
    lab.synced(contended=True)
    assert (lab.diary(), lab.get("synced"), lab.get("entered")) == ([], 1, TURN)


@pytest.mark.parametrize(
    ("gap_us", "contended", "synced", "waiters", "linger_us"),
    [
        (0, False, False, 0, 50), (30, False, False, 0, 60), (60, False, False, 0, 120), (100, False, False, 0, 200),
        (150, False, False, 0, 200), (200, True, True, 0, 200), (201, False, False, 0, 50), (201, True, True, 0, 0),
        (201, True, False, 0, 50), (201, True, True, 1, 50), (201, False, True, 0, 50),
    ],
)  # fmt: skip
def test_an_idle_turn_is_kept_for_twice_the_programs_usual_pause(
    lab: Lab, gap_us: int, contended: bool, synced: bool, waiters: int, linger_us: int
) -> None:
    lab.set(gap_ns=gap_us * 1000, synced=synced, gate_waiters=waiters)
    assert lab.linger(contended=contended) == linger_us * 1000


@pytest.mark.parametrize(
    ("gap", "pause", "learned"), [(0, 400, 100), (400, 0, 300), (0, 10 * MS, 250), (100, 100, 100)]
)
def test_a_pause_moves_the_average_by_a_quarter_and_a_long_one_by_a_millisecond_at_most(
    lab: Lab, gap: int, pause: int, learned: int
) -> None:
    lab.until(20 * MS)
    lab.set(gap_ns=gap * 1000, finished_ns=BEGAN_NS + (20 * MS - pause) * 1000 - (pause == 0))
    lab.do("pause")
    assert lab.get("gap_ns") == pytest.approx(learned * 1000, abs=1)


def test_only_a_pause_with_nothing_in_flight_is_one(library: ctypes.CDLL) -> None:
    lab = Lab(library)
    lab.until(100)
    for finished_ns in (0, BEGAN_NS + 200_000):
        lab.set(finished_ns=finished_ns)
        lab.do("pause")
    lab.grant(TURN)
    lab.launch(1000)
    lab.mark()
    lab.set(finished_ns=BEGAN_NS)
    lab.do("pause")
    assert lab.get("gap_ns") == 0


def test_half_of_a_pause_within_the_linger_is_learned_and_the_looks_begin_anew(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.launch(1000)
    lab.until(1020)
    lab.launch(100)
    lab.do("kick")
    lab.diary()
    lab.until(1021)
    assert lab.get("gap_ns") == 20_000 // 2 // 4
    lab.launch(100)
    lab.do("kick")
    lab.until(1022)
    assert lab.get("gap_ns") == 20_000 // 2 // 4  # it is learned once
    assert [page[1:] for page in lab.diary()] == [("grant", 1020 + 200), ("grant", 1021 + 400)]


def test_a_drain_tells_its_end_unless_the_arbiter_knows_it(library: ctypes.CDLL) -> None:
    def drained(eta_us: float = 0, stretch: int = 0) -> list[Page]:
        lab = granted(library)
        lab.launch(3000)
        lab.until(50)
        if eta_us:
            lab.set(residue_until_ns=BEGAN_NS + round(eta_us * 1000))
        lab.set(stretch=stretch)
        lab.diary()
        lab.grant(TURN + 1)
        lab.until(51)
        if not stretch:
            assert lab.at("residue_until_ns") == 3000
        found = lab.diary()
        lab.until(4000)
        assert lab.diary() == [(3000, "told", TURN), (3000, "rang"), (3000, "kick", 3000 + ASLEEP)]
        assert (lab.at("drained_ns"), lab.get("entered")) == (3000, 0)
        return found

    told = [(50, "marked", KEEPER), (50, "told", 0), (50, "rang"), (50, "driver", 3000)]
    assert drained() == drained(2950) == drained(3050) == told
    assert drained(2951) == drained(3049) == [page for page in told if page[1] != "rang"]
    assert drained(stretch=256) == [told[0], told[3]]  # nobody can tell how long it takes


def test_a_drain_whose_end_should_be_past_is_not_told_as_one_in_the_past(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.launch(3000)
    lab.until(50)
    lab.set(began_ns=BEGAN_NS - 5_000_000)
    lab.diary()
    lab.grant(TURN + 1)
    lab.until(60)
    assert lab.diary() == [(50, "marked", KEEPER), (50, "told", 0), (50, "driver", 3000)]
    assert lab.at("residue_until_ns") == 50


def test_while_a_thread_is_inside_the_driver_the_drain_makes_room_for_it(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.launch(500)
    lab.mark()
    lab.launch(100)
    lab.set(inside_until_ns=BEGAN_NS + 1_000_000)
    lab.grant(TURN + 1)
    lab.diary()
    lab.until(500)
    lab.until(999)
    early = lab.diary()
    assert ("told", TURN) not in [page[1:] for page in early]
    naps = [page[2] - page[0] for page in early if page[1] == "time"]
    assert naps
    assert set(naps) == {20.0}
    lab.until(2000)
    assert [page[1:] for page in lab.diary()][-3:-1] == [("told", TURN), ("rang",)]


def test_work_that_usually_stands_for_long_leaves_the_device_at_once(library: ctypes.CDLL) -> None:
    def stands(stood_us: int) -> tuple[list[Page], Lab]:
        lab = granted(library, CONTENDED)
        lab.wait(10_000)
        lab.set(stood_ns=stood_us * 1000)
        lab.launch(500)
        lab.until(600)
        return lab.diary(), lab

    found, lab = stands(150)
    assert found == [(0, "marked", OTHER), (0, "told", TURN), (0, "rang"), (0, "kick", 500), (500, "kick", 1000)]
    assert (lab.get("aside"), lab.at("drained_ns")) == (1, 0)
    found, _ = stands(100)
    assert found == [
        (0, "told", 0), (0, "grant", 100), (100, "grant", 150), (150, "marked", OTHER), (150, "told", TURN),
        (150, "rang"), (150, "kick", 650),
    ]  # fmt: skip


def test_a_turn_in_which_another_stream_works_is_kept(library: ctypes.CDLL) -> None:
    lab = granted(library, CONTENDED)
    lab.wait(10_000)
    lab.set(stood_ns=150_000)
    lab.launch(500)
    lab.launch(5000, stream=1)
    lab.until(4000)
    assert lab.get("entered") == TURN
    assert not [page for page in lab.diary() if page[1:] == ("told", TURN)]
    lab.until(20_000)
    [told] = [page[0] for page in lab.diary() if page[1:] == ("told", TURN)]
    assert isinstance(told, float)
    assert told >= 10_500 + 50  # with the linger of any other idle turn


def test_a_closed_turn_with_work_that_stands_is_left_at_once(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.wait(10_000)
    lab.launch(500)
    lab.until(50)
    lab.diary()
    lab.grant(TURN + 1)
    lab.until(60)
    assert lab.diary() == [(50, "marked", OTHER), (50, "told", TURN), (50, "rang"), (50, "kick", 550)]
    assert (lab.get("aside"), lab.at("drained_ns")) == (1, 50)


def test_work_that_cannot_be_marked_is_looked_at_again(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.launch(500)
    lab.until(50)
    lab.set(refuses=1)
    lab.diary()
    lab.grant(TURN + 1)
    lab.until(400)
    assert lab.diary() == [
        page for at in (50, 250) for page in ((at, "marked", KEEPER), (at, "time", at + 200))
    ]  # fmt: skip
    lab.set(refuses=0)
    lab.until(600)
    assert [page[1:] for page in lab.diary()][-3:] == [("told", TURN), ("rang",), ("kick", 500 + ASLEEP)]


def test_a_capture_does_not_make_the_keeper_spin(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.launch(500)
    lab.set(refuses=1)
    lab.until(1000)
    found = lab.diary()
    assert found[:4] == [(0, "told", 0), (0, "grant", 100), (100, "marked", KEEPER), (100, "time", 300)]
    assert len(found) < 20


def test_without_a_turn_the_keeper_rings_once_for_what_ran_beside_others(lab: Lab) -> None:
    lab.set(beside_ns=5)
    lab.do("kick")
    lab.until(0)
    assert lab.diary() == [(0, "rang"), (0, "kick", ASLEEP)]
    lab.until(4.5 * S)
    assert [page[1] for page in lab.diary()] == ["kick"] * 4
    assert (
        lab.count("relocks") == lab.count("lasts") == 2
    )  # the lock of the slot is taken again after more than a second


def test_work_that_stood_in_a_full_stream_is_marked_without_a_turn(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.wait(1000)
    lab.launch(500)
    lab.grant(TURN + 1)
    lab.set(refuses=1)
    lab.until(999)
    lab.set(refuses=0)
    lab.diary()
    lab.until(2000)
    found = [page[1:] for page in lab.diary()]
    assert ("marked", KEEPER) in found
    assert ("spins",) not in found


@pytest.mark.parametrize(
    ("finished", "ended", "drained", "residue"),
    [
        (500, 400, 500, 400),
        (500, 600, 500, 500),
        (500, 50, 500, 500),
        (500, 100, 500, 500),
        (50, 40, 100, 100),
        (2000, 1500, 1000, 1500),
    ],
)
def test_the_time_of_a_drain_is_the_end_of_the_turns_work(
    library: ctypes.CDLL, finished: int, ended: int, drained: int, residue: int
) -> None:
    lab = granted(library)
    lab.until(100)
    lab.launch(1)
    lab.mark()
    lab.until(999)  # the turn has been returned after its linger
    lab.grant(TURN + 2)
    lab.set(entered=0)
    lab.launch(1)
    lab.set(entry_ns=BEGAN_NS + 100_000)
    lab.mark()
    lab.until(1000)
    lab.set(finished_ns=BEGAN_NS + finished * 1000, ended_ns=BEGAN_NS + ended * 1000)
    lab.grant(TURN + 3)
    lab.until(1000)
    assert (lab.get("drained"), lab.at("drained_ns"), lab.at("residue_until_ns")) == (TURN + 2, drained, residue)


@pytest.mark.parametrize(
    ("idle", "starved", "told"), [(100, -150, 0), (100, -40, 60), (100, -100, 0), (100, 30, 130), (0, -1, 0)]
)
def test_idle_time_is_corrected_but_never_below_nothing(lab: Lab, idle: int, starved: int, told: int) -> None:
    lab.set(idle_ns=idle, starved_ns=starved, passed=7)
    lab.do("publish")
    assert (lab.get("idle_ns"), lab.get("starved_ns"), lab.get("told_passed")) == (told, 0, 7)


@pytest.mark.parametrize(("longest_ns", "told_us"), [(0, 1), (1999, 2), (5 * 10**15, 2**32 - 1)])
def test_the_longest_unit_is_told_rounded_up(lab: Lab, longest_ns: int, told_us: int) -> None:
    lab.set(longest_ns=longest_ns)
    lab.do("publish")
    assert lab.get("longest_unit_us") == told_us


@pytest.mark.parametrize(
    ("starves_us", "after_us", "is_told"),
    [(99.999, 1000, False), (-99.999, 1000, False), (100, 1000, True), (-100, 1000, True)],
)
def test_new_idle_time_is_told_at_once(
    library: ctypes.CDLL, starves_us: float, after_us: int, *, is_told: bool
) -> None:
    assert told_after(library, starves_us, after_us) == is_told


@pytest.mark.parametrize(("after_us", "is_told"), [(99_999, False), (100_000, True)])
def test_the_counters_of_a_long_turn_are_told_now_and_then(
    library: ctypes.CDLL, after_us: int, *, is_told: bool
) -> None:
    assert told_after(library, 0, after_us) == is_told


def told_after(library: ctypes.CDLL, starves_us: float, after_us: int) -> bool:
    """Tell whether the keeper reports at the end of work that is found to have left the device idle."""
    lab = granted(library)
    lab.launch(10)
    lab.mark()
    lab.launch(after_us)
    lab.mark()
    lab.until(10)
    assert lab.diary()[-2:] == [(10, "told", 0), (10, "driver", 10 + after_us)]
    lab.set(starves_ns=round(starves_us * 1000))
    lab.until(10 + after_us)
    return (10 + after_us, "told", 0) in lab.diary()


def test_pauses_between_rare_kernels_are_seen_by_markers_of_the_keepers(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.set(sparse=1)
    marks = []
    for _ in range(30):  # a kernel every 100 us
        lab.launch(5)
        lab.do("kick")
        lab.until(lab.now + 100)
        marks += [page[0] for page in lab.diary() if page[1:] == ("marked", KEEPER)]
    assert marks[0] == 0
    assert all(1000 < after - before < 1300 for before, after in itertools.pairwise(marks)), marks
    assert len(marks) in (3, 4)


def test_a_thread_at_the_gate_is_woken_by_each_marker(library: ctypes.CDLL) -> None:
    for waiters in (0, 1):
        lab = granted(library)
        lab.set(gate_waiters=waiters)
        for _ in range(3):
            lab.launch(10)
            lab.mark()
        lab.until(100)
        assert (lab.count("progress_woken"), lab.get("progress")) == (3 * waiters, 3)


def test_a_kick_wakes_a_keeper_that_sleeps_and_calls_nobody_else(library: ctypes.CDLL) -> None:
    lab = granted(library)
    lab.launch(100)  # the first launch of a turn kicks
    assert (lab.get("kick"), lab.count("wakes")) == (1, 1)
    lab.mark()
    lab.until(10)
    assert lab.diary()[-1] == (0, "driver", 100)
    lab.do("kick")
    assert (lab.get("kick"), lab.count("wakes")) == (3, 2)


class TestTheEndOfAProcess:
    def test_an_idle_turn_is_returned_with_all_counts(self, library: ctypes.CDLL) -> None:
        lab = granted(library)
        lab.launch(10)
        lab.mark()
        lab.until(20)
        lab.diary()
        lab.do("end")
        assert lab.diary() == [(20, "told", 0), (20, "told", TURN), (20, "rang")]
        assert (lab.get("launches"), lab.get("entered")) == (1, 0)

    def test_work_that_ends_within_a_millisecond_is_waited_for(self, library: ctypes.CDLL) -> None:
        lab = granted(library)
        lab.launch(300)
        lab.mark()
        lab.until(200)
        lab.do("end")
        told = [page for page in lab.diary() if page[1:] == ("told", TURN)]
        assert len(told) == 1
        assert 300 <= told[0][0] <= 320

    def test_work_that_runs_on_is_counted_and_its_turn_is_not_said_to_be_drained(self, library: ctypes.CDLL) -> None:
        lab = granted(library)
        lab.launch(10 * S)
        lab.until(50)
        lab.diary()
        lab.do("end")
        found = [page[1:] for page in lab.diary()]
        assert found[-2:] == [("told", 0), ("rang",)]
        assert ("told", TURN) not in found
        assert (lab.get("launches"), lab.get("entered")) == (1, TURN)

    def test_work_that_stands_does_not_keep_the_turn(self, library: ctypes.CDLL) -> None:
        lab = granted(library)
        lab.wait(10_000)
        lab.launch(500)
        lab.mark()
        lab.until(20)
        lab.do("end")
        assert ("told", TURN) in [page[1:] for page in lab.diary()]
        assert lab.get("aside") == 1

    def test_the_driver_is_not_asked_while_a_thread_is_inside(self, library: ctypes.CDLL) -> None:
        lab = granted(library)
        lab.wait(10_000)
        lab.launch(500)
        lab.mark()
        lab.until(0)
        lab.set(inside_until_ns=BEGAN_NS + 10**9)
        lab.diary()
        lab.do("end")
        assert ("told", TURN) not in [page[1:] for page in lab.diary()]

    @pytest.mark.parametrize(("held_us", "ended_us", "told"), [(1300, 1320, 1), (10 * S, 2020, 0)])
    def test_a_lock_that_a_thread_holds_is_waited_for_but_not_for_ever(
        self, library: ctypes.CDLL, held_us: int, ended_us: int, told: int
    ) -> None:
        lab = granted(library)
        lab.launch(10 * S)
        lab.until(20)
        lab.diary()
        lab.set(locked_until_ns=BEGAN_NS + (20 + held_us) * 1000)
        lab.do("end")
        assert [page[1] for page in lab.diary()].count("told") == told
        assert lab.now == pytest.approx(ended_us, abs=20)

    def test_without_a_turn_its_counts_are_told_once(self, lab: Lab) -> None:
        lab.do("end")
        assert lab.diary() == [(0, "told", 0)]
