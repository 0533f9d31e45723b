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


def test_a_launch_is_announced_before_its_thread_looks_at_the_grant_and_until_it_has_left(tmp_path: Path) -> None:
    found = facts(tmp_path, "announce_program")
    # While others wait, the predicted end of a long unit is behind all that is in flight and pending before it.
    assert found["alone-waits"] == found["short"] == {"until": [0], "eta_published": [0]}
    assert found["long"] == {"until": [3_000_000 + 200_000 + 700_000], "eta_published": [1]}
    # A launch into a stream without a lane passes; the stream's next launch looks for a lane again.
    assert found["crowded"] == {"looks": [0], "announced": [0, 0], "waits": [0], "inside": [0], "left": [0]}
    assert found["open"] == {"looks": [1], "announced": [1, 0], "waits": [0], "inside": [1], "left": [0]}
    # At a closed gate the thread takes its announce back before it waits, or the keeper would wait for the thread.
    assert found["closed"] == {"looks": [2], "announced": [2, 0], "waits": [1], "inside": [1], "left": [0]}


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
