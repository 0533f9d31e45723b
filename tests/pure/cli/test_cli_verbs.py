"""Test what the verbs ask the agent and what they print, with an agent in memory."""

import json
import re
import socket
from pathlib import Path
from typing import NoReturn

import pytest
from cli_fixtures import Agent, Sharepod

from sharepod.agent import settings
from sharepod.cli import console
from sharepod.cli.connection import connect
from sharepod.cli.connection.client import Client
from sharepod.cli.errors import EXIT_NO_AGENT, EXIT_USAGE, CliError
from sharepod.proto import v1_pb2 as pb


def test_ps_shows_what_was_asked_and_what_was_got(sharepod: Sharepod, agent: Agent) -> None:
    answer = sharepod("ps")
    assert answer.code == 0
    header, _, row = answer.out.splitlines()
    assert re.split(r"\s{2,}", header.strip()) == [
        "SHARE", "CLASS", "DEVICE", "ASKED", "LIMIT", "GOT 1 s", "GOT 1 min", "MEMORY", "PROCESSES", "STATE", "WAITED",
    ]  # fmt: skip
    assert re.split(r"\s{2,}", row.strip()) == [
        "train", "standard", "0", "30 %", "60 %", "29.9 %", "30.0 %", "1 GiB / 10 GiB", "1", "waiting", "450 ms",
    ]  # fmt: skip


def test_ps_shows_whose_shares_of_pods_are_and_which_are_paused_or_yield(sharepod: Sharepod, agent: Agent) -> None:
    agent.shares[0].labels.update(namespace="team", pod="train-0", container="main")
    agent.shares.append(pb.Share(id="of-no-pod", devices=[pb.DeviceShare()]))
    header, _, row, other = sharepod("ps").out.splitlines()
    assert re.split(r"\s{2,}", header.strip())[:3] == ["SHARE", "POD", "CLASS"]
    assert re.split(r"\s{2,}", row.strip())[:3] == ["train", "team/train-0/main", "standard"]
    assert "/" not in other
    agent.shares[0].paused = True
    assert re.split(r"\s{2,}", sharepod("ps").out.splitlines()[2].strip())[-2] == "paused"
    agent.shares[0].yielding = True
    assert re.split(r"\s{2,}", sharepod("ps").out.splitlines()[2].strip())[-2] == "yielding"
    share = json.loads(sharepod("ps", "-o", "json").out)["shares"][0]
    assert (share["paused"], share["yielding"]) == (True, True)


def test_json_is_the_agents_answer_with_numbers_and_words(sharepod: Sharepod, agent: Agent) -> None:
    agent.shares[0].labels["pod"] = "train-0"
    agent.shares.append(pb.Share(id="newer", share_class=9))  # type: ignore[arg-type]
    found = json.loads(sharepod("ps", "-o", "json").out)
    assert set(found) == {field.name for field in pb.WatchUsageResponse.DESCRIPTOR.fields}
    share, newer = found["shares"]
    assert set(share) == {field.name for field in pb.Share.DESCRIPTOR.fields}
    assert (share["share_class"], share["labels"], share["processes"]) == ("standard", {"pod": "train-0"}, [])
    assert newer["share_class"] == "unknown (9)"
    (term,) = share["devices"]
    assert (term["state"], term["usage"]["used_ns"], term["usage"]["turns"]) == ("waiting", 12_300_000_000, 7)
    assert json.loads(sharepod("explain", "train", "-o", "json").out)["devices"][0]["holder_share_ids"] == ["xyz"]


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (120, "SHARE CLASS DEVICE ASKED LIMIT GOT_1_s GOT_1_min MEMORY PROCESSES STATE WAITED"),
        (80, "SHARE DEVICE ASKED LIMIT GOT_1_s GOT_1_min MEMORY STATE"),
        (40, "SHARE ASKED GOT_1_s STATE"),
    ],
)
def test_a_narrow_terminal_shows_the_columns_that_matter_and_cuts_none(
    sharepod: Sharepod, agent: Agent, monkeypatch: pytest.MonkeyPatch, width: int, columns: str
) -> None:
    monkeypatch.setattr(console, "PIPE_WIDTH", width)
    console.console.cache_clear()
    try:
        answers = [sharepod("ps").out, sharepod("top").out]
    finally:
        console.console.cache_clear()
    assert answers[0].splitlines()[0].replace("GOT 1 s", "GOT_1_s").replace("GOT 1 min", "GOT_1_min").split() == (
        columns.split()
    )
    assert "NVIDIA H200" in answers[1] or width == 40
    for out in answers:
        assert max(map(len, out.splitlines())) <= width
        assert "…" not in out


