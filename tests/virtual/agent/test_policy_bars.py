"""Test the bars that the policy decides, in virtual time on a device with hand-offs, queued kernels and early yield."""

import statistics

import pytest

from rig.virtual.node import Node, Settings
from rig.virtual.policy import ShareClass
from rig.virtual.program import MS, US, Program, S
from rig.virtual.timeline import percent_between, percentile, worst_window


def part(node: Node, name: str, start_ns: int, end_ns: int) -> float:
    """Return a share's part of the delivered time, in percent."""
    return percent_between(node.timelines[name], list(node.timelines.values()), start_ns, end_ns)


def worst_error(node: Node, name: str, window_ns: int, start_ns: int, end_ns: int, percent: float) -> float:
    """Return a share's worst error over windows of one length, measured against its part of the delivered time."""
    delivered = node.busy_ns / node.now_ns
    return worst_window(node.timelines[name], window_ns, start_ns, end_ns, percent * delivered)


def bar(node: Node, programs: list[Program], window_ns: int, quanta_from_ns: int) -> float:
    """Return the bar of the share error: max(0.5 pp, (quantum + longest unit) / window).

    The work in flight when a gate closes counts as one unit, because nothing interrupts it.
    """
    quantum_ns = max(t.quantum_ns for t in node.turns if t.granted_ns >= quanta_from_ns)
    unit_ns = max(node.settings.queued_ns, *(p.unit_ns for p in programs))
    return max(0.5, 100 * (quantum_ns + unit_ns) / window_ns)


def assert_exact(programs: list[Program], percents: dict[str, float], start_ns: int = 1 * S) -> Node:
    """Run saturating programs for 62 s and hold them to the bars over 1 s, 10 s and 60 s."""
    until_ns = start_ns + 61 * S
    node = Node(programs).run(until_ns)
    assert node.policy.valid()
    for name, percent in percents.items():
        for window_ns in (1 * S, 10 * S):
            error = worst_error(node, name, window_ns, start_ns, until_ns, percent)
            assert error <= bar(node, programs, window_ns, start_ns), (name, window_ns)
        assert abs(part(node, name, start_ns, start_ns + 60 * S) - percent) <= 0.1, name
    return node


def test_three_programs_share_50_30_20_and_none_waits_100_ms_when_one_of_them_joins_or_leaves() -> None:
    programs = [Program("a", 50), Program("b", 30), Program("late", 20, start_ns=5 * S, stop_ns=68 * S)]
    node = assert_exact(programs, {"a": 50, "b": 30, "late": 20}, start_ns=6 * S).run(73 * S)
    for name in ("a", "b", "late"):
        assert node.timelines[name].longest_pause_ns(5 * S, 10 * S) <= 100 * MS
    assert part(node, "a", 1 * S, 5 * S) == pytest.approx(62.5, abs=0.5)
    assert part(node, "a", 68 * S + 50 * MS, 73 * S) == pytest.approx(62.5, abs=0.3)
    for name in ("a", "b"):
        assert node.timelines[name].longest_pause_ns(67 * S, 69 * S) <= 100 * MS


MIXES = [(50, 30, 20), (60, 20, 20), (70, 20, 10), (40, 30, 20, 10), (25, 25, 20, 10, 10, 10)]


@pytest.mark.parametrize("requests", [*MIXES, (20, 20, 15, 15, 10, 10, 5, 5)])
def test_no_second_of_any_mix_of_shares_is_off_by_a_turn_as_long_as_half_of_them(requests: tuple[int, ...]) -> None:
    programs = [Program(f"s{i}", request, unit_ns=5 * US) for i, request in enumerate(requests)]
    node = Node(programs, Settings(queued_ns=600 * US)).run(62 * S)
    quantum_ns = statistics.median(t.quantum_ns for t in node.turns if t.granted_ns >= 1 * S)
    for program in programs:
        assert worst_error(node, program.name, 1 * S, 1 * S, 62 * S, program.request) <= 100 * quantum_ns / S


UNITS_NS = (5 * US, 20 * MS, 1 * MS, 300 * US, 7 * MS, 13 * MS, 100 * US, 2 * MS)


@pytest.mark.parametrize(
    ("requests", "units_ns"),
    [
        *(((100 / count,) * count, UNITS_NS[:count]) for count in range(2, 9)),
        *(((40, 25, 20, 10, 5), (unit_ns,) * 5) for unit_ns in (5 * US, 1 * MS, 20 * MS)),
        ((70, 30), (500 * US, 500 * US)),
        ((28, 12), (20 * MS, 5 * US)),  # the surplus is shared in proportion to the requests
    ],
)
def test_shares_are_exact_with_kernels_from_5_us_to_20_ms(
    requests: tuple[float, ...], units_ns: tuple[int, ...]
) -> None:
    programs = [Program(f"s{i}", request, unit_ns=units_ns[i]) for i, request in enumerate(requests)]
    assert_exact(programs, {program.name: 100 * program.request / sum(requests) for program in programs})


def test_saturated_shares_stay_exact_beside_intermittent_ones() -> None:
    programs = [
        Program("a", 40),
        Program("b", 20),
        Program("bursty", 20, work_ns=15 * MS, gap_ns=150 * MS, jitter_percent=80),
        Program("duty", 20, work_ns=1 * MS, period_ns=37 * MS),
    ]
    node = Node(programs).run(61 * S)
    a, b = (node.timelines[name].busy_between(1 * S, 61 * S) for name in ("a", "b"))
    assert 100 * a / (a + b) == pytest.approx(100 * 2 / 3, abs=0.1)


