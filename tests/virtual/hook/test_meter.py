"""Test the meter against the truth in virtual time: what streams did is billed once, and idle time is not billed.

A test tells the device exactly how long each launch takes. As on a real device, launches and records arrive some
microseconds late, and the keeper wakes up late.
"""

import ctypes
import itertools
import random
from collections.abc import Sequence

import pytest
from hooklab import HOOK, C, load_c

SOURCES = ("gate/gate.c", *(f"meter/{part}.c" for part in ("record", "marker", "clock", "busy_intervals", "predict")))
NEVER = (
    "sp_context_leave",
    "sp_grant_wait",
    "sp_header_heartbeat_ns",
    "sp_keeper_start",
    "sp_streams_capture_begin",
    "sp_streams_capture_end",
    "sp_region_ring",
    "sp_share_crowded",
    "sp_slot_publish",
    "sp_slot_wait_again",
    "sp_slot_wait_begin",
    "sp_slot_wait_end",
    "sp_thread_forget_streams",
)
"""Functions of the rest of the hook that are not called here."""
SYNC_STREAM, SYNC_CONTEXT, SYNC_BEFORE, SYNC_EVENT = range(4)
DEFAULT = -1
US = 1000
KEYS = itertools.count(1)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    sources = [C / "meter.c", *(HOOK / name for name in SOURCES)]
    return load_c(tmp_path_factory.mktemp("meter") / "meter.so", *sources, never=NEVER)


class Meter:
    """A share's work on a device, and what the meter makes of it."""

    def __init__(self, library: ctypes.CDLL, *delays_us: float) -> None:
        self._library = library
        self._late_ns = round(delays_us[3] * US)
        self._call("start", *(round(delay * US) for delay in delays_us))
        self.worked: list[tuple[int, int]] = []

    def _call(self, name: str, *arguments: int) -> int:
        function = getattr(self._library, f"meter_{name}")
        function.restype = ctypes.c_int64
        return int(function(*map(ctypes.c_int64, arguments)))

    def __getattr__(self, name: str) -> int:
        """Return the meter's value by its name in meter.c, in ns unless the name has another unit."""
        return self._call(name)

    def turn(self, *, contended: bool = False, others_ns: int = 0) -> None:
        """Begin a turn; the work of another share runs on for `others_ns`."""
        self.worked.clear()
        self._call("leave", 0)
        self._call("grant", contended)
        for stream in range(3):
            self.hold(stream, others_ns)

    def aside(self) -> None:
        """Give the turn back while the work in flight stands behind a wait."""
        self._call("leave", 1)

    def grant(self) -> None:
        """Give the share its next turn."""
        self._call("grant", 1)

    def hold(self, stream: int, ns: int) -> None:
        """Let nothing run in a stream for `ns`."""
        self._call("hold", stream, self.now + ns)

    def context(self, stream: int, context: int) -> None:
        self._call("context", stream, context)

    def destroy(self, stream: int) -> None:
        """Destroy the stream's context."""
        self._call("destroy", stream)

    def current(self, context: int) -> None:
        self._call("current", context)

    def sync(self, stream: int, kind: int) -> None:
        """Wait for a stream's work as a call of that kind does; -1 is the default stream."""
        self._call("sync", stream, kind)

    def unmarked(self, stream: int) -> int:
        return self._call("unmarked", stream)

    def launch_behind(self, stream: int, wait_ns: int, key: int, takes_ns: int) -> None:
        """Launch behind a wait for something other than the device."""
        self.hold(stream, wait_ns)
        self._call("await", stream, 0)
        self.launch(stream, key, takes_ns)

    def refuse(self, result: int, times: int = 1) -> None:
        """Let the driver refuse the next records of events."""
        self._call("refuse", result, times)

    def captures(self, count: int) -> None:
        """Let this many captures be open in the process."""
        self._call("captures", count)

    def let_ask(self) -> None:
        """Let the hook ask the driver whether a stream has ended."""
        self._call("asks")

    def keeper_marks(self, *, keeper: bool = True) -> None:
        """Let the keeper, or another thread of the hook's, mark all pending work."""
        self._call("keeper_marks", keeper)

    def await_event(self, stream: int) -> None:
        self._call("await", stream, 1)

    def await_host(self, stream: int) -> None:
        self._call("await", stream, 0)

    def awaits(self, stream: int) -> int:
        """Tell whether the next launch into the stream stands behind a wait."""
        return self._call("awaits", stream)

    def late(self, ns: int) -> None:
        """Let the keeper wake `ns` after an end."""
        self._late_ns = ns
        self._call("late", ns)

    def calls(self, ns: int) -> None:
        """Let each call of the driver take `ns` of the program's time."""
        self._call("calls", ns)

    def drift(self, part: float) -> None:
        self._library.meter_drift(ctypes.c_double(part))

    def launch(self, stream: int, key: int, takes_ns: int, gap_ns: int = 4 * US) -> None:
        begin = self._call("launch", stream, key, takes_ns)
        self.worked.append((begin, begin + takes_ns))
        self.pause(gap_ns)

    def pause(self, ns: int) -> None:
        self._call("until", self.now + ns)

    def mark(self) -> int:
        """Mark all pending work; return when it ends."""
        return self._call("close")

    def synchronize(self) -> None:
        self._call("until", self.mark() + self._late_ns)
        while self.pending:
            self.pause(self._late_ns)
        assert self.in_flight == 0

    def learn(self, keys: Sequence[int], lengths: Sequence[int]) -> None:
        """Launch each unit repeatedly, in a stream of its own, until its length is known exactly."""
        for _ in range(3):
            self.turn()
            for stream, (key, length) in enumerate(zip(keys, lengths, strict=True)):
                for _ in range(3):
                    self.launch(stream, key, length)
            self.synchronize()
            self.pause(100 * US)

    def predicted(self, key: int) -> int:
        return self._call("predicted", key)

    @property
    def billed(self) -> int:
        """Return the bill of the turn: from its begin to its end, without the time in which it was idle."""
        return self.ended - self.began - self.idle

    @property
    def busy(self) -> int:
        """Return how long at least one stream worked."""
        total, until = 0, 0
        for begin, end in sorted(self.worked):
            total += max(0, end - max(begin, until))
            until = max(until, end)
        return total


