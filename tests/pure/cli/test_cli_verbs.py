"""What the verbs ask the agent and what they say, with an agent in memory."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import grpc
import pytest

from sharepod.cli import connect, console
from sharepod.cli.errors import EXIT_NO_AGENT, EXIT_REFUSED, EXIT_USAGE
from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from manifests import Agent, Sharepod


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


def test_ps_shows_whose_shares_of_pods_are(sharepod: Sharepod, agent: Agent) -> None:
    agent.shares[0].labels.update(namespace="team", pod="train-0", container="main")
    agent.shares.append(pb.Share(id="of-no-pod", devices=[pb.DeviceShare()]))
    header, _, row, other = sharepod("ps").out.splitlines()
    assert re.split(r"\s{2,}", header.strip())[:3] == ["SHARE", "POD", "CLASS"]
    assert re.split(r"\s{2,}", row.strip())[:3] == ["train", "team/train-0/main", "standard"]
    assert "/" not in other


def test_ps_tells_who_is_paused_and_who_yields(sharepod: Sharepod, agent: Agent) -> None:
    agent.shares[0].paused = True
    assert re.split(r"\s{2,}", sharepod("ps").out.splitlines()[2].strip())[-2] == "paused"
    agent.shares[0].yielding = True
    assert re.split(r"\s{2,}", sharepod("ps").out.splitlines()[2].strip())[-2] == "yielding"
    share = json.loads(sharepod("ps", "-o", "json").out)["shares"][0]
    assert (share["paused"], share["yielding"]) == (True, True)


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
    for out in answers:
        assert max(map(len, out.splitlines())) <= width
        assert "…" not in out


def test_json_has_integers_with_their_units_in_the_name(sharepod: Sharepod, agent: Agent) -> None:
    share = json.loads(sharepod("ps", "-o", "json").out)["shares"][0]
    assert share["name"] == "train"
    assert share["devices"][0]["request_millipercent"] == 30_000
    assert share["devices"][0]["waited_ns"] == 450_000_000


def test_output_to_a_pipe_has_no_escape_codes(sharepod: Sharepod, agent: Agent) -> None:
    for verb in (["ps"], ["top"], ["explain", "train"], ["doctor"]):
        assert "\x1b" not in sharepod(*verb).out


def test_top_without_a_terminal_prints_devices_and_shares_once(sharepod: Sharepod, agent: Agent) -> None:
    answer = sharepod("top")
    assert answer.code == 0
    assert "NVIDIA H200" in answer.out
    assert "train" in answer.out


def test_top_says_what_to_do_when_there_is_no_share(sharepod: Sharepod, agent: Agent) -> None:
    agent.shares = []
    assert "sharepod run --gpu 30" in sharepod("top").out


def test_a_socket_that_cannot_be_one_is_told_as_such(sharepod: Sharepod) -> None:
    answer = sharepod("ps", "--socket", f"/{'x' * 300}")
    assert answer.code == EXIT_USAGE
    assert "is 301 bytes long, the kernel's limit is 107: choose a shorter path" in answer.err


def test_a_directory_that_may_not_be_entered_holds_an_agent_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.delenv("SHAREPOD_SOCKET", raising=False)
    monkeypatch.setenv("SHAREPOD_RUNTIME_DIRECTORY", "/run/other")
    monkeypatch.setattr(Path, "stat", refuse)
    assert connect.socket_path(None) == "/run/other/agent.sock"


@pytest.mark.parametrize("place", ["/nowhere/turns.json", "/tmp"])
def test_a_trace_that_cannot_be_written_is_refused_before_it_is_recorded(
    sharepod: Sharepod, agent: Agent, place: str
) -> None:
    answer = sharepod("trace", "--seconds", "60", "-o", place)
    assert (answer.code, agent.asked) == (1, [])
    assert answer.err.startswith(f"error: cannot write {place}: ")
    assert answer.err.count("\n") == 1


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


def test_set_sends_only_what_was_given(sharepod: Sharepod, agent: Agent) -> None:
    assert sharepod("set", "train", "--limit", "80").code == 0
    (request,) = agent.asked
    assert isinstance(request, pb.UpdateShareRequest)
    (change,) = request.devices
    assert change.limit_millipercent == 80_000
    assert not change.HasField("request_millipercent")
    assert not change.HasField("memory_limit_bytes")
    assert request.share_class == pb.SHARE_CLASS_UNSPECIFIED


@pytest.mark.parametrize("verb", ["pause", "resume", "release"])
def test_operators_verbs_name_the_share_and_confirm_on_stderr(sharepod: Sharepod, agent: Agent, verb: str) -> None:
    answer = sharepod(verb, "train")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith("sharepod: train ")
    assert agent.asked[0].share == "train"  # type: ignore[attr-defined]


def test_trace_writes_all_turns_over_several_calls(sharepod: Sharepod, agent: Agent, tmp_path: Path) -> None:
    count = 16384 + 5
    agent.turns = [
        pb.Turn(
            sequence=i, share_id="abc", device_uuid="GPU-1", granted_ns=i * 10, closed_ns=i * 10, drained_ns=i * 10 + 9
        )
        for i in range(1, count + 1)
    ]
    file = tmp_path / "turns.json"
    answer = sharepod("trace", "-o", str(file))
    assert answer.code == 0
    events = json.loads(file.read_text())["traceEvents"]
    assert sum(event.get("cat") == "turn" for event in events) == count
    assert f"{count} turns" in answer.err


def test_trace_to_a_place_that_cannot_be_written_is_one_line(sharepod: Sharepod, agent: Agent) -> None:
    answer = sharepod("trace", "-o", "/proc/nowhere/turns.json")
    assert answer.code == 1
    assert re.fullmatch(r"error: cannot write /proc/nowhere/turns.json: .*: choose another file\n", answer.err)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, EXIT_USAGE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, EXIT_REFUSED),
        (grpc.StatusCode.UNAVAILABLE, EXIT_NO_AGENT),
        (grpc.StatusCode.NOT_FOUND, 1),
        (grpc.StatusCode.ALREADY_EXISTS, 1),
        (grpc.StatusCode.FAILED_PRECONDITION, 1),
    ],
)
def test_a_refusal_is_the_agents_own_line_and_a_code_by_its_kind(
    sharepod: Sharepod, agent: Agent, status: grpc.StatusCode, code: int
) -> None:
    agent.refusal = (status, "device 0 has 20 % left, 30 % asked:\nlower the request")
    answer = sharepod("run", "--gpu", "30", "--", "true")
    assert (answer.code, answer.out) == (code, "")
    assert answer.err == "error: device 0 has 20 % left, 30 % asked: lower the request\n"


def test_run_registers_its_own_process_and_its_terms(
    sharepod: Sharepod, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[tuple[str, list[str], dict[str, str]]] = []

    def execve(*arguments: object) -> None:
        became.append(arguments)  # type: ignore[arg-type]
        raise OSError(7, "Argument list too long")

    monkeypatch.setattr(os, "execve", execve)
    answer = sharepod(
        "run", "--gpu", "30", "--limit", "60", "--memory", "10GiB", "--class", "latency", "--name", "n",
        "--device", "0", "--device", "GPU-2", "true", "--gpu", "x",
    )  # fmt: skip
    register, release = agent.asked
    assert isinstance(register, pb.RegisterShareRequest)
    assert register.owner_pid == os.getpid()
    assert register.name == "n"
    assert register.share_class == pb.SHARE_CLASS_LATENCY
    assert [ask.device for ask in register.devices] == ["0", "GPU-2"]
    for ask in register.devices:
        assert (ask.request_millipercent, ask.limit_millipercent) == (30_000, 60_000)
        assert ask.memory_limit_bytes == 10 * 2**30
    ((program, arguments, environment),) = became
    assert Path(program).name == "true"
    assert arguments == ["true", "--gpu", "x"]
    assert environment["SHAREPOD_REGION"] == "/region"
    # What cannot be executed leaves no share behind.
    assert isinstance(release, pb.ReleaseShareRequest)
    assert answer.code == 126
    assert answer.err.count("\n") == 1


def test_nothing_is_registered_for_a_command_that_cannot_run(sharepod: Sharepod, agent: Agent, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.touch(0o644)
    for program, code in (("no-such-program-here", 127), (str(data), 126), (str(tmp_path), 126)):
        answer = sharepod("run", "--gpu", "30", "--", program)
        assert answer.code == code
        assert answer.err.count("\n") == 1
    assert agent.asked == []


TYPOS = [
    ["run", "--gpu", "0.5", "--", "true"],
    ["run", "--gpu", "101", "--", "true"],
    ["run", "--gpu", "-1", "--", "true"],
    ["run", "--gpu", "many", "--", "true"],
    ["run", "--gpu", "60", "--limit", "30", "--", "true"],
    ["run", "--gpu", "60", "--limit", "0", "--", "true"],
    ["run", "--gpu", "30", "--memory", "lots", "--", "true"],
    ["run", "--gpu", "30", "--class", "fast", "--", "true"],
    ["run", "--gpu", "30", "--simulate", "1xH200", "--", "true"],
    ["run", "--gpi", "30", "--", "true"],
    ["run", "--gpu", "30"],
    ["run", "--", "true"],
    ["set", "train"],
    ["set", "train", "--gpu", "101"],
    ["explain"],
    ["ps", "-o", "yaml"],
    ["ps", "extra"],
    ["top", "--interval", "0"],
    ["trace"],
    ["demo", "--seconds", "1"],
    ["nosuch"],
    ["--nosuch"],
]


@pytest.mark.parametrize("arguments", TYPOS, ids=" ".join)
def test_a_wrong_flag_is_one_line_exit_2_and_nothing_asked(
    sharepod: Sharepod, agent: Agent, arguments: list[str]
) -> None:
    answer = sharepod(*arguments)
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
        (["nosuch"], "sharepod"),
        (["--nosuch"], "sharepod"),
    ],
)
def test_a_wrong_flag_names_the_help_of_its_own_verb(sharepod: Sharepod, arguments: list[str], page: str) -> None:
    assert sharepod(*arguments).err.endswith(f": see `{page} --help`\n")


NEEDS_AGENT = [
    ["ps"], ["top"], ["explain", "x"], ["pause", "x"], ["resume", "x"], ["release", "x"], ["set", "x", "--gpu", "5"],
    ["trace", "-o", "-"], ["run", "--gpu", "5", "--", "true"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", NEEDS_AGENT, ids=" ".join)
def test_without_an_agent_each_verb_says_in_one_line_how_to_start_one(
    sharepod: Sharepod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("SHAREPOD_SOCKET", str(tmp_path / "agent.sock"))
    answer = sharepod(*arguments)
    assert (answer.code, answer.out) == (EXIT_NO_AGENT, "")
    assert answer.err.startswith(f"error: no agent at {tmp_path}/agent.sock: there is no such socket: start one with ")
    assert answer.err.count("\n") == 1
    assert "--private" in answer.err


def test_a_socket_that_an_agent_left_behind_is_told_apart(sharepod: Sharepod, tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    answer = sharepod("ps", "--socket", str(tmp_path / "s"))
    assert answer.code == EXIT_NO_AGENT
    assert "nobody listens" in answer.err


def test_version_names_the_region_abi_and_the_features(sharepod: Sharepod) -> None:
    answer = sharepod("--version")
    assert answer.code == 0
    assert re.fullmatch(r"sharepod \S+, region ABI \d+, features: .+\n", answer.out)


@pytest.mark.parametrize(
    "verb", ["run", "ps", "top", "explain", "pause", "resume", "set", "release", "trace", "doctor", "demo"]
)
def test_help_teaches_each_verb(sharepod: Sharepod, verb: str) -> None:
    answer = sharepod(verb, "--help")
    assert answer.code == 0
    assert f"sharepod {verb}" in answer.out
