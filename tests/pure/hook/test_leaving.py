"""Test the order of the steps in the two halves of a revocation, in the gate's and the keeper's own code.

`tests/virtual/hook` proves that this order suffices; here the C code is held to it.
"""

from pathlib import Path

import pytest
from hooklab import STRICT, C, compile_c, run

from rig import REPO_ROOT


def facts(directory: Path, program: str) -> dict[str, dict[str, list[int]]]:
    """Compile and run a program of c/; return its numbers by case and word."""
    # Functions that are never called have no definition here.
    flags = [*STRICT, "-no-pie", "-Wno-unused-function", "-Wl,--unresolved-symbols=ignore-all"]
    built = compile_c(directory / program, *flags, C / f"{program}.c", REPO_ROOT / "region" / "region.c", "-lpthread")
    found: dict[str, dict[str, list[int]]] = {}
    for line in run([built]).stdout.splitlines():
        case, *words = line.split()
        found[case] = {}
        for word, number in zip(words[::2], words[1::2], strict=True):
            found[case].setdefault(word, []).append(int(number))
    return found


@pytest.fixture(scope="module")
def announced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[int]]]:
    return facts(tmp_path_factory.mktemp("announced"), "announce_program")


ONE_LAUNCH = {
    "looks": [1], "announced": [1, 0], "waits": [0], "inside": [1], "finds": [0], "pauses": [0], "kicks": [0],
    "passed": [0], "progress_waits": [0], "progress_announced": [0], "gave_up": [0], "entered": [0], "stood": [0],
    "left": [0],
}  # fmt: skip
"""What a launch does that finds its gate open and its stream known."""


@pytest.mark.parametrize(
    ("case", "differs"),
    [
        # A launch into a stream without a state passes; the stream's next launch looks for a state again.
        ("crowded", {"looks": [0], "announced": [0, 0], "inside": [0], "finds": [1], "passed": [1]}),
        ("open", {"finds": [1]}),
        ("again", {}),
        # At a closed gate the thread takes its announce back before it waits, or the keeper would wait for the thread.
        ("closed", {"looks": [2], "announced": [2, 0], "waits": [1], "pauses": [1]}),
        ("closed-for-long", {"looks": [4], "announced": [4, 0], "waits": [3], "pauses": [1]}),
        ("full", {"looks": [2], "announced": [2, 0], "progress_waits": [1], "gave_up": [1]}),
        ("behind-one", {"looks": [2], "announced": [2, 0], "progress_waits": [1]}),
        ("agent-gone", {"waits": [1], "pauses": [1], "passed": [1]}),
    ],
)
def test_a_launch_is_announced_before_its_thread_looks_at_the_grant_and_until_it_has_left(
    announced: dict[str, dict[str, list[int]]], case: str, differs: dict[str, list[int]]
) -> None:
    assert announced[case] == ONE_LAUNCH | differs


def test_while_others_wait_the_predicted_end_of_long_work_is_told_at_its_launch(
    announced: dict[str, dict[str, list[int]]],
) -> None:
    ends = {
        "alone-waits": 0, "short": 0, "long": 3_900_000, "empty": 700_000, "near": 0, "far": 3_205_000, "drained": 0,
        "stretched": 0,
    }  # fmt: skip
    assert {case: announced[case]["until"] for case in ends} == {case: [end] for case, end in ends.items()}
    assert announced["long"]["eta_published"] == announced["far"]["eta_published"] == [1]
    assert announced["short"]["eta_published"] == announced["drained"]["eta_published"] == [0]


def test_an_unknown_unit_counts_for_the_longest_within_bounds(announced: dict[str, dict[str, list[int]]]) -> None:
    told = {1000: 1_000_000, 1_000_000: 1_000_000, 10_000_000: 10_000_000, 100_000_000: 25_000_000, 0: 25_000_000}
    assert {longest: announced[f"unknown-50000000-{longest}"]["ns"] for longest in told} == {
        longest: [ns] for longest, ns in told.items()
    }
    assert announced["unknown-200000-5000000"]["ns"] == [100_000]  # half of a small budget


