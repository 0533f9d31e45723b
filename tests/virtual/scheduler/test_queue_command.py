"""`sharepod queue` against a replica's own server, with what real rounds left waiting."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest
from rounds_world import nodes, task
from status_front import Front, with_front
from typer.testing import CliRunner

from sharepod.cli import main as cli
from sharepod.cli.main import app
from sharepod.scheduler.queue_view import view
from sharepod.scheduler.queues import Queue, Queues
from sharepod.scheduler.timeline import Timeline

if TYPE_CHECKING:
    from pathlib import Path

    from sharepod.kube.lease import Lease


class Held:
    def __init__(self, held: bool, trouble: str) -> None:
        self.held, self.trouble = held, trouble

    def is_held(self) -> bool:
        return self.held


def rounds() -> Timeline:
    line = Timeline(nodes(1, 4), Queues(Queue(), {"capped": Queue(weight=2.0, cap_milli=1000)}))
    line.come(task("runs", user="team", size=3, least=3, run_s=1e6))
    line.come(task("more", user="capped", milli=900))
    line.step()
    line.now_s = 30.0
    line.come(task("gang", user="team", size=4, least=2, arrive_s=30.0))
    line.come(task("over", user="capped", milli=200, arrive_s=30.0))
    line.come(task("never", user="team", size=9, least=9, arrive_s=30.0, priority=5))
    line.step()
    return line


def asked(tmp_path: Path, *arguments: str, decides: bool = True, trouble: str = "") -> tuple[int, str, str]:
    line, lease = rounds(), Held(decides, trouble)

    async def test(front: Front) -> None:
        def look(_: float) -> dict[str, object]:
            held: Lease = lease  # type: ignore[assignment]
            return view(line.memory, line.queues, held, 95.0, refusal="queues.yaml: 'a': weight is -1")

        front.queue = look
        command = ["queue", "--scheduler", f"http://127.0.0.1:{front.port}", *arguments]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
        found.append((result.exit_code, result.stdout, result.stderr + str(result.exception or "")))

    found: list[tuple[int, str, str]] = []
    with_front(tmp_path, test)
    return found[0]


def test_what_waits_is_shown_in_order_with_the_reasons_and_what_queues_hold(tmp_path: Path) -> None:
    code, shown, aside = asked(tmp_path)
    assert code == 0
    flat = " ".join(shown.split())
    assert "1 team/never 5 9 9 1 min 5 s 9 pods of 100 percent would not fit into the empty cluster" in flat
    assert "team/gang 0 2-4 4 1 min 5 s no room for 2 pods of 100 percent now" in flat
    assert "capped/over 0 1 0.2 1 min 5 s queue capped would hold more than its cap of 1 devices" in flat
    assert "capped 2 0.9 1 0.113 1 team 1 3 - 0.750 2" in flat
    assert "the rules of queues stay as they were: queues.yaml: 'a': weight is -1" in aside


def test_one_queue_is_shown_alone_and_as_json(tmp_path: Path) -> None:
    code, shown, _ = asked(tmp_path, "-n", "capped", "-o", "json")
    assert code == 0
    found = json.loads(shown)
    assert [job["job"] for job in found["waiting"]] == ["capped/over"]
    assert [(one["queue"], one["share"]) for one in found["queues"]] == [("capped", 0.1125)]
    assert found["fairness"] == round((0.75 + 0.1125) ** 2 / (2 * (0.75**2 + 0.1125**2)), 6)


def test_a_replica_that_does_not_decide_says_so(tmp_path: Path) -> None:
    code, shown, why = asked(tmp_path, decides=False)
    assert (code, shown) == (1, "")
    assert "this replica does not decide, another one has the queue" in why


def test_what_a_replica_knew_when_it_decided_is_not_told_for_machines_either(tmp_path: Path) -> None:
    code, shown, _ = asked(tmp_path, "-o", "json", decides=False)
    found = json.loads(shown)
    assert (code, found["decides"], found["waiting"], found["queues"]) == (0, False, [], [])


def test_where_the_api_server_is_away_that_is_said_and_nobody_is_sent_to_another_replica(tmp_path: Path) -> None:
    code, shown, why = asked(tmp_path, decides=False, trouble="API server https://10.0.0.1 is not reached")
    assert (code, shown) == (1, "")
    assert "cannot hold the lease (API server https://10.0.0.1 is not reached): pods wait, running ones run on" in why
    assert "ask each pod" not in why


def test_a_queue_that_nobody_knows_is_said_with_the_one_that_may_be_meant(tmp_path: Path) -> None:
    code, shown, aside = asked(tmp_path, "-n", "capped2")
    assert (code, shown.split()) == (0, ["Nothing", "waits."])
    assert "queue capped2 holds nothing and nothing of it waits: did you mean capped?" in aside


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--namespce", "x"], "No such option: --namespce (Possible options: --namespace)"),
        (["--al"], "No such option: --al (Possible options: --all"),
        (["--outptu", "json"], "No such option: --outptu (Possible options: --output)"),
        (["--schedular", "http://x"], "No such option: --schedular (Possible options: --scheduler)"),
        (["-n"], "Option '-n' requires an argument"),
        (["-x"], "No such option: -x"),
        (["-o", "yaml"], "'yaml' is not one of 'table', 'json'"),
        (["--all=yes"], "Option '--all' does not take a value"),
        (["--scheduler", "here"], "--scheduler here is no address: give http://127.0.0.1:9467"),
        (["--scheduler", "http://127.0.0.1:99999"], "is no address"),
        (["team"], "Got unexpected extra argument(s) (team)"),
    ],
)
def test_what_is_mistyped_is_one_line_that_says_what_to_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: list[str], says: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["sharepod", "queue", *wrong])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown, why = capsys.readouterr()
    assert (ended.value.code, shown) == (2, "")
    assert why.startswith("error: ")
    assert says in why
    assert why.count("\n") == 1


def test_nobody_there_is_one_line_that_says_where_to_ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sharepod", "queue", "--scheduler", "http://127.0.0.1:1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown, why = capsys.readouterr()
    assert (ended.value.code, shown) == (1, "")
    assert why.startswith("error: no scheduler answers at http://127.0.0.1:1 (")
    assert why.endswith("kubectl -n sharepod exec deploy/sharepod-scheduler -- sharepod queue\n")


def test_help_says_what_a_job_is_in_which_order_they_are_tried_and_where_to_ask() -> None:
    text = " ".join(CliRunner().invoke(app, ["queue", "--help"]).stdout.split())
    for said in (
        "A job is a gang or a pod",
        "a queue is a namespace",
        "longest-wait",
        "kubectl -n sharepod",
        "-o json",
    ):
        assert said in text
