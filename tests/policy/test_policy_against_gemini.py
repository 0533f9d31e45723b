"""The model of Gemini behaves as Gemini is known to, and our policy beats it on the same programs."""

import json
import sys
from dataclasses import replace

import pytest

import bench.model.__main__ as model
from bench.model.gemini import Constants, Gemini
from bench.model.node import Node
from bench.model.program import MS, Program, S
from bench.model.scenarios import SCENARIOS, Scenario, bursts


def ids(scenario: Scenario) -> str:
    return scenario.name


@pytest.mark.parametrize("scenario", SCENARIOS, ids=ids)
def test_the_model_reproduces_what_is_known_and_our_policy_wins(scenario: Scenario) -> None:
    row = model.compare(scenario)
    if scenario.known is not None:
        assert row.gemini == pytest.approx(scenario.known, rel=scenario.tolerance)
    assert row.wins, row


@pytest.mark.parametrize(
    ("terms", "parts"),
    [
        ({"a": (20, 100), "b": (60, 100)}, {"a": 40, "b": 60}),
        ({"a": (80, 100), "b": (80, 100)}, {"a": 50, "b": 50}),
        ({"a": (30, 60), "b": (40, 60), "c": (30, 50)}, {"a": 30, "b": 40, "c": 30}),
    ],
)
def test_the_model_divides_token_time_as_gemini_does(terms: dict[str, tuple[int, int]], parts: dict[str, int]) -> None:
    run = Gemini([bursts(name, *term) for name, term in terms.items()]).run(60 * S)
    for name, percent in parts.items():
        assert run.token_percent(name, 50 * S, 60 * S) == pytest.approx(percent, abs=1)


def test_the_model_runs_five_seconds_and_rests_five_under_a_limit_of_half() -> None:
    run = Gemini([bursts("only", 50, 50)]).run(100 * S)
    line = run.timelines["only"]
    long_pauses = [p for p in line.pauses(20 * S, 100 * S) if p > 1 * S]
    assert len(long_pauses) in (7, 8, 9)
    assert all(4.5 * S <= p <= 5.5 * S for p in long_pauses[1:-1])
    assert line.busy_between(20 * S, 100 * S) / (80 * S) == pytest.approx(0.5 * 10 / 13, rel=0.02)


def test_the_model_grows_tokens_to_ten_seconds_when_no_synchronise_is_seen() -> None:
    run = Gemini([Program("unhooked", 100, unit_ns=5 * MS, synchronises=False)]).run(60 * S)
    assert run.longest_token_ns == 10 * S


def test_a_window_of_half_a_second_still_divides_exactly_in_the_model() -> None:
    programs = [bursts("a", 50), bursts("b", 50)]
    run = Gemini(programs, Constants(window_ns=500 * MS)).run(60 * S)
    assert run.token_percent("a", 51 * S, 60 * S) == pytest.approx(50, abs=1.5)


def test_the_model_never_uses_more_of_the_device_than_there_is() -> None:
    programs = [bursts("a", 20), bursts("b", 60), Program("c", 20, unit_ns=5 * MS, synchronises=False)]
    run = Gemini(programs).run(30 * S)
    assert sum(line.busy_ns for line in run.timelines.values()) <= 30 * S


@pytest.mark.parametrize("work_ms", [4, 7, 10, 13, 20])
def test_all_three_of_the_limited_shares_get_their_request_from_us_and_keep_their_limit(work_ms: int) -> None:
    requests = {"a": (30, 60), "b": (40, 60), "c": (30, 50)}
    programs = [replace(bursts(name, *terms), work_ns=work_ms * MS) for name, terms in requests.items()]
    node = Node(programs).run(60 * S)
    for program in programs:
        busy = 100 * node.timelines[program.name].busy_between(10 * S, 60 * S) / (50 * S)
        # A burst that the end of a turn cuts just before its own end waits a round for the little that is left.
        assert program.request - 3 <= busy <= program.limit + 0.3


def test_the_comparison_prints_json_and_the_same_each_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [SCENARIOS[0], *SCENARIOS[-2:]]
    monkeypatch.setattr(model, "SCENARIOS", few)
    monkeypatch.setattr(sys, "argv", ["bench.model", "--output", "json"])
    outputs = []
    for _ in range(2):
        assert model.main() == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert [row["scenario"] for row in json.loads(outputs[0])] == [s.name for s in few]


def test_the_comparison_prints_a_table_that_names_the_better_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model, "SCENARIOS", SCENARIOS[-1:])
    monkeypatch.setattr(sys, "argv", ["bench.model"])
    assert model.main() == 0
    assert "SharePod" in capsys.readouterr().out