def test_top_says_what_to_do_when_there_is_no_share(sharepod: Sharepod, agent: Agent) -> None:
    agent.shares = []
    assert "sharepod run --gpu 30" in sharepod("top").out


def test_a_socket_that_cannot_be_one_and_one_that_an_agent_left_behind_are_told(
    sharepod: Sharepod, tmp_path: Path
) -> None:
    answer = sharepod("ps", "--socket", f"/{'x' * 300}")
    assert answer.code == EXIT_USAGE
    assert "is 301 bytes long, the kernel's limit is 107: choose a shorter path" in answer.err
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    answer = sharepod("ps", "--socket", str(tmp_path / "s"))
    assert answer.code == EXIT_NO_AGENT
    assert "nobody listens" in answer.err


def test_a_directory_that_may_not_be_entered_holds_an_agent_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.delenv("SHAREPOD_SOCKET", raising=False)
    monkeypatch.setenv("SHAREPOD_RUNTIME_DIRECTORY", "/run/other")
    monkeypatch.setattr(Path, "stat", refuse)
    assert connect.socket_path(None) == "/run/other/agent.sock"


def test_an_agent_of_this_user_s_is_found_where_the_session_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = [str(tmp_path / name) for name in ("session", "always")]
    monkeypatch.delenv("SHAREPOD_SOCKET", raising=False)
    monkeypatch.delenv("SHAREPOD_RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setattr(connect, "runtime_directories", lambda _: places)
    assert connect.socket_path(None) == f"{places[0]}/agent.sock"
    with pytest.raises(CliError, match=f"no agent at {places[0]}/agent.sock, nor in /run/sharepod: there is no"):
        connect.connect(connect.socket_path(None))
    Path(places[1]).mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{places[1]}/agent.sock")
        other.listen()
        # Its own socket is left of an agent that was killed. No command takes another agent for it without being told.
        with pytest.raises(
            CliError, match=rf"sharepod: there is no.*: use the one that listens at {places[1]}/agent\."
        ):
            connect.connect(f"{places[0]}/agent.sock")
    assert connect.socket_path(None) == f"{places[1]}/agent.sock"
    monkeypatch.setattr("os.getuid", lambda: 12345)  # another user has made the directory
    assert connect.socket_path(None) == f"{places[0]}/agent.sock"


@pytest.mark.parametrize("uid", [0, 1000])
def test_without_a_session_a_user_s_runtime_directory_is_what_it_would_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uid: int
) -> None:
    monkeypatch.setattr("os.getuid", lambda: uid)
    assert settings.runtime_directories({"XDG_RUNTIME_DIR": str(tmp_path)})[-1] == f"/dev/shm/sharepod-{uid}"
    monkeypatch.setattr("os.access", lambda path, _: path in ("/run", f"/run/user/{uid}"))
    monkeypatch.setattr(settings, "_on_tmpfs", lambda _: True)
    found = "/run/sharepod" if uid == 0 else f"/run/user/{uid}/sharepod"
    assert settings.runtime_directories({}) == [found, f"/dev/shm/sharepod-{uid}"]


@pytest.mark.parametrize("place", ["/nowhere/turns.json", "/tmp"])
def test_a_trace_that_cannot_be_written_is_refused_before_it_is_recorded(
    sharepod: Sharepod, agent: Agent, place: str
) -> None:
    answer = sharepod("trace", "--seconds", "60", "-o", place)
    assert (answer.code, agent.asked) == (1, [])
    assert re.fullmatch(rf"error: cannot write {place}: [^\n]+: choose another file\n", answer.err)


@pytest.mark.parametrize("verb", [(), ("run",)])
def test_no_argument_at_all_is_answered_with_the_help_alone(sharepod: Sharepod, verb: tuple[str, ...]) -> None:
    answer = sharepod(*verb)
    assert (answer.code, answer.err) == (EXIT_USAGE, "")
    assert "Usage: sharepod" in answer.out