@pytest.mark.parametrize(
    ("in_flight", "pending", "predicted", "lookahead", "fits"),
    [(3, 0, 5, 8, 1), (3, 1, 5, 8, 0), (4, 0, 5, 8, 0), (4, 0, 4, 8, 1), (4, 0, 4, 7.999999, 0), (4, 1, 4, 9, 1)],
)
def test_a_launch_fits_into_the_budget_or_behind_one_unit(
    announced: dict[str, dict[str, list[int]]],
    in_flight: int,
    pending: int,
    predicted: int,
    lookahead: float,
    fits: int,
) -> None:
    case = "-".join(str(round(ms * 1_000_000)) for ms in (in_flight, pending, predicted, lookahead))
    assert announced[f"fits-{case}"]["fits"] == [fits]


def test_where_the_kernel_refuses_the_barrier_later_on_every_announce_has_its_own(tmp_path: Path) -> None:
    found = facts(tmp_path, "barrier_program")
    assert {word: number for word, [number] in found["next"].items()} == dict.fromkeys(
        ("used", "patience", "passed", "stood", "closed", "launches"), 0
    )
    assert [found[time]["asked"] for time in "0123"] == [[1], [2], [3], [3]]
    assert [found[time]["fences"] for time in "0123"] == [[0], [0], [1], [1]]
    assert [found[time]["sleeps"] for time in "0123"] == [[0], [0], [1], [1]]  # until earlier announces are seen
    assert [(*found[f"inside-{n}"]["first"], *found[f"inside-{n}"]["second"]) for n in range(4)] == [
        (0, 0), (1, 0), (0, 1), (1, 1),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[int]]]:
    return facts(tmp_path_factory.mktemp("leaving"), "leaving_program")


@pytest.mark.parametrize("case", ["drain", "drain-inside", "park", "park-contended"])
def test_a_turn_is_said_to_be_drained_when_no_thread_is_inside_and_nothing_is_pending(
    leaving: dict[str, dict[str, list[int]]], case: str
) -> None:
    found = leaving[case]
    assert (found["drained"], found["early"], found["entered"]) == ([1], [0], [0])
    assert found["marked"] == [case.startswith("drain")]  # the keeper marks work that is not marked yet
    assert found["rings"] == [case != "park"]  # of an idle turn nobody need hear unless a share waits
    assert found["aside"] == [0]


def test_a_turn_with_work_that_stands_is_left_and_one_that_was_entered_again_is_not(
    leaving: dict[str, dict[str, list[int]]],
) -> None:
    stands, entered = leaving["drain-stands"], leaving["drain-entered"]
    assert (stands["drained"], stands["aside"], stands["rings"], stands["entered"]) == ([1], [1], [1], [0])
    assert (entered["drained"], entered["rings"]) == ([0], [0])


def test_only_the_keeper_asks_the_driver_whether_work_stands(leaving: dict[str, dict[str, list[int]]]) -> None:
    keeper, program = leaving["park-stands"], leaving["synced-stands"]
    assert (keeper["driver_asked"], keeper["drained"], keeper["entered"]) == ([1], [1], [0])
    # A thread of the program would lose its current context.
    assert (program["driver_asked"], program["drained"], program["entered"]) == ([0], [0], [5])


@pytest.mark.parametrize("case", ["drain-pending", "park-inside", "park-pending", "park-launched"])
def test_a_turn_with_work_in_it_is_not_said_to_be_drained(leaving: dict[str, dict[str, list[int]]], case: str) -> None:
    found = leaving[case]
    assert (found["drained"], found["rings"]) == ([0], [0])
    # An idle turn that was about to be given back goes on; a closed turn is looked at again.
    assert found["entered"] == [5 if case.startswith("park") else 0]