# Each row, in µs: how late a launch arrives, how late a record arrives, what an event takes, how late the keeper wakes.
DELAYS = [(5, 4, 0, 8), (5, 4, 1.5, 8), (8, 4, 1, 25), (6, 6, 0.5, 40), (3, 2, 0, 90)]
EACH = pytest.mark.parametrize("delays", DELAYS)
LENGTHS = [20 * US, 80 * US, 140 * US]


def unsure_ns(delays: tuple[float, ...]) -> int:
    """Return how much later than a record a launch arrives, which is not known yet for the first work of a turn."""
    return round((delays[0] - delays[1]) * US) + 200


def known(library: ctypes.CDLL, delays: tuple[float, ...], units: int = 1) -> tuple[Meter, list[int]]:
    """Return a meter that knows this number of units exactly, and their keys."""
    meter, keys = Meter(library, *delays), [next(KEYS) for _ in range(units)]
    meter.learn(keys, LENGTHS[:units])
    assert [meter.predicted(key) for key in keys] == pytest.approx(LENGTHS[:units], abs=600)
    return meter, keys


@EACH
def test_each_of_units_that_take_turns_is_measured_alone_now_and_then(
    library: ctypes.CDLL, delays: tuple[float, ...]
) -> None:
    meter, keys = Meter(library, *delays), [next(KEYS) for _ in LENGTHS]
    meter.turn()
    for _ in range(300):  # the stream never rests
        for key, length in zip(keys, LENGTHS, strict=True):
            meter.launch(0, key, length)
    meter.synchronize()
    assert [meter.predicted(key) for key in keys] == pytest.approx(LENGTHS, abs=100)


