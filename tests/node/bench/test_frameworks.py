"""Test the framework rows as far as possible without a GPU: their plan, their verdicts, and what they skip."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import frameworks
from bench.gpu.__main__ import CALIBRATION, FRAMEWORKS, ROWS, _chosen
from bench.gpu.framework_program import MODES, digest, paced
from bench.gpu.frameworks import GIB, Case, Told

CASE = Case("a program", "training", pairs=2)


def told(pace_ns: int, **digests: str) -> Told:
    return {"digests": digests, "step_ns": [pace_ns, pace_ns, 100 * pace_ns]}


def test_the_frameworks_are_a_group_that_can_be_asked_for() -> None:
    assert set(frameworks.CASES) <= set(FRAMEWORKS) <= set(ROWS)
    assert {case.mode for case in frameworks.CASES.values()} <= set(MODES)
    assert _chosen(["frameworks", "duty"]) == [*FRAMEWORKS, "duty"]
    assert _chosen(None) == [*ROWS]
    assert [*ROWS][: len(CALIBRATION)] == [*CALIBRATION]
    assert [*ROWS][-len(FRAMEWORKS) :] == [*FRAMEWORKS]
    for key, case in frameworks.CASES.items():
        assert FRAMEWORKS[key].box_s > 2 * case.pairs * frameworks.STEP_S


@pytest.mark.parametrize(
    ("bare", "hooked", "bits", "bits_met", "pace", "pace_met"),
    [
        ([told(1000, x="1")] * 2, [told(1002, x="1"), told(1004, x="1")], "0 of 2 results", True, "+0.30 %", True),
        ([told(1000, x="1", y="2")], [told(1006, x="1", y="3")], "1 of 2 results", False, "+0.60 %", False),
        ([told(1000, x="1", y="2")], [told(1000, x="1")], "1 of 2 results", False, "+0.00 %", True),  # y is missing
    ],
)
def test_bits_and_paces_are_judged_beside_those_without_the_hook(
    bare: list[Told], hooked: list[Told], bits: str, bits_met: bool, pace: str, pace_met: bool
) -> None:
    of_bits, of_pace = frameworks.judged(CASE, bare, hooked)
    assert (of_bits.result, of_bits.met, of_pace.result, of_pace.met) == (bits, bits_met, pace, pace_met)


def test_what_differs_without_the_hook_is_told_and_not_held_against_it() -> None:
    bits, _ = frameworks.judged(CASE, [told(1, x="1", y="2"), told(1, x="9", y="2")], [told(1, x="5", y="2")] * 2)
    assert (bits.result, bits.met) == ("0 of 2 results; without the hook too: x", True)


def test_a_pace_without_a_bar_is_shown_only_and_so_are_bits_that_always_differ() -> None:
    shown = Case("a program", "training", paced=False)
    bits, pace = frameworks.judged(shown, [told(1000, x="1"), told(1000, x="9")], [told(2000, x="5")] * 2)
    assert bits.met is None
    assert (pace.bar, pace.result, pace.met) == ("", "+100.00 %", None)


@pytest.mark.parametrize(
    ("changed", "met"),
    [
        ({}, [True, True]),
        ({"reached": 21 * GIB}, [False, True]),
        ({"reached": 10 * GIB}, [False, True]),
        ({"total": 80 * GIB}, [False, True]),
        ({"said": ""}, [False, True]),
        ({"recovered": False}, [True, False]),
        ({"retries": 0}, [True, False]),
    ],
)
def test_a_greedy_program_stays_in_its_cap_and_recovers(changed: dict[str, Any], met: list[bool]) -> None:
    found = {"total": 20 * GIB, "reached": 19 * GIB, "said": "CUDA out of memory", "recovered": True, "retries": 1}
    lines = frameworks.capped_lines({**found, **changed}, 20 * GIB, "by hand")
    assert [line.met for line in lines] == met


def test_digests_tell_contents_apart_and_paces_are_of_a_step() -> None:
    assert digest([b"a", b"b"]) == digest([b"ab"]) != digest([b"ba"])
    calls: list[int] = []
    timed = paced(lambda: calls.append(1), lambda: None, 0.01)
    assert len(calls) == 20 * len(timed) > 0


def run_program(repo_root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = repo_root / "bench" / "gpu" / "framework_program.py"
    command = [sys.executable, "-P", str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("mode", ["training", "triton", "jax", "cupy"])
def test_a_program_without_its_package_or_a_gpu_says_so(repo_root: Path, mode: str) -> None:
    done = run_program(repo_root, mode, "0.1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["not_here"]


def test_an_unknown_mode_is_a_usage_error(repo_root: Path) -> None:
    done = run_program(repo_root, "dance")
    assert done.returncode == 2
    assert "greedy" in done.stderr