def test_explain_says_why_and_names_the_holder(sharepod: Sharepod, agent: Agent) -> None:
    agent.shares.append(pb.Share(id="xyz", name="serve"))
    out = sharepod("explain", "train").out
    assert "train on device 0: waiting: it used its 30 % and others are below theirs" in out
    assert "device held by serve" in out
    assert "its turn comes in about 3 ms" in out


def test_trace_writes_all_turns_over_several_calls(sharepod: Sharepod, agent: Agent, tmp_path: Path) -> None:
    count = 16384 + 5
    agent.turns = [
        pb.Turn(
            sequence=i, share_id="abc", device_uuid="GPU-1", granted_ns=i * 10, closed_ns=i * 10, drained_ns=i * 10 + 9
        )
        for i in range(1, count + 1)
    ]
    answer = sharepod("trace", "-o", str(tmp_path / "turns.json"))
    assert answer.code == 0
    events = json.loads((tmp_path / "turns.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "turn" for event in events) == count
    assert f"{count} turns" in answer.err


TYPOS = [
    "run --gpu 101 -- true", "run --gpu -1 -- true", "run --gpu 60 --limit 30 -- true",
    "run --gpu 30 --memory lots -- true", "run --gpu 30 --class fast -- true", "run --gpu 30 --simulate 1xH200 -- true",
    "run --gpi 30 -- true", "run --gpu 30", "run -- true",
    "set train", "set train --gpu 101", "explain", "ps -o yaml", "ps extra", "top --interval 0", "trace",
    "demo --seconds 1", "device release", "device reset 0", "nosuch", "--nosuch",
]  # fmt: skip


@pytest.mark.parametrize("line", TYPOS)
def test_a_wrong_flag_is_one_line_exit_2_and_nothing_asked(sharepod: Sharepod, agent: Agent, line: str) -> None:
    answer = sharepod(*line.split())
    assert (answer.code, answer.out) == (EXIT_USAGE, "")
    assert re.fullmatch(r"error: [^\n]+: [^\n]+\n", answer.err)
    assert agent.asked == []


@pytest.mark.parametrize(
    ("arguments", "page"),
    [
        (["run", "--gpu"], "sharepod run"),
        (["run", "--gpu", "30", "--nope"], "sharepod run"),
        (["set", "train", "--gpu"], "sharepod set"),
        (["ps", "-o"], "sharepod ps"),
        (["device", "release"], "sharepod device release"),
        (["nosuch"], "sharepod"),
        (["--nosuch"], "sharepod"),
    ],
)
def test_a_wrong_flag_names_the_help_of_its_own_verb(sharepod: Sharepod, arguments: list[str], page: str) -> None:
    assert sharepod(*arguments).err.endswith(f": see `{page} --help`\n")


NEEDS_AGENT = [
    "ps", "top", "explain x", "pause x", "resume x", "release x", "set x --gpu 5", "trace -o -", "run --gpu 5 -- true",
    "device release 0", "device resume 0",
]  # fmt: skip


@pytest.mark.parametrize("line", NEEDS_AGENT)
def test_without_an_agent_each_verb_says_in_one_line_how_to_start_one(
    sharepod: Sharepod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("SHAREPOD_SOCKET", str(tmp_path / "agent.sock"))
    answer = sharepod(*line.split())
    assert (answer.code, answer.out) == (EXIT_NO_AGENT, "")
    assert answer.err.startswith(f"error: no agent at {tmp_path}/agent.sock: there is no such socket: start one with ")
    assert answer.err.count("\n") == 1
    assert "--private" in answer.err


def test_version_names_the_region_abi_and_the_features(sharepod: Sharepod) -> None:
    answer = sharepod("--version")
    assert answer.code == 0
    assert re.fullmatch(r"sharepod \S+, region ABI \d+, features: .+\n", answer.out)


def test_an_agent_that_does_not_answer_is_said_to_be_silent_for_as_long_as_was_waited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sharepod.cli.connection.client._TIMEOUT_S", 7.0)
    monkeypatch.setattr("sharepod.cli.connection.client._RELEASE_S", 1.0)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "agent.sock"))
        silent.listen()
        with (
            Client(str(tmp_path / "agent.sock")) as client,
            pytest.raises(CliError, match="has not answered for 1 s: look at its log"),
        ):
            client.release_device("0")