@EACH
@pytest.mark.parametrize("streams", [1, 2, 3])
def test_what_streams_did_is_billed_once_and_their_pauses_are_not(
    library: ctypes.CDLL, streams: int, delays: tuple[float, ...]
) -> None:
    meter, keys = known(library, delays, streams)
    dice = random.Random(1)
    meter.turn()
    for _ in range(50):
        for stream in range(streams):
            for _ in range(dice.randrange(4)):
                meter.launch(stream, keys[stream], LENGTHS[stream])
        meter.synchronize()
        if meter.worked:
            assert meter.finished >= max(end for _, end in meter.worked), "said to have ended before it had"
            assert meter.billed == pytest.approx(meter.busy, abs=unsure_ns(delays))
        meter.pause(dice.randrange(300) * US)
    assert meter.busy > 50 * 20 * US


@EACH
def test_marks_that_come_late_and_launches_with_pauses_between_them_are_billed_by_what_is_known(
    library: ctypes.CDLL, delays: tuple[float, ...]
) -> None:
    meter, (key,) = known(library, delays)
    meter.turn()
    meter.launch(0, key, LENGTHS[0])
    meter.synchronize()
    for _ in range(20):
        meter.launch(0, key, LENGTHS[0], gap_ns=500 * US)  # the work ended long before it is marked
        meter.synchronize()
        assert meter.billed == pytest.approx(meter.busy, abs=unsure_ns(delays))
    for _ in range(20):
        for _ in range(5):
            meter.launch(0, key, LENGTHS[0], gap_ns=300 * US)
        meter.launch(0, key, LENGTHS[0])
        meter.synchronize()
        assert meter.billed == pytest.approx(meter.busy, abs=unsure_ns(delays))


@EACH
def test_the_first_work_of_a_turn_is_billed_from_when_the_others_work_had_ended(
    library: ctypes.CDLL, delays: tuple[float, ...]
) -> None:
    meter, keys = known(library, delays, 2)
    for others_ns in (0, 50 * US, 400 * US, 800 * US):
        meter.turn(contended=True, others_ns=others_ns)
        meter.launch(0, keys[0], LENGTHS[0], gap_ns=0)
        meter.mark()
        for stream in (0, 1, 1):
            meter.launch(stream, keys[stream], LENGTHS[stream])
        meter.synchronize()
        assert meter.billed == pytest.approx(meter.busy, abs=unsure_ns(delays)), others_ns
        first_end = min(end for _, end in meter.worked)
        assert first_end <= meter.first_ended <= first_end + round(delays[3] * US) + 100


@EACH
@pytest.mark.parametrize("early_ns", [0, 30 * US, 80 * US, 200 * US])
def test_work_that_stood_is_billed_beside_the_other_until_the_next_turn(
    library: ctypes.CDLL, early_ns: int, delays: tuple[float, ...]
) -> None:
    meter, keys = known(library, delays, 2)
    for _ in range(3):
        meter.turn(contended=True)
        meter.launch(0, keys[0], LENGTHS[0])
        meter.synchronize()
        before = meter.beside
        meter.hold(1, 500 * US)
        meter.launch(1, keys[1], LENGTHS[1])
        end = meter.mark()
        meter.aside()
        meter.pause(end - meter.now - early_ns)
        meter.grant()
        meter.launch(0, keys[0], LENGTHS[0])
        back = meter.began
        meter.synchronize()
        ran = min(max(0, back - (end - LENGTHS[1])), LENGTHS[1])
        of_an_event = round(sum(delays[:3]) * US)
        assert meter.beside - before == pytest.approx(ran, abs=of_an_event)
        if ran:
            assert meter.beside_until_us * US == pytest.approx(min(end, back), abs=of_an_event)
        assert meter.billed <= LENGTHS[0] + LENGTHS[1] - ran + of_an_event