@pytest.mark.parametrize(("limit", "unit_ns"), [(30, 1 * MS), (30, 20 * MS), (50, 5 * US), (75, 20 * MS), (5, 1 * MS)])
def test_a_limit_alone_is_within_1_pp_over_1_s_and_pauses_are_short(limit: int, unit_ns: int) -> None:
    node = Node([Program("only", limit, limit, unit_ns=unit_ns)]).run(20 * S)
    line = node.timelines["only"]
    if unit_ns * 100 <= 1 * S * limit / 100:  # a window must be much longer than a kernel
        slack = max(1.0, 100 * unit_ns / S)
        assert worst_window(line, 1 * S, 1 * S, 20 * S, limit) <= slack
    quantum_ns = max(t.quantum_ns for t in node.turns)
    assert line.longest_pause_ns(1 * S, 20 * S) <= max(100 * MS, unit_ns * (100 - limit) // limit + quantum_ns)
    assert 100 * line.busy_ns / node.now_ns <= limit + 0.3


def test_a_share_limited_to_its_request_gets_all_of_it_beside_long_kernels() -> None:
    node = Node([Program("held", 30, 30), Program("long", 70, unit_ns=40 * MS)]).run(31 * S)
    assert part(node, "held", 1 * S, 31 * S) == pytest.approx(30, abs=0.4)


def test_a_latency_share_beside_batch_answers_as_if_alone() -> None:
    service = Program(
        "service", 25, share_class=ShareClass.LATENCY, work_ns=4 * MS, period_ns=20 * MS, unit_ns=500 * US
    )
    batch = Program("batch", 0, share_class=ShareClass.BATCH, unit_ns=1 * MS)

    def p99(node: Node) -> int:
        return percentile([end - begin for begin, end in node.loads["service"].bursts], 99)

    solo, shared = Node([service]).run(60 * S), Node([service, batch]).run(60 * S)
    assert len(shared.loads["service"].bursts) >= 2990
    assert p99(shared) <= 1.5 * p99(solo)
    assert shared.timelines["batch"].busy_ns / (60 * S - shared.timelines["service"].busy_ns) >= 0.9


def test_four_shares_of_2_percent_duty_leave_a_trainer_nine_tenths_of_its_solo_throughput() -> None:
    duty = [Program(f"duty{i}", 10, work_ns=1 * MS, period_ns=50 * MS) for i in range(4)]
    node = Node([Program("trainer", 60), *duty]).run(30 * S)
    assert node.timelines["trainer"].busy_ns / (30 * S) >= 0.90
    for program in duty:
        assert len(node.loads[program.name].bursts) >= 598


def test_batch_shares_divide_what_an_intermittent_share_leaves_in_proportion_to_request() -> None:
    batch = ShareClass.BATCH
    programs = [
        Program("one", 10, share_class=batch),
        Program("three", 30, share_class=batch),
        Program("duty", 50, work_ns=5 * MS, period_ns=23 * MS),
    ]
    node = Node(programs).run(61 * S)
    one, three = (node.timelines[name].busy_between(1 * S, 61 * S) for name in ("one", "three"))
    assert three / one == pytest.approx(3, rel=0.05)


def test_nobody_with_a_request_starves_beside_a_greedy_latency_share() -> None:
    greedy = Program("greedy", 60, share_class=ShareClass.LATENCY)
    programs = [greedy, Program("a", 30), Program("b", 10, unit_ns=20 * MS)]
    node = Node(programs).run(20 * S)
    assert part(node, "a", 1 * S, 20 * S) == pytest.approx(30, abs=0.5)
    assert part(node, "b", 1 * S, 20 * S) == pytest.approx(10, abs=0.5)


def test_a_share_that_comes_back_does_not_stall_the_others_for_100_ms() -> None:
    for request in (10, 50, 90):
        back = Program("back", request, work_ns=400 * MS, gap_ns=3 * S)
        node = Node([Program("other", 100 - request), back]).run(30 * S)
        assert node.timelines["other"].longest_pause_ns(1 * S, 30 * S) <= 100 * MS, request


def test_overruns_of_varying_length_do_not_move_the_shares() -> None:
    programs = [
        Program("long", 50, unit_ns=40 * MS),
        Program("varied", 30, work_ns=33 * MS, gap_ns=1, unit_ns=17 * MS, jitter_percent=90),
        Program("short", 20, unit_ns=20 * US),
    ]
    node = Node(programs).run(61 * S)
    for name, percent in {"long": 50, "varied": 30, "short": 20}.items():
        assert part(node, name, 1 * S, 61 * S) == pytest.approx(percent, abs=0.3)


def test_turns_are_long_enough_to_pay_for_their_hand_offs() -> None:
    for count in (2, 3, 4, 8):
        node = Node([Program(f"s{i}", 100 / count, unit_ns=100 * US) for i in range(count)]).run(10 * S)
        assert node.busy_ns / node.now_ns >= 0.99, count


@pytest.mark.parametrize("work_ms", [4, 7, 10, 13, 20])
def test_three_limited_shares_get_their_requests_and_keep_their_limits(work_ms: int) -> None:
    terms = {"a": (30, 60), "b": (40, 60), "c": (30, 50)}
    programs = [Program(name, *term, work_ns=work_ms * MS, gap_ns=3 * MS) for name, term in terms.items()]
    node = Node(programs).run(60 * S)
    for program in programs:
        busy = 100 * node.timelines[program.name].busy_between(10 * S, 60 * S) / (50 * S)
        # If a turn ends just before a burst does, the little rest of the burst waits a whole round.
        assert program.request - 3 <= busy <= program.limit + 0.3
