"""Test how the arbiter learns how early to grant the next share, in virtual time."""

import json
import subprocess
from pathlib import Path

import pytest

from rig import REPO_ROOT

SLICE_NS = 2_000_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("lead") / "lead_program"
    sources = ["tests/support/agent/lead_program.c", "agent/arbiter/lead.c"]
    command = ["gcc", "-std=c11", "-O1", "-Wall", "-Werror", "-fsanitize=address,undefined", "-I."]
    subprocess.run([*command, *sources, "-o", str(built)], cwd=REPO_ROOT, check=True)
    return built


def _learned(program: Path, unit_ns: int, *turns_ns: int) -> tuple[float, list[float]]:
    command = [str(program), str(unit_ns), *map(str, turns_ns)]
    got = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    each = got["hand_offs"] / 3
    return got["late"] / got["hand_offs"], [cuts / each for cuts in got["cuts"]]


@pytest.mark.parametrize("unit_ns", [5_000, 500_000])
def test_one_first_launch_in_ten_is_late(program: Path, unit_ns: int) -> None:
    late, cuts = _learned(program, unit_ns, *[7 * SLICE_NS - 500_000] * 3)
    assert 0.05 < late < 0.15
    assert cuts == [0, 0, 0]


def test_a_turn_that_ends_just_after_a_slice_is_seldom_cut(program: Path) -> None:
    late, cuts = _learned(program, 5_000, 7 * SLICE_NS - 500_000, 7 * SLICE_NS - 500_000, 8 * SLICE_NS + 50_000)
    assert cuts[:2] == [0, 0]
    # With the device's lead alone nearly every residue of the third share would be cut.
    assert cuts[2] < 0.15
    # Only the hand-offs of that share are later for this.
    assert late < 0.15 + 1 / 3


def test_turns_of_any_length_end_where_no_slice_does(program: Path) -> None:
    late, cuts = _learned(program, 5_000, 10_000_000, 9_000_000, 6_000_000, 500_000)
    # If turns ended at their deadlines, one in twenty would be cut, and half of the first launches late to avoid that.
    assert max(cuts) < 0.01
    assert late < 0.2