@EACH
@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("after", [0, 1], ids=["nothing more", "and more"])
def test_all_that_ended_before_the_next_turn_is_billed_beside_however_late_the_keeper_sees_it(
    library: ctypes.CDLL, after: int, pieces: int, delays: tuple[float, ...]
) -> None:
    meter, (key,) = known(library, delays)
    meter.late(400 * US)
    for _ in range(3):
        meter.turn(contended=True)
        meter.launch(0, key, LENGTHS[0])
        meter.synchronize()
        before = meter.beside
        meter.hold(0, 500 * US)
        for _ in range(pieces):
            meter.launch(0, key, LENGTHS[0])
            end = meter.mark()
        meter.aside()
        meter.pause(end - meter.now + 10 * US)
        meter.grant()
        for _ in range(1 + after):
            meter.launch(0, key, LENGTHS[0])
        meter.synchronize()
        of_events = pieces * round(sum(delays[:3]) * US)
        assert meter.beside - before == pytest.approx(pieces * LENGTHS[0], abs=of_events)
        assert meter.billed == pytest.approx((1 + after) * LENGTHS[0], abs=unsure_ns(delays) + of_events)


@pytest.mark.parametrize("alone_us", [20, 2000])
def test_of_work_that_stood_and_took_far_longer_than_known_half_is_billed_beside_the_other(
    library: ctypes.CDLL, alone_us: int
) -> None:
    meter, key = Meter(library, *DELAYS[1]), next(KEYS)
    meter.learn([key], [alone_us * US])
    for took_ms in (1, 3, 20, 80):  # such a kernel spins, for example, until the other share's work has come
        meter.turn()
        before = meter.beside
        meter.launch_behind(0, 500 * US, key, took_ms * 1000 * US)
        end = meter.mark()
        meter.aside()
        meter.pause(end - meter.now + 100 * US)
        told, slice_ms = (meter.beside - before) / 1e6, 2
        assert told >= took_ms / 2 - slice_ms - 0.01
        assert told <= max(took_ms / 2, alone_us / 1000) + 0.1
        meter.grant()
        meter.synchronize()


@EACH
def test_what_takes_longer_than_it_does_alone_was_put_off(library: ctypes.CDLL, delays: tuple[float, ...]) -> None:
    meter, (key,) = known(library, delays)
    meter.turn()
    total = 0
    for put_off in (0, 20 * US, 500 * US, 0, 900 * US):
        meter.launch(0, key, LENGTHS[0])
        meter.launch(0, key, LENGTHS[0])
        meter.mark()
        meter.launch(0, key, LENGTHS[0])
        meter.hold(0, put_off)
        meter.launch(0, key, LENGTHS[0])
        meter.synchronize()
        (_, end), (begin, _) = meter.worked[-2:]
        total += begin - end if begin - end > 50 * US else 0  # the length of a unit varies by less than this
        assert meter.put_off == pytest.approx(total, abs=3 * US)  # told in whole microseconds
        meter.pause(100 * US)
    assert total > 1000 * US


def test_a_clock_that_drifts_costs_no_more_than_a_thousandth(library: ctypes.CDLL) -> None:
    meter, keys = known(library, DELAYS[1], 2)
    meter.drift(40e-6)
    meter.turn()
    for _ in range(2500):
        for _ in range(3):
            meter.launch(0, keys[0], LENGTHS[0])
        meter.launch(1, keys[1], LENGTHS[1])
        meter.synchronize()
        meter.pause(1200 * US)
    assert meter.now - meter.began > 3_000_000_000
    assert meter.billed == pytest.approx(meter.busy, rel=0.001)


