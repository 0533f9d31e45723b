"""Test that the placement bench's table says so when a bar is missed."""

from typing import Any

import pytest

from bench.cluster import placement
from bench.cluster.placement import MARKS, PUBLISHED, Result, bars, failures, table
from sharepod.scheduler.simulation.replay import Outcome, Point

GAINS = dict.fromkeys(PUBLISHED, 1.0) | {"multigpu50": 0.3, "cpu250": 1.9}


def results(gain_pp: dict[str, float], more_failed: int = 0, off_pp: float = 0.1) -> dict[tuple[str, str], Result]:
    """Return results of two seeds for each workload: FGD's as published, and ours above it by the gain."""
    made = {}
    for workload, (best_fit, fgd) in PUBLISHED.items():
        for policy, figures, shift in (
            ("binpack", best_fit, 0.0),
            ("fgd", fgd, off_pp),
            ("worth", fgd, off_pp + gain_pp[workload]),
        ):
            failed = 10 + (more_failed if policy == "worth" else 0)
            insisting = (failed, 40) if "spec" in workload else (0, 0)
            outcomes = []
            for seed, noise in enumerate((-0.05, 0.05)):
                allocated = [(figure + shift + noise) / 100 for figure in figures]
                points = (
                    Point(mark, part, 0.0, (("share", failed, 100),), insisting)
                    for mark, part in zip(MARKS, allocated, strict=True)
                )
                outcomes.append(Outcome(policy, seed, tuple(points)))
            made[workload, policy] = Result(policy, workload, tuple(outcomes))
    return made


def missed(gain_pp: dict[str, float] = GAINS, more_failed: int = 0, off_pp: float = 0.1) -> list[str]:
    made = results(gain_pp, more_failed, off_pp)
    return [bar for bar, _, met in bars(made, list(PUBLISHED)) if not met]


def test_bars_that_are_met_are_met() -> None:
    assert missed() == []


@pytest.mark.parametrize(
    ("changes", "bar"),
    [
        ({"off_pp": 0.6}, "within 0.5 pp of the published means"),
        ({"gain_pp": GAINS | {"multigpu50": -0.01}}, "above FGD on every workload at 100 %"),
        ({"gain_pp": dict.fromkeys(PUBLISHED, 0.6) | {"cpu250": 1.9}}, "mean gain at 100 %"),
        ({"gain_pp": GAINS | {"default": 0.4, "cpu050": 0.4}}, "on 9 of 11 workloads"),
        ({"gain_pp": GAINS | {"cpu250": 1.4}}, "gain on cpu250"),
        ({"more_failed": 4}, "failures of each size"),
    ],
)
def test_a_bar_that_is_missed_is_said(changes: dict[str, Any], bar: str) -> None:
    assert any(bar in text for text in missed(**changes))


def test_the_tables_have_a_row_for_each_workload() -> None:
    made = results(GAINS)
    assert "| multigpu50 | 95.62 / 95.74 | 95.62 / 95.74 | 97.09 / 97.18 | 97.19 / 97.28 | 97.49 / 97.58 |" in table(
        made, list(PUBLISHED)
    )
    failed = failures(made, list(PUBLISHED), MARKS[0])
    assert "| default | – | 10.00 / 10.00 % | – | – | – | – | – |" in failed
    assert "| gpuspec10 | – | 10.00 / 10.00 % | – | – | – | – | 25.00 / 25.00 % |" in failed


def test_flags_that_cannot_be_are_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, text in (
        (["--data", "/nowhere"], "no lists in /nowhere"),
        (["--only", "x"], "invalid choice"),
        (["--sed"], "--sed"),
    ):
        monkeypatch.setattr("sys.argv", ["bench.cluster.placement", *flags])
        with pytest.raises(SystemExit) as ended:
            placement.main()
        assert ended.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        assert text in line
