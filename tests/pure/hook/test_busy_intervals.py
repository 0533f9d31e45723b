"""Test the union of the streams' busy times against a count of every nanosecond."""

import ctypes

import pytest
from hooklab import HOOK, load_c
from hypothesis import given
from hypothesis import strategies as st

SPAN = st.tuples(st.integers(0, 60), st.integers(0, 25)).map(lambda span: (span[0], span[0] + span[1]))


class Spans(ctypes.Structure):
    """The fields of struct sp_busy_intervals."""

    _fields_ = (("until_ns", ctypes.c_int64), ("count", ctypes.c_uint32), ("gaps", ctypes.c_int64 * 2 * 32))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    loaded = load_c(tmp_path_factory.mktemp("spans") / "spans.so", HOOK / "meter" / "busy_intervals.c")
    for name in ("sp_busy_add", "sp_busy_fill"):
        getattr(loaded, name).restype = ctypes.c_int64
    loaded.sp_busy_begin.argtypes = (ctypes.POINTER(Spans), ctypes.c_int64)
    loaded.sp_busy_add.argtypes = (ctypes.POINTER(Spans), ctypes.c_int64, ctypes.c_int64)
    loaded.sp_busy_fill.argtypes = (ctypes.POINTER(Spans), ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return loaded


def begun(library: ctypes.CDLL) -> Spans:
    spans = Spans()
    library.sp_busy_begin(ctypes.byref(spans), 0)
    return spans


@given(added=st.lists(SPAN, max_size=20))
def test_time_is_idle_that_no_stream_worked_in_whatever_the_order(
    library: ctypes.CDLL, added: list[tuple[int, int]]
) -> None:
    spans = begun(library)
    idle, busy = 0, set[int]()
    for first, last in added:
        idle += library.sp_busy_add(ctypes.byref(spans), first, last)
        busy.update(range(first, last))
        until = max(last for _, last in added[: added.index((first, last)) + 1])
        assert spans.until_ns >= until
        assert idle == spans.until_ns - len(busy)


@given(added=st.lists(SPAN, max_size=10), window=SPAN, work=st.integers(0, 40))
def test_work_at_an_unknown_time_takes_what_room_there_is(
    library: ctypes.CDLL, added: list[tuple[int, int]], window: tuple[int, int], work: int
) -> None:
    spans = begun(library)
    idle = sum(library.sp_busy_add(ctypes.byref(spans), first, last) for first, last in added)
    busy = {moment for first, last in added for moment in range(first, last)}
    room = len(set(range(*window)) - busy)
    idle += library.sp_busy_fill(ctypes.byref(spans), *window, work)
    assert idle == spans.until_ns - len(busy) - min(work, room)


def test_more_gaps_than_are_kept_cost_the_oldest(library: ctypes.CDLL) -> None:
    spans = begun(library)
    idle = sum(library.sp_busy_add(ctypes.byref(spans), 10 * n, 10 * n + 5) for n in range(1, 51))
    assert idle == 10 + 49 * 5
    assert library.sp_busy_add(ctypes.byref(spans), 0, 505) == -32 * 5


def test_a_gap_that_is_filled_to_the_end_takes_no_room(library: ctypes.CDLL) -> None:
    spans = begun(library)
    idle = sum(library.sp_busy_add(ctypes.byref(spans), 10 * n, 10 * n + 5) for n in range(1, 33))
    assert idle == 10 + 31 * 5
    for n in range(1, 17):
        assert library.sp_busy_add(ctypes.byref(spans), 10 * n + 5, 10 * n + 10) == -5
    for n in range(33, 49):
        library.sp_busy_add(ctypes.byref(spans), 10 * n, 10 * n + 5)
    assert library.sp_busy_add(ctypes.byref(spans), 10, 485) == -31 * 5