def test_uneven_work_stretches_what_is_predicted_and_even_work_forgets_it(library: ctypes.CDLL) -> None:
    meter, (key,) = known(library, DELAYS[1])
    meter.turn()
    for _ in range(400):
        for takes in (20, 20, 300):
            meter.launch(0, key, takes * US)
    meter.synchronize()
    stretched = meter.predicted(key) * (256 + meter.stretch) / 256
    assert stretched == pytest.approx(340 * US / 3, rel=0.3)
    for _ in range(4000):
        meter.launch(0, key, 20 * US)
    meter.synchronize()
    assert (meter.stretch, meter.predicted(key)) == (0, 20 * US)


@EACH
@pytest.mark.parametrize("length_us", [20, 90, 400])
@pytest.mark.parametrize("period_ms", [1, 10, 700])
@pytest.mark.parametrize("drift_ppm", [0, 6, 50, -6, -50])
def test_short_work_now_and_then_is_billed_what_it_takes_whatever_the_device_s_clock_does(
    library: ctypes.CDLL, drift_ppm: int, period_ms: int, length_us: int, delays: tuple[float, ...]
) -> None:
    meter, key, billed = Meter(library, *delays), next(KEYS), 0
    meter.drift(drift_ppm / 1e6)
    rounds, each_ns = min(1000, 30_000 // period_ms), unsure_ns(delays) + 1500
    for _ in range(rounds):
        meter.turn()
        meter.launch(0, key, length_us * US, gap_ns=0)
        meter.synchronize()
        billed += meter.billed
        meter.pause(period_ms * 1000 * US)
    busy = rounds * length_us * US
    assert busy * 0.999 <= billed <= busy + rounds * each_ns
    assert meter.predicted(key) == pytest.approx(length_us * US, abs=each_ns)


@EACH
@pytest.mark.parametrize("gap_us", [6, 10, 14])
def test_a_kernel_that_still_runs_when_it_is_marked_is_not_taken_for_one_that_had_ended(
    library: ctypes.CDLL, gap_us: int, delays: tuple[float, ...]
) -> None:
    meter, key, billed = Meter(library, *delays), next(KEYS), 0
    for _ in range(300):
        meter.turn()
        meter.launch(0, key, 20 * US, gap_ns=gap_us * US)
        meter.synchronize()
        billed += meter.billed
        meter.pause(1000 * US)
    assert billed / 300 == pytest.approx(20 * US, abs=unsure_ns(delays) + 1500)


@EACH
@pytest.mark.parametrize("call_us", [2, 5, 30])
@pytest.mark.parametrize("rest_us", [0, 12, 38, 90])
@pytest.mark.parametrize("length_us", [20, 500])
def test_what_is_left_of_each_wait_at_its_record_is_not_taken_from_what_runs_behind_it(
    library: ctypes.CDLL, length_us: int, rest_us: int, call_us: int, delays: tuple[float, ...]
) -> None:
    meter, key, billed = Meter(library, *delays), next(KEYS), 0
    dice = random.Random(7)
    for _ in range(200):
        meter.calls(dice.choice((1, 1, call_us)) * US)  # now and then the host is slow and calls after the wait is over
        meter.turn()
        meter.launch_behind(0, rest_us * US, key, length_us * US)
        meter.synchronize()
        billed += meter.billed
        meter.pause(1000 * US)
    few_ns = unsure_ns(delays) + 1500
    assert -100 <= meter.predicted(key) - length_us * US <= few_ns
    assert -100 <= billed / 200 - length_us * US <= few_ns


@EACH
@pytest.mark.parametrize("contexts", [2, 3])
def test_what_several_contexts_did_is_billed_once_and_their_pauses_are_not(
    library: ctypes.CDLL, contexts: int, delays: tuple[float, ...]
) -> None:
    meter, keys = known(library, delays, 3)
    dice = random.Random(3)
    meter.turn()
    for stream in range(3):
        meter.context(stream, 1 + stream % contexts)
    for _ in range(100):
        for stream in range(3):
            for _ in range(dice.randrange(3)):
                meter.launch(stream, keys[stream], LENGTHS[stream])
        meter.synchronize()
        meter.pause(dice.randrange(300) * US)
    assert meter.billed == pytest.approx(meter.busy, rel=0.02)


def test_the_events_of_a_context_that_is_gone_are_not_asked_and_its_work_is_in_flight_no_more(
    library: ctypes.CDLL,
) -> None:
    meter, keys = known(library, DELAYS[1], 2)
    for number in range(20):
        meter.turn()
        meter.context(1, 7)  # the new context has the address of the one before
        for _ in range(3):
            for stream in (0, 1):
                meter.launch(stream, keys[stream], LENGTHS[stream])
            meter.synchronize()
            meter.pause(100 * US)
        assert meter.billed == pytest.approx(meter.busy, rel=0.05)
        meter.launch(1, keys[1], LENGTHS[1] if number % 4 < 2 else 150_000 * US)  # longer than the keeper waits for it
        meter.mark()
        meter.destroy(1)
        if number % 2:
            meter.launch(0, keys[0], LENGTHS[0])
        meter.synchronize()
        meter.pause(100 * US)


@pytest.mark.parametrize(
    ("kind", "stream", "waits_for"),
    [
        (SYNC_STREAM, 2, {2}),
        (SYNC_STREAM, DEFAULT, {0, 2}),
        (SYNC_CONTEXT, DEFAULT, {0, 2}),
        (SYNC_BEFORE, DEFAULT, {0, 2}),
        (SYNC_EVENT, DEFAULT, {2}),  # for the meter, stream 0 has more work behind the event
    ],
)
def test_a_call_that_waits_marks_what_it_waits_for_and_nothing_else(
    library: ctypes.CDLL, kind: int, stream: int, waits_for: set[int]
) -> None:
    meter, (key,) = known(library, DELAYS[1])
    meter.turn()
    for each in range(4):
        meter.context(each, 1 + each % 2)
        for _ in range(2):
            meter.launch(each, key, LENGTHS[0])
    meter.synchronize()
    meter.launch(0, key, LENGTHS[0])
    meter.mark()
    for each in range(4):
        meter.launch(each, key, LENGTHS[0], gap_ns=0)
    assert all(meter.unmarked(each) for each in range(4))
    meter.sync(stream, kind)
    assert {each for each in range(4) if not meter.unmarked(each)} == waits_for
    meter.current(2)
    meter.sync(1, SYNC_STREAM)
    assert {each for each in range(4) if not meter.unmarked(each)} == waits_for | {1}


def test_when_a_thread_that_waited_returns_its_work_has_ended_however_late_the_keeper_wakes(
    library: ctypes.CDLL,
) -> None:
    meter, key = Meter(library, 5, 4, 1.5, 900), next(KEYS)
    meter.learn([key], LENGTHS[:1])
    for _ in range(3):
        meter.turn()
        for _ in range(2):
            meter.launch(0, key, LENGTHS[0])
            meter.sync(0, SYNC_STREAM)
            meter.pause(2000 * US)
        assert meter.finished == pytest.approx(meter.worked[-1][1], abs=5 * US)


def test_how_long_work_stands_is_learned_and_is_no_work(library: ctypes.CDLL) -> None:
    meter, (key,) = known(library, DELAYS[1])
    meter.turn()
    for waited_us in (400, 700):
        for _ in range(20):
            meter.launch_behind(0, waited_us * US, key, LENGTHS[0])
            meter.synchronize()
            assert meter.billed == pytest.approx(meter.busy, abs=unsure_ns(DELAYS[1]))
        assert meter.stood == pytest.approx(waited_us * US, rel=0.05)


def test_beside_another_stream_nothing_is_stretched(library: ctypes.CDLL) -> None:
    meter, keys = known(library, DELAYS[1], 2)
    meter.turn()
    for _ in range(200):
        for stream in (0, 1):
            meter.launch(stream, keys[stream], LENGTHS[stream])
            meter.mark()
        meter.launch(0, keys[0], 40 * LENGTHS[0])  # such a kernel spins, for example, until the other stream's has run
        meter.launch(1, keys[1], 40 * LENGTHS[1])
        meter.synchronize()
    assert (meter.stretch, meter.put_off) == (0, 0)


def test_a_wait_for_an_event_counts_only_once_a_stream_has_waited_for_the_host(library: ctypes.CDLL) -> None:
    meter, (key,) = known(library, DELAYS[1])
    meter.turn()
    meter.await_event(0)
    assert not meter.awaits(0)  # the event is behind work of this device, as far as is known
    for _ in range(2):  # the first launch of a turn is marked
        meter.launch(1, key, LENGTHS[0])
    assert meter.unmarked(1)
    meter.await_host(1)
    assert (meter.awaits(1), meter.unmarked(1)) == (1, 0)  # the end of what is in front would not be seen in time
    meter.await_event(0)
    assert meter.awaits(0)


@pytest.mark.parametrize("result", [1, 2, 801, *range(900, 909)])
def test_work_that_the_driver_refuses_a_marker_for_now_stays_pending(library: ctypes.CDLL, result: int) -> None:
    meter, (key,) = known(library, DELAYS[1])
    meter.turn()
    meter.launch(0, key, LENGTHS[0])
    meter.synchronize()
    for _ in range(3):
        meter.launch(0, key, LENGTHS[0])
    before = meter.unmarked(0)
    assert before == pytest.approx(3 * LENGTHS[0], abs=2 * US)
    meter.refuse(result, 5)  # of the thread's four calls, one for each stream, and of the keeper's
    meter.mark()
    meter.keeper_marks()
    assert (meter.unmarked(0), meter.in_flight, meter.passed) == (before, 0, 0)
    meter.synchronize()
    assert (meter.unmarked(0), meter.billed) == (0, pytest.approx(meter.busy, abs=unsure_ns(DELAYS[1])))


@pytest.mark.parametrize("result", [700, 719, 899, 909])
def test_work_that_never_gets_a_marker_is_given_up_and_counted(library: ctypes.CDLL, result: int) -> None:
    meter, (key,) = known(library, DELAYS[1])
    meter.turn()
    meter.launch(0, key, LENGTHS[0])
    meter.synchronize()
    for _ in range(3):
        meter.launch(0, key, LENGTHS[0])
    meter.refuse(result)
    meter.mark()
    assert (meter.unmarked(0), meter.in_flight, meter.pending, meter.passed) == (0, 0, 0, 3)
    meter.launch(0, key, LENGTHS[0])
    meter.mark()
    assert (meter.pending, meter.passed) == (1, 3)


def test_a_stream_has_thirty_markers_at_most_and_bills_the_rest_later(library: ctypes.CDLL) -> None:
    meter, (key,) = known(library, DELAYS[1])
    meter.turn()
    meter.hold(0, 5000 * US)
    for _ in range(40):
        meter.launch(0, key, LENGTHS[0])
        meter.mark()
    assert meter.pending == 30
    meter.pause(10_000 * US)
    meter.synchronize()
    assert meter.unmarked(0) == 0


def test_a_stream_that_may_be_full_is_marked_by_its_launcher_and_the_keeper_alone(library: ctypes.CDLL) -> None:
    meter, key = Meter(library, *DELAYS[1]), next(KEYS)
    meter.learn([key], [5 * US])
    meter.turn()
    for _ in range(700):  # from then on it is seldom measured
        meter.launch(0, key, 5 * US)
    meter.synchronize()
    meter.hold(0, 100_000 * US)
    for _ in range(520):
        meter.launch(0, key, 5 * US, gap_ns=0)
    left = meter.unmarked(0)
    assert left
    meter.mark()  # by a thread that waits
    assert meter.unmarked(0) == left
    meter.keeper_marks(keeper=False)
    assert meter.unmarked(0) == left
    meter.keeper_marks()
    assert meter.unmarked(0) == 0


def test_the_longest_unit_is_told_and_forgotten_slowly(library: ctypes.CDLL) -> None:
    meter, keys = known(library, DELAYS[1], 3)
    assert meter.longest == pytest.approx(LENGTHS[2], abs=8 * US)
    for _ in range(40):
        meter.turn()
        for _ in range(110):
            meter.launch(0, keys[0], LENGTHS[0], gap_ns=0)
            meter.mark()
            meter.pause(30 * US)
        meter.synchronize()
    assert LENGTHS[0] <= meter.longest <= 2 * LENGTHS[0]


def test_a_thread_that_has_seen_the_end_of_its_work_records_no_marker(library: ctypes.CDLL) -> None:
    def seen(*, contended: bool) -> Meter:
        meter, (key,) = known(library, DELAYS[1])
        meter.let_ask()
        meter.late(50_000 * US)
        meter.turn(contended=contended)
        for _ in range(2):  # behind the second there is no marker: the stream seems to go on
            meter.launch(0, key, LENGTHS[0])
            meter.sync(0, SYNC_EVENT)
        assert meter.unmarked(0)
        return meter

    meter = seen(contended=False)
    left, before = meter.unmarked(0), meter.queries
    meter.sync(0, SYNC_STREAM)
    assert (meter.unmarked(0), meter.queries) == (left, before + 1)
    meter.launch(0, next(KEYS), LENGTHS[0])
    meter.sync(0, SYNC_STREAM)
    assert (meter.unmarked(0), meter.queries) == (0, before + 1)
    meter = seen(contended=False)
    before = meter.queries
    meter.captures(1)
    meter.await_host(0)  # a question could end the capture
    assert (meter.unmarked(0), meter.queries) == (0, before)
    meter = seen(contended=True)  # idle time counts: a marker tells the end at once
    before = meter.queries
    meter.sync(0, SYNC_STREAM)
    assert (meter.unmarked(0), meter.queries) == (0, before)


def test_work_that_runs_with_pauses_is_sparse_after_twice_its_time(library: ctypes.CDLL) -> None:
    meter, (key,) = known(library, DELAYS[1])
    meter.turn()
    meter.launch(0, key, LENGTHS[0])
    meter.synchronize()
    meter.launch(0, key, LENGTHS[0], gap_ns=0)
    launched = meter.now - 1 * US  # the call has taken that long
    meter.launch(1, key, LENGTHS[0], gap_ns=0)  # a stream with a marker in the queue is not sparse
    pending = meter.unmarked(0)
    assert pending == pytest.approx(LENGTHS[0], abs=US)
    meter.pause(launched + 2 * pending - meter.now - 10)
    assert not meter.sparse
    meter.pause(2 * US)
    assert meter.sparse
    meter.keeper_marks()
    assert not meter.sparse


def test_a_thread_that_waits_again_and_again_wakes_the_keeper_seldom_unless_idle_time_counts(
    library: ctypes.CDLL,
) -> None:
    def kicks(*, contended: bool) -> list[int]:
        meter, (key,) = known(library, DELAYS[1])
        meter.late(50_000 * US)
        meter.turn(contended=contended)
        meter.launch(0, key, LENGTHS[0])
        meter.sync(0, SYNC_STREAM)
        found = []
        for _ in range(12):
            before = meter.kicks
            meter.launch(0, key, LENGTHS[0])
            meter.sync(0, SYNC_STREAM)
            found.append(meter.kicks - before)
        return found

    assert kicks(contended=False) == [0] * 6 + [1] * 6  # until eight markers wait for the keeper
    assert kicks(contended=True) == [1] * 12
